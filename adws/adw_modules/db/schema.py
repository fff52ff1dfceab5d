"""
The schema, described once.

New databases are made from it; older ones are brought to it by migrations, and the drift tests compare both. Queries do
not use these objects: they are SQL texts in the functions that run them. Moments are the fixed-width UTC text of
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

# What every part of the schema is described with.


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: A number the database gives; SQLite only does that for its own INTEGER.
Number = BigInteger().with_variant(Integer, "sqlite")


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of the rows for which *where* holds."""
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
    Column("revision", BigInteger, nullable=False),  # 0: registered, its document is not written yet
    # Owner, fence and end of the lease stand in the row they protect: a second table is unsafe under read committed.
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
    # Last, so that a list never walks over the pages of a long document.
    Column("body", Text, nullable=False),
    CheckConstraint("home IN ('files', 'database')", name="home"),
    # Each list is read along an index, newest first, so a page costs the same however many workflows there are. This
    # one also contains the columns a search compares: it is scanned without touching the rows.
    Index("ix_workflow_states_newest", "created_at", "adw_id", "title", "repository", "issue_number"),
    Index("ix_workflow_states_state", "state", "created_at", "adw_id"),
    Index("ix_workflow_states_workflow", "workflow", "created_at", "adw_id"),
    Index("ix_workflow_states_repository", "repository", "created_at", "adw_id"),
    Index("ix_workflow_states_issue", "issue_number", "created_at", "adw_id"),
    Index("ix_workflow_states_repository_issue", "repository", "issue_number", "created_at", "adw_id"),
    # What was spent today is asked for before each start. Those that cost nothing are not in it, so their steps do not
    # write it. By a column: to search each document for it takes longer than all the rest of storing it.
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
    # The owner polls every second: its open requests are found without scanning the handled ones.
    Index("ix_requests_open", "adw_id", "handled_at", "request_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Number, Identity(), primary_key=True),  # the place in the queue, kept for life
    Column("adw_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    # The priority with its sign turned, so that the order of the queue is one walk up an index.
    Column("rank", BigInteger, nullable=False),
    Column("not_before", Text, nullable=False),  # "": at once
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
    Column("demands", Text, nullable=False),  # of the worker; "": none
    Column("labels", Text, nullable=False),  # what limits count it under
    Column("losses", BigInteger, nullable=False),  # how often a worker vanished with it
    Column("slot", Text, nullable=False),  # "": goes on with its workflow
    Column("parent_run_id", BigInteger),
    Column("woken", BigInteger),  # number of the claim under which what it waits for ended
    # Not as one IN: for more than two values SQLite fills a table with them each time that it checks a row.
    CheckConstraint(
        " OR ".join(
            f"state = '{state}'"
            for state in ("pending", "claimed", "running", "stopping", "completed", "failed", "stopped", "dead")
        ),
        name="state",
    ),
    # A claim takes the first entry that is due; it touches the table only for that one.
    partial_index("ix_runs_waiting", "rank", "run_id", "not_before", where="state = 'pending'"),
    # By its end, not by its states: SQLite writes a partial index anew when a column of its condition changes, and a
    # claim changes the state.
    partial_index("uq_runs_unfinished", "adw_id", "slot", where="finished_at IS NULL", unique=True),
    # Without those that wait, which have an index of their own, and those that went well, which are nearly all there
    # are: so going the usual way writes few pages.
    partial_index("ix_runs_state", "state", "run_id", where="state NOT IN ('pending', 'completed')"),
    Index("ix_runs_workflow", "adw_id", "run_id"),
    # What demands something is rare: each demand that waits is found without a walk over the queue.
    partial_index("ix_runs_demanding", "demands", where="demands <> '' AND state = 'pending'"),
)

runners = Table(
    "runners",
    metadata,
    Column("runner_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),  # its owner record
    Column("host", Text, nullable=False),
    Column("tags", Text, nullable=False),  # as JSON
    Column("concurrency", BigInteger, nullable=False),
    Column("busy", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("is_draining", BigInteger, nullable=False),  # 0 or 1
    Column("started_at", Text, nullable=False),
    Column("heartbeat_at", Text, nullable=False),  # for people; what counts is the next two
    Column("beat", Double, nullable=False),  # by the clock of leases
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
    Column("host", Text, primary_key=True),  # a port is one of a machine
    Column("port", BigInteger, primary_key=True, autoincrement=False),
    Column("adw_id", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("owner", Text, nullable=False),  # the process that holds it, as an owner record
    Column("reserved_at", Text, nullable=False),
    CheckConstraint("purpose IN ('backend', 'frontend')", name="purpose"),
    Index("uq_ports_workflow", "adw_id", "host", "purpose", unique=True),
)

quota_reservations = Table(
    "quota_reservations",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("host", Text, nullable=False),  # where its worktree is
    Column("estimated_cost", Double),  # US dollars; NULL: nobody could tell
    Column("reserved_at", Text, nullable=False),
)

breakers = Table(
    "breakers",
    metadata,
    Column("name", Text, primary_key=True),  # the external service
    Column("state", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),  # in a row
    Column("generation", BigInteger, nullable=False),
    Column("opened_at", Text),
    Column("reopens_at", Text),
    Column("reason", Text, nullable=False),
    Column("permits", Text, nullable=False),  # trials under way, as JSON
    Column("settings", Text, nullable=False),  # what it works with, as JSON
    Column("changed_at", Text, nullable=False),
    CheckConstraint("state IN ('closed', 'open', 'half_open')", name="state"),
)

task_checkpoints = Table(
    "task_checkpoints",
    metadata,
    Column("sequence", Number, Identity(), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("task_id", Text, nullable=False),
    Column("adw_id", Text, nullable=False),  # "": a task of a library user, which no workflow takes with it
    Column("step_name", Text),
    Column("created_at", Text, nullable=False),
    Column("checkpoint_data", Text, nullable=False),
    Index("ix_task_checkpoints_task", "task_id", "sequence"),
    Index("ix_task_checkpoints_workflow", "adw_id"),
    # Checkpoints are deleted all the time, and SQLite would give the number of the newest row again.
    sqlite_autoincrement=True,
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("seq", Number, Identity(), primary_key=True),  # the order in which they came
    Column("guid", Text, nullable=False, unique=True),
    Column("event", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("hook", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("repository", Text, nullable=False),
    Column("number", BigInteger),  # of the issue or pull request
    Column("intent", Text, nullable=False),
    # Whatever the hook: which one sent it is not signed, and two hooks that tell the same tell it once.
    Column("body_hash", Text, nullable=False, unique=True),
    Column("verdict", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("run_id", BigInteger),
    Column("adw_id", Text, nullable=False),
    Column("received_at", Text, nullable=False),
    Column("finished_at", Text),
    Column("deliveries", BigInteger, nullable=False),  # how often it came
    Column("request", Text, nullable=False),  # what it asks for, as JSON
    Column("body", LargeBinary),  # last, so that a list never walks over it
    CheckConstraint("verdict IN ('run', 'command', 'ignored')", name="verdict"),
    CheckConstraint("status IN ('received', 'done', 'refused', 'failed')", name="status"),
    partial_index("uq_deliveries_intent", "intent", where="intent <> ''", unique=True),
    # Limits count those that ask for work.
    partial_index("ix_deliveries_sender", "sender", "received_at", where="verdict <> 'ignored'"),
    partial_index("ix_deliveries_issue", "repository", "number", "received_at", where="verdict <> 'ignored'"),
)

schedule = Table(
    "schedule",
    metadata,
    Column("name", Text, primary_key=True),
    Column("spec", Text, nullable=False),
    Column("last_due", Text, nullable=False),  # the last tick that was done; "": none yet
    Column("last_run", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("memo", Text, nullable=False),  # what the entry remembers, as JSON
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
    Column("notice_key", Text, nullable=False),  # the transition it is about
    Column("channel", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("adw_id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("not_before", Text, nullable=False),  # "": at once
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
    Column("seq", BigInteger, nullable=False),  # of the last event that was looked at
    Column("event_id", Text, nullable=False),  # of that event: another one there means that events were made again
)

home_facts = Table(
    "home_facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)


# The schema of steps under way: each execution, its iterations, and the pages that are kept of them.


executions = Table(
    "executions",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("attempt_number", BigInteger, nullable=False),  # of the phase
    Column("step", Text, nullable=False),
    Column("parent_execution_id", Text, nullable=False),
    Column("parent_run_id", BigInteger),
    Column("catalog_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("total", BigInteger),  # NULL: its elements are still being stored
    Column("stored", BigInteger, nullable=False),  # elements that are
    Column("next_index", BigInteger, nullable=False),  # the first that nobody has begun: no index of waiting iterations
    Column("succeeded", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
    Column("cancel_reason", Text, nullable=False),  # why nothing more is begun; "": it is
    Column("lanes", BigInteger, nullable=False),
    Column("last_event", BigInteger, nullable=False),  # number of its last event
    Column("first_event_id", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("taken_at", Text),  # when the phase took its result; until then somebody has to be woken for it
    Column("labels", Text, nullable=False),  # of its runs
    Column("demands", Text, nullable=False),
    Column("spec", Text, nullable=False),  # the step, as JSON
    Column("context", Text, nullable=False),  # what templates know, as JSON; last, so that lists never walk over it
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
    Column("attempts", BigInteger, nullable=False),  # calls that were begun, over all pages
    Column("page", BigInteger, nullable=False),
    Column("same_call", BigInteger, nullable=False),  # calls that were begun for this page
    Column("interruptions", BigInteger, nullable=False),  # of those, how many were cut off
    Column("next_at", Text, nullable=False),  # of one that waits
    Column("why", Text, nullable=False),
    Column("run_id", BigInteger),  # the lane that has it
    Column("token", BigInteger, nullable=False),
    Column("last_event_id", Text, nullable=False),
    Column("sequence_id", Text, nullable=False),  # the first event of its calls
    Column("fingerprint", Text, nullable=False),  # of the last failure
    Column("same_failures", BigInteger, nullable=False),  # how often in a row
    Column("marks", Text, nullable=False),  # digests of the calls that pages asked for
    Column("error", Text, nullable=False),
    Column("process", Text, nullable=False),  # of the call under way, as JSON
    Column("started_at", Text),
    Column("ended_at", Text),
    Column("call", Text, nullable=False),  # inputs that the page before asked for, as JSON
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
    Column("part", Text, nullable=False),  # what is kept of the page, as JSON
)


# The schema of what is done outside of adw: a task for each attempt that waits for somebody else.
#
# The token of a task is not here: it is made from its id and the key of the home.


external_tasks = Table(
    "external_tasks",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("adw_id", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("round", BigInteger, nullable=False),
    Column("attempt_number", BigInteger, nullable=False),  # of the phase; another one when that was cut off
    Column("catalog_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("claims", BigInteger, nullable=False),  # number of the last claim: what a worker proves itself by
    Column("worker", Text, nullable=False),  # who has it, as they say
    Column("claim_seconds", Double, nullable=False),
    Column("claim_until", Text, nullable=False),  # "": nobody has it
    Column("created_at", Text, nullable=False),
    Column("deadline", Text, nullable=False),
    Column("ended_at", Text),
    Column("report_id", Text, nullable=False),  # event_id of the report; "": none yet
    Column("is_ok", BigInteger),
    Column("summary", Text, nullable=False),
    Column("error", Text, nullable=False),  # as JSON, "" for none
    Column("result", Text, nullable=False),
    CheckConstraint("state IN ('open', 'reported', 'expired')", name="state"),
    CheckConstraint("is_ok IN (0, 1)", name="is_ok"),
    Index("ix_external_tasks_workflow", "adw_id", "phase", "created_at"),
    partial_index("ix_external_tasks_open", "deadline", where="state = 'open'"),
)


# The schema of the sums that reports are made of.
#
# Everything here follows from documents: what a workflow has added stands in its row, so that looking at it again adds
# only the difference. Amounts are whole numbers, so that adding and taking away leaves nothing behind.


report_sums = Table(
    "report_sums",
    metadata,
    # In the order in which they are asked for: one kind, from a day on.
    Column("kind", Text, primary_key=True),
    Column("day", Text, primary_key=True),  # of UTC; of durations: the first of the month
    Column("workflow", Text, primary_key=True),  # name of the definition
    Column("phase", Text, primary_key=True),  # "": of the workflow as a whole
    Column("item", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),  # millionths of a dollar, or milliseconds
    Column("last_at", Text, nullable=False),  # of failures: when the last one was
    Column("adw_id", Text, nullable=False),  # of which workflow
    Column("label", Text, nullable=False),  # and what it said
)

report_workflows = Table(
    "report_workflows",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("workflow", Text, nullable=False),
    Column("outcome", Text, nullable=False),  # "": it goes on
    Column("last_day", Text, nullable=False),  # on which an attempt ended last
    Column("attempts", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),  # in millionths of a dollar
    Column("sums", Text, nullable=False),  # what it has added, as JSON; last, so that lists never walk over it
    Index("ix_report_workflows_cost", "cost", "adw_id"),
)

# The views that people and their tools read: phases, tasks and runs, each with one row where others keep one.
#
# A view only shows: nothing of adw reads one. Moments are `timestamptz` on PostgreSQL, so that they can be reckoned
# with, and the text of `timestamps.to_text` on SQLite, which sorts and which its functions of date and time read. A
# migration that makes a table anew drops its views first: SQLite would have them follow the old table.


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A view by its name, as a query in the SQL of each dialect."""

    name: str
    sqlite: str
    postgresql: str

    def query(self, dialect: str) -> str:
        """Return what the view shows, as SQL."""
        return self.sqlite if dialect == "sqlite" else self.postgresql

    def create(self, dialect: str) -> str:
        """Return the statement that makes it."""
        return f"CREATE VIEW {self.name} AS\n{self.query(dialect).strip()}"


# --- phases ----------------------------------------------------------------------------------------------------

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

# --- runs ------------------------------------------------------------------------------------------------------

#: While a worker has a run, its row changed last when it was claimed and begun, or when somebody asked it to stop.
_CLAIMED_AT = "CASE run.state WHEN 'stopping' THEN coalesce(run.started_at, run.updated_at) ELSE run.updated_at END"
#: The token in the record of a worker; of a record that cannot be read, none: one row must not break the others.
_WORKER_SQLITE = "CASE WHEN json_valid(run.owner) THEN json_extract(run.owner, '$.token') END"
_WORKER_POSTGRESQL = r"""substring(run.owner from '^\{.*"token"\s*:\s*"([^"]*)".*\}$')"""
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

#: Every view, those that others are made of first.
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
    """Return the names of the views that somebody dropped."""
    with database.read() as session:
        return tuple(view.name for view in _missing(database, session))


def make_missing(database: Database) -> tuple[str, ...]:
    """Make them again, and return their names."""

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
