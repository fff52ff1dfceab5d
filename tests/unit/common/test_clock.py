"""The clock of the machine, and the one that tests turn by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import UsageError
from adws.testing import START, FakeClock


@pytest.fixture(params=[SystemClock, FakeClock])
def any_clock(request):
    return request.param()


def test_moments_are_aware_and_in_utc(any_clock):
    assert any_clock.now().utcoffset() == timedelta(0)


def test_durations_never_go_back(any_clock):
    monotonic, boottime = any_clock.monotonic(), any_clock.boottime()
    any_clock.sleep(0)

    assert any_clock.monotonic() >= monotonic
    assert any_clock.boottime() >= boottime


def test_random_numbers_lie_from_zero_up_to_one_and_differ(any_clock):
    numbers = [any_clock.random() for _ in range(1000)]

    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == 1000
    assert min(numbers) < 0.1
    assert max(numbers) > 0.9


def test_tokens_are_32_hex_digits_and_differ(any_clock):
    tokens = {any_clock.token() for _ in range(100)}

    assert len(tokens) == 100
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wait_that_makes_no_sense_is_refused(any_clock, seconds):
    with pytest.raises(UsageError, match="seconds"):
        any_clock.sleep(seconds)


def test_the_system_clock_shows_the_time_of_the_machine():
    before = datetime.now(UTC)
    shown = SystemClock().now()

    assert before <= shown <= datetime.now(UTC)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no CLOCK_BOOTTIME")
def test_the_local_lease_clock_counts_suspended_time():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= SystemClock().boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_without_a_boot_clock_the_monotonic_one_is_used(monkeypatch):
    monkeypatch.setattr("adws.adw_modules.clock._BOOTTIME", None)
    before = time.monotonic()

    assert before <= SystemClock().boottime() <= time.monotonic()


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock()
    assert clock.now() == clock.now() == START

    clock.advance(90.5)
    assert clock.now() == START + timedelta(seconds=90.5)
    assert clock.monotonic() == clock.boottime() == 1090.5


def test_sleeping_on_a_fake_clock_takes_no_time_and_is_noted():
    clock = FakeClock()
    clock.sleep(3600)
    clock.sleep(0)

    assert clock.slept == [3600, 0]
    assert clock.now() == START + timedelta(hours=1)


def test_turning_the_wall_clock_back_leaves_durations_alone():
    clock = FakeClock()
    clock.set(datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))

    assert clock.now() == datetime(2020, 1, 1, tzinfo=UTC)
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() == 1000.0


def test_a_fake_clock_wants_a_time_zone():
    naive = START.replace(tzinfo=None)
    with pytest.raises(UsageError, match="time zone"):
        FakeClock(naive)
    with pytest.raises(UsageError, match="time zone"):
        FakeClock().set(naive)


def test_the_same_seed_gives_the_same_row():
    first, same, other = FakeClock(seed=5), FakeClock(seed=5), FakeClock(seed=6)
    row = [first.random(), first.token(), first.random()]

    assert [same.random(), same.token(), same.random()] == row
    assert [other.random(), other.token(), other.random()] != row
