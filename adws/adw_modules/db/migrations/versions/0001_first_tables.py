"""Workflows, their events, issue locks and requests to owners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    _workflow_states()
    _events()
    _adw_locks()
    _requests()


def _number() -> sa.types.TypeEngine[int]:
    """Return the type of a number the database gives; SQLite only does that for its own INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _workflow_states() -> None:
    op.create_table(
        "workflow_states",
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("repository", sa.Text, nullable=False),
        sa.Column("issue_number", sa.BigInteger),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("lease_boot", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Text, nullable=False),
        sa.Column("home", sa.Text, nullable=False),
        sa.Column("schema_version", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("adw_id", name="pk_workflow_states"),
        sa.CheckConstraint("home IN ('files', 'database')", name="ck_workflow_states_home"),
    )
    for name, columns in (
        ("newest", ()),
        ("state", ("state",)),
        ("workflow", ("workflow",)),
        ("repository", ("repository",)),
        ("issue", ("issue_number",)),
        ("repository_issue", ("repository", "issue_number")),
    ):
        op.create_index(f"ix_workflow_states_{name}", "workflow_states", [*columns, "created_at", "adw_id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", _number(), sa.Identity(), nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("parent_execution_id", sa.Text),
        sa.Column("parent_event_id", sa.Text),
        sa.Column("retry_sequence_id", sa.Text),
        sa.Column("attempt_number", sa.BigInteger),
        sa.Column("iteration_index", sa.BigInteger),
        sa.Column("total_iterations", sa.BigInteger),
        sa.Column("node_id", sa.Text),
        sa.Column("node_name", sa.Text),
        sa.Column("node_type", sa.Text),
        sa.Column("catalog_id", sa.Text),
        sa.Column("duration", sa.Double),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
        sa.UniqueConstraint("event_id", name="uq_events_event_id"),
    )
    op.create_index("ix_events_workflow", "events", ["adw_id", "seq"])


def _adw_locks() -> None:
    op.create_table(
        "adw_locks",
        sa.Column("repository", sa.Text, nullable=False),
        sa.Column("issue_number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("acquired_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("repository", "issue_number", name="pk_adw_locks"),
    )
    op.create_index("ix_adw_locks_adw_id", "adw_locks", ["adw_id"])


def _requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", _number(), sa.Identity(), nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("handled_at", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_open", "requests", ["adw_id", "handled_at", "request_id"])
