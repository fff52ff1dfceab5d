"""
Circuit breakers of external services, and their store.

A breaker counts failures, opens, admits a few trial calls, and closes. With a store in the database all processes of a
home share it; without one it lives as long as its registry. Every permit belongs to a generation, which grows each time
the breaker opens or closes: the result of a call begun in an older generation changes nothing. A permit expires by
itself, so that a trial whose process died does not block others forever. Times are those of the wall clock, because
processes share the row; setting a clock back never makes a wait longer than it was at its beginning.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
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
    """Permission for one trial call; it expires unless its holder reports the result in time."""

    token: str
    generation: int  #: of the breaker when the permit was given
    expires_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerRow:
    """The stored facts about one breaker."""

    name: str  #: the external service: anthropic | openai | github | git | ...
    state: str = "closed"  #: closed | open | half_open, as of `changed_at`
    failures: int = 0  #: in a row
    generation: int = 1  #: grows each time it opens or closes; results of calls begun in an older one change nothing
    opened_at: str | None = None
    reopens_at: str | None = None  #: when trials are allowed; None while closed
    reason: str = ""  #: the failure that opened it, in one line
    permits: tuple[Permit, ...] = ()  #: trials under way while half open
    settings: JsonObject = field(default_factory=dict)  #: its threshold and times
    changed_at: str = ""


class BreakerStore(Protocol):
    """Breakers by name."""

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, or None if it has never changed."""

    def all(self) -> tuple[BreakerRow, ...]:
        """Return all breakers, ordered by name."""

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by the result of *rule*, which is pure; no other change comes in between."""


#: Clocks of machines that share a breaker differ by less than this; a larger step back means that a clock was set back.
MARGIN = timedelta(seconds=5)
#: Most characters kept of a reason.
MAX_REASON = 300


class CircuitState(Enum):
    """What a breaker lets through."""

    CLOSED = "closed"  #: every call
    OPEN = "open"  #: no call, until its time is up
    HALF_OPEN = "half_open"  #: a few calls, to find out whether the service works again


@dataclass(frozen=True, slots=True)
class CircuitBreakerConfig:
    """When a breaker opens, and for how long; frozen, because it is checked once."""

    failure_threshold: int = 5  #: failures in a row that open it, 1 to 1000
    reset_timeout_seconds: float = 60.0  #: how long it stays open, 1 to 86400
    half_open_max_attempts: int = 1  #: concurrent trials while half open, 1 to 10

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of bounds."""
        _check("failure_threshold", self.failure_threshold, 1, 1000, is_whole=True)
        _check("reset_timeout_seconds", self.reset_timeout_seconds, 1.0, 86400.0)
        _check("half_open_max_attempts", self.half_open_max_attempts, 1, 10, is_whole=True)

    def to_json(self) -> JsonObject:
        """Return the configuration as stored in a row."""
        return asdict(self)


def _check(name: str, value: object, lowest: float, highest: float, *, is_whole: bool = False) -> None:
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    # NaN fails every comparison.
    if not (is_number and lowest <= value <= highest):  # type: ignore[operator]  # is_number says so
        kind = "a whole number" if is_whole else "a number"
        raise ConfigError(f"{name} of a breaker is {value!r}: give {kind} from {lowest:g} to {highest:g}")


def seen(row: BreakerRow, now: datetime) -> BreakerRow:
    """Return *row* as of *now*: half open once its time is up, and without expired permits."""
    if row.state == CircuitState.OPEN.value:
        opened = timestamps.parse(row.opened_at or row.changed_at)
        reopens = timestamps.parse(row.reopens_at) if row.reopens_at else opened
        if now >= reopens:
            return replace(row, state=CircuitState.HALF_OPEN.value, permits=())
        if now < opened - MARGIN:
            # The clock was set back. How long the breaker was open is unknown, so it waits its time once more at most.
            return replace(
                row, opened_at=timestamps.to_text(now), reopens_at=timestamps.to_text(now + (reopens - opened))
            )
    if row.state == CircuitState.HALF_OPEN.value and row.permits:
        # The expiry of permits means nothing after the clock was set back.
        is_back = now < timestamps.parse(row.changed_at) - MARGIN
        alive = () if is_back else tuple(one for one in row.permits if timestamps.parse(one.expires_at) > now)
        return replace(row, permits=alive)

    return row


