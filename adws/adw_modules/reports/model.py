"""
The values of reports, what one workflow adds to their sums, and what it does or waits for now. Pure.

A day is one of UTC, and a window begins with a whole day. Sums outlive the workflows that they are of: what was
forgotten because of its age was still done.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import costs, identifiers
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import QUOTA_REFUSAL, QUOTA_WAIT
from adws.adw_modules.phase import EXTERNAL

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument

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


# --- what one workflow adds to the sums --------------------------------------------------------------------------

#: How a workflow can have ended, as its state says it.
OUTCOMES = ("completed", "failed", "abandoned", "rolled_back")
#: Attempts that count towards those a phase may have.
COUNTED = frozenset({"succeeded", "failed", "interrupted"})
#: Attempts that are failures.
FAILED = frozenset({"failed", "interrupted"})
#: Kinds of sums about money, whose item is who was paid -> the figure that their number is.
COST_FIGURES = {
    "cost": "attempts",
    "cost_unknown": "unknown",
    "cost_subscription": "subscription",
    "cost_estimated": "estimated",
    "tokens": "tokens",
}

#: Characters of a message that are kept.
LABEL_LENGTH = 300
#: Most attempts that are distinguished; more are counted as so many.
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
    last_at: str = ""  #: of failures: when the last one was
    adw_id: str = ""  #: of which workflow
    label: str = ""  #: and what it said

    def plus(self, other: ReportSum) -> ReportSum:
        """Return both together; of two last failures the later one."""
        last = other if other.last_at >= self.last_at else self

        return last._replace(number=self.number + other.number, amount=self.amount + other.amount)


@dataclass(kw_only=True, slots=True)
class WorkflowSums:
    """What a workflow adds. The same document always adds the same."""

    adw_id: str
    workflow: str
    outcome: str = ""  #: "": it goes on
    last_day: str = ""  #: on which an attempt ended last
    attempts: int = 0  #: that ended
    cost: int = 0  #: millionths of a dollar
    sums: dict[SumKey, ReportSum] = field(default_factory=dict)

    def add(self, key: SumKey, number: int = 1, amount: int = 0, last: tuple[str, str, str] = ("", "", "")) -> None:
        """Add to a sum."""
        self.sums[key] = self.sums.get(key, ReportSum()).plus(ReportSum(number, amount, *last))


def sums_of(document: WorkflowDocument) -> WorkflowSums:
    """Return what the workflow in *document* adds; what has no day that can be read is left out."""
    name, state = document.workflow_name, document.current_state
    result = WorkflowSums(adw_id=document.adw_id, workflow=name)
    for phase in document.phases:
        _add_attempts(result, phase)
    for entry in costs.of_document(document):
        if not (day := day_of(entry.ended_at)):
            continue
        micros = round((entry.cost_usd or 0.0) * 1_000_000)
        result.cost += micros
        figures = (1, entry.is_unknown, entry.is_subscription, entry.is_estimated, entry.tokens.total)
        for kind, number in zip(COST_FIGURES, figures, strict=True):
            if number:
                key = SumKey(kind, day, name, entry.phase, entry.provider)
                result.add(key, int(number), micros if kind == "cost" else 0)
    if state in OUTCOMES:
        result.outcome = state
        moves = [entry.timestamp for entry in document.state_history if entry.to_state == state]
        if day := day_of(moves[-1] if moves else document.updated_at):
            result.add(SumKey("outcome", day, name, item=state))

    return result


def _add_attempts(result: WorkflowSums, phase: PhaseRecord) -> None:
    needed, in_round = 0, None
    for attempt in phase.attempts:
        status, day = attempt.status, day_of(attempt.ended_at or "")
        needed = needed if attempt.round == in_round else 0
        in_round = attempt.round
        needed += status in COUNTED
        if not day:
            continue
        result.attempts += 1
        result.last_day = max(result.last_day, day)
        key = SumKey("attempt", day, result.workflow, phase.name, status)
        took = attempt.duration if attempt.duration is not None and attempt.duration >= 0 else None
        milliseconds = int(min((took or 0.0) * 1000, _LONGEST_MS))
        result.add(key, amount=milliseconds)
        if status == "succeeded":
            result.add(key._replace(kind="needed", item=str(min(needed, MOST_NEEDED))))
            needed = 0
            if took is not None:
                result.add(key._replace(kind="duration", day=f"{day[:7]}-01", item=str(bucket_of(milliseconds))))
        elif status in FAILED:
            error = attempt.error or {}
            message, category = str(error.get("message") or "").strip(), str(error.get("category") or "unknown")
            # What failures of a group have in common, whatever their numbers.
            print_ = identifiers.fingerprint(str(error.get("klass") or ""), message)
            item = f"{category}:{hashlib.sha256(print_.encode('utf-8', 'replace')).hexdigest()[:16]}"
            last = attempt.ended_at or "", result.adw_id, message[:LABEL_LENGTH]
            result.add(key._replace(kind="failure", item=item), last=last)


def day_of(moment: str) -> str:
    """Return the day of a moment, "" for what is none."""
    match = _DAY.match(moment)

    return match.group() if match else ""


def bucket_of(milliseconds: int) -> int:
    """Return the bucket of a duration."""
    return math.floor(PER_DOUBLING * math.log2(max(milliseconds, 1)))


def seconds_at(bucket: float) -> float:
    """Return where a bucket begins, in seconds; its middle is half a bucket further."""
    return float(2.0 ** (bucket / PER_DOUBLING) / 1000.0)


# --- how long attempts took --------------------------------------------------------------------------------------

#: Months that a history goes back, the one that runs included.
HISTORY_MONTHS = 3


def history_since(now: datetime) -> str:
    """Return the first day of a history: the month and two before it."""
    months = now.year * 12 + now.month - 1 - (HISTORY_MONTHS - 1)

    return f"{months // 12:04}-{months % 12 + 1:02}-01"


def history_of(workflow: str, phase: str, buckets: Mapping[int, int]) -> PhaseHistory:
    """Return how long attempts took, from how many fell in each bucket; there is at least one."""
    there = dict(sorted(buckets.items()))
    count = sum(there.values())

    def reached(share: float) -> int:
        """Return the bucket in which so much of all is reached."""
        totals = zip(there, accumulate(there.values()), strict=True)
        return next(bucket for bucket, total in totals if total >= math.ceil(count * share))

    return PhaseHistory(
        workflow=workflow,
        phase=phase,
        count=count,
        median=seconds_at(reached(0.5) + 0.5),
        p95=seconds_at(reached(0.95) + 1),
        longest=seconds_at(max(there) + 1),
    )


# --- what a workflow does or waits for now -----------------------------------------------------------------------


def phase_with(document: WorkflowDocument | None, status: str) -> PhaseRecord | None:
    """Return the first phase with that status; None when there is none, or no document."""
    return next((phase for phase in document.phases if phase.status == status), None) if document else None


def waiting(
    subject: Subject, document: WorkflowDocument | None, *, since: str, not_before: str = "", reason: str = "", now: str
) -> WaitingNow:
    """
    Return what a workflow waits for whose run waits *since* then, *not_before* a moment and for a *reason*.

    What the document says comes first; where it says nothing, the run waits for its time or for a worker.
    """
    if not_before <= now:
        return WaitingNow(subject=subject, kind=WaitKind.WORKER, since=max(since, not_before), why=reason)
    phase = phase_with(document, "retry_wait")
    if document is None or phase is None:
        kind = WaitKind.QUOTA if reason.startswith(QUOTA_REFUSAL) else WaitKind.LATER
        return WaitingNow(subject=subject, kind=kind, since=since, until=not_before, why=reason)
    kind = _wait_kind(document, phase)
    until = {WaitKind.CALLS: "", WaitKind.EXTERNAL: not_before}.get(kind, phase.retry_at or not_before)
    why = phase.wait_reason or phase.last_failure_reason or ""

    return WaitingNow(subject=subject, kind=kind, phase=phase.name, since=since, until=until, why=why)


def _wait_kind(document: WorkflowDocument, phase: PhaseRecord) -> WaitKind:
    reason, last = phase.wait_reason or "", phase.attempts[-1] if phase.attempts else None
    if reason and not phase.retry_at:
        defined = document.workflow.phases if document.workflow else []
        is_outside = any(one.get("name") == phase.name and one.get("runner") == EXTERNAL for one in defined)
        return WaitKind.EXTERNAL if is_outside else WaitKind.CALLS
    is_limited = bool(last and last.error and last.error.get("category") == ErrorCategory.RATE_LIMIT.value)
    if reason.startswith(QUOTA_WAIT):
        return WaitKind.QUOTA
    if reason and phase.wait_deadline_at and last and last.status == "parked":
        return WaitKind.RATE_LIMIT if is_limited else WaitKind.OUTAGE
    if reason:
        return WaitKind.BREAKER

    return WaitKind.RATE_LIMIT if is_limited else WaitKind.RETRY


def paused(subject: Subject, document: WorkflowDocument | None) -> WaitingNow:
    """Return for whom a workflow waits that is paused."""
    since = document.updated_at if document else ""
    if phase := phase_with(document, "waiting"):
        why = f"a person has to look at {phase.name}"
        return WaitingNow(subject=subject, kind=WaitKind.APPROVAL, phase=phase.name, since=since, why=why)
    why = (document.pause_reason if document else None) or ""

    return WaitingNow(subject=subject, kind=WaitKind.PERSON, since=since, why=why)
