"""
SQLite as the database of one machine.

WAL with synchronous=FULL: committed data survives a power cut. Every write is BEGIN IMMEDIATE behind one flock on a
file next to the database, so no writer gets SQLITE_BUSY from another adw process. Leases are measured by the time since
the machine started, and leases of an earlier boot have expired: jumps of the wall clock have no effect.
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

#: Pauses between attempts to lock: the first one, doubled each time, and the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0002, 0.002


class WriterLock:
    """
    Allows one writer at a time on this machine: a thread lock inside the process, a flock between processes.

    SQLite's own lock is polled too, but with such long pauses that a writer may wait for seconds. The lock file is
    never removed: one process could lock the removed file while another locks its successor.
    """

    def __init__(self, path: Path, *, patience_seconds: float, clock: Clock) -> None:
        self._path = path
        self._patience = patience_seconds
        self._clock = clock
        self._threads = threading.Lock()
        self._fd: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside the block; raise DatabaseUnavailable after the maximum wait."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take the lock; the caller must release it. Raises as `held` does."""
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
        """Release the lock. Never fails: the work under the lock is done, and the next writer must get in."""
        fd = self._fd
        try:
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            self._close_file()  # the lock ends with its descriptor; the next writer opens a new one
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the lock file; the next writer reopens it."""
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
    page, so the watcher has its own connection that never writes. It raises nothing: if a check fails, it reports that
    something may have changed, and the query that follows raises the error.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int, int] | None = None  #: the file and its version at the last check

    def has_changed(self) -> bool:
        """Return whether something may have changed; True on the first check."""
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
                    self._drop()  # after a restore, another file has the name
                    self._connection = self._database.connect()
                row = self._connection.execute("PRAGMA data_version").fetchone()
            except (sqlite3.Error, DatabaseError):
                self._drop()
                return True
            self._seen = (*file, int(row[0]))

            return self._seen != before

    def close(self) -> None:
        """Close the connection; the next check opens it again."""
        with self._guard:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()


# --- file systems: the type of a path's file system, and what it means for a database --------------------------
#
# Pure: the table of mounts is passed in.


#: SQLite's locks and shared memory do not work there; two machines would overwrite each other without an error.
NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs"}
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"}
)
#: Host directories shared with a virtual machine.
SHARED_TYPES = frozenset({"9p", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse"})
#: Lost on a restart.
VOLATILE_TYPES = frozenset({"devtmpfs", "ramfs", "tmpfs"})
#: Lost with the container.
LAYERED_TYPES = frozenset({"aufs", "overlay"})


def file_system_of(path: Path, mount_table: str) -> str:
    """Return the file system type of *path*, from the longest mount point above it, or "" if unknown."""
    where, result, kind = str(path.absolute()), "", ""
    for line in mount_table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _unescaped(fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        # Not shorter: of two mounts at one point, the later one is on top.
        if inside and len(point) >= len(result):
            result, kind = point, after.split(" ", 1)[0]

    return kind


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)

    return text


MOUNT_TABLE = Path("/proc/self/mountinfo")


def refuse_network(path: Path, table: Path = MOUNT_TABLE) -> None:
    """Raise DatabaseUnavailable if *path* is known to be on a network file system."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return  # no such table on this system, so the type is unknown
    kind = file_system_of(path, text)
    if kind in NETWORK_TYPES:
        raise DatabaseUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite loses data: "
            "use a local disk, or PostgreSQL for several machines"
        )


#: The oldest version with RETURNING.
OLDEST = (3, 35, 0)
#: The write-ahead log is truncated to this size if it is longer.
WAL_LIMIT_BYTES = 64 * 1024 * 1024
#: Number of pages after which the log is checkpointed and written from its start again. Overwriting a log costs half of
#: extending it, so it is kept short: it reaches full length after some 40 steps.
WAL_PAGES = 250
#: Number of read connections kept open for the next reader.
IDLE_READERS = 4

_SETTINGS = f"""
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = {WAL_LIMIT_BYTES};
PRAGMA wal_autocheckpoint = {WAL_PAGES};
"""
_UNSYNCED = "PRAGMA synchronous = OFF;"
#: With a write-ahead log: commits do not sync, and the database stays intact. Any later synced commit covers them.
_SYNCED_LATER = "PRAGMA synchronous = NORMAL;"

#: A parameter in a query.
_NAME = re.compile(r":([a-z][a-z0-9_]*)")


