"""
The report of the day, as text.

Pure: what was counted comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Most workflows that are named.
MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DayCounts:
    """What a day came to."""

    since: str  #: the moment from which on the cost counts
    by_state: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float = 0.0
    attempts: int = 0  #: that cost something, or were paid by the month
    waiting: int = 0  #: runs that wait for a worker
    stuck: Sequence[str] = ()  #: ids of workflows


def headline(counts: DayCounts) -> str:
    """Return the report in one line."""
    total = sum(counts.by_state.values())
    stuck = f", {len(counts.stuck)} stuck" if counts.stuck else ""

    return f"{total} workflows, {counts.waiting} runs waiting{stuck}, {counts.cost_usd:.2f} USD in a day"


def report(counts: DayCounts) -> str:
    """Return the report."""
    states = [f"  {name}: {number}" for name, number in sorted(counts.by_state.items()) if number]
    named = list(counts.stuck[:MOST_NAMED])
    more = [f"  and {len(counts.stuck) - MOST_NAMED} more"] if len(counts.stuck) > MOST_NAMED else []
    stuck = ["Not moving:", *(f"  {adw_id}: adw explain {adw_id}" for adw_id in named), *more] if named else []

    return "\n".join(
        [
            "Workflows by state:",
            *(states or ["  none"]),
            f"Runs that wait for a worker: {counts.waiting}",
            f"Spent since {counts.since}: {counts.cost_usd:.2f} USD in {counts.attempts} attempts",
            *stuck,
        ]
    )
