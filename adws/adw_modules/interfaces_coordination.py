"""
What workers on one machine or on many ask of what they share: who is there, whose agents run, what was counted.

A dispatcher carries the id of a run to a worker and nothing else: the row in `runs` is the truth, and claiming it is
the one compare-and-set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from adws.adw_modules.demands import Offer
    from adws.adw_modules.interfaces import Lease, LeaseBusy, LeaseRow, LeaseTaken
    from adws.adw_modules.owner_record import OwnerRecord
    from adws.adw_modules.runs import NewRun, Run, RunEnd

# --- runners ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Runner:
    """A worker as it said it is."""

    runner_id: str  #: the token of its owner record
    owner: OwnerRecord
    tags: frozenset[str]
    concurrency: int  #: how many places it has; 0: it has left
    busy: int  #: runs it had at its last heartbeat
    version: str  #: of adw
    is_draining: bool
    started_at: str
    heartbeat_at: str
    silent_seconds: float  #: since its last heartbeat


class Runners(Protocol):
    """The workers there are, and when they were last heard of."""

    def register(self, owner: OwnerRecord, offer: Offer, *, concurrency: int, version: str) -> None:
        """Say that a worker is there; again for the same one is a heartbeat."""

    def beat(self, owner: OwnerRecord, *, busy: int, is_draining: bool = False) -> bool:
        """Say that it lives; False when it is not registered any more, and has to register again."""

    def leave(self, owner: OwnerRecord) -> None:
        """Say that it ends: it is listed without a place until it is forgotten. Idempotent."""

    def all(self) -> tuple[Runner, ...]:
        """Return every worker, the oldest first."""

    def forget(self, *, silent_seconds: float) -> int:
        """Take those away that were silent for longer, and return how many."""


# --- workflows whose owner is gone -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseWish:
    """A workflow that somebody wants to own."""

    adw_id: str
    dead_fence: int | None = None  #: as with `LeaseBook.take`


@dataclass(frozen=True, kw_only=True, slots=True)
class HandBack:
    """What becomes of a workflow that was taken from an owner that is gone."""

    lease: Lease | None  #: given back; None: it is kept for now
    run: Run | None = None  #: the run of the one that is gone, or one that waits
    end: RunEnd | None = None  #: what becomes of that run
    new_run: NewRun | None = None  #: what is queued instead, unless something is
    free_issue: int | None = None


class MassLeases(Protocol):
    """Leases of many workflows at a time, each in one transaction: for recovery."""

    def read_all(self, adw_ids: Sequence[str]) -> Mapping[str, LeaseRow]:
        """Return the rows of those that there are."""

    def take_all(
        self, wishes: Sequence[LeaseWish], owner: OwnerRecord, *, ttl_seconds: float
    ) -> tuple[LeaseTaken | LeaseBusy | None, ...]:
        """Take each lease as `LeaseBook.take` does; None for a workflow that does not exist."""

    def hand_back(self, ends: Sequence[HandBack]) -> tuple[Run | None, ...]:
        """Do all of it or nothing, and return each run as it stands then; None for one that had moved on."""


# --- agents ----------------------------------------------------------------------------------------------------


class SessionStatus(Enum):
    """Where the session of an agent stands."""

    RUNNING = "running"
    STOPPING = "stopping"  #: its run shall stop
    STOPPED = "stopped"  #: ended on order
    FINISHED = "finished"  #: its attempt ended with success
    FAILED = "failed"  #: its attempt failed or was cut off


#: Sessions that have not ended.
LIVE_SESSIONS = frozenset({SessionStatus.RUNNING, SessionStatus.STOPPING})


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSession:
    """An agent at work on one attempt of a phase."""

    session_id: str  #: ours: `<adw_id>.<phase>.<attempt>`
    adw_id: str
    run_id: int | None  #: the run it works for
    phase: str
    attempt_number: int
    agent: str  #: name of its profile
    host: str
    status: SessionStatus
    executor_session_id: str = ""  #: what the agent itself calls it, "" when it said nothing yet
    reason: str = ""  #: why it is in this state, for people
    started_at: str = ""
    ended_at: str | None = None


class AgentSessions(Protocol):
    """The sessions of agents. Whatever ends, takes back or stops a run ends or marks its sessions with it."""

    def open(self, session: AgentSession) -> None:
        """Store a session that begins; again for the same id changes nothing but what the agent calls it."""

    def close(self, session_id: str, status: SessionStatus, *, reason: str = "") -> bool:
        """End it; False when it had ended already."""

    def of_workflow(self, adw_id: str) -> tuple[AgentSession, ...]:
        """Return those of a workflow, the oldest first."""

    def live(self) -> tuple[AgentSession, ...]:
        """Return every one that has not ended, the oldest first."""


# --- counting --------------------------------------------------------------------------------------------------


class Counters(Protocol):
    """Numbers that only grow, whatever process counts: what the metrics page shows."""

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Count."""

    def all(self) -> tuple[tuple[str, Mapping[str, str], float], ...]:
        """Return name, labels and value of each, in a fixed order."""


# --- dispatch --------------------------------------------------------------------------------------------------


class Listener(Protocol):
    """
    The ear of one worker, open inside its block.

    It says that there may be work, and which run it was told of. What it says is a hint: the claim decides.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, seconds: float) -> bool:
        """Wait until there may be something to claim, at most that long, and say whether there may be."""

    def heard(self) -> int | None:
        """Return the run that was told of last and is not taken up yet; None: nobody said which."""

    def done(self, run_id: int) -> None:
        """Say that the work on a run that was told of is over, or that it could not be claimed."""

    def sweep(self) -> int:
        """Give up what dead workers were told of and never ended, and return how much that was."""


class Dispatcher(Protocol):
    """Brings runs to workers. Telling of one is part of the transaction that stores it (`db.announcing`)."""

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the ear of a worker that has *places* for runs."""
