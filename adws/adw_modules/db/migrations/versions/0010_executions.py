"""Steps whose calls are spread over workers: executions, their iterations, and the pages of these."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _make_executions()
    _make_iterations()
    op.create_table(
        "iteration_pages",
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("idx", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("page", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("part", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "idx", "page", name="pk_iteration_pages"),
    )


def _make_executions() -> None:
    op.create_table(
        "executions",
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("attempt_number", sa.BigInteger, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("parent_execution_id", sa.Text, nullable=False),
        sa.Column("parent_run_id", sa.BigInteger),
        sa.Column("catalog_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("total", sa.BigInteger),
        sa.Column("stored", sa.BigInteger, nullable=False),
        sa.Column("next_index", sa.BigInteger, nullable=False),
        sa.Column("succeeded", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("cancelled", sa.BigInteger, nullable=False),
        sa.Column("cancel_reason", sa.Text, nullable=False),
        sa.Column("lanes", sa.BigInteger, nullable=False),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("first_event_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("taken_at", sa.Text),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("demands", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.CheckConstraint("state IN ('running', 'completed', 'failed', 'cancelled')", name="ck_executions_state"),
        sa.PrimaryKeyConstraint("execution_id", name="pk_executions"),
    )
    op.create_index("ix_executions_workflow", "executions", ["adw_id", "created_at"])
    _partial_index("ix_executions_open", "executions", ["adw_id"], "taken_at IS NULL")


def _make_iterations() -> None:
    op.create_table(
        "iterations",
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("idx", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("page", sa.BigInteger, nullable=False),
        sa.Column("same_call", sa.BigInteger, nullable=False),
        sa.Column("interruptions", sa.BigInteger, nullable=False),
        sa.Column("next_at", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("last_event_id", sa.Text, nullable=False),
        sa.Column("sequence_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("same_failures", sa.BigInteger, nullable=False),
        sa.Column("marks", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text),
        sa.Column("ended_at", sa.Text),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("element", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'retry_wait', 'completed', 'failed', 'cancelled')",
            name="ck_iterations_state",
        ),
        sa.PrimaryKeyConstraint("execution_id", "idx", name="pk_iterations"),
    )
    _partial_index("ix_iterations_running", "iterations", ["execution_id", "run_id"], "state = 'running'")
    _partial_index("ix_iterations_waiting", "iterations", ["execution_id", "next_at", "idx"], "state = 'retry_wait'")


def _partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
