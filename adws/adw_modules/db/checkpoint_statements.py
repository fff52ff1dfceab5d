"""
The queries about checkpoints, by name.

Spelled like those of `statements`: `:name` is a parameter, `{row_lock}` keeps a row as it is to the transaction's end.
"""

from __future__ import annotations

CHECKPOINT_COLUMNS = ("sequence", "id", "task_id", "adw_id", "step_name", "created_at", "checkpoint_data")
_COLUMNS = ", ".join(CHECKPOINT_COLUMNS)
_NEW_COLUMNS = ", ".join(CHECKPOINT_COLUMNS[1:])
_NEW_VALUES = ", ".join(f":{name}" for name in CHECKPOINT_COLUMNS[1:])

CHECKPOINT_ADD = f"INSERT INTO task_checkpoints ({_NEW_COLUMNS}) VALUES ({_NEW_VALUES}) RETURNING {_COLUMNS}"  # noqa: S608 - names of this module
#: Takes all but the newest of a task away.
CHECKPOINTS_PRUNE = """
DELETE FROM task_checkpoints WHERE task_id = :task_id AND sequence NOT IN (
  SELECT sequence FROM task_checkpoints WHERE task_id = :task_id ORDER BY sequence DESC LIMIT :keep
)
"""
CHECKPOINT_LATEST = (
    f"SELECT {_COLUMNS} FROM task_checkpoints WHERE task_id = :task_id"  # noqa: S608 - names of this module
    " ORDER BY sequence DESC LIMIT 1"
)
CHECKPOINTS_OF = f"SELECT {_COLUMNS} FROM task_checkpoints WHERE task_id = :task_id ORDER BY sequence"  # noqa: S608 - names of this module
CHECKPOINTS_DELETE = "DELETE FROM task_checkpoints WHERE task_id = :task_id"
#: The owner's fence, which nobody changes until the checkpoint is stored.
CHECKPOINT_FENCE = "SELECT fence FROM workflow_states WHERE adw_id = :adw_id {row_lock}"

CHECKPOINT_WORKFLOWS = "SELECT DISTINCT adw_id FROM task_checkpoints WHERE adw_id <> '' ORDER BY adw_id"
CHECKPOINT_LINES = """
SELECT task_id, step_name, created_at, length(checkpoint_data) FROM task_checkpoints
WHERE adw_id = :adw_id ORDER BY sequence DESC
"""
CHECKPOINTS_FORGET = "DELETE FROM task_checkpoints WHERE adw_id = :adw_id"

#: For `adw db check`: checkpoints of workflows that are gone.
CHECK_CHECKPOINTS = """
SELECT adw_id, count(*) FROM task_checkpoints AS kept
WHERE adw_id <> '' AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = kept.adw_id)
GROUP BY adw_id ORDER BY adw_id
"""
#: For a database that is made again: every checkpoint, in their order.
CHECKPOINTS_ALL = f"SELECT {_COLUMNS} FROM task_checkpoints ORDER BY sequence"  # noqa: S608 - names of this module
#: Brings one back that is not there; it gets a new number, so they are brought in their order.
CHECKPOINT_BRING = f"INSERT INTO task_checkpoints ({_NEW_COLUMNS}) VALUES ({_NEW_VALUES}) ON CONFLICT (id) DO NOTHING"  # noqa: S608 - names of this module
