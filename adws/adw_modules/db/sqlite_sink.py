"""
Saving rows to a SQLite file of the user.

One transaction for each call: its key and its rows, or neither. The file's own settings (journal, page size) are left
as they are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from adws.adw_modules import durable_file, sink_rows
from adws.adw_modules.db import mounts, sink_tables
from adws.adw_modules.db.sink_tables import TableRows
from adws.adw_modules.errors import DatabaseUnavailable, SinkRefused
from adws.adw_modules.json_value import JsonObject, JsonValue

#: What a column holds -> its type.
TYPES: Mapping[str, str] = MappingProxyType(
    {
        sink_rows.NOTHING: "TEXT",
        sink_rows.TRUTH: "BOOLEAN",
        sink_rows.WHOLE: "INTEGER",
        sink_rows.NUMBER: "REAL",
        sink_rows.TEXT: "TEXT",
        sink_rows.JSON: "TEXT",
        sink_rows.MIXED: "",
    }
)
#: Whole numbers that the file can hold.
_LARGEST = 2**63

#: What stands in the way and may go by itself.
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
#: Connections of a parent process: never used, never closed.
_PARENTS: list[sqlite3.Connection] = []


class SqliteSink:
    """One file that rows are saved to. One thread at a time uses it."""

    def __init__(self, path: Path, *, patience_seconds: float = 30.0) -> None:
        """Use the file *path*, which is made when it is not there."""
        self._path = path
        self._patience = patience_seconds
        self._connection: sqlite3.Connection | None = None
        self._owner = 0  #: the process that opened it
        self._file: os.stat_result | None = None

    def save(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...]) -> bool:
        """Save *rows* once for *sink_key*; say whether this did it. Raises SinkRefused or DatabaseUnavailable."""
        new = TableRows(table=table, rows=rows, sink_key=sink_key, key=key)
        new.check()
        try:
            with self._transaction() as connection:
                return self._save(connection, new)
        except (sqlite3.Error, UnicodeEncodeError) as exc:
            raise self._error(exc, new) from exc

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None and self._owner == os.getpid():
            connection.close()

    def _save(self, connection: sqlite3.Connection, new: TableRows) -> bool:
        connection.execute(sink_tables.MAKE_KEYS)
        taken = connection.execute(
            f"INSERT INTO {sink_tables.KEYS} (sink_key, table_name, row_count) VALUES (?, ?, ?)"  # noqa: S608 - a constant
            " ON CONFLICT DO NOTHING",
            (new.sink_key, new.table, len(new.rows)),
        )
        if taken.rowcount == 0:
            return False
        known = self._columns(connection, new.table)
        if known:
            sink_rows.refuse_unknown(new.columns, known, f"the table {new.table}")
        else:
            connection.execute(sink_tables.make_table(new, TYPES))
        connection.executemany(sink_tables.insert(new, "?"), sink_tables.values(new, _adapt))

        return True

    def _columns(self, connection: sqlite3.Connection, table: str) -> list[str]:
        schema, _, name = table.rpartition(".")
        before = f"{sink_tables.quoted_column(schema)}." if schema else ""
        found = connection.execute(f"PRAGMA {before}table_xinfo({sink_tables.quoted_column(name)})")

        return [row[1] for row in found]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        """Return the connection; one that a parent opened, or to a file that was moved away, is not used."""
        if self._connection is not None:
            if self._owner == os.getpid() and self._is_in_place():
                return self._connection
            if self._owner == os.getpid():
                self._connection.close()
            else:
                _PARENTS.append(self._connection)
        mounts.refuse_network(self._path)
        durable_file.make_directory(str(self._path.parent))
        self._connection = sqlite3.connect(
            self._path, isolation_level=None, timeout=self._patience, check_same_thread=False
        )
        self._owner = os.getpid()
        self._connection.execute("PRAGMA synchronous = FULL")
        self._file = self._path.stat()

        return self._connection

    def _is_in_place(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(self._path.stat(), self._file)
        except FileNotFoundError:
            return False

    def _error(self, exc: Exception, new: TableRows) -> SinkRefused | DatabaseUnavailable:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code in _TRANSIENT:
            return DatabaseUnavailable(f"cannot save to {self._path}: {exc}; nothing was saved")
        if "ON CONFLICT clause does not match" in str(exc):
            return sink_tables.no_unique_index(new)

        return SinkRefused(f"{self._path} does not take the rows for the table {new.table}: {exc}; nothing was saved")


def _adapt(name: str, value: JsonValue) -> object:
    if isinstance(value, dict | list):
        return sink_rows.as_json(value)
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise SinkRefused(f"the number {value} in the column {name} is too large for SQLite: give it as a text")

    return value
