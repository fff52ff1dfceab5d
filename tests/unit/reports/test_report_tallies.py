"""What a document adds to the sums of reports."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from adws.adw_modules.document import AttemptRecord, HistoryEntry, WorkflowRef
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import ReportSum, SumKey, sums_of
from tests.unit.timeline_cases import document, phase

DAY = "2026-01-31"
ENDED = f"{DAY}T09:00:00.000000Z"


def attempt(status: str = "succeeded", **fields):
    return AttemptRecord(**{"number": 1, "status": status, "started_at": ENDED, "ended_at": ENDED, **fields})


def tallies(*attempts, **fields):
    workflow = WorkflowRef(name="sdlc")
    return sums_of(document(phase("build", *attempts), **{"workflow": workflow, "updated_at": ENDED, **fields}))


def numbers(found, kind: str) -> dict[str, int]:
    return {key.item: total.number for key, total in found.sums.items() if key.kind == kind}


def test_a_workflow_that_failed_twice_ended_when_it_failed_the_second_time():
    days = ((1, "failed"), (2, "building"), (3, "failed"))
    history = [HistoryEntry(from_state="x", to_state=to, timestamp=f"2026-01-0{day}T00:00:00Z") for day, to in days]

    result = tallies(current_state="failed", state_history=history)

    assert result.sums == {SumKey("outcome", "2026-01-03", "sdlc", "", "failed"): ReportSum(1)}
    assert result.outcome == "failed"


@pytest.mark.parametrize(("moment", "days"), [(ENDED, {DAY}), ("soon", set())])
def test_without_a_history_the_last_change_is_the_end(moment, days):
    assert {key.day for key in tallies(current_state="completed", updated_at=moment).sums} == days


@pytest.mark.parametrize("state", ["building", "paused", "moon"])
def test_a_workflow_that_is_not_over_has_no_outcome(state):
    result = tallies(current_state=state)

    assert (result.outcome, result.sums) == ("", {})


def test_attempts_until_a_success_are_those_of_its_round_that_count():
    """Those that were stopped or parked do not count, and a success begins anew."""
    result = tallies(
        attempt("failed"),
        attempt("suspended"),
        attempt("parked"),
        attempt("interrupted"),
        attempt("succeeded"),
        attempt("succeeded"),
        attempt("failed", round=2),
        attempt("failed", round=3),
        attempt("succeeded", round=3),
    )

    assert numbers(result, "needed") == {"3": 1, "1": 1, "2": 1}
    assert numbers(result, "attempt") == {"failed": 3, "suspended": 1, "parked": 1, "interrupted": 1, "succeeded": 3}
    assert (result.attempts, result.last_day) == (9, DAY)


def test_very_many_attempts_are_counted_as_so_many():
    """The number of different sums has a bound."""
    result = tallies(*[attempt("failed")] * 200, attempt("succeeded"))

    assert numbers(result, "needed") == {"99": 1}


def test_an_attempt_that_is_not_over_or_has_no_moment_is_passed_over():
    """It counts towards the attempts of its round all the same."""
    result = tallies(attempt("running", ended_at=None), attempt("failed", ended_at="?"), attempt("succeeded"))

    assert numbers(result, "attempt") == {"succeeded": 1}
    assert numbers(result, "needed") == {"2": 1}


@pytest.mark.parametrize(
    ("duration", "took"), [(1.5, 1500), (0, 0), (None, 0), (-1.0, 0), (1e300, 10**11), (float("nan"), 0)]
)
def test_what_is_no_duration_took_no_time(duration, took):
    """And the longest that anything can take is three years."""
    result = tallies(attempt("failed", duration=duration))

    assert result.sums[SumKey("attempt", DAY, "sdlc", "build", "failed")] == ReportSum(1, took)


def test_durations_of_successes_fall_into_buckets_of_their_month():
    """A bucket is a fifth wide: 10 and 11 seconds are in one, 20 are four further."""
    result = tallies(*(attempt(duration=seconds) for seconds in (10.0, 11.0, 20.0)), attempt("failed", duration=5.0))

    assert sorted(numbers(result, "duration").values()) == [1, 2]
    assert {slot.day for slot in result.sums if slot.kind == "duration"} == {"2026-01-01"}
    assert reports_model.bucket_of(20_000) - reports_model.bucket_of(10_000) == 4
    assert reports_model.bucket_of(0) == 0
    assert reports_model.seconds_at(reports_model.bucket_of(10_000)) <= 10.0
    assert reports_model.seconds_at(reports_model.bucket_of(10_000) + 1) > 10.0


def test_failures_are_grouped_by_category_class_and_message_without_numbers():
    """The last of a group, by its end, is the one that is shown; messages are cut."""
    error = {"category": "transient", "klass": "network", "message": "port 1 is taken"}
    later = {**error, "message": "port 22 is taken"}
    result = tallies(
        attempt("failed", error=later, ended_at=f"{DAY}T10:00:00Z"),
        attempt("failed", error=error),
        attempt("failed", error={**error, "klass": "other"}),
        attempt("interrupted", error={"category": "interrupted", "message": "x" * 999}),
        attempt("failed"),
    )

    assert sorted(numbers(result, "failure").values()) == [1, 1, 1, 2]
    groups = {key.item: total for key, total in result.sums.items() if key.kind == "failure"}
    assert sorted(item.rpartition(":")[0] for item in groups) == ["interrupted", "transient", "transient", "unknown"]
    assert ReportSum(2, 0, f"{DAY}T10:00:00Z", "1a2b3c4d", "port 22 is taken") in groups.values()
    assert max(len(total.label) for total in groups.values()) == 300


def test_costs_are_kept_by_who_was_paid_in_whole_millionths():
    """What nobody knows is counted apart, and a moment that is none is passed over."""
    paid = attempt(report={"cost_usd": 0.1, "usage": {"provider": "anthropic", "tokens": {"input": 7}}})
    result = tallies(paid, paid, paid, attempt("failed", agent={"provider": "openai"}), paid.changed(ended_at="?"))

    assert result.cost == 300_000
    assert result.sums[SumKey("cost", DAY, "sdlc", "build", "anthropic")] == ReportSum(3, 300_000)
    assert numbers(result, "tokens") == {"anthropic": 21}
    assert numbers(result, "cost_unknown") == {"openai": 1}


@pytest.mark.parametrize(
    ("now", "since"), [((2026, 3, 31), "2026-01-01"), ((2026, 1, 1), "2025-11-01"), ((2026, 12, 5), "2026-10-01")]
)
def test_a_history_is_that_of_this_month_and_of_two_before_it(now, since):
    assert reports_model.history_since(datetime(*now, tzinfo=UTC)) == since


def test_a_history_is_read_off_the_buckets():
    of = reports_model.bucket_of
    history = reports_model.history_of("sdlc", "build", {of(1000): 90, of(8000): 9, of(64_000): 1})

    assert (history.workflow, history.phase, history.count) == ("sdlc", "build", 100)
    assert 0.8 < history.median < 1.2
    assert 8.0 <= history.p95 <= 9.6
    assert 64.0 <= history.longest <= 77.0
