"""
When something is due: five-field cron expressions, and what became due while nobody looked.

Pure: the moment comes in. Everything is counted in UTC, so that no change to or from summer time skips or doubles a
tick. However many ticks were missed, an entry is due once, for the last of them; one that never ran is due at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from adws.adw_modules import timestamps

#: A last tick further ahead than this was written while the clock was wrong: it is not believed.
MAX_AHEAD = timedelta(hours=1)
#: Missed ticks are counted up to this; more are told as this many.
MOST_COUNTED = 1000

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Something that is done on a schedule."""

    name: str
    expression: str  #: five fields; "": switched off
    what: str = ""  #: for people


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """An entry whose time has come."""

    entry: Entry
    at: datetime  #: the tick it is done for
    missed: int = 0  #: ticks before that one that nobody was there for


def problem_of(expression: str) -> str:
    """Return what is wrong with an expression, "" when it can be used."""
    if not expression:
        return ""
    if len(expression.split()) != 5:
        return "must be five fields, such as 0 6 * * * (minute, hour, day of month, month, day of week), or off"
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as exc:
        return f"must be a cron expression, such as */5 * * * *, or off ({str(exc).lower()})"

    return ""


def due(entries: Iterable[Entry], last_due: Mapping[str, str], now: datetime) -> tuple[Due, ...]:
    """Return what is due at *now*, the oldest tick first; *last_due* has the last tick that was done, by name."""
    found = (_due(entry, last_due.get(entry.name, ""), now) for entry in entries if entry.expression)

    return tuple(sorted(filter(None, found), key=lambda one: (one.at, one.entry.name)))


def next_tick(entries: Iterable[Entry], now: datetime) -> datetime | None:
    """Return the next tick of any of *entries* after *now*, None when all are switched off."""
    ticks = (next(CronSim(entry.expression, now.astimezone(UTC))) for entry in entries if entry.expression)

    return min(ticks, default=None)


def _due(entry: Entry, last: str, now: datetime) -> Due | None:
    # From the end of this minute: the tick of the minute that has begun counts, and none after it. What cronsim
    # accepts has come within the last 50 years, so there is always one.
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
