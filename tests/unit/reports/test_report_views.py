"""Sums as what reports show."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import DayOutcomes, ReportSum, bucket_of

DAY = "2026-01-31"


def test_what_was_taken_away_again_is_not_shown():
    """A sum of nothing is no row."""
    none = {("outcome", DAY, "failed"): ReportSum(0), ("outcome", DAY, "moon"): ReportSum(1)}
    attempts = {("attempt", "build", "failed"): ReportSum(0), ("needed", "build", "1"): ReportSum(0)}

    assert reports_model.outcomes_of(none) == ()
    assert reports_model.attempts_of(attempts) == ()
    assert reports_model.costs_of({("cost", "build"): ReportSum(0)}, "phase") == ()
    assert reports_model.outcomes_of({("outcome", DAY, "failed"): ReportSum(2)}) == (DayOutcomes(day=DAY, failed=2),)


def test_who_was_paid_without_a_name_is_called_unnamed():
    """A phase without a name stays as it is."""
    sums = {("cost", ""): ReportSum(1, 1_500_000), ("tokens", ""): ReportSum(10)}

    (by_provider,) = reports_model.costs_of(sums, "provider")
    (by_phase,) = reports_model.costs_of(sums, "phase")

    assert (by_provider.key, by_provider.cost_usd, by_provider.tokens) == ("unnamed", 1.5, 10)
    assert by_phase.key == ""


@pytest.mark.parametrize(
    ("now", "since"), [((2026, 1, 31), "2025-11-01"), ((2026, 3, 1), "2026-01-01"), ((2026, 12, 31), "2026-10-01")]
)
def test_a_history_begins_two_months_before_this_one(now, since):
    """Over the turn of a year too."""
    assert reports_model.history_since(datetime(*now, tzinfo=UTC)) == since


def test_a_history_is_read_off_its_buckets():
    """The 95th of a hundred decides what most took; the slowest is the longest."""
    buckets = {bucket_of(1000): 90, bucket_of(8000): 9, bucket_of(64_000): 1, bucket_of(500_000): 0}

    history = reports_model.history_of("sdlc", "build", buckets)

    assert history.count == 100
    assert history.median == pytest.approx(1.0, rel=0.2)
    assert history.p95 == pytest.approx(8.0, rel=0.2)
    assert history.longest == pytest.approx(64.0, rel=0.2)
    assert reports_model.history_of("sdlc", "build", {}) is None


def test_attempts_are_told_by_phase():
    """A phase that never succeeded has attempts and needed none."""
    sums = {
        ("attempt", "test", "failed"): ReportSum(1, 500),
        ("attempt", "build", "succeeded"): ReportSum(3, 1500),
        ("attempt", "build", "failed"): ReportSum(2, 2000),
        ("needed", "build", "10"): ReportSum(1),
        ("needed", "build", "2"): ReportSum(2),
    }

    build, test = reports_model.attempts_of(sums)

    assert (build.phase, build.needed, build.seconds) == ("build", {2: 2, 10: 1}, 3.5)
    assert list(build.needed) == [2, 10]
    assert (test.phase, test.needed, test.by_status) == ("test", {}, {"failed": 1})
