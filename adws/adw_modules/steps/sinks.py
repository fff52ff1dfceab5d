"""
Sinks save the result of a call to a file of lines, a table, a function or a plugin.

Files of lines are JSON Lines and CSV. Each part is in the file once, however often it is written and wherever a writer
is killed. Under the lock of the file, the writer first settles the part of a dead writer (complete: kept; torn: cut
off), then records its own part, writes it and settles it. Text that people write into the file is never cut. The
ledger is in `.adw-sinks` beside the file, ignored by git.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import durable_file
from adws.adw_modules.db import sqlite
from adws.adw_modules.engine.runner_python import Callables
from adws.adw_modules.errors import (
    ConfigError,
    DatabaseUnavailable,
    FailedRun,
    RunFailed,
    SinkRefused,
    UnsafePath,
)
from adws.adw_modules.expressions import expressions
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue, hint
from adws.adw_modules.plugins import RowSink
from adws.adw_modules.steps.sink_rows import (
    KEYS,
    MAKE_KEYS,
    SQLITE_TYPES,
    TableRows,
    as_json,
    columns_of,
    csv_columns,
    csv_lines,
    json_lines,
    quoted,
    refuse_unknown,
    rows_of,
)
from adws.adw_modules.workflow.checks import why_outside
from adws.adw_modules.workflow.model import CONNECTION_TYPES, SINK_OPTIONS, Connection, SinkSpec, chosen

if TYPE_CHECKING:
    from adws.app import Home

#: Directory of the ledgers, beside the files.
LEDGERS = ".adw-sinks"
#: Longest header of a CSV file.
MAX_HEADER_BYTES = 1 << 16
#: Ledgers kept open.
KEPT = 8

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


#: Connections opened by a parent process: never used, closed or garbage-collected.
_PARENTS: list[sqlite3.Connection] = []


class LineFiles:
    """Saves rows to files below a working directory."""

    def __init__(self) -> None:
        self._open: dict[Path, SinkLedger] = {}

    def close(self) -> None:
        """Close the ledgers."""
        while self._open:
            self._open.popitem()[1].close()

    def save(self, rows: list[JsonObject], *, root: Path, path: str, sink_key: str, delimiter: str = "") -> bool:
        """
        Append *rows* to a file below *root*, once for *sink_key*; return whether this call appended them.

        With a *delimiter* the file is CSV, whose first line names the columns; else JSON Lines. Raises SinkRefused if
        the file is not below *root*, also because of a symbolic link.
        """
        if why := why_outside(path):
            raise SinkRefused(f"the path {path!r} of the sink {why}")
        place = root / path
        durable_file.make_directory(str(place.parent))
        if not place.parent.resolve().is_relative_to(root.resolve()):
            raise SinkRefused(f"the path {path!r} of the sink leaves the working directory by a link: move that away")
        with _locked(place) as fd:
            ledger = self._ledger(place)
            _settle_left(fd, ledger, place)
            if ledger.run("SELECT 1 FROM parts WHERE sink_key = ? AND is_settled = 1", sink_key):
                return False
            size = os.fstat(fd).st_size
            if not delimiter:
                payload = json_lines(rows)
            elif not size:
                payload = csv_lines(rows, columns_of(rows), delimiter=delimiter, with_header=True)
            else:
                columns, known = columns_of(rows), csv_columns(_header(fd, place), delimiter=delimiter)
                refuse_unknown(columns, known, path)
                payload = csv_lines(rows, known, delimiter=delimiter, with_header=False)
            if size and os.pread(fd, 1, size - 1) != b"\n":
                payload = b"\n" + payload  # the last line, written by someone else, has no newline
            ledger.run("PRAGMA synchronous = FULL")
            part = (sink_key, size, len(payload), hashlib.sha256(payload).hexdigest())
            ledger.run("INSERT INTO parts (sink_key, start, length, sha256) VALUES (?, ?, ?, ?)", *part)
            left, at = memoryview(payload), size
            while left:
                written = os.pwrite(fd, left, at)
                left, at = left[written:], at + written
            os.fsync(fd)
            if not size:
                durable_file.sync_directory_at(str(place.parent))
            ledger.settle(sink_key)

        return True

    def _ledger(self, place: Path) -> SinkLedger:
        path = _ledger_path(place)
        if path not in self._open:
            while len(self._open) >= KEPT:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = SinkLedger(path)

        return self._open[path]


def _is_same(path: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), seen)
    except FileNotFoundError:
        return False


# --- places ----------------------------------------------------------------------------------------------------


def _ledger_path(place: Path) -> Path:
    """Return the path of a file's ledger, in a directory that git ignores."""
    folder = place.parent / LEDGERS
    if not folder.is_dir() or folder.is_symlink():
        if folder.is_symlink():
            raise SinkRefused(f"{folder} is a link: move it away, adw makes a directory of its own")
        durable_file.make_directory(str(folder))
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")

    return folder / f"{place.name}.db"


