"""
The seams with several implementations, and the values that cross them.

`adws/app.py` chooses the implementation; all of them pass the same contract suite (`tests/contracts`).
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
        """Return the moment, aware and in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    def boottime(self) -> float:
        """Return seconds since this machine started, suspended time included: the clock of local leases."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def random(self) -> float:
        """Return a number from 0.0 up to, not including, 1.0."""

    def token(self) -> str:
        """Return 32 hex digits that nobody can guess."""


# --- documents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadNotice:
    """Something a reader should be told about what was loaded."""

    kind: str  #: migrated | recovered | foreign | corrupt
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedState:
    """A document and what was noticed while it was read."""

    document: WorkflowDocument
    notices: tuple[LoadNotice, ...] = ()

    @property
    def data(self) -> JsonObject:
        """The document as plain JSON: a copy, for views that show all of it."""
        return self.document.to_plain()


class StateStore(Protocol):
    """
    The home of documents.

    `document.revision` is the revision the caller read. A write is refused with StateConflict when the stored one is
    another, with Fenced when a higher fence was seen. No argument is ever changed; the returned document is the
    stored one.
    """

    def create(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* as revision 1; raise StateExists when its id is taken."""

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

        *may_collect*: with documents in files, their copy in the database may wait for the next save or for `flush`.
        """

    def flush(self, adw_id: str = "") -> None:
        """Bring the copy of one document, or of all, up to what was saved; raise what prevents it."""

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """Make every write under *fence* fail from now on, also one that is half done."""

    def sweep(self, adw_id: str) -> None:
        """Remove files that killed or fenced-out writers left; only for the holder of the workflow's file lock."""

    def exists(self, adw_id: str) -> bool:
        """Say whether there is a document, good or bad."""

    def ids(self) -> Iterator[str]:
        """Yield the id of every document, in no order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowResult:
    """What a workflow has come to: where it is, what it cost, and what it made."""

    phase: str | None  #: the phase it is in, waits in or failed in; None when every phase is over
    branch_name: str | None
    pr_number: int | None
    pull_request_url: str  #: "": there is none that a browser may be sent to
    cost_usd: float
    work_seconds: float  #: of all attempts at all phases


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
    owner: str = ""  #: the owner's record as text, "" when nobody works on it
    result: WorkflowResult | None = None  #: None: it was not asked for, or the document cannot be read


@dataclass(frozen=True, kw_only=True, slots=True)
class PageQuery:
    """Which workflows to list: newest first, after *cursor*."""

    limit: int = 50
    cursor: str | None = None  #: `next_cursor` of the page before
    state: str | None = None
    issue_number: int | None = None
    repository: str | None = None
    workflow: str | None = None
    search: str = ""  #: words that all have to be found, see `db.listing`
    with_results: bool = False  #: with phase, cost, branch and pull request, which the document of each row is read for


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some lines of a list, and where the next ones start."""

    rows: tuple[WorkflowSummary, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedWrite:
    """A document write that the database copy has to follow."""

    adw_id: str
    revision: int
    fence: int
    body: bytes  #: the document as JSON text
    summary: WorkflowSummary
    events: tuple[Event, ...] = ()


# --- ownership -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Proof of ownership: valid while the row has this owner and this fence."""

    adw_id: str
    owner: OwnerRecord
    fence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRow:
    """What the database says about the ownership of a workflow."""

    adw_id: str
    fence: int
    owner: OwnerRecord | None  #: None: nobody
    seconds_left: float  #: negative when over
    taken_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTaken:
    """The lease is ours."""

    lease: Lease
    previous: OwnerRecord | None = None  #: set when a former owner had not released it
    previous_fence: int = 0
    run: Run | None = None  #: as it was begun with the lease


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseBusy:
    """Somebody else has a live lease."""

    row: LeaseRow


@dataclass(frozen=True, kw_only=True, slots=True)
class IssueLock:
    """An issue and the workflow it belongs to."""

    repository: str
    issue_number: int
    adw_id: str
    acquired_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Something an owner is asked to do."""

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


# --- dispatch --------------------------------------------------------------------------------------------------
#
# A dispatcher carries the id of a run to a worker and nothing else: the row in `runs` is the truth, and claiming it is
# the one compare-and-set.


class Listener(Protocol):
    """
    The listener of one worker, open inside its block.

    It says that there may be work, and which run was announced. That is a hint: the claim decides.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, seconds: float) -> bool:
        """Wait until there may be something to claim, at most that long, and say whether there may be."""

    def heard(self) -> int | None:
        """Return the run that was announced last and is not taken up yet; None: it is not known which."""

    def done(self, run_id: int) -> None:
        """Report that the work on an announced run is over, or that it could not be claimed."""

    def sweep(self) -> int:
        """Give up what was announced to dead workers and never ended, and return how much that was."""


