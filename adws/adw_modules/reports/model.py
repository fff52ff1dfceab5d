"""
Values of reports, what one workflow adds to the sums, and what it does or waits for now. Pure.

Days are in UTC, and a window begins with a whole day. Sums outlive their workflows: work that was deleted because of
its age was still done.
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

#: Default limit of a count.
MOST_COUNTED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The scope of a report."""

    since: str = ""  #: its first day or a moment of it, `2026-01-31`; "": from the beginning
    workflow: str = ""  #: name of a definition; "": all

    @property
    def first_day(self) -> str:
        """The first day that counts, or "" for no limit."""
        return self.since[:10]


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows, possibly only a lower bound."""

    number: int
    is_more: bool = False  #: there are more than `number`

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_more else ''}"


# --- what was done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DayOutcomes:
    """How many workflows ended on a day, each by its last outcome, without those continued after a failure."""

    day: str
    completed: int = 0
    failed: int = 0
    abandoned: int = 0
    rolled_back: int = 0

    @property
    def ended(self) -> int:
        """The number of workflows."""
        return self.completed + self.failed + self.abandoned + self.rolled_back

    @property
    def success_rate(self) -> float | None:
        """The share that was completed, or None if nothing ended."""
        return self.completed / self.ended if self.ended else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestCount:
    """How many issues had workflows started for them, and how many of these had one completed."""

    asked: int = 0
    completed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseAttempts:
    """The attempts at one phase, in all workflows that have it."""

    phase: str
    needed: Mapping[int, int] = field(default_factory=dict)  #: attempts until it succeeded -> number of times
    by_status: Mapping[str, int] = field(default_factory=dict)  #: status of ended attempts -> their number
    seconds: float = 0.0  #: of work, in total

    @property
    def successes(self) -> int:
        """The number of successes."""
        return sum(self.needed.values())

    @property
    def mean_needed(self) -> float | None:
        """The mean number of attempts for a success, or None without one."""
        return sum(n * times for n, times in self.needed.items()) / self.successes if self.needed else None

    @property
    def failed(self) -> int:
        """The number of attempts that failed or were interrupted."""
        return sum(self.by_status.get(status, 0) for status in FAILED)

    @property
    def recovered(self) -> int:
        """The number of these followed by a success of the same phase; those before the window are left out."""
        return min(self.failed, sum((n - 1) * times for n, times in self.needed.items()))


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSum:
    """What was spent on something; unknown costs are counted separately and never taken for 0."""

    key: str  #: the phase, the day or the provider
    cost_usd: float = 0.0
    attempts: int = 0
    unknown: int = 0  #: those of the attempts whose cost is unknown
    subscription: int = 0  #: those of the attempts paid by subscription
    estimated: int = 0  #: those of the attempts whose cost was estimated from tokens
    tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowCost:
    """The total cost of one workflow."""

    adw_id: str
    workflow: str
    outcome: str  #: how it ended, or "" if it has not
    cost_usd: float
    attempts: int  #: that have ended
    last_day: str  #: on which an attempt last ended


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureGroup:
    """Failed attempts that differ only in numbers."""

    phase: str
    category: str  #: as the classifier named it
    message: str  #: of the last one
    count: int
    last_at: str
    adw_id: str  #: the workflow of the last one


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseHistory:
    """Durations of successful attempts at a phase of one workflow, in seconds; from buckets a fifth wide."""

    workflow: str
    phase: str
    count: int
    median: float
    p95: float
    longest: float


# --- the present -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A workflow, as far as a line about it needs."""

    adw_id: str
    title: str = ""
    workflow: str = ""
    state: str = ""
    issue_number: int | None = None
    repository: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningNow:
    """A workflow with a running run."""

    subject: Subject
    phase: str  #: "" between two phases
    attempt: int  #: of this round; 0 between two phases
    started_at: str  #: of the attempt, else of the run
    run_id: int
    kind: str  #: of the run
    is_stopping: bool
    owner: str  #: the record of its owner as text
    seconds_left: float  #: of the claim; negative if it expired without being renewed
    silent_seconds: float | None = None  #: since the worker's last heartbeat; None: its owner sends none


class WaitKind(Enum):
    """What a workflow waits for."""

    WORKER = "worker"  #: it is due, but no worker has it yet
    RETRY = "retry"  #: the next attempt after a failure
    RATE_LIMIT = "rate_limit"  #: the next attempt after a rate limit
    QUOTA = "quota"  #: a limit is used up
    OUTAGE = "outage"  #: an unavailable network, forge or provider
    BREAKER = "breaker"  #: an open circuit breaker of an external service
    CALLS = "calls"  #: calls of a step that other workers make
    EXTERNAL = "external"  #: work done outside of adw
    APPROVAL = "approval"  #: a person who reviews a phase
    PERSON = "person"  #: a person, because it is paused
    LATER = "later"  #: its due time
    NOBODY = "nobody"  #: nothing: its state is active, but it has neither owner nor run


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingNow:
    """An unfinished workflow that has no owner."""

    subject: Subject
    kind: WaitKind
    phase: str = ""
    since: str = ""
    until: str = ""  #: "" if unknown
    why: str = ""  #: in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueNow:
    """A summary of the run queue."""

    due: Count  #: could be claimed now
    later: Count  #: are not due yet
    at_work: Count
    oldest_due_at: str = ""  #: since when the oldest due run waits; "" without one


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLine:
    """The unfinished runs of one kind in one state."""

    state: str
    kind: str
    count: Count
    oldest_at: str  #: when the oldest was requested


