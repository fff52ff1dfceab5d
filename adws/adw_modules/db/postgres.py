"""
PostgreSQL as the database of several machines.

Only the server's clock measures leases. If the answer to a commit is lost, the transaction is never repeated blindly:
the caller gets CommitUnknown and checks. No state is kept in a server session between transactions, so a pooler in
transaction mode may be used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

import psycopg

from adws.adw_modules.db.connection import _NOTHING, PATIENCE_SECONDS, Database, Params, Row, Session
from adws.adw_modules.errors import (
    CommitUnknown,
    DatabaseError,
    DatabaseUnavailable,
    TransactionAborted,
)
from adws.adw_modules.interfaces import Clock

_Result = TypeVar("_Result")

#: How often a transaction that conflicts with another is tried.
TRIES = 5
#: Number of connections kept open for the next transaction.
IDLE_CONNECTIONS = 4
CONNECT_SECONDS = 10

_LIMITS = f"SET LOCAL statement_timeout = '{PATIENCE_SECONDS:.0f}s'; SET LOCAL lock_timeout = '{PATIENCE_SECONDS:.0f}s'"
#: One message each. SET LOCAL rather than SET: behind a pooler, the session soon belongs to somebody else.
_BEGIN_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_LIMITS}"
_BEGIN_WRITE = (
    f"BEGIN; {_LIMITS}; SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL synchronous_commit = on"
)

_TOKENS = re.compile(
    r"""
    (?P<text>'(?:[^']|'')*')      # quoted text
    | (?P<name>"(?:[^"]|"")*")    # quoted name
    | (?P<note>--[^\n]*)          # comment
    | (?P<cast>::)
    | :(?P<param>[A-Za-z_]\w*)
    | (?P<percent>%)
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=512)
def to_pyformat(sql: str) -> str:
    """Return *sql* with `:name` in psycopg's style, `%(name)s`; quoted text, comments and casts are unchanged."""

    def spelled(found: re.Match[str]) -> str:
        param = found["param"]

        return f"%({param})s" if param else found[0].replace("%", "%%")

    return _TOKENS.sub(spelled, sql)


def without_password(url: str) -> str:
    """Return *url* without its password; an unusual URL loses too much rather than too little."""
    shown = re.sub(r"(://[^:/@?]*):.*@", r"\1:***@", url)

    return re.sub(r"(?i)\b((?:ssl)?password)=[^&]*", r"\1=***", shown)