class Dispatcher(Protocol):
    """Brings runs to workers. Announcing one is part of the transaction that stores it (`queue.store`)."""

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the listener of a worker that has *places* for runs."""


# --- who owns a workflow, and whether that owner is still alive ----------------------------------------------------
#
# The record says what was true when the lease was taken, the observation what is true now. A process is only ever
# called dead on proof; everything unreadable is `unknown`, and then the lease's end decides.


#: Fields of a record that are numbers; all others are texts.
_NUMBERS = frozenset({"pid", "start_ticks"})
#: Records that are kept in mind: each lease and each claim has one of its own.
_KEPT = 4096


class Verdict(Enum):
    """What is known about an owner."""

    ALIVE = "alive"  #: the very process that took the lease runs
    DEAD = "dead"  #: proven: other boot, pid gone, pid reused, or a zombie
    UNKNOWN = "unknown"  #: other host or pid namespace, or nothing readable


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerRecord:
    """Identity of an owning process, enough to recognise it after a restart or a reused pid."""

    token: str  #: random, unique for each owner
    host: str  #: name of the machine, for people
    machine: str  #: stable identity of the machine, "" when unknown
    boot_id: str  #: kernel boot, "" when unknown (no /proc)
    pid_namespace: str  #: "" when unknown
    pid: int
    start_ticks: int  #: field 22 of /proc/<pid>/stat, 0 when unknown
    role: str = "cli"  #: cli | worker | web | library

    def to_text(self) -> str:
        """Return the record as one line of JSON, as it stands in the lease."""
        return _text_of(self)

    @classmethod
    def from_text(cls, text: str) -> OwnerRecord | None:
        """Return the record written in *text*, or None when it is empty or not one of ours."""
        return _record_in(text)

    def describe(self) -> str:
        """Return the owner as text, for messages."""
        return f"{self.role} {self.pid}@{self.host}"


_KINDS = tuple((name, int if name in _NUMBERS else str) for name in OwnerRecord.__slots__)


@lru_cache(maxsize=_KEPT)
def _record_in(text: str) -> OwnerRecord | None:
    """Return the record in *text*; recovery reads the same ones again and again."""
    try:
        record = OwnerRecord(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    # A wrong type (a pid that is a text) would be looked for in /proc, not found, and taken for dead.
    return record if all(type(getattr(record, name)) is kind for name, kind in _KINDS) else None


@lru_cache(maxsize=_KEPT)
def _text_of(record: OwnerRecord) -> str:
    """Return the record as text; every statement about a lease or a claim names its owner by it."""
    return json.dumps({name: getattr(record, name) for name in record.__slots__}, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What this machine says now about the pid of a record."""

    machine: str
    boot_id: str
    pid_namespace: str
    exists: bool | None  #: None: could not be told
    start_ticks: int = 0
    is_zombie: bool = False


def judge(record: OwnerRecord | None, seen: Observation) -> Verdict:
    """Return whether the owner in *record* lives, given what is *seen* on this machine."""
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

    token: str  #: in its environment as ADW_PROCESS_TOKEN, and in that of all its descendants
    identity: OwnerRecord  #: pid, start ticks, boot, namespace, machine
    argv: tuple[str, ...]  #: what it runs, without secrets
    started_at: str

    def to_json(self) -> JsonObject:
        """Return the record as it stands in the document."""
        return {
            "token": self.token,
            "identity": self.identity.to_text(),
            "argv": list(self.argv),
            "started_at": self.started_at,
        }
