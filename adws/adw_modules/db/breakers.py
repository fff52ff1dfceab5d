"""
Breakers in the database: one row for each party, which all processes of a home share.

A change reads the row under a lock and writes it in the same transaction, so that no other change comes in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from adws.adw_modules.db import breaker_statements as sql
from adws.adw_modules.db import rows
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.interfaces_durability import BreakerRow, Permit


class DatabaseBreakers:
    """A `BreakerStore` in the table breakers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._take = database.spell(sql.BREAKER_TAKE)

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, None when nothing ever happened to it."""
        with self._database.read() as session:
            found = session.one(sql.BREAKER_READ, {"name": name})

        return None if found is None else to_breaker(found)

    def all(self) -> tuple[BreakerRow, ...]:
        """Return every breaker, in the order of their names."""
        with self._database.read() as session:
            found = session.all(sql.BREAKERS_ALL)

        # Not by the database: the order of a server depends on its language.
        return tuple(sorted(map(to_breaker, found), key=lambda row: row.name))

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by what *rule* makes of it; what it raises leaves the breaker as it is."""

        def work(session: Session) -> BreakerRow:
            is_new = session.run(sql.BREAKER_BEGIN, {"name": name}) == 1
            found = session.one(self._take, {"name": name})
            before = BreakerRow(name=name) if found is None else to_breaker(found)
            after = rule(before)
            if after != before:
                session.run(sql.BREAKER_CHANGE, breaker_params(after))
            elif is_new:
                session.run(sql.BREAKER_FORGET, {"name": name})  # nothing happened to it
            return after

        return self._database.transact(work)


def breaker_params(row: BreakerRow) -> dict[str, object]:
    """Return the columns of a breaker as parameters."""
    permits = [asdict(permit) for permit in row.permits]

    return {
        "name": row.name,
        "state": row.state,
        "failures": row.failures,
        "generation": row.generation,
        "opened_at": row.opened_at,
        "reopens_at": row.reopens_at,
        "reason": rows.plain(row.reason),
        "permits": json.dumps(permits),
        "settings": rows.json_text(row.settings, f"the settings of breaker {row.name}"),
        "changed_at": row.changed_at,
    }


def to_breaker(row: Row) -> BreakerRow:
    """Return the breaker in a row of `BREAKERS_ALL`; raise DatabaseError for what is none."""
    name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at = row
    try:
        return BreakerRow(
            name=name,
            state=state,
            failures=failures,
            generation=generation,
            opened_at=opened_at,
            reopens_at=reopens_at,
            reason=reason,
            permits=tuple(Permit(**permit) for permit in json.loads(permits)),
            settings=json.loads(settings),
            changed_at=changed_at,
        )
    except (ValueError, TypeError) as exc:
        raise DatabaseError(
            f"the row of breaker {name!r} cannot be read ({exc}): delete it from the table breakers"
        ) from exc
