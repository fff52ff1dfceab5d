"""
Reading what happened to a workflow.

Events of one workflow are numbered under its row lock, so their numbers grow in the order they happened.
"""

from __future__ import annotations

from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database
from adws.adw_modules.errors import UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id


class DatabaseEventLog:
    """An `EventLog` in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_workflow(self, adw_id: str, *, after: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events of a workflow in the order they happened, those after event *after*."""
        check_adw_id(adw_id)
        if limit < 1:
            raise UsageError(f"a limit of {limit} events shows nothing: use at least 1")
        with self._database.read() as session:
            place = 0
            if after is not None:
                row = session.one(statements.EVENT_PLACE, {"event_id": rows.plain(after), "adw_id": adw_id})
                if row is None:
                    raise UsageError(f"workflow {adw_id} has no event {after}")
                place = row[0]
            found = session.all(statements.EVENTS_OF_WORKFLOW, {"adw_id": adw_id, "after": place, "limit": limit})

        return tuple(rows.to_event(row) for row in found)
