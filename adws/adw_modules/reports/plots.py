"""
The charts of reports and of the overview. They include days on which nothing happened.

Separate from the reports, so that a command that prints text does not load what draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import TypeAlias

from adws.adw_modules.identifiers import counted
from adws.adw_modules.reports import charts
from adws.adw_modules.reports.charts import Column, Mark, Plot
from adws.adw_modules.reports.model import CostSum, DayOutcomes, FailureGroup, PhaseAttempts
from adws.adw_modules.reports.reports import OUTCOMES, rate_text, short, spent_on, together

#: Filters text from outside.
Say: TypeAlias = Callable[[str], str]
#: A budget above this multiple of the highest day is stated, not drawn: the columns would be flat.
FAR_BUDGET = 4.0
#: Maximum length of a name above a bar: a phone has no space for more.
_LABEL = 46
#: Maximum number of days drawn.
MOST_DAYS = 120


def days_of(first: str, last: str) -> tuple[str, ...]:
    """Return the days from *first* to *last*; if there are too many to draw, the last ones."""
    begin, end = date.fromisoformat(first[:10]), date.fromisoformat(last[:10])
    count = min(MOST_DAYS, max(0, (end - begin).days) + 1)

    return tuple((end - timedelta(days=back)).isoformat() for back in reversed(range(count)))


def outcomes_plot(outcomes: Sequence[DayOutcomes], days: Sequence[str], *, key: str = "outcomes") -> str:
    """Return the chart of how many workflows ended on each of *days*, and how."""
    known = {one.day: one for one in outcomes}
    columns = [
        Column(
            label=_label(day),
            parts=tuple(
                Mark(value=number, kind=name, words=f"{day}: {number:,} {said}")
                for name, said in OUTCOMES.items()
                if (number := getattr(known.get(day, DayOutcomes(day=day)), name))
            ),
        )
        for day in days
    ]
    total = together([one for one in outcomes if one.day in set(days)])
    counts = ", ".join(f"{getattr(total, name):,} {said}" for name, said in OUTCOMES.items())

    return charts.columns_svg(
        Plot(key=key, title="How workflows ended", about=f"{_span(days)}: {counts}.", top=4.0), columns
    )


def success_plot(outcomes: Sequence[DayOutcomes], days: Sequence[str], *, key: str = "success") -> str:
    """Return the chart of the success rate of each of *days*; days on which nothing ended have none."""
    known = {one.day: one for one in outcomes}
    points = [
        Mark(label=_label(day), value=item.success_rate, words=f"{day}: {rate_text(item)}")
        for day in days
        for item in (known.get(day, DayOutcomes(day=day)),)
    ]
    total = together([one for one in outcomes if one.day in set(days)])

    return charts.line_svg(
        Plot(
            key=key,
            title="Success rate",
            about=f"{_span(days)}: {rate_text(total)}.",
            text=charts.percent,
            top=1.0,
        ),
        points,
    )


def costs_plot(
    costs: Sequence[CostSum], days: Sequence[str], *, budget: float | None = None, key: str = "costs"
) -> str:
    """Return the chart of the cost of each of *days*; *costs* are by day, *budget* is the limit of a day."""
    known = {one.key: one.cost_usd for one in costs}
    columns = [
        Column(
            label=_label(day),
            parts=(Mark(value=spent, kind=_kind(spent, budget), words=f"{day}: ${spent:,.2f}"),) if spent else (),
        )
        for day in days
        for spent in (known.get(day, 0.0),)
    ]
    total = spent_on([one for one in costs if one.key in set(days)]).cost_usd
    limit = f" A day may cost ${budget:,.2f}." if budget else ""
    is_near = budget is not None and budget <= FAR_BUDGET * max((column.value for column in columns), default=0.0)

    return charts.columns_svg(
        Plot(
            key=key,
            title="Cost by day",
            about=f"{_span(days)}: ${total:,.2f} in all.{limit}",
            text=charts.dollars,
            limit=(budget or None) if is_near else None,
            limit_words=f"a day may cost ${budget or 0.0:,.2f}",
        ),
        columns,
    )


def phase_costs_plot(costs: Sequence[CostSum], *, key: str = "phase-costs", say: Say = str) -> str:
    """Return the chart of the cost of each phase, the highest first."""
    most = sorted(costs, key=lambda one: (-one.cost_usd, one.key))
    bars = [
        Mark(
            label=one.key,
            value=one.cost_usd,
            words=f"{one.key}: ${one.cost_usd:,.2f} in {counted(one.attempts, 'attempt')}",
        )
        for one in most
    ]
    said = ", ".join(f"{one.key} ${one.cost_usd:,.2f}" for one in most)

    return charts.bars_svg(
        Plot(
            key=key,
            title="Cost by phase",
            about=f"{said}." if said else "Nothing was spent.",
            text=charts.dollars,
            say=say,
        ),
        bars,
    )


def attempts_plot(phase: PhaseAttempts, *, key: str, say: Say = str) -> str:
    """Return the chart of how many attempts a phase needed, and how many times."""
    columns = [
        Column(
            label=str(number),
            parts=(Mark(value=times, kind="needed", words=f"{counted(times, 'time')} {counted(number, 'attempt')}"),)
            if times
            else (),
        )
        for number in range(1, max(phase.needed, default=0) + 1)
        for times in (phase.needed.get(number, 0),)
    ]
    said = ", ".join(f"{counted(times, 'time')} {counted(number, 'attempt')}" for number, times in phase.needed.items())

    return charts.columns_svg(
        Plot(
            key=key,
            title=f"Attempts until {phase.phase} succeeded",
            about=f"{said}." if said else "It never did.",
            say=say,
        ),
        columns,
    )


def failures_plot(failures: Sequence[FailureGroup], *, key: str = "failures", say: Say = str) -> str:
    """Return the chart of the most frequent failures."""
    bars = [
        Mark(
            label=short(f"{one.phase}: {short(one.message)}", _LABEL),
            value=one.count,
            words=f"{one.count:,} x {one.phase}, {one.category}: {one.message}",
            kind="failed",
        )
        for one in failures
    ]
    said = "; ".join(f"{one.count:,} x {one.phase}, {one.category}: {short(one.message)}" for one in failures)

    return charts.bars_svg(
        Plot(key=key, title="Most frequent failures", about=f"{said}." if said else "No attempt failed.", say=say), bars
    )


def _kind(spent: float, budget: float | None) -> str:
    return "over" if budget and spent > budget else "cost"


def _label(day: str) -> str:
    return f"{date.fromisoformat(day):%d %b}"


def _span(days: Sequence[str]) -> str:
    return f"{days[0]} to {days[-1]}" if days else "No day"
