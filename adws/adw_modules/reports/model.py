"""
What reports and the overview ask of the database, and the values that cross.

Nothing here grows with the number of workflows there are: sums are kept for each day, lists have a limit, and a count
stops where it was told to. A day is one of UTC, and a window begins with a whole day. Sums outlive the workflows that
they are of: what was forgotten because of its age was still done.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from adws.adw_modules import costs
from adws.adw_modules.costs import NO_PROVIDER
from adws.adw_modules.engine import advisor
from adws.adw_modules.engine.transitions import QUOTA_WAIT
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import QUOTA_REFUSAL, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.plain_document import definition_in, error_of, last_attempt, number_in, objects, phase_in, text_in
from adws.adw_modules.workflow.model import EXTERNAL

#: A count stops here unless it is told otherwise.
MOST_COUNTED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What a question is about."""

    since: str = ""  #: a day or a moment of it, `2026-01-31`; "": from the beginning
    workflow: str = ""  #: name of a definition; "": all

    @property
    def first_day(self) -> str:
        """The first day that counts, "" for the very first."""
        return self.since[:10]


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows, which need not all have been counted."""

    number: int
    is_more: bool = False  #: there are more than that

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_more else ''}"


# --- what was done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DayOutcomes:
    """How many workflows ended on a day, each by its last outcome; one that goes on after a failure is not counted."""

    day: str
    completed: int = 0
    failed: int = 0
    abandoned: int = 0
    rolled_back: int = 0

    @property
    def ended(self) -> int:
        """How many there are."""
        return self.completed + self.failed + self.abandoned + self.rolled_back

    @property
    def success_rate(self) -> float | None:
        """The share that was completed, None when nothing ended."""
        return self.completed / self.ended if self.ended else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestCount:
    """How many issues workflows were started for, and of how many of them one was completed."""

    asked: int = 0
    completed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseAttempts:
    """The attempts at one phase, those of all workflows that have it."""

    phase: str
    needed: Mapping[int, int] = field(default_factory=dict)  #: attempts until it succeeded -> how often that was so
    by_status: Mapping[str, int] = field(default_factory=dict)  #: how an attempt ended -> how many did
    seconds: float = 0.0  #: of work, in all

    @property
    def successes(self) -> int:
        """How often it succeeded."""
        return sum(self.needed.values())

    @property
    def mean_needed(self) -> float | None:
        """How many attempts a success needed, None without one."""
        return sum(n * times for n, times in self.needed.items()) / self.successes if self.needed else None

    @property
    def failed(self) -> int:
        """How many attempts failed or were cut off."""
        return sum(self.by_status.get(status, 0) for status in FAILED)

    @property
    def recovered(self) -> int:
        """How many of these a success of the same phase followed; those before a window are left out."""
        return min(self.failed, sum((n - 1) * times for n, times in self.needed.items()))


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSum:
    """What was spent on something; a figure that nobody knows is counted apart and never taken for 0."""

    key: str  #: the phase, the day or the provider
    cost_usd: float = 0.0
    attempts: int = 0
    unknown: int = 0  #: of these, those whose cost nobody knows
    subscription: int = 0  #: of these, those that are paid by the month
    estimated: int = 0  #: of these, those whose cost was reckoned from tokens
    tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowCost:
    """What one workflow cost in its whole life."""

    adw_id: str
    workflow: str
    outcome: str  #: how it ended, "" when it goes on
    cost_usd: float
    attempts: int  #: that ended
    last_day: str  #: on which one ended last


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureGroup:
    """Failed attempts that are the same but for numbers."""

    phase: str
    category: str  #: as the classifier named it
    message: str  #: of the last one
    count: int
    last_at: str
    adw_id: str  #: the workflow of the last one


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseHistory:
    """How long successful attempts at a phase of one workflow took, in seconds; read off buckets a fifth wide."""

    workflow: str
    phase: str
    count: int
    median: float
    p95: float
    longest: float


# --- what is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A workflow, as far as a line about it needs to say."""

    adw_id: str
    title: str = ""
    workflow: str = ""
    state: str = ""
    issue_number: int | None = None
    repository: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningNow:
    """A workflow that somebody works on."""

    subject: Subject
    phase: str  #: "" between two phases
    attempt: int  #: of this round, 0 between two phases
    started_at: str  #: when the attempt began, else the run
    run_id: int
    kind: str  #: of the run
    is_stopping: bool
    owner: str  #: the record of its owner as text
    seconds_left: float  #: of the claim; negative when over: nobody has renewed it
    silent_seconds: float | None = None  #: since the worker's last heartbeat; None: it is none that says so


