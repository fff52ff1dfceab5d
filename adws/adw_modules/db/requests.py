"""
Messages to the live owner of a workflow, each handled once.

Only the owner changes a workflow; everybody else leaves a row here and the owner looks at least once a second.
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, Request
from adws.adw_modules.json_value import JsonObject


class DatabaseRequests:
    """`Requests` in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def ask(self, adw_id: str, kind: str, *, payload: JsonObject | None = None, asked_by: str = "") -> Request:
        """Leave a request; durable when this returns."""
        params = {
            "adw_id": check_adw_id(adw_id),
            "kind": kind,
            "payload": self._database.clean_json(rows.json_text(payload or {}, f"the payload of a {kind} request")),
            "asked_by": rows.plain(self._database.clean(asked_by)),
            "created_at": timestamps.to_text(self._clock.now()),
        }

        def work(session: Session) -> int:
            row = session.one(statements.REQUEST_ASK, params)
            if row is None:
                raise DatabaseError(f"the request to {adw_id} was not stored: try again")
            return int(row[0])

        request_id = self._database.transact(work)

        return rows.to_request((request_id, *(params[name] for name in _ASKED), None, None))

    def open_for(self, adw_id: str) -> tuple[Request, ...]:
        """Return what is not handled yet, oldest first."""
        with self._database.read() as session:
            found = session.all(statements.REQUESTS_OPEN, {"adw_id": check_adw_id(adw_id)})

        return tuple(rows.to_request(row) for row in found)

    def get(self, request_id: int) -> Request | None:
        """Return a request, handled or not."""
        with self._database.read() as session:
            row = session.one(statements.REQUEST_GET, {"request_id": request_id})

        return rows.to_request(row) if row else None

    def handled(self, request_id: int, outcome: str) -> bool:
        """Mark it handled; False when it was already, or never asked."""
        params = {
            "request_id": request_id,
            "handled_at": timestamps.to_text(self._clock.now()),
            "outcome": rows.plain(self._database.clean(outcome)),
        }

        return self._database.transact(lambda session: session.run(statements.REQUEST_HANDLED, params)) == 1


_ASKED = ("adw_id", "kind", "payload", "asked_by", "created_at")
