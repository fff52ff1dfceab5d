"""Sums that reports are made of, what each workflow has added to them, and how far events were looked through."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables; they are filled from the documents when somebody asks for a report."""
    op.create_table(
        "report_sums",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("kind", "day", "workflow", "phase", "item", name="pk_report_sums"),
    )
    op.create_table(
        "report_workflows",
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("last_day", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("adw_id", name="pk_report_workflows"),
    )
    op.create_index("ix_report_workflows_cost", "report_workflows", ["cost", "adw_id"])
    op.create_table(
        "report_progress",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_report_progress"),
    )
