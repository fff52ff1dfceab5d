"""The run queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table of runs and the indexes that claims and lists walk along."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("rank", sa.BigInteger, nullable=False),
        sa.Column("not_before", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("claim_until", sa.Double, nullable=False),
        sa.Column("claim_boot", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text),
        sa.Column("finished_at", sa.Text),
        sa.CheckConstraint(
            "state IN ('pending', 'claimed', 'running', 'stopping', 'completed', 'failed', 'stopped')",
            name="ck_runs_state",
        ),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    _partial_index("ix_runs_waiting", ["rank", "run_id", "not_before"], "state = 'pending'")
    _partial_index("uq_runs_unfinished", ["adw_id"], "finished_at IS NULL", unique=True)
    _partial_index("ix_runs_state", ["state", "run_id"], "state NOT IN ('pending', 'completed')")
    op.create_index("ix_runs_workflow", "runs", ["adw_id", "run_id"])


def _partial_index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, "runs", columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
