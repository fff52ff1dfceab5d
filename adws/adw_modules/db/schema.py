"""
The schema, defined once.

New databases are created from it; older ones are migrated to it, and the drift tests compare both. Queries do not use
these objects: they are SQL texts in the functions that run them. Timestamps are the fixed-width UTC text of
`timestamps.to_text`, which sorts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

from adws.adw_modules.db.connection import Database, Session

# Building blocks of all tables.


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: A number assigned by the database; SQLite does that only for its own INTEGER.
Number = BigInteger().with_variant(Integer, "sqlite")


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of only the rows that satisfy *where*."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


workflow_states = Table(
    "workflow_states",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("repository", Text, nullable=False),
    Column("issue_number", BigInteger),
    Column("title", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),  # 0: registered, document not written yet
    # Owner, fence and expiry of the lease are in the row they protect: a second table is unsafe under read committed.
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("lease_boot", Text, nullable=False),
    Column("taken_at", Text, nullable=False),
    Column("home", Text, nullable=False),
    Column("schema_version", Text, nullable=False),
    Column("is_costing", BigInteger, nullable=False, server_default=text("0")),  # 1: an attempt has a cost
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    # Last, so that lists never read the pages of a long document.
    Column("body", Text, nullable=False),
    CheckConstraint("home IN ('files', 'database')", name="home"),
    # Each list is read along an index, newest first, so a page costs the same however many workflows exist. This index
    # also contains the columns a search compares, so a search scans it without touching the rows.
    Index("ix_workflow_states_newest", "created_at", "adw_id", "title", "repository", "issue_number"),
    Index("ix_workflow_states_state", "state", "created_at", "adw_id"),
    Index("ix_workflow_states_workflow", "workflow", "created_at", "adw_id"),
    Index("ix_workflow_states_repository", "repository", "created_at", "adw_id"),
    Index("ix_workflow_states_issue", "issue_number", "created_at", "adw_id"),
    Index("ix_workflow_states_repository_issue", "repository", "issue_number", "created_at", "adw_id"),
    # Each start queries what was spent today. Workflows without costs are not in this index, so their steps do not
    # write it. A column, because searching each document takes longer than all other work of storing it.
    partial_index("ix_workflow_states_costing", "updated_at", where="is_costing = 1"),
)

events = Table(
    "events",
    metadata,
    Column("seq", Number, Identity(), primary_key=True),
    Column("event_id", Text, nullable=False, unique=True),
    Column("adw_id", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("execution_id", Text, nullable=False),
    Column("parent_execution_id", Text),
    Column("parent_event_id", Text),
    Column("retry_sequence_id", Text),
    Column("attempt_number", BigInteger),
    Column("iteration_index", BigInteger),
    Column("total_iterations", BigInteger),
    Column("node_id", Text),
    Column("node_name", Text),
    Column("node_type", Text),
    Column("catalog_id", Text),
    Column("duration", Double),
    Column("result", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Index("ix_events_workflow", "adw_id", "seq"),
)

adw_locks = Table(
    "adw_locks",
    metadata,
    Column("repository", Text, primary_key=True),
    Column("issue_number", BigInteger, primary_key=True, autoincrement=False),
    Column("adw_id", Text, nullable=False),
    Column("acquired_at", Text, nullable=False),
    Index("ix_adw_locks_adw_id", "adw_id"),
)

requests = Table(
    "requests",
    metadata,
    Column("request_id", Number, Identity(), primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("handled_at", Text),
    Column("outcome", Text),
    # The owner polls every second: this finds its open requests without scanning the handled ones.
    Index("ix_requests_open", "adw_id", "handled_at", "request_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Number, Identity(), primary_key=True),  # position in the queue, which never changes
    Column("adw_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    # The negated priority, so that one ascending index gives the queue's order.
    Column("rank", BigInteger, nullable=False),
    Column("not_before", Text, nullable=False),  # "": immediately
    Column("attempts", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("claim_until", Double, nullable=False),
    Column("claim_boot", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("started_at", Text),
    Column("finished_at", Text),
    Column("demands", Text, nullable=False),  # requirements for the worker; "": none
    Column("labels", Text, nullable=False),  # labels by which limits count it
    Column("losses", BigInteger, nullable=False),  # how often its worker vanished
    Column("slot", Text, nullable=False),  # "": the run that continues its workflow
    Column("parent_run_id", BigInteger),
    Column("woken", BigInteger),  # claim number under which the work it waits for ended
    # Not one IN: for more than two values SQLite fills a temporary table with them at each check of a row.
    CheckConstraint(
        " OR ".join(
            f"state = '{state}'"
            for state in ("pending", "claimed", "running", "stopping", "completed", "failed", "stopped", "dead")
        ),
        name="state",
    ),
    # A claim takes the first due entry, and reads the table only for that one.
    partial_index("ix_runs_waiting", "rank", "run_id", "not_before", where="state = 'pending'"),
    # Uses the end, not the states: SQLite rewrites a partial index when a column of its condition changes, and a claim
    # changes the state.
    partial_index("uq_runs_unfinished", "adw_id", "slot", where="finished_at IS NULL", unique=True),
    # Excludes waiting runs, which have their own index, and successful ones, which are nearly all of them: so a normal
    # run writes few pages.
    partial_index("ix_runs_state", "state", "run_id", where="state NOT IN ('pending', 'completed')"),
    Index("ix_runs_workflow", "adw_id", "run_id"),
    # Few runs have requirements: this finds each waiting one without scanning the queue.
    partial_index("ix_runs_demanding", "demands", where="demands <> '' AND state = 'pending'"),
)

runners = Table(
    "runners",
    metadata,
    Column("runner_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),  # the worker's owner record
    Column("host", Text, nullable=False),
    Column("tags", Text, nullable=False),  # as JSON
    Column("concurrency", BigInteger, nullable=False),
    Column("busy", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("is_draining", BigInteger, nullable=False),  # 0 or 1
    Column("started_at", Text, nullable=False),
    Column("heartbeat_at", Text, nullable=False),  # for people; the next two columns decide
    Column("beat", Double, nullable=False),  # on the lease clock
    Column("beat_boot", Text, nullable=False),
    CheckConstraint("is_draining IN (0, 1)", name="is_draining"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("run_id", BigInteger),
    Column("phase", Text, nullable=False),
    Column("attempt_number", BigInteger, nullable=False),
    Column("agent", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("executor_session_id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    CheckConstraint("status IN ('running', 'stopping', 'stopped', 'finished', 'failed')", name="status"),
    Index("ix_sessions_workflow", "adw_id", "started_at"),
    partial_index("ix_sessions_open", "run_id", where="ended_at IS NULL"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("labels", Text, primary_key=True),  # as JSON, keys sorted
    Column("value", Double, nullable=False),
)

ports = Table(
    "ports",
    metadata,
    Column("host", Text, primary_key=True),  # ports belong to a machine
    Column("port", BigInteger, primary_key=True, autoincrement=False),
    Column("adw_id", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("owner", Text, nullable=False),  # the process that reserved it, as an owner record
    Column("reserved_at", Text, nullable=False),
    CheckConstraint("purpose IN ('backend', 'frontend')", name="purpose"),
    Index("uq_ports_workflow", "adw_id", "host", "purpose", unique=True),
)

quota_reservations = Table(
    "quota_reservations",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("host", Text, nullable=False),  # host of its worktree
    Column("estimated_cost", Double),  # US dollars; NULL: no estimate
    Column("reserved_at", Text, nullable=False),
)

breakers = Table(
    "breakers",
    metadata,
    Column("name", Text, primary_key=True),  # the external service
    Column("state", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),  # consecutive failures
    Column("generation", BigInteger, nullable=False),
    Column("opened_at", Text),
    Column("reopens_at", Text),
    Column("reason", Text, nullable=False),
    Column("permits", Text, nullable=False),  # trials in progress, as JSON
    Column("settings", Text, nullable=False),  # its settings, as JSON
    Column("changed_at", Text, nullable=False),
    CheckConstraint("state IN ('closed', 'open', 'half_open')", name="state"),
)

task_checkpoints = Table(
    "task_checkpoints",
    metadata,
    Column("sequence", Number, Identity(), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("task_id", Text, nullable=False),
    Column("adw_id", Text, nullable=False),  # "": a library user's task, which is not removed with a workflow
    Column("step_name", Text),
    Column("created_at", Text, nullable=False),
    Column("checkpoint_data", Text, nullable=False),
    Index("ix_task_checkpoints_task", "task_id", "sequence"),
    Index("ix_task_checkpoints_workflow", "adw_id"),
    # Checkpoints are deleted often, and SQLite would reuse the number of the newest row.
    sqlite_autoincrement=True,
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("seq", Number, Identity(), primary_key=True),  # order of arrival
    Column("guid", Text, nullable=False, unique=True),
    Column("event", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("hook", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("repository", Text, nullable=False),
    Column("number", BigInteger),  # number of the issue or pull request
    Column("intent", Text, nullable=False),
    # Independent of the hook: its name is not signed, and two hooks that report the same event count once.
    Column("body_hash", Text, nullable=False, unique=True),
    Column("verdict", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("run_id", BigInteger),
    Column("adw_id", Text, nullable=False),
    Column("received_at", Text, nullable=False),
    Column("finished_at", Text),
    Column("deliveries", BigInteger, nullable=False),  # how often it arrived
    Column("request", Text, nullable=False),  # the request in it, as JSON
    Column("body", LargeBinary),  # last, so that lists never read it
    CheckConstraint("verdict IN ('run', 'command', 'ignored')", name="verdict"),
    CheckConstraint("status IN ('received', 'done', 'refused', 'failed')", name="status"),
    partial_index("uq_deliveries_intent", "intent", where="intent <> ''", unique=True),
    # Limits count deliveries that ask for work.
    partial_index("ix_deliveries_sender", "sender", "received_at", where="verdict <> 'ignored'"),
    partial_index("ix_deliveries_issue", "repository", "number", "received_at", where="verdict <> 'ignored'"),
)

schedule = Table(
    "schedule",
    metadata,
    Column("name", Text, primary_key=True),
    Column("spec", Text, nullable=False),
    Column("last_due", Text, nullable=False),  # the last tick processed; "": none yet
    Column("last_run", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("memo", Text, nullable=False),  # state kept by the entry, as JSON
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("claim_until", Double, nullable=False),
    Column("claim_boot", Text, nullable=False),
    CheckConstraint("status IN ('', 'done', 'failed')", name="status"),
)

notifications = Table(
    "notifications",
    metadata,
    Column("notice_id", Number, Identity(), primary_key=True),
    Column("notice_key", Text, nullable=False),  # the transition it reports
    Column("channel", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("adw_id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("not_before", Text, nullable=False),  # "": immediately
    Column("error", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("sent_at", Text),
    Column("token", BigInteger, nullable=False),
    Column("claim_until", Double, nullable=False),
    Column("claim_boot", Text, nullable=False),
    CheckConstraint("status IN ('pending', 'sent', 'given_up')", name="status"),
    Index("uq_notifications_key", "notice_key", "channel", unique=True),
    partial_index("ix_notifications_waiting", "notice_id", "not_before", where="status = 'pending'"),
)

notification_cursor = Table(
    "notification_cursor",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # number of the last event read
    Column("event_id", Text, nullable=False),  # its id: a different one at this number means rebuilt events
)

home_facts = Table(
    "home_facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)


# --- steps in progress: executions, their iterations, and the stored pages of each -----------------------------


executions = Table(
    "executions",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("attempt_number", BigInteger, nullable=False),  # number of the phase's attempt
    Column("step", Text, nullable=False),
    Column("parent_execution_id", Text, nullable=False),
    Column("parent_run_id", BigInteger),
    Column("catalog_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("total", BigInteger),  # NULL: its elements are still being stored
    Column("stored", BigInteger, nullable=False),  # number of elements stored
    Column("next_index", BigInteger, nullable=False),  # first element not begun: needs no index of waiting ones
    Column("succeeded", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
    Column("cancel_reason", Text, nullable=False),  # why nothing more begins; "": not cancelled
    Column("lanes", BigInteger, nullable=False),
    Column("last_event", BigInteger, nullable=False),  # number of its last event
    Column("first_event_id", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("taken_at", Text),  # when the phase took its result; until then its run must be woken
    Column("labels", Text, nullable=False),  # labels of its runs
    Column("demands", Text, nullable=False),
    Column("spec", Text, nullable=False),  # the step, as JSON
    Column("context", Text, nullable=False),  # template values, as JSON; last, so that lists never read it
    CheckConstraint("state IN ('running', 'completed', 'failed', 'cancelled')", name="state"),
    Index("ix_executions_workflow", "adw_id", "created_at"),
    partial_index("ix_executions_open", "adw_id", where="taken_at IS NULL"),
)

iterations = Table(
    "iterations",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("attempts", BigInteger, nullable=False),  # calls begun, over all pages
    Column("page", BigInteger, nullable=False),
    Column("same_call", BigInteger, nullable=False),  # calls begun for this page
    Column("interruptions", BigInteger, nullable=False),  # number of those that were interrupted
    Column("next_at", Text, nullable=False),  # due time of a waiting iteration
    Column("why", Text, nullable=False),
    Column("run_id", BigInteger),  # run of the lane that works on it
    Column("token", BigInteger, nullable=False),
    Column("last_event_id", Text, nullable=False),
    Column("sequence_id", Text, nullable=False),  # first event of its calls
    Column("fingerprint", Text, nullable=False),  # fingerprint of the last failure
    Column("same_failures", BigInteger, nullable=False),  # how often in a row
    Column("marks", Text, nullable=False),  # digests of the calls that pages requested
    Column("error", Text, nullable=False),
    Column("process", Text, nullable=False),  # process of the running call, as JSON
    Column("started_at", Text),
    Column("ended_at", Text),
    Column("call", Text, nullable=False),  # inputs requested by the previous page, as JSON
    Column("element", Text, nullable=False),
    Column("result", Text, nullable=False),
    CheckConstraint("state IN ('pending', 'running', 'retry_wait', 'completed', 'failed', 'cancelled')", name="state"),
    partial_index("ix_iterations_running", "execution_id", "run_id", where="state = 'running'"),
    partial_index("ix_iterations_waiting", "execution_id", "next_at", "idx", where="state = 'retry_wait'"),
)

iteration_pages = Table(
    "iteration_pages",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("page", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Text, nullable=False),  # stored result of the page, as JSON
)


# --- tasks done outside adw: one per attempt that waits for an external worker ---------------------------------
#
# A task's token is not stored: it is derived from the task's id and the home's key.


external_tasks = Table(
    "external_tasks",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("round", BigInteger, nullable=False),
    Column("attempt_number", BigInteger, nullable=False),  # of the phase; a new one after an interruption
    Column("catalog_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("claims", BigInteger, nullable=False),  # number of the last claim, with which a worker identifies itself
    Column("worker", Text, nullable=False),  # the worker's name, as it reported itself
    Column("claim_seconds", Double, nullable=False),
    Column("claim_until", Text, nullable=False),  # "": not claimed
    Column("created_at", Text, nullable=False),
    Column("deadline", Text, nullable=False),
    Column("ended_at", Text),
    Column("report_id", Text, nullable=False),  # event_id of the report; "": none yet
    Column("is_ok", BigInteger),
    Column("summary", Text, nullable=False),
    Column("error", Text, nullable=False),  # as JSON; "": no error
    Column("result", Text, nullable=False),
    CheckConstraint("state IN ('open', 'reported', 'expired')", name="state"),
    CheckConstraint("is_ok IN (0, 1)", name="is_ok"),
    Index("ix_external_tasks_workflow", "adw_id", "phase", "created_at"),
    partial_index("ix_external_tasks_open", "deadline", where="state = 'open'"),
)


# --- the sums behind reports -----------------------------------------------------------------------------------
#
# Everything here is derived from documents. Each workflow's row stores what it has added, so that counting it again
# adds only the difference. Amounts are whole numbers, so that adding and subtracting leaves no remainder.


report_sums = Table(
    "report_sums",
    metadata,
    # In query order: one kind, from a given day on.
    Column("kind", Text, primary_key=True),
    Column("day", Text, primary_key=True),  # in UTC; for durations, the first of the month
    Column("workflow", Text, primary_key=True),  # name of the definition
    Column("phase", Text, primary_key=True),  # "": the workflow as a whole
    Column("item", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),  # millionths of a dollar, or milliseconds
    Column("last_at", Text, nullable=False),  # for failures: time of the last one
    Column("adw_id", Text, nullable=False),  # workflow of the last failure
    Column("label", Text, nullable=False),  # message of the last failure
)

report_workflows = Table(
    "report_workflows",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("workflow", Text, nullable=False),
    Column("outcome", Text, nullable=False),  # "": not ended
    Column("last_day", Text, nullable=False),  # day on which its last attempt ended
    Column("attempts", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),  # in millionths of a dollar
    Column("sums", Text, nullable=False),  # what it has added, as JSON; last, so that lists never read it
    Index("ix_report_workflows_cost", "cost", "adw_id"),
)

report_progress = Table(
    "report_progress",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # number of the last event counted
    Column("place", Text, nullable=False),  # id of that event; for a full count, the last workflow
)


# --- views for people and their tools: phases, tasks and runs, one row each ------------------------------------
#
# adw itself reads no view. Timestamps are `timestamptz` on PostgreSQL, for arithmetic, and the text of
# `timestamps.to_text` on SQLite, which sorts and which its date functions parse. A migration that recreates a table
# drops the table's views first: SQLite would make them follow the old table.


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A view and its query in each dialect."""

    name: str
    sqlite: str
    postgresql: str

    def query(self, dialect: str) -> str:
        """Return the view's query."""
        return self.sqlite if dialect == "sqlite" else self.postgresql

    def create(self, dialect: str) -> str:
        """Return the statement that creates the view."""
        return f"CREATE VIEW {self.name} AS\n{self.query(dialect).strip()}"


