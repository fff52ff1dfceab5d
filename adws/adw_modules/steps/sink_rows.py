"""
What a sink saves of a result: rows, their columns, lines of text, and the SQL that saves rows to a table.

Pure. A list becomes many rows, a table one, null none; any other value is a row with the column `value`. Nested values
are written as JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from adws.adw_modules.errors import SinkRefused
from adws.adw_modules.identifiers import JsonObject, JsonValue

#: The column of a row made of a value that is not a table.
VALUE = "value"
#: Most columns of a table, and characters of a name, that both databases accept.
MAX_COLUMNS = 500
MAX_NAME = 63
#: Kind of values in a column -> column type.
SQLITE_TYPES = {
    "nothing": "TEXT",
    "truth": "BOOLEAN",
    "whole": "INTEGER",
    "number": "REAL",
    "text": "TEXT",
    "json": "TEXT",
    "mixed": "",
}
POSTGRES_TYPES = {
    "nothing": "text",
    "truth": "boolean",
    "whole": "bigint",
    "number": "double precision",
    "text": "text",
    "json": "jsonb",
    "mixed": "jsonb",
}
_KINDS = {type(None): "nothing", bool: "truth", int: "whole", float: "number", str: "text"}

#: Table in the user's database that records what was saved.
KEYS = "_adw_sink_keys"
MAKE_KEYS = (
    f"CREATE TABLE IF NOT EXISTS {KEYS} (sink_key text NOT NULL, table_name text NOT NULL, row_count integer NOT NULL,"
    " PRIMARY KEY (sink_key, table_name))"
)


def rows_of(value: JsonValue | Sequence[JsonValue]) -> list[JsonObject]:
    """Return the rows in *value*."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [one if isinstance(one, dict) else {VALUE: one} for one in value]

    return [{VALUE: value}]


def columns_of(rows: Iterable[JsonObject]) -> tuple[str, ...]:
    """Return the columns of *rows* in order of first appearance; raise SinkRefused for an invalid column."""
    result = tuple(dict.fromkeys(name for row in rows for name in row))
    if not result:
        raise SinkRefused("a row has no columns: give the sink rows with something in them, see `rows`")
    if len(result) > MAX_COLUMNS:
        raise SinkRefused(f"the rows have {len(result)} columns, and a sink takes at most {MAX_COLUMNS}")
    for name in result:
        if not name.strip() or len(name.encode("utf-8", "replace")) > MAX_NAME or not name.isprintable():
            raise SinkRefused(
                f"{name[:80]!r} cannot be the name of a column: it needs 1 to {MAX_NAME} printable characters; give the"
                " rows other keys with `rows`"
            )

    return result


def refuse_unknown(columns: Sequence[str], known: Iterable[str], place: str) -> None:
    """Raise SinkRefused if *columns* has one that *place* lacks."""
    there = list(known)
    missing = [name for name in columns if name not in there]
    if missing:
        raise SinkRefused(
            f"{place} has no column {', '.join(missing)} (it has {', '.join(there)}): add it there, or choose the"
            " columns with `rows`"
        )


def kind_of(values: Iterable[JsonValue]) -> str:
    """Return the kind of values in a column: a key of `SQLITE_TYPES`."""
    kinds = {_KINDS.get(type(value), "json") for value in values} - {"nothing"}
    if kinds == {"whole", "number"}:
        return "number"
    if not kinds:
        return "nothing"

    return kinds.pop() if len(kinds) == 1 else "mixed"


def as_json(value: JsonValue) -> str:
    """Return *value* as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- lines -----------------------------------------------------------------------------------------------------


def json_lines(rows: Iterable[JsonObject]) -> bytes:
    """Return one line of JSON for each of *rows*."""
    lines = []
    for row in rows:
        try:
            lines.append(f"{as_json(row)}\n".encode())
        except UnicodeEncodeError:  # a lone UTF-16 surrogate, which only an escape can represent
            lines.append(f"{json.dumps(row)}\n".encode())

    return b"".join(lines)


def csv_lines(rows: Sequence[JsonObject], columns: Sequence[str], *, delimiter: str, with_header: bool) -> bytes:
    """Return *rows* as CSV lines; raise SinkRefused if a text cannot be encoded."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    if with_header:
        writer.writerow(columns)
    for row in rows:
        cells = ("" if (value := row.get(name)) is None else value for name in columns)
        writer.writerow([cell if isinstance(cell, str) else as_json(cell) for cell in cells])
    try:
        return file.getvalue().encode()
    except UnicodeEncodeError as exc:
        raise SinkRefused(f"a text cannot be written as UTF-8: {exc.reason}") from exc


def csv_columns(header: bytes, *, delimiter: str) -> tuple[str, ...]:
    """Return the columns named by the first line of a file; raise SinkRefused if it names none."""
    try:
        first = next(csv.reader([header.decode("utf-8-sig")], delimiter=delimiter, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as exc:
        raise SinkRefused(f"the first line of the file cannot be read as a header of CSV: {exc}") from exc
    if not any(name.strip() for name in first):
        raise SinkRefused("the first line of the file is empty, and should be a header of CSV: write one, or move it")

    return tuple(name.strip() for name in first)


class TableRows:
    """
    Rows to be saved to a table of the user.

    The key of saved rows is stored in `_adw_sink_keys`, in the same database and transaction, so that the user's table
    needs no column for it. A missing table is created from the first rows.
    """

    def __init__(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...] = ()) -> None:
        """
        Take at least one row; *key* has the columns that identify a row for an upsert, () appends.

        *table* may begin with a schema. Raises SinkRefused for rows that no table could take.
        """
        self.table = table
        self.rows = rows
        self.sink_key = sink_key
        self.key = key
        self.columns = columns_of(rows)
        refuse_unknown(key, self.columns, "what the call gave back")
        for number, row in enumerate(rows, start=1):
            for name in key:
                if row.get(name) is None:
                    raise SinkRefused(f"row {number} has no {name}, which is the key of the upsert: each row needs it")

    def make_table(self, types: Mapping[str, str]) -> str:
        """Return the statement that creates the table; *types* maps each kind of column to a type."""
        parts = [f"{quoted(name)} {types[kind_of(row.get(name) for row in self.rows)]}" for name in self.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")

        return f"CREATE TABLE {quoted_table(self.table)} ({', '.join(parts)})"

    def insert(self, place: str) -> str:
        """Return the statement that saves one row; *place* is the placeholder for a value."""
        names, places = ", ".join(map(quoted, self.columns)), ", ".join([place] * len(self.columns))
        text = f"INSERT INTO {quoted_table(self.table)} ({names}) VALUES ({places})"
        if not self.key:
            return text
        others = [quoted(name) for name in self.columns if name not in self.key]
        change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"

        return f"{text} ON CONFLICT ({', '.join(map(quoted, self.key))}) DO {change}"

    def values(self, adapt: Callable[[str, JsonValue], object]) -> list[tuple[object, ...]]:
        """Return the values of each row in column order; *adapt* gets the column and the value."""
        return [tuple(adapt(name, row.get(name)) for name in self.columns) for row in self.rows]

    def no_unique_index(self) -> SinkRefused:
        """Return the error for a table without a unique index on the upsert key."""
        columns = ", ".join(map(quoted, self.key))

        return SinkRefused(
            f"the table {self.table} has no unique index on ({columns}), which upsert needs: CREATE UNIQUE INDEX ON it,"
            " or use another key"
        )


def quoted(name: str) -> str:
    """Return a column name as SQL; a dot is part of the name."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return the name of a table, with or without a schema, as SQL."""
    return ".".join(map(quoted, name.split(".")))
