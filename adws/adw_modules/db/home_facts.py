"""
What is known about the database itself: a few texts by name, in the table home_facts.

A SQLite database that has moved says so to everybody who opens it. Those who have it open already meet a trigger on
each table: what they would still write would be lost.
"""

from __future__ import annotations

import json
from typing import Any

from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.move_words import moved

#: Names of facts. Both are JSON: where to or from, when, and the sums of all tables.
MOVED_TO, MOVED_FROM = "moved_to", "moved_from"
#: Tells one home from another.
HOME_ID = "home_id"
#: The first schema that has facts.
SINCE = "0009"

FACT_READ = "SELECT value FROM home_facts WHERE name = :name"
FACT_SET = """
INSERT INTO home_facts (name, value, changed_at) VALUES (:name, :value, :moment)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at
"""


def read(session: Session, name: str) -> str:
    """Return the fact *name*, "" when it is not known."""
    row = session.one(FACT_READ, {"name": name})

    return "" if row is None else str(row[0])


def read_object(session: Session, name: str) -> dict[str, Any]:
    """Return the fact *name*, which is a JSON object; empty when it is not known."""
    found: dict[str, Any] = json.loads(read(session, name) or "{}")

    return found


def write(session: Session, name: str, value: str, *, moment: str) -> None:
    """Write the fact *name* down, over what it was."""
    session.run(FACT_SET, {"name": name, "value": value, "moment": moment})


def moved_to(database: Database) -> str:
    """Return where *database* has moved to, "" when it is in use."""
    with database.read() as session:
        found = read_object(session, MOVED_TO)

    return str(found.get("target") or "")


def refuse_moved(database: Database) -> None:
    """Raise DatabaseMoved when what *database* held is somewhere else now; only SQLite databases move."""
    if database.dialect != "sqlite":
        return
    target = moved_to(database)
    if target:
        raise moved(database.name, target)