def _opened(row: BreakerRow, now: datetime, until: datetime, reason: str) -> BreakerRow:
    """Return *row* open until *until*; if it was open already, its generation stays."""
    if row.state != CircuitState.OPEN.value:
        row = replace(
            row,
            state=CircuitState.OPEN.value,
            generation=row.generation + 1,
            failures=row.failures + 1,
            permits=(),
        )
    line = " ".join(reason.split())[:MAX_REASON]

    return replace(row, opened_at=timestamps.to_text(now), reopens_at=timestamps.to_text(until), reason=line)


def _closed(row: BreakerRow) -> BreakerRow:
    """Return *row* closed, without its history."""
    if row.state == CircuitState.CLOSED.value:
        return replace(row, failures=0)

    return BreakerRow(name=row.name, generation=row.generation + 1, settings=row.settings)


#: Most characters of a breaker's name.
MAX_NAME = 200


class MemoryBreakers:
    """A `BreakerStore` for this process alone."""

    def __init__(self) -> None:
        self._rows: dict[str, BreakerRow] = {}
        self._guard = threading.Lock()

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, or None if it has never changed."""
        return self._rows.get(name)

    def all(self) -> tuple[BreakerRow, ...]:
        """Return all breakers, ordered by name."""
        with self._guard:
            return tuple(self._rows[name] for name in sorted(self._rows))

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by the result of *rule*; if *rule* raises, the breaker stays unchanged."""
        with self._guard:
            before = self._rows.get(name) or BreakerRow(name=name)
            after = rule(before)
            if after != before:
                self._rows[name] = after

        return after


