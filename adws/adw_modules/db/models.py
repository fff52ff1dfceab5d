"""
The schema, described once.

Migrations make it step by step, and the drift test holds both against each other. Queries do not use these objects:
they are SQL texts in `statements.py`. Moments are the fixed-width UTC text of `timestamps.to_text`, which sorts.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    LargeBinary,
    Table,
    Text,
    text,
)

from adws.adw_modules.db.model_base import Number, metadata
from adws.adw_modules.db.model_executions import executions, iteration_pages, iterations
from adws.adw_modules.db.model_external import external_tasks
from adws.adw_modules.db.model_reports import report_progress, report_sums, report_workflows

__all__ = [
    "executions",
    "external_tasks",
    "iteration_pages",
    "iterations",
    "metadata",
    "report_progress",
    "report_sums",
    "report_workflows",
]

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
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    # Last, so that a list never walks over the pages of a long document.
    Column("body", Text, nullable=False),
    CheckConstraint("home IN ('files', 'database')", name="home"),
    # Each list is read along an index, newest first, so a page costs the same however many workflows there are.
    # This one has beside its order what a search looks at: it is walked along without touching the rows.
    Index("ix_workflow_states_newest", "created_at", "adw_id", "title", "repository", "issue_number"),
    Index("ix_workflow_states_state", "state", "created_at", "adw_id"),
    Index("ix_workflow_states_workflow", "workflow", "created_at", "adw_id"),
    Index("ix_workflow_states_repository", "repository", "created_at", "adw_id"),
    Index("ix_workflow_states_issue", "issue_number", "created_at", "adw_id"),
    Index("ix_workflow_states_repository_issue", "repository", "issue_number", "created_at", "adw_id"),
    # What was spent today is asked for before each start. Those that cost nothing are not in it, so their steps do not
    # write it.
    Index(
        "ix_workflow_states_costing",
        "updated_at",
        sqlite_where=text("body LIKE '%\"cost_usd\"%'"),
        postgresql_where=text("strpos(body, '\"cost_usd\"') > 0"),
    ),
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
    # An owner looks every second: its open requests are found without walking over the handled ones.
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
    CheckConstraint(
        "state IN ('pending', 'claimed', 'running', 'stopping', 'completed', 'failed', 'stopped', 'dead')",
        name="state",
    ),
    # A claim takes the first entry that is due; it touches the table only for that one.
    Index(
        "ix_runs_waiting",
        "rank",
        "run_id",
        "not_before",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    # By its end, not by its states: SQLite writes a partial index anew when a column of its condition changes, and a
    # claim changes the state.
    Index(
        "uq_runs_unfinished",
        "adw_id",
        "slot",
        unique=True,
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
    # Without those that wait, which have an index of their own, and those that went well, which are nearly all there
    # are: so going the usual way writes few pages.
    Index(
        "ix_runs_state",
        "state",
        "run_id",
        sqlite_where=text("state NOT IN ('pending', 'completed')"),
        postgresql_where=text("state NOT IN ('pending', 'completed')"),
    ),
    Index("ix_runs_workflow", "adw_id", "run_id"),
    # What demands something is rare: each demand that waits is found without a walk over the queue.
    Index(
        "ix_runs_demanding",
        "demands",
        sqlite_where=text("demands <> '' AND state = 'pending'"),
        postgresql_where=text("demands <> '' AND state = 'pending'"),
    ),
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
    Index(
        "ix_sessions_open", "run_id", sqlite_where=text("ended_at IS NULL"), postgresql_where=text("ended_at IS NULL")
    ),
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
    Column("name", Text, primary_key=True),  # the outside party
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
    Index(
        "uq_deliveries_intent",
        "intent",
        unique=True,
        sqlite_where=text("intent <> ''"),
        postgresql_where=text("intent <> ''"),
    ),
    # Limits count those that ask for work.
    Index(
        "ix_deliveries_sender",
        "sender",
        "received_at",
        sqlite_where=text("verdict <> 'ignored'"),
        postgresql_where=text("verdict <> 'ignored'"),
    ),
    Index(
        "ix_deliveries_issue",
        "repository",
        "number",
        "received_at",
        sqlite_where=text("verdict <> 'ignored'"),
        postgresql_where=text("verdict <> 'ignored'"),
    ),
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
    Column("notice_key", Text, nullable=False),  # the transition it tells of
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
    Index(
        "ix_notifications_waiting",
        "notice_id",
        "not_before",
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
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