class PostgresSession(Session):
    """A transaction on one connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        return self._execute(sql, params).fetchone()

    def run(self, sql: str, params: Params = _NOTHING) -> int:
        return self._execute(sql, params).rowcount

    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(to_pyformat(sql), params)

    def _execute(self, sql: str, params: Params) -> psycopg.Cursor[Row]:
        return self._connection.execute(to_pyformat(sql), params)


class PostgresDatabase(Database):
    """A server with any number of readers and writers."""

    dialect = "postgresql"
    now_sql = "extract(epoch from clock_timestamp())::float8"
    row_lock_sql = "FOR UPDATE"
    like_sql = "ILIKE"

    def __init__(self, url: str, *, clock: Clock) -> None:
        """Use the server at *url* (`postgresql://user@host/name`)."""
        super().__init__(name=without_password(url), clock=clock)
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._idle: list[psycopg.Connection[Row]] = []

    def lease_clock(self) -> Params:
        return {"boot": ""}  # the server's clock keeps running when a machine restarts

    def server_time(self) -> float | None:
        with self.read() as session:
            return float(session.all(self.render("SELECT {now}"))[0][0])

    def read(self) -> AbstractContextManager[Session]:
        return self._transaction(_BEGIN_READ, end=self._roll_back)  # nothing was changed, so nothing to commit

    def write(self) -> AbstractContextManager[Session]:
        return self._transaction(_BEGIN_WRITE, end=self._commit)

    @contextmanager
    def _transaction(self, begin: str, *, end: Callable[[psycopg.Connection[Row]], None]) -> Iterator[Session]:
        connection = self._begin(begin)
        try:
            yield PostgresSession(connection)
        except BaseException as exc:
            self._roll_back(connection)
            if isinstance(exc, psycopg.Error):
                raise self._translated(exc) from exc
            raise
        end(connection)

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        for tried in range(1, TRIES):
            try:
                return super().transact(work)
            except TransactionAborted:
                # Wait for different times, so that the same two transactions do not conflict again.
                self.clock.sleep(0.01 * tried * (1.0 + self.clock.random()))

        return super().transact(work)

    def schema_version(self) -> str | None:
        with self.read() as session:
            if session.one("SELECT to_regclass('alembic_version')") == (None,):
                return None
            row = session.one("SELECT version_num FROM alembic_version")

        return None if row is None else str(row[0])

    def integrity_problems(self) -> list[str]:
        with self.read() as session:
            broken = session.all("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")

        return [f"index {row[0]} is not valid" for row in broken]

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Row]:
        """Return a new connection."""
        try:
            return psycopg.connect(self._url, autocommit=autocommit, **self._options())
        except psycopg.Error as exc:
            raise self._unreachable(exc) from exc

    def connect_with(self) -> tuple[str, dict[str, Any]]:
        """Return the URL and the options of a connection, for callers that open their own."""
        return self._url, self._options()

    def close(self) -> None:
        if self.opened_by not in {0, os.getpid()}:
            return  # the connections belong to the parent
        while self._idle:
            with suppress(IndexError):  # another thread may be faster
                self._idle.pop().close()
        self.opened_by = 0

    def _options(self) -> dict[str, Any]:
        """Return the connection settings that the URL leaves open, and the fixed ones."""
        # Prepared statements do not survive a pooler in transaction mode.
        return {"prepare_threshold": None, **self._defaults()}

    def _defaults(self) -> dict[str, Any]:
        wanted = {"application_name": "adw", "connect_timeout": CONNECT_SECONDS, "keepalives_idle": 30}
        given = psycopg.conninfo.conninfo_to_dict(self._url)

        return {name: value for name, value in wanted.items() if name not in given}

    def _begin(self, begin: str) -> psycopg.Connection[Row]:
        """Return a connection in a new transaction; a connection that broke while idle is replaced."""
        self.check_process()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            try:
                connection.execute(begin)
            except psycopg.Error:
                connection.close()  # nothing had begun, so another connection loses nothing
            else:
                return connection
        connection = self.connect()
        try:
            connection.execute(begin)
        except psycopg.Error as exc:
            connection.close()
            raise self._translated(exc) from exc

        return connection

    def _commit(self, connection: psycopg.Connection[Row]) -> None:
        try:
            connection.execute("COMMIT")
        except psycopg.Error as exc:
            known = exc.sqlstate is not None and not exc.sqlstate.startswith(("08", "57P"))
            connection.close()
            if known:
                raise self._translated(exc) from exc
            raise CommitUnknown(self.name, _first_line(exc)) from exc
        self._give_back(connection)

    def _roll_back(self, connection: psycopg.Connection[Row]) -> None:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
        self._give_back(connection)

    def _give_back(self, connection: psycopg.Connection[Row]) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        is_idle = connection.info.transaction_status == idle
        if is_idle and self.opened_by and len(self._idle) < IDLE_CONNECTIONS:  # not closed meanwhile
            self._idle.append(connection)
        else:
            connection.close()

    def _translated(self, error: psycopg.Error) -> DatabaseError:
        """Return *error* as a DatabaseError whose message says what to do."""
        state = error.sqlstate or ""
        if state in {"40001", "40P01"}:
            return TransactionAborted(f"{self.name}: {_first_line(error)}; nothing was changed, try again")
        if state in {"55P03", "57014"}:
            return DatabaseUnavailable(
                f"the database {self.name} did not answer within {PATIENCE_SECONDS:.0f} s: "
                "look for a transaction that is left open (pg_stat_activity) and try again"
            )
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if broken and (not state or state.startswith(("08", "57P", "53"))):
            return self._unreachable(error)

        return DatabaseError(f"the database {self.name} could not do it: {_first_line(error)}; nothing was changed")

    def _unreachable(self, error: psycopg.Error) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"cannot reach the database {self.name}: {_first_line(error)}; "
            "look whether the server runs and whether the setting database.url is right"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
