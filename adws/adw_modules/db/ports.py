"""
Reservations of ports: the primary key (host, port) lets one workflow in.

A row says who holds the port, as an owner record; so what a dead worker left can be told from what a live one has.
"""

from __future__ import annotations

from collections.abc import Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.db import resource_statements as sql
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import PortRow
from adws.adw_modules.owner_record import OwnerRecord


class DatabasePortBook:
    """A `resources.ports.PortBook` in the table ports."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def reserve(self, adw_id: str, ports: Sequence[tuple[int, str]], owner: OwnerRecord) -> bool:
        """Reserve all of *ports* (number and purpose) on the owner's host, or none of them."""
        moment = timestamps.to_text(self._clock.now())
        base = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text(), "reserved_at": moment}

        def work(session: Session) -> bool:
            for port, purpose in ports:
                if session.run(sql.PORT_RESERVE, {**base, "port": port, "purpose": purpose}) == 0:
                    raise _TakenError
            return True

        try:
            return self._database.transact(work)
        except _TakenError:
            return False

    def keep(self, adw_id: str, owner: OwnerRecord) -> None:
        """Say that *owner* holds the workflow's ports on its host now."""
        params = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text()}
        self._database.transact(lambda session: session.run(sql.PORTS_KEEP, params))

    def give_up(self, adw_id: str, owner: OwnerRecord) -> None:
        """Free what *owner* reserved for the workflow."""
        params = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text()}
        self._database.transact(lambda session: session.run(sql.PORTS_FREE_HERE, params))

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free what the workflow has, on every host, and return the numbers."""
        found = self._database.transact(lambda session: session.all(sql.PORTS_FREE, {"adw_id": adw_id}))

        return tuple(sorted(row[0] for row in found))

    def free_left(self, row: PortRow, owner: str) -> bool:
        """Free one port that *owner* still has; False when it changed hands meanwhile."""
        params = {"host": row.host, "port": row.port, "adw_id": row.adw_id, "owner": owner}

        return self._database.transact(lambda session: session.run(sql.PORT_FREE_LEFT, params)) == 1

    def all(self) -> tuple[tuple[PortRow, str], ...]:
        """Return every reservation and who holds it, in the order of hosts and numbers."""
        with self._database.read() as session:
            found = session.all(sql.PORTS_ALL)

        return tuple(
            (PortRow(port=port, adw_id=adw_id, purpose=purpose, host=host, reserved_at=reserved_at), owner)
            for host, port, adw_id, purpose, owner, reserved_at in found
        )


class _TakenError(Exception):
    """Somebody has one of the ports; what was reserved before it in this transaction is undone with it."""
