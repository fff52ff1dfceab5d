"""
What reports and the overview ask of the database, and the values that cross.

Nothing here grows with the number of workflows there are: sums are kept for each day, lists have a limit, and a count
stops where it was told to. A day is one of UTC, and a window begins with a whole day. Sums outlive the workflows that
they are of: what was forgotten because of its age was still done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

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
    BREAKER = "breaker"  #: an outside party is held off
    CALLS = "calls"  #: calls of a step that other workers make
    EXTERNAL = "external"  #: work that is done outside of adw
    APPROVAL = "approval"  #: a person who looks at a phase
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckNow:
    """A workflow that does not move as it should."""

    subject: Subject
    kind: StuckKind
    phase: str
    since: str  #: when its attempt began, it was last changed, or it became due
    why: str  #: in a sentence
    commands: tuple[str, ...] = ()  #: what to type


class Reports(Protocol):
    """Counting what was done, and looking at what is."""

    def refresh(self) -> int:
        """
        Add what is new to the sums that are kept, and return how many workflows had something new.

        The answers are the same before and after: what is new is counted in either way. This keeps them fast.
        """

    # --- what was done -----------------------------------------------------------------------------------------

    def outcomes(self, window: Window) -> tuple[DayOutcomes, ...]:
        """Return how workflows ended, the oldest day first; days on which none did are left out."""

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by its name."""

    def costs(self, window: Window, *, by: str) -> tuple[CostSum, ...]:
        """Return what was spent by `phase`, `day` or `provider`, in the order of the keys."""

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, what cost most first."""

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return how long successful attempts took at each of *phases* (workflow, phase) that has a history."""

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state; states without one are left out."""

    def queue(self, *, at_most: int = MOST_COUNTED) -> QueueNow:
        """Return how much waits for a worker."""

    def queue_lines(self, *, at_most: int = MOST_COUNTED) -> tuple[QueueLine, ...]:
        """Return the runs that are not over by state and kind; of each state the first *at_most* are looked at."""

    def running(self, *, limit: int = 50) -> tuple[RunningNow, ...]:
        """Return what somebody works on, what began first first."""

    def waiting(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits: first the queue in its order, then what waits for a person, the newest first."""

    def queued(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits in the queue, in its order."""

    def paused(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits for a person, the newest first."""

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows that are under way by their state, while nobody has them and no run of theirs waits."""
