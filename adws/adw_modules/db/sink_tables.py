"""
Saving rows to a table of the user, once for each key: what both dialects have in common.

The key of what is saved is a row of `_adw_sink_keys` in the same database, written in the same transaction: a table of
the user stays as it is. A table that does not exist is made from the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from adws.adw_modules import sink_rows
from adws.adw_modules.errors import SinkRefused
from adws.adw_modules.json_value import JsonObject, JsonValue

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
        return sink_rows.columns_of(self.rows)

    def check(self) -> None:
        """Raise SinkRefused for rows that no table could take."""
        sink_rows.refuse_unknown(self.key, self.columns, "what the call gave back")
        sink_rows.refuse_without_key(self.rows, self.key)


def quoted(name: str) -> str:
    """Return a name, or a schema and a name, as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def quoted_column(name: str) -> str:
    """Return the name of a column as SQL; a dot in it is a part of it."""
    return '"' + name.replace('"', '""') + '"'


def make_table(new: TableRows, types: Mapping[str, str]) -> str:
    """Return the statement that makes the table; *types* has the type for each kind of column."""
    parts = [
        f"{quoted_column(name)} {types[sink_rows.kind_of(row.get(name) for row in new.rows)]}" for name in new.columns
    ]
    if new.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted_column, new.key))})")

    return f"CREATE TABLE {quoted(new.table)} ({', '.join(parts)})"


def insert(new: TableRows, place: str) -> str:
    """Return the statement that saves one row; *place* stands where a value comes."""
    names = ", ".join(map(quoted_column, new.columns))
    places = ", ".join([place] * len(new.columns))
    text = f"INSERT INTO {quoted(new.table)} ({names}) VALUES ({places})"  # noqa: S608 - names are quoted
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
