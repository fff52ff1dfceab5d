"""
Taking and giving back workflows: lease, file lock and document put together in the one order that is safe.

While a lease is live only its owner writes. A takeover is complete when the document with the new fence is written, and
nothing is decided before that. Only a clean release leaves a free lease behind: after a takeover that was interrupted
the next owner takes over once more.
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

#: A write renews lease and claim when this part of the lease's time has passed; the renewer waits twice as long.
RENEW_WITH_WRITE = 1 / 6

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """A former owner did not give the workflow back; told to `on_takeover` before anything is written."""

    document: WorkflowDocument
    former: OwnerRecord | None  #: None: its record cannot be read
    former_fence: int
    verdict: Verdict

    @property
    def why(self) -> str:
        """Return as text why the workflow could be taken over."""
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

    document: WorkflowDocument  #: the last stored revision; there from the moment the block is entered

    def __init__(
        self, ownership: WorkflowOwnership, taken: LeaseTaken, *, renewed_at: float, verdict: Verdict = Verdict.UNKNOWN
    ) -> None:
        """
        Hold what was taken.

        *renewed_at* is Clock.boottime from before the lease was asked for, *verdict* what is known about the process of
        the former owner, if there was one.
        """
        self.lease: Lease = taken.lease
        self.run: Run | None = taken.run  #: that was begun with the lease, and ends with it
        self.ended: Run | None = None  #: the same, as the write that ended the workflow left it
        self.taken = taken
        self.verdict = verdict
        self.renewed_at = renewed_at  #: when lease and claim were renewed last, by Clock.boottime
        #: Done once, in the transaction of the next write, where documents are in the database.
        self.with_next_save: Callable[[Session, WorkflowDocument], None] | None = None
        self.may_have_written = False  #: whether a write was begun
        self.is_renewed = False  #: whether the lease renewer looks after it, which flushes what its store collects
        self._ownership = ownership
        self._has_local_lock = False
        self._has_freed_issue = False  #: whether the issue of a workflow that is over is known to be free
        self._has_lease = True
        self._is_told = not self.is_takeover  #: whether a document says that it was taken over
        self._why_over = ""  #: why nothing may be written any more, "" while it may

    @property
    def is_takeover(self) -> bool:
        """Whether somebody had it and did not give it back, also one whose record cannot be read."""
        return self.taken.previous is not None or self.taken.previous_fence > 0

    @property
    def takeover(self) -> Takeover:
        """From whom it was taken, for a document that was loaded."""
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
        Store the next revision and keep it as `document`; lease and claim are renewed by the same transaction.

        The first one after a takeover says so in its events. With the write that ends the workflow its issue becomes
        free: at once, or with the end of the run that we have. With *end* that run ends, and lease, issue and quota are
        released, in the same transaction as the document, or in one right after it where documents are files; unless a
        request came meanwhile, or the run is not ours any more: then `ended` stays None.

        Raises LeaseLost once the block was left or a write was refused, Fenced when the workflow was taken over.
        """
        self._check_writable(document)
        self.hold_local_lock()
        self.may_have_written = True
        if not self._is_told:
            events = (self.takeover.event(), *events)
        store, fence = self._ownership.store, self.lease.fence
        ended: list[Run | None] = [None]  # the last one counts: a transaction may be repeated
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
                    with suppress(DatabaseError):  # then it ends with the block
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
        """Do what belongs to a write in its transaction, and return the run if it ended with that."""
        if self.with_next_save is not None:
            self.with_next_save(session, document)
            return None
        ended = None if end is None else self._end_in(session, document, end)
        if ended is None:
            self._renew_in(session, asked_at)

        return ended

    def _end_in(self, session: Session, document: WorkflowDocument, end: RunEnd) -> Run | None:
        """End our run and release everything, inside the transaction that ends the workflow; None: not now."""
        has_request = session.one(
            "SELECT 1 FROM requests WHERE adw_id = :adw_id AND handled_at IS NULL LIMIT 1", {"adw_id": document.adw_id}
        )
        if self.run is None or has_request:
            return None
        leases = self._ownership.leases
        try:
            ended = leases.runs.end_in(session, self.run, end)
        except RunLost:
            return None  # what was done is stored all the same
        leases.release_in(session, self.lease, free_issue=self._issue_to_free(document), frees_quota=True)

        return ended

    def _renew_in(self, session: Session, asked_at: float) -> None:
        """Renew lease and claim inside the transaction of a write; what is lost is found out by the next renewal."""
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
        """Push the ends of lease and claim out; raise LeaseLost or RunLost when one is not ours any more."""
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
        """Return how long the lease lasts by our own clock, which is never longer than by the database's."""
        return self.renewed_at + self._ownership.ttl_seconds - self._ownership.clock.boottime()

    def hold_local_lock(self) -> bool:
        """
        Take the file lock unless we have it, and return whether we have it now.

        After a takeover from a stopped process, that one still holds it: we work without, and each write retries.
        """
        if not self._has_local_lock:
            self._has_local_lock = self._ownership.local_lock.try_hold(self.lease.adw_id)

        return self._has_local_lock

    # --- giving back -------------------------------------------------------------------------------------------

    def end_run(self, run: Run, end: RunEnd) -> Run:
        """
        Refuse every further write, free the file lock, then end *run* and free the lease in one transaction.

        The issue of a workflow that is over becomes free with that. Raises RunLost or DatabaseError; then lease and
        issue are given back when the block is left.
        """
        self.stop_writing()
        issue = self._issue_to_free(self.document)
        ended = self._ownership.leases.end_run(self.lease, run, end, free_issue=issue)
        self._has_lease, self.run = False, None

        return ended

    def leave_with(self, work: Callable[[Session], _Result]) -> _Result:
        """Refuse every further write, free the file lock, then do *work* and free the lease in one transaction."""
        self.stop_writing()

        def leave(session: Session) -> _Result:
            self.release_in(session)
            return work(session)

        result = self._ownership.leases.database.transact(leave)
        self._has_lease = False

        return result

    def release_in(self, session: Session) -> None:
        """Free the lease, and the issue of a workflow that is over, inside the transaction *session*."""
        self._ownership.leases.release_in(session, self.lease, free_issue=self._issue_to_free(self.document))

    def hand_over(self) -> bool:
        """Refuse every further write and free the file lock; True when the caller is to release the lease."""
        self.stop_writing()
        has_lease, self._has_lease = self._has_lease and self._is_told, False

        return has_lease

    def give_back(self) -> None:
        """
        Refuse every further write, free the file lock, then the lease.

        The lease of a takeover that was not written is kept: so the next owner takes over once more. Trouble is logged:
        both end by themselves.
        """
        try:
            self.stop_writing()
            if self.run is not None:
                self._free_issue_if_over()
        finally:  # also when Ctrl-C comes in between
            if self._has_lease and self._is_told:
                self._has_lease = False
                with _logged("lease_not_released", self.lease.adw_id):
                    self._ownership.leases.release(self.lease)

    def stop_writing(self) -> None:
        """Refuse every further write, flush what the store collected, and free the file lock."""
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
        document = getattr(self, "document", None)  # there is none while the block is being entered
        if document is None or not is_terminal(document.current_state):
            self._has_freed_issue = False
        elif not self._has_freed_issue:
            self._has_freed_issue = self._ownership.free_issue(document)


