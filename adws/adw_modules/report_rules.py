"""
A report as one value, and the report of the day as text.

Pure: what was counted comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from adws.adw_modules.gc_rules import Orphan
from adws.adw_modules.interfaces_reports import (
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    StuckNow,
    WorkflowCost,
)
from adws.adw_modules.json_value import JsonObject, JsonValue

#: Most workflows, or failures, that the report of a day names.
MOST_NAMED = 10
#: Characters of a message in the report of a day.
_MESSAGE = 80


# --- a report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was done since a day, and what is wrong now."""

    made_at: str
    since: str = ""  #: the first day, "": from the beginning
    workflow: str = ""  #: name of a definition; "": all
    states: Mapping[str, Count] = field(default_factory=dict)  #: of all workflows, whatever the window
    outcomes: Sequence[DayOutcomes] = ()
    attempts: Sequence[PhaseAttempts] = ()
    costs_by_phase: Sequence[CostSum] = ()
    costs_by_day: Sequence[CostSum] = ()
    costliest: Sequence[WorkflowCost] = ()
    failures: Sequence[FailureGroup] = ()
    stuck: Sequence[StuckNow] = ()
    orphans: Sequence[Orphan] | None = None  #: None: nobody looked for them
    problems: Sequence[str] = ()  #: what could not be looked at

    @property
    def ended(self) -> DayOutcomes:
        """All outcomes together."""
        return together(self.outcomes)

    @property
    def spent(self) -> CostSum:
        """All costs together."""
        return spent_on(self.costs_by_phase)

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        orphans: JsonValue = None if self.orphans is None else [orphan.to_json() for orphan in self.orphans]

        return {
            "made_at": self.made_at,
            "since": self.since or None,
            "workflow": self.workflow or None,
            "states": {state: count.number for state, count in self.states.items()},
            "outcomes": {**outcomes_json(self.ended), "by_day": [outcomes_json(day) for day in self.outcomes]},
            "attempts": [attempts_json(phase) for phase in self.attempts],
            "costs": {
                **asdict(self.spent),
                "by_phase": [asdict(cost) for cost in self.costs_by_phase],
                "by_day": [asdict(cost) for cost in self.costs_by_day],
                "by_workflow": [asdict(cost) for cost in self.costliest],
            },
            "failures": [asdict(failure) for failure in self.failures],
            "stuck": [stuck_json(stuck) for stuck in self.stuck],
            "orphans": orphans,
            "problems": list(self.problems),
        }


def together(outcomes: Sequence[DayOutcomes]) -> DayOutcomes:
    """Return the outcomes of several days as those of one."""
    return DayOutcomes(
        day="total",
        completed=sum(day.completed for day in outcomes),
        failed=sum(day.failed for day in outcomes),
        abandoned=sum(day.abandoned for day in outcomes),
        rolled_back=sum(day.rolled_back for day in outcomes),
    )


def spent_on(costs: Sequence[CostSum]) -> CostSum:
    """Return several costs as one."""
    return CostSum(
        key="total",
        cost_usd=sum(cost.cost_usd for cost in costs),
        attempts=sum(cost.attempts for cost in costs),
        unknown=sum(cost.unknown for cost in costs),
        subscription=sum(cost.subscription for cost in costs),
        estimated=sum(cost.estimated for cost in costs),
        tokens=sum(cost.tokens for cost in costs),
    )


def outcomes_json(day: DayOutcomes) -> JsonObject:
    """Return outcomes for programs, with their rate."""
    return {**asdict(day), "ended": day.ended, "success_rate": day.success_rate}


def attempts_json(phase: PhaseAttempts) -> JsonObject:
    """Return the attempts at a phase for programs."""
    return {
        "phase": phase.phase,
        "successes": phase.successes,
        "mean_needed": phase.mean_needed,
        "needed": {str(number): times for number, times in phase.needed.items()},
        "by_status": dict(phase.by_status),
        "seconds": phase.seconds,
    }


def stuck_json(stuck: StuckNow) -> JsonObject:
    """Return what is stuck for programs."""
    return {
        **asdict(stuck.subject),
        "kind": stuck.kind.value,
        "phase": stuck.phase,
        "since": stuck.since,
        "why": stuck.why,
        "commands": list(stuck.commands),
    }


def rate_text(outcomes: DayOutcomes) -> str:
    """Return the success rate in words."""
    rate = outcomes.success_rate
    if rate is None:
        return "nothing ended"

    return f"{rate:.0%}: {outcomes.completed:,} of {outcomes.ended:,} completed"


# --- the report of the day -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DayCounts:
    """What a day came to."""

    since: str  #: the moment from which on the cost counts
    by_state: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float = 0.0
    attempts: int = 0  #: that cost something, or were paid by the month
    waiting: int = 0  #: runs that wait for a worker
    stuck: Sequence[StuckNow] = ()
    outcomes: Sequence[DayOutcomes] = ()  #: from the day of *since* on
    failures: Sequence[FailureGroup] = ()  #: the most frequent ones, from that day on


def headline(counts: DayCounts) -> str:
    """Return the report in one line."""
    total = sum(counts.by_state.values())
    stuck = f", {len(counts.stuck)} stuck" if counts.stuck else ""

    return f"{total} workflows, {counts.waiting} runs waiting{stuck}, {counts.cost_usd:.2f} USD in a day"


def report(counts: DayCounts) -> str:
    """Return the report."""
    states = [f"  {name}: {number}" for name, number in sorted(counts.by_state.items()) if number]
    more = [f"  and {len(counts.stuck) - MOST_NAMED} more"] if len(counts.stuck) > MOST_NAMED else []
    stuck = [
        f"  {one.subject.adw_id}: {one.why}; adw explain {one.subject.adw_id}" for one in counts.stuck[:MOST_NAMED]
    ]

    return "\n".join(
        [
            "Workflows by state:",
            *(states or ["  none"]),
            f"Ended since {counts.since[:10]}: {rate_text(together(counts.outcomes))}",
            f"Runs that wait for a worker: {counts.waiting}",
            f"Spent since {counts.since}: {counts.cost_usd:.2f} USD in {counts.attempts} attempts",
            *_frequent(counts.failures),
            *(["Not moving:", *stuck, *more] if stuck else []),
        ]
    )


def _frequent(failures: Sequence[FailureGroup]) -> list[str]:
    if not failures:
        return []
    lines = [f"  {one.count} x {one.phase}, {one.category}: {short(one.message)}" for one in failures[:MOST_NAMED]]

    return ["Failed attempts:", *lines]


def short(message: str, length: int = _MESSAGE) -> str:
    """Return the first line of a message, cut where it is long."""
    line = " ".join(message.split()) or "it says nothing"

    return line if len(line) <= length else f"{line[: length - 3].rstrip()}..."
