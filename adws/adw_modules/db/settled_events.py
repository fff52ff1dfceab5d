"""
Looking through events in their order, each once.

PostgreSQL gives numbers before the commit, so a lower one may appear after a higher one was seen: who remembers how far
it looked must not pass one that is still to come. How far is kept in the database, by the name of who looks, and moves
in the same transaction as whatever came of the events. It is a number and the id of the event that has it: after events
were made again from documents the numbers are others, and the id tells.
"""

from __future__ import annotations

from typing import NamedTuple

from adws.adw_modules.db import schedule_statements as sql
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import DatabaseUnavailable

EVENTS_LAST = "SELECT coalesce(max(seq), 0) FROM events"
EVENT_AT = "SELECT event_id FROM events WHERE seq = :seq"
#: Who holds this lock has waited for all who were writing events; it gives up soon, because those who come later wait
#: behind it.
EVENTS_SETTLED = "LOCK TABLE events IN SHARE MODE"
EVENTS_PATIENCE = "SET LOCAL lock_timeout = '2s'"


class Place(NamedTuple):
    """The last event that somebody has looked at."""

    seq: int
    event_id: str


def last(database: Database) -> int | None:
    """Return the number of the last event when every one before it is in or will never be, None: ask later."""

    def work(session: Session) -> int:
        if database.dialect == "postgresql":
            session.run(EVENTS_PATIENCE)
            session.run(EVENTS_SETTLED)

        return last_in(session)

    try:
        return database.transact(work)
    except DatabaseUnavailable:
        # Somebody has been writing events for long. Whoever looks later finds them; and if the database is gone
        # altogether, whatever is asked of it next says so.
        return None


def last_in(session: Session) -> int:
    """Return the number of the last event, 0 when there is none."""
    row = session.one(EVENTS_LAST)

    return int(row[0]) if row else 0


def event_at(session: Session, seq: int) -> str:
    """Return the id of the event with that number, "" when there is none."""
    row = session.one(EVENT_AT, {"seq": seq})

    return str(row[0]) if row else ""


# --- how far was looked ----------------------------------------------------------------------------------------


def place_of(session: Session, name: str) -> Place | None:
    """Return how far *name* has looked, None when it never did."""
    return _place(session, sql.CURSOR_READ, name)


def take_place(database: Database, session: Session, name: str) -> Place | None:
    """Return the same; nobody else looks under this name until the end of the transaction."""
    session.run(sql.CURSOR_BEGIN, {"name": name})

    return _place(session, database.spell(sql.CURSOR_TAKE), name)


def move(session: Session, name: str, seq: int) -> None:
    """Write down that *name* has looked at everything up to number *seq*."""
    session.run(sql.CURSOR_MOVE, {"name": name, "seq": seq, "event_id": event_at(session, seq)})


def _place(session: Session, text: str, name: str) -> Place | None:
    row = session.one(text, {"name": name})

    return Place(int(row[0]), str(row[1])) if row and row[0] >= 0 else None
