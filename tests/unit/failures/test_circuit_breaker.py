"""Breakers over a store and a clock: what they let through, what they count, and what they ignore."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.circuit_breaker import (
    CircuitBreaker,
    CircuitBreakerConfig,
    CircuitBreakerRegistry,
    CircuitState,
    MemoryBreakers,
)
from adws.adw_modules.errors import ConfigError, UsageError
from adws.testing import START, FakeClock
from tests.homes import lab_home

PATIENT = CircuitBreakerConfig(failure_threshold=3)
TOUCHY = CircuitBreakerConfig(failure_threshold=1, reset_timeout_seconds=60.0)
TWO_TRIALS = CircuitBreakerConfig(failure_threshold=1, reset_timeout_seconds=60.0, half_open_max_attempts=2)


@pytest.fixture
def clock(seed):
    return FakeClock(seed=seed)


@pytest.fixture
def make(clock):
    def build(config: CircuitBreakerConfig, **parts: object) -> CircuitBreaker:
        return CircuitBreaker("exec1", config, clock=clock, **parts)

    return build


@pytest.fixture
def registry(clock):
    return CircuitBreakerRegistry(clock=clock)


# --- the states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "script"),
    [
        (PATIENT, "state=closed can_execute=True can_execute=True fail fail state=closed fail=open can_execute=False"),
        (PATIENT, "fail fail ok fail fail state=closed"),  # a success sets the count back
        (TOUCHY, "fail=open can_execute=False +59.9 state=open +0.1 state=half_open"),
        (TOUCHY, "fail +60 ok=closed can_execute=True"),
        (TOUCHY, "fail +60 fail=open +59.9 state=open"),  # its time begins again
        (TOUCHY, "fail reset state=closed can_execute=True"),
        (TWO_TRIALS, "fail +60 can_execute=True can_execute=True can_execute=False"),
        # The place of a trial that nobody reports on is free again after its time.
        (TOUCHY, "fail +60 can_execute=True +59.9 can_execute=False +0.1 can_execute=True can_execute=False"),
        (TOUCHY, "fail +30 ok=None state=open"),  # a success while it is open does not close it
        (TOUCHY, "fail +30 fail=None until=60 +30 state=half_open"),  # nor does a failure push the time out
        # A clock set back keeps it open for its time and no longer; looking does not begin the wait anew.
        (TOUCHY, "fail +30 -86430 state=open +30 state=open +30 state=half_open"),
        (PATIENT, "fail fail fail=open +60 fail=open"),  # one failure reopens it, whatever the threshold
        (PATIENT, "fail fail reset fail fail state=closed"),  # a reset forgets failures
        (PATIENT, "fail=None fail=None fail=open fail=None +60 fail=open +60 ok=closed ok=None"),
        (TOUCHY, "fail +60 ask+3600=True +3599 ask=False +1 ask=True"),  # a permit lasts as long as was asked for
        (TOUCHY, "fail +60 ask=True give state=half_open ask=True"),  # a permit that is given back frees its place
        (TOUCHY, "fail allows=False until=60 +60 allows=True allows=True ask=True allows=False"),  # takes no place
        (TOUCHY, "fail +60 ask+3600=True until=120"),  # looking again is worth it long before a permit ends
        (TOUCHY, "fail -4 state=open until=60"),  # the clock of another machine may be a little behind
        (TOUCHY, "fail +60 ask=True -86460 ask=True ask=False"),  # a clock set back keeps no place for longer
    ],
)
def test_what_happens_to_a_breaker_step_by_step(make, clock, config, script):
    breaker, permit = make(config), None
    for step in script.split():
        action, _, expected = step.partition("=")
        if action[0] in "+-":
            clock.set(clock.now() + timedelta(seconds=float(action)))
            continue
        if action.startswith("ask"):
            permit = breaker.acquire(seconds=float(action[4:]) if action[4:] else None)
            answer = permit is not None
        elif action == "give":
            answer = breaker.give_back(permit)
        elif action == "until":
            answer = int((breaker.refused_until() - START).total_seconds())
        else:
            method = {"fail": "record_failure", "ok": "record_success"}.get(action, action)
            answer = breaker.state if action == "state" else getattr(breaker, method)()
        if expected:
            assert str(answer.value if isinstance(answer, CircuitState) else answer) == expected, step


# --- the registry ----------------------------------------------------------------------------------------------


def test_registry_get_returns_same(registry):
    assert registry.get("exec1") is registry.get("exec1")
    assert registry.get("exec1") is not registry.get("exec2")


def test_asking_for_a_breaker_with_other_settings_is_refused(registry):
    registry.get("exec1", PATIENT)

    assert registry.get("exec1", CircuitBreakerConfig(failure_threshold=3)).config == PATIENT
    assert registry.get("exec1").config == PATIENT
    with pytest.raises(UsageError, match=r"exec1 is in use with .*failure_threshold=3"):
        registry.get("exec1", TOUCHY)


def test_reset_all_closes_what_another_process_opened(clock):
    shared = MemoryBreakers()
    CircuitBreaker("exec1", TOUCHY, store=shared, clock=clock).record_failure()
    mine = CircuitBreakerRegistry(store=shared, clock=clock)

    mine.reset_all()

    assert mine.get("exec1").state == CircuitState.CLOSED


# --- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "allowed", "refused", "words"),
    [
        ("failure_threshold", (1, 1000), (0, 1001, -1, 2.5, True, "5"), "a whole number from 1 to 1000"),
        (
            "reset_timeout_seconds",
            (1.0, 86400.0),
            (0.9, 86400.1, float("nan"), float("inf"), "60"),
            "a number from 1 to",
        ),
        ("half_open_max_attempts", (1, 10), (0, 11), "a whole number from 1 to 10"),
    ],
)
def test_a_config_has_bounds(name, allowed, refused, words):
    for value in refused:
        with pytest.raises(ConfigError, match=rf"{name} of a breaker is .*: give {words}"):
            CircuitBreakerConfig(**{name: value})
    assert [getattr(CircuitBreakerConfig(**{name: value}), name) for value in allowed] == list(allowed)
    assert issubclass(ConfigError, ValueError)


def test_a_config_cannot_be_changed_after_it_was_checked():
    config = CircuitBreakerConfig()

    with pytest.raises(FrozenInstanceError):
        config.failure_threshold = 0


@pytest.mark.parametrize("name", ["", "  ", None, "x" * 201, "two\nlines"])
def test_a_breaker_needs_a_name(name, clock):
    with pytest.raises(ValueError, match="a breaker"):
        CircuitBreaker(name, clock=clock)


# --- late news -------------------------------------------------------------------------------------------------


def test_what_began_before_a_breaker_opened_says_nothing_about_it_after(make, clock):
    breaker = make(TOUCHY)
    old = breaker.acquire()
    breaker.record_failure()
    clock.advance(60.0)

    breaker.record_success(old)
    assert breaker.state == CircuitState.HALF_OPEN
    breaker.record_failure(old)
    assert breaker.state == CircuitState.HALF_OPEN

    breaker.record_success(breaker.acquire())
    breaker.record_failure(old)
    assert breaker.state == CircuitState.CLOSED


def test_of_two_trials_the_second_changes_nothing_after_the_first_closed(make, clock):
    breaker = make(TWO_TRIALS)
    breaker.record_failure()
    clock.advance(60.0)
    first, second = breaker.acquire(), breaker.acquire()

    assert breaker.record_success(first) is CircuitState.CLOSED
    assert breaker.record_failure(second) is None

    assert (breaker.state, breaker.row.failures, breaker.row.permits) == (CircuitState.CLOSED, 0, ())


def test_of_two_trials_the_second_does_not_close_after_the_first_reopened(make, clock):
    breaker = make(TWO_TRIALS)
    breaker.record_failure()
    clock.advance(60.0)
    first, second = breaker.acquire(), breaker.acquire()

    assert breaker.record_failure(first) is CircuitState.OPEN
    assert breaker.record_success(second) is None

    assert breaker.state == CircuitState.OPEN


# --- opening until a moment ------------------------------------------------------------------------------------


def test_a_breaker_opens_at_once_until_a_given_moment(make, clock):
    breaker = make(PATIENT)

    assert breaker.open_until(START + timedelta(hours=5), "quota_window: used up") is CircuitState.OPEN

    assert (breaker.row.reopens_at, breaker.row.reason) == ("2026-01-31T14:00:00.000000Z", "quota_window: used up")
    clock.advance(5 * 3600 - 1.0)
    assert not breaker.can_execute()
    clock.advance(1.0)
    assert breaker.can_execute()


def test_an_open_breaker_stays_open_until_the_later_of_two_moments(make):
    breaker = make(TOUCHY)
    breaker.record_failure()

    assert breaker.open_until(START + timedelta(hours=5), "used up") is None
    breaker.open_until(START + timedelta(hours=2), "sooner")

    assert (breaker.row.reopens_at, breaker.row.reason) == ("2026-01-31T14:00:00.000000Z", "used up")


def test_late_news_opens_nothing(make, clock):
    breaker = make(TOUCHY)
    old = breaker.acquire()
    breaker.record_failure()
    breaker.reset()

    breaker.open_until(clock.now() + timedelta(hours=1), "no credit", old)

    assert breaker.state == CircuitState.CLOSED, "a person paid, and said so"


def test_a_moment_without_a_time_zone_is_refused(make):
    with pytest.raises(UsageError, match="time zone"):
        make(PATIENT).open_until(datetime(2026, 1, 1), "used up")  # noqa: DTZ001 - what the test is about


def test_a_reason_is_one_line_of_bounded_length(make):
    breaker = make(TOUCHY)

    breaker.record_failure(reason="network:\n  " + "x" * 1000)

    assert breaker.row.reason == "network: " + "x" * 291


# --- where it is kept ------------------------------------------------------------------------------------------


def test_what_changes_nothing_writes_nothing(clock):
    class Counting(MemoryBreakers):
        writes = 0

        def change(self, name, rule):
            self.writes += 1
            return super().change(name, rule)

    store = Counting()
    breaker = CircuitBreaker("exec1", PATIENT, store=store, clock=clock)
    breaker.can_execute()
    breaker.record_success()
    breaker.reset()
    assert breaker.state is CircuitState.CLOSED

    assert (store.writes, store.all()) == (0, ())


def test_without_a_clock_that_of_the_open_home_is_asked():
    parts = lab_home()
    with default_home.using(parts):
        breaker = CircuitBreaker("exec1", TOUCHY)
        breaker.record_failure()
        parts.clock.advance(60.0)

        assert breaker.state == CircuitState.HALF_OPEN
