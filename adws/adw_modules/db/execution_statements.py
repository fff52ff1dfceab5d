# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
Every query about executions, by name.

As in `run_statements`; `{waiting}`, `{calling}` and `{open}` are the tables, to be looked at by the index that has only
what waits, is being called, or is not taken. Whoever changes an execution locks its row first.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Database

#: SQLite is told which index: without statistics it takes the primary key, and walks over every iteration.
_SQLITE = {
    "{waiting}": "iterations INDEXED BY ix_iterations_waiting",
    "{calling}": "iterations INDEXED BY ix_iterations_running",
    "{open}": "executions INDEXED BY ix_executions_open",
}
_POSTGRESQL = {"{waiting}": "iterations", "{calling}": "iterations", "{open}": "executions"}


def spelled(database: Database, sql: str) -> str:
    """Return *sql* in the words of the dialect of *database*."""
    for word, meaning in (_POSTGRESQL if database.dialect == "postgresql" else _SQLITE).items():
        sql = sql.replace(word, meaning)

    return database.spell(sql)


# --- executions ------------------------------------------------------------------------------------------------

NEW_COLUMNS = (
    "execution_id",
    "adw_id",
    "phase",
    "attempt_number",
    "step",
    "parent_execution_id",
    "parent_run_id",
    "catalog_id",
    "lanes",
    "created_at",
    "labels",
    "demands",
    "spec",
    "context",
)
#: 0 rows: it is there.
INSERT = (
    f"INSERT INTO executions ({', '.join(NEW_COLUMNS)}, state, reason, stored, next_index, succeeded, failed,"
    " cancelled, cancel_reason, last_event, first_event_id)"
    f" VALUES ({', '.join(f':{name}' for name in NEW_COLUMNS)}, 'running', '', 0, 0, 0, 0, 0, '', 0, '')"
    " ON CONFLICT (execution_id) DO NOTHING"
)
HEAD = """
SELECT state, reason, total, stored, next_index, succeeded, failed, cancelled, cancel_reason, lanes, last_event,
       first_event_id, ended_at, created_at
FROM executions WHERE execution_id = :execution_id
"""
HEAD_TO_CHANGE = HEAD + " {row_lock}"
PLAN = f"SELECT {', '.join(NEW_COLUMNS)} FROM executions WHERE execution_id = :execution_id"
UPDATE = """
UPDATE executions
SET state = :state, reason = :reason, total = :total, stored = :stored, next_index = :next_index,
    succeeded = :succeeded, failed = :failed, cancelled = :cancelled, cancel_reason = :cancel_reason,
    last_event = :last_event, first_event_id = :first_event_id, ended_at = :ended_at
WHERE execution_id = :execution_id
"""
MARK_TAKEN = "UPDATE executions SET taken_at = :moment WHERE execution_id = :execution_id AND ended_at IS NOT NULL"

# --- runs ------------------------------------------------------------------------------------------------------

#: Whether somebody wants the workflow to go on: it has a run that is not over and does not undo it.
_IS_WANTED = """EXISTS (
    SELECT 1 FROM runs AS main
    WHERE main.adw_id = :adw_id AND main.slot = '' AND main.finished_at IS NULL AND main.kind <> 'rollback'
)"""
#: The run of a lane, as long as it is ours; locked, so that nobody takes it back before we are done.
OUR_LANE = f"""
SELECT lane.state, lane.losses, {_IS_WANTED} FROM runs AS lane
WHERE lane.run_id = :run_id AND lane.token = :token AND lane.owner = :owner
  AND lane.state IN ('claimed', 'running', 'stopping')
{{row_lock}}
"""
DUE_LANES = """
SELECT run_id FROM runs
WHERE adw_id = :adw_id AND finished_at IS NULL AND kind = 'iteration' AND state = 'pending' AND not_before <= :moment
ORDER BY run_id
"""
IS_WANTED = f"SELECT 1 WHERE {_IS_WANTED}"
#: A lane that gets on is not one that workers vanish with.
FORGIVE_LOSSES = "UPDATE runs SET losses = 0 WHERE run_id = :run_id"
#: Makes the run due that waits for an execution.
WAKE = """
UPDATE runs SET not_before = '', updated_at = :moment
WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL AND state = 'pending' AND kind <> 'rollback'
  AND not_before > :moment
RETURNING run_id, rank
"""
#: Workflows whose phase has not taken the result of an execution that has ended.
UNTAKEN = """
SELECT DISTINCT adw_id FROM executions
WHERE taken_at IS NULL AND state <> 'running' AND (:adw_id = '' OR adw_id = :adw_id)
  AND NOT EXISTS (
      SELECT 1 FROM executions AS other
      WHERE other.adw_id = executions.adw_id AND other.taken_at IS NULL AND other.state = 'running'
  )
"""
#: Executions of workflows that are over: nobody will go on with them.
LEFT_OPEN = """
SELECT execution_id FROM executions
WHERE taken_at IS NULL AND state = 'running' AND EXISTS (
    SELECT 1 FROM workflow_states AS flow
    WHERE flow.adw_id = executions.adw_id AND flow.state IN ('completed', 'failed', 'abandoned', 'rolled_back')
)
"""
OPEN_OF_WORKFLOW = "SELECT execution_id FROM {open} WHERE adw_id = :adw_id AND taken_at IS NULL AND state = 'running'"

