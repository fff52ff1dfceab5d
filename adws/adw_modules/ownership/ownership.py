"""
Taking and releasing workflows: lease, file lock and document, combined in the one safe order.

While a lease is live, only its owner writes. A takeover is complete once the document with the new fence is written,
and nothing is decided before that. Only a clean release leaves a free lease: if a takeover is interrupted, the next
owner takes over again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    Fenced,
    IssueLocked,
    LeaseLost,
    NotTheLockOwner,
    RunLost,
    StateConflict,
    StateError,
    StateExists,
    StateNotFound,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import (
    Clock,
    IssueLock,
    Lease,
    LeaseBusy,
    LeaseRow,
    LeaseTaken,
    OwnerRecord,
    StateStore,
    Verdict,
)
from adws.adw_modules.ownership.issue_locks import DocumentRegistry, check_issue_number
from adws.adw_modules.queue.model import NewRun, Run, RunEnd
from adws.adw_modules.state_machine import WorkflowState, is_terminal
from adws.adw_modules.store.database import DatabaseStateStore

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Session
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.issue_locks import IssueLocks, WorkflowRegistry
    from adws.adw_modules.ownership.leases import Leases
    from adws.adw_modules.ownership.local_lock import LocalLock
    from adws.adw_modules.process.identity import SystemProcesses


logger = logging.getLogger("adw.ownership")

#: A write renews lease and claim once this part of the lease's time has passed; the renewer waits twice as long.
RENEW_WITH_WRITE = 1 / 6

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """A takeover from an owner that did not release the workflow; passed to `on_takeover` before any write."""

    document: WorkflowDocument
    former: OwnerRecord | None  #: None: its record cannot be read
    former_fence: int
    verdict: Verdict

    @property
    def why(self) -> str:
        """Why the workflow could be taken over, as text."""
        return "its process is dead" if self.verdict is Verdict.DEAD else "its lease had ended"

    def event(self) -> Event:
        """Return the event that records this takeover."""
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
    """A workflow owned by this process: the only way to write its document."""

    document: WorkflowDocument  #: the last stored revision; set once the block is entered

    def __init__(
        self, ownership: WorkflowOwnership, taken: LeaseTaken, *, renewed_at: float, verdict: Verdict = Verdict.UNKNOWN
    ) -> None:
        """
        Hold the lease in *taken*.

        *renewed_at* is Clock.boottime from before the lease was requested, *verdict* says whether the process of the
        former owner, if any, is alive.
        """
        self.lease: Lease = taken.lease
        self.run: Run | None = taken.run  #: begun with the lease, and ends with it
        self.ended: Run | None = None  #: the run as left by the write that ended it
        self.taken = taken
        self.verdict = verdict
        self.renewed_at = renewed_at  #: last renewal of lease and claim, by Clock.boottime
        #: Called once, in the transaction of the next write, if documents are in the database.
        self.with_next_save: Callable[[Session, WorkflowDocument], None] | None = None
        self.may_have_written = False  #: whether a write was started
        self.is_renewed = False  #: whether the lease renewer renews it, and flushes what the store collects
        self._ownership = ownership
        self._has_local_lock = False
        self._has_freed_issue = False  #: whether the issue of an ended workflow is known to be free
        self._has_lease = True
        self._is_told = not self.is_takeover  #: whether a stored document records the takeover
        self._why_over = ""  #: why nothing may be written any more, "" while writes are allowed

    @property
    def is_takeover(self) -> bool:
        """Whether a former owner did not release the workflow, even one whose record cannot be read."""
        return self.taken.previous is not None or self.taken.previous_fence > 0

    @property
    def takeover(self) -> Takeover:
        """The takeover from the former owner; requires a loaded document."""
        return Takeover(
            document=self.document,
            former=self.taken.previous,
            former_fence=self.taken.previous_fence,
            verdict=self.verdict,
        )

    # --- writing -----------------------------------------------------------------------------------------------

    def save(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), end: RunEnd | None = None
    ) -> WorkflowDocument:
        """
        Store the next revision and keep it as `document`; the same transaction renews lease and claim.

        The first write after a takeover records it in its events. The write that ends the workflow frees its issue: at
        once, or with the end of the run we have. With *end*, the run ends and lease, issue and quota are released, in
        the document's transaction, or in one right after it if documents are files. If a request arrived meanwhile or
        the run is not ours any more, that is not done and `ended` stays None.

        Raises LeaseLost after the block or a refused write, and Fenced if the workflow was taken over.
        """
        self._check_writable(document)
        self.hold_local_lock()
        self.may_have_written = True
        if not self._is_told:
            events = (self.takeover.event(), *events)
        store, fence = self._ownership.store, self.lease.fence
        ended: list[Run | None] = [None]  # the last entry counts: a transaction may be repeated
        asked_at = self._ownership.clock.boottime()
        renews = asked_at - self.renewed_at >= self._ownership.ttl_seconds * RENEW_WITH_WRITE
        has_more = renews or end is not None or self.with_next_save is not None
        try:
            if has_more and isinstance(store, DatabaseStateStore):
                self.document = store.save(
                    document,
                    fence=fence,
                    events=events,
                    also=lambda session: ended.append(self._join(session, document, end, asked_at)),
                )
            else:
                self.document = store.save(
                    document, fence=fence, events=events, may_collect=self.is_renewed and end is None
                )
                if end is not None:
                    self._free_local_lock()
                    with suppress(DatabaseError):  # the run then ends with the block
                        self._ownership.leases.database.transact(
                            lambda session: ended.append(self._end_in(session, document, end))
                        )
        except (Fenced, StateConflict) as exc:
            self._why_over = str(exc)
            raise
        self._is_told, self.with_next_save = True, None
        self.ended = ended[-1]
        if self.ended is not None:
            self.run, self._has_lease = None, False
            self.stop_writing()
        elif self.run is None:
            self._free_issue_if_over()

        return self.document

    def _check_writable(self, document: WorkflowDocument) -> None:
        if self._why_over:
            raise LeaseLost(self._why_over)
        if document.adw_id != self.lease.adw_id:
            raise UsageError(
                f"this block owns workflow {self.lease.adw_id}: it cannot write the document of {document.adw_id}"
            )

    def _join(self, session: Session, document: WorkflowDocument, end: RunEnd | None, asked_at: float) -> Run | None:
        """Do the additional work of a write in its transaction; return the run if it ended with that."""
        if self.with_next_save is not None:
            self.with_next_save(session, document)
            return None
        ended = None if end is None else self._end_in(session, document, end)
        if ended is None:
            self._renew_in(session, asked_at)

        return ended

    def _end_in(self, session: Session, document: WorkflowDocument, end: RunEnd) -> Run | None:
        """End our run and release everything, in the transaction that ends the workflow; None if not possible now."""
        has_request = session.one(
            "SELECT 1 FROM requests WHERE adw_id = :adw_id AND handled_at IS NULL LIMIT 1", {"adw_id": document.adw_id}
        )
        if self.run is None or has_request:
            return None
        leases = self._ownership.leases
        try:
            ended = leases.runs.end_in(session, self.run, end)
        except RunLost:
            return None  # the work done is stored all the same
        leases.release_in(session, self.lease, free_issue=self._issue_to_free(document), frees_quota=True)

        return ended

    def _renew_in(self, session: Session, asked_at: float) -> None:
        """Renew lease and claim inside the transaction of a write; the next renewal detects a loss."""
        leases, ttl_seconds = self._ownership.leases, self._ownership.ttl_seconds
        if not leases.renew_in(session, self.lease, ttl_seconds=ttl_seconds):
            return
        if self.run is not None:
            try:
                self.run = leases.runs.renew_in(session, self.run, ttl_seconds=ttl_seconds)
            except RunLost:
                return
        self.renewed_at = asked_at

    def renew(self) -> None:
        """Extend lease and claim; raise LeaseLost or RunLost if one is no longer ours."""
        if self._why_over:
            raise LeaseLost(self._why_over)
        asked_at = self._ownership.clock.boottime()
        try:
            run = self._ownership.leases.renew(self.lease, ttl_seconds=self._ownership.ttl_seconds, run=self.run)
        except LeaseLost as exc:
            self._why_over = str(exc)
            raise
        if self.run is not None:
            self.run = run
        self.renewed_at = asked_at

    def seconds_left(self) -> float:
        """Return the lease's remaining seconds by our own clock, which never exceed those by the database's clock."""
        return self.renewed_at + self._ownership.ttl_seconds - self._ownership.clock.boottime()

    def hold_local_lock(self) -> bool:
        """
        Take the file lock unless we have it; return whether we have it now.

        After a takeover from a stopped process, that process still holds it: we work without it, and writes retry.
        """
        if not self._has_local_lock:
            self._has_local_lock = self._ownership.local_lock.try_hold(self.lease.adw_id)

        return self._has_local_lock

    # --- releasing ---------------------------------------------------------------------------------------------

    def end_run(self, run: Run, end: RunEnd) -> Run:
        """
        Refuse further writes, release the file lock, then end *run* and release the lease in one transaction.

        This also frees the issue of an ended workflow. Raises RunLost or DatabaseError; lease and issue are then
        released when the block is left.
        """
        self.stop_writing()
        issue = self._issue_to_free(self.document)
        ended = self._ownership.leases.end_run(self.lease, run, end, free_issue=issue)
        self._has_lease, self.run = False, None

        return ended

    def leave_with(self, work: Callable[[Session], _Result]) -> _Result:
        """Refuse further writes, release the file lock, then do *work* and release the lease in one transaction."""
        self.stop_writing()

        def leave(session: Session) -> _Result:
            self.release_in(session)
            return work(session)

        result = self._ownership.leases.database.transact(leave)
        self._has_lease = False

        return result

    def release_in(self, session: Session) -> None:
        """Release the lease, and the issue of an ended workflow, inside the transaction *session*."""
        self._ownership.leases.release_in(session, self.lease, free_issue=self._issue_to_free(self.document))

    def hand_over(self) -> bool:
        """Refuse further writes and release the file lock; return True if the caller must release the lease."""
        self.stop_writing()
        has_lease, self._has_lease = self._has_lease and self._is_told, False

        return has_lease

    def give_back(self) -> None:
        """
        Refuse further writes, release the file lock, then the lease.

        If a takeover was not written, its lease is kept, so that the next owner takes over again. Errors are only
        logged: lock and lease end by themselves.
        """
        try:
            self.stop_writing()
            if self.run is not None:
                self._free_issue_if_over()
        finally:  # even if Ctrl-C interrupts
            if self._has_lease and self._is_told:
                self._has_lease = False
                with _logged("lease_not_released", self.lease.adw_id):
                    self._ownership.leases.release(self.lease)

    def stop_writing(self) -> None:
        """Refuse further writes, flush what the store collected, and release the file lock."""
        self._why_over = self._why_over or f"workflow {self.lease.adw_id} was released: own it again to write"
        if self.is_renewed:
            with _logged("projection_behind", self.lease.adw_id):
                self._ownership.store.flush(self.lease.adw_id)
        self._free_local_lock()

    def _free_local_lock(self) -> None:
        if self._has_local_lock:
            self._has_local_lock = False
            with _logged("local_lock_not_freed", self.lease.adw_id):
                self._ownership.local_lock.let_go(self.lease.adw_id)

    def _issue_to_free(self, document: WorkflowDocument) -> int | None:
        is_over = is_terminal(document.current_state)

        return document.issue_number if is_over and self._ownership.has_issues else None

    def _free_issue_if_over(self) -> None:
        document = getattr(self, "document", None)  # not set while the block is being entered
        if document is None or not is_terminal(document.current_state):
            self._has_freed_issue = False
        elif not self._has_freed_issue:
            self._has_freed_issue = self._ownership.free_issue(document)


class WorkflowOwnership:
    """Owns workflows for this process."""

    def __init__(
        self,
        *,
        store: StateStore,
        leases: Leases,
        registry: WorkflowRegistry,
        local_lock: LocalLock,
        processes: SystemProcesses,
        clock: Clock,
        locks: IssueLocks | None = None,
        ttl_seconds: float = 30.0,
        role: str = "cli",
        on_takeover: Callable[[Takeover], None] | None = None,
    ) -> None:
        """Combine the parts; without *locks*, a workflow that ends does not free its issue."""
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
    def own(
        self, adw_id: str, *, run: Run | None = None, needs_issue: bool = True, owned: OwnedWorkflow | None = None
    ) -> Iterator[OwnedWorkflow]:
        """
        Own a workflow inside the block, and begin our claimed *run*; *owned* is set if a claim took the lease already.

        A document of an older version, unknown to the database, is registered with its issue. The first write migrates
        it; without a write it stays unchanged. Raises WorkflowBusy if a live owner has the workflow, StateNotFound if
        it does not exist, RunLost if the run is not ours, and, for such a document, IssueLocked if another workflow has
        its issue, unless *needs_issue* is False.
        """
        is_new, is_unused = False, False
        if owned is None:
            try:
                owned = self._take(check_adw_id(adw_id), run)
            except StateNotFound:
                is_new = self._register_old(adw_id, needs_issue=needs_issue)
                owned = self._take(adw_id, run)
        with self.entered(owned):
            if owned.is_takeover:
                if self._on_takeover is not None:
                    self._on_takeover(owned.takeover)
                owned.save(owned.document)
                logger.warning(
                    "Workflow taken over",
                    extra={"action": "lease_taken_over", "workflow": adw_id, "why": owned.takeover.why},
                )
            # Another process may have owned it in between: a row it wrote is kept.
            is_unused = is_new and run is None and owned.document.revision == 0
            try:
                yield owned
            finally:
                if is_unused and not owned.may_have_written:
                    with _logged("workflow_not_unregistered", adw_id):
                        self._registry.unregister(owned.lease)

    @contextmanager
    def entered(self, owned: OwnedWorkflow) -> Iterator[OwnedWorkflow]:
        """Load the document of a taken lease for the block, while nobody else can write it; then release the lease."""
        adw_id = owned.lease.adw_id
        try:
            # While we hold the file lock, nobody on this machine is writing, so files of former writers can be removed.
            has_lock = owned.hold_local_lock()
            if has_lock:
                self.store.sweep(adw_id)
            # A former owner not proven dead may be stopped anywhere, even right before its rename. It must be shut out
            # before the document is read, or it could write after we have decided on what we read. A process that still
            # holds the file lock of a free lease (the database was rebuilt) is such an owner too.
            may_live = owned.is_takeover and owned.verdict is not Verdict.DEAD
            if may_live or not has_lock:
                self.store.revoke_writers(adw_id, fence=owned.lease.fence - 1)
            owned.document = self.store.load(adw_id).document
            yield owned
        finally:
            owned.give_back()

    def take_all(self, wanted: Mapping[str, tuple[Verdict, int | None]], role: str) -> dict[str, OwnedWorkflow]:
        """
        Take many workflows in one transaction, for recovery; return those that were free or could be taken over.

        *wanted* maps each to the verdict on its owner, and the fence of the owner from which it may be taken although
        its lease is live. `entered` loads the document of each; the next write records a takeover.
        """
        asked_at = self.clock.boottime()
        fences = {adw_id: fence for adw_id, (_, fence) in wanted.items()}
        answers = self.leases.take_all(fences, self._processes.me(role), ttl_seconds=self.ttl_seconds)
        owned: dict[str, OwnedWorkflow] = {}
        for adw_id, answer in answers.items():
            if isinstance(answer, LeaseTaken):
                verdict, fence = wanted[adw_id]
                # A verdict on another owner says nothing.
                known = verdict if fence == answer.previous_fence else Verdict.UNKNOWN
                owned[adw_id] = OwnedWorkflow(self, answer, renewed_at=asked_at, verdict=known)

        return owned

    def me(self) -> OwnerRecord:
        """Return an owner record for a lease of this process."""
        return self._processes.me(self._role)

    def _take(self, adw_id: str, run: Run | None = None) -> OwnedWorkflow:
        # Read before writing: callers that find the workflow busy retry often, and must not queue with the writers.
        asked_at = self.clock.boottime()
        row = self.leases.read(adw_id)
        dead_fence = None
        if row is not None and row.seconds_left > 0.0:
            if self._processes.verdict(row.owner) is not Verdict.DEAD:
                raise WorkflowBusy(adw_id, self.describe_owner(row))
            dead_fence = row.fence
        answer = self.leases.take(adw_id, self.me(), ttl_seconds=self.ttl_seconds, dead_fence=dead_fence, run=run)
        if isinstance(answer, LeaseBusy):
            raise WorkflowBusy(adw_id, self.describe_owner(answer.row))
        is_takeover = answer.previous is not None or answer.previous_fence > 0
        verdict = self._processes.verdict(answer.previous) if is_takeover else Verdict.UNKNOWN

        return OwnedWorkflow(self, answer, renewed_at=asked_at, verdict=verdict)

    def _register_old(self, adw_id: str, *, needs_issue: bool) -> bool:
        """Register a document of an older version; return False if another process was faster. Raises StateNotFound."""
        loaded = self.store.load(adw_id)
        if all(notice.kind != "migrated" for notice in loaded.notices):
            raise StateNotFound(f"{adw_id} in the database", "its document is there: adw db rebuild registers it")
        without_issue = loaded.document.model_copy(update={"issue_number": None})
        is_over = is_terminal(loaded.document.current_state)  # then it has no claim to its issue
        me = self.me()
        try:
            lease = self._registry.register(
                without_issue if is_over else loaded.document, me, ttl_seconds=self.ttl_seconds
            )
        except IssueLocked:
            if needs_issue:
                raise
            lease = self._registry.register(without_issue, me, ttl_seconds=self.ttl_seconds)
        except StateExists:
            return False
        self.leases.release(lease)

        return True

    def migrate(self, adw_id: str) -> None:
        """Store a document of an older version in the current one; do nothing to any other."""
        if any(notice.kind == "migrated" for notice in self.store.load(adw_id).notices):
            with self.own(adw_id, needs_issue=False) as owned:
                owned.save(owned.document)

    # --- creating ----------------------------------------------------------------------------------------------

    @contextmanager
    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> Iterator[OwnedWorkflow]:
        """
        Create a workflow with its first run, and own it inside the block.

        Raises IssueLocked or StateExists; nothing is left behind then.
        """
        check_adw_id(document.adw_id)
        asked_at = self.clock.boottime()
        lease = self._registry.register(document, self.me(), ttl_seconds=self.ttl_seconds, run=run)
        owned = OwnedWorkflow(self, LeaseTaken(lease=lease), renewed_at=asked_at)
        is_written = False
        try:
            owned.hold_local_lock()
            fenced = document.model_copy(update={"fence": lease.fence})
            owned.document = self.store.create(fenced, events=(_created(document), *events))
            is_written = True
            yield owned
        except BaseException as exc:
            if not is_written:
                # A document that exists although its write failed (not synced, interrupted) keeps row and issue.
                with _logged("workflow_not_unregistered", lease.adw_id):
                    if isinstance(exc, StateExists) or not self.store.exists(lease.adw_id):
                        self._registry.unregister(lease)
            raise
        finally:
            owned.give_back()

    def leave(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """
        Create a workflow with its first run, for a worker to execute.

        Raises IssueLocked or StateExists; nothing is left behind then.
        """
        if isinstance(self._registry, DocumentRegistry):
            return self._registry.create(document, events=(_created(document), *events), run=run)
        with self.create(document, events=events, run=run) as owned:
            return owned.document

    # --- issues ------------------------------------------------------------------------------------------------

    @property
    def has_issues(self) -> bool:
        """Whether a workflow that ends frees its issue."""
        return self._locks is not None

    def free_issue(self, document: WorkflowDocument) -> bool:
        """Free the issue of an ended workflow; if that fails, `release_finished_locks` frees it later."""
        if self._locks is None or document.issue_number is None:
            return True
        is_free = False
        with _logged("issue_lock_not_released", document.adw_id):
            self._locks.release(document.issue_number, document.adw_id, document.repository)
            is_free = True

        return is_free  # noqa: RET504 - an error in the block above skips the assignment

    def prove_continuing(self, adw_id: str, issue_number: int | str, repository: str = "") -> None:
        """
        Return if *adw_id* may continue work on an issue; a free lock is taken again.

        Both sides are checked: the lock must name the workflow, and its document the issue. Raises StateNotFound,
        NotTheLockOwner or IssueLocked.
        """
        locks, number = self._issue_locks(), check_issue_number(issue_number)
        self._check_document(adw_id, number, repository)
        if locks.verify(number, adw_id, repository):
            return
        self._lock_again(number, adw_id, repository)
        try:
            self._check_document(adw_id, number, repository)  # it may have ended while the lock was free
        except AdwError:
            locks.release(number, adw_id, repository)
            raise

    def claim_again(self, document: WorkflowDocument) -> None:
        """
        Lock the issue of a workflow that will be continued; raise IssueLocked if another workflow has it.

        Called by the owner, before the write that makes the workflow active again. A crash in between leaves the lock
        of an ended workflow, which `release_finished_locks` frees.
        """
        if document.issue_number is not None:
            self._lock_again(document.issue_number, document.adw_id, document.repository)

    def _lock_again(self, issue_number: int, adw_id: str, repository: str) -> None:
        locks = self._issue_locks()
        if not locks.acquire(issue_number, adw_id, repository):
            holder = locks.holder(issue_number, repository)
            raise IssueLocked(issue_number, holder.adw_id if holder else "another workflow", repository)

    def release_finished_locks(self) -> tuple[IssueLock, ...]:
        """
        Free every issue whose workflow has ended or was never written, and return those locks.

        A crash between the write that ends a workflow and the release of its lock leaves such a lock, as does one
        between registering a workflow and writing its first document. Documents decide which locks are freed, never
        their age.
        """
        return tuple(lock for lock in self._issue_locks().all() if self._release_if_over(lock))

    def _release_if_over(self, lock: IssueLock) -> bool:
        try:
            return self._is_over_and_released(lock.adw_id, [lock])
        except StateNotFound:
            try:
                is_forgotten = self.forget_unwritten(lock.adw_id)
            except WorkflowBusy:
                return False  # it is being created right now
            return is_forgotten and not self._issue_locks().verify(lock.issue_number, lock.adw_id, lock.repository)
        except StateError:
            return False  # an unreadable document keeps its issue until a person has checked it

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of *adw_id* if that workflow has ended; return whether there was one to free."""
        return self._is_over_and_released(adw_id, self._locks_of(adw_id))

    def _is_over_and_released(self, adw_id: str, held: Sequence[IssueLock]) -> bool:
        row = self.leases.read(adw_id)  # before the document: the fence reveals any later owner
        state = self.store.load(adw_id).document.current_state
        has_lease = row is not None and row.seconds_left > 0.0
        if has_lease and self._processes.verdict(row.owner if row is not None else None) is not Verdict.DEAD:
            return False  # its owner frees the issue, or continues the workflow
        if not is_terminal(state):
            return False

        return self._release_locks(held, fence=row.fence if row is not None else None)

    def forget_unwritten(self, adw_id: str) -> bool:
        """
        Remove a workflow that was registered but never written, with its issue and its runs.

        Returns False if it was written after all or is gone already; raises WorkflowBusy while its creator may live.
        """
        try:
            lease = self._take(adw_id).lease
        except StateNotFound:
            return self._release_locks(self._locks_of(adw_id))
        # Its creator may be stopped right before its first write: shut out before we read, it cannot write afterwards.
        self.store.revoke_writers(adw_id, fence=lease.fence - 1)
        if self.store.exists(adw_id):
            return False  # written at the last moment; our lease expires, and the next owner takes over
        self._registry.unregister(lease)

        return True

    def _locks_of(self, adw_id: str) -> list[IssueLock]:
        return [lock for lock in self._issue_locks().all() if lock.adw_id == adw_id]

    def _release_locks(self, held: Sequence[IssueLock], *, fence: int | None = None) -> bool:
        release = self._issue_locks().release
        freed = [release(lock.issue_number, lock.adw_id, lock.repository, fence=fence) for lock in held]

        return any(freed)

    def _check_document(self, adw_id: str, issue_number: int, repository: str) -> None:
        locks = self._issue_locks()
        document = self.store.load(check_adw_id(adw_id)).document
        number, where, state = document.issue_number, document.repository, document.current_state
        is_same = locks.key(where) == locks.key(repository)
        if number != issue_number or not is_same:
            named = f"issue {number}" + (f" of {where}" if where else "") if number else "no issue"
            raise NotTheLockOwner(adw_id, issue_number, f"its document names {named}")
        if is_terminal(state):
            instead = "start a new workflow for the issue"
            if state == WorkflowState.COMPLETED.value:
                instead = "name the workflow that it is to be carried on with"
            raise NotTheLockOwner(adw_id, issue_number, f"it is {state}; {instead}")

    def _issue_locks(self) -> IssueLocks:
        if self._locks is None:
            raise UsageError("this ownership was built without issue locks: pass locks=")

        return self._locks

    # --- texts -------------------------------------------------------------------------------------------------

    def describe_owner(self, row: LeaseRow) -> str:
        """Return the owner of a live lease as text, with the verdict on it."""
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
    # Without the token, which proves an owner's identity.
    return {name: getattr(owner, name) for name in owner.__slots__ if name != "token"}


@contextmanager
def _logged(action: str, adw_id: str) -> Iterator[None]:
    """Log expected errors of the block instead of raising them: they must not hide the error we are leaving with."""
    try:
        yield
    except (AdwError, OSError):
        logger.warning("Could not give back", extra={"action": action, "workflow": adw_id}, exc_info=True)
