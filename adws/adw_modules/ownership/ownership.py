"""
Taking and giving back workflows: lease, file lock and document put together in the one order that is safe.

While a lease is live only its owner writes. A takeover is complete when the document with the new fence is written, and
nothing is decided before that. Only a clean release leaves a free lease behind: after a takeover that was interrupted
the next owner takes over once more.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast

from filelock import FileLock, Timeout

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import LOCK_NAME
from adws.adw_modules.errors import (
    AdwError,
    Fenced,
    LeaseLost,
    LockUnavailable,
    StateConflict,
    StateExists,
    UnsafePath,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import (
    Clock,
    HandBack,
    IssueLock,
    Lease,
    LeaseBusy,
    LeaseRow,
    LeaseTaken,
    LeaseWish,
    OwnerRecord,
    Registry,
    StateStore,
    Verdict,
)
from adws.adw_modules.ownership.issue_locks import DocumentRegistry, IssueClaims
from adws.adw_modules.queue.model import NewRun, Run, RunEnd
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.store.database import DatabaseStateStore

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.issue_locks import IssueLocks
    from adws.adw_modules.ownership.leases import Leases
    from adws.adw_modules.process.identity import SystemProcesses


logger = logging.getLogger("adw.ownership")


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
        Take the file lock unless we have it, and return whether we have it now.

        After a takeover from a stopped process, that one still holds it: we work without, and each write retries.
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
        leases: Leases,
        registry: Registry,
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
        # Read before writing: callers that find it busy ask again and again, and must not queue up with the writers.
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
        # While we hold the file lock nobody on this machine is inside a write: leftovers of former writers may go.
        if has_lock:
            self.store.sweep(taken.lease.adw_id)
        # A former owner that is not proven dead may be stopped anywhere, also right before its rename. It has to be
        # shut out before the document is read, else it could still write after we have decided on what we read. A
        # process that still holds the file lock of a free lease (the database was rebuilt) is such an owner too.
        may_live = _is_takeover(taken) and self._processes.verdict(taken.previous) is not Verdict.DEAD
        if may_live or not has_lock:
            self.store.revoke_writers(taken.lease.adw_id, fence=taken.lease.fence - 1)

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
        if isinstance(self._registry, DocumentRegistry):
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
        """Delete a workflow whose creator died before the first write; raise WorkflowBusy while it may live."""
        return self._claims().forget_unwritten(adw_id, self._take)

    def _claims(self) -> IssueClaims:
        if self._locks is None:
            raise UsageError("this ownership was built without issue locks: pass locks=")

        return IssueClaims(store=self.store, locks=self._locks, registry=self._registry)

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


# Taking many workflows at a time from owners that are gone, and giving them back: for recovery.
#
# The same order as in `Ownership`, with fewer writes: the leases of many are taken in one transaction, the events of a
# takeover go into the first document that is written, and where documents are in the database the run, its sessions and
# the lease go into that same transaction. A takeover that was not written keeps its lease, so that the next owner takes
# over once more.


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A workflow that is to be taken, and what is known about its owner."""

    adw_id: str
    verdict: Verdict = Verdict.UNKNOWN
    fence: int | None = None  #: of the owner that it may be taken from although its lease runs; None: of nobody


