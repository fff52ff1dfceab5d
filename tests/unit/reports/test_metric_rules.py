"""What is counted of events: each by what it tells, and labels that nobody can make without end."""

from __future__ import annotations

import json
import math

import pytest

from adws.adw_modules.events import EVENT_TYPES
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports.metrics import (
    BY_NAME,
    DETAILED,
    MOST_VALUES,
    Tally,
    bound_of,
    derived,
    labels_of,
)

COST = {"cost_usd": 0.5, "provider": "robots", "model": "big-1", "tokens": {"input": 20, "cache_read": 3, "output": 0}}


def fact(event_type, data=None, *, node="build", duration=None):
    return (event_type, node, duration, data if isinstance(data, str) else json.dumps(data or {}))


def added(*facts, known=None):
    tally = Tally(known or {})
    for one in facts:
        tally.add(*one)

    return tally.added


def test_every_event_counts_by_its_type_and_unknown_types_count_as_one():
    tally = Tally({})

    tally.add_types([("attempt_started", 3), ("state_changed", 2), ("of_a_later_version", 1), ("made_up", 4)])
    tally.add_types([("attempt_started", 1)])

    assert tally.added == {"adw_events_total": {("attempt_started",): 4.0, ("state_changed",): 2.0, ("other",): 5.0}}


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "interrupted", "suspended", "parked"])
def test_an_attempt_that_ended_counts_by_phase_and_outcome(outcome):
    result = added(fact(f"attempt_{outcome}", duration=42.0), fact(f"attempt_{outcome}", duration=None))

    assert result["adw_attempts_total"] == {("build", outcome): 2.0}
    assert result["adw_attempt_duration_seconds_bucket"] == {("build", outcome, "60.0"): 1.0}
    assert result["adw_attempt_duration_seconds_sum"] == {("build", outcome): 42.0}


def test_the_time_of_a_phase_is_that_from_its_first_attempt_on():
    result = added(
        fact("phase_completed", duration=3600.0), fact("phase_failed", duration=90000.0), fact("phase_failed")
    )

    assert result == {
        "adw_phase_duration_seconds_bucket": {("build", "completed", "3600.0"): 1.0, ("build", "failed", "+Inf"): 1.0},
        "adw_phase_duration_seconds_sum": {("build", "completed"): 3600.0, ("build", "failed"): 90000.0},
    }


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, None, 1e12], ids=str)
def test_a_time_or_a_cost_that_is_none_is_not_added_up(value):
    assert list(added(fact("cost_added", {**COST, "cost_usd": value}))) == ["adw_tokens_total"]
    if value != 1e12:
        assert list(added(fact("attempt_failed", duration=value))) == ["adw_attempts_total"]


def test_failures_that_are_tried_again_count_by_category():
    again, over = {"retry": {"again": True}}, {"retry": {"again": False}}
    result = added(
        fact("retry_scheduled", {"category": "rate_limit"}),
        fact("retry_scheduled", {"category": "a sentence of somebody"}),
        fact("retry_scheduled", {"category": None}),
        fact("action_failed", {**again, "error": {"category": "transient"}}),
        fact("action_failed", {**again, "error": {"category": "interrupted"}}),
        fact("action_failed", {**again, "error": "broken"}),
        fact("action_failed", {**over, "error": {"category": "fatal"}}),
        fact("action_failed", {"error": {"category": "fatal"}}),
    )

    assert result == {
        "adw_retries_total": {
            ("phase", "rate_limit"): 1.0,
            ("phase", "other"): 2.0,
            ("call", "transient"): 1.0,
            ("call", "interrupted"): 1.0,
            ("call", "other"): 1.0,
        }
    }


def test_takeovers_and_moves_count_by_words_that_are_known():
    result = added(
        fact("lease_taken_over", {"verdict": "dead"}),
        fact("lease_taken_over", {"verdict": ["dead"]}),
        fact("state_changed", {"from": "planning", "to": "building"}),
        fact("state_changed", {"to": "nowhere"}),
    )

    assert result == {
        "adw_lease_takeovers_total": {("dead",): 1.0, ("other",): 1.0},
        "adw_transitions_total": {("building",): 1.0, ("other",): 1.0},
    }


