"""
Notifications in the database, made from the events that are in it.

How far events were looked through is kept beside, and moves in the same transaction as the rows that came of them. So
no event is lost and none is told twice, whatever dies meanwhile. After the events were made again from documents their
numbers are others: then the last ones are looked through once more, and the keys keep everything from being told twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, settled_events
from adws.adw_modules.db import schedule_statements as sql
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_schedule import Notice, NotificationRow

#: Events that are looked through in one transaction.
CHUNK = 500
#: Under which name they are.
CURSOR = "events"


class DatabaseNotifications:
    """A `NotificationBook` in the tables notifications and notification_cursor."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_due, self._due = database.spell(sql.NOTICE_IS_DUE), database.spell(sql.NOTICE_DUE)
        self._claim = database.spell(sql.NOTICE_CLAIM)

    def gather(self, pick: Callable[[Event], Notice | None], *, since: str) -> int:
        """Store what *pick* makes of every event since the last call, and return how many rows that made."""
        last, made = settled_events.last(self._database), 0
        while last is not None:
            added, is_through = self._database.transact(lambda session: self._gather_some(session, pick, since, last))
            made += added
            if is_through:
                break

        return made

    def _gather_some(
        self, session: Session, pick: Callable[[Event], Notice | None], since: str, last: int
    ) -> tuple[int, bool]:
        after, is_known = self._after(session, since, last)
        found = session.all(sql.EVENTS_BETWEEN, {"after": after, "last": last, "limit": CHUNK})
        notices = filter(None, (pick(rows.to_event(row[1:])) for row in found))
        added = add_notices(session, notices, timestamps.to_text(self._clock.now()))
        if found or not is_known:
            settled_events.move(session, CURSOR, found[-1][0] if found else after)

        return added, len(found) < CHUNK

    def _after(self, session: Session, since: str, last: int) -> tuple[int, bool]:
        """Return the number of the last event that was looked at, and whether that is known from before."""
        place = settled_events.take_place(self._database, session, CURSOR)
        if place is not None and settled_events.event_at(session, place.seq) == place.event_id:
            return place.seq, True
        first = session.one(sql.EVENTS_BEFORE, {"since": since, "last": last})

        return (int(first[0]) if first else 0), False

    def add(self, notices: Sequence[Notice]) -> int:
        """Store notices, those that are known left out, and return how many rows that made."""
        moment = timestamps.to_text(self._clock.now())

        return self._database.transact(lambda session: add_notices(session, notices, moment))

    def take(self, *, ttl_seconds: float) -> NotificationRow | None:
        """Claim the oldest row that is due, None when there is none."""
        params = {**self._database.lease_clock(), "moment": timestamps.to_text(self._clock.now())}

        def work(session: Session) -> Row | None:
            due = session.one(self._due, params)
            if due is None:
                return None

            clock = self._database.lease_clock()
            return session.one(self._claim, {**clock, "notice_id": due[0], "ttl": ttl_seconds})

        with self._database.read() as session:  # most looks find nothing, and a look keeps nobody from writing
            if session.one(self._is_due, params) is None:
                return None
        taken = self._database.transact(work)

        return None if taken is None else to_notification(taken)

    def settle(self, row: NotificationRow, *, status: str, error: str = "", not_before: str = "") -> bool:
        """Write down what came of it; False when somebody else has it now."""
        params = {
            "notice_id": row.notice_id,
            "token": row.token,
            "status": status,
            "error": rows.plain(error),
            "not_before": not_before,
            "moment": timestamps.to_text(self._clock.now()),
        }

        return self._database.transact(lambda session: session.run(sql.NOTICE_SETTLE, params)) == 1

    def page(self, *, limit: int = 50) -> tuple[NotificationRow, ...]:
        """Return rows, newest first."""
        with self._database.read() as session:
            found = session.all(sql.NOTICES_PAGE, {"limit": limit})

        return tuple(map(to_notification, found))

    def forget_before(self, moment: str) -> int:
        """Delete those that are over and older than *moment*, and return how many."""
        return self._database.transact(lambda session: session.run(sql.NOTICES_FORGET, {"moment": moment}))


def add_notices(session: Session, notices: Iterable[Notice], moment: str) -> int:
    """Store notices, one row for each channel, and return how many were new."""
    made = 0
    for notice in notices:
        for channel in notice.channels:
            made += session.run(
                sql.NOTICE_ADD,
                {
                    "key": notice.key,
                    "channel": channel,
                    "kind": notice.kind,
                    "adw_id": notice.adw_id,
                    "title": rows.plain(notice.title),
                    "text": rows.plain(notice.text),
                    "moment": moment,
                },
            )

    return made


def to_notification(row: Row) -> NotificationRow:
    """Return the notification in a row of `schedule_statements.NOTICES_PAGE`."""
    names = ("notice_id", "key", "channel", "kind", "adw_id", "title", "text", "status", "attempts", "not_before")

    return NotificationRow(**dict(zip((*names, "error", "created_at", "sent_at", "token"), row, strict=True)))
