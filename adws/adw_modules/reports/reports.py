"""
Reports as values, the daily report as text, and finding stuck workflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.errors import QUOTA_REFUSAL
from adws.adw_modules.identifiers import JsonObject, JsonValue, counted, shortened, span
from adws.adw_modules.queue.workers import STALE_LEASES, RunnerState
from adws.adw_modules.recovery.explain import worker_state
from adws.adw_modules.reports.model import (
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    PhaseHistory,
    RequestCount,
    RunningNow,
    StuckKind,
    StuckNow,
    WaitingNow,
    WaitKind,
    Window,
    WorkflowCost,
)

if TYPE_CHECKING:
    from adws.adw_modules.housekeeping.inventory import Orphan
    from adws.app import Home


#: Maximum number of workflows, or failures, that a daily report names.
MOST_NAMED = 10
#: Maximum length of a message in a daily report.
_MESSAGE = 80
#: Goals of the success metrics: the share of completed workflows is above this, and nothing is stuck for this long.
SUCCESS_GOAL = 0.8
STUCK_HOURS = 4
#: Field of `DayOutcomes` -> its name; drawn from the bottom up.
OUTCOMES = {"completed": "completed", "failed": "failed", "abandoned": "abandoned", "rolled_back": "rolled back"}


# --- a report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessMetric:
    """One of the figures that rate the work as a whole."""

    name: str
    value: float | None  #: None if unknown
    text: str  #: the value in words
    of: int | None = None  #: the total of which *value* is a part
    goal: str = ""  #: "" without one
    is_met: bool | None = None  #: None: without a goal, or unknown

    @property
    def key(self) -> str:
        """The name for programs."""
        return self.name.replace(" ", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was done since a day, and what is wrong now."""

    made_at: str
    since: str = ""  #: the first day; "": from the beginning
    workflow: str = ""  #: name of a definition; "": all
    states: Mapping[str, Count] = field(default_factory=dict)  #: of all workflows, regardless of the window
    outcomes: Sequence[DayOutcomes] = ()
    requests: RequestCount = field(default_factory=RequestCount)
    attempts: Sequence[PhaseAttempts] = ()
    costs_by_phase: Sequence[CostSum] = ()
    costs_by_day: Sequence[CostSum] = ()
    costliest: Sequence[WorkflowCost] = ()
    failures: Sequence[FailureGroup] = ()
    stuck: Sequence[StuckNow] = ()
    orphans: Sequence[Orphan] | None = None  #: None: they were not searched for
    problems: Sequence[str] = ()  #: what could not be checked

    @property
    def ended(self) -> DayOutcomes:
        """The total of all outcomes."""
        return together(self.outcomes)

    @property
    def spent(self) -> CostSum:
        """The total of all costs."""
        return spent_on(self.costs_by_phase)

    @property
    def metrics(self) -> tuple[SuccessMetric, ...]:
        """The success metrics."""
        rate, requests = self.ended.success_rate, self.requests
        orphans = None if self.orphans is None else len(self.orphans)
        now = timestamps.parse(self.made_at)
        stuck = sum(_age(one.since, now) > STUCK_HOURS * 3600 for one in self.stuck)
        failed, recovered = sum(one.failed for one in self.attempts), sum(one.recovered for one in self.attempts)

        return (
            SuccessMetric(
                name="workflow success rate",
                value=rate,
                text=rate_text(self.ended),
                goal=f"above {SUCCESS_GOAL:.0%}",
                is_met=None if rate is None else rate > SUCCESS_GOAL,
            ),
            SuccessMetric(
                name=f"stuck over {STUCK_HOURS} hours", value=stuck, text=f"{stuck:,}", goal="0", is_met=not stuck
            ),
            SuccessMetric(
                name="orphaned resources",
                value=orphans,
                text="nobody looked; adw admin gc does" if orphans is None else f"{orphans:,}",
                goal="0",
                is_met=None if orphans is None else not orphans,
            ),
            SuccessMetric(
                name="requests completed",
                value=requests.completed,
                of=requests.asked,
                text=f"{requests.completed:,} of {requests.asked:,}" if requests.asked else "nothing was asked for",
                goal="all",
                is_met=requests.completed == requests.asked if requests.asked else None,
            ),
            SuccessMetric(
                name="retries recovered",
                value=recovered,
                of=failed,
                text=f"{recovered:,} of {counted(failed, 'failed attempt')}" if failed else "no attempt failed",
            ),
        )

    def to_json(self) -> JsonObject:
        """Return the report for programs."""
        orphans: JsonValue = None if self.orphans is None else [orphan.to_json() for orphan in self.orphans]

        return {
            "made_at": self.made_at,
            "since": self.since or None,
            "workflow": self.workflow or None,
            "success_metrics": {
                one.key: {"value": one.value, "of": one.of, "goal": one.goal or None, "is_met": one.is_met}
                for one in self.metrics
            },
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
    """Return the total of the outcomes of several days."""
    return DayOutcomes(day="total", **{name: sum(getattr(day, name) for day in outcomes) for name in OUTCOMES})


def spent_on(costs: Sequence[CostSum]) -> CostSum:
    """Return the total of several costs."""
    names = ("cost_usd", "attempts", "unknown", "subscription", "estimated", "tokens")

    return CostSum(key="total", **{name: sum(getattr(cost, name) for cost in costs) for name in names})


def outcomes_json(day: DayOutcomes) -> JsonObject:
    """Return outcomes for programs, with the success rate."""
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
    """Return a stuck workflow for programs."""
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


def headline(day: Report, *, waiting: int) -> str:
    """Return a daily report in one line; *waiting* is the number of runs that wait for a worker."""
    total = sum(count.number for count in day.states.values())
    stuck = f", {len(day.stuck)} stuck" if day.stuck else ""

    runs = f"{counted(waiting, 'run')} waiting{stuck}"

    return f"{counted(total, 'workflow')}, {runs}, {day.spent.cost_usd:.2f} USD in a day"


def report(day: Report, *, waiting: int) -> str:
    """Return a daily report as text."""
    states = [f"  {name}: {count.number}" for name, count in sorted(day.states.items()) if count.number]
    frequent = [
        f"  {one.count} x {one.phase}, {one.category}: {short(one.message)}" for one in day.failures[:MOST_NAMED]
    ]
    more = [f"  and {len(day.stuck) - MOST_NAMED} more"] if len(day.stuck) > MOST_NAMED else []
    stuck = [f"  {one.subject.adw_id}: {one.why}; adw status {one.subject.adw_id}" for one in day.stuck[:MOST_NAMED]]

    return "\n".join(
        [
            "Workflows by state:",
            *(states or ["  none"]),
            f"Ended since {day.since}: {rate_text(day.ended)}",
            f"Runs that wait for a worker: {waiting}",
            f"Spent since {day.since}: {day.spent.cost_usd:.2f} USD in {counted(day.spent.attempts, 'attempt')}",
            *(["Failed attempts:", *frequent] if frequent else []),
            *(["Not moving:", *stuck, *more] if stuck else []),
        ]
    )


def short(message: str, length: int = _MESSAGE) -> str:
    """Return a message in one line, cut if it is long."""
    line = " ".join(message.split()) or "it says nothing"

    return shortened(line, length)


# --- stuck workflows, why they are, and what to type ---------------------------------------------------------------
#
# The limit for an attempt's duration comes from its history: the durations of successful attempts at that phase of that
# workflow. Without enough of them a fixed limit applies. A workflow that waits for its due time, a person or external
# work is not stuck, nor is one that waits because every worker is busy. One held back by a limit of this home is.


#: Successes needed for a history, and the multiple of its usual duration that is too long.
_MINIMUM, _FACTOR = 5, 2.0
#: Seconds: the least limit, and the limit without a history.
_SHORTEST, _WITHOUT_HISTORY = 60.0, 7200.0
#: Seconds that a run may be due while there is no worker.
_UNTAKEN_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckFacts:
    """What is known about unfinished workflows."""

    now: datetime
    lease_seconds: float = 30.0
    running: Sequence[RunningNow] = ()
    waiting: Sequence[WaitingNow] = ()
    unattended: Sequence[WaitingNow] = ()
    histories: Mapping[tuple[str, str], PhaseHistory] = field(default_factory=dict)  #: by workflow and phase
    has_worker: bool = True  #: one that accepts work
    is_limit_reached: bool = False  #: new work waits because a limit of this home is used up


def find_stuck(facts: StuckFacts) -> tuple[StuckNow, ...]:
    """Return the stuck workflows: first those that lost their worker, then too long ones, then unclaimed ones."""
    silent, unattended, too_long = list[StuckNow](), list[StuckNow](), list[StuckNow]()
    untaken, refused = list[StuckNow](), list[StuckNow]()
    for one in facts.running:
        adw_id, took = one.subject.adw_id, _age(one.started_at, facts.now)
        history = facts.histories.get((one.subject.workflow, one.phase))
        is_known = history is not None and history.count >= _MINIMUM
        limit = max(_SHORTEST, _FACTOR * history.p95, history.longest) if history and is_known else _WITHOUT_HISTORY
        if is_silent(one, facts.lease_seconds):
            seconds = max(-one.seconds_left, one.silent_seconds or 0.0)
            why = f"its worker has not said for {span(seconds)} that it lives"
            silent.append(_stuck(one, StuckKind.SILENT, why, "adw admin recover", f"adw status {adw_id}"))
        elif one.phase and took > limit:
            usual = f"more than {span(limit)}, and too few have succeeded to say how long it usually takes"
            if history and is_known:
                usual = (
                    f"of {history.count} that succeeded, 95 % took {span(history.p95)} or less "
                    f"and none more than {span(history.longest)}"
                )
            why = f"attempt {one.attempt} at {one.phase} takes {span(took)} so far: {usual}"
            too_long.append(_stuck(one, StuckKind.TOO_LONG, why, f"adw logs {adw_id} -f", f"adw pause {adw_id}"))
    for waiting in facts.waiting:
        waited = _age(waiting.since, facts.now)
        if facts.is_limit_reached and waiting.why.startswith(QUOTA_REFUSAL):
            refused.append(_stuck(waiting, StuckKind.LIMIT, waiting.why, "adw quota", "adw admin gc"))
        elif not facts.has_worker and waiting.kind is WaitKind.WORKER and waited >= _UNTAKEN_SECONDS:
            why = f"it has been due for {span(waited)}, and no worker is there to take it"
            commands = ("adw worker", f"adw resume {waiting.subject.adw_id}")
            untaken.append(_stuck(waiting, StuckKind.NOT_TAKEN, why, *commands))

    for one_left in facts.unattended:
        if _age(one_left.since, facts.now) > facts.lease_seconds:
            what = f"{one_left.phase} is under way" if one_left.phase else f"it is {one_left.subject.state}"
            why = f"{what} by its document, but nobody works on it and no run of it waits"
            commands = ("adw admin recover", f"adw resume {one_left.subject.adw_id}")
            unattended.append(_stuck(one_left, StuckKind.UNATTENDED, why, *commands))

    return (*silent, *unattended, *too_long, *untaken, *refused)


def is_silent(one: RunningNow, lease_seconds: float) -> bool:
    """Return whether the work has no sign of life any more."""
    is_unheard = one.silent_seconds is not None and one.silent_seconds > STALE_LEASES * lease_seconds

    return one.seconds_left < 0.0 or is_unheard


def _stuck(one: RunningNow | WaitingNow, kind: StuckKind, why: str, *commands: str) -> StuckNow:
    since = one.started_at if isinstance(one, RunningNow) else one.since

    return StuckNow(subject=one.subject, kind=kind, phase=one.phase, since=since, why=why, commands=commands)


def _age(moment: str, now: datetime) -> float:
    """Return how many seconds ago a moment was, 0 if it is not a moment."""
    try:
        return max(0.0, (now - timestamps.parse(moment)).total_seconds())
    except ValueError:
        return 0.0


# --- making reports ----------------------------------------------------------------------------------------------

#: Maximum length of each list in a report.
MOST_SHOWN = 10
#: Maximum number of workflows, of each sort, checked for being stuck.
MOST_SUSPECTS = 500
#: Limit of a report's counts, high enough for all.
_ALL = 10_000_000


class Reporting:
    """Makes reports."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def stuck(self, *, limit: int = MOST_SUSPECTS) -> tuple[StuckNow, ...]:
        """Return the stuck workflows; *limit* is how many of each sort are checked."""
        reports, settings = self._home.reports, self._home.settings
        running = reports.running(limit=limit)
        phases = {(one.subject.workflow, one.phase) for one in running if one.phase}
        is_limit_reached = bool(self._home.quotas.reached())
        has_worker = any(worker_state(self._home, one) is RunnerState.ONLINE for one in self._home.workers.all())
        facts = StuckFacts(
            now=self._home.clock.now(),
            lease_seconds=settings.lease_ttl_seconds,
            running=running,
            waiting=reports.queued(limit=limit) if is_limit_reached or not has_worker else (),
            unattended=reports.unattended(limit=limit),
            histories=reports.histories(sorted(phases)) if phases else {},
            has_worker=has_worker,
            is_limit_reached=is_limit_reached,
        )

        return find_stuck(facts)

    def report(self, window: Window, *, with_orphans: bool = True, limit: int = MOST_SHOWN) -> Report:
        """Return the whole report; the search for orphans takes longest and may query the forge."""
        reports = self._home.reports
        collector = self._home.collector if with_orphans else None

        return Report(
            made_at=timestamps.to_text(self._home.clock.now()),
            since=window.first_day,
            workflow=window.workflow,
            states=reports.states(at_most=_ALL),
            outcomes=reports.outcomes(window),
            requests=reports.requests(window),
            attempts=reports.attempts(window),
            costs_by_phase=reports.costs(window, by="phase"),
            costs_by_day=reports.costs(window, by="day"),
            costliest=reports.costliest(window, limit=limit),
            failures=reports.failures(window, limit=limit),
            stuck=self.stuck(),
            orphans=None if collector is None else tuple(collector.find()),
            problems=() if collector is None else tuple(collector.problems),
        )
