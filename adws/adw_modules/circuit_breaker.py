"""
Breakers: when an outside party keeps failing, nobody asks it for a while, and then a few do first.

The rules are in `breaker_rules`; here they meet a store and a clock. With a store of the database all processes of a
home share a breaker; without one it lives as long as its registry. `can_execute` takes a permit that ends by itself, so
that a trial whose process died does not keep others out for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from adws.adw_modules import ambient, breaker_rules
from adws.adw_modules.breaker_rules import CircuitBreakerConfig, CircuitState
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_durability import BreakerRow, BreakerStore, Permit

__all__ = [
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "CircuitBreakerRegistry",
    "CircuitState",
    "MemoryBreakers",
]

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


class CircuitBreaker:
    """The breaker of one outside party."""

    def __init__(
        self,
        executor_id: str,
        config: CircuitBreakerConfig | None = None,
        *,
        store: BreakerStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without *store* it is in memory; without *clock* that of the home that is open is asked."""
        if not executor_id or not executor_id.strip():
            raise UsageError("a breaker needs a name: give that of the party it stands for, such as github")
        if len(executor_id) > MAX_NAME or not executor_id.isprintable():
            raise UsageError(f"a breaker's name has at most {MAX_NAME} characters, all of them printable")
        self.executor_id = executor_id
        self.config = config or CircuitBreakerConfig()
        self._store = store or MemoryBreakers()
        self._own_clock = clock

    @property
    def state(self) -> CircuitState:
        """The state now: an open breaker is half open as soon as its time has come."""
        return CircuitState(self.row.state)

    @property
    def row(self) -> BreakerRow:
        """All that is known about it now."""
        now = self._now()
        stored = self._read()
        found = breaker_rules.seen(stored, now)
        if found.opened_at == stored.opened_at:
            return found

        # The clock was set back. Written down, so that the wait begins anew once and not with every look.
        return self._change(lambda row: breaker_rules.seen(row, now))[1]

    def allows(self) -> bool:
        """Say whether `can_execute` would let somebody through now; takes nothing."""
        return self.refused_until() is None

    def refused_until(self) -> datetime | None:
        """Return when asking again may help, None when somebody may go through now; takes nothing."""
        return breaker_rules.refused_until(self.row, self.config, self._now())

    # --- going through -----------------------------------------------------------------------------------------

    def can_execute(self) -> bool:
        """Say whether the caller may go through; while half open that takes one of the few places, for a time."""
        return self.acquire() is not None

    def acquire(self, *, seconds: float | None = None) -> Permit | None:
        """
        Return leave to go through, None when the caller may not.

        It ends after *seconds*, or after the time the breaker stays open. Hand it to `record_success` or
        `record_failure`, so that an outcome that comes too late is known as such, or `give_back`.
        """
        now, token = self._now(), self._clock.token()
        lifetime = self.config.reset_timeout_seconds if seconds is None else seconds
        got: Permit | None = None

        def rule(row: BreakerRow) -> BreakerRow:
            nonlocal got
            after, got = breaker_rules.admit(row, self.config, now, token=token, seconds=lifetime)
            return after

        self._change(rule)

        return got

    def give_back(self, permit: Permit) -> None:
        """Free the place of *permit* without an outcome."""
        now = self._now()
        self._change(lambda row: breaker_rules.give_back(row, now, permit))

    # --- outcomes: each returns the state that it brought the breaker to, None when that stayed as it was ----------

    def record_success(self, permit: Permit | None = None) -> CircuitState | None:
        """Count an answer of the party; ignored while open, and when *permit* is of an older generation."""
        now = self._now()

        return self._turn(lambda row: breaker_rules.succeed(row, now, permit), now)

    def record_failure(self, permit: Permit | None = None, *, reason: str = "") -> CircuitState | None:
        """Count a failure of the party; ignored while open, and when *permit* is of an older generation."""
        now = self._now()

        return self._turn(lambda row: breaker_rules.fail(row, self.config, now, reason=reason, permit=permit), now)

    def open_until(self, at: datetime, reason: str, permit: Permit | None = None) -> CircuitState | None:
        """Open at once, until *at*: a quota that is used up, credentials that are refused."""
        if at.tzinfo is None:
            raise UsageError("a breaker opens until a moment with a time zone")
        now = self._now()

        return self._turn(
            lambda row: breaker_rules.open_until(row, self.config, now, at=at, reason=reason, permit=permit), now
        )

    def reset(self) -> None:
        """Close it, whatever it was."""
        now = self._now()
        self._change(lambda row: breaker_rules.reset(row, now))

    # --- the store ---------------------------------------------------------------------------------------------

    def _turn(self, rule: Callable[[BreakerRow], BreakerRow], now: datetime) -> CircuitState | None:
        before, after = self._change(rule)
        state = CircuitState(after.state)

        return None if state is breaker_rules.state_of(before, now) else state

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
        return self._own_clock or ambient.parts().clock

    def _now(self) -> datetime:
        return self._clock.now()


class CircuitBreakerRegistry:
    """The breakers of a process, one for each party; threads may share it."""

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
        """Return the breaker of a party, always the same one; raise UsageError when it has another *config*."""
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