# --- phases ----------------------------------------------------------------------------------------------------

#: NUL, which JSON escapes as `u0000`, is shown as U+FFFD: PostgreSQL rejects it, and SQLite ends the text there. An
#: escaped backslash before `u0000` only looks like it and is replaced by the character 1 meanwhile, as JSON has no raw
#: control characters. `{find}` is the function that finds a text in a text, and `{one}` the character 1.
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
    WHEN 'retry_wait' THEN
      CASE WHEN coalesce(json_extract(phase.value, '$.attempts_used'), 0) = 0 THEN 'QUEUED' ELSE 'EXECUTING' END
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
#: An invalid timestamp is shown as NULL: one hand-written document must not break the view.
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
    WHEN 'retry_wait' THEN
      CASE WHEN coalesce((phase.body ->> 'attempts_used')::integer, 0) = 0 THEN 'QUEUED' ELSE 'EXECUTING' END
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

# --- tasks -----------------------------------------------------------------------------------------------------

#: A phase as a task with checkpoints; the id is that of `checkpoint.task_of`.
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

# --- runs ------------------------------------------------------------------------------------------------------

#: While a worker has a run, the row last changed when it was claimed and begun, or when a stop was requested.
_CLAIMED_AT = "CASE run.state WHEN 'stopping' THEN coalesce(run.started_at, run.updated_at) ELSE run.updated_at END"
#: The worker's token in its owner record, or NULL if unreadable: one row must not break the others.
_WORKER_SQLITE = "CASE WHEN json_valid(run.owner) THEN json_extract(run.owner, '$.token') END"
_WORKER_POSTGRESQL = r"""substring(run.owner from '^\{.*"token"\s*:\s*"([^"]*)".*\}$')"""
#: `{worker}` is the token of the worker, `{as_moment}` converts a text to a timestamp.
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

