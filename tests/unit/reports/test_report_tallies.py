"""What a document adds to the sums of reports."""

from __future__ import annotations

import pytest

from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import Last, ReportSum, SumKey, tallies_of

DAY = "2026-01-31"
ENDED = f"{DAY}T09:00:00.000000Z"


def attempt(status: str = "succeeded", **fields):
    return {"number": 1, "status": status, "ended_at": ENDED, **fields}


def tallies(*attempts, name: str = "build", **fields):
    return tallies_of("1a2b3c4d", "sdlc", {"phases": [{"name": name, "attempts": list(attempts)}], **fields})


def numbers(found, kind: str) -> dict[str, int]:
    return {slot.item: total.number for slot, total in found.sums.items() if slot.kind == kind}


def test_a_document_adds_its_outcome_on_the_day_of_its_last_move_there():
    """
    A workflow that failed twice ended when it failed the second time.
    """
    history = [
        {"to": "failed", "timestamp": "2026-01-01T00:00:00Z"},
        {"to": "building", "timestamp": "2026-01-02T00:00:00Z"},
        {"to": "failed", "timestamp": "2026-01-03T00:00:00Z"},
        "torn",
    ]

    tallies = tallies_of("1a2b3c4d", "sdlc", {"current_state": "failed", "state_history": history})

    assert tallies.sums == {SumKey("outcome", "2026-01-03", "sdlc", "", "failed"): ReportSum(1)}
    assert tallies.outcome == "failed"


@pytest.mark.parametrize(
    ("fields", "days"),
    [
        ({"updated_at": ENDED}, {DAY}),
        ({"updated_at": "soon"}, set()),
        ({"updated_at": 7}, set()),
    ],
    ids=["the last change", "no moment", "no text"],
)
def test_without_a_history_the_last_change_is_the_end(fields, days):
    """
    What is no moment has no day, and is not counted.
    """
    tallies = tallies_of("1a2b3c4d", "sdlc", {"current_state": "completed", **fields})

    assert {slot.day for slot in tallies.sums} == days


@pytest.mark.parametrize("state", ["building", "paused", None, ["completed"], "moon"])
def test_a_workflow_that_is_not_over_has_no_outcome(state):
    """
    Neither has one whose state nobody knows.
    """
    tallies = tallies_of("1a2b3c4d", "sdlc", {"current_state": state, "updated_at": ENDED})

    assert (tallies.outcome, tallies.sums) == ("", {})


def test_attempts_until_a_success_are_those_of_its_round_that_count():
    """
    Those that were stopped or parked do not count, and a success begins anew.
    """
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
    """
    The number of different sums has a bound.
    """
    result = tallies(*[attempt("failed")] * 200, attempt("succeeded"))

    assert numbers(result, "needed") == {"99": 1}


def test_an_attempt_that_is_not_over_or_not_sound_is_passed_over():
    """
    One that runs counts towards the attempts of its round all the same.
    """
    result = tallies({"status": "running"}, {"status": "failed", "ended_at": "?"}, "torn", attempt("succeeded"))

    assert numbers(result, "attempt") == {"succeeded": 1}
    assert numbers(result, "needed") == {"2": 1}
    assert tallies_of("1a2b3c4d", "sdlc", {"phases": "torn"}).sums == {}
    assert tallies_of("1a2b3c4d", "sdlc", {"phases": [{"attempts": [attempt("odd")]}]}).attempts == 1


@pytest.mark.parametrize(
    ("duration", "took"),
    [(1.5, 1500), (0, 0), (-1.0, 0), (True, 0), ("long", 0), (1e300, 10**11), (float("nan"), 0)],
)
def test_what_is_no_duration_took_no_time(duration, took):
    """
    And the longest that anything can take is three years.
    """
    result = tallies(attempt("failed", duration=duration))

    assert result.sums[SumKey("attempt", DAY, "sdlc", "build", "failed")] == ReportSum(1, took)


def test_durations_of_successes_fall_into_buckets_of_their_month():
    """
    A bucket is a fifth wide: 10 and 11 seconds are in one, 20 are four further.
    """
    result = tallies(*(attempt(duration=seconds) for seconds in (10.0, 11.0, 20.0)), attempt("failed", duration=5.0))

    assert sorted(numbers(result, "duration").values()) == [1, 2]
    assert {slot.day for slot in result.sums if slot.kind == "duration"} == {"2026-01-01"}
    assert reports_model.bucket_of(20_000) - reports_model.bucket_of(10_000) == 4
    assert reports_model.bucket_of(0) == 0
    assert reports_model.seconds_at(reports_model.bucket_of(10_000)) <= 10.0
    assert reports_model.seconds_at(reports_model.bucket_of(10_000) + 1) > 10.0


def test_failures_are_grouped_by_category_class_and_message_without_numbers():
    """
    The last of a group, by its end, is the one that is shown; messages are cut.
    """
    error = {"category": "transient", "klass": "network", "message": "port 1 is taken"}
    later = {**error, "message": "port 22 is taken"}
    result = tallies(
        attempt("failed", error=later, ended_at=f"{DAY}T10:00:00Z"),
        attempt("failed", error=error),
        attempt("failed", error={**error, "klass": "other"}),
        attempt("interrupted", error={"category": "interrupted", "message": "x" * 999}),
        attempt("failed", error="torn"),
    )

    assert sorted(numbers(result, "failure").values()) == [1, 1, 1, 2]
    categories = sorted(reports_model.category_of(slot.item) for slot in result.lasts)
    assert categories == ["interrupted", "transient", "transient", "unknown"]
    assert Last(f"{DAY}T10:00:00Z", "1a2b3c4d", "port 22 is taken") in result.lasts.values()
    assert max(len(last.label) for last in result.lasts.values()) == 300


def test_costs_are_kept_by_who_was_paid_in_whole_millionths():
    """
    What nobody knows is counted apart, and a moment that is none is passed over.
    """
    paid = attempt(report={"cost_usd": 0.1, "usage": {"provider": "anthropic", "tokens": {"input": 7}}})
    result = tallies(paid, paid, paid, attempt("failed", agent={"provider": "openai"}), {**paid, "ended_at": "?"})

    assert result.cost == 300_000
    assert result.sums[SumKey("cost", DAY, "sdlc", "build", "anthropic")] == ReportSum(3, 300_000)
    assert numbers(result, "tokens") == {"anthropic": 21}
    assert numbers(result, "cost_unknown") == {"openai": 1}


def test_the_difference_is_what_has_to_be_added():
    """
    Adding it to what was makes what is, also where something is gone.
    """
    same, gone, grown, new = (SumKey("cost", DAY, name) for name in ("same", "gone", "grown", "new"))
    before = {same: ReportSum(1, 1), gone: ReportSum(2, 5), grown: ReportSum(1, 1)}
    after = {same: ReportSum(1, 1), grown: ReportSum(3, 2), new: ReportSum(1)}

    assert reports_model.difference(before, after) == {
        gone: ReportSum(-2, -5),
        grown: ReportSum(2, 1),
        new: ReportSum(1),
    }
    assert reports_model.difference(after, after) == {}


def test_sums_come_back_from_their_text():
    """
    Whatever a phase is called.
    """
    sums = {
        SumKey("attempt", DAY, "sdlc", 'a "b" \x00 ü', "failed"): ReportSum(3, 4),
        SumKey("outcome", DAY, "x"): ReportSum(-1),
    }

    assert reports_model.from_text(reports_model.to_text(sums)) == sums
    assert reports_model.from_text(None) == {}
