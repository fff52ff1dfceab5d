"""What follows from one call of a step."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.steps.call_policy import MAX_INTERRUPTIONS, collecting, inputs_of, judge
from adws.adw_modules.steps.model import Assignment, CallReport, Iteration
from adws.adw_modules.workflow.model import RetryRule, StepSpec
from adws.testing import START

TRANSIENT = {"type": "OSError", "category": "transient", "recoverable": True, "message": "the line is dead"}
FATAL = {"type": "KeyError", "category": "fatal", "recoverable": False, "message": "no such key", "status": 404}
ON_ERROR = RetryRule(kind="on_error", max_attempts=3, base_seconds=2.0, strategy="fixed")
PAGED = RetryRule(
    kind="on_success",
    when="response.next is not none",
    max_attempts=4,
    base_seconds=0.0,
    next_call={"url": "{{ response.next }}", "params": {"page": "{{ page + 1 }}"}},
)


def step(*rules, **fields):
    return StepSpec(**{"name": "fetch", "tool": "http", "retry": rules, **fields})


def facts(*, call=None, **fields):
    return Iteration(**{"index": 0, "attempts": 1, "same_call": 1, "call": json.dumps(call or {}), **fields})


def well(result=None):
    return CallReport(index=0, attempt_number=1, ok=True, result=result)


def badly(error=TRANSIENT, fingerprint="dead"):
    return CallReport(index=0, attempt_number=1, ok=False, error=error, fingerprint=fingerprint)


def judged(spec, row, report, values=None):
    return judge(spec, row, report, lambda: values or {}, now=START)


# --- without rules ---------------------------------------------------------------------------------------------


def test_a_call_that_ended_well_is_all_there_is():
    assert judged(step(), facts(), well()).facts == {}


def test_a_failed_call_fails_without_a_rule():
    assert judged(step(), facts(), badly()).facts == {"again": False, "reason": "the line is dead"}


def test_a_failure_without_a_word_is_still_a_failure():
    assert judged(step(), facts(), badly({})).facts["reason"] == "the call failed"


@pytest.mark.parametrize("interruptions", range(MAX_INTERRUPTIONS))
def test_a_call_whose_worker_vanished_is_made_again(interruptions):
    row = facts(interruptions=interruptions, call={"url": "u"})

    value = judged(step(), row, None).facts

    assert value == {"again": True, "rule": "interrupted", "page": 1, "after_seconds": 0.0, "call": {"url": "u"}}


def test_a_call_that_took_too_many_workers_with_it_fails():
    value = judged(step(), facts(interruptions=MAX_INTERRUPTIONS), None).facts

    assert value == {"again": False, "reason": "6 workers vanished while they made this call"}


# --- on_error --------------------------------------------------------------------------------------------------


def test_a_failure_that_may_pass_is_tried_again_after_the_wait_of_the_rule():
    value = judged(step(ON_ERROR), facts(call={"url": "u"}), badly()).facts

    assert value == {
        "again": True,
        "rule": "on_error",
        "page": 1,
        "after_seconds": 2.0,
        "call": {"url": "u"},
        "max_attempts": 3,
    }


def test_waits_have_a_cap_and_vary_within_it():
    rule = RetryRule(kind="on_error", max_attempts=99, base_seconds=10.0, max_seconds=15.0)
    waits = {
        judge(step(rule), facts(same_call=9), badly(), dict, now=START, random=random).facts["after_seconds"]
        for random in (0.0, 0.5, 0.999)
    }

    assert len(waits) == 3
    assert max(waits) <= 15.0


def test_the_calls_of_a_rule_are_used_up():
    value = judged(step(ON_ERROR), facts(same_call=3), badly()).facts

    assert (value["again"], value["sequence"]) == (False, "exhausted")
    assert "3 of 3" in value["reason"]


def test_what_trying_again_cannot_help_is_not_tried_again():
    value = judged(step(ON_ERROR), facts(), badly(FATAL)).facts

    assert (value["again"], value["sequence"]) == (False, "failed")


def test_a_condition_that_asks_for_a_failure_has_it_tried_again_whatever_it_is():
    rule = RetryRule(kind="on_error", when="error.status == 404", base_seconds=1.0, strategy="fixed")

    assert judged(step(rule), facts(), badly(FATAL)).facts["again"] is True
    assert judged(step(rule), facts(), badly({**FATAL, "status": 500})).facts["sequence"] == "failed"


def test_the_first_rule_that_matches_decides():
    first = RetryRule(kind="on_error", when="error.status == 500", base_seconds=7.0, strategy="fixed")
    second = RetryRule(kind="on_error", when="error.status == 404", base_seconds=8.0, strategy="fixed")
    third = RetryRule(kind="on_error", base_seconds=9.0, strategy="fixed")
    spec = step(PAGED, first, second, third)

    assert judged(spec, facts(), badly(FATAL)).facts["after_seconds"] == 8.0
    assert judged(spec, facts(), badly({**TRANSIENT, "status": 1})).facts["after_seconds"] == 9.0


def test_an_error_without_a_category_is_not_tried_again():
    assert judged(step(ON_ERROR), facts(), badly({"message": "odd"})).facts["again"] is False


def test_the_same_failure_too_often_in_a_row_ends_the_sequence():
    rule = RetryRule(kind="on_error", max_attempts=99, max_same_failures=3)
    row = facts(fingerprint="dead", same_failures=2, same_call=3)

    result = judged(step(rule), row, badly())

    assert (result.facts["sequence"], result.same_failures) == ("exhausted", 3)
    assert "3 times in a row" in result.facts["reason"]
    other = judged(step(rule), row, badly(fingerprint="another"))
    assert (other.facts["again"], other.same_failures, other.fingerprint) == (True, 1, "another")


def test_a_worker_that_vanished_uses_up_no_rule():
    assert judged(step(ON_ERROR), facts(same_call=3), None).facts["rule"] == "interrupted"
    assert judged(step(ON_ERROR), facts(same_call=5, interruptions=3), badly()).facts["again"] is True
    assert judged(step(ON_ERROR), facts(same_call=5, interruptions=2), badly()).facts["sequence"] == "exhausted"


def test_a_condition_that_cannot_be_computed_is_a_failure_and_no_silent_end():
    value = judged(step(RetryRule(kind="on_error", when="error.nothing.here")), facts(), badly()).facts

    assert (value["again"], value["sequence"]) == (False, "failed")
    assert "nothing" in value["reason"]


def test_the_row_counts_and_not_the_report():
    report = CallReport(index=0, attempt_number=99, ok=False, error=TRANSIENT, fingerprint="x")

    assert judged(step(ON_ERROR), facts(same_call=1), report).facts["again"] is True


# --- on_success ------------------------------------------------------------------------------------------------


def test_the_next_page_is_called_for_with_every_key_of_next_call():
    result = judged(step(PAGED), facts(), well({"next": "/2"}))

    assert result.facts == {
        "again": True,
        "rule": "on_success",
        "page": 2,
        "after_seconds": 0.0,
        "call": {"url": "/2", "params": {"page": 2}},
        "max_attempts": 4,
    }
    assert (result.part, result.keeps_part) == ({"next": "/2"}, True)


def test_what_a_page_asked_for_stays_unless_the_next_one_changes_it():
    rule = RetryRule(kind="on_success", when="true", next_call={"params": {"page": "{{ page + 1 }}"}})
    row = facts(page=2, call={"url": "/there", "params": {"size": 10, "page": 2}})

    assert judged(step(rule), row, well()).facts["call"] == {"url": "/there", "params": {"size": 10, "page": 3}}


def test_the_last_page_ends_the_sequence():
    assert judged(step(PAGED), facts(page=3), well({"next": None})).facts == {"again": False, "sequence": "completed"}


def test_a_success_with_only_rules_for_failures_ends_the_sequence():
    assert judged(step(ON_ERROR), facts(), well()).facts == {"again": False, "sequence": "completed"}


def test_pages_without_end_are_handed_on_as_cut():
    result = judged(step(PAGED), facts(page=4), well({"next": "/5"}))

    assert (result.facts["again"], result.facts["sequence"], result.facts["is_cut"]) == (False, "completed", True)
    assert "4 of 4 calls are made" in result.facts["reason"]
    assert result.keeps_part


def test_pages_without_end_are_exhausted_when_the_limit_is_a_failure():
    value = judged(step(replace(PAGED, on_limit="fail")), facts(page=4), well({"next": "/5"})).facts

    assert (value["again"], value["sequence"]) == (False, "exhausted")
    assert "is_cut" not in value


def test_a_call_that_was_asked_for_before_is_no_progress():
    rule = RetryRule(
        kind="on_success", when="true", max_attempts=9, next_call={"params": {"cursor": "{{ response.cursor }}"}}
    )
    first = judged(step(rule), facts(), well({"cursor": "a"}))
    second = judged(step(rule), facts(page=2, marks=first.marks), well({"cursor": "b"}))

    again = judged(step(rule), facts(page=3, marks=second.marks), well({"cursor": "a"}))

    assert (again.facts["again"], again.facts["sequence"]) == (False, "failed")
    assert "no progress" in again.facts["reason"]


def test_polling_makes_the_same_call_and_waits_longer_each_time():
    rule = RetryRule(kind="on_success", when="response.state != 'done'", max_attempts=9, base_seconds=1.0)
    waits = [judged(step(rule), facts(page=page), well({"state": "busy"})).facts["after_seconds"] for page in (1, 2, 3)]

    assert waits == [1.0, 2.0, 4.0]


def test_conditions_see_the_whole_response():
    long = {"data": ["x" * 1000] * 100, "next": None}
    rule = RetryRule(kind="on_success", when="response.data|length == 100 and page == 1", next_call={"url": "/2"})

    assert judged(step(rule), facts(), well(long)).facts["again"] is True


def test_conditions_know_the_element_and_the_rest():
    rule = RetryRule(kind="on_success", when="item.more and vars.go", next_call={"url": "{{ item.url }}"})

    result = judged(step(rule), facts(), well(), {"item": {"more": True, "url": "/x"}, "vars": {"go": True}})

    assert result.facts["call"] == {"url": "/x"}


@pytest.mark.parametrize(("value", "again"), [(5, True), (0, False), ([1], True), ([], False), (None, False)])
def test_a_condition_is_true_as_values_are_and_not_as_words(value, again):
    rule = RetryRule(kind="on_success", when="{{ response.more }}", next_call={"url": "/2"})

    assert judged(step(rule), facts(), well({"more": value})).facts["again"] is again


def test_an_undefined_name_is_a_failure_and_no_silent_end():
    value = judged(step(PAGED), facts(), well({})).facts

    assert (value["again"], value["sequence"]) == (False, "failed")
    assert "next" in value["reason"]


def test_a_page_without_what_is_collected_is_a_failure():
    rule = RetryRule(kind="on_success", when="true", collect="append", merge_path="data")

    value = judged(step(rule), facts(), well({"items": []})).facts

    assert value["sequence"] == "failed"
    assert "data" in value["reason"]


def test_of_a_page_the_part_is_kept_that_is_collected():
    rule = RetryRule(kind="on_success", when="false", collect="append", merge_path="data")

    assert judged(step(rule), facts(), well({"data": [1]})).part == [1]
    assert collecting(step(ON_ERROR)) is None
    assert collecting(step(ON_ERROR, rule)) is rule


# --- inputs ----------------------------------------------------------------------------------------------------


def assignment(**fields):
    return Assignment(
        **{
            "execution_id": "e",
            "index": 0,
            "element": None,
            "attempt_number": 1,
            "page": 1,
            **fields,
        }
    )


def test_inputs_are_filled_in_and_code_is_not():
    spec = step(inputs={"url": "{{ vars.host }}/x", "code": "{{ not a template }}", "params": {"n": "{{ 1 + 1 }}"}})

    inputs = inputs_of(spec, assignment(), {"vars": {"host": "h"}})

    assert inputs == {"url": "h/x", "code": "{{ not a template }}", "params": {"n": 2}}


def test_what_came_in_a_response_is_never_read_as_a_template():
    spec = step(inputs={"url": "{{ vars.host }}", "params": {"size": 5}})
    asked = {"url": "{{ vars.secret }}", "params": {"page": 2}}

    inputs = inputs_of(spec, assignment(call=asked), {"vars": {"host": "h", "secret": "s"}})

    assert inputs == {"url": "{{ vars.secret }}", "params": {"size": 5, "page": 2}}


@pytest.mark.parametrize(
    "asked",
    ["https://evil.example.com/2", "http://api.example.com/2", "https://api.example.com:444/2", "//evil.example.com"],
)
def test_a_response_cannot_send_credentials_to_another_host(asked):
    spec = step(inputs={"url": "https://api.example.com/1", "headers_env": {"Authorization": "TOKEN"}})

    with pytest.raises(ExpressionError, match="credentials go to no other host"):
        inputs_of(spec, assignment(call={"url": asked}), {})


def test_a_next_page_of_the_same_host_keeps_its_credentials():
    spec = step(inputs={"url": "https://api.example.com/1", "headers_env": {"Authorization": "TOKEN"}})

    inputs = inputs_of(spec, assignment(call={"url": "https://API.example.com:443/2"}), {})

    assert inputs == {"url": "https://API.example.com:443/2", "headers_env": {"Authorization": "TOKEN"}}


def test_without_credentials_the_next_page_may_be_anywhere():
    spec = step(inputs={"url": "https://api.example.com/1"})

    assert inputs_of(spec, assignment(call={"url": "https://other.example.com"}), {})["url"].endswith(
        "other.example.com"
    )


def test_an_address_that_is_none_is_said_to_be_none():
    spec = step(inputs={"url": "https://api.example.com/1", "headers_env": {"Authorization": "TOKEN"}})

    with pytest.raises(ExpressionError, match="is no address"):
        inputs_of(spec, assignment(call={"url": "https://[broken"}), {})
