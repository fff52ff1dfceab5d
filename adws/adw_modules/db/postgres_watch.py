"""
Hearing from PostgreSQL that the queue changed.

Every enqueue, requeue and stop notifies in its own transaction, and the watch listens on a connection of its own: a
look reads what has already arrived and asks the server nothing. A pooler in transaction mode swallows notifications,
and a connection can break unseen: so every `POLL_SECONDS` a look says yes without having heard anything. It raises
nothing; who then asks the queue hears what is wrong.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

from adws.adw_modules.db import run_statements
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.interfaces import Clock

#: How long a notification that was lost delays a run at most.
POLL_SECONDS = 5.0

#: Connections of the parent process: never used, never closed, never collected.
_PARENTS: list[psycopg.Connection[Any]] = []


class PostgresWatch:
    """A `QueueWatch` on one database. One thread at a time looks; after a fork the child listens for itself."""

    def __init__(self, database: PostgresDatabase, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._pid = os.getpid()
        self._yes_again_at = 0.0  #: Clock.monotonic

    def has_changed(self) -> bool:
        """Say whether there may be something new; the first look says yes."""
        self._forget_parents()
        if self._clock.monotonic() >= self._yes_again_at:
            self._yes_again_at = self._clock.monotonic() + POLL_SECONDS
            self._listen()
            self._has_heard()  # what has arrived is answered by this yes
            return True

        return self._has_heard()

    def close(self) -> None:
        """Close the connection; another look opens it again."""
        self._forget_parents()
        connection, self._connection, self._yes_again_at = self._connection, None, 0.0
        if connection is not None:
            connection.close()

    def _has_heard(self) -> bool:
        """Read what has arrived; a broken connection is given up, and made again when the next yes is due."""
        if self._connection is None:
            return False
        try:
            server = self._connection.pgconn
            server.consume_input()
            has_heard = False
            while server.notifies() is not None:
                has_heard = True
        except psycopg.Error:
            self.close()  # also makes the next look say yes
            return True

        return has_heard

    def _listen(self) -> None:
        if self._connection is not None:
            return
        try:
            self._connection = self._database.connect()
            self._connection.execute(f"LISTEN {run_statements.CHANNEL}")
        except (psycopg.Error, DatabaseError):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _forget_parents(self) -> None:
        if self._pid == os.getpid():
            return
        if self._connection is not None:
            _PARENTS.append(self._connection)
        self._connection, self._pid, self._yes_again_at = None, os.getpid(), 0.0
