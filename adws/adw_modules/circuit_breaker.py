"""
Circuit breakers of external services, and their store.

The rules are pure functions of a row and the time; `CircuitBreaker` applies them to a store and a clock. With a store
in the database all processes of a home share a breaker; without one it lives as long as its registry. `can_execute`
takes a permit that expires by itself, so that a trial whose process died does not block others for ever.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import CircuitOpen, ConfigError, DatabaseError, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.retry_handler import is_async, is_pending, name_of

__all__ = ["CircuitBreaker", "CircuitBreakerConfig", "CircuitBreakerRegistry", "CircuitState", "MemoryBreakers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Permit:
    """Permission for one trial call; it expires by itself when its holder never reports the result."""

    token: str
    generation: int  #: of the breaker when it was given
    expires_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerRow:
    """All that is known about one breaker."""

    name: str  #: the external service: anthropic | openai | github | git | ...
    state: str = "closed"  #: closed | open | half_open, as of `changed_at`
    failures: int = 0  #: in a row
    generation: int = 1  #: grows each time it opens or closes; what began in an older one changes nothing
    opened_at: str | None = None
    reopens_at: str | None = None  #: when trials are allowed; None while closed
    reason: str = ""  #: the failure that opened it, in one line
    permits: tuple[Permit, ...] = ()  #: trials under way while half open
    settings: JsonObject = field(default_factory=dict)  #: threshold and times it works with
    changed_at: str = ""


class BreakerStore(Protocol):
    """Breakers by name."""

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, None when nothing ever happened to it."""

    def all(self) -> tuple[BreakerRow, ...]:
        """Return every breaker, in the order of their names."""

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by what *rule*, which is pure, makes of it; no other change comes in between."""


# The rules of a breaker, on its row: it counts failures, opens, admits a few trial calls, and closes.
#
# Pure: the moment and the tokens come in, a new row comes out. Every result belongs to a generation, which grows each
# time a breaker opens or closes: what began in an older one changes nothing. Moments are those of the wall clock,
# because processes share the row; a clock that was set back never makes a wait longer than it was when it began.


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
            # The clock was set back. How long it was open is not known, so it waits its time once more at most.
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
    """Return when a retry may help, None when a call may go through now."""
    result = seen(row, now)
    if result.state == CircuitState.OPEN.value:
        return _moments(result)[1]
    if result.state == CircuitState.CLOSED.value or len(result.permits) < config.half_open_max_attempts:
        return None
    # A trial may be over long before its permit ends: look again after the usual time.
    first = min(timestamps.parse(permit.expires_at) for permit in result.permits)

    return min(first, now + timedelta(seconds=config.reset_timeout_seconds))


# --- changing --------------------------------------------------------------------------------------------------


def admit(
    row: BreakerRow, config: CircuitBreakerConfig, now: datetime, *, token: str, seconds: float
) -> tuple[BreakerRow, Permit | None]:
    """
    Return the row after a caller asked to go through, and its permit, None when it was refused.

    While the breaker is half open the permit takes one of the few places, for *seconds* at most. While it is closed
    nothing is counted: the permit only says in which generation the work began.
    """
    result = seen(row, now)
    if refused_until(result, config, now) is not None:
        return _noted(row, result, now), None
    permit = Permit(
        token=token, generation=result.generation, expires_at=timestamps.to_text(now + timedelta(seconds=seconds))
    )
    if result.state == CircuitState.HALF_OPEN.value:
        result = replace(result, permits=(*result.permits, permit))

    return _noted(row, result, now), permit


def succeed(row: BreakerRow, now: datetime, permit: Permit | None = None) -> BreakerRow:
    """Return the row after the service answered; late results, and results while it is open, change nothing."""
    result = seen(row, now)
    if _is_ignored(result, permit):
        return _noted(row, result, now)
    if result.state == CircuitState.HALF_OPEN.value:
        return _noted(row, _closed(result), now)

    return _noted(row, replace(result, failures=0), now)


def fail(
    row: BreakerRow, config: CircuitBreakerConfig, now: datetime, *, reason: str = "", permit: Permit | None = None
) -> BreakerRow:
    """Return the row after the service failed: open when it was half open, or when that was one too many in a row."""
    result = seen(row, now)
    if _is_ignored(result, permit):
        return _noted(row, result, now)
    failures = result.failures + 1
    if result.state == CircuitState.CLOSED.value and failures < config.failure_threshold:
        return _noted(row, replace(result, failures=failures), now)
    until = now + timedelta(seconds=config.reset_timeout_seconds)

    return _noted(row, _opened(replace(result, failures=failures), now, until, reason), now)


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
    result = seen(row, now)
    if _is_late(result, permit):
        return _noted(row, result, now)
    if result.state != CircuitState.OPEN.value:
        return _noted(row, _opened(replace(result, failures=result.failures + 1), now, at, reason), now)
    if at <= _moments(result)[1]:
        return _noted(row, result, now)

    # The span counts from now: that is what the rule about clocks that were set back measures by.
    return _noted(row, _open_for(result, now, at, reason), now)


def give_back(row: BreakerRow, now: datetime, permit: Permit) -> BreakerRow:
    """Return the row without *permit*, whose result does not count."""
    result = seen(row, now)
    left = tuple(one for one in result.permits if one.token != permit.token)

    return _noted(row, replace(result, permits=left), now)


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


#: Characters of a breaker's name.
MAX_NAME = 200


class MemoryBreakers:
    """A `BreakerStore` of this process alone."""

    def __init__(self) -> None:
        self._rows: dict[str, BreakerRow] = {}
        self._guard = threading.Lock()

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, None when nothing ever happened to it."""
        return self._rows.get(name)

    def all(self) -> tuple[BreakerRow, ...]:
        """Return every breaker, in the order of their names."""
        with self._guard:
            return tuple(self._rows[name] for name in sorted(self._rows))

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by what *rule* makes of it; what it raises leaves the breaker as it is."""
        with self._guard:
            before = self._rows.get(name) or BreakerRow(name=name)
            after = rule(before)
            if after != before:
                self._rows[name] = after

        return after


#: The permits of the `with` blocks we are inside of, the innermost last; threads and asyncio tasks have their own.
_entered: ContextVar[tuple[tuple[CircuitBreaker, Permit], ...]] = ContextVar("adw_breakers_entered", default=())
_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class CircuitBreaker:
    """
    The breaker of one external service.

    Use it as a decorator (`@breaker`), as a context manager (`with breaker:`) or by `call`: these raise CircuitOpen
    while the service is not to be called, and record the outcome. `acquire` and `record_...` do that by hand.
    """

    def __init__(
        self,
        executor_id: str,
        config: CircuitBreakerConfig | None = None,
        *,
        store: BreakerStore | None = None,
        clock: Clock | None = None,
        exclude: tuple[type[Exception], ...] = (),
    ) -> None:
        """
        Without *store* it is in memory; without *clock* that of the home that is open is asked.

        An exception of *exclude* in a `with` block counts as an answer of the service, and not as its failure.
        """
        if not executor_id or not executor_id.strip():
            raise UsageError("a breaker needs a name: give that of the party it stands for, such as github")
        if len(executor_id) > MAX_NAME or not executor_id.isprintable():
            raise UsageError(f"a breaker's name has at most {MAX_NAME} characters, all of them printable")
        self.executor_id = executor_id
        self.config = config or CircuitBreakerConfig()
        self._store = store or MemoryBreakers()
        self._own_clock = clock
        self._exclude = exclude

    # --- around a call -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        permit = self.acquire()
        if permit is None:
            raise CircuitOpen(self.executor_id, self.refused_until(), self.row.reason)
        _entered.set((*_entered.get(), (self, permit)))

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        open_blocks = list(_entered.get())
        last = max(number for number, (breaker, _) in enumerate(open_blocks) if breaker is self)
        _, permit = open_blocks.pop(last)
        _entered.set(tuple(open_blocks))
        if error is None or isinstance(error, self._exclude):
            self.record_success(permit)
        elif isinstance(error, Exception):
            self.record_failure(permit, reason=f"{type(error).__name__}: {error}")
        else:  # an order to stop says nothing about the service
            self.give_back(permit)

    def call(self, func: Callable[_Params, _Result], /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        """Return what *func* returns for these arguments; raise CircuitOpen instead of calling it while open."""
        _refuse_async(func, is_async(func))
        with self:
            result = func(*args, **kwargs)
        _refuse_async(func, is_pending(result))

        return result

    def __call__(self, func: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        """Return *func* behind this breaker; raise UsageError for one that is async."""
        _refuse_async(func, is_async(func))

        @wraps(func)
        def guarded(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            return self.call(func, *args, **kwargs)

        return guarded

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """The state now: an open breaker is half open as soon as its time has come."""
        return CircuitState(self.row.state)

    @property
    def row(self) -> BreakerRow:
        """All that is known about it now."""
        now = self._now()
        stored = self._read()
        result = seen(stored, now)
        if result.opened_at == stored.opened_at:
            return result

        # The clock was set back. Stored, so that the wait begins anew once and not with every read.
        return self._change(lambda row: seen(row, now))[1]

    def allows(self) -> bool:
        """Return whether `can_execute` would admit a call now; takes nothing."""
        return self.refused_until() is None

    def refused_until(self) -> datetime | None:
        """Return when a retry may help, None when a call may go through now; takes nothing."""
        return refused_until(self.row, self.config, self._now())

    # --- going through -----------------------------------------------------------------------------------------

    def can_execute(self) -> bool:
        """Say whether the caller may go through; while half open that takes one of the few places, for a time."""
        return self.acquire() is not None

    def acquire(self, *, seconds: float | None = None) -> Permit | None:
        """
        Return a permit, None when the caller may not call the service.

        It expires after *seconds*, or after the time the breaker stays open. Pass it to `record_success` or
        `record_failure`, so that a result that comes too late is recognised, or to `give_back`.
        """
        now, token = self._now(), self._clock.token()
        lifetime = self.config.reset_timeout_seconds if seconds is None else seconds
        got: Permit | None = None

        def rule(row: BreakerRow) -> BreakerRow:
            nonlocal got
            after, got = admit(row, self.config, now, token=token, seconds=lifetime)
            return after

        self._change(rule)

        return got

    def give_back(self, permit: Permit) -> None:
        """Free the place of *permit* without an outcome."""
        now = self._now()
        self._change(lambda row: give_back(row, now, permit))

    # --- outcomes: each returns the state that it brought the breaker to, None when that stayed as it was ----------

    def record_success(self, permit: Permit | None = None) -> CircuitState | None:
        """Count an answer of the service; ignored while open, and when *permit* is of an older generation."""
        now = self._now()

        return self._turn(lambda row: succeed(row, now, permit), now)

    def record_failure(self, permit: Permit | None = None, *, reason: str = "") -> CircuitState | None:
        """Count a failure of the service; ignored while open, and when *permit* is of an older generation."""
        now = self._now()

        return self._turn(lambda row: fail(row, self.config, now, reason=reason, permit=permit), now)

    def open_until(self, at: datetime, reason: str, permit: Permit | None = None) -> CircuitState | None:
        """Open at once, until *at*: a quota that is used up, credentials that are refused."""
        if at.tzinfo is None:
            raise UsageError("a breaker opens until a moment with a time zone")
        now = self._now()

        return self._turn(lambda row: open_until(row, self.config, now, at=at, reason=reason, permit=permit), now)

    def reset(self) -> None:
        """Close it, whatever it was."""
        now = self._now()
        self._change(lambda row: reset(row, now))

    # --- the store ---------------------------------------------------------------------------------------------

    def _turn(self, rule: Callable[[BreakerRow], BreakerRow], now: datetime) -> CircuitState | None:
        before, after = self._change(rule)
        state = CircuitState(after.state)

        return None if state is state_of(before, now) else state

    def _change(self, rule: Callable[[BreakerRow], BreakerRow]) -> tuple[BreakerRow, BreakerRow]:
        """Apply *rule* and return the row before and after it; the store is only written when something changes."""
        looked_at = self._read()
        if rule(looked_at) == looked_at:
            return looked_at, looked_at
        before = looked_at

        def noting(row: BreakerRow) -> BreakerRow:
            nonlocal before
            before, after = row, rule(row)
            return row if after == row else replace(after, settings=self.config.to_json())

        after = self._store.change(self.executor_id, noting)

        return before, after

    def _read(self) -> BreakerRow:
        return self._store.read(self.executor_id) or BreakerRow(name=self.executor_id)

    @property
    def _clock(self) -> Clock:
        return self._own_clock or default_home.get().clock

    def _now(self) -> datetime:
        return self._clock.now()


def _refuse_async(func: object, is_refused: bool) -> None:
    if is_refused:
        raise UsageError(
            f"{name_of(func)} is async, and a breaker calls it as a plain function: use `with breaker:` inside of it"
        )


class CircuitBreakerRegistry:
    """The breakers of a process, one for each service; threads may share it."""

    def __init__(
        self,
        default_config: CircuitBreakerConfig | None = None,
        *,
        store: BreakerStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._default = default_config or CircuitBreakerConfig()
        self._store = store or MemoryBreakers()
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}
        self._guard = threading.Lock()

    def get(self, executor_id: str, config: CircuitBreakerConfig | None = None) -> CircuitBreaker:
        """Return the breaker of a service, always the same one; raise UsageError when it has another *config*."""
        with self._guard:
            known = self._breakers.get(executor_id)
            if known is None:
                known = CircuitBreaker(executor_id, config or self._default, store=self._store, clock=self._clock)
                self._breakers[executor_id] = known
        if config is not None and config != known.config:
            raise UsageError(
                f"the breaker {executor_id} is in use with {known.config}: ask for it with the same, or with none"
            )

        return known

    def stored(self) -> tuple[BreakerRow, ...]:
        """Return every breaker that something happened to, as it was stored last, in the order of their names."""
        return self._store.all()

    def reset_all(self) -> None:
        """Close every breaker, also those that other processes opened."""
        for row in self.stored():
            self.get(row.name).reset()


# Breakers in the database: one row for each service, which all processes of a home share.
#
# A change reads the row under a lock and writes it in the same transaction, so that no other change comes in between.


_COLUMNS = "name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at"
BREAKERS_ALL = f"SELECT {_COLUMNS} FROM breakers"
#: Brings back the row of another database; one that is there stays.
BREAKER_BRING = f"""
INSERT INTO breakers ({_COLUMNS}) VALUES
  (:name, :state, :failures, :generation, :opened_at, :reopens_at, :reason, :permits, :settings, :changed_at)
