"""
The overview of a home: totals, workflows that wait or need a person and why, and the use of limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from adws.adw_modules import circuit_breaker, views
from adws.adw_modules.circuit_breaker import BreakerRow
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.recovery.explain import worker_state
from adws.adw_modules.reports import plots
from adws.adw_modules.reports import reports as reports_module
from adws.adw_modules.reports.model import (
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    QueueNow,
    RunningNow,
    StuckNow,
    WaitingNow,
    WaitKind,
    Window,
)
from adws.adw_modules.resources.quotas import QuotaStatus
from adws.app import Home
from adws.web.dashboard import frame
from adws.web.dashboard import start as dashboard_start
from adws.web.dependencies import HomeOf, ServerOf, ServerState

#: Days shown in the pictures, including today.
DAYS = 14
#: Lines read from each list; if there are this many there may be more.
MOST_SHOWN = 50
#: A limit is shown as nearly used up from this share on.
NEARLY = 0.8

#: Kind of wait -> its name on the page.
WAITS: Mapping[WaitKind, str] = MappingProxyType(
    {
        WaitKind.WORKER: "a worker",
        WaitKind.RETRY: "its next attempt",
        WaitKind.RATE_LIMIT: "a rate limit",
        WaitKind.QUOTA: "a quota",
        WaitKind.OUTAGE: "a service that is not available",
        WaitKind.BREAKER: "a circuit breaker",
        WaitKind.CALLS: "calls of a step",
        WaitKind.EXTERNAL: "an external task",
        WaitKind.APPROVAL: "approval",
        WaitKind.PERSON: "a person",
        WaitKind.LATER: "its start time",
        WaitKind.NOBODY: "nothing",
    }
)
#: Waits that only a person can end.
FOR_PEOPLE = frozenset({WaitKind.APPROVAL, WaitKind.PERSON})

#: Name of a limit -> its label on a page.
LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "disk": "Free disk",
        "memory": "Free memory",
        "worktrees": "Worktrees",
        "worktree_size": "Largest worktree",
        "cost_per_day": "Cost today",
        "runs": "Running workflows",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverviewSnapshot:
    """All facts of the overview."""

    now: datetime
    states: Mapping[str, Count]
    queue: QueueNow
    running: Sequence[RunningNow]
    waiting: Sequence[WaitingNow]  #: waiting for anything but a person
    for_people: Sequence[WaitingNow]
    stuck: Sequence[StuckNow]
    outcomes: Sequence[DayOutcomes]  #: only days of the window on which workflows ended
    costs: Sequence[CostSum]  #: by day
    failures: Sequence[FailureGroup]
    gauges: Sequence[QuotaStatus]
    breakers: Sequence[BreakerRow]
    runners: Sequence[JsonObject]

    @property
    def is_new(self) -> bool:
        """Whether no workflow was ever started here."""
        return not self.states and not self.outcomes


@dataclass(frozen=True, kw_only=True, slots=True)
class Concern:
    """Something that needs attention."""

    what: str
    why: str
    advice: str = ""
    href: str = ""
    is_command: bool = False  #: the advice is a command


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauge:
    """How much of a limit is used."""

    label: str
    share: float | None  #: of the limit; None: unknown
    text: str
    tone: str
    detail: str


# --- days ------------------------------------------------------------------------------------------------------


def window_days(now: datetime, count: int = DAYS) -> tuple[str, ...]:
    """Return the last *count* days in UTC, today last."""
    return tuple(f"{now - timedelta(days=back):%Y-%m-%d}" for back in reversed(range(count)))


def by_day(seen: OverviewSnapshot) -> tuple[tuple[DayOutcomes, float], ...]:
    """Return the outcomes and costs of every day of the window, today first."""
    ended = {one.day: one for one in seen.outcomes}

    return tuple(
        (ended.get(day) or DayOutcomes(day=day), spent_on(seen.costs, day)) for day in reversed(window_days(seen.now))
    )


def spent_on(costs: Iterable[CostSum], day: str) -> float:
    """Return the cost of *day*; *costs* are by day."""
    return math.fsum(one.cost_usd for one in costs if one.key == day)


def today_of(now: datetime) -> str:
    """Return the day of *now*."""
    return window_days(now, 1)[0]


# --- on top ----------------------------------------------------------------------------------------------------


def numbers(seen: OverviewSnapshot, *, budget: float) -> dict[str, Any]:
    """Return the numbers for the top of the page, which `tiles.html` shows."""
    approvals = [one for one in seen.for_people if one.kind is WaitKind.APPROVAL]

    return {
        "seen": seen,
        "running": _count_of(seen.running),
        "longest": min((one.started_at for one in seen.running), default=""),
        "approvals": _count_of(approvals),
        "others": _count_of([one for one in seen.for_people if one.kind is not WaitKind.APPROVAL]),
        "failed": seen.states.get("failed", Count(number=0)),
        "ended": reports_module.together(seen.outcomes),
        "spent": spent_on(seen.costs, today_of(seen.now)),
        "budget": budget,
        "NEARLY": NEARLY,
        "DAYS": DAYS,
    }


def _count_of(lines: Sequence[object]) -> Count:
    return Count(number=len(lines), is_more=len(lines) >= MOST_SHOWN)


# --- what needs attention --------------------------------------------------------------------------------------


def concerns(seen: OverviewSnapshot) -> tuple[Concern, ...]:
    """Return what needs attention, first what stops the most workflows."""
    found: list[Concern] = []
    if seen.queue.due.number and not any(runner["state"] == "online" for runner in seen.runners):
        why = f"{seen.queue.due} queued. Start a worker with:"
        found.append(Concern(what="No worker is running", why=why, advice="adw worker", is_command=True))
    found += (
        Concern(what=f"{LIMITS.get(gauge.name, gauge.name)}: the limit is reached", why=gauge.detail)
        for gauge in seen.gauges
        if gauge.is_exceeded
    )
    found += (
        Concern(what=f"Circuit breaker open for {breaker.name}", why=breaker.reason or "it failed too often")
        for breaker in seen.breakers
        if breaker.state == "open"
    )
    found += (
        Concern(
            what=one.subject.title or one.subject.adw_id,
            why=one.why,
            advice=one.commands[0] if one.commands else "",
            href=f"/workflows/{one.subject.adw_id}",
            is_command=bool(one.commands),
        )
        for one in seen.stuck
    )

    return tuple(found)


# --- limits ----------------------------------------------------------------------------------------------------


def gauge_of(status: QuotaStatus) -> Gauge:
    """Return how much of a limit is used; a minimum that must stay free is used up when no more than it is free."""
    label = LIMITS.get(status.name, status.name)
    if not status.is_known:
        return Gauge(label=label, share=None, text="not known yet", tone="quiet", detail=status.detail)
    is_floor = status.unit.endswith("free")
    share = _share(status.limit, status.used) if is_floor else _share(status.used, status.limit)
    tone = "bad" if status.is_exceeded else "wait" if share >= NEARLY else "good"

    return Gauge(label=label, share=share, text=_amounts(status), tone=tone, detail=status.detail)


def _share(part: float, whole: float) -> float:
    if whole <= 0:
        return 1.0 if part > 0 else 0.0

    return min(1.0, max(0.0, part / whole))


def _amounts(status: QuotaStatus) -> str:
    if status.unit.endswith("free"):
        return f"{status.shown(status.used)}, at least {status.shown(status.limit)}"
    shown = frame.money if status.unit == "USD" else frame.number if status.unit != "GB" else status.shown
    if not status.reserved:
        return f"{shown(status.used)} of {shown(status.limit)}"

    return f"{shown(status.used - status.reserved)} and {shown(status.reserved)} reserved of {shown(status.limit)}"


# --- `/`: reads only stored sums and a few lines of each list, however many workflows there are ----------------


router = APIRouter(include_in_schema=False)

#: The most lines of a list on the overview.
LINES = 10


@router.get("/")
def overview(request: Request, home: HomeOf, server: ServerOf) -> HTMLResponse:
    """Show the home at a glance."""
    seen = look(home, server)
    reports = home.reports
    budget = home.settings.quota_max_cost_per_day
    locks = home.locks.first(LINES + 1)

    return frame.render(
        request,
        "overview.html",
        topic="home",
        **numbers(seen, budget=budget),
        concerns=concerns(seen),
        owners={one.run_id: views.owner_name(one.owner) or "no worker" for one in seen.running},
        for_people=seen.for_people,
        for_others=seen.waiting,
        pictures=_pictures(seen, budget),
        days=by_day(seen),
        queue_lines=reports.queue_lines(),
        gauges=[gauge_of(status) for status in seen.gauges],
        locks=locks[:LINES],
        lock_count=Count(number=min(LINES, len(locks)), is_more=len(locks) > LINES),
        ports=home.ports.all(),
        page_address=str(request.base_url).rstrip("/"),
        workers_running=server.workers()[1],
        WAITS=WAITS,
        LINES=LINES,
        begin=dashboard_start.start_facts(home) if seen.is_new else {},
    )


def look(home: Home, server: ServerState) -> OverviewSnapshot:
    """Return the facts of the overview."""
    reports, clock = home.reports, home.clock
    now = clock.now()
    window = Window(since=window_days(now)[0])
    costs = reports.costs(window, by="day")
    spent, sizes = spent_on(costs, today_of(now)), server.worktree_sizes.get()

    return OverviewSnapshot(
        now=now,
        states=reports.states(),
        queue=reports.queue(),
        running=reports.running(limit=MOST_SHOWN),
        waiting=[one for one in reports.queued(limit=MOST_SHOWN) if one.kind not in FOR_PEOPLE],
        for_people=reports.paused(limit=MOST_SHOWN),
        stuck=home.reporting.stuck(),
        outcomes=reports.outcomes(window),
        costs=costs,
        failures=reports.failures(window, limit=LINES),
        gauges=home.quotas.gauges(spent_today=spent, sizes=sizes),
        breakers=[circuit_breaker.seen(row, now) for row in home.breakers.stored()],
        # Live workers, and those lost a moment ago.
        runners=[
            views.worker(one, state=state, now=now)
            for one in home.workers.all()
            if (state := worker_state(home, one).value) != "gone"
        ],
    )


def _pictures(seen: OverviewSnapshot, budget: float) -> dict[str, Markup]:
    days = window_days(seen.now)
    drawn = {
        "outcomes": plots.outcomes_plot(seen.outcomes, days, key="plot-outcomes"),
        "success": plots.success_plot(seen.outcomes, days, key="plot-success"),
        "costs": plots.costs_plot(seen.costs, days, budget=budget, key="plot-costs"),
    }

    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704 - escaped where it is drawn
