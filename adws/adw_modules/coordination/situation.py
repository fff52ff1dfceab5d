"""
What is known about a workflow that may not be moving: gathered for `explanation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules.explanation import Situation
from adws.adw_modules.recovery_facts import Claim
from adws.adw_modules.timestamps import to_text

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import LeaseBook, LeaseRow, Processes, Requests
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Desks:
    """Where it is asked for."""

    leases: LeaseBook
    runs: RunQueue
    requests: Requests
    processes: Processes


def situation_of(desks: Desks, adw_id: str, data: JsonObject, *, now: datetime) -> Situation:
    """Return what is known about the workflow whose plain document is *data*."""
    run = next(iter(desks.runs.of_workflow(adw_id, limit=1)), None)

    return Situation(
        data=data,
        lease=claim_of(desks.leases.read(adw_id), desks.processes),
        run_state=run.state if run else None,
        run_reason=run.reason if run else "",
        not_before=run.not_before if run else "",
        is_due=run is None or run.not_before <= to_text(now),
        asked=tuple(request.kind for request in desks.requests.open_for(adw_id)),
    )


def claim_of(row: LeaseRow | None, processes: Processes) -> Claim:
    """Return who has a workflow, and whether he lives."""
    if row is None or row.owner is None:
        return Claim()

    return Claim(owner=row.owner.describe(), verdict=processes.verdict(row.owner), seconds_left=row.seconds_left)
