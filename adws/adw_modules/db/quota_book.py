"""
Places of workflows, and what workflows have cost.

Whoever asks for a place decides inside the transaction that takes it, one after the other: so of two who race for the
last place one gets it. What was spent is read from the documents' rows, attempt by attempt; nothing counts twice, and
what is paid by the month counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from adws.adw_modules import cost_entries, timestamps
from adws.adw_modules.cost_entries import CostEntry, money
from adws.adw_modules.db import resource_statements as sql
from adws.adw_modules.db.cost_book import spell
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import Reservation, Spending

#: A place whose workflow never came to be is given up after this long.
ABANDONED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """The queries in the words of one dialect."""

    free_left: str
    cost_of: str
    costs: str
    phases: str


class DatabaseQuotaBook:
    """A `resources.quotas.QuotaBook` in the table quota_reservations."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._texts = _texts(database)

    def reserve(self, wanted: Reservation, decide: Callable[[Spending], None]) -> None:
        """Take a place unless *decide*, which sees all others, raises; asking again changes the estimate only."""

        def work(session: Session) -> None:
            if self._database.dialect == "postgresql":
                session.one(sql.QUOTA_LOCK)
            session.run(self._texts.free_left, self._left_params())
            decide(self._spending(session, wanted.adw_id))
            session.run(
                sql.QUOTA_RESERVE,
                {
                    "adw_id": wanted.adw_id,
                    "host": wanted.host,
                    "estimated_cost": wanted.estimated_cost,
                    "reserved_at": timestamps.to_text(self._clock.now()),
                },
            )

        self._database.transact(work)

    def release(self, adw_id: str) -> bool:
        """Give a place back; False when there was none."""
        return self._database.transact(lambda session: session.run(sql.QUOTA_RELEASE, {"adw_id": adw_id})) == 1

    def free_left_behind(self) -> int:
        """Free the places of workflows that are parked or over and that nobody works on, and return how many."""
        return self._database.transact(lambda session: session.run(self._texts.free_left, self._left_params()))

    def spending(self, adw_id: str = "") -> Spending:
        """Return the places that are taken and what was spent; of *adw_id* what it has cost itself."""
        with self._database.read() as session:
            return self._spending(session, adw_id)

    def places(self) -> tuple[Reservation, ...]:
        """Return the places that are taken."""
        with self._database.read() as session:
            return self._places(session)

    def completed_costs(self, workflow: str, *, limit: int) -> tuple[float, ...]:
        """Return what the last *limit* workflows of this name cost that came to their end."""
        with self._database.read() as session:
            found = session.all(self._texts.costs, {"workflow": workflow, "limit": limit})

        return tuple(money(row[0]) or 0.0 for row in found)

    def workflow_of(self, adw_id: str) -> str:
        """Return the name of the workflow that *adw_id* runs, "" when it is not known."""
        with self._database.read() as session:
            row = session.one(sql.WORKFLOW_OF, {"adw_id": adw_id})

        return "" if row is None else str(row[0])

    def _spending(self, session: Session, adw_id: str) -> Spending:
        midnight = timestamps.to_text(self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0))
        texts = session.all(self._texts.phases, {"since": midnight})
        entries = (entry for text in texts for entry in cost_entries.entries_in(*text) if entry.ended_at >= midnight)
        today = _by_provider(entry for entry in entries if entry.cost_usd is not None)
        spent, cap = self._cost_of(session, adw_id) if adw_id else (0.0, None)

        return Spending(
            places=self._places(session),
            spent_today=math.fsum(today.values()),
            spent_today_by_provider=today,
            spent_by_asker=spent,
            cap_of_asker=cap,
        )

    def _places(self, session: Session) -> tuple[Reservation, ...]:
        return tuple(
            Reservation(adw_id=row[0], host=row[1], estimated_cost=row[2], spent=self._cost_of(session, row[0])[0])
            for row in session.all(sql.QUOTA_ALL)
        )

    def _cost_of(self, session: Session, adw_id: str) -> tuple[float, float | None]:
        """Return what a workflow has cost, and the cap that a person gave it."""
        row = session.one(self._texts.cost_of, {"adw_id": adw_id})

        return (0.0, None) if row is None else (money(row[0]) or 0.0, money(row[1]))

    def _left_params(self) -> dict[str, object]:
        long_ago = timestamps.to_text(self._clock.now() - ABANDONED_AFTER)

        return {**self._database.lease_clock(), "long_ago": long_ago}


def _by_provider(spent: Iterable[CostEntry]) -> dict[str, float]:
    lines, _ = cost_entries.grouped(spent, "provider")

    return {line.key: line.cost_usd for line in lines}


def _texts(database: Database) -> _Texts:
    return _Texts(
        free_left=spell(database, sql.QUOTA_FREE_LEFT),
        cost_of=spell(database, sql.COST_OF),
        costs=spell(database, sql.COSTS_OF_COMPLETED),
        phases=spell(database, sql.PHASES_SINCE),
    )