class TakenOver(OwnedWorkflow):
    """A workflow that was taken from an owner that is gone."""

    def __init__(
        self, parts: WorkflowOwnership, taken: LeaseTaken, verdict: Verdict, *, renewed_at: float, can_join: bool
    ) -> None:
        """*can_join* says whether the document and its run can be changed together."""
        super().__init__(parts, taken.lease, renewed_at=renewed_at)
        self.can_join = can_join
        self.taken = taken
        self.verdict = verdict
        self.settled: Run | None = None  #: its run, as the last write left it
        self._is_told = not self.is_takeover  #: whether a document says that it was taken over
        self._last: Callable[[WorkflowDocument], HandBack | None] | None = None

    @property
    def is_takeover(self) -> bool:
        """Whether somebody had it, also one whose record cannot be read."""
        return self.taken.previous is not None or self.taken.previous_fence > 0

    @property
    def is_certain(self) -> bool:
        """Whether it was taken from an owner that is proven dead: nobody has changed it since that one did."""
        return self.is_takeover and self.verdict is Verdict.DEAD

    def hold_local_lock(self) -> bool:
        """Take the file lock, unless its former holder is dead: then there is nobody on this machine to keep out."""
        return False if self.is_certain else super().hold_local_lock()

    def _takeover(self) -> Event:
        takeover = Takeover(
            document=self.document,
            former=self.taken.previous,
            former_fence=self.taken.previous_fence,
            verdict=self.verdict,
        )

        return takeover.event()

    def join_next_write(self, last: Callable[[WorkflowDocument], HandBack | None]) -> None:
        """Have the next write do what *last* says of the document that it stores, if they can be joined."""
        self._last = last if self.can_join else None

    def save(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store the next revision, with what was not told yet, and what was joined to it."""
        events = tuple(events) if self._is_told else (self._takeover(), *events)
        end = self._last(document) if self._last is not None else None
        stored = super().save(document, events=events) if end is None else self._save_with(document, events, end)
        self._is_told, self._last = True, None

        return stored

    def _save_with(self, document: WorkflowDocument, events: Sequence[Event], end: HandBack) -> WorkflowDocument:
        self._check_writable(document)
        self.hold_local_lock()
        store = cast("DatabaseStateStore", self._parts.store)  # `can_join` says so
        work = self._parts.leases.handing_back(end)
        runs: list[Run | None] = []
        try:
            self.document = store.save_with(
                document, fence=self.lease.fence, events=events, also=lambda session: runs.append(work(session))
            )
        except (Fenced, StateConflict) as exc:
            self._why_over = str(exc)
            raise
        self.settled = runs[-1] if runs else None  # a transaction may be repeated
        self._has_lease = self._has_lease and end.lease is None

        return self.document

    def hand_over(self) -> HandBack:
        """Refuse every further write and free the file lock; the caller releases the lease that is returned."""
        self._stop_writing()
        is_over = is_terminal(self.document.current_state)
        issue = self.document.issue_number if is_over and self._parts.has_issues else None
        lease = self.lease if self._has_lease and self._is_told else None
        self._has_lease = False

        return HandBack(lease=lease, free_issue=issue)

    def leave(self) -> None:
        """Give back what is still held; a takeover that was not written keeps its lease."""
        self.give_back(keep_lease=not self._is_told)


class BulkTakeover:
    """Takes workflows of this home."""

    def __init__(self, ownership: WorkflowOwnership, *, processes: SystemProcesses, role: str = "recovery") -> None:
        self._ownership = ownership
        self._processes = processes
        self._role = role
        # Documents beside the queue: a document and what is done to its run are one transaction.
        self._can_join = isinstance(ownership.store, DatabaseStateStore)

    @property
    def leases(self) -> Leases:
        """The leases of many workflows."""
        return self._ownership.leases

    def take(self, wishes: Sequence[Wish]) -> list[TakenOver | None]:
        """Take the leases of all, in one transaction; None for each that somebody else has, or that is gone."""
        asked_at = self._ownership.clock.boottime()
        me = self._processes.me(self._role)
        asked = [LeaseWish(adw_id=wish.adw_id, dead_fence=wish.fence) for wish in wishes]
        answers = self.leases.take_all(asked, me, ttl_seconds=self._ownership.ttl_seconds)

        return [
            TakenOver(self._ownership, answer, _known_of(wish, answer), renewed_at=asked_at, can_join=self._can_join)
            if isinstance(answer, LeaseTaken)
            else None
            for wish, answer in zip(wishes, answers, strict=True)
        ]

    @contextmanager
    def inside(self, seized: TakenOver) -> Iterator[TakenOver]:
        """Have its document inside the block, which nobody else can write any more; leave with what is held."""
        try:
            self._enter(seized)
            yield seized
        finally:
            seized.leave()

    def _enter(self, seized: TakenOver) -> None:
        store, adw_id = self._ownership.store, seized.lease.adw_id
        has_lock = seized.hold_local_lock()
        if has_lock:
            store.sweep(adw_id)
        # As in `Ownership`: an owner that is not proven dead has to be shut out before the document is read. Leftovers
        # of a dead one are swept by the next holder of the lock.
        may_live = seized.is_takeover and not seized.is_certain
        if may_live or not (has_lock or seized.is_certain):
            store.revoke_writers(adw_id, fence=seized.lease.fence - 1)
        seized.document = store.load(adw_id).document

    def let_go(self, seized: Sequence[TakenOver | None]) -> None:
        """Give back what nobody came to; trouble does not matter, for leases end by themselves."""
        for one in seized:
            if one is not None:
                with suppress(AdwError):
                    one.give_back(keep_lease=one.is_takeover)


def _known_of(wish: Wish, taken: LeaseTaken) -> Verdict:
    """Return what is known about the owner that it was taken from; what was known of another says nothing."""
    return wish.verdict if wish.fence == taken.previous_fence else Verdict.UNKNOWN


# The file lock a worker holds while it works: `<root>/<adw_id>/.lock`.
#
# The kernel releases it when the worker ends, however it ends, so holding it proves that nobody else on this machine is
# in the middle of a write. The file is never unlinked: two processes could then hold "the" lock on two different files.


class LocalLock:
    """One lock file for each workflow below *root*; safe to share between threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, FileLock] = {}
        self._guard = Lock()
        _OPEN.add(self)

    def start_in_child(self) -> None:
        """Renew the guard after a fork: a thread that exists only in the parent may have had the old one."""
        self._guard = Lock()

    def try_hold(self, adw_id: str) -> bool:
        """Take the lock without waiting; False when anybody has it, this process included."""
        path = self._path(adw_id)
        with self._guard:
            if self._is_ours(adw_id):
                return False
            _make_folder(path.parent)
            lock = _new_lock(path)
            if not _acquire(lock, path):
                return False
            self._held[adw_id] = lock

        return True

    def let_go(self, adw_id: str) -> None:
        """Free the lock; nothing happens when it is not ours. The file stays."""
        with self._guard:
            lock = self._held.pop(check_adw_id(adw_id), None)
        if lock is not None:
            lock.release(force=True)

    def is_held(self, adw_id: str) -> bool:
        """Say whether anybody holds the lock, this process included."""
        path = self._path(adw_id)
        with self._guard:
            if self._is_ours(adw_id):
                return True
            if not path.exists():
                return False
            lock = _new_lock(path)
            if not _acquire(lock, path):
                return True
            lock.release()

        return False

    def _path(self, adw_id: str) -> Path:
        return self._root / check_adw_id(adw_id) / LOCK_NAME

    def _is_ours(self, adw_id: str) -> bool:
        # After a fork the child has the table but not the locks; the library knows.
        held = self._held.get(adw_id)
        return held is not None and held.is_locked


def _make_folder(path: Path) -> None:
    """Make the directory of a workflow, durably: its document will be in it. Raise UnsafePath for a link."""
    try:
        durable_file.make_directory(str(path))
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError as exc:
        raise LockUnavailable(str(path), exc) from exc
    if not is_directory:
        raise UnsafePath(f"{path} is not a directory of its own: move it away, adw does not follow links")


def _new_lock(path: Path) -> FileLock:
    # No soft lock where flock is missing: that one outlives its holder. Threads share the hold: the worker that takes
    # the lock and the one that frees it need not be the same thread.
    return FileLock(path, mode=0o600, timeout=0, thread_local=False, fallback_to_soft=False, preserve_lock_file=True)


def _acquire(lock: FileLock, path: Path) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafePath(f"{path} is a symbolic link: remove it, adw does not follow links") from exc
        raise LockUnavailable(str(path), exc) from exc

    return True


#: Every set of locks of this process.
_OPEN: weakref.WeakSet[LocalLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for locks in list(_OPEN):
        locks.start_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
