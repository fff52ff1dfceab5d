# ruff: noqa: S608 - all that is put into these texts are names of this module
"""
Tables that only the database has and no document tells of, for a database that is made again: as rows.

What is there stays. Numbers that the database gives are given anew, claims are over, and a session of an agent has
ended: whoever ran it is gone, or begins another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adws.adw_modules.db.external_tasks import TASK_COLUMNS
from adws.adw_modules.db.report_statements import SUM_COLUMNS, WORKFLOW_COLUMNS
from adws.adw_modules.db.session import Session
from adws.adw_modules.interfaces_rebuild import KeptRow

_NOBODY: Mapping[str, object] = {"claim_until": 0.0, "claim_boot": ""}
_LOST_SESSION = "the database was made again"

#: Table -> its columns but for the number that the database gives.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "schedule": (
        "name",
        "spec",
        "last_due",
        "last_run",
        "status",
        "outcome",
        "memo",
        "owner",
        "token",
        "claim_until",
        "claim_boot",
    ),
    "notifications": (
        "notice_key",
        "channel",
        "kind",
        "adw_id",
        "title",
        "body",
        "status",
        "attempts",
        "not_before",
        "error",
        "created_at",
        "sent_at",
        "token",
        "claim_until",
        "claim_boot",
    ),
    "sessions": (
        "session_id",
        "adw_id",
        "run_id",
        "phase",
        "attempt_number",
        "agent",
        "host",
        "status",
        "executor_session_id",
        "reason",
        "started_at",
        "ended_at",
    ),
    "external_tasks": TASK_COLUMNS,
    "counters": ("name", "labels", "value"),
    "home_facts": ("name", "value", "changed_at"),
    "report_sums": SUM_COLUMNS,
    "report_workflows": WORKFLOW_COLUMNS,
}
#: In which order they are read: that in which they were made.
_ORDER = {
    "notifications": "notice_id",
    "sessions": "started_at, session_id",
    "external_tasks": "created_at, task_id",
    "report_sums": "kind, day, workflow, phase, item",
    "report_workflows": "adw_id",
}


def read(session: Session, table: str) -> tuple[KeptRow, ...]:
    """Return the rows of *table*, in their order."""
    names = COLUMNS[table]
    found = session.all(f"SELECT {', '.join(names)} FROM {table} ORDER BY {_ORDER.get(table, 'name')}")

    return tuple(dict(zip(names, row, strict=True)) for row in found)


def bring(session: Session, table: str, rows: Sequence[KeptRow], *, moment: str) -> None:
    """Put *rows* into *table*, those that are there left out."""
    names = COLUMNS[table]
    values = ", ".join(f":{name}" for name in names)
    session.run_each(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING",
        [_brought(table, row, moment) for row in rows],
    )


def _brought(table: str, row: KeptRow, moment: str) -> dict[str, object]:
    if table in {"schedule", "notifications"}:
        return {**row, **_NOBODY}
    if table != "sessions":
        return dict(row)
    ended = {} if row["ended_at"] is not None else {"status": "failed", "ended_at": moment, "reason": _LOST_SESSION}

    return {**row, "run_id": None, **ended}  # runs have other numbers now