class WaitKind(Enum):
    """What a workflow waits for."""

    WORKER = "worker"  #: it is due, and no worker has it yet
    RETRY = "retry"  #: an attempt failed and is made again
    RATE_LIMIT = "rate_limit"  #: the same, because somebody said: not so fast
    QUOTA = "quota"  #: a limit is used up
    OUTAGE = "outage"  #: the network, the forge or a provider is not available
    BREAKER = "breaker"  #: the circuit breaker of an external service is open
    CALLS = "calls"  #: calls of a step that other workers make
    EXTERNAL = "external"  #: work that is done outside of adw
    APPROVAL = "approval"  #: a person who reviews a phase
    PERSON = "person"  #: a person: it is paused
    LATER = "later"  #: its time
    NOBODY = "nobody"  #: nothing: it is under way by its state, and somebody has to find it


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingNow:
    """A workflow that nobody works on, though it is not over."""

    subject: Subject
    kind: WaitKind
    phase: str = ""
    since: str = ""
    until: str = ""  #: "": nobody knows
    why: str = ""  #: in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueNow:
    """The run queue at a glance."""

    due: Count  #: could be taken up by a worker
    later: Count  #: are not due yet
    at_work: Count
    oldest_due_at: str = ""  #: since when the one waits that waits longest, "" for none


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLine:
    """The runs of one kind that are in the same state and not over."""

    state: str
    kind: str
    count: Count
    oldest_at: str  #: when the oldest of them was asked for


class StuckKind(Enum):
    """In which way something is stuck."""

    SILENT = "silent"  #: its worker does not say any more that it lives
    UNATTENDED = "unattended"  #: it is under way, and nobody has it, nor does it wait for anything
    TOO_LONG = "too_long"  #: its attempt takes longer than its own history says
    NOT_TAKEN = "not_taken"  #: it is due, and no worker takes it
    LIMIT = "limit"  #: a limit of this home is reached, so that it may not go on


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckNow:
    """A workflow that does not move as it should."""

    subject: Subject
    kind: StuckKind
    phase: str
    since: str  #: when its attempt began, it was last changed, or it became due
    why: str  #: in a sentence
    commands: tuple[str, ...] = ()  #: what to type


# What one workflow adds to the sums of reports, read from its document as plain JSON.
#
# Pure, and without the document's own model. The same document always adds the same, so looking at it twice adds
# nothing: what is new is the difference to what was added before. A document of another tool may hold anything: what
# has not the right form is passed over.


#: How a workflow can have ended, as its state says it.
OUTCOMES = ("completed", "failed", "abandoned", "rolled_back")
#: Attempts that count towards those a phase may have.
COUNTED = frozenset({"succeeded", "failed", "interrupted"})
#: Attempts that are failures.
FAILED = frozenset({"failed", "interrupted"})
#: Kinds of sums about money; the item is who was paid.
COST_KINDS = ("cost", "cost_unknown", "cost_subscription", "cost_estimated", "tokens")

#: Characters of a message that are kept.
LABEL_LENGTH = 300
#: Most attempts that are told apart; more are counted as so many.
MOST_NEEDED = 99
#: Buckets of durations for each doubling: one is a fifth wide.
PER_DOUBLING = 4
_LONGEST_MS = 10**11

_DAY = re.compile(r"\d{4}-\d\d-\d\d(?=T|$)")


class SumKey(NamedTuple):
    """Which sum."""

    kind: str
    day: str
    workflow: str
    phase: str = ""
    item: str = ""


class ReportSum(NamedTuple):
    """A sum."""

    number: int = 0
    amount: int = 0  #: millionths of a dollar, or milliseconds

    def plus(self, other: ReportSum) -> ReportSum:
        """Return both together."""
        return ReportSum(self.number + other.number, self.amount + other.amount)