@contextmanager
def _locked(place: Path) -> Iterator[int]:
    """Open the file and hold its lock; open it again if it was moved away during the wait."""
    while True:
        try:
            fd = os.open(place, _FLAGS, 0o666)
        except OSError as exc:
            raise UnsafePath(f"{place} cannot be written by a sink: {exc.strerror or exc}") from exc
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UnsafePath(f"{place} is not a regular file: move it away, or give the sink another path")
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_same(place, os.fstat(fd)):
                yield fd
                return
        finally:
            with suppress(OSError):  # closing frees the lock only if no child forked meanwhile has the descriptor
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


# --- bytes -----------------------------------------------------------------------------------------------------


def _settle_left(fd: int, ledger: SinkLedger, place: Path) -> None:
    """Settle the part of a vanished writer: it is complete in the file, or removed from it."""
    left = ledger.run("SELECT sink_key, start, length, sha256 FROM parts WHERE is_settled = 0")
    if not left:
        return
    sink_key, start, length, sha256 = left[0]
    size, end = os.fstat(fd).st_size, start + length
    if size >= end:
        digest, at = hashlib.sha256(), start
        while at < end and (chunk := os.pread(fd, min(end - at, _CHUNK), at)):
            digest.update(chunk)
            at += len(chunk)
        if digest.hexdigest() == sha256:
            os.fsync(fd)
            ledger.settle(sink_key)
            return
    if size > end:
        raise SinkRefused(
            f"{place} was changed while a part of it was being written (at byte {start}): look at it, and remove"
            f" {_ledger_path(place)} when it is as it shall be"
        )
    if size > start:
        os.ftruncate(fd, start)
        os.fsync(fd)
    ledger.run("PRAGMA synchronous = FULL")
    ledger.run("DELETE FROM parts WHERE sink_key = ? AND is_settled = 0", sink_key)


def _header(fd: int, place: Path) -> bytes:
    """Return the first line of a file that is not empty."""
    begin = os.pread(fd, MAX_HEADER_BYTES, 0)
    line, end, _ = begin.partition(b"\n")
    if not end and len(begin) == MAX_HEADER_BYTES:
        raise SinkRefused(f"the first line of {place} is longer than {MAX_HEADER_BYTES} bytes")

    return line


class TableSink(Protocol):
    """A database that rows are saved to: `SqliteSink` or `postgres_sink.PostgresSink`."""

    def save(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...]) -> bool:
        """Save rows once for *sink_key*; return whether this call saved them."""

    def close(self) -> None:
        """Close the connection."""


