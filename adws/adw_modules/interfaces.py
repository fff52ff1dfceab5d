"""
The interfaces with several implementations, and the values passed through them.

`adws/app.py` chooses the implementations, which all pass the same contract suites (`tests/contracts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from adws.adw_modules.identifiers import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.queue.model import Run


class Clock(Protocol):
    """The interface for time and randomness."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring durations."""

    def boottime(self) -> float:
        """Return seconds since the machine started, including suspended time; local leases use this clock."""

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*."""

    def random(self) -> float:
        """Return a number from 0.0 up to, not including, 1.0."""

    def token(self) -> str:
        """Return 32 hex digits that nobody can guess."""


# --- documents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadNotice:
    """A problem or fact to report about a document that was loaded."""

    kind: str  #: migrated | recovered | foreign | corrupt
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedState:
    """A document and the notices from reading it."""

    document: WorkflowDocument
    notices: tuple[LoadNotice, ...] = ()

    @property
    def data(self) -> JsonObject:
        """A copy of the document as plain JSON, for views that show all of it."""
        return self.document.to_plain()


class StateStore(Protocol):
    """
    The store of workflow documents.

    `document.revision` is the revision the caller read. A write is refused with StateConflict if the stored revision
    differs, and with Fenced if a higher fence was seen. Arguments never change; the returned document is the stored
    one.
    """

    def create(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* as revision 1; raise StateExists if its id is taken."""

    def load(self, adw_id: str) -> LoadedState:
        """Return the last valid revision; raise StateNotFound or StateCorrupt. Takes no lock, writes nothing."""

    def save(
        self,
        document: WorkflowDocument,
        *,
        fence: int,
        events: Sequence[Event] = (),
        may_collect: bool = False,
    ) -> WorkflowDocument:
        """
        Store *document* with *events* as the next revision, in one durable step.

        *may_collect*: if documents are files, their database copy may wait for the next save or for `flush`.
        """

    def flush(self, adw_id: str = "") -> None:
        """Bring the database copy of one document, or of all, up to date; raise the error that prevents it."""

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """Make every write under *fence* fail from now on, even one in progress."""

    def sweep(self, adw_id: str) -> None:
        """Remove files left by killed or fenced-out writers. The caller must hold the workflow's file lock."""

    def exists(self, adw_id: str) -> bool:
        """Say whether a document exists, valid or not."""

    def ids(self) -> Iterator[str]:
        """Yield the id of every document, in no order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowResult:
    """The result of a workflow so far: its phase, its cost, and what it made."""

    phase: str | None  #: the phase it is in, waits in or failed in; None once every phase has ended
    branch_name: str | None
    pr_number: int | None
    pull_request_url: str  #: "": there is no URL that a browser may be sent to
    cost_usd: float
    work_seconds: float  #: over all attempts at all phases


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowSummary:
    """One line of a list."""

    adw_id: str
    repository: str
    issue_number: int | None
    title: str
    workflow: str
    state: str
    revision: int
    created_at: str
    updated_at: str
    owner: str = ""  #: the owner's record as text, or "" if nobody works on it
    result: WorkflowResult | None = None  #: None: not requested, or the document is unreadable


@dataclass(frozen=True, kw_only=True, slots=True)
class PageQuery:
    """Which workflows to list: newest first, after *cursor*."""

    limit: int = 50
    cursor: str | None = None  #: `next_cursor` of the previous page
    state: str | None = None
    issue_number: int | None = None
    repository: str | None = None
    workflow: str | None = None
    search: str = ""  #: words that must all match, see `db.listing`
    with_results: bool = False  #: include phase, cost, branch and pull request, read from each row's document


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One page of a list, and the cursor of the next page."""

    rows: tuple[WorkflowSummary, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedWrite:
    """A document write to be copied into the database."""

    adw_id: str
    revision: int
    fence: int
    body: bytes  #: the document as JSON text
    summary: WorkflowSummary
    events: tuple[Event, ...] = ()


# --- ownership -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Proof of ownership, valid while the lease row has this owner and this fence."""

    adw_id: str
    owner: OwnerRecord
    fence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRow:
    """The lease row of a workflow: who owns it, and for how long."""

    adw_id: str
    fence: int
    owner: OwnerRecord | None  #: None: nobody owns it
    seconds_left: float  #: negative once expired
    taken_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTaken:
    """The lease was taken."""

    lease: Lease
    previous: OwnerRecord | None = None  #: set if the previous owner had not released the lease
    previous_fence: int = 0
    run: Run | None = None  #: the run as begun in the same transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseBusy:
    """Another owner has a live lease."""

    row: LeaseRow


@dataclass(frozen=True, kw_only=True, slots=True)
class IssueLock:
    """An issue and the workflow that holds it."""

    repository: str
    issue_number: int
    adw_id: str
    acquired_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request to the owner of a workflow."""

    request_id: int
    adw_id: str
    kind: str  #: pause | stop | abandon | rollback | hint
    payload: JsonObject = field(default_factory=dict)
    asked_by: str = ""
    created_at: str = ""
    handled_at: str | None = None
    outcome: str | None = None


# --- runners ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredWorker:
    """A worker as it registered itself."""

    runner_id: str  #: the token of its owner record
    owner: OwnerRecord
    tags: frozenset[str]
    concurrency: int  #: number of slots; 0: the worker has left
    busy: int  #: number of runs at its last heartbeat
    version: str  #: of adw
    is_draining: bool
    started_at: str
    heartbeat_at: str
    silent_seconds: float  #: since its last heartbeat


# --- agents ----------------------------------------------------------------------------------------------------


class SessionStatus(Enum):
    """The status of an agent session."""

    RUNNING = "running"
    STOPPING = "stopping"  #: its run has been told to stop
    STOPPED = "stopped"  #: ended on order
    FINISHED = "finished"  #: its attempt ended with success
    FAILED = "failed"  #: its attempt failed or was interrupted


#: Sessions that have not ended.
LIVE_SESSIONS = frozenset({SessionStatus.RUNNING, SessionStatus.STOPPING})


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSession:
    """An agent at work on one attempt of a phase."""

    session_id: str  #: our id: `<adw_id>.<phase>.<attempt>`
    adw_id: str
    run_id: int | None  #: the run the session belongs to
    phase: str
    attempt_number: int
    agent: str  #: name of its profile
    host: str
    status: SessionStatus
    executor_session_id: str = ""  #: the agent's own session id, "" if not reported yet
    reason: str = ""  #: why the session has this status, for people
    started_at: str = ""
    ended_at: str | None = None


# --- dispatch --------------------------------------------------------------------------------------------------
#
# A dispatcher only brings run ids to workers. The row in `runs` is the truth; claiming it is the compare-and-set.


class Listener(Protocol):
    """
    The listener of one worker; entering it opens it, leaving it closes it.

    It reports that there may be work, and which run was announced. Both are hints: the claim decides.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, seconds: float) -> bool:
        """Wait up to *seconds* until there may be a run to claim; return whether there may be one."""

    def heard(self) -> int | None:
        """Return the run announced last that was not taken up yet, or None if it is unknown which run that is."""

    def done(self, run_id: int) -> None:
        """Report that the work on an announced run has ended, or that the run could not be claimed."""

    def sweep(self) -> int:
        """End the announcements to dead workers that never ended, and return their number."""


