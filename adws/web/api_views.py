"""
`/api/v1/runs`, `/runners`, `/events`, `/locks`, `/quota`, `/breakers`, `/deliveries`: looking, changing nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from adws.adw_modules import breaker_rules
from adws.adw_modules.errors import StateNotFound, UsageError
from adws.adw_modules.interfaces import IssueLock
from adws.adw_modules.runs import RunState
from adws.web import facts, models
from adws.web.home import Home
from adws.web.routes import ERRORS, HomeOf, PageOf

router = APIRouter(prefix="/api/v1", tags=["views"], responses=ERRORS)

#: The largest number of a run that a database can have.
_MOST_RUN = 2**63 - 1


class RunFilter(PageOf):
    """Which runs to list."""

    state: list[RunState] = Field(default=[], max_length=len(RunState))


class EventFilter(PageOf):
    """Whose events to list."""

    adw_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", description="id of a workflow")


class DeliveryFilter(PageOf):
    """Which deliveries to list."""

    verdict: list[Literal["run", "command", "ignored"]] = Field(default=[], max_length=3)


@router.get("/runs", operation_id="list_runs")
def list_runs(home: HomeOf, wanted: Annotated[RunFilter, Query()]) -> models.RunPage:
    """List what waits for a worker, what is with one, and how it ended; newest first."""
    before = _run_in(wanted.cursor)
    found = home.part(lambda app: app.runs).page(states=wanted.state, limit=wanted.limit + 1, before=before)
    shown = found[: wanted.limit]

    return models.RunPage(
        runs=[facts.run_of(run) for run in shown],
        next_cursor=str(shown[-1].run_id) if len(found) > wanted.limit else None,
    )


@router.get("/runners", operation_id="list_runners")
def list_runners(home: HomeOf) -> models.RunnerList:
    """List the workers there are, on every machine, the oldest first."""
    processes, lease_seconds = home.part(lambda app: app.processes), home.settings.lease_ttl_seconds
    found = home.part(lambda app: app.runners).all()

    return models.RunnerList(
        runners=[
            facts.runner_of(runner, verdict=processes.verdict(runner.owner), lease_seconds=lease_seconds)
            for runner in found
        ]
    )


@router.get("/events", operation_id="list_events")
def list_events(home: HomeOf, wanted: Annotated[EventFilter, Query()]) -> models.EventPage:
    """List what happened to a workflow, in order; the cursor is the last event that was seen."""
    events = home.part(lambda app: app.events)
    found = events.of_workflow(wanted.adw_id, after=wanted.cursor or None, limit=wanted.limit)
    if not found and not home.part(lambda app: app.store).exists(wanted.adw_id):
        raise StateNotFound(wanted.adw_id)

    return models.EventPage(
        events=[event.to_json() for event in found], next_cursor=found[-1].event_id if found else None
    )


@router.get("/locks", operation_id="list_locks")
def list_locks(home: HomeOf) -> models.LockList:
    """List which workflow has which issue, oldest first."""
    return models.LockList(locks=[_lock(home, lock) for lock in home.part(lambda app: app.locks).all()])


@router.get("/quota", operation_id="list_quotas")
def list_quotas(home: HomeOf) -> models.QuotaList:
    """Show every limit and how much of it is used."""
    quotas = home.part(lambda app: app.quotas)
    found = quotas.status(estimated_cost=quotas.estimate(home.settings.default_workflow))

    return models.QuotaList(
        quotas=[facts.quota_of(status) for status in found], is_exceeded=any(status.is_exceeded for status in found)
    )


@router.get("/breakers", operation_id="list_breakers")
def list_breakers(home: HomeOf) -> models.BreakerList:
    """Show which outside parties failed, and which are held off."""
    now = home.part(lambda app: app.clock).now()
    stored = home.part(lambda app: app.breakers).stored()

    return models.BreakerList(breakers=[facts.breaker_of(breaker_rules.seen(row, now)) for row in stored])


@router.get("/deliveries", operation_id="list_deliveries")
def list_deliveries(home: HomeOf, wanted: Annotated[DeliveryFilter, Query()]) -> models.DeliveryPage:
    """List webhook deliveries with what was made of them, newest first."""
    deliveries = home.part(lambda app: app.deliveries)
    if wanted.cursor and deliveries.get(wanted.cursor) is None:
        raise UsageError("the cursor names no delivery: use the next_cursor of the page before, unchanged")
    found = deliveries.page(limit=wanted.limit + 1, before=wanted.cursor, verdicts=wanted.verdict)
    shown = found[: wanted.limit]

    return models.DeliveryPage(
        deliveries=[facts.delivery_of(row) for row in shown],
        next_cursor=shown[-1].guid if len(found) > wanted.limit else None,
    )


def _lock(home: Home, lock: IssueLock) -> models.LockLine:
    lease = home.part(lambda app: app.leases).read(lock.adw_id)
    owner = lease.owner if lease else None
    verdict = home.part(lambda app: app.processes).verdict(owner)

    return models.LockLine(
        repository=lock.repository,
        issue_number=lock.issue_number,
        adw_id=lock.adw_id,
        acquired_at=lock.acquired_at,
        owner=owner.describe() if owner else None,
        liveness=verdict.value if owner else "none",
    )


def _run_in(cursor: str) -> int | None:
    """Return the run that a page starts behind; raise UsageError for a cursor that is not ours."""
    if not cursor:
        return None
    if not (cursor.isascii() and cursor.isdigit() and 0 < len(cursor) <= 19 and 0 < int(cursor) <= _MOST_RUN):
        raise UsageError("the cursor names no run: use the next_cursor of the page before, unchanged")

    return int(cursor)
