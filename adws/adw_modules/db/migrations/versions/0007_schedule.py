"""What is done on a schedule, and what people are told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables: entries of the schedule, notifications, and how far events were looked through for them."""
    op.create_table(
        "schedule",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("last_due", sa.Text, nullable=False),
        sa.Column("last_run", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("memo", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("claim_until", sa.Double, nullable=False),
        sa.Column("claim_boot", sa.Text, nullable=False),
        sa.CheckConstraint("status IN ('', 'done', 'failed')", name="ck_schedule_status"),
        sa.PrimaryKeyConstraint("name", name="pk_schedule"),
    )
    op.create_table(
        "notifications",
        sa.Column("notice_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("notice_key", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("not_before", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("sent_at", sa.Text),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("claim_until", sa.Double, nullable=False),
        sa.Column("claim_boot", sa.Text, nullable=False),
        sa.CheckConstraint("status IN ('pending', 'sent', 'given_up')", name="ck_notifications_status"),
        sa.PrimaryKeyConstraint("notice_id", name="pk_notifications"),
    )
    op.create_index("uq_notifications_key", "notifications", ["notice_key", "channel"], unique=True)
    op.create_index(
        "ix_notifications_waiting",
        "notifications",
        ["notice_id", "not_before"],
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "notification_cursor",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_notification_cursor"),
    )