class Dispatcher(Protocol):
    """Brings runs to workers. A run is announced in the transaction that stores it (`queue.store`)."""

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the listener of a worker with *places* slots for runs."""


# --- owners of workflows, and whether they are still alive -----------------------------------------------------
#
# The record says what was true when the lease was taken, the observation what is true now. A process is called dead
# only on proof. Whatever cannot be read gives `unknown`, and then the expiry of the lease decides.


#: Fields of a record that are integers; all others are strings.
_NUMBERS = frozenset({"pid", "start_ticks"})
#: Number of records to cache: each lease and each claim has its own.
_KEPT = 4096


class Verdict(Enum):
    """What is known about whether an owner is alive."""

    ALIVE = "alive"  #: the very process that took the lease is running
    DEAD = "dead"  #: proven: other boot, pid gone, pid reused, or a zombie
    UNKNOWN = "unknown"  #: other host or pid namespace, or nothing could be read


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerRecord:
    """Identity of an owning process, enough to recognise it after a restart or when its pid is reused."""

    token: str  #: random, unique for each owner
    host: str  #: name of the machine, shown to people
    machine: str  #: stable identity of the machine, "" when unknown
    boot_id: str  #: kernel boot, "" when unknown (no /proc)
    pid_namespace: str  #: "" when unknown
    pid: int
    start_ticks: int  #: field 22 of /proc/<pid>/stat, 0 when unknown
    role: str = "cli"  #: cli | worker | web | library

    def to_text(self) -> str:
        """Return the record as one line of JSON, as stored in the lease."""
        return _text_of(self)

    @classmethod
    def from_text(cls, text: str) -> OwnerRecord | None:
        """Return the record in *text*, or None if *text* is empty or not an owner record."""
        return _record_in(text)

    def describe(self) -> str:
        """Return the owner as text, for messages."""
        return f"{self.role} {self.pid}@{self.host}"


_KINDS = tuple((name, int if name in _NUMBERS else str) for name in OwnerRecord.__slots__)


@lru_cache(maxsize=_KEPT)
def _record_in(text: str) -> OwnerRecord | None:
    """Return the record in *text*; cached because recovery reads the same texts often."""
    try:
        record = OwnerRecord(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    # A pid of the wrong type (a string) would be looked up in /proc, not found, and taken for dead.
    return record if all(type(getattr(record, name)) is kind for name, kind in _KINDS) else None


@lru_cache(maxsize=_KEPT)
def _text_of(record: OwnerRecord) -> str:
    """Return the record as text; cached because every lease or claim statement names its owner by this text."""
    return json.dumps({name: getattr(record, name) for name in record.__slots__}, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What this machine reports now about the pid of a record."""

    machine: str
    boot_id: str
    pid_namespace: str
    exists: bool | None  #: None: could not be determined
    start_ticks: int = 0
    is_zombie: bool = False


