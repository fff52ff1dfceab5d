"""
Issue locks: the primary key (repository, issue) lets one workflow in.

A lock belongs to a workflow, not to a process; it has no age and is never taken away because of one. Every spelling of
a repository is the same repository, and "" is that of the home. Rows are compared by that rule, not by their text: what
"" means is a setting, which no migration knows, and rows of older versions have the spelling of their documents. Locks
are few, one for each unfinished workflow, so all those of an issue's number are looked at.
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, IssueLock
from adws.adw_modules.repository_name import in_home, normalise

#: A holder may let go between our insert and our look; after this many times something else is wrong.
_LOOKS = 10


class DatabaseIssueLocks:
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
            freed = [session.run(statements.LOCK_RELEASE, rows.lock_params(lock)) for lock in ours]

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
            found = session.all(statements.LOCKS_ALL)

        return tuple(rows.to_lock(row) for row in found)

    def first(self, limit: int) -> tuple[IssueLock, ...]:
        """Return so many locks, by repository and issue."""
        with self._database.read() as session:
            found = session.all(statements.LOCKS_FIRST, {"limit": limit})

        return tuple(rows.to_lock(row) for row in found)

    def take(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> IssueLock:
        """Lock the issue for *adw_id* if it is free, and return who has it now."""
        normalise(repository)  # a name that is none is refused before it locks anything
        lock = IssueLock(repository=self.key(repository), issue_number=issue_number, adw_id=adw_id, acquired_at=moment)
        for _ in range(_LOOKS):
            held = self._of_issue(session, issue_number, repository)
            if held:
                return held[0]
            session.run(statements.LOCK_ACQUIRE, rows.lock_params(lock))

        raise DatabaseError(f"the lock of issue {issue_number} could neither be taken nor be read: try again")

    def _ours(self, session: Session, issue_number: int, adw_id: str, repository: str) -> list[IssueLock]:
        return [lock for lock in self._of_issue(session, issue_number, repository) if lock.adw_id == adw_id]

    def _of_issue(self, session: Session, issue_number: int, repository: str) -> list[IssueLock]:
        """Return the locks of an issue, oldest first: one, unless names that are one now were two when they came."""
        key = self.key(repository)
        found = map(rows.to_lock, session.all(statements.LOCKS_OF_NUMBER, {"issue_number": issue_number}))
        held = [lock for lock in found if self.key(lock.repository) == key]
        if not held:
            normalise(repository)  # an old row may be found by any text, but a text that names none is a mistake

        return held
