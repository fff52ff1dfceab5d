"""
SQLite as the database of one machine.

WAL with synchronous=FULL: what was committed survives a power cut. Every write is BEGIN IMMEDIATE behind one flock
beside the file, so writers queue and none of them sees SQLITE_BUSY from another adw. Leases are measured by the time
since the machine started, and those of an earlier start are over: jumps of the wall clock change nothing.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import quote

from adws.adw_modules.db import mounts, schema_version
from adws.adw_modules.db.fork_gate import ForkGate
from adws.adw_modules.db.session import _NOTHING, PATIENCE_SECONDS, Database, Params, Row, Session, _Result
from adws.adw_modules.db.write_turn import Turn, WriteTurn
from adws.adw_modules.errors import DatabaseCorrupt, DatabaseError, DatabaseUnavailable, DurabilityUnknown
from adws.adw_modules.interfaces import Clock

#: RETURNING came with this version.
OLDEST = (3, 35, 0)
#: The write-ahead log is cut back to this size when it was longer.
WAL_LIMIT_BYTES = 64 * 1024 * 1024
#: Pages after which the log is brought into the database and written from its start again. Writing over a log that is
#: there costs half of what making it longer costs, so it is kept short: full length comes after some 40 steps.
WAL_PAGES = 250
#: Read connections kept open for the next reader.
IDLE_READERS = 4

_SETTINGS = f"""
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = {WAL_LIMIT_BYTES};
PRAGMA wal_autocheckpoint = {WAL_PAGES};
"""

#: A parameter of a query.
_NAME = re.compile(r":([a-z][a-z0-9_]*)")

#: Connections of the parent process: never used, never closed, never collected.
_PARENTS: list[sqlite3.Connection] = []


class SqliteSession(Session):
    """A transaction on one connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        rows = self._connection.execute(sql, params).fetchall()  # all: a RETURNING is only done when it is read

        return rows[0] if rows else None

    def run(self, sql: str, params: Params = _NOTHING) -> int:
        return self._connection.execute(sql, params).rowcount

    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        numbered, values_of = _numbered(sql)
        self._connection.executemany(numbered, map(values_of, params))


@lru_cache(maxsize=64)
def _numbered(sql: str) -> tuple[str, Callable[[Params], Row]]:
    """Return *sql* with places instead of names, and what puts values in their order: names cost a third more."""
    names = _NAME.findall(sql)
    values_of = itemgetter(*names)

    return _NAME.sub("?", sql), values_of if len(names) > 1 else lambda params: (params[names[0]],)


class _WriteBlock(AbstractContextManager[Session]):
    """One write. A class, because every step of a workflow passes here and a generator costs three times that."""

    __slots__ = ("_connection", "_database", "_turn")

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> Session:
        self._connection, self._turn = self._database.begin()

        return SqliteSession(self._connection)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._database.end(self._connection, self._turn, error)


class _Reader(NamedTuple):
    """A connection to read on, and which file it was opened for."""

    connection: sqlite3.Connection
    file: tuple[int, int] | None


