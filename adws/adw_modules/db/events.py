"""
Reading what happened to a workflow.

Events of one workflow are numbered under its row lock, so their numbers grow in the order they happened.
"""

from __future__ import annotations

from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id

#: Above the number of every event.
_BEHIND_ALL = 2**62


class DatabaseEventLog:
    """An `EventLog` in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_workflow(self, adw_id: str, *, after: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events of a workflow in the order they happened, those after event *after*."""
        with self._database.read() as session:
            place = _place(session, adw_id, after, limit=limit, otherwise=0)
            found = session.all(statements.EVENTS_OF_WORKFLOW, {"adw_id": adw_id, "after": place, "limit": limit})

        return tuple(rows.to_event(row) for row in found)

    def newest(self, adw_id: str, *, before: str | None = None, limit: int = 50) -> tuple[Event, ...]:
        """Return the events of a workflow, the newest first, those before event *before*."""
        with self._database.read() as session:
            place = _place(session, adw_id, before, limit=limit, otherwise=_BEHIND_ALL)
            found = session.all(statements.EVENTS_NEWEST, {"adw_id": adw_id, "before": place, "limit": limit})

        return tuple(rows.to_event(row) for row in found)


def _place(session: Session, adw_id: str, event_id: str | None, *, limit: int, otherwise: int) -> int:
    """Return the number of an event of a workflow; raise UsageError when it has none of that id."""
    check_adw_id(adw_id)
    if limit < 1:
        raise UsageError(f"a limit of {limit} events shows nothing: use at least 1")
    if event_id is None:
        return otherwise
    row = session.one(statements.EVENT_PLACE, {"event_id": rows.plain(event_id), "adw_id": adw_id})
    if row is None:
        raise UsageError(f"workflow {adw_id} has no event {event_id}")

    return int(row[0])
