"""
The schedule and the notifications in memory.

Time comes from the clock that is passed in: advance it to let a claim run out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_schedule import Notice, NotificationRow, ScheduleRow, Tick
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord


class MemoryNotifications:
    """A `NotificationBook` in memory; *events* returns every event there is, in their order."""

    def __init__(self, clock: Clock, events: Callable[[], Sequence[Event]] = tuple) -> None:
        self._clock = clock
        self._events = events
        self._guard = threading.RLock()
        self._rows: dict[int, NotificationRow] = {}
        self._ends: dict[int, float] = {}  #: of claims, by Clock.boottime
        self._looked_at: set[str] | None = None  #: events, None before the first look

    def gather(self, pick: Callable[[Event], Notice | None], *, since: str) -> int:
        """Store what *pick* makes of every event since the last call, and return how many rows that made."""
        with self._guard:
            events = self._events()
            if self._looked_at is None:
                self._looked_at = {event.event_id for event in events if event.created_at < since}
            fresh = [event for event in events if event.event_id not in self._looked_at]
            made = self.add([notice for event in fresh if (notice := pick(event)) is not None])
            self._looked_at.update(event.event_id for event in fresh)

            return made

    def add(self, notices: Sequence[Notice]) -> int:
        """Store notices, those that are known left out, and return how many rows that made."""
        with self._guard:
            return sum(self._put(notice, channel) for notice in notices for channel in notice.channels)

    def _put(self, notice: Notice, channel: str) -> int:
        if any((row.key, row.channel) == (notice.key, channel) for row in self._rows.values()):
            return 0
        number = max(self._rows, default=0) + 1
        self._rows[number] = NotificationRow(
            notice_id=number,
            key=notice.key,
            channel=channel,
            kind=notice.kind,
            adw_id=notice.adw_id,
            title=notice.title,
            text=notice.text,
            status="pending",
            attempts=0,
            not_before="",
            error="",
            created_at=timestamps.to_text(self._clock.now()),
        )

        return 1

    def take(self, *, ttl_seconds: float) -> NotificationRow | None:
        """Claim the oldest row that is due, None when there is none."""
        moment, now = timestamps.to_text(self._clock.now()), self._clock.boottime()
        with self._guard:
            for number, row in sorted(self._rows.items()):
                if row.status == "pending" and row.not_before <= moment and self._ends.get(number, now) <= now:
                    self._ends[number] = now + ttl_seconds
                    self._rows[number] = replace(row, token=row.token + 1, attempts=row.attempts + 1)
                    return self._rows[number]

        return None

    def settle(self, row: NotificationRow, *, status: str, error: str = "", not_before: str = "") -> bool:
        """Write down what came of it; False when somebody else has it now."""
        with self._guard:
            known = self._rows.get(row.notice_id)
            if known is None or known.token != row.token or known.status != "pending":
                return False
            sent_at = timestamps.to_text(self._clock.now()) if status == "sent" else known.sent_at
            self._ends.pop(row.notice_id, None)
            self._rows[row.notice_id] = replace(
                known, status=status, error=error, not_before=not_before, sent_at=sent_at
            )

            return True

    def page(self, *, limit: int = 50) -> tuple[NotificationRow, ...]:
        """Return rows, newest first."""
        with self._guard:
            return tuple(self._rows[number] for number in sorted(self._rows, reverse=True)[:limit])

    def forget_before(self, moment: str) -> int:
        """Delete those that are over and older than *moment*, and return how many."""
        with self._guard:
            old = [row for row in self._rows.values() if row.status != "pending" and row.created_at < moment]
            for row in old:
                del self._rows[row.notice_id]

            return len(old)


class MemorySchedule:
    """A `ScheduleBook` in memory; *notifications* gets what entries tell."""

    def __init__(self, clock: Clock, notifications: MemoryNotifications | None = None) -> None:
        self._clock = clock
        self._notifications = notifications or MemoryNotifications(clock)
        self._guard = threading.RLock()
        self._rows: dict[str, ScheduleRow] = {}
        self._ends: dict[str, float] = {}  #: of claims, by Clock.boottime

    def rows(self) -> tuple[ScheduleRow, ...]:
        """Return every entry that was ever claimed, by name."""
        with self._guard:
            return tuple(self._shown(self._rows[name]) for name in sorted(self._rows))

    def _shown(self, row: ScheduleRow) -> ScheduleRow:
        left = self._ends.get(row.name, 0.0) - self._clock.boottime() if row.owner else 0.0

        return replace(row, seconds_left=left, memo=json.loads(json.dumps(row.memo)))

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
        with self._guard:
            row = self._rows.setdefault(
                name, ScheduleRow(name=name, spec=spec, last_due="", last_run="", status="", outcome="")
            )
            is_held = bool(row.owner) and self._shown(row).seconds_left > 0.0 and row.token != dead_token
            if row.last_due != seen or is_held:
                return None
            self._ends[name] = self._clock.boottime() + ttl_seconds
            self._rows[name] = replace(row, spec=spec, owner=owner.to_text(), token=row.token + 1)

            return Tick(name=name, due=due, token=row.token + 1, memo=self._shown(row).memo)

    def renew(self, tick: Tick, *, ttl_seconds: float) -> bool:
        """Push the end of the claim out; False when it is not ours any more."""
        with self._guard:
            if not self._is_ours(tick):
                return False
            self._ends[tick.name] = self._clock.boottime() + ttl_seconds

            return True

    def finish(
        self, tick: Tick, *, status: str, outcome: str, memo: JsonObject | None = None, notices: Sequence[Notice] = ()
    ) -> bool:
        """Write down that the tick was done, with what is remembered and told; False when the claim was lost."""
        with self._guard:
            if not self._is_ours(tick):
                return False
            row = self._rows[tick.name]
            self._rows[tick.name] = replace(
                row,
                last_due=tick.due,
                last_run=timestamps.to_text(self._clock.now()),
                status=status,
                outcome=outcome,
                memo=row.memo if memo is None else memo,
                owner="",
            )
            self._notifications.add(notices)

            return True

    def _is_ours(self, tick: Tick) -> bool:
        row = self._rows.get(tick.name)

        return row is not None and bool(row.owner) and row.token == tick.token