def judge(record: OwnerRecord | None, seen: Observation) -> Verdict:
    """Return whether the owner in *record* is alive, given what was *seen* on this machine."""
    if record is None or not record.machine or record.machine != seen.machine:
        return Verdict.UNKNOWN
    if not record.boot_id or not seen.boot_id:
        return Verdict.UNKNOWN
    if record.boot_id != seen.boot_id:
        return Verdict.DEAD
    if not record.pid_namespace or record.pid_namespace != seen.pid_namespace or seen.exists is None:
        return Verdict.UNKNOWN
    if not seen.exists or seen.is_zombie:
        return Verdict.DEAD
    if not record.start_ticks or not seen.start_ticks:
        return Verdict.UNKNOWN

    return Verdict.ALIVE if record.start_ticks == seen.start_ticks else Verdict.DEAD


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRecord:
    """A process we started, recorded before it executes anything; enough to recognise and end it after a crash."""

    token: str  #: in the environment of the process and all its descendants, as ADW_PROCESS_TOKEN
    identity: OwnerRecord  #: pid, start ticks, boot, namespace, machine
    argv: tuple[str, ...]  #: the command it runs, without secrets
    started_at: str

    def to_json(self) -> JsonObject:
        """Return the record as stored in the document."""
        return {
            "token": self.token,
            "identity": self.identity.to_text(),
            "argv": list(self.argv),
            "started_at": self.started_at,
        }
