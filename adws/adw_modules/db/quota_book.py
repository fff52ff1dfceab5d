"""
Places of workflows, and what workflows have cost.

Whoever asks for a place decides inside the transaction that takes it, one after the other: so of two who race for the
last place one gets it. What was spent is read from the documents' rows, attempt by attempt; nothing counts twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.db import resource_statements as sql
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


#: Only a report that has a cost names it: most documents are passed over without reading their JSON.
_COSTING = '%"cost_usd"%'


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

    def completed_costs(self, workflow: str, *, limit: int) -> tuple[float, ...]:
        """Return what the last *limit* workflows of this name cost that came to their end."""
        with self._database.read() as session:
            found = session.all(self._texts.costs, {"workflow": workflow, "limit": limit})

        return tuple(_amount(row[0]) for row in found)

    def workflow_of(self, adw_id: str) -> str:
        """Return the name of the workflow that *adw_id* runs, "" when it is not known."""
        with self._database.read() as session:
            row = session.one(sql.WORKFLOW_OF, {"adw_id": adw_id})

        return "" if row is None else str(row[0])

    def _spending(self, session: Session, adw_id: str) -> Spending:
        rows = session.all(sql.QUOTA_ALL)
        midnight = timestamps.to_text(self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0))
        texts = (row[0] for row in session.all(self._texts.phases, {"since": midnight, "costing": _COSTING}))
        places = tuple(
            Reservation(adw_id=row[0], host=row[1], estimated_cost=row[2], spent=self._cost_of(session, row[0]))
            for row in rows
        )

        return Spending(
            places=places,
            spent_today=sum(spent for text in texts for spent in _spent_since(text, midnight)),
            spent_by_asker=self._cost_of(session, adw_id) if adw_id else 0.0,
        )

    def _cost_of(self, session: Session, adw_id: str) -> float:
        row = session.one(self._texts.cost_of, {"adw_id": adw_id})

        return 0.0 if row is None else _amount(row[0])

    def _left_params(self) -> dict[str, object]:
        long_ago = timestamps.to_text(self._clock.now() - ABANDONED_AFTER)

        return {**self._database.lease_clock(), "long_ago": long_ago}


def _texts(database: Database) -> _Texts:
    words = sql.DOCUMENT_PARTS[database.dialect]

    def spell(text: str) -> str:
        for word, spelled in words.items():
            text = text.replace(word, spelled)
        return database.spell(text)

    return _Texts(
        free_left=spell(sql.QUOTA_FREE_LEFT),
        cost_of=spell(sql.COST_OF),
        costs=spell(sql.COSTS_OF_COMPLETED),
        phases=spell(sql.PHASES_SINCE),
    )


def _spent_since(phases: str | None, since: str) -> Iterator[float]:
    """Yield what each attempt cost that ended at or after *since*; a document of another tool may hold anything."""
    for phase in _listed(json.loads(phases or "[]")):
        for attempt in _listed(phase.get("attempts")):
            ended, report = attempt.get("ended_at"), attempt.get("report")
            if isinstance(ended, str) and ended >= since and isinstance(report, dict):
                yield _amount(report.get("cost_usd"))


def _listed(value: object) -> Iterator[dict[str, object]]:
    yield from (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def _amount(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)

    return float(value) if is_number and math.isfinite(value) and value > 0 else 0.0  # type: ignore[arg-type, operator] # is_number says so
