"""The rules of breakers, on their rows alone: what must hold whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from adws.adw_modules import circuit_breaker, timestamps
from adws.adw_modules.circuit_breaker import BreakerRow, CircuitBreakerConfig, CircuitState, Permit
from adws.testing import START

CONFIG = CircuitBreakerConfig(failure_threshold=2, reset_timeout_seconds=60.0)
NEW = BreakerRow(name="party")
OPEN = circuit_breaker.open_until(NEW, CONFIG, START, at=START + timedelta(seconds=60), reason="down")


def at(seconds: float):
    return START + timedelta(seconds=seconds)


def test_a_row_that_nothing_happens_to_comes_back_itself():
    assert circuit_breaker.succeed(NEW, START) is NEW
    assert circuit_breaker.reset(NEW, START) is NEW
    assert circuit_breaker.fail(OPEN, CONFIG, at(30)) is OPEN
    assert circuit_breaker.admit(NEW, CONFIG, START, token="t", seconds=9.0)[0] is NEW


def test_a_change_notes_its_moment():
    assert circuit_breaker.fail(NEW, CONFIG, at(7)) == replace(NEW, failures=1, changed_at=timestamps.to_text(at(7)))


def test_looking_at_an_open_breaker_whose_time_has_come_shows_it_half_open():
    assert circuit_breaker.state_of(OPEN, at(59.999)) is CircuitState.OPEN
    assert circuit_breaker.state_of(OPEN, at(60)) is CircuitState.HALF_OPEN
    assert OPEN.state == "open", "the row itself is as it was"


def test_an_open_row_without_moments_may_be_tried():
    bare = BreakerRow(name="party", state="open", changed_at=timestamps.to_text(START))

    assert circuit_breaker.state_of(bare, START) is CircuitState.HALF_OPEN


def test_a_permit_that_ended_is_no_trial_any_more():
    row, permit = circuit_breaker.admit(OPEN, CONFIG, at(60), token="t", seconds=10.0)

    assert row.permits == (permit,) == (Permit(token="t", generation=2, expires_at=timestamps.to_text(at(70))),)
    assert circuit_breaker.refused_until(row, CONFIG, at(69)) == at(70)
    assert circuit_breaker.seen(row, at(70)).permits == ()
    assert circuit_breaker.refused_until(row, CONFIG, at(70)) is None


def test_an_outcome_with_a_permit_that_ended_still_counts_for_its_generation():
    row, permit = circuit_breaker.admit(OPEN, CONFIG, at(60), token="t", seconds=10.0)

    assert circuit_breaker.succeed(row, at(80), permit).state == "closed"


def test_giving_back_a_permit_that_is_not_there_changes_nothing():
    stranger = Permit(token="s", generation=1, expires_at=timestamps.to_text(at(99)))

    assert circuit_breaker.give_back(NEW, START, stranger) is NEW


def test_opening_leaves_no_permits_and_closing_leaves_no_reason():
    half, _permit = circuit_breaker.admit(OPEN, CONFIG, at(60), token="t", seconds=10.0)

    reopened = circuit_breaker.fail(half, CONFIG, at(61), reason="down again")
    closed = circuit_breaker.succeed(half, at(61))

    assert (reopened.permits, reopened.generation, reopened.reopens_at) == ((), 3, timestamps.to_text(at(121)))
    assert closed == replace(NEW, generation=3, changed_at=timestamps.to_text(at(61)))


@pytest.mark.parametrize("back_seconds", [6, 3600, 10**9])
def test_from_any_look_after_the_clock_was_set_back_the_wait_is_at_most_its_span(back_seconds):
    back = START - timedelta(seconds=back_seconds)

    seen = circuit_breaker.seen(OPEN, back)

    assert circuit_breaker.refused_until(seen, CONFIG, back) == back + timedelta(seconds=60)


class BreakerMachine(RuleBasedStateMachine):
    """One breaker, any number of callers, and a clock that goes forward or is set back."""

    permits = Bundle("permits")

    @initialize(most=st.integers(1, 3), threshold=st.integers(1, 3))
    def begin(self, most: int, threshold: int) -> None:
        self.config = CircuitBreakerConfig(threshold, 60.0, most)
        self.now, self.row, self.tokens = START, NEW, 0

    def become(self, row: BreakerRow) -> None:
        assert row.generation >= self.row.generation, "a generation only grows"
        has_turned = (row.state == "closed") != (self.row.state == "closed")
        assert not has_turned or row.generation > self.row.generation, "opening and closing are generations"
        self.row = row

    @rule(seconds=st.sampled_from([0.0, 1.0, 29.0, 60.0, 600.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.sampled_from([1.0, 30.0, 7200.0]))
    def set_back(self, seconds: float) -> None:
        self.now -= timedelta(seconds=seconds)

    @rule(target=permits, seconds=st.sampled_from([5.0, 60.0, 3600.0]))
    def ask(self, seconds: float) -> Permit | None:
        self.tokens += 1
        before = circuit_breaker.seen(self.row, self.now)
        after, permit = circuit_breaker.admit(self.row, self.config, self.now, token=f"t{self.tokens}", seconds=seconds)
        assert (permit is None) == (circuit_breaker.refused_until(self.row, self.config, self.now) is not None)
        if before.state == "open":
            assert permit is None, "an open breaker lets nobody through"
            assert timestamps.parse(before.reopens_at) > self.now
        self.become(after)
        return permit

    @rule(permit=st.one_of(st.none(), permits))
    def answer(self, permit: Permit | None) -> None:
        is_late = permit is not None and permit.generation != self.row.generation
        before = circuit_breaker.seen(self.row, self.now)
        self.become(circuit_breaker.succeed(self.row, self.now, permit))
        if is_late or before.state == "open":
            assert (self.row.state, self.row.failures) == (before.state, before.failures)

    @rule(permit=st.one_of(st.none(), permits))
    def failure(self, permit: Permit | None) -> None:
        is_late = permit is not None and permit.generation != self.row.generation
        before = circuit_breaker.seen(self.row, self.now)
        self.become(circuit_breaker.fail(self.row, self.config, self.now, reason="down", permit=permit))
        if is_late or before.state == "open":
            assert (self.row.state, self.row.failures) == (before.state, before.failures)
        elif before.state == "half_open":
            assert self.row.state == "open"

    @rule(permit=st.one_of(st.none(), permits), seconds=st.sampled_from([-5.0, 30.0, 18000.0]))
    def shut(self, permit: Permit | None, seconds: float) -> None:
        at_moment = self.now + timedelta(seconds=seconds)
        self.become(
            circuit_breaker.open_until(self.row, self.config, self.now, at=at_moment, reason="quota", permit=permit)
        )

    @rule(permit=permits)
    def give_back(self, permit: Permit | None) -> None:
        if permit is not None:
            self.become(circuit_breaker.give_back(self.row, self.now, permit))
            assert permit not in self.row.permits

    @rule()
    def reset(self) -> None:
        self.become(circuit_breaker.reset(self.row, self.now))
        assert (self.row.state, self.row.failures, self.row.permits) == ("closed", 0, ())

    @invariant()
    def there_are_never_more_trials_than_allowed(self) -> None:
        assert len(self.row.permits) <= self.config.half_open_max_attempts
        assert self.row.state == "half_open" or not self.row.permits

    @invariant()
    def no_wait_is_longer_than_it_was_when_it_began(self) -> None:
        seen = circuit_breaker.seen(self.row, self.now)
        until = circuit_breaker.refused_until(self.row, self.config, self.now)
        if seen.state == "open":
            span = timestamps.parse(seen.reopens_at) - timestamps.parse(seen.opened_at)
            assert until - self.now <= span + circuit_breaker.MARGIN
        elif until is not None:
            assert until - self.now <= timedelta(seconds=self.config.reset_timeout_seconds)


TestBreakerMachine = BreakerMachine.TestCase
