"""
What a sink saves of a result: rows, their columns, the text of a line, and the statements that save rows to a table.

Pure. A list is many rows, a table is one, nothing is none; what is no table is a row with the column `value`. Values
inside of values are written as JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from adws.adw_modules.errors import SinkRefused
from adws.adw_modules.identifiers import JsonObject, JsonValue

#: The column of a row that is no table.
VALUE = "value"
#: Columns of a table, and characters of a name: what both databases take.
MAX_COLUMNS = 500
MAX_NAME = 63
#: What a column holds, the wider one later.
NOTHING, TRUTH, WHOLE, NUMBER, TEXT, JSON, MIXED = "nothing", "truth", "whole", "number", "text", "json", "mixed"


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
    """Return the columns of *rows* in the order they first stand in; raise SinkRefused for what can be none."""
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
    """Raise SinkRefused when the rows have *columns* that *place* does not know."""
    there = list(known)
    missing = [name for name in columns if name not in there]
    if missing:
        raise SinkRefused(
            f"{place} has no column {', '.join(missing)} (it has {', '.join(there)}): add it there, or choose the"
            " columns with `rows`"
        )


def refuse_without_key(rows: Iterable[JsonObject], key: Sequence[str]) -> None:
    """Raise SinkRefused for a row that lacks a value in a column of *key*: nothing could be told the same as it."""
    for number, row in enumerate(rows, start=1):
        for name in key:
            if row.get(name) is None:
                raise SinkRefused(f"row {number} has no {name}, which is the key of the upsert: each row needs it")


def kind_of(values: Iterable[JsonValue]) -> str:
    """Return what a column with *values* holds."""
    kinds = {_kind(value) for value in values} - {NOTHING}
    if not kinds:
        return NOTHING
    if kinds == {WHOLE, NUMBER}:
        return NUMBER

    return kinds.pop() if len(kinds) == 1 else MIXED


def _kind(value: JsonValue) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int):
        return WHOLE
    if isinstance(value, float):
        return NUMBER

    return TEXT if isinstance(value, str) else JSON


def as_json(value: JsonValue) -> str:
    """Return *value* as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- lines -----------------------------------------------------------------------------------------------------


def json_lines(rows: Iterable[JsonObject]) -> bytes:
    """Return one line of JSON for each of *rows*."""
    return b"".join(map(_json_line, rows))


def _json_line(row: JsonObject) -> bytes:
    try:
        return f"{as_json(row)}\n".encode()
    except UnicodeEncodeError:  # half of a pair of UTF-16, which JSON can only spell
        return f"{json.dumps(row)}\n".encode()


def csv_lines(rows: Sequence[JsonObject], columns: Sequence[str], *, delimiter: str, with_header: bool) -> bytes:
    """Return *rows* as lines of CSV; raise SinkRefused when a text cannot be written."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    if with_header:
        writer.writerow(columns)
    writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])
    try:
        return file.getvalue().encode()
    except UnicodeEncodeError as exc:
        raise SinkRefused(f"a text cannot be written as UTF-8: {exc.reason}") from exc


def csv_columns(header: bytes, *, delimiter: str) -> tuple[str, ...]:
    """Return the columns that the first line of a file names; raise SinkRefused when it names none."""
    try:
        first = next(csv.reader([header.decode("utf-8-sig")], delimiter=delimiter, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as exc:
        raise SinkRefused(f"the first line of the file cannot be read as a header of CSV: {exc}") from exc
    if not any(name.strip() for name in first):
        raise SinkRefused("the first line of the file is empty, and should be a header of CSV: write one, or move it")

    return tuple(name.strip() for name in first)


def _cell(value: JsonValue) -> str:
    if value is None:
        return ""

    return value if isinstance(value, str) else as_json(value)


# --- tables ----------------------------------------------------------------------------------------------------
#
# Saving rows to a table of the user, once for each key: what both dialects have in common. The key of what is saved is
# a row of `_adw_sink_keys` in the same database, written in the same transaction: a table of the user stays as it is. A
# table that does not exist is made from the first rows.


#: What was saved, in the database of the user.
KEYS = "_adw_sink_keys"
MAKE_KEYS = (
    f"CREATE TABLE IF NOT EXISTS {KEYS} (sink_key text NOT NULL, table_name text NOT NULL, row_count integer NOT NULL,"
    " PRIMARY KEY (sink_key, table_name))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRows:
    """Rows on their way to a table."""

    table: str  #: as the definition names it, a schema may stand before it
    rows: Sequence[JsonObject]  #: at least one
    sink_key: str
    key: tuple[str, ...] = ()  #: columns that make two rows the same; (): append

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows, in order; raises SinkRefused."""
        return columns_of(self.rows)

    def check(self) -> None:
        """Raise SinkRefused for rows that no table could take."""
        refuse_unknown(self.key, self.columns, "what the call gave back")
        refuse_without_key(self.rows, self.key)


def quoted(name: str) -> str:
    """Return a name, or a schema and a name, as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def quoted_column(name: str) -> str:
    """Return the name of a column as SQL; a dot in it is a part of it."""
    return '"' + name.replace('"', '""') + '"'


def make_table(new: TableRows, types: Mapping[str, str]) -> str:
    """Return the statement that makes the table; *types* has the type for each kind of column."""
    parts = [f"{quoted_column(name)} {types[kind_of(row.get(name) for row in new.rows)]}" for name in new.columns]
    if new.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted_column, new.key))})")

    return f"CREATE TABLE {quoted(new.table)} ({', '.join(parts)})"


def insert(new: TableRows, place: str) -> str:
    """Return the statement that saves one row; *place* stands where a value comes."""
    names = ", ".join(map(quoted_column, new.columns))
    places = ", ".join([place] * len(new.columns))
    text = f"INSERT INTO {quoted(new.table)} ({names}) VALUES ({places})"
    if not new.key:
        return text
    others = [quoted_column(name) for name in new.columns if name not in new.key]
    change = f"DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "DO NOTHING"

    return f"{text} ON CONFLICT ({', '.join(map(quoted_column, new.key))}) {change}"


def values(new: TableRows, adapt: Callable[[str, JsonValue], object]) -> list[tuple[object, ...]]:
    """Return the values of each row, in the order of the columns; *adapt* gets the column and the value."""
    columns = new.columns

    return [tuple(adapt(name, row.get(name)) for name in columns) for row in new.rows]


def no_unique_index(new: TableRows) -> SinkRefused:
    """Return what is wrong with a table that has nothing to tell two rows the same by."""
    columns = ", ".join(map(quoted_column, new.key))

    return SinkRefused(
        f"the table {new.table} has no unique index on ({columns}), which upsert needs: CREATE UNIQUE INDEX ON it, or"
        " use another key"
    )
