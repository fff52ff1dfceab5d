"""
Forking between transactions, never inside one.

SQLite keeps the locks of a process in memory that a forked child inherits: a child would believe it holds its parent's
locks, and take none of its own. So before a fork the transactions of other threads are waited for and every connection
is closed. Where that cannot be, because the forking thread itself is inside one, the child is not let in at all.
"""

from __future__ import annotations

import threading

from adws.adw_modules.errors import DatabaseUnavailable


class ForkGate:
    """Counts who is inside a transaction, and closes while a fork is made."""

    def __init__(self, *, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._is_unusable = False  #: only ever in a child
        self._start_afresh()

    def enter(self) -> None:
        """Go in; raise DatabaseUnavailable in a child that was forked inside a transaction."""
        if self._is_unusable:
            raise DatabaseUnavailable(
                "this process was forked inside a database transaction and cannot use the database: "
                "fork outside of it, or start a new process"
            )
        me = threading.get_ident()
        with self._guard:
            while self._forking and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1

    def leave(self) -> None:
        """Go out."""
        me = threading.get_ident()
        with self._guard:
            left = self._inside.get(me, 0) - 1
            if left > 0:
                self._inside[me] = left
                return
            self._inside.pop(me, None)
            if self._forking:
                self._changed.notify_all()

    def close(self) -> bool:
        """Let nobody in any more, wait for those inside, and say whether nobody is left."""
        me = threading.get_ident()
        with self._guard:
            self._forking.add(me)
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, timeout=self._patience)
            return not self._inside

    def open(self) -> None:
        """Let everybody in again, unless another thread forks: our fork is made, and this is the parent."""
        with self._guard:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def start_in_child(self) -> None:
        """Start afresh in the child, which has no other threads; unusable when anybody was inside at the fork."""
        self._is_unusable = self._is_unusable or bool(self._inside)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._guard = threading.RLock()  # taken as it is on the usual way: Condition's own enter and exit are Python
        self._changed = threading.Condition(self._guard)
        self._inside: dict[int, int] = {}  #: thread -> how many transactions it is in
        self._forking: set[int] = set()  #: threads that are making a fork; closed while there is one
