"""
The cron of a home: find the entries that are due, claim them, run them.

Any number of crons may run, on any number of machines: each tick is claimed by one of them. A job that fails is
recorded and runs again at its next tick. The claim of a cron that dies expires, and another cron does the tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cronsim import CronSim

from adws.adw_modules import timestamps
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.schedule.jobs import Ran, do_entry

if TYPE_CHECKING:
    from adws.app import Home

# When an entry is due, from five-field cron expressions. Pure: the caller passes the time in.
#
# Everything is in UTC, so no change to or from summer time skips or doubles a tick. However many ticks were missed, an
# entry is due once, for the last of them; an entry that never ran is due at once.


#: A last tick further ahead than this was written while the clock was wrong, and is ignored.
MAX_AHEAD = timedelta(hours=1)
#: Missed ticks are counted up to this; more are reported as this many.
MOST_COUNTED = 1000

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleEntry:
    """A job and its schedule."""

    name: str
    expression: str  #: five fields; "": switched off
    what: str = ""  #: for people


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """An entry whose time has come."""

    entry: ScheduleEntry
    at: datetime  #: the tick it is done for
    missed: int = 0  #: earlier ticks that no cron ran


def due(entries: Iterable[ScheduleEntry], last_due: Mapping[str, str], now: datetime) -> tuple[Due, ...]:
    """Return what is due at *now*, oldest tick first; *last_due* is the last tick done of each entry, by name."""
    result = (_due(entry, last_due.get(entry.name, ""), now) for entry in entries if entry.expression)

    return tuple(sorted(filter(None, result), key=lambda one: (one.at, one.entry.name)))


def next_tick(entries: Iterable[ScheduleEntry], now: datetime) -> datetime | None:
    """Return the next tick of any of *entries* after *now*, or None if all are switched off."""
    ticks = (next(CronSim(entry.expression, now.astimezone(UTC))) for entry in entries if entry.expression)

    return min(ticks, default=None)


def _due(entry: ScheduleEntry, last: str, now: datetime) -> Due | None:
    # Search back from the end of this minute, so that the tick of the current minute counts. CronSim accepts only
    # expressions with a tick in the last 50 years, so there is always one.
    end = now.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
    backwards = CronSim(entry.expression, end, reverse=True)
    at = next(backwards)
    since = timestamps.parse(last) if last else None
    if since is None or since > now + MAX_AHEAD:
        return Due(entry=entry, at=at)
    if at <= since:
        return None
    missed = 0
    while missed < MOST_COUNTED and next(backwards) > since:
        missed += 1

    return Due(entry=entry, at=at, missed=missed)


logger = logging.getLogger("adw.cron")

#: Seconds between two checks whether to stop.
LOOK_SECONDS = 0.5
#: The longest wait for the next tick, because the clock may be set meanwhile.
MOST_SECONDS = 30.0
#: This entry sends the notices of the other entries, so it runs after them.
LAST = "notify"


class Cron:
    """Runs the entries that are due."""

    def __init__(self, home: Home, entries: Sequence[ScheduleEntry]) -> None:
        self._home = home
        self._entries = entries
        self._me = home.processes.me("cron")
        self._is_stopping = False

    def stop(self) -> None:
        """Start no further entry; called by signal handlers."""
        self._is_stopping = True

    def run(self, report: Callable[[Ran], None] = lambda _ran: None) -> None:
        """Run entries as they become due until stopped; log a database error and retry."""
        while not self._is_stopping:
            try:
                for ran in self.run_due():
                    report(ran)
            except DatabaseError as exc:
                logger.warning("The database does not answer", extra={"action": "database_trouble"}, exc_info=exc)
            self._rest()

    def run_due(self) -> Iterator[Ran]:
        """Run the entries due now one after the other, and yield the result of each."""
        rows = {row.name: row for row in self._home.schedule.rows()}
        due_ = due(self._entries, {name: row.last_due for name, row in rows.items()}, self._home.clock.now())
        for one in sorted(due_, key=lambda found: found.entry.name == LAST):
            if self._is_stopping:
                return
            entry, due_at = one.entry, timestamps.to_text(one.at)
            row = rows.get(entry.name)
            yield do_entry(
                self._home, self._me, entry.name, spec=entry.expression, due=due_at, row=row, missed=one.missed
            )

    def _rest(self) -> None:
        """Wait for the next tick."""
        now = self._home.clock.now()
        tick = next_tick(self._entries, now)
        seconds = MOST_SECONDS if tick is None else min(MOST_SECONDS, (tick - now).total_seconds())
        until = self._home.clock.monotonic() + seconds
        while not self._is_stopping and (left := until - self._home.clock.monotonic()) > 0.0:
            self._home.clock.sleep(min(left, LOOK_SECONDS))
