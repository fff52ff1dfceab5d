"""
The schedule and the notifications in the database.

An entry of the schedule is one row, claimed by compare-and-set for one tick, with a lease: two crons never run it
twice, and one that dies delays the entry by no more than its lease. A notification is one row for each channel; its key
names its transition, so storing it twice changes nothing. A claim has expired if it is of another boot of the machine
or its time is up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection, listing
from adws.adw_modules.db.connection import EVENT_COLUMNS, Database, Row, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock, OwnerRecord

#: Events read in one transaction.
CHUNK = 500
#: The name of our position in the events, up to which notices were made.
CURSOR = "events"

#: Columns of an entry, in the order of the fields of `ScheduleRow`.
SCHEDULE_ALL = """
SELECT name, spec, last_due, last_run, status, outcome, memo, owner, token,
       CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END
FROM schedule
"""
_IS_OURS = "WHERE name = :name AND token = :token AND owner <> ''"
#: Columns of a notification, in the order of the fields of `NotificationRow`.
_NOTIFICATION = (
    "notice_id, notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at,"
    " sent_at, token"
)
_DUE = """
SELECT notice_id FROM notifications
WHERE status = 'pending' AND not_before <= :moment AND (claim_boot <> :boot OR claim_until <= {now})
ORDER BY notice_id LIMIT 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A notice for people."""

    key: str  #: always the same for the same transition
    kind: str  #: one of notify.KINDS
    title: str  #: one line
    text: str = ""  #: more details, or ""
    adw_id: str = ""
    channels: tuple[str, ...] = ()  #: that send it


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notice to be sent by one channel."""

    notice_id: int
    key: str
    channel: str
    kind: str
    adw_id: str
    title: str
    text: str
    status: str  #: pending | sent | given_up
    attempts: int
    not_before: str
    error: str  #: of the last attempt
    created_at: str
    sent_at: str | None = None
    token: int = 0  #: grows with each claim


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRow:
    """A stored entry of the schedule."""

    name: str
    spec: str  #: the expression of the last claim
    last_due: str  #: the last tick done, or ""
    last_run: str  #: when that tick ended
    status: str  #: done | failed; "" before the first tick
    outcome: str  #: in one sentence
    memo: JsonObject = field(default_factory=dict)  #: what the entry remembers for its next tick
    owner: str = ""  #: the record of the cron that runs it, or ""
    token: int = 0  #: grows with each claim
    seconds_left: float = 0.0  #: of the claim; negative if it has expired


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """An entry claimed for one tick."""

    name: str
    due: str
    token: int
    memo: JsonObject = field(default_factory=dict)


