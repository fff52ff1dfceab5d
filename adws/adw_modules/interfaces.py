"""
What the rooms ask of each other: one protocol for each outside thing, and the values that cross.

Conductors speak these and never a concrete adapter; `adws/app.py` alone names those, `adws/testing.py` has a twin in
memory for each, and both pass the same contract suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord, Verdict

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces_durability import CheckpointStore
    from adws.adw_modules.interfaces_resources import Quotas
    from adws.adw_modules.runs import NewRun, Run, RunEnd


class Clock(Protocol):
    """The door for time and randomness."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedState:
    """A document and what was noticed while it was read."""

    document: WorkflowDocument
    notices: tuple[LoadNotice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PeekedState:
    """The same for viewers: plain JSON of the current version."""

    data: JsonObject
    notices: tuple[LoadNotice, ...] = ()


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

    def peek(self, adw_id: str) -> PeekedState:
        """Return the same as plain JSON of the current version, without parsing it into a model: for viewers."""

    def save(self, document: WorkflowDocument, *, fence: int, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* with *events* as the next revision, in one durable step."""

    def fence_out(self, adw_id: str, *, fence: int) -> None:
        """Make every write under *fence* fail from now on, also one that is half done."""

    def exists(self, adw_id: str) -> bool:
        """Say whether there is a document, good or bad."""

    def ids(self) -> Iterator[str]:
        """Yield the id of every document, in no order."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PageQuery:
    """Which workflows to list: newest first, after *cursor*."""

    limit: int = 50
    cursor: str | None = None  #: `next_cursor` of the page before
    state: str | None = None
    issue_number: int | None = None
    repository: str | None = None
    workflow: str | None = None
    search: str = ""  #: words that all have to be found, see `search_rules`


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some lines of a list, and where the next ones start."""

    rows: tuple[WorkflowSummary, ...]
    next_cursor: str | None = None


class Catalogue(Protocol):
    """Finding workflows without reading their documents."""

    def page(self, query: PageQuery) -> Page:
        """Return one page; its cost does not grow with the number of workflows."""

    def find_by_issue(self, issue_number: int, repository: str | None = None) -> tuple[WorkflowSummary, ...]:
        """Return the workflows of an issue, newest first."""


class EventLog(Protocol):
    """Reading what happened."""

    def of_workflow(self, adw_id: str, *, after: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events of a workflow in the order they happened, those after event *after*."""

    def newest(self, adw_id: str, *, before: str | None = None, limit: int = 50) -> tuple[Event, ...]:
        """Return the events of a workflow, the newest first, those before event *before*."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedWrite:
    """A document write that the database copy has to follow."""

    adw_id: str
    revision: int
    fence: int
    body: bytes  #: the document as JSON text
    summary: WorkflowSummary
    events: tuple[Event, ...] = ()


class Projection(Protocol):
    """The database copy of documents that live in files, brought up off the step path."""

    def submit(self, write: ProjectedWrite) -> None:
        """Hand a write over; returns at once."""

    def flush(self) -> None:
        """Return when everything handed over so far is committed."""

    def confirmed_revision(self, adw_id: str) -> int:
        """Return the last revision known to be in the database, 0 when unknown."""

    def copy_of(self, adw_id: str) -> bytes | None:
        """Return the copied document, for recovery of a lost file."""


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


class LeaseBook(Protocol):
    """Leases of workflows: owner, fence and end are columns of the workflow's own row."""

    def take(
        self,
        adw_id: str,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        dead_fence: int | None = None,
        run: Run | None = None,
    ) -> LeaseTaken | LeaseBusy:
        """
        Take a free or ended lease, or the one with *dead_fence* whose owner is proven dead.

        With *run*, which a worker has claimed, the work on that is begun in the same transaction. Raises StateNotFound,
        or RunLost, and then nothing is taken.
        """

    def renew(self, lease: Lease, *, ttl_seconds: float) -> None:
        """Push the end out; raise LeaseLost when it is no longer ours or has ended."""

    def release(self, lease: Lease) -> bool:
        """Give the lease back; False when it was not ours any more."""

    def end_run(self, lease: Lease, run: Run, end: RunEnd, *, free_issue: int | None = None) -> Run:
        """
        End *run* and give the lease back, in one transaction, with *free_issue* the issue of the workflow too.

        Raises RunLost, and then nothing of it is done.
        """

    def read(self, adw_id: str) -> LeaseRow | None:
        """Return the row as it stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IssueLock:
    """An issue and the workflow it belongs to."""

    repository: str
    issue_number: int
    adw_id: str
    acquired_at: str


class IssueLocks(Protocol):
    """At most one live workflow for each (repository, issue)."""

    def key(self, repository: str) -> str:
        """Return what two names of one repository have in common: every spelling, and "" for that of the home."""

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Take the lock; True when it is (or was already) ours, False when another workflow has it."""

    def verify(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Say whether *adw_id* has the lock."""

    def release(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Give it back; False, and nothing changed, when *adw_id* does not have it."""

    def holder(self, issue_number: int, repository: str = "") -> IssueLock | None:
        """Return who has it."""

    def all(self) -> tuple[IssueLock, ...]:
        """Return every lock, oldest first."""

    def first(self, limit: int) -> tuple[IssueLock, ...]:
        """Return so many locks, by repository and issue; its cost does not grow with the number of locks."""


class Registry(Protocol):
    """Creating a workflow: lock, row, lease and first run in one transaction."""

    def register(
        self,
        document: WorkflowDocument,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        events: Sequence[Event] = (),
        run: NewRun | None = None,
    ) -> Lease:
        """
        Lock the issue, make the row with fence 1 and enqueue *run*.

        Raises IssueLocked or StateExists, and then nothing is left.
        """

    def unregister(self, lease: Lease) -> None:
        """Take that back for a workflow whose document could not be written."""


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


class Requests(Protocol):
    """Messages to the live owner of a workflow."""

    def ask(self, adw_id: str, kind: str, *, payload: JsonObject | None = None, asked_by: str = "") -> Request:
        """Leave a request; durable when this returns."""

    def open_for(self, adw_id: str) -> tuple[Request, ...]:
        """Return what is not handled yet, oldest first."""

    def get(self, request_id: int) -> Request | None:
        """Return a request, handled or not."""

    def handled(self, request_id: int, outcome: str) -> bool:
        """Mark it handled; False when it was already."""


class LocalLock(Protocol):
    """The file lock a worker holds while it works; the kernel frees it when the worker dies."""

    def try_hold(self, adw_id: str) -> bool:
        """Take it without waiting."""

    def let_go(self, adw_id: str) -> None:
        """Free it; the file stays."""

    def is_held(self, adw_id: str) -> bool:
        """Say whether anybody holds it."""


class Processes(Protocol):
    """Knowing processes by more than their pid."""

    def me(self, role: str) -> OwnerRecord:
        """Return a fresh owner record of this process."""

    def verdict(self, record: OwnerRecord | None) -> Verdict:
        """Return whether that owner lives."""


class Owned(Protocol):
    """A workflow we own: the only way to write its document."""

    lease: Lease
    document: WorkflowDocument
    run: Run | None  #: the run that was begun with it

    def save(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store the next revision and keep it as `document`."""

    def renew(self) -> None:
        """Push the lease's end out; raise LeaseLost."""

    def end_run(self, run: Run, end: RunEnd) -> Run:
        """End *run* and give the workflow back with that: nothing can be written any more. Raises RunLost."""


class Ownership(Protocol):
    """Taking and giving back workflows."""

    def own(self, adw_id: str, *, run: Run | None = None) -> AbstractContextManager[Owned]:
        """
        Own a workflow inside the block, and begin *run*, which we have claimed.

        Raises WorkflowBusy when a live owner has it, RunLost when somebody else has the run.
        """

    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> AbstractContextManager[Owned]:
        """Create a workflow, with its first run, and own it inside the block; raise IssueLocked or StateExists."""

    def leave(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """Create a workflow, with its first run, for a worker to come; raise IssueLocked or StateExists."""


class Parts(Protocol):
    """What a library call needs when the caller names no parts (`ambient`)."""

    @property
    def store(self) -> StateStore: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def locks(self) -> IssueLocks: ...
    @property
    def ownership(self) -> Ownership: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def quotas(self) -> Quotas: ...
    @property
    def forge(self) -> Forge: ...
    @property
    def checkpoints(self) -> CheckpointStore: ...