class SqliteDatabase(Database):
    """One file, any number of readers, one writer at a time."""

    dialect = "sqlite"
    now_sql = ":now"
    row_lock_sql = ""  # a write transaction has the whole database
    like_sql = "LIKE"  # knows the case of ASCII letters only

    def __init__(
        self, path: Path, *, clock: Clock, boot_id: str = "", patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Use the file *path*; *boot_id* names this start of the machine."""
        super().__init__(name=str(path), clock=clock)
        self.path = path
        self._boot_id = boot_id
        self._patience = patience_seconds
        self._readers: list[_Reader] = []  #: idle ones
        self._writer: sqlite3.Connection | None = None
        self._writer_file: tuple[int, int] | None = None
        self._gate = ForkGate(patience_seconds=patience_seconds)
        self.turn = WriteTurn(path.with_name(f"{path.name}.write-lock"), patience_seconds=patience_seconds)

    def lease_clock(self) -> Params:
        return {"now": self.clock.boottime(), "boot": self._boot_id}

    @contextmanager
    def read(self) -> Iterator[Session]:
        self._gate.enter()
        try:
            reader = self._reading()
            connection = reader.connection
            try:
                connection.execute("BEGIN")
                yield SqliteSession(connection)
                connection.execute("COMMIT")
            except BaseException as exc:
                connection.close()
                if isinstance(exc, sqlite3.Error):
                    raise self.translated(exc) from exc
                raise
            self._keep_reader(reader)
        finally:
            self._gate.leave()

    def write(self) -> AbstractContextManager[Session]:
        return _WriteBlock(self)

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        # What the block of `write` does, without a block: every step and every claim passes here.
        connection, turn = self.begin()
        try:
            result = work(SqliteSession(connection))
        except BaseException as exc:
            self.end(connection, turn, exc)
            raise
        self.end(connection, turn, None)

        return result

    def begin(self) -> tuple[sqlite3.Connection, Turn]:
        """Begin a write; what it returns is for `end`, which must follow."""
        self._gate.enter()
        try:
            turn = self.turn.take()
            try:
                connection = self._writing()
                connection.execute("BEGIN IMMEDIATE")
            except BaseException:
                self.turn.give_back(turn)
                raise
        except sqlite3.Error as exc:
            self._gate.leave()
            raise self.translated(exc) from exc
        except BaseException:
            self._gate.leave()
            raise

        return connection, turn

    def end(self, connection: sqlite3.Connection, turn: Turn, error: BaseException | None) -> None:
        """Commit, or undo everything after an *error*; a driver's error is raised again as a sentence."""
        try:
            if error is None:
                self._commit(connection)
                return
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error):
                raise self.translated(error) from error
        finally:
            try:
                self.turn.give_back(turn)
            finally:
                self._gate.leave()

    def schema_version(self) -> str | None:
        if not self.is_there():
            return None
        with self.read() as session:
            if session.one("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'") is None:
                return None
            row = session.one(schema_version.READ_VERSION)

        return None if row is None else str(row[0])

    def is_there(self) -> bool:
        """Say whether there is a file; raise DatabaseUnavailable when that cannot be seen."""
        return self._file_in_place() is not None

    def integrity_problems(self) -> list[str]:
        with self.read() as session:
            answers = [str(row[0]) for row in session.all("PRAGMA integrity_check")]
            answers += [f"broken reference in {row[0]}" for row in session.all("PRAGMA foreign_key_check")]

        return [answer for answer in answers if answer != "ok"]

    def copy_to(self, target: Path) -> None:
        """Write a whole copy of this moment to *target*, which must not exist, while others may go on writing."""
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(self.connect()) as source, closing(sqlite3.connect(target)) as copy:
                source.backup(copy)
        except sqlite3.Error as exc:
            target.unlink(missing_ok=True)
            raise self.translated(exc) from exc
        _sync(target)
        _sync(target.parent)

    def connect(self) -> sqlite3.Connection:
        """Return a fresh connection to the file, which must exist: a vanished database is not made anew in silence."""
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?{self._access()}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # one thread at a time uses it: the list of readers and the turn see to that
                timeout=self._patience,
            )
        except sqlite3.Error as exc:
            raise self.translated(exc) from exc
        try:
            connection.executescript(_SETTINGS)
        except sqlite3.Error as exc:
            connection.close()
            raise self.translated(exc) from exc

        return connection

    def _access(self) -> str:
        """Return how the file is opened: even readers write beside it, so where that may not be they must not try."""
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK):
            return "mode=rw"
        # A log belongs to somebody at work, and is read with. Without one the file is whole by itself.
        has_log = self.path.with_name(f"{self.path.name}-wal").exists()

        return "mode=ro" if has_log else "mode=ro&immutable=1"

    def close(self) -> None:
        self.turn.close()
        self._close_connections()

    def before_fork(self) -> None:
        if self._gate.close():
            self._close_connections()

    def after_fork_in_parent(self) -> None:
        self._gate.open()

    def after_fork_in_child(self) -> None:
        _PARENTS.extend(reader.connection for reader in self._readers)
        if self._writer is not None:
            _PARENTS.append(self._writer)
        self._readers, self._writer = [], None
        self.turn.forget()
        self._gate.start_in_child()

    def translated(self, error: sqlite3.Error) -> DatabaseError:
        """Return *error* as a sentence that says what to do."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits only say where
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return DatabaseCorrupt(self.name, str(error))
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return DatabaseUnavailable(
                f"the database {self.name} was locked by another program for {self._patience:.0f} s: "
                "close that program (fuser shows which) and try again"
            )
        if code == sqlite3.SQLITE_FULL:
            return DatabaseError(f"the disk of the database {self.name} is full; nothing was changed: make room first")
        if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
            return DatabaseUnavailable(
                f"cannot use the database {self.name}: {error}; look whether it exists and may be written"
            )

        return DatabaseError(f"the database {self.name} could not do it: {error}; nothing was changed")

    def _reading(self) -> _Reader:
        """Return a connection to read on; one that still has the file from before a restore is closed."""
        file = self._file_in_place()
        while (idle := self._idle_reader()) is not None:
            if idle.file == file:
                return idle
            idle.connection.close()

        return _Reader(self.connect(), file)

    def _idle_reader(self) -> _Reader | None:
        try:
            return self._readers.pop()  # asked, not looked at first: another thread may be faster
        except IndexError:
            return None

    def _keep_reader(self, reader: _Reader) -> None:
        if len(self._readers) < IDLE_READERS:
            self._readers.append(reader)
        else:
            reader.connection.close()

    def _writing(self) -> sqlite3.Connection:
        """Return the connection that writes. The file is looked at each time: after a restore it is another one."""
        file = self._file_in_place()
        if self._writer is not None and file == self._writer_file:
            return self._writer
        self._drop_writer()
        mounts.refuse_network(self.path)
        self._writer, self._writer_file = self.connect(), file

        return self._writer

    def _file_in_place(self) -> tuple[int, int] | None:
        """Return which file has the database's name now, None when there is none."""
        while True:
            try:
                found = os.stat(self.name)  # noqa: PTH116 - on the step path: a third of the time of Path.stat
            except (FileNotFoundError, NotADirectoryError):
                return None
            except InterruptedError:
                continue  # unlike most calls, this one is not repeated by Python itself
            except OSError as exc:
                raise DatabaseUnavailable(
                    f"cannot look at the database {self.name}: {exc.strerror or exc}; nothing was changed: "
                    "look whether its directory may be read and its disk is well, then try again"
                ) from exc

            return found.st_dev, found.st_ino

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as exc:
            self._roll_back(connection)
            # A failed sync cannot be repeated: what reached the disk is only known when the file is read again.
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
                raise DurabilityUnknown(self.name, OSError(errno.EIO, str(exc))) from exc
            raise self.translated(exc) from exc

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """Undo the transaction; a connection that cannot even do that is not used again."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_writer()

    def _close_connections(self) -> None:
        self._drop_writer()
        while (idle := self._idle_reader()) is not None:
            idle.connection.close()

    def _drop_writer(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            connection.close()


def make_file(path: Path) -> None:
    """Make an empty database file that only its owner can read, and its directory; harmless when it exists."""
    if sqlite3.sqlite_version_info < OLDEST:
        wanted = ".".join(str(part) for part in OLDEST)
        raise DatabaseUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: adw needs {wanted}, or PostgreSQL")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only a file that is not there: closing a descriptor of one that is would drop the locks that SQLite holds on
        # it for this process.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _sync(path.parent)
    except OSError as exc:
        raise DatabaseUnavailable(
            f"cannot make the database {path}: {exc.strerror or exc}; choose a place that may be written"
        ) from exc
    mounts.refuse_network(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
