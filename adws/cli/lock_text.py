"""
What `adw locks` shows: plain data for `--json`, and lines of text made from that same data.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces import IssueLock, LeaseRow
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import Verdict
from adws.cli import output


def name_of(lock: IssueLock) -> str:
    """Return the issue of a lock in words."""
    return f"issue {lock.issue_number}" + (f" of {lock.repository}" if lock.repository else "")


def owner_of(row: LeaseRow | None, verdict: Verdict) -> str:
    """Return the owner of a lease in words."""
    if row is None or row.owner is None:
        return "an owner whose record cannot be read"

    return f"{row.owner.describe()} ({verdict.value})"


def facts_of(lock: IssueLock) -> JsonObject:
    """Return what names a lock."""
    return {"repository": lock.repository, "issue_number": lock.issue_number, "adw_id": lock.adw_id}


def lock_data(lock: IssueLock, lease: LeaseRow | None, *, verdict: Verdict, state: str, now: datetime) -> JsonObject:
    """Return one lock with the state of its workflow and the liveness of whoever works on it."""
    owner = lease.owner if lease is not None else None

    return {
        **facts_of(lock),
        "acquired_at": lock.acquired_at,
        "age_seconds": _age(lock.acquired_at, now),
        "state": state,
        "owner": owner.describe() if owner else None,
        "liveness": verdict.value if owner else "none",
        "lease_seconds_left": round(lease.seconds_left, 1) if lease is not None and owner else None,
    }


def lock_lines(rows: Sequence[JsonObject], now: datetime) -> list[str]:
    """Return the locks as a table."""
    if not rows:
        return ["no issue is locked"]
    cells = [
        (
            f"{row['repository']}#{row['issue_number']}",
            str(row["adw_id"]),
            str(row["state"]),
            output.moment(str(row["acquired_at"]), now),
            _liveness(row),
        )
        for row in rows
    ]

    return output.table(("ISSUE", "WORKFLOW", "STATE", "SINCE", "OWNER"), cells)


def _liveness(row: JsonObject) -> str:
    left = row["lease_seconds_left"]
    if not isinstance(left, float | int):
        return "nobody works on it"
    ends = f"{left:.0f} s left" if left > 0 else "over"

    return f"{row['owner']}, {row['liveness']}, lease {ends}"


def _age(moment: str, now: datetime) -> float | None:
    try:
        return round((now - timestamps.parse(moment)).total_seconds(), 1)
    except ValueError:
        return None  # not a moment that we wrote