class Sinks:
    """
    Saves results in the job that made the call; used by one thread at a time.

    Each key is saved once, except by functions and plugins: they get the key, and may be called with it again. If a
    sink cannot save, it raises, and the call has failed.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._files = LineFiles()
        self._callables = Callables(home.settings.home)
        self._open: dict[str, TableSink] = {}  #: by the name of the connection
        self._plugins: dict[str, RowSink] = {}  #: by the name of the plugin

    def save(self, sink: SinkSpec, result: JsonValue, *, values: Mapping[str, Value], root: Path, sink_key: str) -> int:
        """
        Save *result*, unless *sink_key* is saved already, and return the number of its rows.

        *values* are the template values, *root* the working directory. Raises ExpressionError, SinkRefused,
        DatabaseError, or whatever a function of the user raises.
        """
        known = {**values, "result": result}
        rows = rows_of(expressions.evaluate(sink.rows, known) if sink.rows else result)
        options = {name: expressions.render(value, known) for name, value in sink.options.items()}
        allowed = SINK_OPTIONS.get(sink.tool)
        for name in options:
            if allowed is not None and name not in allowed:
                which = hint(name, allowed) if allowed else ", which has none"
                raise SinkRefused(f"{name!r} is no option of the sink {sink.tool}{which}")
        path = expressions.render(sink.path, known)
        if not isinstance(path, str):
            raise SinkRefused(f"the path of the sink is {path!r}, and must be a text")
        if not rows:
            return 0
        if sink.tool == "jsonl":
            self._files.save(rows, root=root, path=path, sink_key=sink_key)
        elif sink.tool == "csv":
            delimiter = options.get("delimiter", ",")
            if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
                raise SinkRefused(f"the option delimiter is {delimiter!r}, and must be one character")
            self._files.save(rows, root=root, path=path, sink_key=sink_key, delimiter=delimiter)
        elif sink.tool in CONNECTION_TYPES:
            self._table_sink(sink).save(sink.table, rows, sink_key=sink_key, key=sink.key)
        else:
            try:
                if sink.tool == "python":
                    self._callables.find(sink.call)(rows, sink_key, **options)
                else:
                    if sink.tool not in self._plugins:
                        self._plugins[sink.tool] = self._home.plugins.new_sink(sink.tool)
                    self._plugins[sink.tool].save(rows, sink_key=sink_key, options=options)
            except SystemExit as exc:  # a user's code may want to end its own program, but not ours
                name = sink.call or sink.tool
                text = f"{name} called sys.exit({exc.code!r})"
                raise RunFailed(FailedRun(exit_code=1, text=text, tool=name), text) from exc

        return len(rows)

    def close(self) -> None:
        """Close everything that is open."""
        self._files.close()
        while self._open:
            self._open.popitem()[1].close()
        while self._plugins:
            close = getattr(self._plugins.popitem()[1], "close", None)
            if close is not None:
                close()

    def _table_sink(self, sink: SinkSpec) -> TableSink:
        """Return the sink of a connection; raise SinkRefused or ConfigError if it cannot be used here."""
        connections = self._home.settings.connections
        name = chosen(sink.connection, sink.tool, {one.name: one.type for one in connections.values()})
        if not name:
            wanted = sink.connection or f"of the type {sink.tool}"
            raise SinkRefused(f"there is no connection {wanted} here: write [connections.NAME] into adw.toml")
        if name in self._open:
            return self._open[name]
        connection = connections[name]
        if connection.type == "sqlite":
            self._open[name] = SqliteSink(self._home.settings.home / Path(connection.path).expanduser())
            return self._open[name]
        try:
            # The driver is an extra, missing in an installation without PostgreSQL.
            from adws.adw_modules.steps.postgres_sink import PostgresSink  # noqa: PLC0415 - see above
        except ImportError as exc:
            raise ConfigError(
                f"PostgreSQL needs a driver that is missing ({exc}): pip install 'adw[postgres]'"
            ) from exc
        url = connection.url or self._variable(connection, connection.url_env)
        password = self._variable(connection, connection.password_env) if connection.password_env else ""
        self._open[name] = PostgresSink(url, password=password, name=name)

        return self._open[name]

    def _variable(self, connection: Connection, name: str) -> str:
        value = self._home.env.get(name)
        if not value:
            raise ConfigError(f"the environment variable {name} of the connection {connection.name} is not set: set it")

        return value


class _SqliteFile:
    """A SQLite file. Connections of a parent process, or to a file moved away since, are not used."""

    def __init__(self, path: Path, patience_seconds: float, *setup: str) -> None:
        """Run the statements of *setup* on every new connection."""
        self._path = path
        self._patience_seconds = patience_seconds
        self._setup = setup
        self._connection: sqlite3.Connection | None = None
        self._owner = 0  #: the process that opened the connection
        self._seen: os.stat_result | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a usable connection."""
        return self._owner == os.getpid() and self._seen is not None and _is_same(self._path, self._seen)

    def connect(self) -> sqlite3.Connection:
        """Return a usable connection."""
        if self._connection is not None and self.is_open:
            return self._connection
        self.close()
        # The worker's thread may close it, after the threads that saved have ended.
        self._connection = sqlite3.connect(
            self._path, isolation_level=None, timeout=self._patience_seconds, check_same_thread=False
        )
        self._owner = os.getpid()
        for statement in self._setup:
            self._connection.execute(statement)
        self._seen = self._path.stat()

        return self._connection

    def close(self) -> None:
        """Close the connection, if it is ours."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None and self._owner == os.getpid():
            connection.close()
        elif connection is not None:
            _PARENTS.append(connection)


_LEDGER_SETUP = (
    "PRAGMA journal_mode = WAL",
    """CREATE TABLE IF NOT EXISTS parts (
      sink_key TEXT PRIMARY KEY, start INTEGER NOT NULL, length INTEGER NOT NULL, sha256 TEXT NOT NULL,
      is_settled INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS open_parts ON parts (is_settled) WHERE is_settled = 0",
)