#: The permits of the entered `with` blocks, innermost last; threads and asyncio tasks have their own.
_entered: ContextVar[tuple[tuple[CircuitBreaker, Permit], ...]] = ContextVar("adw_breakers_entered", default=())
_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class CircuitBreaker:
    """
    The breaker of one external service.

    Use it as a decorator (`@breaker`), as a context manager (`with breaker:`) or by `call`: these raise CircuitOpen
    while the service must not be called, and record the outcome. `acquire` and `record_...` do the same by hand.
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
        Without *store* the breaker is in memory; without *clock* it uses that of the open home.

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
        """Return the result of *func* for these arguments; raise CircuitOpen instead of calling it while open."""
        _refuse_async(func, is_async(func))
        with self:
            result = func(*args, **kwargs)
        _refuse_async(func, is_pending(result))

        return result

    def __call__(self, func: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        """Return *func* behind this breaker; raise UsageError if it is async."""
        _refuse_async(func, is_async(func))

        @wraps(func)
        def guarded(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            return self.call(func, *args, **kwargs)

        return guarded

    # --- state -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """The current state: an open breaker is half open as soon as its time is up."""
        return CircuitState(self.row.state)

    @property
    def row(self) -> BreakerRow:
        """The current row of the breaker."""
        stored = self._read()
        result = seen(stored, self._clock.now())
        if result.opened_at == stored.opened_at:
            return result

        # The clock was set back. Stored, so that the wait begins anew once and not with every read.
        return self._change(lambda row, _now: row)[1]

    def allows(self) -> bool:
        """Return whether `can_execute` would admit a call now, without taking a permit."""
        return self.refused_until() is None

    def refused_until(self) -> datetime | None:
        """Return when a retry may help, or None if a call may go through now; takes no permit."""
        return self._refused_until(self.row, self._clock.now())

    def _refused_until(self, row: BreakerRow, now: datetime) -> datetime | None:
        if row.state == CircuitState.OPEN.value:
            return timestamps.parse(row.reopens_at or row.changed_at)
        if row.state == CircuitState.CLOSED.value or len(row.permits) < self.config.half_open_max_attempts:
            return None
        # A trial may end long before its permit expires: check again after the usual time.
        first = min(timestamps.parse(permit.expires_at) for permit in row.permits)

        return min(first, now + timedelta(seconds=self.config.reset_timeout_seconds))

    # --- by hand -----------------------------------------------------------------------------------------------

    def can_execute(self) -> bool:
        """Return whether the caller may go through; while half open, this takes one of the few permits for a time."""
        return self.acquire() is not None

    def acquire(self, *, seconds: float | None = None) -> Permit | None:
        """
        Return a permit, or None if the caller must not call the service.

        While the breaker is half open the permit takes one of the few places; while it is closed it only marks the
        generation in which the call began. It expires after *seconds*, by default the time the breaker stays open. Pass
        it to `record_success` or `record_failure`, so that a late result is recognised, or to `give_back`.
        """
        lifetime = timedelta(seconds=self.config.reset_timeout_seconds if seconds is None else seconds)
        token = self._clock.token()
        permit: Permit | None = None

        def rule(row: BreakerRow, now: datetime) -> BreakerRow:
            nonlocal permit
            permit = None
            if self._refused_until(row, now) is not None:
                return row
            permit = Permit(token=token, generation=row.generation, expires_at=timestamps.to_text(now + lifetime))
            return replace(row, permits=(*row.permits, permit)) if row.state == CircuitState.HALF_OPEN.value else row

        self._change(rule)

        return permit

    def give_back(self, permit: Permit) -> None:
        """Free the place of *permit* without an outcome."""
        self._change(
            lambda row, _now: replace(row, permits=tuple(one for one in row.permits if one.token != permit.token))
        )

    # Each outcome returns the new state of the breaker, or None if the state did not change.

    def record_success(self, permit: Permit | None = None) -> CircuitState | None:
        """Count an answer of the service; ignored while open, and if *permit* is of an older generation."""

        def rule(row: BreakerRow, _now: datetime) -> BreakerRow:
            return row if row.state == CircuitState.OPEN.value or _is_late(row, permit) else _closed(row)

        return self._record(rule)

    def record_failure(self, permit: Permit | None = None, *, reason: str = "") -> CircuitState | None:
        """Count a failure of the service; ignored while open, and if *permit* is of an older generation."""

        def rule(row: BreakerRow, now: datetime) -> BreakerRow:
            if row.state == CircuitState.OPEN.value or _is_late(row, permit):
                return row
            if row.state == CircuitState.CLOSED.value and row.failures + 1 < self.config.failure_threshold:
                return replace(row, failures=row.failures + 1)
            return _opened(row, now, now + timedelta(seconds=self.config.reset_timeout_seconds), reason)

        return self._record(rule)

    def open_until(self, at: datetime, reason: str, permit: Permit | None = None) -> CircuitState | None:
        """
        Open at once, until *at* or longer, such as for an exhausted quota or refused credentials.

        A moment in the past counts as an ordinary failure.
        """
        if at.tzinfo is None:
            raise UsageError("a breaker opens until a moment with a time zone")
        if at <= self._clock.now():
            return self.record_failure(permit, reason=reason)

        def rule(row: BreakerRow, now: datetime) -> BreakerRow:
            is_longer = row.state != CircuitState.OPEN.value or at > timestamps.parse(row.reopens_at or row.changed_at)
            return _opened(row, now, at, reason) if is_longer and not _is_late(row, permit) else row

        return self._record(rule)

    def reset(self) -> None:
        """Close the breaker from any state."""
        self._change(lambda row, _now: _closed(row))

    # --- the store -------------------------------------------------------------------------------------------------

    def _record(self, rule: Callable[[BreakerRow, datetime], BreakerRow]) -> CircuitState | None:
        before, after = self._change(rule)

        return None if after.state == before.state else CircuitState(after.state)

    def _change(self, rule: Callable[[BreakerRow, datetime], BreakerRow]) -> tuple[BreakerRow, BreakerRow]:
        """
        Apply *rule* to the row as of now, and return the row before and after.

        The store is written only if something changes.
        """
        now = self._clock.now()
        stored = self._read()
        before = seen(stored, now)
        if rule(before, now) == stored:
            return before, stored

        def change(row: BreakerRow) -> BreakerRow:
            nonlocal before
            before = seen(row, now)
            after = rule(before, now)
            if after == row:
                return row
            return replace(after, settings=self.config.to_json(), changed_at=timestamps.to_text(now))

        after = self._store.change(self.executor_id, change)

        return before, after

    def _read(self) -> BreakerRow:
        return self._store.read(self.executor_id) or BreakerRow(name=self.executor_id)

    @property
    def _clock(self) -> Clock:
        return self._own_clock or default_home.get().clock


def _is_late(row: BreakerRow, permit: Permit | None) -> bool:
    return permit is not None and permit.generation != row.generation


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
        """Return the one breaker of a service; raise UsageError if it has another *config*."""
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
        """Return every breaker that has ever changed, as last stored, ordered by name."""
        return self._store.all()

    def reset_all(self) -> None:
        """Close every breaker, including those that other processes opened."""
        for row in self.stored():
            self.get(row.name).reset()


_COLUMNS = tuple(one.name for one in fields(BreakerRow))
_ALL = f"SELECT {', '.join(_COLUMNS)} FROM breakers"


class DatabaseBreakers:
    """
    A `BreakerStore` in the table breakers, whose rows all processes of a home share.

    A change reads the row under a lock and writes it in the same transaction: no other change comes in between.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, or None if it has never changed."""
        with self._database.read() as session:
            row = session.one(f"{_ALL} WHERE name = :name", {"name": name})

        return None if row is None else to_breaker(row)

    def all(self) -> tuple[BreakerRow, ...]:
        """Return all breakers, ordered by name."""
        with self._database.read() as session:
            rows = session.all(_ALL)

        # Not sorted by the database: a server's order depends on its locale.
        return tuple(sorted(map(to_breaker, rows), key=lambda row: row.name))

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by the result of *rule*; if *rule* raises, the breaker stays unchanged."""

        def work(session: Session) -> BreakerRow:
            # A row must exist to be locked; of two transactions that begin at once, one inserts it.
            insert = f"""
            INSERT INTO breakers ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{column}" for column in _COLUMNS)})
            ON CONFLICT (name) DO NOTHING
            """
            is_new = session.run(insert, breaker_params(BreakerRow(name=name))) == 1
            lock = self._database.render("{row_lock}")
            row = session.one(f"{_ALL} WHERE name = :name {lock}", {"name": name})
            before = BreakerRow(name=name) if row is None else to_breaker(row)
            after = rule(before)
            if after != before:
                changes = ", ".join(f"{column} = :{column}" for column in _COLUMNS[1:])
                session.run(f"UPDATE breakers SET {changes} WHERE name = :name", breaker_params(after))
            elif is_new:
                session.run("DELETE FROM breakers WHERE name = :name", {"name": name})  # the breaker has never changed
            return after

        return self._database.transact(work)


def breaker_params(row: BreakerRow) -> dict[str, object]:
    """Return the columns of a breaker as parameters."""
    return {
        **asdict(row),
        "reason": connection.plain(row.reason),
        "permits": json.dumps([asdict(permit) for permit in row.permits]),
        "settings": connection.json_text(row.settings, f"the settings of breaker {row.name}"),
    }


def to_breaker(row: Row) -> BreakerRow:
    """Return the breaker in a row of its columns; raise DatabaseError if the row is invalid."""
    values = dict(zip(_COLUMNS, row, strict=True))
    try:
        permits = tuple(Permit(**permit) for permit in json.loads(values["permits"]))
        return BreakerRow(**{**values, "permits": permits, "settings": json.loads(values["settings"])})
    except (ValueError, TypeError) as exc:
        raise DatabaseError(
            f"the row of breaker {values['name']!r} cannot be read ({exc}): delete it from the table breakers"
        ) from exc