ON CONFLICT (name) DO NOTHING
"""


class DatabaseBreakers:
    """A `BreakerStore` in the table breakers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, None when nothing ever happened to it."""
        with self._database.read() as session:
            row = session.one(f"{BREAKERS_ALL} WHERE name = :name", {"name": name})

        return None if row is None else to_breaker(row)

    def all(self) -> tuple[BreakerRow, ...]:
        """Return every breaker, in the order of their names."""
        with self._database.read() as session:
            rows = session.all(BREAKERS_ALL)

        # Not by the database: the order of a server depends on its language.
        return tuple(sorted(map(to_breaker, rows), key=lambda row: row.name))

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by what *rule* makes of it; what it raises leaves the breaker as it is."""

        def work(session: Session) -> BreakerRow:
            # There has to be a row to lock; of two that begin at once one makes it.
            is_new = session.run(BREAKER_BRING, breaker_params(BreakerRow(name=name))) == 1
            lock = self._database.render("{row_lock}")
            row = session.one(f"{BREAKERS_ALL} WHERE name = :name {lock}", {"name": name})
            before = BreakerRow(name=name) if row is None else to_breaker(row)
            after = rule(before)
            if after != before:
                session.run(
                    """
                    UPDATE breakers SET state = :state, failures = :failures, generation = :generation,
                      opened_at = :opened_at, reopens_at = :reopens_at, reason = :reason, permits = :permits,
                      settings = :settings, changed_at = :changed_at
                    WHERE name = :name
                    """,
                    breaker_params(after),
                )
            elif is_new:
                session.run("DELETE FROM breakers WHERE name = :name", {"name": name})  # nothing happened to it
            return after

        return self._database.transact(work)


def breaker_params(row: BreakerRow) -> dict[str, object]:
    """Return the columns of a breaker as parameters."""
    permits = [asdict(permit) for permit in row.permits]

    return {
        "name": row.name,
        "state": row.state,
        "failures": row.failures,
        "generation": row.generation,
        "opened_at": row.opened_at,
        "reopens_at": row.reopens_at,
        "reason": connection.plain(row.reason),
        "permits": json.dumps(permits),
        "settings": connection.json_text(row.settings, f"the settings of breaker {row.name}"),
        "changed_at": row.changed_at,
    }


def to_breaker(row: Row) -> BreakerRow:
    """Return the breaker in a row of `BREAKERS_ALL`; raise DatabaseError for what is none."""
    name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at = row
    try:
        return BreakerRow(
            name=name,
            state=state,
            failures=failures,
            generation=generation,
            opened_at=opened_at,
            reopens_at=reopens_at,
            reason=reason,
            permits=tuple(Permit(**permit) for permit in json.loads(permits)),
            settings=json.loads(settings),
            changed_at=changed_at,
        )
    except (ValueError, TypeError) as exc:
        raise DatabaseError(
            f"the row of breaker {name!r} cannot be read ({exc}): delete it from the table breakers"
        ) from exc
