"""
Which workflow an issue belongs to, proven from both sides: the lock names the workflow, and its document the issue.

A workflow loses its claim with the write that ends it. Locks that a crash left behind are freed by looking at their
documents, never by their age.
"""

from __future__ import annotations

from collections.abc import Callable

from adws.adw_modules.errors import (
    AdwError,
    IssueLocked,
    NotTheLockOwner,
    StateError,
    StateNotFound,
    WorkflowBusy,
)
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import IssueLock, IssueLocks, LeaseTaken, Registry, StateStore
from adws.adw_modules.locks import check_issue_number
from adws.adw_modules.state_table import is_terminal


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
        # Its creator may be stopped right before its first write: shut out before we look, it cannot write after.
        self._store.fence_out(adw_id, fence=taken.lease.fence - 1)
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
        found, where, state = (document.get(key) for key in ("issue_number", "repository", "current_state"))
        is_same = self._locks.key(where if isinstance(where, str) else "") == self._locks.key(repository)
        if found != issue_number or not is_same:
            named = f"issue {found}" + (f" of {where}" if where else "") if found else "no issue"
            raise NotTheLockOwner(adw_id, issue_number, f"its document names {named}")
        if is_terminal(state):
            raise NotTheLockOwner(adw_id, issue_number, f"it is {state}; start a new workflow for the issue")