NOTHING = ReportSum()


class Last(NamedTuple):
    """The last failure of a group."""

    at: str = ""
    adw_id: str = ""
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tallies:
    """What a workflow adds."""

    adw_id: str
    workflow: str
    outcome: str = ""  #: "": it goes on
    last_day: str = ""  #: on which an attempt ended last
    attempts: int = 0  #: that ended
    cost: int = 0  #: millionths of a dollar
    sums: Mapping[SumKey, ReportSum] = field(default_factory=dict)
    lasts: Mapping[SumKey, Last] = field(default_factory=dict)  #: of failures


# --- reading a document ----------------------------------------------------------------------------------------


def tallies_of(adw_id: str, workflow: str, data: JsonObject) -> Tallies:
    """Return what the document *data* of a workflow with that name of a definition adds."""
    maker = _Maker(adw_id, workflow)
    phases = data.get("phases")
    for phase in objects(phases):
        maker.add_phase(str(phase.get("name") or ""), list(objects(phase.get("attempts"))))
    for entry in costs.entries_of(adw_id, workflow, phases):
        maker.add_cost(entry)
    outcome = data.get("current_state")
    if outcome in OUTCOMES and (day := day_of(_ended_at(data, str(outcome)))):
        maker.add(SumKey("outcome", day, workflow, item=str(outcome)))

    return maker.result(str(outcome) if outcome in OUTCOMES else "")


class _Maker:
    """Adds up what is found."""

    def __init__(self, adw_id: str, workflow: str) -> None:
        self._adw_id, self._workflow = adw_id, workflow
        self._sums: dict[SumKey, list[int]] = {}  #: number and amount, changed in place: there are dozens of each
        self._lasts: dict[SumKey, Last] = {}
        self._last_day, self._attempts, self._cost = "", 0, 0

    def add(self, slot: SumKey, number: int = 1, amount: int = 0) -> None:
        result = self._sums.setdefault(slot, [0, 0])
        result[0] += number
        result[1] += amount

    def add_phase(self, name: str, attempts: Iterable[JsonObject]) -> None:
        needed, in_round = 0, None
        for attempt in attempts:
            status, day = str(attempt.get("status") or ""), day_of(attempt.get("ended_at"))
            needed = needed if attempt.get("round", 1) == in_round else 0
            in_round = attempt.get("round", 1)
            needed += status in COUNTED
            if not day:
                continue
            self._attempts += 1
            self._last_day = max(self._last_day, day)
            self._add_attempt(name, day, attempt, needed)
            needed = 0 if status == "succeeded" else needed

    def _add_attempt(self, phase: str, day: str, attempt: JsonObject, needed: int) -> None:
        status, took = str(attempt.get("status") or ""), milliseconds(attempt.get("duration"))
        workflow = self._workflow
        self.add(SumKey("attempt", day, workflow, phase, status), amount=took or 0)
        if status == "succeeded":
            self.add(SumKey("needed", day, workflow, phase, str(min(needed, MOST_NEEDED))))
        if status == "succeeded" and took is not None:
            self.add(SumKey("duration", f"{day[:7]}-01", workflow, phase, str(bucket_of(took))))
        if status in FAILED:
            self._add_failure(SumKey("failure", day, workflow, phase), attempt)

    def _add_failure(self, slot: SumKey, attempt: JsonObject) -> None:
        error = error_of(attempt)
        message, klass = str(error.get("message") or "").strip(), str(error.get("klass") or "")
        slot = slot._replace(item=failure_item(str(error.get("category") or "unknown"), klass, message))
        at = str(attempt.get("ended_at"))
        self.add(slot)
        if at >= self._lasts.get(slot, Last()).at:
            self._lasts[slot] = Last(at, self._adw_id, message[:LABEL_LENGTH])

    def add_cost(self, entry: costs.CostEntry) -> None:
        day = day_of(entry.ended_at)
        if not day:
            return
        micros = round((entry.cost_usd or 0.0) * 1_000_000)
        self._cost += micros
        figures = (1, entry.is_unknown, entry.is_subscription, entry.is_estimated, entry.tokens.total)
        for kind, number in zip(COST_KINDS, figures, strict=True):
            if number:
                slot = SumKey(kind, day, self._workflow, entry.phase, entry.provider)
                self.add(slot, int(number), micros if kind == "cost" else 0)

    def result(self, outcome: str) -> Tallies:
        return Tallies(
            adw_id=self._adw_id,
            workflow=self._workflow,
            outcome=outcome,
            last_day=self._last_day,
            attempts=self._attempts,
            cost=self._cost,
            sums={slot: ReportSum(*item) for slot, item in self._sums.items()},
            lasts=self._lasts,
        )


