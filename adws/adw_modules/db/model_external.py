"""
The schema of what is done outside of adw: a task for each attempt that waits for somebody else.

The token of a task is not here: it is made from its id and the key of the home.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Index, Table, Text, text

from adws.adw_modules.db.model_base import metadata

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
    Index(
        "ix_external_tasks_open",
        "deadline",
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
)
