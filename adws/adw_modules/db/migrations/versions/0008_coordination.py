"""Demands, limits and dead letters of runs; workers, sessions of agents, and counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_STATES = "'pending', 'claimed', 'running', 'stopping', 'completed', 'failed', 'stopped', 'dead'"
_OLD = (
    "run_id, adw_id, kind, state, rank, not_before, attempts, token, owner, claim_until, claim_boot, reason, payload,"
    " asked_by, created_at, updated_at, started_at, finished_at"
)


def upgrade() -> None:
    """Give runs their new columns, and make the new tables."""
    if op.get_bind().dialect.name == "sqlite":
        _make_runs_anew()
    else:
        _change_runs()
    _partial_index("uq_runs_unfinished", "runs", ["adw_id", "slot"], "finished_at IS NULL", unique=True)
    _partial_index("ix_runs_demanding", "runs", ["demands"], "demands <> '' AND state = 'pending'")
    _make_tables()


def _change_runs() -> None:
    for name, kind, usual in (
        ("demands", sa.Text, ""),
        ("labels", sa.Text, ""),
        ("losses", sa.BigInteger, "0"),
        ("slot", sa.Text, ""),
    ):
        op.add_column("runs", sa.Column(name, kind, nullable=False, server_default=usual))
        op.alter_column("runs", name, server_default=None)
    op.add_column("runs", sa.Column("parent_run_id", sa.BigInteger))
    op.drop_constraint("ck_runs_state", "runs")
    op.create_check_constraint("ck_runs_state", "runs", f"state IN ({_STATES})")
    op.drop_index("uq_runs_unfinished", "runs")


def _make_runs_anew() -> None:
    """Make the table again: SQLite cannot change a check."""
    op.rename_table("runs", "runs_before")
    for name in ("ix_runs_waiting", "uq_runs_unfinished", "ix_runs_state", "ix_runs_workflow"):
        op.drop_index(name, "runs_before")
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Integer, nullable=False),
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
        sa.Column("demands", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("losses", sa.BigInteger, nullable=False),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("parent_run_id", sa.BigInteger),
        sa.CheckConstraint(f"state IN ({_STATES})", name="ck_runs_state"),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.execute(
        f"INSERT INTO runs ({_OLD}, demands, labels, losses, slot) SELECT {_OLD}, '', '', 0, '' FROM runs_before"
    )
    op.drop_table("runs_before")
    _partial_index("ix_runs_waiting", "runs", ["rank", "run_id", "not_before"], "state = 'pending'")
    _partial_index("ix_runs_state", "runs", ["state", "run_id"], "state NOT IN ('pending', 'completed')")
    op.create_index("ix_runs_workflow", "runs", ["adw_id", "run_id"])


def _make_tables() -> None:
    op.create_table(
        "runners",
        sa.Column("runner_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("busy", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("is_draining", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("heartbeat_at", sa.Text, nullable=False),
        sa.Column("beat", sa.Double, nullable=False),
        sa.Column("beat_boot", sa.Text, nullable=False),
        sa.CheckConstraint("is_draining IN (0, 1)", name="ck_runners_is_draining"),
        sa.PrimaryKeyConstraint("runner_id", name="pk_runners"),
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("adw_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("attempt_number", sa.BigInteger, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("executor_session_id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.CheckConstraint(
            "status IN ('running', 'stopping', 'stopped', 'finished', 'failed')", name="ck_sessions_status"
        ),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_workflow", "sessions", ["adw_id", "started_at"])
    _partial_index("ix_sessions_open", "sessions", ["run_id"], "ended_at IS NULL")
    op.create_table(
        "counters",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", "labels", name="pk_counters"),
    )


def _partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