class WorkflowOwnership:
    """Owns workflows for this process; implements `interfaces.Ownership`."""

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
    def own(
        self, adw_id: str, *, run: Run | None = None, needs_issue: bool = True, owned: OwnedWorkflow | None = None
    ) -> Iterator[OwnedWorkflow]:
        """
        Own a workflow inside the block, and begin *run*, which we have claimed; *owned* is what a claim took already.

        A document of an older version, which no database knows, is registered on the way, with its issue; the first
        write migrates it, and without a write it is as before. Raises WorkflowBusy when a live owner has it,
        StateNotFound without one, RunLost when the run is not ours, and for such a document IssueLocked when another
        workflow has its issue, unless *needs_issue* is False.
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
            # Another process may have been in between: what that wrote keeps its row.
            is_unused = is_new and run is None and owned.document.revision == 0
            try:
                yield owned
            finally:
                if is_unused and not owned.may_have_written:
                    with _logged("workflow_not_unregistered", adw_id):
                        self._registry.unregister(owned.lease)

    @contextmanager
    def entered(self, owned: OwnedWorkflow) -> Iterator[OwnedWorkflow]:
        """Have the document of what was taken inside the block, which nobody else can write any more; give it back."""
        adw_id = owned.lease.adw_id
        try:
            # While we hold the file lock nobody on this machine is inside a write: leftovers of former writers may go.
            has_lock = owned.hold_local_lock()
            if has_lock:
                self.store.sweep(adw_id)
            # A former owner that is not proven dead may be stopped anywhere, also right before its rename. It has to be
            # shut out before the document is read, else it could still write after we have decided on what we read. A
            # process that still holds the file lock of a free lease (the database was rebuilt) is such an owner too.
            may_live = owned.is_takeover and owned.verdict is not Verdict.DEAD
            if may_live or not has_lock:
                self.store.revoke_writers(adw_id, fence=owned.lease.fence - 1)
            owned.document = self.store.load(adw_id).document
            yield owned
        finally:
            owned.give_back()

    def take_all(self, wanted: Mapping[str, tuple[Verdict, int | None]], role: str) -> dict[str, OwnedWorkflow]:
        """
        Take many workflows in one transaction, for recovery, and return those that were free or could be taken over.

        *wanted* has for each what is known about its owner, and the fence of the owner that it may be taken from
        although its lease runs. `entered` has the document of each; the next write tells of a takeover.
        """
        asked_at = self.clock.boottime()
        fences = {adw_id: fence for adw_id, (_, fence) in wanted.items()}
        answers = self.leases.take_all(fences, self._processes.me(role), ttl_seconds=self.ttl_seconds)
        owned: dict[str, OwnedWorkflow] = {}
        for adw_id, answer in answers.items():
            if isinstance(answer, LeaseTaken):
                verdict, fence = wanted[adw_id]
                # What was known of another owner says nothing.
                known = verdict if fence == answer.previous_fence else Verdict.UNKNOWN
                owned[adw_id] = OwnedWorkflow(self, answer, renewed_at=asked_at, verdict=known)

        return owned

    def me(self) -> OwnerRecord:
        """Return a record for a lease that this process takes."""
        return self._processes.me(self._role)

    def _take(self, adw_id: str, run: Run | None = None) -> OwnedWorkflow:
        # Read before writing: callers that find it busy ask again and again, and must not queue up with the writers.
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
        """Register a document of an older version; False when another process was faster. Raises StateNotFound."""
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
        """Store a document of an older version in the current one; nothing happens to any other."""
        if any(notice.kind == "migrated" for notice in self.store.load(adw_id).notices):
            with self.own(adw_id, needs_issue=False) as owned:
                owned.save(owned.document)

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
                # A document that is there although its write failed (not synced, interrupted) keeps row and issue.
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
        Create a workflow, with its first run, for a worker to come.

        Raises IssueLocked or StateExists, and then nothing is left.
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
        """Free the issue of a workflow that ended; what fails here is made good by `release_finished_locks`."""
        if self._locks is None or document.issue_number is None:
            return True
        is_free = False
        with _logged("issue_lock_not_released", document.adw_id):
            self._locks.release(document.issue_number, document.adw_id, document.repository)
            is_free = True

        return is_free  # noqa: RET504 - the block above may end without it

    def prove_continuing(self, adw_id: str, issue_number: int | str, repository: str = "") -> None:
        """
        Return when *adw_id* may go on with an issue; a lock that is free is taken again.

        It is proven from both sides: the lock names the workflow, and its document the issue. Raises StateNotFound,
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
        Lock the issue of a workflow that is to be carried on; raise IssueLocked when another workflow has it.

        Called by the owner of the workflow, before the write that makes it active again. A crash in between leaves the
        lock of a workflow that has ended, which `release_finished_locks` frees.
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
        Free every issue whose workflow has ended, or was never written, and return those locks.

        A crash between the write that ends a workflow and the release of its lock leaves such a lock, and so does one
        between registering a workflow and writing its first document. Locks are freed by looking at documents, never by
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
            return False  # a document that cannot be read keeps its issue until a person has looked

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of *adw_id* if that has ended, and say whether there was one to free."""
        return self._is_over_and_released(adw_id, self._locks_of(adw_id))

    def _is_over_and_released(self, adw_id: str, held: Sequence[IssueLock]) -> bool:
        row = self.leases.read(adw_id)  # before the document: who takes the lease after this is seen by the fence
        state = self.store.load(adw_id).document.current_state
        has_lease = row is not None and row.seconds_left > 0.0
        if has_lease and self._processes.verdict(row.owner if row is not None else None) is not Verdict.DEAD:
            return False  # its owner frees the issue, or carries the workflow on
        if not is_terminal(state):
            return False

        return self._release_locks(held, fence=row.fence if row is not None else None)

    def forget_unwritten(self, adw_id: str) -> bool:
        """
        Take a workflow away that was registered and never written, its issue and its runs with it.

        Returns False when it is written after all, or gone already; raises WorkflowBusy while its creator may live.
        """
        try:
            lease = self._take(adw_id).lease
        except StateNotFound:
            return self._release_locks(self._locks_of(adw_id))
        # Its creator may be stopped right before its first write: shut out before we read, it cannot write after.
        self.store.revoke_writers(adw_id, fence=lease.fence - 1)
        if self.store.exists(adw_id):
            return False  # written at the last moment; our lease ends by itself, and its next owner takes over
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
        """Return the owner of a live lease as text, with what is known of it."""
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


@contextmanager
def _logged(action: str, adw_id: str) -> Iterator[None]:
    """Log expected trouble of the block instead of raising it: it must not hide the error we are leaving with."""
    try:
        yield
    except (AdwError, OSError):
        logger.warning("Could not give back", extra={"action": action, "workflow": adw_id}, exc_info=True)
