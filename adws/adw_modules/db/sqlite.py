"""
SQLite as the database of one machine.

WAL with synchronous=FULL: what was committed survives a power cut. Every write is BEGIN IMMEDIATE behind one flock
beside the file, so writers queue and none of them sees SQLITE_BUSY from another adw. Leases are measured by the time
since the machine started, and those of an earlier start are over: jumps of the wall clock change nothing.
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
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import _NOTHING, PATIENCE_SECONDS, Database, Params, Row, Session, _Result
from adws.adw_modules.errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseUnavailable,
    DurabilityUnknown,
    LockUnavailable,
)
from adws.adw_modules.interfaces import Clock

# One writer at a time on this machine: a thread lock inside the process, a flock between processes.
#
# SQLite's own lock is taken by polling, so the newest writer may win for seconds while the oldest waits. The kernel's
# flock has a queue. The lock file stays where it is for ever: two processes that lock an unlinked file and its
# successor would both be in.


#: A turn that was taken: the lock among threads, and the descriptor of the lock among processes.
Turn: TypeAlias = tuple[threading.Lock, int]


class WriterLock:
    """The right to write, taken in turn."""

    def __init__(self, path: Path, *, patience_seconds: float) -> None:
        self._path = path
        self._patience = patience_seconds
        self._threads = threading.Lock()
        self._fd: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the turn inside the block; raise DatabaseUnavailable after waiting long enough."""
        turn = self.take()
        try:
            yield
        finally:
            self.give_back(turn)

    def take(self) -> Turn:
        """Return the turn, which must be given back; raise as `held` does."""
        threads = self._threads
        if not threads.acquire(timeout=self._patience):
            raise self._too_long("another thread of this process")
        try:
            fd = self._open()
            self._lock(fd)
        except BaseException:
            threads.release()
            raise

        return threads, fd

    def give_back(self, turn: Turn) -> None:
        """Let the next one write."""
        threads, fd = turn  # what was taken is what is freed: a child forked meanwhile has other ones
        try:
            if self._fd == fd:
                self._unlock(fd)
        finally:
            threads.release()

    def close(self) -> None:
        """Close the lock file; the next turn opens it again."""
        with self._threads:
            self._close_file()

    def forget(self) -> None:
        """Start afresh, as a forked child must: a lock on the inherited descriptor would be its parent's."""
        self._threads = threading.Lock()  # a thread that exists only in the parent may have had the old one
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as exc:
                raise LockUnavailable(str(self._path), exc) from exc

        return self._fd

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._queue_up(fd)
        except OSError as exc:
            raise LockUnavailable(str(self._path), exc) from exc

    def _unlock(self, fd: int) -> None:
        """Give the turn back. This never fails: what was done in the turn is done, and the next one must get in."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            self._fd = None
            with suppress(OSError):
                os.close(fd)  # the lock goes with its descriptor; the next turn opens a new one

    def _queue_up(self, fd: int) -> None:
        """Wait in the kernel's queue, which has no time limit: so a thread stands in it, and this one may give up."""
        place = _Place(fd)
        try:
            self._send(place)
            place.arrived.wait(self._patience)
        except BaseException:  # an interrupt: leave the queue, or the turn would never be given back
            self._leave(place)
            raise
        if self._leave(place):
            raise self._too_long("another process")
        if place.error is not None:
            raise LockUnavailable(str(self._path), place.error) from place.error

    def _send(self, place: _Place) -> None:
        try:
            threading.Thread(target=place.wait, name="adw-write-turn", daemon=True).start()
        except RuntimeError as exc:
            os.close(place.fd)  # nobody stands in the queue who would do it when the place is left
            raise DatabaseUnavailable(
                f"cannot wait for {self._path}: {exc}; nothing was changed: let this process have more threads"
            ) from exc

    def _leave(self, place: _Place) -> bool:
        """Give the place up, False when the turn came at the last moment."""
        if not place.leave():
            return False
        self._fd = None  # the waiting thread has the descriptor now and closes it

        return True

    def _too_long(self, who: str) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{who} has been writing for {self._patience:.0f} s and holds {self._path}: "
            "look whether it is stopped or stuck (fuser shows who), then try again"
        )


class _Place:
    """A place in the kernel's queue for a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._deciding = threading.Lock()
        self._left = False
        self.arrived = threading.Event()
        self.error: OSError | None = None  #: why the turn will never come; `arrived` is set then too

    def wait(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as exc:
            self.error = exc
        with self._deciding:
            if self._left:
                self._give_up()
            else:
                self.arrived.set()

    def leave(self) -> bool:
        with self._deciding:
            self._left = not self.arrived.is_set()

        return self._left

    def _give_up(self) -> None:
        # A child forked meanwhile may have the same descriptor: closing ours would leave the lock with it.
        with suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)


# Forking between transactions, never inside one.
#
# SQLite keeps the locks of a process in memory that a forked child inherits: a child would believe it holds its
# parent's locks, and take none of its own. So before a fork the transactions of other threads are waited for and every
# connection is closed. Where that cannot be, because the forking thread itself is inside one, the child is not let in
# at all.


class ForkGate:
    """Counts the threads inside a transaction, and closes while a fork is made."""

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


# Detecting commits to a SQLite database, in a few microseconds per check.
#
# `PRAGMA data_version` changes with every commit of any other connection, of this process or another, and reads no
# page. So the watcher has a connection of its own that never writes. It raises nothing: when it cannot check it reports
# that there may be something new, and the queue query that follows raises the error.


class CommitWatcher:
    """Watches one database file for commits. Threads may share it; after a fork both processes may go on using it."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int, int] | None = None  #: the file and its version at the last check
        _OPEN.add(self)

    def has_changed(self) -> bool:
        """Return whether there may be something new; True for the first check."""
        with self._guard:
            version = self._look()
            is_same = version is not None and version == self._seen
            self._seen = version

        return not is_same

    def close(self) -> None:
        """Close the connection; another check opens it again."""
        with self._guard:
            self._drop()

    def before_fork(self) -> None:
        """Close the connection, which must not get into a child, and allow no check until the fork is made."""
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
_OPEN: weakref.WeakSet[CommitWatcher] = weakref.WeakSet()
#: `stopped`: those that the fork of this thread has stopped.
_FORK = threading.local()


def _before_fork() -> None:
    _FORK.stopped = list(_OPEN)
    for watch in _FORK.stopped:
        watch.before_fork()


def _after_fork() -> None:
    stopped: list[CommitWatcher] = _FORK.stopped
    while stopped:
        stopped.pop().after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


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
        self.path = path
        self._boot_id = boot_id
        self._patience = patience_seconds
        self._settings = _SETTINGS if is_synced else _SETTINGS + _UNSYNCED
        self._readers: list[_Reader] = []  #: idle ones
        self._writer: sqlite3.Connection | None = None
        self._writer_file: tuple[int, int] | None = None
        self._gate = ForkGate(patience_seconds=patience_seconds)
        self.turn = WriterLock(path.with_name(f"{path.name}.write-lock"), patience_seconds=patience_seconds)

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
            row = session.one(connection.READ_VERSION)

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
        refuse_network(self.path)
        self._writer, self._writer_file = self.connect(), file

        return self._writer

    def _file_in_place(self) -> tuple[int, int] | None:
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
    refuse_network(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
