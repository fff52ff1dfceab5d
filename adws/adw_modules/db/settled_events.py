"""
Looking through events in their order, each once.

PostgreSQL gives numbers before the commit, so a lower one may appear after a higher one was seen: who remembers how far
it looked must not pass one that is still to come.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import DatabaseUnavailable

EVENTS_LAST = "SELECT coalesce(max(seq), 0) FROM events"
EVENT_AT = "SELECT event_id FROM events WHERE seq = :seq"
#: Who holds this lock has waited for all who were writing events; it gives up soon, because those who come later wait
#: behind it.
EVENTS_SETTLED = "LOCK TABLE events IN SHARE MODE"
EVENTS_PATIENCE = "SET LOCAL lock_timeout = '2s'"


def last(database: Database) -> int | None:
    """Return the number of the last event when every one before it is in or will never be, None: ask later."""

    def work(session: Session) -> int:
        if database.dialect == "postgresql":
            session.run(EVENTS_PATIENCE)
            session.run(EVENTS_SETTLED)
        row = session.one(EVENTS_LAST)

        return int(row[0]) if row else 0

    try:
        return database.transact(work)
    except DatabaseUnavailable:
        # Somebody has been writing events for long. Whoever looks later finds them; and if the database is gone
        # altogether, whatever is asked of it next says so.
        return None


def event_at(session: Session, seq: int) -> str:
    """Return the id of the event with that number, "" when there is none."""
    row = session.one(EVENT_AT, {"seq": seq})

    return str(row[0]) if row else ""
