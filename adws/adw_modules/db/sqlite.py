"""
SQLite as the database of one machine.

WAL with synchronous=FULL: what was committed survives a power cut. Every write is BEGIN IMMEDIATE behind one flock
beside the file, so none of the writers sees SQLITE_BUSY from another adw. Leases are measured by the time since the
machine started, and those of an earlier start are over: jumps of the wall clock change nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.connection import _NOTHING, PATIENCE_SECONDS, Database, Params, Row, Session, _Result
from adws.adw_modules.errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseUnavailable,
    DurabilityUnknown,
    LockUnavailable,
)
from adws.adw_modules.interfaces import Clock

#: Pauses between two tries for a lock that another process has: the first one, doubled each time, and the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0002, 0.002


class WriterLock:
    """
    One writer at a time on this machine: a thread lock inside the process, a flock between processes.

    SQLite's own lock is taken by polling too, but with pauses so long that a writer may wait for seconds. The lock file
    stays where it is for ever: two processes that lock an unlinked file and its successor would both be in.
    """

    def __init__(self, path: Path, *, patience_seconds: float, clock: Clock) -> None:
        self._path = path
        self._patience = patience_seconds
        self._clock = clock
        self._threads = threading.Lock()
        self._fd: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside the block; raise DatabaseUnavailable after waiting long enough."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take the lock, which must be released; raise as `held` does."""
        if not self._threads.acquire(timeout=self._patience):
            raise self._too_long("another thread of this process")
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._wait_for_other_process(self._fd)
        except OSError as exc:
            self.release()
            raise LockUnavailable(str(self._path), exc) from exc
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the next one write. This never fails: what was done under the lock is done, and the next must get in."""
        fd = self._fd
        try:
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            self._close_file()  # the lock goes with its descriptor; the next writer opens a new one
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the lock file; the next writer opens it again."""
        with self._threads:
            self._close_file()

    def _wait_for_other_process(self, fd: int) -> None:
        pause, deadline = FIRST_PAUSE_SECONDS, self._clock.monotonic() + self._patience
        while self._clock.monotonic() < deadline:
            self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return

        raise self._too_long("another process")

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _too_long(self, who: str) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{who} has been writing for {self._patience:.0f} s and holds {self._path}: "
            "look whether it is stopped or stuck (fuser shows who), then try again"
        )


class CommitWatcher:
    """
    Detects commits to one database file, in a few microseconds per check. Threads may share it.

    `PRAGMA data_version` changes with every commit of any other connection, of this process or another, and reads no
    page. So the watcher has a connection of its own that never writes. It raises nothing: when it cannot check it
    reports that there may be something new, and the query that follows raises the error.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int, int] | None = None  #: the file and its version at the last check

    def has_changed(self) -> bool:
        """Return whether there may be something new; True for the first check."""
        if os.getpid() != self._database.opened_by:
            try:
                self._database.check_process()
            except DatabaseUnavailable:
                return True
        with self._guard:
            before, self._seen = self._seen, None
            try:
                file = self._database.file_in_place() or (0, 0)
                if self._connection is None or before is None or before[:2] != file:
                    self._drop()  # after a restore another file has the name
                    self._connection = self._database.connect()
                row = self._connection.execute("PRAGMA data_version").fetchone()
            except (sqlite3.Error, DatabaseError):
                self._drop()
                return True
            self._seen = (*file, int(row[0]))

            return self._seen != before

    def close(self) -> None:
        """Close the connection; another check opens it again."""
        with self._guard:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()


# Which file system a path is on, by the table of mounts, and what that means for what is written there.
#
# Pure: the table is passed in.


#: SQLite's locks and shared memory do not hold there, and two machines would write over each other without an error.
NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs"}
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"}
)
#: Directories of a host that a virtual machine sees.
SHARED_TYPES = frozenset({"9p", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse"})
#: Gone after a restart.
VOLATILE_TYPES = frozenset({"devtmpfs", "ramfs", "tmpfs"})
#: Gone with the container.
LAYERED_TYPES = frozenset({"aufs", "overlay"})


def file_system_of(path: Path, mount_table: str) -> str:
    """Return the type of the file system that *path* is on, by the longest mount point above it; "" when unknown."""
    where, result, kind = str(path.absolute()), "", ""
    for line in mount_table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _unescaped(fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        # Not shorter: of two mounts on one point the later one is on top.
        if inside and len(point) >= len(result):
            result, kind = point, after.split(" ", 1)[0]

    return kind


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)

    return text


# Whether a path lies on a network file system.
#
# SQLite's locks and shared memory do not hold there, and two machines would write over each other without an error.


MOUNT_TABLE = Path("/proc/self/mountinfo")


def refuse_network(path: Path, table: Path = MOUNT_TABLE) -> None:
    """Raise DatabaseUnavailable when *path* is known to lie on a network file system."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return  # no such table on this system: it cannot be told
    kind = file_system_of(path, text)
    if kind in NETWORK_TYPES:
        raise DatabaseUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite loses data: "
            "use a local disk, or PostgreSQL for several machines"
        )


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
_UNSYNCED = "PRAGMA synchronous = OFF;"
#: With a write-ahead log: no sync at a commit, and never a broken database. The sync of any later commit covers it.
_SYNCED_LATER = "PRAGMA synchronous = NORMAL;"

