"""
Taking and giving back workflows: lease, file lock and document put together in the one order that is safe.

While a lease is live only its owner writes. A takeover is complete when the document with the new fence is written, and
nothing is decided before that. Only a clean hand-over leaves a free lease behind: whoever comes after a takeover that
was cut short takes over once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adws.adw_modules.coordination.issue_claims import IssueClaims
from adws.adw_modules.errors import (
    AdwError,
    Fenced,
    LeaseLost,
    StateConflict,
    StateExists,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import (
    Clock,
    IssueLock,
    IssueLocks,
    Lease,
    LeaseBook,
    LeaseBusy,
    LeaseRow,
    LeaseTaken,
    LocalLock,
    Processes,
    Registry,
    StateStore,
)
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import NewRun, Run, RunEnd
from adws.adw_modules.state_table import is_terminal

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

logger = logging.getLogger("adw.ownership")


@runtime_checkable
class SweepingStore(Protocol):
    """A store whose writers leave files behind when they are killed or fenced out."""

    def sweep(self, adw_id: str) -> None:
        """Remove what former writers left; only for the holder of the workflow's file lock."""


@runtime_checkable
class WritingRegistry(Protocol):
    """A registry beside the documents, which stores the first revision with everything else."""

    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """Create a workflow that nobody owns yet; raise IssueLocked or StateExists, and then nothing is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """A former owner did not give the workflow back; told to `on_takeover` before anything is written."""

    document: WorkflowDocument
    former: OwnerRecord | None  #: None: its record cannot be read
    former_fence: int
    verdict: Verdict

    @property
    def why(self) -> str:
        """Return in words why the workflow could be taken over."""
        return "its process is dead" if self.verdict is Verdict.DEAD else "its lease had ended"

    def event(self) -> Event:
        """Return what the document's history says of this."""
        return Event(
            event_type="lease_taken_over",
            data={
                "former_owner": self.former.describe() if self.former else "unknown",
                "former": _facts(self.former) if self.former else None,
                "former_fence": self.former_fence,
                "verdict": self.verdict.value,
                "why": self.why,
            },
        )


