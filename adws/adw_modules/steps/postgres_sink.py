"""
Save rows to a PostgreSQL database of the user.

One transaction per call stores both its key and its rows. A broken connection is opened again once, and the
transaction repeated: the key shows whether it had been committed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from adws.adw_modules.errors import DatabaseUnavailable, SinkRefused, TransactionAborted
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.steps.sink_rows import (
    KEYS,
    MAKE_KEYS,
    POSTGRES_TYPES,
    TableRows,
    as_json,
    quoted_table,
    refuse_unknown,
)

CONNECT_SECONDS = 10

_WHOLE_TYPES = frozenset({"smallint", "integer", "bigint"})
_TEXT_TYPES = frozenset({"text", "character varying", "character", "name"})
_JSON_TYPES = frozenset({"json", "jsonb"})
#: Creating a table that another transaction creates at the same time fails, so only one may do it.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('adw sink ' || current_database(), 0))"
_FIND = "SELECT to_regclass(%s)"
_TAKE_KEY = (
    f"INSERT INTO {KEYS} (sink_key, table_name, row_count) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
).encode()
_LIMITS = "SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true)"
_COLUMNS = (
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
    " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)

#: Connections of a parent process: never used, never closed.
_PARENTS: list[psycopg.Connection] = []


class PostgresSink:
    """A database that rows are saved to, used by one thread at a time."""

    def __init__(self, url: str, *, password: str = "", name: str = "", patience_seconds: float = 30.0) -> None:
        """Use the database at *url*; messages call it *name*."""
        self._url = url
        self._password = password
        self._name = name
        self._limit = str(int(patience_seconds * 1000))
        self._connection: psycopg.Connection | None = None
        self._owner = 0  #: the process that connected
        self._has_keys = False

    def save(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...]) -> bool:
        """
        Save *rows* once for *sink_key*, upserted by the columns *key* if any; return whether this call saved them.

        Raises SinkRefused, or DatabaseUnavailable and TransactionAborted for trouble that may pass.
        """
        new = TableRows(table, rows, sink_key=sink_key, key=key)
        try:
            try:
                return self._save(self._connected(), new)
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.broken:
                    raise
                self.close()  # an idle connection that the server had closed
                return self._save(self._connected(), new)
        except (psycopg.Error, UnicodeEncodeError) as exc:
            raise self._error(exc, new) from exc

    def close(self) -> None:
        """End the connection."""
        connection, self._connection, self._has_keys = self._connection, None, False
        if connection is not None and self._owner == os.getpid():
            with suppress(psycopg.Error):
                connection.close()

    def _connected(self) -> psycopg.Connection:
        if self._connection is not None and self._owner != os.getpid():
            _PARENTS.append(self._connection)
            self._connection = None
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                make_conninfo(self._url, password=self._password or None),
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="adw",
            )
            self._owner = os.getpid()

        return self._connection

    def _save(self, connection: psycopg.Connection, new: TableRows) -> bool:
        with connection.transaction():
            connection.execute(_LIMITS, {"ms": self._limit})
            # A role without permission to create tables can use an existing one.
            if not self._has_keys and connection.execute(_FIND, (KEYS,)).fetchone() == (None,):
                connection.execute(_LOCK)
                connection.execute(MAKE_KEYS.encode())
            taken = connection.execute(_TAKE_KEY, (new.sink_key, new.table, len(new.rows)))
            if taken.rowcount:
                self._insert(connection, new)
        self._has_keys = True

        return bool(taken.rowcount)

    def _insert(self, connection: psycopg.Connection, new: TableRows) -> None:
        types = self._types(connection, new)
        if not types:
            connection.execute(_LOCK)
            types = self._types(connection, new)
        if not types:
            connection.execute(new.make_table(POSTGRES_TYPES).encode())
            types = self._types(connection, new)
        refuse_unknown(new.columns, types, f"the table {new.table}")
        with connection.cursor() as cursor:
            statement = new.insert("\0").replace("%", "%%").replace("\0", "%s")
            cursor.executemany(statement.encode(), new.values(lambda name, one: _adapt(name, one, types)))

    def _types(self, connection: psycopg.Connection, new: TableRows) -> dict[str, str]:
        """Return the table's columns with their types, or {} if it does not exist."""
        return dict(connection.execute(_COLUMNS, (quoted_table(new.table),)).fetchall())

    def _error(self, exc: Exception, new: TableRows) -> SinkRefused | DatabaseUnavailable | TransactionAborted:
        said = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        if isinstance(exc, psycopg.errors.InvalidColumnReference) and new.key:
            return new.no_unique_index()
        if isinstance(exc, psycopg.errors.QueryCanceled | psycopg.errors.TransactionRollback):
            return TransactionAborted(f"the database {self._name} did not save in time: {said}; nothing was saved")
        if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
            self.close()
            return DatabaseUnavailable(f"cannot save to the database {self._name}: {said}")

        return SinkRefused(
            f"the database {self._name} does not take the rows for the table {new.table}: {said}; nothing was saved"
        )


def _adapt(name: str, value: JsonValue, types: Mapping[str, str]) -> object:
    """Return *value* in the form its column needs, without rounding or guessing."""
    kind = types[name]
    if value is None:
        return None
    if kind in _JSON_TYPES:
        return Jsonb(value)
    if kind in _TEXT_TYPES:
        return value if isinstance(value, str) else as_json(value)
    if kind in _WHOLE_TYPES and isinstance(value, float):
        if not value.is_integer():
            raise SinkRefused(f"the column {name} holds whole numbers, and {value} is not one: change its type")
        return int(value)
    if isinstance(value, dict | list):
        raise SinkRefused(f"the column {name} has the type {kind}, and cannot hold a list or a table: choose `rows`")

    return value
