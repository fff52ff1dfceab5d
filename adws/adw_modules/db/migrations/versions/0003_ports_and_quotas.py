"""Reservations of ports and of places for workflows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make both tables; a port is one of a host, and a workflow has one for each purpose there."""
    op.create_table(
        "ports",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("port", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("reserved_at", sa.Text, nullable=False),
        sa.CheckConstraint("purpose IN ('backend', 'frontend')", name="ck_ports_purpose"),
        sa.PrimaryKeyConstraint("host", "port", name="pk_ports"),
    )
    op.create_index("uq_ports_workflow", "ports", ["adw_id", "host", "purpose"], unique=True)
    op.create_table(
        "quota_reservations",
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("estimated_cost", sa.Double),
        sa.Column("reserved_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("adw_id", name="pk_quota_reservations"),
    )