class SinkLedger(_SqliteFile):
    """
    The parts of one file, by key: a small SQLite database beside it, used under the lock of that file.

    A part is recorded durably before it is written to the file, and settled afterwards. At most one part is not
    settled: its writer vanished or is still writing; the next holder of the file's lock settles it.
    """

    def __init__(self, path: Path) -> None:
        """Use the ledger *path*, which is created if missing."""
        super().__init__(path, 30.0, *_LEDGER_SETUP)

    def settle(self, sink_key: str) -> None:
        """Record that a part is in the file; if a power cut loses this record, the file itself is checked."""
        self.run("PRAGMA synchronous = NORMAL")
        self.run("UPDATE parts SET is_settled = 1 WHERE sink_key = ?", sink_key)

    def run(self, sql: str, *params: object) -> list[tuple[str, int, int, str]]:
        """Run one statement in its own transaction, and return its rows."""
        try:
            return self.connect().execute(sql, params).fetchall()
        except sqlite3.Error as exc:
            raise DatabaseUnavailable(
                f"cannot use {self._path}, which knows what the file beside it holds: {exc}"
            ) from exc


#: Bound of SQLite integers.
_LARGEST = 2**63

#: Errors that may pass.
_TRANSIENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
    }
)


class SqliteSink:
    """
    A SQLite file of the user that rows are saved to, used by one thread at a time.

    One transaction per call stores both its key and its rows. The file's own settings (journal, page size) stay
    unchanged.
    """

    def __init__(self, path: Path, *, patience_seconds: float = 30.0) -> None:
        """Use the file *path*, which is created if missing."""
        self._path = path
        self._file = _SqliteFile(path, patience_seconds, "PRAGMA synchronous = FULL")

    def save(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...]) -> bool:
        """Save *rows* once for *sink_key*; return whether this call did. Raises SinkRefused or DatabaseUnavailable."""
        new = TableRows(table, rows, sink_key=sink_key, key=key)
        try:
            if not self._file.is_open:
                sqlite.refuse_network(self._path)
                durable_file.make_directory(str(self._path.parent))
            connection = self._file.connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                is_new = self._save(connection, new)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeEncodeError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT:
                raise DatabaseUnavailable(f"cannot save to {self._path}: {exc}; nothing was saved") from exc
            if "ON CONFLICT clause does not match" in str(exc):
                raise new.no_unique_index() from exc
            raise SinkRefused(
                f"{self._path} does not take the rows for the table {new.table}: {exc}; nothing was saved"
            ) from exc

        return is_new

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _save(self, connection: sqlite3.Connection, new: TableRows) -> bool:
        connection.execute(MAKE_KEYS)
        taken = connection.execute(
            f"INSERT INTO {KEYS} (sink_key, table_name, row_count) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (new.sink_key, new.table, len(new.rows)),
        )
        if taken.rowcount == 0:
            return False
        schema, _, name = new.table.rpartition(".")
        before = f"{quoted(schema)}." if schema else ""
        known = [row[1] for row in connection.execute(f"PRAGMA {before}table_xinfo({quoted(name)})")]
        if known:
            refuse_unknown(new.columns, known, f"the table {new.table}")
        else:
            connection.execute(new.make_table(SQLITE_TYPES))
        connection.executemany(new.insert("?"), new.values(_adapt))

        return True


def _adapt(name: str, value: JsonValue) -> object:
    if isinstance(value, dict | list):
        return as_json(value)
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise SinkRefused(f"the number {value} in the column {name} is too large for SQLite: give it as a text")

    return value
