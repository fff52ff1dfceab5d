"""Checkpoints of tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; SQLite too must give no number twice, also after the newest row was deleted."""
    op.create_table(
        "task_checkpoints",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("step_name", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("checkpoint_data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_task_checkpoints"),
        sa.UniqueConstraint("id", name="uq_task_checkpoints_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_checkpoints_task", "task_checkpoints", ["task_id", "sequence"])
    op.create_index("ix_task_checkpoints_workflow", "task_checkpoints", ["adw_id"])