class OwnedWorkflow:
    """A workflow we own: the only way to write its document."""

    lease: Lease
    document: WorkflowDocument  #: the last stored revision; there from the moment the block is entered

    def __init__(self, parts: WorkflowOwnership, lease: Lease, *, renewed_at: float, run: Run | None = None) -> None:
        """Hold what was taken; *renewed_at* is Clock.boottime from before the lease was asked for."""
        self.lease = lease
        self.run = run
        self._parts = parts
        self._renewed_at = renewed_at
        self._has_local_lock = False
        self._has_lease = True
        self._why_over = ""  #: why nothing may be written any more, "" while it may

    def save(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """
        Store the next revision and keep it as `document`.

        With the write that ends the workflow its issue becomes free: at once, or with the end of the run that we have.
        Raises LeaseLost once the block was left or a write was refused, Fenced when the workflow was taken over.
        """
        self._check_writable(document)
        self.hold_local_lock()
        try:
            stored = self._parts.store.save(document, fence=self.lease.fence, events=events)
        except (Fenced, StateConflict) as exc:
            self._why_over = str(exc)
            raise
        self.document = stored
        if self.run is None:
            self._free_issue_if_over()

        return stored

    def renew(self) -> None:
        """Push the lease's end out; raise LeaseLost when it is not ours any more."""
        if self._why_over:
            raise LeaseLost(self._why_over)
        asked_at = self._parts.clock.boottime()
        try:
            self._parts.leases.renew(self.lease, ttl_seconds=self._parts.ttl_seconds)
        except LeaseLost as exc:
            self._why_over = str(exc)
            raise
        self._renewed_at = asked_at

    def seconds_left(self) -> float:
        """Return how long the lease lasts by our own clock, which is never longer than by the book's."""
        return self._renewed_at + self._parts.ttl_seconds - self._parts.clock.boottime()

    def hold_local_lock(self) -> bool:
        """
        Take the file lock unless we have it, and say whether we have it now.

        After the takeover of a stopped process we work without, for that one still holds it: so each write tries again.
        """
        if not self._has_local_lock:
            self._has_local_lock = self._parts.local_lock.try_hold(self.lease.adw_id)

        return self._has_local_lock

    def end_run(self, run: Run, end: RunEnd) -> Run:
        """
        Refuse every further write, free the file lock, then end *run* and free the lease in one transaction.

        The issue of a workflow that is over becomes free with that. Raises RunLost or DatabaseError; then lease and
        issue are given back when the block is left.
        """
        self._stop_writing()
        is_over = is_terminal(self.document.current_state)
        issue = self.document.issue_number if is_over and self._parts.has_issues else None
        ended = self._parts.leases.end_run(self.lease, run, end, free_issue=issue)
        self._has_lease, self.run = False, None

        return ended

    def give_back(self, *, keep_lease: bool = False) -> None:
        """Refuse every further write, free the file lock, then the lease. Trouble is logged: both end by themselves."""
        try:
            self._stop_writing()
            if self.run is not None:
                self._free_issue_if_over()
        finally:  # also when Ctrl-C comes in between
            if self._has_lease and not keep_lease:
                with _logged("lease_not_released", self.lease.adw_id):
                    self._parts.leases.release(self.lease)

    def _free_issue_if_over(self) -> None:
        document = getattr(self, "document", None)  # there is none while the block is being entered
        if document is not None and is_terminal(document.current_state):
            self._parts.free_issue(document)

    def _stop_writing(self) -> None:
        self._why_over = self._why_over or f"workflow {self.lease.adw_id} was given back: own it again to write"
        if self._has_local_lock:
            self._has_local_lock = False
            with _logged("local_lock_not_freed", self.lease.adw_id):
                self._parts.local_lock.let_go(self.lease.adw_id)

    def _check_writable(self, document: WorkflowDocument) -> None:
        if self._why_over:
            raise LeaseLost(self._why_over)
        if document.adw_id != self.lease.adw_id:
            raise UsageError(
                f"this block owns workflow {self.lease.adw_id}: it cannot write the document of {document.adw_id}"
            )


class WorkflowOwnership:
    """Owns workflows for this process; implements `interfaces.Ownership`."""

    def __init__(
        self,
        *,
        store: StateStore,
        leases: LeaseBook,
        registry: Registry,
        local_lock: LocalLock,
        processes: Processes,
        clock: Clock,
        locks: IssueLocks | None = None,
        ttl_seconds: float = 30.0,
        role: str = "cli",
        on_takeover: Callable[[Takeover], None] | None = None,
    ) -> None:
        """Put the parts together; without *locks* a workflow that ends does not free its issue."""
        self.store = store
        self.leases = leases
        self.local_lock = local_lock
        self.clock = clock
        self.ttl_seconds = ttl_seconds
        self._registry = registry
        self._processes = processes
        self._locks = locks
        self._role = role
        self._on_takeover = on_takeover

    # --- owning ------------------------------------------------------------------------------------------------

    @contextmanager
    def own(self, adw_id: str, *, run: Run | None = None) -> Iterator[OwnedWorkflow]:
        """
        Own a workflow inside the block, and begin *run*, which we have claimed.

        Raises WorkflowBusy when a live owner has it, StateNotFound without one, RunLost when the run is not ours.
        """
        asked_at = self.clock.boottime()
        taken = self._take(check_adw_id(adw_id), run)
        owned = OwnedWorkflow(self, taken.lease, renewed_at=asked_at, run=taken.run)
        is_complete = not _is_takeover(taken)
        try:
            self._enter(owned, taken)
            is_complete = True
            yield owned
        finally:
            owned.give_back(keep_lease=not is_complete)

    def _enter(self, owned: OwnedWorkflow, taken: LeaseTaken) -> None:
        self._settle_former_writers(taken, has_lock=owned.hold_local_lock())
        owned.document = self.store.load(owned.lease.adw_id).document
        if _is_takeover(taken):
            self._complete(owned, taken)

    def _take(self, adw_id: str, run: Run | None = None) -> LeaseTaken:
        # A look first: whoever finds it busy asks again and again, and must not stand in the queue of the writers.
        row = self.leases.read(adw_id)
        dead_fence = None
        if row is not None and row.seconds_left > 0.0:
            if self._processes.verdict(row.owner) is not Verdict.DEAD:
                raise WorkflowBusy(adw_id, self.describe_owner(row))
            dead_fence = row.fence
        me = self._processes.me(self._role)
        answer = self.leases.take(adw_id, me, ttl_seconds=self.ttl_seconds, dead_fence=dead_fence, run=run)
        if isinstance(answer, LeaseBusy):
            raise WorkflowBusy(adw_id, self.describe_owner(answer.row))

        return answer

    def _settle_former_writers(self, taken: LeaseTaken, *, has_lock: bool) -> None:
        # With the file lock in hand nobody on this machine is inside a write any more: what former ones left may go.
        if has_lock and isinstance(self.store, SweepingStore):
            self.store.sweep(taken.lease.adw_id)
        # A former owner that is not proven dead may be stopped anywhere, also right before its rename. It has to be
        # shut out before the document is read, else it could still write after we have decided on what we read. And
        # who still holds the file lock of a free lease (the database was made again) is such an owner too.
        may_live = _is_takeover(taken) and self._processes.verdict(taken.previous) is not Verdict.DEAD
        if may_live or not has_lock:
            self.store.fence_out(taken.lease.adw_id, fence=taken.lease.fence - 1)

    def _complete(self, owned: OwnedWorkflow, taken: LeaseTaken) -> None:
        takeover = Takeover(
            document=owned.document,
            former=taken.previous,
            former_fence=taken.previous_fence,
            verdict=self._processes.verdict(taken.previous),
        )
        if self._on_takeover is not None:
            self._on_takeover(takeover)
        owned.save(owned.document, events=(takeover.event(),))
        logger.warning(
            "Workflow taken over",
            extra={"action": "lease_taken_over", "workflow": owned.lease.adw_id, "why": takeover.why},
        )

    # --- creating ----------------------------------------------------------------------------------------------

    @contextmanager
    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> Iterator[OwnedWorkflow]:
        """
        Create a workflow, with its first run, and own it inside the block.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        check_adw_id(document.adw_id)
        asked_at = self.clock.boottime()
        me = self._processes.me(self._role)
        lease = self._registry.register(document, me, ttl_seconds=self.ttl_seconds, run=run)
        owned = OwnedWorkflow(self, lease, renewed_at=asked_at)
        is_written = False
        try:
            owned.hold_local_lock()
            owned.document = self._write_first(document, lease, events)
            is_written = True
            yield owned
        except BaseException as exc:
            if not is_written:
                self._undo_register(lease, exc)
            raise
        finally:
            owned.give_back()

    def leave(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """
        Create a workflow, with its first run, for a worker to come.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        if isinstance(self._registry, WritingRegistry):
            return self._registry.create(document, events=(_created(document), *events), run=run)
        with self.create(document, events=events, run=run) as owned:
            return owned.document

    def _write_first(self, document: WorkflowDocument, lease: Lease, events: Sequence[Event]) -> WorkflowDocument:
        fenced = document.model_copy(update={"fence": lease.fence})

        return self.store.create(fenced, events=(_created(document), *events))

    def _undo_register(self, lease: Lease, cause: BaseException) -> None:
        # A document that is there although its write failed (not synced, interrupted) keeps its row and its issue.
        with _logged("workflow_not_unregistered", lease.adw_id):
            if isinstance(cause, StateExists) or not self.store.exists(lease.adw_id):
                self._registry.unregister(lease)

    # --- issues ------------------------------------------------------------------------------------------------

    @property
    def has_issues(self) -> bool:
        """Whether a workflow that ends frees its issue."""
        return self._locks is not None

    def free_issue(self, document: WorkflowDocument) -> None:
        """Free the issue of a workflow that ended; what fails here is made good by `release_finished_locks`."""
        if self._locks is None or document.issue_number is None:
            return
        with _logged("issue_lock_not_released", document.adw_id):
            self._locks.release(document.issue_number, document.adw_id, document.repository)

    def prove_continuing(self, adw_id: str, issue_number: int | str, repository: str = "") -> None:
        """Return when *adw_id* may go on with that issue; raise StateNotFound, NotTheLockOwner or IssueLocked."""
        self._claims().prove_continuing(adw_id, issue_number, repository)

    def release_finished_locks(self) -> tuple[IssueLock, ...]:
        """Free every issue whose workflow has ended, or was never written, and return those locks."""
        return self._claims().release_finished(self._take)

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of a workflow that has ended, and say whether it still had one."""
        return self._claims().release_if_finished(adw_id)

    def forget_unwritten(self, adw_id: str) -> bool:
        """Take a workflow away whose creator died before its first write; raise WorkflowBusy while he may live."""
        return self._claims().forget_unwritten(adw_id, self._take)

    def _claims(self) -> IssueClaims:
        if self._locks is None:
            raise UsageError("this ownership was built without issue locks: pass locks=")

        return IssueClaims(store=self.store, locks=self._locks, registry=self._registry)

    # --- words -------------------------------------------------------------------------------------------------

    def describe_owner(self, row: LeaseRow) -> str:
        """Return the owner of a live lease in words, with what is known of it."""
        if row.owner is None:
            return "an owner whose record cannot be read"
        verdict = self._processes.verdict(row.owner)

        return f"{row.owner.describe()} ({verdict.value}, its lease ends in {max(0.0, row.seconds_left):.0f} s)"


def _created(document: WorkflowDocument) -> Event:
    return Event(
        event_type="workflow_created",
        status=document.current_state,
        data={"issue_number": document.issue_number, "repository": document.repository},
    )


def _facts(owner: OwnerRecord) -> JsonObject:
    # Without its token: that is what an owner proves itself by.
    return {name: getattr(owner, name) for name in owner.__slots__ if name != "token"}


def _is_takeover(taken: LeaseTaken) -> bool:
    # An owner whose record cannot be read has a fence and no record.
    return taken.previous is not None or taken.previous_fence > 0


@contextmanager
def _logged(action: str, adw_id: str) -> Iterator[None]:
    """Log expected trouble of the block instead of raising it: it must not hide the error we are leaving with."""
    try:
        yield
    except (AdwError, OSError):
        logger.warning("Could not give back", extra={"action": action, "workflow": adw_id}, exc_info=True)