#: A parameter of a query.
_NAME = re.compile(r":([a-z][a-z0-9_]*)")


class SqliteSession(Session):
    """A connection inside a transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        return self.connection.execute(sql, params).fetchall()

    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        rows = self.connection.execute(sql, params).fetchall()  # all: a RETURNING is only done when it is read

        return rows[0] if rows else None

    def run(self, sql: str, params: Params = _NOTHING) -> int:
        return self.connection.execute(sql, params).rowcount

    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        numbered, values_of = _numbered(sql)
        self.connection.executemany(numbered, map(values_of, params))


@lru_cache(maxsize=64)
def _numbered(sql: str) -> tuple[str, Callable[[Params], Row]]:
    """Return *sql* with places instead of names, and what puts values in their order: names cost a third more."""
    names = _NAME.findall(sql)
    values_of = itemgetter(*names)

    return _NAME.sub("?", sql), values_of if len(names) > 1 else lambda params: (params[names[0]],)


class _WriteBlock(AbstractContextManager[Session]):
    """One write as a block. A class, because a generator costs three times that."""

    __slots__ = ("_database", "_session")

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> Session:
        self._session = self._database.begin()

        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._database.commit(self._session)
        else:
            self._database.roll_back(self._session, error)


class _Reader(SqliteSession, AbstractContextManager[Session]):
    """A connection to read on, and the block of one read; kept in *idle* for the next reader."""

    __slots__ = ("_database", "_idle", "file")

    def __init__(self, database: SqliteDatabase, file: tuple[int, int] | None, idle: list[_Reader]) -> None:
        super().__init__(database.connect())
        self._database = database
        self._idle = idle
        self.file = file  #: which one it was opened for

    def __enter__(self) -> Session:
        try:
            self.connection.execute("BEGIN")
        except sqlite3.Error as exc:
            self.connection.close()
            raise self._database.translated(exc) from exc

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self.connection.execute("COMMIT")
            except sqlite3.Error as exc:
                error = exc
            else:
                if self._database.opened_by and len(self._idle) < IDLE_READERS:  # not closed meanwhile
                    self._idle.append(self)
                else:
                    self.connection.close()
                return
        self.connection.close()
        if isinstance(error, sqlite3.Error):
            raise self._database.translated(error) from error


#: Every database of this process. What a forked child inherits from its parent keeps it from opening the same file:
#: SQLite remembers for each file which locks the process has, and the child would rely on those of its parent.
_DATABASES: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()


class SqliteDatabase(Database):
    """One file, any number of readers, one writer at a time."""

    dialect = "sqlite"
    now_sql = ":now"
    row_lock_sql = ""  # a write transaction has the whole database
    like_sql = "LIKE"  # knows the case of ASCII letters only

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        boot_id: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
        is_synced: bool = True,
    ) -> None:
        """Use the file *path*; *boot_id* names this start of the machine, only tests turn *is_synced* off."""
        super().__init__(name=str(path), clock=clock)
        _DATABASES.add(self)
        self.path = path
        self._boot_id = boot_id
        self._patience = patience_seconds
        self._settings = _SETTINGS if is_synced else _SETTINGS + _UNSYNCED
        self._is_synced = is_synced
        self._unsynced: SqliteDatabase | None = None
        self._readers: list[_Reader] = []  #: idle ones
        self._writer: SqliteSession | None = None
        self._writer_file: tuple[int, int] | None = None
        self.writer_lock = WriterLock(
            path.with_name(f"{path.name}.write-lock"),
            patience_seconds=patience_seconds,
            clock=SystemClock(),  # other processes do not live by the clock of a test
        )

    def lease_clock(self) -> Params:
        return {"now": self.clock.boottime(), "boot": self._boot_id}

    @property
    def unsynced(self) -> SqliteDatabase:
        if not self._is_synced:
            return self
        if self._unsynced is None:
            other = SqliteDatabase(
                self.path, clock=self.clock, boot_id=self._boot_id, patience_seconds=min(self._patience, 5.0)
            )
            other._settings = _SETTINGS + _SYNCED_LATER
            self._unsynced = other

        return self._unsynced

    def read(self) -> AbstractContextManager[Session]:
        if os.getpid() != self.opened_by:
            self.check_process()
        file = self.file_in_place()
        while True:
            try:
                idle = self._readers.pop()  # asked, not looked at first: another thread may be faster
            except IndexError:
                return _Reader(self, file, self._readers)
            if idle.file == file:
                return idle
            idle.connection.close()  # it still has the file from before a restore

    def write(self) -> AbstractContextManager[Session]:
        return _WriteBlock(self)

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        session = self.begin()
        try:
            result = work(session)
        except BaseException as exc:
            self.roll_back(session, exc)
            raise
        self.commit(session)

        return result

    def begin(self) -> SqliteSession:
        """Begin a write; `commit` or `roll_back` must follow."""
        if os.getpid() != self.opened_by:
            self.check_process()
        self.writer_lock.acquire()
        try:
            file = self.file_in_place()  # each time: after a restore it is another one
            if self._writer is None or file != self._writer_file:
                self._drop_writer()
                refuse_network(self.path)
                self._writer, self._writer_file = SqliteSession(self.connect()), file
            self._writer.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as exc:
            self.writer_lock.release()
            raise self.translated(exc) from exc
        except BaseException:
            self.writer_lock.release()
            raise

        return self._writer

    def commit(self, session: SqliteSession) -> None:
        """Make what was written durable."""
        try:
            session.connection.execute("COMMIT")
        except sqlite3.Error as exc:
            self._undo(session)
            # A failed sync cannot be repeated: what reached the disk is only known when the file is read again.
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
                raise DurabilityUnknown(self.name, OSError(errno.EIO, str(exc))) from exc
            raise self.translated(exc) from exc
        finally:
            self.writer_lock.release()

    def roll_back(self, session: SqliteSession, error: BaseException) -> None:
        """Undo everything after *error*; a driver's error is raised again as a sentence."""
        try:
            self._undo(session)
        finally:
            self.writer_lock.release()
        if isinstance(error, sqlite3.Error):
            raise self.translated(error) from error

    def _undo(self, session: SqliteSession) -> None:
        """Undo the transaction; a connection that cannot even do that is not used again."""
        try:
            if session.connection.in_transaction:
                session.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_writer()

    def schema_version(self) -> str | None:
        if not self.is_there():
            return None
        with self.read() as session:
            if session.one("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'") is None:
                return None
            row = session.one("SELECT version_num FROM alembic_version")

        return None if row is None else str(row[0])

    def is_there(self) -> bool:
        """Say whether there is a file; raise DatabaseUnavailable when that cannot be seen."""
        return self.file_in_place() is not None

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
        for other in list(_DATABASES):
            if other.path == self.path and other.opened_by:
                other.check_process()
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?{self._access()}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # one thread at a time uses it: see the list of readers and the writer lock
                timeout=self._patience,
            )
        except sqlite3.Error as exc:
            raise self.translated(exc) from exc
        try:
            connection.executescript(self._settings)
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
        if self.opened_by not in {0, os.getpid()}:
            return  # these are its parent's
        self.writer_lock.close()
        self._drop_writer()
        while self._readers:
            with suppress(IndexError):  # another thread may be faster
                self._readers.pop().connection.close()
        self.opened_by = 0
        if self._unsynced is not None:
            self._unsynced.close()

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

    def file_in_place(self) -> tuple[int, int] | None:
        """Return which file has the database's name now, None when there is none."""
        while True:
            try:
                info = os.stat(self.name)  # noqa: PTH116 - on the step path: a third of the time of Path.stat
            except (FileNotFoundError, NotADirectoryError):
                return None
            except InterruptedError:
                continue  # unlike most calls, this one is not repeated by Python itself
            except OSError as exc:
                raise DatabaseUnavailable(
                    f"cannot look at the database {self.name}: {exc.strerror or exc}; nothing was changed: "
                    "look whether its directory may be read and its disk is well, then try again"
                ) from exc

            return info.st_dev, info.st_ino

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.connection.close()


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
    refuse_network(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
