# ruff: noqa: S608 - all that is put into these texts are names of the schema
"""
Whole tables from one database to another: read in pages, summed up, put in.

Ids, tokens and fences stay. What is measured by the clock of one machine does not: a lease or a claim is over on the
other side, and its owner stays, so that the next one takes over. The sum of a table does not depend on the order of its
rows, which the databases sort differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Table

from adws.adw_modules.db import models
from adws.adw_modules.db.session import Params, Session
from adws.adw_modules.interfaces_move import TableSum

#: Rows that are read or written at once.
AT_ONCE = 500
#: Workers say that they are there by themselves, and facts are about one database. Without a note how far they were
#: looked through, all workflows are looked at again for reports: their documents may be newer than the copies were.
NOT_COPIED = frozenset({"runners", "home_facts", "report_progress"})
#: What is over on another machine.
_OVER: Mapping[str, Mapping[str, object]] = {
    "workflow_states": {"lease_until": 0.0, "lease_boot": "", "home": "database"},
    "runs": {"claim_until": 0.0, "claim_boot": ""},
    "schedule": {"claim_until": 0.0, "claim_boot": ""},
    "notifications": {"claim_until": 0.0, "claim_boot": ""},
}

#: The tables that are copied.
TABLES: tuple[Table, ...] = tuple(table for table in models.metadata.sorted_tables if table.name not in NOT_COPIED)

_SPACE = 1 << 256


@dataclass(slots=True)
class Sum:
    """Adds rows up."""

    rows: int = 0
    total: int = field(default=0, repr=False)

    def add(self, row: Params) -> None:
        """Count one row."""
        text = json.dumps(row, sort_keys=True, default=bytes.hex)
        self.rows += 1
        self.total = (self.total + int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")) % _SPACE

    def result(self) -> TableSum:
        """Return what came together."""
        return TableSum(rows=self.rows, digest=f"{self.total:064x}")


def read_rows(session: Session, table: Table) -> Iterator[dict[str, object]]:
    """Yield every row of *table*, in pages along its key."""
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key.columns]
    listed, key = ", ".join(names), ", ".join(keys)
    first = f"SELECT {listed} FROM {table.name} ORDER BY {key} LIMIT :limit"
    after = ", ".join(f":after_{name}" for name in keys)
    following = f"SELECT {listed} FROM {table.name} WHERE ({key}) > ({after}) ORDER BY {key} LIMIT :limit"
    page = session.all(first, {"limit": AT_ONCE})
    while page:
        rows = [dict(zip(names, row, strict=True)) for row in page]
        yield from rows
        if len(page) < AT_ONCE:
            return
        page = session.all(following, {"limit": AT_ONCE, **{f"after_{name}": rows[-1][name] for name in keys}})


def carried(table: Table, row: dict[str, object]) -> dict[str, object]:
    """Return *row* as it is on the other side."""
    return {**row, **_OVER.get(table.name, {})}


def insert_rows(session: Session, table: Table, rows: list[dict[str, object]]) -> None:
    """Put *rows* into *table*, with the ids they have."""
    names = [column.name for column in table.columns]
    values = ", ".join(f":{name}" for name in names)
    session.run_each(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})", rows)


def count(session: Session, table: Table) -> int:
    """Return how many rows *table* has."""
    row = session.one(f"SELECT count(*) FROM {table.name}")

    return int(row[0]) if row else 0


def sum_up(session: Session, table: Table) -> TableSum:
    """Return the sum of what *table* has now."""
    found = Sum()
    for row in read_rows(session, table):
        found.add(row)

    return found.result()


def raise_sequences(session: Session, highest: Mapping[str, int]) -> None:
    """Have PostgreSQL number on above every id that is there, and above the *highest* that a table ever gave."""
    for table in TABLES:
        column = table.autoincrement_column
        if column is None or column.identity is None:
            continue
        row = session.one(f"SELECT coalesce(max({column.name}), 0) FROM {table.name}")
        last = max(int(row[0]) if row else 0, highest.get(table.name, 0))
        if last:
            session.one(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), {last})")
