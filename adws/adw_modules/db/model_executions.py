"""
The schema of steps under way: each execution, its iterations, and the pages that are kept of them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Table, Text, text

from adws.adw_modules.db.model_base import metadata

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
    Column("next_index", BigInteger, nullable=False),  # the first that nobody has begun: no index of what waits
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
    Index(
        "ix_executions_open",
        "adw_id",
        sqlite_where=text("taken_at IS NULL"),
        postgresql_where=text("taken_at IS NULL"),
    ),
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
    Index(
        "ix_iterations_running",
        "execution_id",
        "run_id",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
    Index(
        "ix_iterations_waiting",
        "execution_id",
        "next_at",
        "idx",
        sqlite_where=text("state = 'retry_wait'"),
        postgresql_where=text("state = 'retry_wait'"),
    ),
)

iteration_pages = Table(
    "iteration_pages",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("page", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Text, nullable=False),  # what is kept of the page, as JSON
)
