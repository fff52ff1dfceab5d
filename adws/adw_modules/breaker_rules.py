"""
What a breaker does, as rules on its row: it counts failures, opens, lets a few try, and closes.

Pure: the moment and the tokens come in, a new row comes out. Every outcome belongs to a generation, which grows each
time a breaker opens or closes: what began in an older one changes nothing. Moments are those of the wall clock, because
processes share the row; a clock that was set back never makes a wait longer than it was when it began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from adws.adw_modules import timestamps
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.interfaces_durability import BreakerRow, Permit
from adws.adw_modules.json_value import JsonObject

#: Clocks of machines that share a breaker differ by less than this; a clock further back was set back.
MARGIN = timedelta(seconds=5)
#: Characters of a reason that are kept.
MAX_REASON = 300


class CircuitState(Enum):
    """What a breaker lets through."""

    CLOSED = "closed"  #: everything
    OPEN = "open"  #: nothing, until its time has come
    HALF_OPEN = "half_open"  #: a few, to see whether it works again


@dataclass(frozen=True, slots=True)
class CircuitBreakerConfig:
    """When a breaker opens, and for how long; frozen, because it was checked once."""

    failure_threshold: int = 5  #: failures in a row that open it, 1 to 1000
    reset_timeout_seconds: float = 60.0  #: how long it stays open, 1 to 86400
    half_open_max_attempts: int = 1  #: how many may try at a time while it is half open, 1 to 10

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of its bounds."""
        _check("failure_threshold", self.failure_threshold, 1, 1000, is_whole=True)
        _check("reset_timeout_seconds", self.reset_timeout_seconds, 1.0, 86400.0)
        _check("half_open_max_attempts", self.half_open_max_attempts, 1, 10, is_whole=True)

    def to_json(self) -> JsonObject:
        """Return it as a row keeps it."""
        return {
            "failure_threshold": self.failure_threshold,
            "reset_timeout_seconds": self.reset_timeout_seconds,
            "half_open_max_attempts": self.half_open_max_attempts,
        }


def _check(name: str, value: object, lowest: float, highest: float, *, is_whole: bool = False) -> None:
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    # NaN is not within any bounds.
    if not (is_number and lowest <= value <= highest):  # type: ignore[operator]  # is_number says so
        kind = "a whole number" if is_whole else "a number"
        raise ConfigError(f"{name} of a breaker is {value!r}: give {kind} from {lowest:g} to {highest:g}")


# --- looking ---------------------------------------------------------------------------------------------------


def seen(row: BreakerRow, now: datetime) -> BreakerRow:
    """Return *row* as it stands at *now*: half open when its time has come, without the permits that have ended."""
    if row.state == CircuitState.OPEN.value:
        opened, reopens = _moments(row)
        if now >= reopens:
            return replace(row, state=CircuitState.HALF_OPEN.value, permits=())
        if now < opened - MARGIN:
            # Somebody set the clock back. How long it was open is not known, so it waits its time once more at most.
            return replace(
                row, opened_at=timestamps.to_text(now), reopens_at=timestamps.to_text(now + (reopens - opened))
            )
    if row.state == CircuitState.HALF_OPEN.value and row.permits:
        # What permits say about their end is worth nothing after the clock was set back.
        is_back = now < timestamps.parse(row.changed_at) - MARGIN
        alive = () if is_back else tuple(one for one in row.permits if timestamps.parse(one.expires_at) > now)
        return row if alive == row.permits else replace(row, permits=alive)

    return row


def _moments(row: BreakerRow) -> tuple[datetime, datetime]:
    """Return when an open breaker opened, and when trials are allowed."""
    opened = timestamps.parse(row.opened_at or row.changed_at)

    return opened, timestamps.parse(row.reopens_at) if row.reopens_at else opened


def state_of(row: BreakerRow, now: datetime) -> CircuitState:
    """Return the state at *now*."""
    return CircuitState(seen(row, now).state)


def refused_until(row: BreakerRow, config: CircuitBreakerConfig, now: datetime) -> datetime | None:
    """Return when asking again may help, None when somebody may go through now."""
    found = seen(row, now)
    if found.state == CircuitState.OPEN.value:
        return _moments(found)[1]
    if found.state == CircuitState.CLOSED.value or len(found.permits) < config.half_open_max_attempts:
        return None
    # A trial may be over long before its permit ends: look again after the usual time.
    first = min(timestamps.parse(permit.expires_at) for permit in found.permits)

    return min(first, now + timedelta(seconds=config.reset_timeout_seconds))


# --- changing --------------------------------------------------------------------------------------------------