# --- iterations ------------------------------------------------------------------------------------------------

COLUMNS = (
    "idx",
    "state",
    "attempts",
    "page",
    "same_call",
    "interruptions",
    "next_at",
    "why",
    "run_id",
    "token",
    "last_event_id",
    "sequence_id",
    "fingerprint",
    "same_failures",
    "marks",
    "error",
    "process",
    "started_at",
    "ended_at",
    "call",
    "element",
    "result",
)
_SHOWN = ", ".join(COLUMNS)
STORE = """
INSERT INTO iterations (execution_id, idx, state, attempts, page, same_call, interruptions, next_at, why, token,
    last_event_id, sequence_id, fingerprint, same_failures, marks, error, process, call, element, result)
VALUES (:execution_id, :idx, 'pending', 0, 1, 0, 0, '', '', 0, '', '', '', 0, '', '', '', '{}', :element, 'null')
"""
CHANGE = f"""
UPDATE iterations SET {", ".join(f"{name} = :{name}" for name in COLUMNS if name not in ("idx", "element"))}
WHERE execution_id = :execution_id AND idx = :idx
"""
#: What is taken up for the first time: all else is as it was stored.
CHANGE_BEGUN = """
UPDATE iterations
SET state = 'running', why = '', attempts = 1, same_call = 1, run_id = :run_id, token = :token,
    last_event_id = :last_event_id, sequence_id = :sequence_id, started_at = :started_at
WHERE execution_id = :execution_id AND idx = :idx
"""
OF_LANE = (
    f"SELECT {_SHOWN} FROM {{calling}} WHERE execution_id = :execution_id AND state = 'running'"
    " AND run_id = :run_id ORDER BY idx"
)
#: Calls whose lane has vanished for good: ended, or claimed again without asking for them.
ORPHANS = f"""
SELECT {_SHOWN} FROM {{calling}} WHERE execution_id = :execution_id AND state = 'running' AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = iterations.run_id AND runs.token = iterations.token
      AND runs.finished_at IS NULL
) ORDER BY idx
"""
DUE = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait'"
    " AND next_at <= :moment ORDER BY next_at, idx LIMIT :most"
)
WAITING = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait'"
    " ORDER BY next_at, idx LIMIT :most"
)
#: The next one in the order of the collection; of a sequential loop at most one waits.
FIRST_WAITING = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait' ORDER BY idx LIMIT 1"
)
NEXT_AT = "SELECT min(next_at) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait'"
NOT_BEGUN = (
    f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx >= :next_index"
    " ORDER BY idx LIMIT :most"
)
ONE_WAITING = (
    f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx = :idx AND state = 'retry_wait'"
)
COUNTS = """
SELECT (SELECT count(*) FROM {calling} WHERE execution_id = :execution_id AND state = 'running'),
       (SELECT count(*) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait'),
       (SELECT min(next_at) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait')
"""
RESULTS = (
    "SELECT idx, state, result FROM iterations WHERE execution_id = :execution_id AND idx >= :first"
    " ORDER BY idx LIMIT :most"
)
RESULTS_SIZE = "SELECT coalesce(sum(length(result)), 0) FROM iterations WHERE execution_id = :execution_id"
SHOWN = f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx >= :first ORDER BY idx LIMIT :most"
RECORD_PROCESS = """
UPDATE iterations SET process = :process
WHERE execution_id = :execution_id AND idx = :idx AND state = 'running' AND run_id = :run_id AND token = :token
"""
RETRIES = """
SELECT waits.execution_id, owner.adw_id, owner.phase, owner.step, waits.idx, waits.attempts, waits.page, waits.next_at,
       waits.why, waits.error
FROM iterations AS waits JOIN executions AS owner ON owner.execution_id = waits.execution_id
WHERE waits.state = 'retry_wait' AND owner.state = 'running' AND owner.taken_at IS NULL
  AND (:adw_id = '' OR owner.adw_id = :adw_id)
ORDER BY waits.next_at, waits.execution_id, waits.idx LIMIT :limit
"""

# --- pages -----------------------------------------------------------------------------------------------------

KEEP_PAGE = """
INSERT INTO iteration_pages (execution_id, idx, page, part) VALUES (:execution_id, :idx, :page, :part)
ON CONFLICT (execution_id, idx, page) DO UPDATE SET part = excluded.part
"""
PAGES = "SELECT part FROM iteration_pages WHERE execution_id = :execution_id AND idx = :idx ORDER BY page"

# --- what its events tell --------------------------------------------------------------------------------------

_EVENTS = "FROM events WHERE adw_id = :adw_id AND seq > :after AND execution_id = :execution_id"
_OF_EXECUTION = "FROM events WHERE adw_id = :adw_id AND execution_id = :execution_id"
LAST_FAILURE = f"""
SELECT iteration_index, data {_OF_EXECUTION} AND event_type = 'iteration_failed' ORDER BY seq DESC LIMIT 1
"""
LAST_CALL = f"""
SELECT event_type, data {_OF_EXECUTION} AND iteration_index = :idx
  AND event_type IN ('action_completed', 'action_failed')
ORDER BY seq DESC LIMIT 1
"""
CALL_METAS = (
    f"SELECT seq, meta {_EVENTS} AND event_type IN ('action_completed', 'action_failed') ORDER BY seq LIMIT :most"
)