class SqliteSession(Session):
    """A connection in a transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        return self.connection.execute(sql, params).fetchall()

    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        rows = self.connection.execute(sql, params).fetchall()  # fetch all: RETURNING takes effect only when it is read

        return rows[0] if rows else None

    def run(self, sql: str, params: Params = _NOTHING) -> int:
        return self.connection.execute(sql, params).rowcount

    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        numbered, values_of = _numbered(sql)
        self.connection.executemany(numbered, map(values_of, params))


@lru_cache(maxsize=64)
def _numbered(sql: str) -> tuple[str, Callable[[Params], Row]]:
    """Return *sql* with positional parameters, and a function that orders the values; names cost a third more."""
    names = _NAME.findall(sql)
    values_of = itemgetter(*names)

    return _NAME.sub("?", sql), values_of if len(names) > 1 else lambda params: (params[names[0]],)


class _WriteBlock(AbstractContextManager[Session]):
    """A context manager for one write. A class, because a generator takes three times as long."""

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
    """A read connection and the context manager of one read; kept in *idle* for the next reader."""

    __slots__ = ("_database", "_idle", "file")

    def __init__(self, database: SqliteDatabase, file: tuple[int, int] | None, idle: list[_Reader]) -> None:
        super().__init__(database.connect())
        self._database = database
        self._idle = idle
        self.file = file  #: the file it was opened for

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


#: Every database of this process. With it, a forked child refuses to open a file that its parent has open: SQLite
#: remembers per file which locks the process holds, and the child would rely on its parent's locks.
_DATABASES: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()


class SqliteDatabase(Database):
    """One file, any number of readers, one writer at a time."""

    dialect = "sqlite"
    now_sql = ":now"
    row_lock_sql = ""  # a write transaction locks the whole database
    like_sql = "LIKE"  # ignores the case of ASCII letters only

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        boot_id: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
        is_synced: bool = True,
    ) -> None:
        """Use the file *path*; *boot_id* identifies this boot of the machine, and only tests turn *is_synced* off."""
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
            clock=SystemClock(),  # other processes do not use a test's clock
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
                idle = self._readers.pop()  # pop without checking first: another thread may be faster
            except IndexError:
                return _Reader(self, file, self._readers)
            if idle.file == file:
                return idle
            idle.connection.close()  # it still has the file from before a restore open

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
        """Begin a write; the caller must `commit` or `roll_back`."""
        if os.getpid() != self.opened_by:
            self.check_process()
        self.writer_lock.acquire()
        try:
            file = self.file_in_place()  # each time: after a restore it is another file
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
        """Commit the write durably."""
        try:
            session.connection.execute("COMMIT")
        except sqlite3.Error as exc:
            self._undo(session)
            # A failed sync cannot be repeated: only reading the file again shows what reached the disk.
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
                raise DurabilityUnknown(self.name, OSError(errno.EIO, str(exc))) from exc
            raise self.translated(exc) from exc
        finally:
            self.writer_lock.release()

    def roll_back(self, session: SqliteSession, error: BaseException) -> None:
        """Roll back after *error*; a driver's error is raised again as a DatabaseError."""
        try:
            self._undo(session)
        finally:
            self.writer_lock.release()
        if isinstance(error, sqlite3.Error):
            raise self.translated(error) from error

    def _undo(self, session: SqliteSession) -> None:
        """Roll back the transaction; a connection that fails to do so is dropped."""
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
        """Say whether the file exists; raise DatabaseUnavailable if that cannot be determined."""
        return self.file_in_place() is not None

    def integrity_problems(self) -> list[str]:
        with self.read() as session:
            answers = [str(row[0]) for row in session.all("PRAGMA integrity_check")]
            answers += [f"broken reference in {row[0]}" for row in session.all("PRAGMA foreign_key_check")]

        return [answer for answer in answers if answer != "ok"]

    def copy_to(self, target: Path) -> None:
        """Write a complete snapshot to *target*, which must not exist; others may keep writing meanwhile."""
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
        """Return a new connection to the file, which must exist: a lost database is not silently replaced."""
        for other in list(_DATABASES):
            if other.path == self.path and other.opened_by:
                other.check_process()
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?{self._access()}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # used by one thread at a time: see the list of readers and the writer lock
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
        """Return the file's open mode: readers write files beside it too, and must not try where that is forbidden."""
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK):
            return "mode=rw"
        # A log means that another process is writing; it must be read, too. Without a log the file is complete.
        has_log = self.path.with_name(f"{self.path.name}-wal").exists()

        return "mode=ro" if has_log else "mode=ro&immutable=1"

    def close(self) -> None:
        if self.opened_by not in {0, os.getpid()}:
            return  # the connections belong to the parent
        self.writer_lock.close()
        self._drop_writer()
        while self._readers:
            with suppress(IndexError):  # another thread may be faster
                self._readers.pop().connection.close()
        self.opened_by = 0
        if self._unsynced is not None:
            self._unsynced.close()

    def translated(self, error: sqlite3.Error) -> DatabaseError:
        """Return *error* as a DatabaseError whose message says what to do."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits are details
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
        """Return device and inode of the file at the database's path, or None if there is no file."""
        while True:
            try:
                info = os.stat(self.name)  # noqa: PTH116 - runs in each step: takes a third of the time of Path.stat
            except (FileNotFoundError, NotADirectoryError):
                return None
            except InterruptedError:
                continue  # unlike most calls, this one is not retried by Python
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
    """Create an empty database file that only its owner can read, and its directory; does nothing if it exists."""
    if sqlite3.sqlite_version_info < OLDEST:
        wanted = ".".join(str(part) for part in OLDEST)
        raise DatabaseUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: adw needs {wanted}, or PostgreSQL")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only if it is missing: closing a descriptor of an existing file would drop this process's SQLite locks on it.
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
