"""
Creating a workflow: its issue, its row, its first lease and its first run in one transaction.

The row has revision 0 until the document is written, in files or in the database. A crash in between leaves exactly
such a row: its lease ends, `adw db check` names it, and the sweep of finished locks removes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adws.adw_modules import default_home, timestamps
from adws.adw_modules import events as events_module
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    IssueLocked,
    NotTheLockOwner,
    StateError,
    StateExists,
    StateNotFound,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import check_adw_id, in_home, normalise
from adws.adw_modules.interfaces import Clock, IssueLock, Lease, LeaseTaken, OwnerRecord, Registry, StateStore
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import NewRun, check_run_of
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.serialization import summary_of

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


# Issue locks: the primary key (repository, issue) lets one workflow in.
#
# A lock belongs to a workflow, not to a process; it has no age and is never taken away because of one. Every spelling
# of a repository is the same repository, and "" is that of the home. Rows are compared by that rule, not by their text:
# what "" means is a setting, which no migration knows, and rows of older versions have the spelling of their documents.
# Locks are few, one for each unfinished workflow, so all those of an issue's number are looked at.


#: A holder may release it between our insert and our query; after this many times something else is wrong.
_LOOKS = 10


class IssueLocks:
    """`IssueLocks` in the table adw_locks."""

    def __init__(self, database: Database, *, clock: Clock, repository: str = "") -> None:
        """Keep locks in *database*; *repository* is the one that "" stands for in this home."""
        self._database = database
        self._clock = clock
        self._repository = repository

    def key(self, repository: str) -> str:
        """Return the repository as locks are compared by it."""
        return in_home(repository, self._repository)

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Take the lock; True when it is (or was already) ours, False when another workflow has it."""
        check_adw_id(adw_id)
        moment = timestamps.to_text(self._clock.now())

        def work(session: Session) -> bool:
            return self.take(session, issue_number, adw_id, repository, moment).adw_id == adw_id

        return self._database.transact(work)

    def verify(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Say whether *adw_id* has the lock."""
        check_adw_id(adw_id)
        held = self.holder(issue_number, repository)

        return held is not None and held.adw_id == adw_id

    def release(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Give it back; False, and nothing changed, when *adw_id* does not have it."""
        check_adw_id(adw_id)
        with self._database.read() as session:  # a document in the database took its lock with it when it ended
            if not self._ours(session, issue_number, adw_id, repository):
                return False

        def work(session: Session) -> bool:
            ours = self._ours(session, issue_number, adw_id, repository)
            freed = [session.run(connection.LOCK_RELEASE, connection.lock_params(lock)) for lock in ours]

            return any(freed)

        return self._database.transact(work)

    def holder(self, issue_number: int, repository: str = "") -> IssueLock | None:
        """Return who has it."""
        with self._database.read() as session:
            held = self._of_issue(session, issue_number, repository)

        return held[0] if held else None

    def all(self) -> tuple[IssueLock, ...]:
        """Return every lock, oldest first."""
        with self._database.read() as session:
            rows = session.all(connection.LOCKS_ALL)

        return tuple(connection.to_lock(row) for row in rows)

    def first(self, limit: int) -> tuple[IssueLock, ...]:
        """Return so many locks, by repository and issue."""
        with self._database.read() as session:
            rows = session.all(connection.LOCKS_FIRST, {"limit": limit})

        return tuple(connection.to_lock(row) for row in rows)

    def take(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> IssueLock:
        """Lock the issue for *adw_id* if it is free, and return who has it now."""
        normalise(repository)  # a name that is none is refused before it locks anything
        lock = IssueLock(repository=self.key(repository), issue_number=issue_number, adw_id=adw_id, acquired_at=moment)
        for _ in range(_LOOKS):
            held = self._of_issue(session, issue_number, repository)
            if held:
                return held[0]
            session.run(connection.LOCK_ACQUIRE, connection.lock_params(lock))

        raise DatabaseError(f"the lock of issue {issue_number} could neither be taken nor be read: try again")

    def _ours(self, session: Session, issue_number: int, adw_id: str, repository: str) -> list[IssueLock]:
        return [lock for lock in self._of_issue(session, issue_number, repository) if lock.adw_id == adw_id]

    def _of_issue(self, session: Session, issue_number: int, repository: str) -> list[IssueLock]:
        """Return the locks of an issue, oldest first: one, unless names that are one now were two when they came."""
        key = self.key(repository)
        result = map(connection.to_lock, session.all(connection.LOCKS_OF_NUMBER, {"issue_number": issue_number}))
        held = [lock for lock in result if self.key(lock.repository) == key]
        if not held:
            normalise(repository)  # an old row may be found by any text, but a text that names none is a mistake

        return held


class WorkflowRegistry:
    """A `Registry` in the database."""

    def __init__(self, database: Database, *, clock: Clock, home: str, repository: str = "") -> None:
        """Register workflows whose documents live in *home* ("files" or "database"); "" means *repository* there."""
        self._database = database
        self._clock = clock
        self._home = home
        self._locks = IssueLocks(database, clock=clock, repository=repository)
        self._queue = RunStore(database, clock=clock)
        self._register = database.render(connection.STATE_REGISTER)

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
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        moment = timestamps.to_text(self._clock.now())
        params = self._row_of(document, owner, ttl_seconds, moment)
        # The key these events would have if they came with the document, so that storing them again changes nothing.
        stamped = events_module.stamp(events, adw_id=adw_id, revision=1, created_at=moment)

        def work(session: Session) -> None:
            if session.run(self._register, params) == 0:
                raise StateExists(adw_id)
            if document.issue_number is not None:
                self._lock(session, document.issue_number, adw_id, document.repository, moment)
            session.run_each(connection.EVENT_INSERT, [connection.event_params(event) for event in stamped])
            if run is not None:
                self._queue.enqueue_in(session, run)

        self._database.transact(work)

        return Lease(adw_id=adw_id, owner=owner, fence=1)

    def _row_of(
        self, document: WorkflowDocument, owner: OwnerRecord, ttl_seconds: float, moment: str
    ) -> dict[str, object]:
        return {
            **self._database.lease_clock(),
            **connection.summary_params(summary_of(document)),
            "title": "",  # comes with the document, once its secrets are taken out
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": moment,
            "home": self._home,
            "schema_version": document.state_version,
        }

    def unregister(self, lease: Lease) -> None:
        """Take that back for a workflow whose document could not be written; a row that has one stays."""
        params = {"adw_id": lease.adw_id, "owner": lease.owner.to_text(), "fence": lease.fence}

        def work(session: Session) -> None:
            if session.run(connection.STATE_UNREGISTER, params) == 0:
                return
            session.run(connection.LOCKS_OF_WORKFLOW_DELETE, params)
            session.run(connection.EVENTS_OF_WORKFLOW_DELETE, params)
            session.run(queue_store.RUNS_OF_WORKFLOW_DELETE, params)

        self._database.transact(work)

    def _lock(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> None:
        held = self._locks.take(session, issue_number, adw_id, repository, moment)
        if held.adw_id != adw_id:
            raise IssueLocked(issue_number, held.adw_id, repository)


class DocumentRegistry(WorkflowRegistry):
    """A registry of workflows whose documents live in the same database."""

    def __init__(self, database: Database, *, clock: Clock, store: DatabaseStateStore, repository: str = "") -> None:
        """Register workflows whose documents are in *store*."""
        super().__init__(database, clock=clock, home="database", repository=repository)
        self._store = store

    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """
        Store the document of a workflow that nobody owns yet, lock its issue and enqueue *run*, all in one transaction.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        moment = timestamps.to_text(self._clock.now())

        def add(session: Session) -> None:
            if document.issue_number is not None:
                self._lock(session, document.issue_number, adw_id, document.repository, moment)
            if run is not None:
                self._queue.enqueue_in(session, run)

        return self._store.create(document, events=events, also=add)


# Issue locks as three plain calls: one live workflow for each issue of a repository.
#
# The lock belongs to the workflow, not to a process: it is taken when the workflow is created, kept while it is parked,
# and freed by the write that ends it. A wrong id never gets in and never lets anybody out.


#: Decimal digits only, no sign, no leading zero: as an issue's address spells it.
_ISSUE = re.compile(r"[1-9][0-9]{0,17}")


def acquire_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Take the lock of an issue for *adw_id*; True when it is (or was already) its own, False when another has it."""
    return _locks(locks).acquire(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def verify_lock_ownership(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Say whether *adw_id* has the lock of the issue."""
    return _locks(locks).verify(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def release_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Free the lock of an issue; False, and nothing changed, when *adw_id* does not have it."""
    return _locks(locks).release(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def check_issue_number(issue_number: object) -> int:
    """Return the number of an issue given as a number or as digits; raise UsageError for anything else."""
    if isinstance(issue_number, int | str) and not isinstance(issue_number, bool):
        digits = str(issue_number).strip()
        if _ISSUE.fullmatch(digits):
            return int(digits)

    raise UsageError(f"{str(issue_number)[:40]!r} is not an issue number: use a whole number from 1 up, such as 42")


def _locks(locks: IssueLocks | None) -> IssueLocks:
    return default_home.get().locks if locks is None else locks


# Which workflow an issue belongs to, proven from both sides: the lock names the workflow, and its document the issue.
#
# A workflow loses its claim with the write that ends it. Locks that a crash left behind are freed by looking at their
# documents, never by their age.


class IssueClaims:
    """Claims of workflows to issues, checked against the documents."""

    def __init__(self, *, store: StateStore, locks: IssueLocks, registry: Registry) -> None:
        self._store = store
        self._locks = locks
        self._registry = registry

    def prove_continuing(self, adw_id: str, issue_number: int | str, repository: str = "") -> None:
        """
        Return when *adw_id* may go on with an issue; a lock that is free is taken again.

        Raises StateNotFound, NotTheLockOwner or IssueLocked.
        """
        number = check_issue_number(issue_number)
        self._check_document(adw_id, number, repository)
        if self._locks.verify(number, adw_id, repository):
            return
        if not self._locks.acquire(number, adw_id, repository):
            holder = self._locks.holder(number, repository)
            raise IssueLocked(number, holder.adw_id if holder else "another workflow", repository)
        try:
            self._check_document(adw_id, number, repository)  # it may have ended while the lock was free
        except AdwError:
            self._locks.release(number, adw_id, repository)
            raise

    def release_finished(self, take: Callable[[str], LeaseTaken]) -> tuple[IssueLock, ...]:
        """
        Free every issue whose workflow has ended, or was never written, and return those locks.

        A crash between the write that ends a workflow and the release of its lock leaves such a lock, and so does one
        between registering a workflow and writing its first document. *take* takes a lease or raises WorkflowBusy.
        """
        return tuple(lock for lock in self._locks.all() if self._release_if_over(lock, take))

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of *adw_id* if that has ended, and say whether there was one to free."""
        if not is_terminal(self._store.peek(adw_id).data.get("current_state")):
            return False

        return self._release_all(adw_id)

    def forget_unwritten(self, adw_id: str, take: Callable[[str], LeaseTaken]) -> bool:
        """
        Take a workflow away that was registered and never written, its issue and its runs with it.

        Returns False when it is written after all, or gone already; raises WorkflowBusy while its creator may live.
        """
        try:
            taken = take(adw_id)
        except StateNotFound:
            return self._release_all(adw_id)
        # Its creator may be stopped right before its first write: shut out before we read, it cannot write after.
        self._store.revoke_writers(adw_id, fence=taken.lease.fence - 1)
        if self._store.exists(adw_id):
            return False  # written at the last moment; our lease ends by itself, and its next owner takes over
        self._registry.unregister(taken.lease)

        return True

    def _release_if_over(self, lock: IssueLock, take: Callable[[str], LeaseTaken]) -> bool:
        try:
            document = self._store.peek(lock.adw_id).data
        except StateNotFound:
            return self._release_unwritten(lock, take)
        except StateError:
            return False  # a document that cannot be read keeps its issue until a person has looked
        if not is_terminal(document.get("current_state")):
            return False

        return self._release(lock)

    def _release_unwritten(self, lock: IssueLock, take: Callable[[str], LeaseTaken]) -> bool:
        try:
            is_forgotten = self.forget_unwritten(lock.adw_id, take)
        except WorkflowBusy:
            return False  # it is being created right now

        return is_forgotten and not self._locks.verify(lock.issue_number, lock.adw_id, lock.repository)

    def _release_all(self, adw_id: str) -> bool:
        freed = [self._release(lock) for lock in self._locks.all() if lock.adw_id == adw_id]

        return any(freed)

    def _release(self, lock: IssueLock) -> bool:
        return self._locks.release(lock.issue_number, lock.adw_id, lock.repository)

    def _check_document(self, adw_id: str, issue_number: int, repository: str) -> None:
        document = self._store.peek(check_adw_id(adw_id)).data
        result, where, state = (document.get(key) for key in ("issue_number", "repository", "current_state"))
        is_same = self._locks.key(where if isinstance(where, str) else "") == self._locks.key(repository)
        if result != issue_number or not is_same:
            named = f"issue {result}" + (f" of {where}" if where else "") if result else "no issue"
            raise NotTheLockOwner(adw_id, issue_number, f"its document names {named}")
        if is_terminal(state):
            raise NotTheLockOwner(adw_id, issue_number, f"it is {state}; start a new workflow for the issue")
