"""What is done outside of adw: tasks of attempts that wait for it, and waking the run that waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and the column that keeps a wake-up from being lost."""
    op.add_column("runs", sa.Column("woken", sa.BigInteger))
    op.create_table(
        "external_tasks",
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("round", sa.BigInteger, nullable=False),
        sa.Column("attempt_number", sa.BigInteger, nullable=False),
        sa.Column("catalog_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("claims", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("claim_seconds", sa.Double, nullable=False),
        sa.Column("claim_until", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("deadline", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("report_id", sa.Text, nullable=False),
        sa.Column("is_ok", sa.BigInteger),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.CheckConstraint("state IN ('open', 'reported', 'expired')", name="ck_external_tasks_state"),
        sa.CheckConstraint("is_ok IN (0, 1)", name="ck_external_tasks_is_ok"),
        sa.PrimaryKeyConstraint("task_id", name="pk_external_tasks"),
    )
    op.create_index("ix_external_tasks_workflow", "external_tasks", ["adw_id", "phase", "created_at"])
    is_open = sa.text("state = 'open'")
    op.create_index(
        "ix_external_tasks_open", "external_tasks", ["deadline"], sqlite_where=is_open, postgresql_where=is_open
    )