class StuckKind(Enum):
    """How a workflow is stuck."""

    SILENT = "silent"  #: its worker has stopped its heartbeat
    UNATTENDED = "unattended"  #: its state is active, but it has neither owner nor run, and waits for nothing
    TOO_LONG = "too_long"  #: its attempt takes longer than its history suggests
    NOT_TAKEN = "not_taken"  #: it is due, but no worker claims it
    LIMIT = "limit"  #: a limit of this home is reached, so it may not continue


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckNow:
    """A workflow that does not move as it should."""

    subject: Subject
    kind: StuckKind
    phase: str
    since: str  #: when its attempt began, it last changed, or it became due
    why: str  #: in one sentence
    commands: tuple[str, ...] = ()  #: what to type


# --- what one workflow adds to the sums --------------------------------------------------------------------------

#: States in which a workflow has ended.
OUTCOMES = ("completed", "failed", "abandoned", "rolled_back")
#: Statuses of attempts that count towards the limit of a phase.
COUNTED = frozenset({"succeeded", "failed", "interrupted"})
#: Statuses of failed attempts.
FAILED = frozenset({"failed", "interrupted"})
#: Kinds of sums of costs, whose item is the provider -> the figure that the sum's number is.
COST_FIGURES = {
    "cost": "attempts",
    "cost_unknown": "unknown",
    "cost_subscription": "subscription",
    "cost_estimated": "estimated",
    "tokens": "tokens",
}

#: Maximum length of a stored message.
LABEL_LENGTH = 300
#: Maximum number of attempts that is distinguished; more count as this.
MOST_NEEDED = 99
#: Buckets of durations per doubling: each is a fifth wide.
PER_DOUBLING = 4
_LONGEST_MS = 10**11

_DAY = re.compile(r"\d{4}-\d\d-\d\d(?=T|$)")


class SumKey(NamedTuple):
    """The key of a sum."""

    kind: str
    day: str
    workflow: str
    phase: str = ""
    item: str = ""


class ReportSum(NamedTuple):
    """A sum."""

    number: int = 0
    amount: int = 0  #: millionths of a dollar, or milliseconds
    last_at: str = ""  #: of failures: the time of the last one
    adw_id: str = ""  #: the workflow of the last one
    label: str = ""  #: the message of the last one

    def plus(self, other: ReportSum) -> ReportSum:
        """Return the total of both, with the later of the two last failures."""
        last = other if other.last_at >= self.last_at else self

        return last._replace(number=self.number + other.number, amount=self.amount + other.amount)


@dataclass(kw_only=True, slots=True)
class WorkflowSums:
    """What a workflow adds to the sums: always the same for the same document."""

    adw_id: str
    workflow: str
    outcome: str = ""  #: "" if it has not ended
    last_day: str = ""  #: on which an attempt last ended
    attempts: int = 0  #: that have ended
    cost: int = 0  #: millionths of a dollar
    sums: dict[SumKey, ReportSum] = field(default_factory=dict)

    def add(self, key: SumKey, number: int = 1, amount: int = 0, last: tuple[str, str, str] = ("", "", "")) -> None:
        """Add to a sum."""
        self.sums[key] = self.sums.get(key, ReportSum()).plus(ReportSum(number, amount, *last))


def sums_of(document: WorkflowDocument) -> WorkflowSums:
    """Return what the workflow in *document* adds; entries without a readable day are left out."""
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
            # The common part of the failures of a group, without their numbers.
            print_ = identifiers.fingerprint(str(error.get("klass") or ""), message)
            item = f"{category}:{hashlib.sha256(print_.encode('utf-8', 'replace')).hexdigest()[:16]}"
            last = attempt.ended_at or "", result.adw_id, message[:LABEL_LENGTH]
            result.add(key._replace(kind="failure", item=item), last=last)


def day_of(moment: str) -> str:
    """Return the day of a moment, or "" if it is not a moment."""
    match = _DAY.match(moment)

    return match.group() if match else ""


def bucket_of(milliseconds: int) -> int:
    """Return the bucket of a duration."""
    return math.floor(PER_DOUBLING * math.log2(max(milliseconds, 1)))


def seconds_at(bucket: float) -> float:
    """Return the start of a bucket in seconds; its middle is half a bucket later."""
    return float(2.0 ** (bucket / PER_DOUBLING) / 1000.0)


# --- how long attempts took --------------------------------------------------------------------------------------

#: Months of a history, the current one included.
HISTORY_MONTHS = 3


def history_since(now: datetime) -> str:
    """Return the first day of a history: the present month and the two before it."""
    months = now.year * 12 + now.month - 1 - (HISTORY_MONTHS - 1)

    return f"{months // 12:04}-{months % 12 + 1:02}-01"


def history_of(workflow: str, phase: str, buckets: Mapping[int, int]) -> PhaseHistory:
    """Return the history of a phase from the number of attempts in each bucket, of which there is at least one."""
    there = dict(sorted(buckets.items()))
    count = sum(there.values())

    def reached(share: float) -> int:
        """Return the bucket in which the *share* of all attempts is reached."""
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
    """Return the first phase with that status, or None (also without a document)."""
    return next((phase for phase in document.phases if phase.status == status), None) if document else None


def waiting(
    subject: Subject, document: WorkflowDocument | None, *, since: str, not_before: str = "", reason: str = "", now: str
) -> WaitingNow:
    """
    Return what a workflow waits for whose run has been pending *since* then, due *not_before*, for *reason*.

    The document decides; without an answer in it, the run waits for its due time or for a worker.
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
    """Return what a paused workflow waits for."""
    since = document.updated_at if document else ""
    if phase := phase_with(document, "waiting"):
        why = f"a person has to look at {phase.name}"
        return WaitingNow(subject=subject, kind=WaitKind.APPROVAL, phase=phase.name, since=since, why=why)
    why = (document.pause_reason if document else None) or ""

    return WaitingNow(subject=subject, kind=WaitKind.PERSON, since=since, why=why)
