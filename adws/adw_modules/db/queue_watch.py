"""
Looking at whether anything was committed to a SQLite database, for a few microseconds a look.

`PRAGMA data_version` changes with every commit of any other connection, of this process or another, and reads no page.
So the watch has a connection of its own that never writes. It raises nothing: when it cannot look it says that there
may be something new, and who then asks the queue hears what is wrong.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref

from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseError


class SqliteWatch:
    """A `QueueWatch` on one database file. Threads may share it; after a fork both processes may go on using it."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int, int] | None = None  #: the file and its version at the last look
        _OPEN.add(self)

    def has_changed(self) -> bool:
        """Say whether there may be something new; the first look says yes."""
        with self._guard:
            version = self._look()
            is_same = version is not None and version == self._seen
            self._seen = version

        return not is_same

    def close(self) -> None:
        """Close the connection; another look opens it again."""
        with self._guard:
            self._drop()

    def before_fork(self) -> None:
        """Close the connection, which must not get into a child, and let nobody look until the fork is made."""
        self._guard.acquire()
        self._drop()

    def after_fork(self) -> None:
        """Go on, in either process."""
        self._guard.release()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            file = os.stat(self._database.path)  # noqa: PTH116 - many times a second: a third of the time of Path.stat
            place = (file.st_dev, file.st_ino)
            if self._seen is None or self._seen[:2] != place:
                self._drop()  # after a restore another file has the name
            if self._connection is None:
                self._connection = self._database.connect()
            row = self._connection.execute("PRAGMA data_version").fetchone()
        except (OSError, sqlite3.Error, DatabaseError):
            self._drop()
            return None

        return (*place, int(row[0]))

    def _drop(self) -> None:
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()


#: Every watch of this process.
_OPEN: weakref.WeakSet[SqliteWatch] = weakref.WeakSet()
#: `stopped`: those that the fork of this thread has stopped.
_FORK = threading.local()


def _before_fork() -> None:
    _FORK.stopped = list(_OPEN)
    for watch in _FORK.stopped:
        watch.before_fork()


def _after_fork() -> None:
    stopped: list[SqliteWatch] = _FORK.stopped
    while stopped:
        stopped.pop().after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