def test_what_was_spent_counts_by_who_is_paid_for_what():
    result = added(fact("cost_added", COST), fact("cost_added", COST), fact("cost_added", {"cost_usd": 0.25}))

    assert result["adw_cost_usd_total"] == {("robots", "big-1"): 1.0, ("unnamed", "unnamed"): 0.25}
    assert result["adw_tokens_total"] == {("robots", "big-1", "input"): 40.0, ("robots", "big-1", "cache_read"): 6.0}


@pytest.mark.parametrize("data", ["", "no json", "[]", "null", '{"tokens": 5, "cost_usd": []}'])
def test_an_event_that_somebody_changed_by_hand_stops_nothing(data):
    for event_type in sorted(DETAILED):
        added(fact(event_type, data, node=None))


@pytest.mark.parametrize("name", ["", "a b", "x" * 81, "\n", "-x", "ﬀ", '"}', None, 5], ids=repr)
def test_a_name_of_a_strange_form_is_another(name):
    assert added(fact("attempt_failed", node=name))["adw_attempts_total"] == {("other", "failed"): 1.0}
    assert added(fact("cost_added", {**COST, "model": name or "\n"}))["adw_cost_usd_total"] == {
        ("robots", "other"): 0.5
    }


def test_of_very_many_names_the_first_are_told_apart():
    most = MOST_VALUES["model"]
    result = added(*(fact("cost_added", {**COST, "model": f"m{number}"}) for number in range(most + 5)))
    costs = result["adw_cost_usd_total"]

    assert len(costs) == most + 1
    assert costs["robots", "other"] == 2.5
    assert costs["robots", "m0"] == 0.5


def test_names_that_were_counted_before_are_told_apart_and_take_their_place():
    most = MOST_VALUES["phase"]
    known = {
        "adw_attempts_total": {(f"p{number}", "failed"): 1.0 for number in range(most - 1)}
        | {("other", "failed"): 9.0},
        "adw_attempt_duration_seconds_bucket": {("p0", "failed", "1.0"): 1.0},
        "adw_runs_recovered_total": {("dead", "stale", "requeue"): 1.0},
    }

    result = added(*(fact("attempt_failed", node=name) for name in ("new", "p3", "newer")), known=known)

    assert result["adw_attempts_total"] == {("new", "failed"): 1.0, ("p3", "failed"): 1.0, ("other", "failed"): 1.0}


def test_steps_iterations_and_calls_follow_from_the_events():
    result = derived({("iterator_completed",): 2.0, ("action_failed",): 7.0, ("iteration_cancelled",): 1.0})

    assert result["adw_executions_total"] == {("completed",): 2.0, ("failed",): 0.0, ("cancelled",): 0.0}
    assert result["adw_iterations_total"] == {("completed",): 0.0, ("failed",): 0.0, ("cancelled",): 1.0}
    assert result["adw_calls_total"] == {("completed",): 0.0, ("failed",): 7.0, ("suspended",): 0.0}


def test_all_that_is_looked_at_are_events_there_are():
    looked_at = {event_type for types in metrics.OF_EVENTS.values() for event_type in types}

    assert looked_at | DETAILED <= EVENT_TYPES.keys()
    assert metrics.OF_EVENTS.keys() <= BY_NAME.keys()


def test_the_labels_of_a_counter_are_those_of_its_metric():
    assert labels_of("adw_tokens_total") == ("provider", "model", "type")
    assert labels_of("adw_phase_duration_seconds_bucket") == ("phase", "outcome", "le")
    assert labels_of("adw_phase_duration_seconds_sum") == ("phase", "outcome")
    assert labels_of("anything else") == ()


def test_a_value_on_a_bound_is_below_it():
    name = "adw_attempt_duration_seconds"

    assert [bound_of(name, seconds) for seconds in (0.0, 1.0, 1.1, 14400.0, 14400.1)] == [
        "1.0",
        "1.0",
        "2.5",
        "14400.0",
        "+Inf",
    ]