def _ended_at(data: JsonObject, outcome: str) -> object:
    """Return when the workflow came to its outcome: its last move there, else its last change."""
    history = data.get("state_history")
    moves = [move for move in objects(history) if move.get("to") == outcome]

    return moves[-1].get("timestamp") if moves else data.get("updated_at")


def failure_item(category: str, klass: str, message: str) -> str:
    """Return what failures of a group have in common; it begins with their category."""
    print_ = advisor.fingerprint(klass, message)

    return f"{category}:{hashlib.sha256(print_.encode('utf-8', 'replace')).hexdigest()[:16]}"


def category_of(item: str) -> str:
    """Return the category of a group of failures."""
    return item.rpartition(":")[0]


def day_of(moment: object) -> str:
    """Return the day of a moment, "" for what is none."""
    match = _DAY.match(moment) if isinstance(moment, str) else None

    return match.group() if match else ""


def milliseconds(seconds: object) -> int | None:
    """Return a duration in milliseconds, None for what is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None

    return int(min(seconds * 1000, _LONGEST_MS))


# --- durations -------------------------------------------------------------------------------------------------


def bucket_of(took: int) -> int:
    """Return the bucket of so many milliseconds."""
    return math.floor(PER_DOUBLING * math.log2(max(took, 1)))


def seconds_at(bucket: float) -> float:
    """Return where a bucket begins, in seconds; its middle is half a bucket further."""
    return float(2.0 ** (bucket / PER_DOUBLING) / 1000.0)


# --- what is new -----------------------------------------------------------------------------------------------


def difference(before: Mapping[SumKey, ReportSum], after: Mapping[SumKey, ReportSum]) -> dict[SumKey, ReportSum]:
    """Return what has to be added to *before* to make it *after*; sums that stay the same are left out."""
    if not before:
        return dict(after)
    changed = {}
    for slot in {**before, **after}:
        old, new = before.get(slot, NOTHING), after.get(slot, NOTHING)
        if old != new:
            changed[slot] = ReportSum(new.number - old.number, new.amount - old.amount)

    return changed


def to_text(sums: Mapping[SumKey, ReportSum]) -> str:
    """Return sums as text, for a row."""
    return json.dumps([[*slot, *total] for slot, total in sums.items()], separators=(",", ":"))


def from_text(text: str | None) -> dict[SumKey, ReportSum]:
    """Return the sums in the text of a row; none for None."""
    return {SumKey(*entry[:5]): ReportSum(*entry[5:]) for entry in json.loads(text or "[]")}


# Sums as the values that reports show.
#
# Pure. A sum comes in by its kind and the columns it was grouped by.


#: Kind and values of the columns -> sum.
Grouped: TypeAlias = Mapping[tuple[str, ...], ReportSum]

#: Months that a history goes back, the one that runs included.
HISTORY_MONTHS = 3
#: What costs can be told by -> the column.
COST_COLUMNS = {"phase": "phase", "day": "day", "provider": "item"}


def grouped(
    sums: Iterable[tuple[SumKey, ReportSum]], *, kinds: Iterable[str], columns: Iterable[str], window: Window
) -> dict[tuple[str, ...], ReportSum]:
    """Return sums of *kinds* that are in the window, one for each kind and value of *columns*."""
    wanted, names, result = frozenset(kinds), tuple(columns), dict[tuple[str, ...], ReportSum]()
    for slot, total in sums:
        if slot.kind in wanted and is_in(slot, window):
            key = (slot.kind, *(getattr(slot, name) for name in names))
            result[key] = result.get(key, NOTHING).plus(total)

    return result


def is_in(slot: SumKey, window: Window) -> bool:
    """Say whether a sum is in the window."""
    return slot.day >= window.first_day and window.workflow in ("", slot.workflow)


def together(first: Grouped, second: Grouped) -> dict[tuple[str, ...], ReportSum]:
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
        category=category_of(item),
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
        median=seconds_at(_bucket_at(there, count, 0.5) + 0.5),
        p95=seconds_at(_bucket_at(there, count, 0.95) + 1),
        longest=seconds_at(max(there) + 1),
    )


def _bucket_at(buckets: Mapping[int, int], count: int, share: float) -> int:
    """Return the bucket in which so much of all is reached."""
    reached = zip(buckets, accumulate(buckets.values()), strict=True)

    return next(bucket for bucket, total in reached if total >= math.ceil(count * share))


# What a workflow does or waits for now, read from its document as plain JSON and from its run.
#
# Pure. What the document says comes first; where it says nothing, the run waits for its time or for a worker.


#: So long after the end of a run its workflow is not looked for: the copy of its document may still follow.
JUST_ENDED = timedelta(minutes=1)


class AtWork(NamedTuple):
    """What somebody works on."""

    phase: str = ""  #: "" between two phases
    attempt: int = 0
    started_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What is known about a run that waits."""

    since: str
    not_before: str = ""  #: "": at once
    reason: str = ""


