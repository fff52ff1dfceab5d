"""The words of reports."""

from __future__ import annotations

from adws.adw_modules.reports.model import Count, DayOutcomes, PhaseAttempts, Window


def test_figures_say_what_is_not_known():
    """A window begins with a whole day, a count that stopped has a plus, and no rate is not a rate of 0."""
    assert (Window(since="2026-01-31T09:00:00.000000Z").first_day, Window().first_day) == ("2026-01-31", "")
    assert (str(Count(number=12345)), str(Count(number=10_000, is_more=True))) == ("12,345", "10,000+")
    assert DayOutcomes(day="2026-01-31").success_rate is None
    assert DayOutcomes(day="2026-01-31", completed=3, failed=1, abandoned=1, rolled_back=1).success_rate == 0.5
    assert PhaseAttempts(phase="build", needed={1: 3, 5: 1}).mean_needed == 2.0
    assert PhaseAttempts(phase="build").mean_needed is None
