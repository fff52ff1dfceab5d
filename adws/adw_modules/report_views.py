"""
Sums as the values that reports show.

Pure. A sum comes in by its kind and the columns it was grouped by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate
from typing import TypeAlias

from adws.adw_modules import report_tallies
from adws.adw_modules.cost_entries import NO_PROVIDER
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces_reports import (
    CostSum,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    PhaseHistory,
    Window,
    WorkflowCost,
)
from adws.adw_modules.report_tallies import NOTHING, OUTCOMES, Last, Slot, Sum, Tallies

#: Kind and values of the columns -> sum.
Grouped: TypeAlias = Mapping[tuple[str, ...], Sum]

#: Months that a history goes back, the one that runs included.
HISTORY_MONTHS = 3
#: What costs can be told by -> the column.
COST_COLUMNS = {"phase": "phase", "day": "day", "provider": "item"}


def grouped(
    sums: Iterable[tuple[Slot, Sum]], *, kinds: Iterable[str], columns: Iterable[str], window: Window
) -> dict[tuple[str, ...], Sum]:
    """Return sums of *kinds* that are in the window, one for each kind and value of *columns*."""
    wanted, names, found = frozenset(kinds), tuple(columns), dict[tuple[str, ...], Sum]()
    for slot, total in sums:
        if slot.kind in wanted and is_in(slot, window):
            key = (slot.kind, *(getattr(slot, name) for name in names))
            found[key] = found.get(key, NOTHING).plus(total)

    return found


def is_in(slot: Slot, window: Window) -> bool:
    """Say whether a sum is in the window."""
    return slot.day >= window.first_day and window.workflow in ("", slot.workflow)


def together(first: Grouped, second: Grouped) -> dict[tuple[str, ...], Sum]:
    """Return both, added."""
    return {key: first.get(key, NOTHING).plus(second.get(key, NOTHING)) for key in {**first, **second}}


def outcomes_of(found: Grouped) -> tuple[DayOutcomes, ...]:
    """Return the outcomes in sums by day and item, the oldest day first."""
    days: dict[str, dict[str, int]] = {}
    for (_kind, day, item), total in found.items():
        if total.number > 0 and item in OUTCOMES:
            days.setdefault(day, {})[item] = total.number

    return tuple(DayOutcomes(day=day, **counts) for day, counts in sorted(days.items()))


def attempts_of(found: Grouped) -> tuple[PhaseAttempts, ...]:
    """Return the attempts in sums by phase and item, by the name of the phase."""
    needed, statuses, took = dict[str, dict[int, int]](), dict[str, dict[str, int]](), dict[str, int]()
    for (kind, phase, item), total in sorted(found.items()):
        if total.number <= 0:
            continue
        if kind == "needed":
            needed.setdefault(phase, {})[int(item)] = total.number
        else:
            statuses.setdefault(phase, {})[item] = total.number
            took[phase] = took.get(phase, 0) + total.amount

    return tuple(
        PhaseAttempts(
            phase=phase,
            needed=dict(sorted(needed.get(phase, {}).items())),
            by_status=counts,
            seconds=took[phase] / 1000.0,
        )
        for phase, counts in sorted(statuses.items())
    )


def cost_column(by: str) -> str:
    """Return the column that costs are told by; raise UsageError for what they cannot be told by."""
    if by not in COST_COLUMNS:
        raise UsageError(f"costs are told by {', '.join(COST_COLUMNS)}, not by {by!r}")

    return COST_COLUMNS[by]


def costs_of(found: Grouped, by: str) -> tuple[CostSum, ...]:
    """Return what was spent in sums by one column, in the order of the keys."""
    keys = sorted({key for (kind, key), total in found.items() if kind == "cost" and total.number > 0})

    return tuple(
        CostSum(
            key=(key or NO_PROVIDER) if by == "provider" else key,
            cost_usd=found["cost", key].amount / 1_000_000,
            attempts=found["cost", key].number,
            unknown=found.get(("cost_unknown", key), NOTHING).number,
            subscription=found.get(("cost_subscription", key), NOTHING).number,
            estimated=found.get(("cost_estimated", key), NOTHING).number,
            tokens=found.get(("tokens", key), NOTHING).number,
        )
        for key in keys
    )


def cost_of(tallies: Tallies) -> WorkflowCost:
    """Return what one workflow cost."""
    return WorkflowCost(
        adw_id=tallies.adw_id,
        workflow=tallies.workflow,
        outcome=tallies.outcome,
        cost_usd=tallies.cost / 1_000_000,
        attempts=tallies.attempts,
        last_day=tallies.last_day,
    )


def has_cost_in(tallies: Tallies, window: Window) -> bool:
    """Say whether a workflow cost something and has an attempt that ended in the window."""
    is_of = window.workflow in ("", tallies.workflow)

    return tallies.cost > 0 and tallies.last_day >= window.first_day and is_of


def failure_of(phase: str, item: str, count: int, last: Last) -> FailureGroup:
    """Return a group of failures."""
    return FailureGroup(
        phase=phase,
        category=report_tallies.category_of(item),
        message=last.label,
        count=count,
        last_at=last.at,
        adw_id=last.adw_id,
    )


# --- durations -------------------------------------------------------------------------------------------------


def history_since(now: datetime) -> str:
    """Return the first day of a history: the month and two before it."""
    months = now.year * 12 + now.month - 1 - (HISTORY_MONTHS - 1)

    return f"{months // 12:04}-{months % 12 + 1:02}-01"


def with_news(kept: Mapping[int, int], new: Grouped, workflow: str, phase: str) -> dict[int, int]:
    """Return how many fell in each bucket of a phase, with those that are not kept yet (by workflow, phase, item)."""
    added = {int(key[3]): total.number for key, total in new.items() if key[1:3] == (workflow, phase)}

    return {bucket: kept.get(bucket, 0) + added.get(bucket, 0) for bucket in {**kept, **added}}


def history_of(workflow: str, phase: str, buckets: Mapping[int, int]) -> PhaseHistory | None:
    """Return how long attempts took, from how many fell in each bucket; None without one."""
    there = {bucket: number for bucket, number in sorted(buckets.items()) if number > 0}
    if not there:
        return None
    count = sum(there.values())

    return PhaseHistory(
        workflow=workflow,
        phase=phase,
        count=count,
        median=report_tallies.seconds_at(_bucket_at(there, count, 0.5) + 0.5),
        p95=report_tallies.seconds_at(_bucket_at(there, count, 0.95) + 1),
        longest=report_tallies.seconds_at(max(there) + 1),
    )


def _bucket_at(buckets: Mapping[int, int], count: int, share: float) -> int:
    """Return the bucket in which so much of all is reached."""
    reached = zip(buckets, accumulate(buckets.values()), strict=True)

    return next(bucket for bucket, total in reached if total >= math.ceil(count * share))
