"""
Times as agents write them for people become moments, for one who knows what time it is where the agent runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.agents.prices import reset_in, with_reset
from adws.adw_modules.errors import FailedRun

#: A Monday.
NOW = datetime(2026, 8, 3, 14, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("You've hit your session limit · resets 3:45pm", "2026-08-03 15:45:00+02:00"),
        ("You've hit your session limit · resets 1pm", "2026-08-04 13:00:00+02:00"),
        ("limit · resets 2pm", "2026-08-04 14:00:00+02:00"),
        ("limit · resets 12:00am", "2026-08-04 00:00:00+02:00"),
        ("limit · resets 12pm", "2026-08-04 12:00:00+02:00"),
        ("weekly limit · resets Mon 12:00am", "2026-08-10 00:00:00+02:00"),
        ("weekly limit · resets Monday 3pm", "2026-08-03 15:00:00+02:00"),
        ("weekly limit · resets Sun, 3pm", "2026-08-09 15:00:00+02:00"),
        ("You've hit your 5-hour limit · resets 2:02am (UTC)", "2026-08-04 02:02:00+00:00"),
        ("You've hit your 5-hour limit · resets 12:30pm UTC", "2026-08-03 12:30:00+00:00"),
        ("hit your usage limit. Upgrade or try again at 3:05 PM.", "2026-08-03 15:05:00+02:00"),
        ("hit your usage limit. Try again at Aug 9th, 2026 3:05 PM.", "2026-08-09 15:05:00+02:00"),
        ("Opus limit · resets August 9 at 5pm", "2026-08-09 17:00:00+02:00"),
        ("Opus limit · resets Aug 9, 5pm", "2026-08-09 17:00:00+02:00"),
        ("limit · resets Jan 2, 5pm", "2027-01-02 17:00:00+02:00"),
        ("try again at Aug 2nd, 2026 3:05 PM", None),
        ("try again at Feb 30th, 2027 3:05 PM", None),
        ("limit · resets 13pm", None),
        ("limit · resets 3:75pm", None),
        ("limit · resets 15:45", None),
        ("try again later", None),
        ("", None),
    ],
)
def test_times_of_day_become_moments(text, moment):
    result = reset_in(text, now=NOW)

    assert result == (None if moment is None else datetime.fromisoformat(moment))


def test_a_failure_gets_the_moment_that_its_text_names():
    failed = FailedRun(text="session limit · resets 3:45pm")

    assert with_reset(failed, now=NOW).resets_at == datetime(2026, 8, 3, 13, 45, tzinfo=UTC).timestamp()


@given(
    day=st.sampled_from(["", "Mon ", "Sun ", "Feb 29 ", "Dec 31, ", "Feb 29th, 2028 ", "Jan 1st, 0000 "]),
    hour=st.integers(0, 99),
    minute=st.integers(0, 99),
    zone=st.sampled_from(["", " (UTC)"]),
    days=st.integers(0, 15_000),
    minutes=st.integers(0, 1_439),
)
def test_a_moment_is_never_over(*, day, hour, minute, zone, days, minutes):
    now = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=days, minutes=minutes)
    result = reset_in(f"resets {day}{hour}:{minute:02}pm{zone}", now=now)

    assert result is None or result > now


def test_a_moment_that_is_known_is_not_guessed():
    failed = FailedRun(text="session limit · resets 3:45pm", resets_at=5.0)

    assert with_reset(failed, now=NOW) is failed