#: Every view; views used by others come first.
VIEWS = (
    View(name="phases", sqlite=_PHASES_SQLITE, postgresql=_PHASES_POSTGRESQL),
    View(name="tasks", sqlite=_TASKS_SQLITE, postgresql=_TASKS_POSTGRESQL),
    View(
        name="run_status",
        sqlite=_RUN_STATUS.format(worker=_WORKER_SQLITE, as_moment=""),
        postgresql=_RUN_STATUS.format(worker=_WORKER_POSTGRESQL, as_moment="::timestamptz"),
    ),
)


def missing(database: Database) -> tuple[str, ...]:
    """Return the names of the views that are missing because somebody dropped them."""
    with database.read() as session:
        return tuple(view.name for view in _missing(database, session))


def make_missing(database: Database) -> tuple[str, ...]:
    """Create the missing views, and return their names."""

    def work(session: Session) -> tuple[str, ...]:
        gone = _missing(database, session)
        for view in gone:
            session.run(view.create(database.dialect))

        return tuple(view.name for view in gone)

    return database.transact(work) if missing(database) else ()


def _missing(database: Database, session: Session) -> tuple[View, ...]:
    if database.dialect == "sqlite":
        rows = session.all("SELECT name FROM sqlite_master WHERE type = 'view'")
    else:
        rows = session.all("SELECT viewname FROM pg_views WHERE schemaname = current_schema()")
    there = {row[0] for row in rows}

    return tuple(view for view in VIEWS if view.name not in there)
