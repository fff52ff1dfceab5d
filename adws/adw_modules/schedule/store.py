"""
Notifications in the database, made from the events that are in it.

The position in the events is stored beside, and moves in the same transaction as the rows that were made of them. So no
event is lost and none is told twice, whatever dies meanwhile. After the events were rebuilt from documents their
numbers are others: then the last ones are read once more, and the keys keep everything from being told twice.
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

# The queries about the schedule and about notifications, by name.
#
# Placeholders as in `db.connection`. A claim is over when it belongs to another start of the machine or when its time
# is up.


# --- the schedule ----------------------------------------------------------------------------------------------

SCHEDULE_ALL = """
SELECT name, spec, last_due, last_run, status, outcome, memo, owner, token,
       CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END
FROM schedule
"""
#: Makes the row that a claim is about; of two that begin at once one makes it.
SCHEDULE_BEGIN = """
INSERT INTO schedule (name, spec, last_due, last_run, status, outcome, memo, owner, token, claim_until, claim_boot)
VALUES (:name, :spec, '', '', '', '', '{}', '', 0, 0, '')
ON CONFLICT (name) DO NOTHING
"""
#: Nothing is returned when another cron has it, or has done it since it was looked at.
SCHEDULE_CLAIM = """
UPDATE schedule
SET spec = :spec, owner = :owner, token = token + 1, claim_until = {now} + :ttl, claim_boot = :boot
WHERE name = :name AND last_due = :seen
  AND (owner = '' OR claim_boot <> :boot OR claim_until <= {now} OR token = :dead_token)
RETURNING token, memo
"""
_IS_OURS = "WHERE name = :name AND token = :token AND owner <> ''"
SCHEDULE_RENEW = f"UPDATE schedule SET claim_until = {{now}} + :ttl, claim_boot = :boot {_IS_OURS}"
SCHEDULE_FINISH = f"""
UPDATE schedule
SET last_due = :due, last_run = :moment, status = :status, outcome = :outcome,
    memo = CASE WHEN :memo = '' THEN memo ELSE :memo END, owner = '', claim_until = 0, claim_boot = ''
{_IS_OURS}
"""

# --- notifications ---------------------------------------------------------------------------------------------

#: A row as `store.to_notification` reads it.
SHOWN = """
notice_id, notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at, sent_at,
token
"""
#: Storing a notice twice changes nothing: its key says which transition it is about.
NOTICE_ADD = """
INSERT INTO notifications
  (notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at, token, claim_until,
   claim_boot)
VALUES (:key, :channel, :kind, :adw_id, :title, :text, 'pending', 0, '', '', :moment, 0, 0, '')
ON CONFLICT (notice_key, channel) DO NOTHING
"""
NOTICE_IS_DUE = """
SELECT notice_id FROM notifications
WHERE status = 'pending' AND not_before <= :moment AND (claim_boot <> :boot OR claim_until <= {now})
ORDER BY notice_id LIMIT 1
"""
#: The same, and the row is locked for the rest of the transaction, which claims it.
NOTICE_DUE = NOTICE_IS_DUE + "{row_lock}"
NOTICE_CLAIM = f"""
UPDATE notifications
SET token = token + 1, attempts = attempts + 1, claim_until = {{now}} + :ttl, claim_boot = :boot
WHERE notice_id = :notice_id
RETURNING {SHOWN}
"""
NOTICE_SETTLE = """
UPDATE notifications
SET status = :status, error = :error, not_before = :not_before, claim_until = 0, claim_boot = '',
    sent_at = CASE WHEN :status = 'sent' THEN :moment ELSE sent_at END
WHERE notice_id = :notice_id AND token = :token AND status = 'pending'
"""
NOTICES_PAGE = f"SELECT {SHOWN} FROM notifications ORDER BY notice_id DESC LIMIT :limit"
NOTICES_FORGET = "DELETE FROM notifications WHERE status <> 'pending' AND created_at < :moment"
#: The last event before the first one made since a moment: what is made again after a loss may not be in order.
EVENTS_BEFORE = "SELECT coalesce(min(seq) - 1, :last) FROM events WHERE created_at >= :since"
EVENTS_BETWEEN = (
    f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
)


# What the schedule and the notifications ask of their store, and the values that cross.
#
# An entry of the schedule is claimed by compare-and-set for one tick, with a lease: two crons do not double, and one
# that dies in the middle holds nothing up for longer than its lease. A notification is one row for each channel; its
# key says which transition it is about, so that storing it twice changes nothing.


# --- notifications ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something that people are to be told."""

    key: str  #: the same for the same transition, for ever
    kind: str  #: one of notify.KINDS
    title: str  #: one line
    text: str = ""  #: more of it, "" for nothing
    adw_id: str = ""
    channels: tuple[str, ...] = ()  #: by which it is told


@dataclass(frozen=True, kw_only=True, slots=True)
class NotificationRow:
    """A notice on its way by one channel."""

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


# --- the schedule ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRow:
    """What is known about an entry."""

    name: str
    spec: str  #: the expression it was claimed with last
    last_due: str  #: the last tick that was done, "" for none
    last_run: str  #: when that ended
    status: str  #: done | failed, "" before the first time
    outcome: str  #: in one sentence
    memo: JsonObject = field(default_factory=dict)  #: what the entry remembers from one time to the next
    owner: str = ""  #: the record of the cron that is at it, "" for nobody
    token: int = 0  #: grows with each claim
    seconds_left: float = 0.0  #: of the claim; negative when over


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """An entry that is ours for one tick."""

    name: str
    due: str
    token: int
    memo: JsonObject = field(default_factory=dict)


#: Events that are looked through in one transaction.
CHUNK = 500
#: Under which name they are.
CURSOR = "events"


