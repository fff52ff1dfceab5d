"""Views for people and their tools, and what is known about the home itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

#: A NUL in a text, which JSON escapes, is shown as U+FFFD: PostgreSQL refuses it, and SQLite ends the text there. An
#: escaped backslash before `u0000` only resembles one, and is put aside meanwhile: no raw control character stands in
#: JSON. `{find}` and `{one}` are what finds a text in a text, and the character 1.
_PLAIN = r"""CASE
    WHEN flow.body = '' THEN '{{}}'
    WHEN {find}(flow.body, '\u0000') > 0
      THEN replace(replace(replace(flow.body, '\\', {one}), '\u0000', '\ufffd'), {one}, '\\')
    ELSE flow.body
  END"""

_PHASES_SQLITE = f"""
SELECT
  json_extract(phase.value, '$.name') AS phase_id,
  flow.adw_id AS run_id,
  coalesce((SELECT json_extract(defined.value, '$.tier') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = json_extract(phase.value, '$.name')), 0) AS tier_id,
  phase.key AS phase_index,
  json_extract(phase.value, '$.name') AS name,
  CASE json_extract(phase.value, '$.status')
    WHEN 'queued' THEN 'QUEUED'
    WHEN 'complete' THEN 'COMPLETE'
    WHEN 'failed' THEN 'FAILED'
    WHEN 'skipped' THEN 'SKIPPED'
    ELSE 'EXECUTING'
  END AS state,
  json_extract(phase.value, '$.status') AS status,
  coalesce(json_extract(phase.value, '$.attempts_used'), 0) AS attempts_used,
  coalesce(json_extract(phase.value, '$.max_attempts'), 5) + coalesce(json_extract(phase.value, '$.granted'), 0)
    AS max_attempts,
  coalesce(json_array_length(phase.value, '$.attempts'), 0) AS total_attempts,
  json_extract(phase.value, '$.last_failure_reason') AS last_failure_reason,
  json_extract(phase.value, '$.terminal_reason') AS terminal_reason,
  coalesce(json_extract(phase.value, '$.attempts[#-1].started_at'),
           json_extract(phase.value, '$.last_attempt_timestamp')) AS last_attempt_timestamp,
  json_extract(phase.value, '$.retry_at') AS retry_at,
  flow.created_at AS created_at,
  json_extract(phase.value, '$.attempts[0].started_at') AS started_at,
  coalesce(json_extract(phase.value, '$.attempts[#-1].ended_at'),
           json_extract(phase.value, '$.attempts[#-1].started_at'), flow.created_at) AS updated_at,
  CASE WHEN json_extract(phase.value, '$.status') IN ('complete', 'failed', 'skipped')
    THEN json_extract(phase.value, '$.attempts[#-1].ended_at') END AS completed_at,
  json_extract(phase.value, '$.state') AS workflow_state,
  coalesce(json_extract(phase.value, '$.round'), 1) AS round
FROM workflow_states AS flow, json_each({_PLAIN.format(one="char(1)", find="instr")}, '$.phases') AS phase
"""

_DOCUMENT = f"{_PLAIN.format(one='chr(1)', find='strpos')}::json"
#: What is no moment is shown as none: one document that somebody wrote by hand must not make the view useless.
_IS_MOMENT = r"~ '^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?Z$'"


def _moment(text: str) -> str:
    return f"CASE WHEN {text} {_IS_MOMENT} THEN {text}::timestamptz END"


_PHASES_POSTGRESQL = f"""
SELECT
  phase.body ->> 'name' AS phase_id,
  flow.adw_id AS run_id,
  coalesce((
    SELECT (entry.body ->> 'tier')::integer FROM json_array_elements(
      CASE json_typeof(document.defined) WHEN 'array' THEN document.defined ELSE '[]'::json END
    ) AS entry (body) WHERE entry.body ->> 'name' = phase.body ->> 'name' LIMIT 1
  ), 0) AS tier_id,
  (phase.place - 1)::integer AS phase_index,
  phase.body ->> 'name' AS name,
  CASE phase.body ->> 'status'
    WHEN 'queued' THEN 'QUEUED'
    WHEN 'complete' THEN 'COMPLETE'
    WHEN 'failed' THEN 'FAILED'
    WHEN 'skipped' THEN 'SKIPPED'
    ELSE 'EXECUTING'
  END AS state,
  phase.body ->> 'status' AS status,
  coalesce((phase.body ->> 'attempts_used')::integer, 0) AS attempts_used,
  coalesce((phase.body ->> 'max_attempts')::integer, 5) + coalesce((phase.body ->> 'granted')::integer, 0)
    AS max_attempts,
  coalesce(json_array_length(phase.body -> 'attempts'), 0) AS total_attempts,
  phase.body ->> 'last_failure_reason' AS last_failure_reason,
  phase.body ->> 'terminal_reason' AS terminal_reason,
  {_moment("moment.last_start")} AS last_attempt_timestamp,
  {_moment("moment.retry_at")} AS retry_at,
  {_moment("flow.created_at")} AS created_at,
  {_moment("moment.first_start")} AS started_at,
  {_moment("moment.change")} AS updated_at,
  CASE WHEN phase.body ->> 'status' IN ('complete', 'failed', 'skipped') THEN {_moment("moment.last_end")} END
    AS completed_at,
  phase.body ->> 'state' AS workflow_state,
  coalesce((phase.body ->> 'round')::integer, 1) AS round
