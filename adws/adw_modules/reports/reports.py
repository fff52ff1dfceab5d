"""
A report as one value, the report of the day as text, and what is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
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
from adws.adw_modules.resources.quotas import QuotaStatus

if TYPE_CHECKING:
    from adws.adw_modules.housekeeping.inventory import Orphan
    from adws.app import Home


#: Most workflows, or failures, that the report of a day names.
MOST_NAMED = 10
#: Characters of a message in the report of a day.
_MESSAGE = 80
#: The goals of the success metrics: more than this share of workflows is completed, nothing is stuck for so long.
SUCCESS_GOAL = 0.8
STUCK_HOURS = 4
#: Field of `DayOutcomes` -> what it is called; drawn from the bottom up.
OUTCOMES = {"completed": "completed", "failed": "failed", "abandoned": "abandoned", "rolled_back": "rolled back"}


# --- a report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessMetric:
    """One of the figures by which the work as a whole is judged."""

    name: str
    value: float | None  #: None: not known
    text: str  #: the value in words
    of: int | None = None  #: how many there are of which *value* is a part
    goal: str = ""  #: "": there is none
    is_met: bool | None = None  #: None: there is no goal, or the value is not known

    @property
    def key(self) -> str:
        """The name for programs."""
        return self.name.replace(" ", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was done since a day, and what is wrong now."""

    made_at: str
    since: str = ""  #: the first day, "": from the beginning
    workflow: str = ""  #: name of a definition; "": all
    states: Mapping[str, Count] = field(default_factory=dict)  #: of all workflows, whatever the window
    outcomes: Sequence[DayOutcomes] = ()
    requests: RequestCount = field(default_factory=RequestCount)
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
        """Return it for programs."""
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
    """Return the outcomes of several days as those of one."""
    return DayOutcomes(day="total", **{name: sum(getattr(day, name) for day in outcomes) for name in OUTCOMES})


def spent_on(costs: Sequence[CostSum]) -> CostSum:
    """Return several costs as one."""
    names = ("cost_usd", "attempts", "unknown", "subscription", "estimated", "tokens")

    return CostSum(key="total", **{name: sum(getattr(cost, name) for cost in costs) for name in names})


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
    waiting = f"{counted(counts.waiting, 'run')} waiting{stuck}"

    return f"{counted(total, 'workflow')}, {waiting}, {counts.cost_usd:.2f} USD in a day"


def report(counts: DayCounts) -> str:
    """Return the report."""
    states = [f"  {name}: {number}" for name, number in sorted(counts.by_state.items()) if number]
    frequent = [
        f"  {one.count} x {one.phase}, {one.category}: {short(one.message)}" for one in counts.failures[:MOST_NAMED]
    ]
    more = [f"  and {len(counts.stuck) - MOST_NAMED} more"] if len(counts.stuck) > MOST_NAMED else []
    stuck = [f"  {one.subject.adw_id}: {one.why}; adw status {one.subject.adw_id}" for one in counts.stuck[:MOST_NAMED]]

    return "\n".join(
        [
            "Workflows by state:",
            *(states or ["  none"]),
            f"Ended since {counts.since[:10]}: {rate_text(together(counts.outcomes))}",
            f"Runs that wait for a worker: {counts.waiting}",
            f"Spent since {counts.since}: {counts.cost_usd:.2f} USD in {counted(counts.attempts, 'attempt')}",
            *(["Failed attempts:", *frequent] if frequent else []),
            *(["Not moving:", *stuck, *more] if stuck else []),
        ]
    )


def short(message: str, length: int = _MESSAGE) -> str:
    """Return the first line of a message, cut where it is long."""
    line = " ".join(message.split()) or "it says nothing"

    return shortened(line, length)


# --- what is stuck now, why, and what to type --------------------------------------------------------------------
#
# How long an attempt may take is said by its own history: how long successful attempts at that phase of that workflow
# took. Where there is not enough of one, a fixed time holds. A workflow that waits for a moment, a person or external
# work is not stuck, and neither is one that waits because every worker is busy. One that a limit of this home keeps
# from going on is.


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckTerms:
    """From when on something is stuck."""

    lease_seconds: float = 30.0
    minimum: int = 5  #: successes that make a history
    factor: float = 2.0  #: times what most took
    shortest_seconds: float = 60.0  #: nothing that takes less is called long
    after: timedelta | None = timedelta(minutes=120)  #: without a history; None: nothing is too long then
    untaken_seconds: float = 300.0  #: so long something may be due while no worker is there

    def limit_of(self, history: PhaseHistory | None) -> float | None:
        """Return how many seconds an attempt may take, None when nobody can say."""
        if history is None or history.count < self.minimum:
            return None if self.after is None else self.after.total_seconds()

        return max(self.shortest_seconds, self.factor * history.p95, history.longest)


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckFacts:
    """What is known about what is not over."""

    now: datetime
    running: Sequence[RunningNow] = ()
    waiting: Sequence[WaitingNow] = ()
    unattended: Sequence[WaitingNow] = ()
    histories: Mapping[tuple[str, str], PhaseHistory] = field(default_factory=dict)  #: by workflow and phase
    has_worker: bool = True  #: one that would take something up
    is_limit_reached: bool = False  #: new work waits because a limit of this home is used up