class NotificationStore:
    """Notifications in the tables notifications and notification_cursor."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_due, self._due = (
            database.render(NOTICE_IS_DUE),
            database.render(NOTICE_DUE),
        )
        self._claim = database.render(NOTICE_CLAIM)

    def gather(self, pick: Callable[[Event], Notice | None], *, since: str) -> int:
        """Store what *pick* makes of every event since the last call, and return how many rows that made."""
        last, made = listing.last(self._database), 0
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
        rows = session.all(EVENTS_BETWEEN, {"after": after, "last": last, "limit": CHUNK})
        notices = filter(None, (pick(connection.to_event(row[1:])) for row in rows))
        added = add_notices(session, notices, timestamps.to_text(self._clock.now()))
        if rows or not is_known:
            listing.move(session, CURSOR, rows[-1][0] if rows else after)

        return added, len(rows) < CHUNK

    def _after(self, session: Session, since: str, last: int) -> tuple[int, bool]:
        """Return the number of the last event that was looked at, and whether that is known from before."""
        place = listing.take_place(self._database, session, CURSOR)
        if place is not None and listing.event_at(session, place.seq) == place.event_id:
            return place.seq, True
        first = session.one(EVENTS_BEFORE, {"since": since, "last": last})

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

        with self._database.read() as session:  # most polls find nothing, and a read blocks no writer
            if session.one(self._is_due, params) is None:
                return None
        taken = self._database.transact(work)

        return None if taken is None else to_notification(taken)

    def settle(self, row: NotificationRow, *, status: str, error: str = "", not_before: str = "") -> bool:
        """Record the result; False when somebody else has it now."""
        params = {
            "notice_id": row.notice_id,
            "token": row.token,
            "status": status,
            "error": connection.plain(error),
            "not_before": not_before,
            "moment": timestamps.to_text(self._clock.now()),
        }

        return self._database.transact(lambda session: session.run(NOTICE_SETTLE, params)) == 1

    def page(self, *, limit: int = 50) -> tuple[NotificationRow, ...]:
        """Return rows, newest first."""
        with self._database.read() as session:
            rows = session.all(NOTICES_PAGE, {"limit": limit})

        return tuple(map(to_notification, rows))

    def forget_before(self, moment: str) -> int:
        """Delete those that are over and older than *moment*, and return how many."""
        return self._database.transact(lambda session: session.run(NOTICES_FORGET, {"moment": moment}))


def add_notices(session: Session, notices: Iterable[Notice], moment: str) -> int:
    """Store notices, one row for each channel, and return how many were new."""
    made = 0
    for notice in notices:
        for channel in notice.channels:
            made += session.run(
                NOTICE_ADD,
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

    return made


def to_notification(row: Row) -> NotificationRow:
    """Return the notification in a row of `store.NOTICES_PAGE`."""
    names = ("notice_id", "key", "channel", "kind", "adw_id", "title", "text", "status", "attempts", "not_before")

    return NotificationRow(**dict(zip((*names, "error", "created_at", "sent_at", "token"), row, strict=True)))


# The schedule in the database: one row for each entry, claimed by compare-and-set.
#
# A claim names the last tick that was seen done: of two crons that look at the same moment one gets the entry, and the
# other finds it taken, or done. The tick counts as done only when its work has ended, in the same transaction as what
# that work remembers and tells: a cron that dies before loses nothing, and its claim ends by itself.


class ScheduleStore:
    """The schedule in the table schedule."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._all, self._claim, self._renew = map(
            database.render,
            (SCHEDULE_ALL, SCHEDULE_CLAIM, SCHEDULE_RENEW),
        )

    def rows(self) -> tuple[ScheduleRow, ...]:
        """Return every entry that was ever claimed, by name."""
        with self._database.read() as session:
            result = session.all(self._all, self._database.lease_clock())

        return tuple(sorted(map(_to_row, result), key=lambda row: row.name))

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
        """Take an entry for the tick *due*, None when another cron has it or has done it meanwhile."""
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
            session.run(SCHEDULE_BEGIN, {"name": name, "spec": spec})

            return session.one(self._claim, params)

        taken = self._database.transact(work)

        return None if taken is None else Tick(name=name, due=due, token=taken[0], memo=_memo(name, taken[1]))

    def renew(self, tick: Tick, *, ttl_seconds: float) -> bool:
        """Push the end of the claim out; False when it is not ours any more."""
        params = {**self._database.lease_clock(), "name": tick.name, "token": tick.token, "ttl": ttl_seconds}

        return self._database.transact(lambda session: session.run(self._renew, params)) == 1

    def finish(
        self, tick: Tick, *, status: str, outcome: str, memo: JsonObject | None = None, notices: Sequence[Notice] = ()
    ) -> bool:
        """Write down that the tick was done, with what is remembered and told; False when the claim was lost."""
        moment = timestamps.to_text(self._clock.now())
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
            if session.run(SCHEDULE_FINISH, params) != 1:
                return False
            add_notices(session, notices, moment)

            return True

        return self._database.transact(work)


def _to_row(row: Row) -> ScheduleRow:
    name, spec, last_due, last_run, status, outcome, memo, owner, token, seconds_left = row

    return ScheduleRow(
        name=name,
        spec=spec,
        last_due=last_due,
        last_run=last_run,
        status=status,
        outcome=outcome,
        memo=_memo(name, memo),
        owner=owner,
        token=token,
        seconds_left=seconds_left,
    )


def _memo(name: str, text: str) -> JsonObject:
    try:
        memo: JsonObject = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(
            f"the row of entry {name!r} cannot be read ({exc}): delete it from the table schedule"
        ) from exc

    return memo