class NotificationStore:
    """
    Notifications, made from the events in the database.

    The position in the events is stored too, and moves in the same transaction as the rows made from them: whatever
    dies meanwhile, no event is lost and none makes two notices. When events were rebuilt from documents, they have
    other numbers: then the last ones are read again, and the keys keep notices from being sent twice.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def gather(self, pick: Callable[[Event], Notice | None], *, since: str) -> int:
        """Store what *pick* makes of every event since the last call, and return the number of new rows."""
        last, made = listing.last(self._database), 0
        columns = ", ".join(EVENT_COLUMNS)

        def work(session: Session) -> tuple[int, bool]:
            after, is_known = self._after(session, since, last)
            rows = session.all(
                f"SELECT seq, {columns} FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit",
                {"after": after, "last": last, "limit": CHUNK},
            )
            notices = filter(None, (pick(connection.to_event(row[1:])) for row in rows))
            added = add_notices(session, notices, timestamps.to_text(self._clock.now()))
            if rows or not is_known:
                listing.move(session, CURSOR, rows[-1][0] if rows else after)

            return added, len(rows) < CHUNK

        is_through = last is None
        while not is_through:
            added, is_through = self._database.transact(work)
            made += added

        return made

    def _after(self, session: Session, since: str, last: int | None) -> tuple[int, bool]:
        """Return the number of the last event read, and whether that position was stored."""
        place = listing.take_place(self._database, session, CURSOR)
        if place is not None and listing.event_at(session, place.seq) == place.event_id:
            return place.seq, True
        # The event before the first one made since that moment: rebuilt events may not be in order.
        first = session.one(
            "SELECT coalesce(min(seq) - 1, :last) FROM events WHERE created_at >= :since",
            {"since": since, "last": last},
        )

        return (int(first[0]) if first else 0), False

    def add(self, notices: Sequence[Notice]) -> int:
        """Store notices, without known ones, and return the number of new rows."""
        moment = timestamps.to_text(self._clock.now())

        return self._database.transact(lambda session: add_notices(session, notices, moment))

    def take(self, *, ttl_seconds: float) -> NotificationRow | None:
        """Claim the oldest row that is due, or return None."""
        database = self._database
        params = {**database.lease_clock(), "moment": timestamps.to_text(self._clock.now())}

        def work(session: Session) -> Row | None:
            due = session.one(database.render(f"{_DUE} {{row_lock}}"), params)
            if due is None:
                return None
            claim = (
                "UPDATE notifications SET token = token + 1, attempts = attempts + 1, claim_until = {now} + :ttl,"
                f" claim_boot = :boot WHERE notice_id = :notice_id RETURNING {_NOTIFICATION}"
            )

            return session.one(
                database.render(claim), {**database.lease_clock(), "notice_id": due[0], "ttl": ttl_seconds}
            )

        with database.read() as session:  # most polls find nothing, and a read blocks no writer
            if session.one(database.render(_DUE), params) is None:
                return None
        taken = database.transact(work)

        return None if taken is None else NotificationRow(*taken)

    def settle(self, row: NotificationRow, *, status: str, error: str = "", not_before: str = "") -> bool:
        """Record the result; return False if the row has been claimed again."""
        sql = """
            UPDATE notifications
            SET status = :status, error = :error, not_before = :not_before, claim_until = 0, claim_boot = '',
                sent_at = CASE WHEN :status = 'sent' THEN :moment ELSE sent_at END
            WHERE notice_id = :notice_id AND token = :token AND status = 'pending'
        """
        params = {
            "notice_id": row.notice_id,
            "token": row.token,
            "status": status,
            "error": connection.plain(error),
            "not_before": not_before,
            "moment": timestamps.to_text(self._clock.now()),
        }

        return self._database.transact(lambda session: session.run(sql, params)) == 1

    def page(self, *, limit: int = 50) -> tuple[NotificationRow, ...]:
        """Return rows, newest first."""
        sql = f"SELECT {_NOTIFICATION} FROM notifications ORDER BY notice_id DESC LIMIT :limit"
        with self._database.read() as session:
            return tuple(NotificationRow(*row) for row in session.all(sql, {"limit": limit}))

    def forget_before(self, moment: str) -> int:
        """Delete the finished rows older than *moment*, and return how many."""
        sql = "DELETE FROM notifications WHERE status <> 'pending' AND created_at < :moment"

        return self._database.transact(lambda session: session.run(sql, {"moment": moment}))


def add_notices(session: Session, notices: Iterable[Notice], moment: str) -> int:
    """Store notices, one row for each channel, and return how many were new."""
    sql = """
        INSERT INTO notifications
          (notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at, token,
           claim_until, claim_boot)
        VALUES (:key, :channel, :kind, :adw_id, :title, :text, 'pending', 0, '', '', :moment, 0, 0, '')
        ON CONFLICT (notice_key, channel) DO NOTHING
    """

    return sum(
        session.run(
            sql,
            {
                "key": notice.key,
                "channel": channel,
                "kind": notice.kind,
                "adw_id": notice.adw_id,
                "title": connection.plain(notice.title),
                "text": connection.plain(notice.text),
                "moment": moment,
            },
        )
        for notice in notices
        for channel in notice.channels
    )


class ScheduleStore:
    """
    The schedule: one row for each entry.

    A claim names the last tick that its caller saw done: of two crons claiming at the same moment one gets the entry,
    and the other finds it claimed, or done. The tick counts as done only when its work has ended, in the same
    transaction as its memo and its notices: a cron that dies before loses nothing, and its claim expires.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def rows(self) -> tuple[ScheduleRow, ...]:
        """Return every entry that was ever claimed, by name."""
        with self._database.read() as session:
            rows = session.all(self._database.render(SCHEDULE_ALL), self._database.lease_clock())

        return tuple(sorted(map(_to_row, rows), key=lambda row: row.name))

    def claim(
        self,
        name: str,
        *,
        spec: str,
        due: str,
        seen: str,
        owner: OwnerRecord,
        ttl_seconds: float,
        dead_token: int | None = None,
    ) -> Tick | None:
        """Claim an entry for the tick *due*; return None if another cron has it or has done it meanwhile."""
        params = {
            **self._database.lease_clock(),
            "name": name,
            "spec": spec,
            "seen": seen,
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "dead_token": -1 if dead_token is None else dead_token,
        }

        def work(session: Session) -> Row | None:
            # Of two concurrent first claims one makes the row.
            session.run(
                "INSERT INTO schedule"
                " (name, spec, last_due, last_run, status, outcome, memo, owner, token, claim_until, claim_boot)"
                " VALUES (:name, :spec, '', '', '', '', '{}', '', 0, 0, '') ON CONFLICT (name) DO NOTHING",
                {"name": name, "spec": spec},
            )

            return session.one(
                self._database.render("""
                    UPDATE schedule
                    SET spec = :spec, owner = :owner, token = token + 1, claim_until = {now} + :ttl, claim_boot = :boot
                    WHERE name = :name AND last_due = :seen
                      AND (owner = '' OR claim_boot <> :boot OR claim_until <= {now} OR token = :dead_token)
                    RETURNING token, memo
                """),
                params,
            )

        taken = self._database.transact(work)

        return None if taken is None else Tick(name=name, due=due, token=taken[0], memo=_memo(name, taken[1]))

    def renew(self, tick: Tick, *, ttl_seconds: float) -> bool:
        """Extend the claim; return False if it is no longer ours."""
        sql = self._database.render(f"UPDATE schedule SET claim_until = {{now}} + :ttl, claim_boot = :boot {_IS_OURS}")
        params = {**self._database.lease_clock(), "name": tick.name, "token": tick.token, "ttl": ttl_seconds}

        return self._database.transact(lambda session: session.run(sql, params)) == 1

    def finish(
        self, tick: Tick, *, status: str, outcome: str, memo: JsonObject | None = None, notices: Sequence[Notice] = ()
    ) -> bool:
        """Record the tick as done, with its memo and its notices; return False if the claim was lost."""
        moment = timestamps.to_text(self._clock.now())
        sql = f"""
            UPDATE schedule
            SET last_due = :due, last_run = :moment, status = :status, outcome = :outcome,
                memo = CASE WHEN :memo = '' THEN memo ELSE :memo END, owner = '', claim_until = 0, claim_boot = ''
            {_IS_OURS}
        """
        params = {
            "name": tick.name,
            "token": tick.token,
            "due": tick.due,
            "moment": moment,
            "status": status,
            "outcome": connection.plain(outcome),
            "memo": "" if memo is None else connection.json_text(memo, f"what {tick.name} remembers"),
        }

        def work(session: Session) -> bool:
            if session.run(sql, params) != 1:
                return False
            add_notices(session, notices, moment)

            return True

        return self._database.transact(work)


def _to_row(row: Row) -> ScheduleRow:
    values = dict(zip(ScheduleRow.__slots__, row, strict=True))

    return ScheduleRow(**{**values, "memo": _memo(values["name"], values["memo"])})


def _memo(name: str, text: str) -> JsonObject:
    try:
        memo: JsonObject = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(
            f"the row of entry {name!r} cannot be read ({exc}): delete it from the table schedule"
        ) from exc

    return memo
