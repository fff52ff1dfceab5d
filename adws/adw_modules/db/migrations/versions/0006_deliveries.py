"""Deliveries that came in, and what was made of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table: what is the same by guid, body or intent is stored once."""
    op.create_table(
        "deliveries",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("guid", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("hook", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("repository", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger),
        sa.Column("intent", sa.Text, nullable=False),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("received_at", sa.Text, nullable=False),
        sa.Column("finished_at", sa.Text),
        sa.Column("deliveries", sa.BigInteger, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.CheckConstraint("verdict IN ('run', 'command', 'ignored')", name="ck_deliveries_verdict"),
        sa.CheckConstraint("status IN ('received', 'done', 'refused', 'failed')", name="ck_deliveries_status"),
        sa.PrimaryKeyConstraint("seq", name="pk_deliveries"),
        sa.UniqueConstraint("guid", name="uq_deliveries_guid"),
        sa.UniqueConstraint("body_hash", name="uq_deliveries_body_hash"),
    )
    for name, columns, unique, where in (
        ("uq_deliveries_intent", ["intent"], True, "intent <> ''"),
        ("ix_deliveries_sender", ["sender", "received_at"], False, "verdict <> 'ignored'"),
        ("ix_deliveries_issue", ["repository", "number", "received_at"], False, "verdict <> 'ignored'"),
    ):
        op.create_index(
            name, "deliveries", columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
        )
