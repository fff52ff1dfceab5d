"""Breakers of external services."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table: one row for each service, which all processes share."""
    op.create_table(
        "breakers",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("opened_at", sa.Text),
        sa.Column("reopens_at", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("permits", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Text, nullable=False),
        sa.CheckConstraint("state IN ('closed', 'open', 'half_open')", name="ck_breakers_state"),
        sa.PrimaryKeyConstraint("name", name="pk_breakers"),
    )
