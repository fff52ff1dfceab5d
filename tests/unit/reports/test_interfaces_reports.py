"""The words of reports."""

from __future__ import annotations

from adws.adw_modules.reports.model import Count, DayOutcomes, PhaseAttempts, Window


def test_a_window_begins_with_a_whole_day():
    """A moment stands for its day; without one the window has no beginning."""
    assert Window(since="2026-01-31T09:00:00.000000Z").first_day == "2026-01-31"
    assert Window().first_day == ""


def test_a_count_that_stopped_says_so():
    """A number that was not counted to its end has a plus."""
    assert str(Count(number=12345)) == "12,345"
    assert str(Count(number=10_000, is_more=True)) == "10,000+"


def test_a_day_on_which_nothing_ended_has_no_success_rate():
    """No rate is not a rate of 0."""
    assert DayOutcomes(day="2026-01-31").success_rate is None
    assert DayOutcomes(day="2026-01-31", completed=3, failed=1, abandoned=1, rolled_back=1).success_rate == 0.5


def test_the_mean_of_attempts_is_over_successes():
    """Three times one attempt and once five: two on average."""
    assert PhaseAttempts(phase="build", needed={1: 3, 5: 1}).mean_needed == 2.0
    assert PhaseAttempts(phase="build").mean_needed is None