FROM workflow_states AS flow
CROSS JOIN LATERAL (SELECT {_DOCUMENT} AS body) AS whole
CROSS JOIN LATERAL (
  SELECT whole.body -> 'phases' AS phases, whole.body -> 'workflow' -> 'phases' AS defined
) AS document
CROSS JOIN LATERAL json_array_elements(
  CASE json_typeof(document.phases) WHEN 'array' THEN document.phases ELSE '[]'::json END
) WITH ORDINALITY AS phase (body, place)
CROSS JOIN LATERAL (SELECT
  coalesce(phase.body -> 'attempts' -> -1 ->> 'started_at', phase.body ->> 'last_attempt_timestamp') AS last_start,
  phase.body ->> 'retry_at' AS retry_at,
  phase.body -> 'attempts' -> 0 ->> 'started_at' AS first_start,
  phase.body -> 'attempts' -> -1 ->> 'ended_at' AS last_end,
  coalesce(phase.body -> 'attempts' -> -1 ->> 'ended_at', phase.body -> 'attempts' -> -1 ->> 'started_at',
           flow.created_at) AS change
) AS moment
"""

#: A phase as a task that keeps checkpoints: its id is that of `checkpoint.task_of`.
_TASK_ID = "phase.run_id || '/' || phase.phase_id || CASE WHEN phase.round > 1 THEN '/' || phase.round ELSE '' END"

_TASKS_SQLITE = f"""
SELECT
  {_TASK_ID} AS id,
  phase.run_id AS adw_id,
  phase.phase_id AS phase,
  phase.status AS status,
  (SELECT kept.created_at FROM task_checkpoints AS kept WHERE kept.task_id = {_TASK_ID}
    ORDER BY kept.sequence DESC LIMIT 1) AS checkpoint_at,
  (SELECT kept.step_name FROM task_checkpoints AS kept WHERE kept.task_id = {_TASK_ID}
    ORDER BY kept.sequence DESC LIMIT 1) AS resume_from,
  phase.attempts_used AS attempt_count,
  phase.max_attempts AS max_attempts,
  (SELECT json_extract(defined.value, '$.retry.strategy') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = phase.phase_id) AS backoff_strategy,
  (SELECT json_extract(defined.value, '$.retry.base_seconds') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = phase.phase_id) AS backoff_base_seconds
FROM phases AS phase JOIN workflow_states AS flow ON flow.adw_id = phase.run_id
"""

_TASKS_POSTGRESQL = f"""
SELECT
  {_TASK_ID} AS id,
  phase.run_id AS adw_id,
  phase.phase_id AS phase,
  phase.status AS status,
  {_moment("newest.created_at")} AS checkpoint_at,
  newest.step_name AS resume_from,
  phase.attempts_used AS attempt_count,
  phase.max_attempts AS max_attempts,
  defined.retry ->> 'strategy' AS backoff_strategy,
  (defined.retry ->> 'base_seconds')::float8 AS backoff_base_seconds
FROM phases AS phase JOIN workflow_states AS flow ON flow.adw_id = phase.run_id
CROSS JOIN LATERAL (SELECT {_DOCUMENT} -> 'workflow' -> 'phases' AS phases) AS document
LEFT JOIN LATERAL (
  SELECT entry.body -> 'retry' AS retry FROM json_array_elements(
    CASE json_typeof(document.phases) WHEN 'array' THEN document.phases ELSE '[]'::json END
  ) AS entry (body) WHERE entry.body ->> 'name' = phase.phase_id LIMIT 1
) AS defined ON true
LEFT JOIN LATERAL (
  SELECT kept.created_at, kept.step_name FROM task_checkpoints AS kept WHERE kept.task_id = {_TASK_ID}
  ORDER BY kept.sequence DESC LIMIT 1
) AS newest ON true
"""

#: While a worker has a run, its row changed last when it was claimed and begun, or when somebody asked it to stop.
_CLAIMED_AT = "CASE run.state WHEN 'stopping' THEN coalesce(run.started_at, run.updated_at) ELSE run.updated_at END"
#: `{worker}` is the token of its worker, `{as_moment}` what makes a moment of a text.
_RUN_STATUS = f"""
SELECT
  run.run_id AS run_id,
  (SELECT agent.session_id FROM sessions AS agent WHERE agent.run_id = run.run_id
    ORDER BY agent.started_at DESC, agent.session_id DESC LIMIT 1) AS session_id,
  run.adw_id AS adw_id,
  run.kind AS type,
  CASE run.state WHEN 'dead' THEN 'failed' ELSE run.state END AS status,
  run.state AS state,
  CASE WHEN run.owner <> '' THEN {{worker}} END AS runner_id,
  run.attempts AS attempts,
  run.losses AS losses,
  CASE WHEN run.state IN ('failed', 'dead') THEN run.reason END AS error,
  run.reason AS reason,
  run.created_at{{as_moment}} AS created_at,
  CASE WHEN run.owner <> '' THEN ({_CLAIMED_AT}){{as_moment}} END AS claimed_at,
  run.started_at{{as_moment}} AS started_at,
  run.finished_at{{as_moment}} AS completed_at
FROM runs AS run
"""

_VIEWS = {
    "phases": {"sqlite": _PHASES_SQLITE, "postgresql": _PHASES_POSTGRESQL},
    "tasks": {"sqlite": _TASKS_SQLITE, "postgresql": _TASKS_POSTGRESQL},
    "run_status": {
        "sqlite": _RUN_STATUS.format(worker="json_extract(run.owner, '$.token')", as_moment=""),
        "postgresql": _RUN_STATUS.format(worker="run.owner::json ->> 'token'", as_moment="::timestamptz"),
    },
}


def upgrade() -> None:
    """Make the table of facts about the home, and the views."""
    op.create_table(
        "home_facts",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_home_facts"),
    )
    connection = op.get_bind()
    for name, queries in _VIEWS.items():
        # As it stands: `::` is a cast here, and no name of a parameter.
        connection.exec_driver_sql(f"CREATE VIEW {name} AS\n{queries[connection.dialect.name].strip()}")