def admit(
    row: BreakerRow, config: CircuitBreakerConfig, now: datetime, *, token: str, seconds: float
) -> tuple[BreakerRow, Permit | None]:
    """
    Return the row after somebody asked to go through, and the permit they got, None when they were refused.

    While it is half open the permit takes one of the few places, for *seconds* at most. While it is closed nothing is
    counted: the permit only says in which generation the work began.
    """
    found = seen(row, now)
    if refused_until(found, config, now) is not None:
        return _noted(row, found, now), None
    permit = Permit(
        token=token, generation=found.generation, expires_at=timestamps.to_text(now + timedelta(seconds=seconds))
    )
    if found.state == CircuitState.HALF_OPEN.value:
        found = replace(found, permits=(*found.permits, permit))

    return _noted(row, found, now), permit


def succeed(row: BreakerRow, now: datetime, permit: Permit | None = None) -> BreakerRow:
    """Return the row after the party answered; late news, and news while it is open, change nothing."""
    found = seen(row, now)
    if _is_ignored(found, permit):
        return _noted(row, found, now)
    if found.state == CircuitState.HALF_OPEN.value:
        return _noted(row, _closed(found), now)

    return _noted(row, replace(found, failures=0), now)


def fail(
    row: BreakerRow, config: CircuitBreakerConfig, now: datetime, *, reason: str = "", permit: Permit | None = None
) -> BreakerRow:
    """Return the row after the party failed: open when it was half open, or when that was one too many in a row."""
    found = seen(row, now)
    if _is_ignored(found, permit):
        return _noted(row, found, now)
    failures = found.failures + 1
    if found.state == CircuitState.CLOSED.value and failures < config.failure_threshold:
        return _noted(row, replace(found, failures=failures), now)
    until = now + timedelta(seconds=config.reset_timeout_seconds)

    return _noted(row, _opened(replace(found, failures=failures), now, until, reason), now)


def open_until(
    row: BreakerRow,
    config: CircuitBreakerConfig,
    now: datetime,
    *,
    at: datetime,
    reason: str = "",
    permit: Permit | None = None,
) -> BreakerRow:
    """Return the row, open until *at* or longer; a moment that has passed is a failure like any other."""
    if at <= now:
        return fail(row, config, now, reason=reason, permit=permit)
    found = seen(row, now)
    if _is_late(found, permit):
        return _noted(row, found, now)
    if found.state != CircuitState.OPEN.value:
        return _noted(row, _opened(replace(found, failures=found.failures + 1), now, at, reason), now)
    if at <= _moments(found)[1]:
        return _noted(row, found, now)

    # The span counts from now: that is what the rule about clocks that were set back measures by.
    return _noted(row, _open_for(found, now, at, reason), now)


def give_back(row: BreakerRow, now: datetime, permit: Permit) -> BreakerRow:
    """Return the row without *permit*, which nothing came of."""
    found = seen(row, now)
    left = tuple(one for one in found.permits if one.token != permit.token)

    return _noted(row, replace(found, permits=left), now)


def reset(row: BreakerRow, now: datetime) -> BreakerRow:
    """Return the row closed, whatever it was."""
    if row.state == CircuitState.CLOSED.value:
        return _noted(row, replace(row, failures=0), now)

    return _noted(row, _closed(row), now)


def _is_ignored(found: BreakerRow, permit: Permit | None) -> bool:
    return found.state == CircuitState.OPEN.value or _is_late(found, permit)


def _is_late(found: BreakerRow, permit: Permit | None) -> bool:
    return permit is not None and permit.generation != found.generation


def _opened(row: BreakerRow, now: datetime, until: datetime, reason: str) -> BreakerRow:
    newer = replace(row, state=CircuitState.OPEN.value, generation=row.generation + 1, permits=())

    return _open_for(newer, now, until, reason)


def _open_for(row: BreakerRow, now: datetime, until: datetime, reason: str) -> BreakerRow:
    line = " ".join(reason.split())[:MAX_REASON]

    return replace(row, opened_at=timestamps.to_text(now), reopens_at=timestamps.to_text(until), reason=line)


def _closed(row: BreakerRow) -> BreakerRow:
    return replace(
        row,
        state=CircuitState.CLOSED.value,
        generation=row.generation + 1,
        failures=0,
        opened_at=None,
        reopens_at=None,
        reason="",
        permits=(),
    )


def _noted(before: BreakerRow, after: BreakerRow, now: datetime) -> BreakerRow:
    """Return *after* with the moment of the change, *before* itself when nothing changed."""
    return before if after == before else replace(after, changed_at=timestamps.to_text(now))