def find_stuck(facts: StuckFacts, terms: StuckTerms) -> tuple[StuckNow, ...]:
    """Return what is stuck: what lost its worker first, then what takes too long, then what nobody takes."""
    silent, unattended, too_long = list[StuckNow](), list[StuckNow](), list[StuckNow]()
    untaken, refused = list[StuckNow](), list[StuckNow]()
    for one in facts.running:
        adw_id, took = one.subject.adw_id, _age(one.started_at, facts.now)
        history = facts.histories.get((one.subject.workflow, one.phase))
        limit = terms.limit_of(history)
        if is_silent(one, terms):
            seconds = max(-one.seconds_left, one.silent_seconds or 0.0)
            why = f"its worker has not said for {span(seconds)} that it lives"
            silent.append(_stuck(one, StuckKind.SILENT, why, "adw admin recover", f"adw status {adw_id}"))
        elif one.phase and limit is not None and took > limit:
            usual = f"more than {span(limit)}, and too few have succeeded to say how long it usually takes"
            if history is not None and history.count >= terms.minimum:
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
        elif not facts.has_worker and waiting.kind is WaitKind.WORKER and waited >= terms.untaken_seconds:
            why = f"it has been due for {span(waited)}, and no worker is there to take it"
            commands = ("adw worker", f"adw resume {waiting.subject.adw_id}")
            untaken.append(_stuck(waiting, StuckKind.NOT_TAKEN, why, *commands))

    for one_left in facts.unattended:
        if _age(one_left.since, facts.now) > terms.lease_seconds:
            what = f"{one_left.phase} is under way" if one_left.phase else f"it is {one_left.subject.state}"
            why = f"{what} by its document, but nobody works on it and no run of it waits"
            commands = ("adw admin recover", f"adw resume {one_left.subject.adw_id}")
            unattended.append(_stuck(one_left, StuckKind.UNATTENDED, why, *commands))

    return (*silent, *unattended, *too_long, *untaken, *refused)


def is_silent(one: RunningNow, terms: StuckTerms) -> bool:
    """Say whether nobody says any more that the work on it goes on."""
    is_unheard = one.silent_seconds is not None and one.silent_seconds > STALE_LEASES * terms.lease_seconds

    return one.seconds_left < 0.0 or is_unheard


def _stuck(one: RunningNow | WaitingNow, kind: StuckKind, why: str, *commands: str) -> StuckNow:
    since = one.started_at if isinstance(one, RunningNow) else one.since

    return StuckNow(subject=one.subject, kind=kind, phase=one.phase, since=since, why=why, commands=commands)


def _age(moment: str, now: datetime) -> float:
    """Return how many seconds ago a moment was, 0 for what is none."""
    try:
        return max(0.0, (now - timestamps.parse(moment)).total_seconds())
    except ValueError:
        return 0.0


# --- making reports ----------------------------------------------------------------------------------------------

#: Lines of each list in a report.
MOST_SHOWN = 10
#: Workflows that are looked at for being stuck, of each sort.
MOST_SUSPECTS = 500
#: A report counts all there are, up to this.
_ALL = 10_000_000


class Reporting:
    """Makes reports."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def stuck(self, *, limit: int = MOST_SUSPECTS) -> tuple[StuckNow, ...]:
        """Return what is stuck now; *limit* is how many workflows of each sort are looked at."""
        reports, settings = self._home.reports, self._home.settings
        running = reports.running(limit=limit)
        phases = {(one.subject.workflow, one.phase) for one in running if one.phase}
        is_limit_reached = bool(self.limits())
        has_worker = any(worker_state(self._home, one) is RunnerState.ONLINE for one in self._home.workers.all())
        facts = StuckFacts(
            now=self._home.clock.now(),
            running=running,
            waiting=reports.queued(limit=limit) if is_limit_reached or not has_worker else (),
            unattended=reports.unattended(limit=limit),
            histories=reports.histories(sorted(phases)) if phases else {},
            has_worker=has_worker,
            is_limit_reached=is_limit_reached,
        )

        terms = StuckTerms(lease_seconds=settings.lease_ttl_seconds)

        return find_stuck(facts, terms)

    def limits(self) -> tuple[QuotaStatus, ...]:
        """Return the limits of this home that stop new work now."""
        return self._home.quotas.reached()

    def report(self, window: Window, *, with_orphans: bool = True, limit: int = MOST_SHOWN) -> Report:
        """Return the whole report; looking for left-overs takes longest and may ask the forge."""
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
