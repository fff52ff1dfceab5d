"""
Issue locks: the primary key (repository, issue) lets one workflow in.

A lock belongs to a workflow, not to a process; it has no age and is never taken away because of one. Every spelling of
a repository is the same repository.
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database, Params, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, IssueLock
from adws.adw_modules.repository_name import normalise

#: A holder may let go between our insert and our look; after this many times something else is wrong.
_LOOKS = 10


class DatabaseIssueLocks:
    """`IssueLocks` in the table adw_locks."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Take the lock; True when it is (or was already) ours, False when another workflow has it."""
        check_adw_id(adw_id)
        moment = timestamps.to_text(self._clock.now())

        def work(session: Session) -> bool:
            held = take(session, issue_number, adw_id, repository, moment)
            return held.adw_id == adw_id

        return self._database.transact(work)

    def verify(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Say whether *adw_id* has the lock."""
        check_adw_id(adw_id)
        held = self.holder(issue_number, repository)

        return held is not None and held.adw_id == adw_id

    def release(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Give it back; False, and nothing changed, when *adw_id* does not have it."""
        params = {**_key(issue_number, repository), "adw_id": check_adw_id(adw_id)}

        return self._database.transact(lambda session: session.run(statements.LOCK_RELEASE, params)) == 1

    def holder(self, issue_number: int, repository: str = "") -> IssueLock | None:
        """Return who has it."""
        with self._database.read() as session:
            row = session.one(statements.LOCK_HOLDER, _key(issue_number, repository))

        return None if row is None else rows.to_lock(row)

    def all(self) -> tuple[IssueLock, ...]:
        """Return every lock, oldest first."""
        with self._database.read() as session:
            found = session.all(statements.LOCKS_ALL)

        return tuple(rows.to_lock(row) for row in found)


def take(session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> IssueLock:
    """Lock the issue for *adw_id* if it is free, and return who has it now."""
    params = {**_key(issue_number, repository), "adw_id": adw_id, "acquired_at": moment}
    for _ in range(_LOOKS):
        session.run(statements.LOCK_ACQUIRE, params)
        row = session.one(statements.LOCK_HOLDER, params)
        if row is not None:
            return rows.to_lock(row)

    raise DatabaseError(f"the lock of issue {issue_number} could neither be taken nor be read: try again")


def _key(issue_number: int, repository: str) -> Params:
    return {"repository": normalise(repository), "issue_number": issue_number}
