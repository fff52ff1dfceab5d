"""
`/api/v1/runs`, `/runners`, `/events`, `/locks`, `/quota`, `/breakers`, `/deliveries`: read-only views.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

import adws
from adws.adw_modules import circuit_breaker, views
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.explain import worker_state
from adws.adw_modules.recovery.plan import Mode, mode_of
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports.metrics import Values
from adws.web import models
from adws.web.dependencies import ERRORS, HomeOf, NoExtras, OptionalAdwId, PageOf, ServerOf, asker, catch_up

router = APIRouter(prefix="/api/v1", tags=["views"], responses=ERRORS)


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
    """List queued, running and finished runs, newest first."""
    before = wanted.number("run", least=1, most=2**63 - 1)
    shown, last = wanted.cut(home.runs.page(states=wanted.state, limit=wanted.limit + 1, before=before))

    return models.RunPage.model_validate(
        {"runs": shown, "next_cursor": str(last.run_id) if last else None}, from_attributes=True
    )


@router.get("/runners", operation_id="list_runners")
def list_runners(home: HomeOf) -> models.RunnerList:
    """List the workers of every machine, the oldest first."""
    now = home.clock.now()
    rows = [views.worker(one, state=worker_state(home, one).value, now=now) for one in home.workers.all()]

    return models.RunnerList.model_validate({"runners": rows})


@router.get("/events", operation_id="list_events")
def list_events(home: HomeOf, wanted: Annotated[EventFilter, Query()]) -> models.EventPage:
    """List the events of a workflow, in order; the cursor is the last event that was seen."""
    result = home.events.of_workflow(wanted.adw_id, after=wanted.cursor or None, limit=wanted.limit)
    if not result and not home.store.exists(wanted.adw_id):
        raise home.no_workflow(wanted.adw_id)

    return models.EventPage(
        events=[event.to_json() for event in result], next_cursor=result[-1].event_id if result else None
    )


@router.get("/locks", operation_id="list_locks")
def list_locks(home: HomeOf) -> models.LockList:
    """List which workflow holds the lock of which issue, oldest first."""
    rows = []
    for lock in home.locks.all():
        lease = home.leases.read(lock.adw_id)
        rows.append(views.lock(lock, lease, home.processes.verdict(lease.owner if lease else None)))

    return models.LockList.model_validate({"locks": rows})


@router.get("/quota", operation_id="list_quotas")
def list_quotas(home: HomeOf) -> models.QuotaList:
    """Show every limit and how much of it is used."""
    quotas = home.quotas
    result = quotas.status(estimated_cost=quotas.estimate(home.settings.default_workflow))
    rows = [{**asdict(status), "used": status.used if status.is_known else None} for status in result]

    return models.QuotaList.model_validate({"quotas": rows, "is_exceeded": any(one.is_exceeded for one in result)})


@router.get("/breakers", operation_id="list_breakers")
def list_breakers(home: HomeOf) -> models.BreakerList:
    """List circuit breakers of external services."""
    rows = [circuit_breaker.seen(row, home.clock.now()) for row in home.breakers.stored()]

    return models.BreakerList.model_validate({"breakers": rows}, from_attributes=True)


@router.get("/deliveries", operation_id="list_deliveries")
def list_deliveries(home: HomeOf, wanted: Annotated[DeliveryFilter, Query()]) -> models.DeliveryPage:
    """List webhook deliveries with their results, newest first."""
    deliveries = home.deliveries
    if wanted.cursor and deliveries.get(wanted.cursor) is None:
        raise UsageError("the cursor names no delivery: use the next_cursor of the page before, unchanged")
    rows = deliveries.page(limit=wanted.limit + 1, before=wanted.cursor, verdicts=wanted.verdict)
    shown, last = wanted.cut(rows)

    return models.DeliveryPage.model_validate(
        {"deliveries": [row.to_json() for row in shown], "next_cursor": last.guid if last else None}
    )


# --- `/health`: whether this server works; open to everyone, so it reveals little ------------------------------


health_router = APIRouter(tags=["health"])


@health_router.get("/health", operation_id="get_health", responses={503: {"model": models.Health}})
def get_health(home: HomeOf, server: ServerOf, response: Response) -> models.Health:
    """Return whether deliveries can be stored and workers run; 503 when the database does not answer."""
    is_database_well = True
    try:
        home.runs.seconds_to_next()
    except AdwError:
        is_database_well = False
    wanted, running = server.workers()
    if not is_database_well:
        response.status_code = 503

    return models.Health(
        status="ok" if is_database_well else "the database does not answer",
        version=adws.__version__,
        database="ok" if is_database_well else "does not answer",
        workers_wanted=wanted,
        workers_running=running,
    )


# --- `/admin/recover-runs` and `/api/v1/sessions` --------------------------------------------------------------
#
# Both need the token. A recovery is logged with its requester, and the answer has the same fields in every mode.


logger = logging.getLogger("adw.web")

admin_router = APIRouter(tags=["admin"], responses=ERRORS)

Threshold = Annotated[float, Field(ge=0, le=366 * 86_400.0, allow_inf_nan=False)]


class RecoverQuery(NoExtras):
    """Options of a recovery in the address."""

    mode: Literal["none", "stale", "all"] | None = Field(default=None, description="null: that of the settings")
    threshold: Threshold | None = Field(default=None, description="seconds; null: that of the settings")
    force: bool | None = Field(default=None, description="with mode all: take work from live owners too")


class SessionFilter(NoExtras):
    """Whose sessions to list."""

    adw_id: OptionalAdwId = Field(
        default="", description='id of a workflow: all that it had; "": those of every workflow that have not ended'
    )


_NO_ORDER = models.RecoverOrder()


@admin_router.post("/admin/recover-runs", operation_id="recover_runs")
def recover_runs(
    home: HomeOf, wanted: Annotated[RecoverQuery, Query()], order: models.RecoverOrder = _NO_ORDER
) -> models.Recovered:
    """Recover runs of dead workers; the body wins over the address."""
    recovery = home.recovery
    mode = mode_of(order.mode or wanted.mode or home.settings.recovery_mode)
    is_forced = order.force if order.force is not None else bool(wanted.force)
    if is_forced and mode is not Mode.ALL:
        raise UsageError("force takes work from live owners: use it with mode all, or leave it out")
    threshold = order.threshold if order.threshold is not None else wanted.threshold
    policy = replace(recovery.policy, is_forced=is_forced)
    if threshold is not None:
        policy = replace(policy, threshold_seconds=threshold)
    result = recovery.recover(every_document=True, mode=mode, policy=policy, is_dry_run=order.dry_run)
    catch_up(home)
    value = result.to_json()
    counts = {key: value[key] for key in ("reset_to_pending", "marked_failed", "marked_stopped", "run_ids")}
    said = {"action": "recovery_asked", "by": asker(order.by), "mode": mode.value, "force": is_forced, **counts}
    logger.warning("Recovery was asked for", extra={**said, "dry_run": order.dry_run})

    return models.Recovered.model_validate(value)


@admin_router.get("/api/v1/sessions", operation_id="list_sessions")
def list_sessions(home: HomeOf, wanted: Annotated[SessionFilter, Query()]) -> models.SessionList:
    """List the agents at work, oldest first; with an id all of that workflow."""
    result = home.sessions.of_workflow(wanted.adw_id) if wanted.adw_id else home.sessions.live()
    if wanted.adw_id and not result and not home.store.exists(wanted.adw_id):
        raise home.no_workflow(wanted.adw_id)

    return models.SessionList.model_validate({"sessions": result}, from_attributes=True)


# --- `/metrics` for Prometheus: needs a token, as the API does -------------------------------------------------


_FORMATS: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}, "application/openmetrics-text": {}}

metrics_router = APIRouter(tags=["metrics"], responses=ERRORS)


@metrics_router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses={200: {"description": "Every metric.", "content": _FORMATS}},
)
def get_metrics(home: HomeOf, server: ServerOf, request: Request) -> Response:
    """Show gauges and counters in the format that Prometheus reads."""
    readings = home.metrics_collector.readings()
    refused: Values = {(reason,): float(count) for reason, count in dict(server.refused).items()}
    accept = request.headers.get("accept", "")
    page, media_type = metrics.render({**readings, "adw_webhook_refused_total": refused}, accept)

    return Response(page, headers={"Content-Type": media_type, "Cache-Control": "no-store"})