def at_work(data: JsonObject) -> AtWork:
    """Return what is under way according to the document *data*."""
    phase = phase_in(data, "running")
    if phase is None:
        return AtWork()

    return AtWork(text_in(phase, "name"), number_in(phase, "attempts_used"), text_in(last_attempt(phase), "started_at"))


def waiting(subject: Subject, data: JsonObject, run: RunFacts, *, now: str) -> WaitingNow:
    """Return what a workflow waits for whose run waits; *now* is a moment as documents have it."""
    phase = phase_in(data, "retry_wait")
    if run.not_before <= now:
        return WaitingNow(subject=subject, kind=WaitKind.WORKER, since=max(run.since, run.not_before), why=run.reason)
    if phase is not None:
        return _phase_waits(subject, data, phase, run)
    kind = WaitKind.QUOTA if run.reason.startswith(QUOTA_REFUSAL) else WaitKind.LATER

    return WaitingNow(subject=subject, kind=kind, since=run.since, until=run.not_before, why=run.reason)


def _phase_waits(subject: Subject, data: JsonObject, phase: JsonObject, run: RunFacts) -> WaitingNow:
    name, reason, at = (text_in(phase, key) for key in ("name", "wait_reason", "retry_at"))
    kind = _kind_of(data, phase)
    until = {WaitKind.CALLS: "", WaitKind.EXTERNAL: run.not_before}.get(kind, at or run.not_before)

    return WaitingNow(
        subject=subject,
        kind=kind,
        phase=name,
        since=run.since,
        until=until,
        why=reason or text_in(phase, "last_failure_reason"),
    )


def _kind_of(data: JsonObject, phase: JsonObject) -> WaitKind:
    reason = text_in(phase, "wait_reason")
    if reason and not phase.get("retry_at"):
        is_outside = definition_in(data, text_in(phase, "name")).get("runner") == EXTERNAL
        return WaitKind.EXTERNAL if is_outside else WaitKind.CALLS
    is_limited = error_of(last_attempt(phase)).get("category") == ErrorCategory.RATE_LIMIT.value
    if reason.startswith(QUOTA_WAIT):
        return WaitKind.QUOTA
    if reason and phase.get("wait_deadline_at") and last_attempt(phase).get("status") == "parked":
        return WaitKind.RATE_LIMIT if is_limited else WaitKind.OUTAGE
    if reason:
        return WaitKind.BREAKER

    return WaitKind.RATE_LIMIT if is_limited else WaitKind.RETRY


def paused(subject: Subject, data: JsonObject) -> WaitingNow:
    """Return for whom a workflow waits that is paused."""
    phase = phase_in(data, "waiting")
    since = text_in(data, "updated_at")
    if phase is not None:
        name = text_in(phase, "name")
        return WaitingNow(
            subject=subject, kind=WaitKind.APPROVAL, phase=name, since=since, why=f"a person has to look at {name}"
        )

    return WaitingNow(subject=subject, kind=WaitKind.PERSON, since=since, why=text_in(data, "pause_reason"))
