"""The rules of breakers: what must hold whatever happens in whatever order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from adws.adw_modules import circuit_breaker, timestamps
from adws.adw_modules.circuit_breaker import (
    BreakerRow,
    CircuitBreaker,
    CircuitBreakerConfig,
    CircuitState,
    MemoryBreakers,
    Permit,
)
from adws.testing import START, FakeClock

CONFIG = CircuitBreakerConfig(failure_threshold=2, reset_timeout_seconds=60.0)


def at(seconds: float):
    return START + timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store():
    return MemoryBreakers()


@pytest.fixture
def breaker(clock, store):
    """Open for a minute from now."""
    made = CircuitBreaker("party", CONFIG, store=store, clock=clock)
    made.open_until(at(60), "down")
    return made


def test_looking_at_an_open_breaker_whose_time_has_come_shows_it_half_open_and_stores_nothing(breaker, clock, store):
    clock.set(at(59.999))
    assert breaker.state is CircuitState.OPEN
    clock.set(at(60))
    assert breaker.state is CircuitState.HALF_OPEN
    assert store.read("party").state == "open"


def test_an_open_row_without_moments_may_be_tried():
    bare = BreakerRow(name="party", state="open", changed_at=timestamps.to_text(START))

    assert circuit_breaker.seen(bare, START).state == "half_open"


def test_opening_leaves_no_permits_and_closing_leaves_nothing(breaker, clock, store):
    clock.set(at(60))
    breaker.acquire()
    clock.set(at(61))
    breaker.record_failure(reason="down again")
    row = store.read("party")
    assert (row.permits, row.generation, row.reopens_at) == ((), 3, timestamps.to_text(at(121)))

    clock.set(at(121))
    breaker.record_success()
    assert store.read("party") == BreakerRow(
        name="party", generation=4, settings=CONFIG.to_json(), changed_at=timestamps.to_text(at(121))
    )


@pytest.mark.parametrize("back_seconds", [6, 3600, 10**9])
def test_after_the_clock_was_set_back_the_wait_is_at_most_its_span(breaker, clock, back_seconds):
    clock.set(START - timedelta(seconds=back_seconds))

    assert breaker.refused_until() == clock.now() + timedelta(seconds=60)


class BreakerMachine(RuleBasedStateMachine):
    """One breaker, any number of callers, and a clock that goes forward or is set back."""

    permits = Bundle("permits")

    @initialize(most=st.integers(1, 3), threshold=st.integers(1, 3))
    def begin(self, most: int, threshold: int) -> None:
        self.config = CircuitBreakerConfig(threshold, 60.0, most)
        self.clock, self.store = FakeClock(), MemoryBreakers()
        self.breaker = CircuitBreaker("party", self.config, store=self.store, clock=self.clock)
        self.row = BreakerRow(name="party")  #: as it was stored before the last step

    def check(self) -> None:
        row = self.store.read("party") or BreakerRow(name="party")
        assert row.generation >= self.row.generation, "a generation only grows"
        has_turned = (row.state == "closed") != (self.row.state == "closed")
        assert not has_turned or row.generation > self.row.generation, "opening and closing are generations"
        self.row = row

    @rule(seconds=st.sampled_from([0.0, 1.0, 29.0, 60.0, 600.0, -1.0, -30.0, -7200.0]))
    def time_passes_or_is_set_back(self, seconds: float) -> None:
        self.clock.set(self.clock.now() + timedelta(seconds=seconds))

    @rule(target=permits, seconds=st.sampled_from([5.0, 60.0, 3600.0]))
    def ask(self, seconds: float) -> Permit | None:
        before = self.breaker.row
        is_refused = self.breaker.refused_until() is not None
        permit = self.breaker.acquire(seconds=seconds)
        assert (permit is None) == is_refused
        if before.state == "open":
            assert permit is None, "an open breaker lets nobody through"
            assert timestamps.parse(before.reopens_at) > self.clock.now()
        self.check()
        return permit

    @rule(permit=st.one_of(st.none(), permits), is_answer=st.booleans())
    def outcome(self, permit: Permit | None, is_answer: bool) -> None:
        before = self.breaker.row
        is_late = permit is not None and permit.generation != before.generation
        if is_answer:
            self.breaker.record_success(permit)
        else:
            self.breaker.record_failure(permit, reason="down")
        self.check()
        if is_late or before.state == "open":
            assert (self.breaker.state.value, self.row.failures) == (before.state, before.failures)
        elif before.state == "half_open":
            assert self.row.state == ("closed" if is_answer else "open")

    @rule(permit=st.one_of(st.none(), permits), seconds=st.sampled_from([-5.0, 30.0, 18000.0]))
    def shut(self, permit: Permit | None, seconds: float) -> None:
        self.breaker.open_until(self.clock.now() + timedelta(seconds=seconds), "quota", permit)
        self.check()

    @rule(permit=permits)
    def give_back(self, permit: Permit | None) -> None:
        if permit is not None:
            self.breaker.give_back(permit)
            self.check()
            assert permit not in self.row.permits

    @rule()
    def reset(self) -> None:
        self.breaker.reset()
        self.check()
        assert (self.row.state, self.row.failures, self.row.permits) == ("closed", 0, ())

    @invariant()
    def there_are_never_more_trials_than_allowed(self) -> None:
        assert len(self.row.permits) <= self.config.half_open_max_attempts
        assert self.row.state == "half_open" or not self.row.permits

    @invariant()
    def no_wait_is_longer_than_it_was_when_it_began(self) -> None:
        row, until, now = self.breaker.row, self.breaker.refused_until(), self.clock.now()
        if row.state == "open":
            span = timestamps.parse(row.reopens_at) - timestamps.parse(row.opened_at)
            assert until - now <= span + circuit_breaker.MARGIN
        elif until is not None:
            assert until - now <= timedelta(seconds=self.config.reset_timeout_seconds)


TestBreakerMachine = BreakerMachine.TestCase
