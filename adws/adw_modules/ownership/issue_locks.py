"""
Creating a workflow: its issue lock, row, first lease and first run in one transaction.

The row has revision 0 until the document is written, in files or in the database. A crash in between leaves exactly
such a row: its lease expires, `adw db check` reports it, and the sweep of finished locks removes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adws.adw_modules import default_home, timestamps
from adws.adw_modules import events as events_module
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.errors import (
    DatabaseError,
    IssueLocked,
    StateExists,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import check_adw_id, in_home, normalise
from adws.adw_modules.interfaces import (
    Clock,
    IssueLock,
    Lease,
    OwnerRecord,
)
from adws.adw_modules.queue.model import NewRun, check_run_of
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.serialization import summary_of

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


# --- issue locks: the primary key (repository, issue) admits one workflow --------------------------------------
#
# A lock belongs to a workflow, not to a process, and never expires. Every spelling of a repository means the same
# repository, and "" means the home's. Rows are compared by that rule and not by their text: the meaning of "" is a
# setting unknown to migrations, and rows of older versions have the spelling of their documents. Locks are few (one per
# unfinished workflow), so all locks of an issue number are read.


#: A holder may release the lock between our insert and our query; after this many times something else is wrong.
_LOOKS = 10


_LOCK = "repository, issue_number, adw_id, acquired_at"


def insert_lock(session: Session, lock: IssueLock) -> None:
    """Store *lock* inside the transaction *session*; do nothing if the issue is locked."""
    session.run(
        f"INSERT INTO adw_locks ({_LOCK}) VALUES (:repository, :issue_number, :adw_id, :acquired_at)"
        " ON CONFLICT (repository, issue_number) DO NOTHING",
        connection.lock_params(lock),
    )


class IssueLocks:
    """Issue locks in the table adw_locks."""

    def __init__(self, database: Database, *, clock: Clock, repository: str = "") -> None:
        """Keep locks in *database*; an empty repository means *repository* in this home."""
        self._database = database
        self._clock = clock
        self._repository = repository

    def key(self, repository: str) -> str:
        """Return *repository* in the form in which locks compare it."""
        return in_home(repository, self._repository)

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Take the lock; return True if it is (or was already) ours, False if another workflow has it."""
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

    def release(self, issue_number: int, adw_id: str, repository: str = "", *, fence: int | None = None) -> bool:
        """
        Release the lock; return False, changing nothing, if *adw_id* does not have it.

        With *fence*, release it only if nobody has owned the workflow since: a new owner may continue the workflow.
        """
        check_adw_id(adw_id)
        with self._database.read() as session:  # a document in the database deleted its lock when it ended
            if not self._ours(session, issue_number, adw_id, repository):
                return False

        def work(session: Session) -> bool:
            if fence is not None:
                # The row stays locked until the commit: another process that takes the lease waits for it.
                sql = self._database.render("SELECT fence FROM workflow_states WHERE adw_id = :adw_id {row_lock}")
                row = session.one(sql, {"adw_id": adw_id})
                if row is not None and row[0] != fence:
                    return False
            freed = [
                session.run(
                    "DELETE FROM adw_locks"
                    " WHERE repository = :repository AND issue_number = :issue_number AND adw_id = :adw_id",
                    connection.lock_params(lock),
                )
                for lock in self._ours(session, issue_number, adw_id, repository)
            ]

            return any(freed)

        return self._database.transact(work)

    def holder(self, issue_number: int, repository: str = "") -> IssueLock | None:
        """Return the lock of an issue, or None."""
        with self._database.read() as session:
            held = self._of_issue(session, issue_number, repository)

        return held[0] if held else None

    def all(self) -> tuple[IssueLock, ...]:
        """Return every lock, oldest first."""
        with self._database.read() as session:
            rows = session.all(f"SELECT {_LOCK} FROM adw_locks ORDER BY acquired_at, repository, issue_number")

        return tuple(connection.to_lock(row) for row in rows)

    def first(self, limit: int) -> tuple[IssueLock, ...]:
        """Return the first *limit* locks, by repository and issue."""
        with self._database.read() as session:
            rows = session.all(
                f"SELECT {_LOCK} FROM adw_locks ORDER BY repository, issue_number LIMIT :limit", {"limit": limit}
            )

        return tuple(connection.to_lock(row) for row in rows)

    def take(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> IssueLock:
        """Lock the issue for *adw_id* if it is free, and return its current lock."""
        normalise(repository)  # an invalid name is refused before it locks anything
        lock = IssueLock(repository=self.key(repository), issue_number=issue_number, adw_id=adw_id, acquired_at=moment)
        for _ in range(_LOOKS):
            held = self._of_issue(session, issue_number, repository)
            if held:
                return held[0]
            insert_lock(session, lock)

        raise DatabaseError(f"the lock of issue {issue_number} could neither be taken nor be read: try again")

    def _ours(self, session: Session, issue_number: int, adw_id: str, repository: str) -> list[IssueLock]:
        return [lock for lock in self._of_issue(session, issue_number, repository) if lock.adw_id == adw_id]

    def _of_issue(self, session: Session, issue_number: int, repository: str) -> list[IssueLock]:
        """Return the locks of an issue, oldest first: one, unless two names that are equal now once differed."""
        key = self.key(repository)
        rows = session.all(
            f"SELECT {_LOCK} FROM adw_locks WHERE issue_number = :issue_number ORDER BY acquired_at, repository",
            {"issue_number": issue_number},
        )
        held = [lock for lock in map(connection.to_lock, rows) if self.key(lock.repository) == key]
        if not held:
            normalise(repository)  # any text may match an old row, but an invalid name is a mistake

        return held


class WorkflowRegistry:
    """Creates workflows in the database: lock, row, lease and first run in one transaction."""

    def __init__(self, database: Database, *, clock: Clock, home: str, repository: str = "") -> None:
        """Register workflows with documents in *home* ("files" or "database"); *repository* replaces an empty one."""
        self._database = database
        self._clock = clock
        self._home = home
        self._locks = IssueLocks(database, clock=clock, repository=repository)
        self._queue = RunStore(database, clock=clock)
        self._register = database.render(
            f"INSERT INTO workflow_states ({', '.join(connection.STATE_COLUMNS)})"
            " VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, 0, 1,"
            " :owner, {now} + :ttl, :boot, :taken_at, :home, :schema_version, 0, :created_at, :updated_at, '')"
            " ON CONFLICT (adw_id) DO NOTHING"
        )

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
        Lock the issue, insert the row with fence 1, and enqueue *run*.

        Raises IssueLocked or StateExists; nothing is left behind then.
        """
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        moment = timestamps.to_text(self._clock.now())
        params = self._row_of(document, owner, ttl_seconds, moment)
        # Same keys as if these events came with the document, so that storing them again changes nothing.
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
            "title": "",  # stored with the document, once secrets are removed from it
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": moment,
            "home": self._home,
            "schema_version": document.state_version,
        }

    def unregister(self, lease: Lease) -> None:
        """Undo the registration of a workflow whose document could not be written; a row with a document stays."""
        params = {"adw_id": lease.adw_id, "owner": lease.owner.to_text(), "fence": lease.fence}

        def work(session: Session) -> None:
            removed = session.run(
                "DELETE FROM workflow_states"
                " WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND revision = 0",
                params,
            )
            for table in ("adw_locks", "events", "runs") if removed else ():
                session.run(f"DELETE FROM {table} WHERE adw_id = :adw_id", params)

        self._database.transact(work)

    def _lock(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> None:
        held = self._locks.take(session, issue_number, adw_id, repository, moment)
        if held.adw_id != adw_id:
            raise IssueLocked(issue_number, held.adw_id, repository)


class DocumentRegistry(WorkflowRegistry):
    """A registry of workflows whose documents are in the same database."""

    def __init__(self, database: Database, *, clock: Clock, store: DatabaseStateStore, repository: str = "") -> None:
        """Register workflows whose documents are in *store*."""
        super().__init__(database, clock=clock, home="database", repository=repository)
        self._store = store

    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """
        Store the document of a workflow without an owner, lock its issue and enqueue *run*, all in one transaction.

        Raises IssueLocked or StateExists; nothing is left behind then.
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


# --- issue locks as three plain functions: one live workflow per issue of a repository -------------------------
#
# A lock is taken when its workflow is created, kept while the workflow is paused or failed, and released by the write
# that ends it. A wrong id can neither take nor release it.


#: Decimal digits only, without sign or leading zero, as in an issue's URL.
_ISSUE = re.compile(r"[1-9][0-9]{0,17}")


def acquire_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Lock an issue for *adw_id*; return True if the lock is (or already was) its own, False if another has it."""
    return _locks(locks).acquire(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def verify_lock_ownership(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Say whether *adw_id* has the lock of the issue."""
    return _locks(locks).verify(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def release_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Release the lock of an issue; return False, changing nothing, if *adw_id* does not have it."""
    return _locks(locks).release(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def check_issue_number(issue_number: object) -> int:
    """Return the issue number given as a number or as digits; raise UsageError for anything else."""
    if isinstance(issue_number, int | str) and not isinstance(issue_number, bool):
        digits = str(issue_number).strip()
        if _ISSUE.fullmatch(digits):
            return int(digits)

    raise UsageError(f"{str(issue_number)[:40]!r} is not an issue number: use a whole number from 1 up, such as 42")


def _locks(locks: IssueLocks | None) -> IssueLocks:
    return default_home.get().locks if locks is None else locks
