"""When something is due: no tick is lost and none is done twice, however long a cron was down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import timestamps
from adws.adw_triggers import trigger_cron
from adws.adw_triggers.trigger_cron import Due, ScheduleEntry

NOW = datetime(2026, 3, 10, 12, 7, 30, tzinfo=UTC)
EXPRESSIONS = ("* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "0 6 * * 1", "15 0 1 * *", "59 23 L * *")


def entry(expression: str, name: str = "quota") -> ScheduleEntry:
    return ScheduleEntry(name=name, expression=expression)


def at(text: str) -> datetime:
    return timestamps.parse(f"2026-{text}:00Z")


@pytest.mark.parametrize(
    ("expression", "last", "due"),
    [
        ("0 6 * * *", None, [("03-10T06:00", 0)]),
        ("* * * * *", at("03-10T12:06"), [("03-10T12:07", 0)]),
        ("* * * * *", at("03-10T12:07"), []),
        ("*/10 * * * *", at("03-10T11:00"), [("03-10T12:00", 5)]),
        ("0 6 * * *", NOW + timedelta(days=400), [("03-10T06:00", 0)]),
        ("* * * * *", NOW + timedelta(minutes=3), []),
        ("", None, []),
    ],
    ids=[
        "one that never ran is due at once for its last tick",
        "the tick of this minute is due",
        "what was done is not due again",
        "missed ticks make one and are counted",
        "a tick far ahead was written by a wrong clock",
        "a tick a little ahead is that of a fast clock",
        "what is switched off is never due",
    ],
)
def test_each_entry_is_due_once_for_the_last_tick_that_was_not_done(expression, last, due):
    known = {} if last is None else {"quota": timestamps.to_text(last)}

    result = trigger_cron.due([entry(expression)], known, NOW)

    assert result == tuple(Due(entry=entry(expression), at=at(tick), missed=missed) for tick, missed in due)


def test_the_next_tick_is_that_of_the_entry_that_comes_first():
    assert trigger_cron.next_tick([entry("0 6 * * *"), entry("*/15 * * * *")], NOW) == at("03-10T12:15")
    assert trigger_cron.next_tick([entry("")], NOW) is None


@given(
    expression=st.sampled_from(EXPRESSIONS),
    gaps=st.lists(st.integers(min_value=0, max_value=10 * 24 * 3600), min_size=1, max_size=40),
)
def test_over_any_downtime_every_tick_is_covered_once_and_in_order(expression, gaps):
    """
    A cron that looks at arbitrary moments does each tick, or a later one that it was missed for, and none twice.
    """
    now = NOW
    last = {"quota": timestamps.to_text(NOW)}
    done: list[datetime] = []
    covered = 0
    for gap in gaps:
        now += timedelta(seconds=gap)
        for due in trigger_cron.due([entry(expression)], last, now):
            done.append(due.at)
            covered += due.missed + 1
            last["quota"] = timestamps.to_text(due.at)
    real = []
    for tick in CronSim(expression, NOW):
        if tick > now:
            break
        real.append(tick)

    assert done == sorted(set(done))
    assert set(done) <= set(real)
    assert done[-1:] == real[-1:]  # the last tick is never left out
    assert covered == len(real) or covered > trigger_cron.MOST_COUNTED


def test_the_count_of_missed_ticks_has_an_end():
    last = {"quota": "2020-01-01T00:00:00.000000Z"}

    assert trigger_cron.due([entry("* * * * *")], last, NOW)[0].missed == trigger_cron.MOST_COUNTED


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01"], ids=str)
def test_days_on_which_clocks_change_have_24_hours_like_all_others(day):
    begin = timestamps.parse(f"{day}T00:00:00Z")
    done: list[datetime] = []
    last = {"quota": timestamps.to_text(begin)}
    for minute in range(0, 24 * 60 + 1, 7):
        for due in trigger_cron.due([entry("30 * * * *")], last, begin + timedelta(minutes=minute)):
            done.append(due.at)
            last["quota"] = timestamps.to_text(due.at)

    assert done == [begin + timedelta(hours=hour, minutes=30) for hour in range(24)]
