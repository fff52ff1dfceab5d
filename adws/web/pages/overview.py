"""
`/`: what runs now, what waits and for what, how it went, what it cost, what is held by whom.

However many workflows there are, this reads sums that are kept, and a few lines of each list.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from adws.adw_modules import breaker_rules, report_plots
from adws.adw_modules.interfaces_reports import Count, Window
from adws.web import facts
from adws.web.home import Home
from adws.web.models import RunnerLine
from adws.web.pages import frame, overview_facts
from adws.web.pages.overview_facts import DAYS, FOR_PEOPLE, MOST_SHOWN, WAITS, Seen
from adws.web.routes import HomeOf

router = APIRouter(include_in_schema=False)

#: Lines of a list on the overview.
LINES = 10


@router.get("/")
def overview(request: Request, home: HomeOf) -> HTMLResponse:
    """Show the home at a glance."""
    seen = look(home)
    reports = home.part(lambda app: app.reports)
    budget = home.settings.quota_max_cost_per_day
    locks = home.part(lambda app: app.locks).first(LINES + 1)

    return frame.render(
        request,
        "overview.html",
        topic="home",
        seen=seen,
        tiles=overview_facts.tiles(seen, budget=budget),
        concerns=overview_facts.concerns(seen),
        owners={one.run_id: facts.name_of(one.owner) or "nobody" for one in seen.running},
        for_people=seen.for_people,
        for_others=seen.waiting,
        pictures=_pictures(seen, budget),
        days=overview_facts.by_day(seen),
        queue_lines=reports.queue_lines(),
        gauges=[overview_facts.gauge_of(status) for status in seen.gauges],
        locks=locks[:LINES],
        lock_count=Count(number=min(LINES, len(locks)), is_more=len(locks) > LINES),
        ports=home.part(lambda app: app.ports).all(),
        page_address=str(request.base_url).rstrip("/"),
        workers_running=home.workers()[1],
        WAITS=WAITS,
        DAYS=DAYS,
        LINES=LINES,
        budget=budget,
    )


def look(home: Home) -> Seen:
    """Return what is to be seen."""
    reports, clock = home.part(lambda app: app.reports), home.part(lambda app: app.clock)
    now = clock.now()
    window = Window(since=overview_facts.window_days(now)[0])
    costs = reports.costs(window, by="day")
    spent, sizes = overview_facts.spent_on(costs, overview_facts.today_of(now)), home.worktree_sizes.get()

    return Seen(
        now=now,
        states=reports.states(),
        queue=reports.queue(),
        running=reports.running(limit=MOST_SHOWN),
        waiting=[one for one in reports.queued(limit=MOST_SHOWN) if one.kind not in FOR_PEOPLE],
        for_people=reports.paused(limit=MOST_SHOWN),
        stuck=home.part(lambda app: app.reporting).stuck(),
        outcomes=reports.outcomes(window),
        costs=costs,
        failures=reports.failures(window, limit=LINES),
        gauges=home.part(lambda app: app.quotas).gauges(spent_today=spent, sizes=sizes),
        breakers=[breaker_rules.seen(row, now) for row in home.part(lambda app: app.breakers).stored()],
        runners=_runners(home),
    )


def _pictures(seen: Seen, budget: float) -> dict[str, Markup]:
    days = overview_facts.window_days(seen.now)
    drawn = {
        "outcomes": report_plots.outcomes_plot(seen.outcomes, days, key="plot-outcomes"),
        "success": report_plots.success_plot(seen.outcomes, days, key="plot-success"),
        "costs": report_plots.costs_plot(seen.costs, days, budget=budget, key="plot-costs"),
    }

    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704 - escaped where it is drawn


def _runners(home: Home) -> list[RunnerLine]:
    """Return the workers that are there, or were until a moment ago."""
    processes, lease_seconds = home.part(lambda app: app.processes), home.settings.lease_ttl_seconds
    found = (
        facts.runner_of(runner, verdict=processes.verdict(runner.owner), lease_seconds=lease_seconds)
        for runner in home.part(lambda app: app.runners).all()
    )

    return [runner for runner in found if runner.state != "gone"]
