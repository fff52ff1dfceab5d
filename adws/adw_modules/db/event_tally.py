# ruff: noqa: S608 - all that is put into these texts are names of metric_rules
"""
Counting what happened: stored events become counters, each once.

Nothing is counted where events are written, so no step waits for a counter, and none of two who work at once waits for
the other. Whoever wants to see the counters looks through the events since the last look; what comes of them and how
far the look went is one commit, and of two who look at once one finds that the other did. What is made again from
documents was counted when it happened, or is not counted: a counter may miss something, and never has it twice.
"""

from __future__ import annotations

from adws.adw_modules.db import counters, settled_events
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.db.settled_events import Place
from adws.adw_modules.metric_names import Readings
from adws.adw_modules.metric_rules import DETAILED, EventFact, Tally

#: Under which name events are looked through.
CURSOR = "metrics"
#: Events that are looked through at a time.
CHUNK = 10_000

_DETAILED = ", ".join(f"'{name}'" for name in sorted(DETAILED))
_IN_PIECE = "seq > :after AND seq <= :last"
PIECE_END = f"""
SELECT max(seq) FROM (SELECT seq FROM events WHERE {_IN_PIECE} ORDER BY seq LIMIT :limit) AS piece
"""
TYPES = f"SELECT event_type, count(*) FROM events WHERE {_IN_PIECE} GROUP BY event_type ORDER BY event_type"
FACTS = f"""
SELECT event_type, node_name, duration, data FROM events
WHERE {_IN_PIECE} AND event_type IN ({_DETAILED}) ORDER BY seq
"""


class DatabaseEventTally:
    """An `interfaces_metrics.EventTally` over the tables events and counters."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def bring_up(self) -> int:
        """Count every event since the last time, and return how many those were; nothing while some are on the way."""
        last, counted = settled_events.last(self._database), 0
        while last is not None:
            found = self._count_piece(last)
            if found is None:
                break
            counted += found

        return counted

    def counted(self) -> Readings:
        """Return every counter of the metrics."""
        with self._database.read() as session:
            return counters.read_in(session)

    def _count_piece(self, last: int) -> int | None:
        """Count some events up to number *last*, and return how many; None when there is nothing to count any more."""
        with self._database.read() as session:
            place = settled_events.place_of(session, CURSOR)
            after = place.seq if place is not None else 0
            found = session.one(PIECE_END, {"after": after, "last": last, "limit": CHUNK})
            end = found[0] if found else None
            if end is None and place is not None:
                return None
            end = after if end is None else int(end)
            # Another event under the number of the last one: they were made again, and what they tell is old.
            is_known = place is None or settled_events.event_at(session, place.seq) in {"", place.event_id}
            tally, counted = _tally(session, after, end) if is_known else (None, 0)
        self._database.transact(lambda session: self._store(session, place, end if is_known else last, tally))

        return counted

    def _store(self, session: Session, place: Place | None, end: int, tally: Tally | None) -> None:
        """Write down what was counted, unless somebody else did meanwhile."""
        if settled_events.take_place(self._database, session, CURSOR) != place:
            return
        if tally is not None:
            counters.add_in(session, tally.added)
        settled_events.move(session, CURSOR, end)


def pass_over(database: Database, session: Session) -> None:
    """Write down that everything there is was counted: what was made again tells nothing new."""
    settled_events.take_place(database, session, CURSOR)
    settled_events.move(session, CURSOR, settled_events.last_in(session))


def _tally(session: Session, after: int, end: int) -> tuple[Tally, int]:
    tally, piece = Tally(counters.read_in(session)), {"after": after, "last": end}
    types = session.all(TYPES, piece)
    tally.add_types((row[0], row[1]) for row in types)
    for row in session.all(FACTS, piece):
        tally.add(EventFact(*row))

    return tally, sum(row[1] for row in types)
