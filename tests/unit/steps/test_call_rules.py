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


def rule(kind, **fields):
    return RetryRule(**{"kind": kind, "base_seconds": 1.0, "strategy": "fixed", **fields})


AGAIN = {"again": True, "rule": "on_error", "page": 1, "after_seconds": 2.0, "call": {"url": "u"}, "max_attempts": 3}
INTERRUPTED = {"again": True, "rule": "interrupted", "page": 1, "after_seconds": 0.0, "call": {"url": "u"}}
OFTEN = rule("on_error", max_attempts=99, max_same_failures=3)
NOT_FOUND = rule("on_error", when="error.status == 404", base_seconds=8.0)
BROKEN = rule("on_error", when="error.status == 500", base_seconds=7.0)
ANY = rule("on_error", base_seconds=9.0)


@pytest.mark.parametrize(
    ("rules", "row", "report", "expected", "words"),
    [
        ((), {}, well(), {}, ""),
        ((), {}, badly(), {"again": False}, "the line is dead"),
        ((), {}, badly({}), {"again": False}, "the call failed"),
        ((), {"call": {"url": "u"}}, None, INTERRUPTED, ""),
        ((), {"interruptions": MAX_INTERRUPTIONS - 1}, None, {"again": True}, ""),
        ((), {"interruptions": MAX_INTERRUPTIONS}, None, {"again": False}, "6 workers vanished while they made this"),
        ((ON_ERROR,), {"call": {"url": "u"}}, badly(), AGAIN, ""),
        ((ON_ERROR,), {"same_call": 3}, badly(), {"again": False, "sequence": "exhausted"}, "3 of 3"),
        ((ON_ERROR,), {}, badly(FATAL), {"again": False, "sequence": "failed"}, ""),
        ((ON_ERROR,), {}, badly({"message": "odd"}), {"again": False}, ""),
        ((NOT_FOUND,), {}, badly(FATAL), {"again": True}, ""),
        ((NOT_FOUND,), {}, badly({**FATAL, "status": 500}), {"sequence": "failed"}, ""),
        ((PAGED, BROKEN, NOT_FOUND, ANY), {}, badly(FATAL), {"after_seconds": 8.0}, ""),
        ((PAGED, BROKEN, NOT_FOUND, ANY), {}, badly({**TRANSIENT, "status": 1}), {"after_seconds": 9.0}, ""),
        ((OFTEN,), {"fingerprint": "dead", "same_failures": 2, "same_call": 3}, badly(), {}, "3 times in a row"),
        ((ON_ERROR,), {"same_call": 3}, None, {"rule": "interrupted"}, ""),
        ((ON_ERROR,), {"same_call": 5, "interruptions": 3}, badly(), {"again": True}, ""),
        ((ON_ERROR,), {"same_call": 5, "interruptions": 2}, badly(), {"sequence": "exhausted"}, ""),
        ((rule("on_error", when="error.no.such"),), {}, badly(), {"again": False, "sequence": "failed"}, "no"),
        ((ON_ERROR,), {}, replace(badly(), attempt_number=99), {"again": True}, ""),
        ((PAGED,), {"page": 3}, well({"next": None}), {"again": False, "sequence": "completed"}, ""),
        ((ON_ERROR,), {}, well(), {"again": False, "sequence": "completed"}, ""),
        ((PAGED,), {"page": 4}, well({"next": "/5"}), {"sequence": "completed", "is_cut": True}, "4 of 4 calls"),
        ((replace(PAGED, on_limit="fail"),), {"page": 4}, well({"next": "/5"}), {"sequence": "exhausted"}, "4 of 4"),
        ((PAGED,), {}, well({}), {"again": False, "sequence": "failed"}, "next"),
        (
            (rule("on_success", when="true", collect="append", merge_path="data"),),
            {},
            well({"items": []}),
            {"sequence": "failed"},
            "data",
        ),
        (
            (rule("on_success", when="response.data|length == 100 and page == 1", next_call={"url": "/2"}),),
            {},
            well({"data": ["x" * 1000] * 100}),
            {"again": True},
            "",
        ),
        (
            (rule("on_success", when="true", next_call={"params": {"page": "{{ page + 1 }}"}}),),
            {"page": 2, "call": {"url": "/there", "params": {"size": 10, "page": 2}}},
            well(),
            {"call": {"url": "/there", "params": {"size": 10, "page": 3}}},
            "",
        ),
    ],
)
def test_the_first_rule_that_matches_decides_what_follows_from_a_call(rules, row, report, expected, words):
    result = judged(step(*rules), facts(**row), report).facts

    assert result.items() >= expected.items()
    assert words in result.get("reason", "")
    assert ("is_cut" in result) == ("is_cut" in expected)
    if not rules and report is not None and report.ok:
        assert result == {}


def test_waits_have_a_cap_and_vary_within_it():
    capped = RetryRule(kind="on_error", max_attempts=99, base_seconds=10.0, max_seconds=15.0)
    waits = {
        judge(step(capped), facts(same_call=9), badly(), dict, now=START, random=random).facts["after_seconds"]
        for random in (0.0, 0.5, 0.999)
    }

    assert len(waits) == 3
    assert max(waits) <= 15.0


def test_the_same_failure_is_counted_until_another_one_comes():
    row = facts(fingerprint="dead", same_failures=2, same_call=3)

    same, other = judged(step(OFTEN), row, badly()), judged(step(OFTEN), row, badly(fingerprint="another"))

    assert (same.facts["sequence"], same.same_failures) == ("exhausted", 3)
    assert (other.facts["again"], other.same_failures, other.fingerprint) == (True, 1, "another")


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


def test_a_call_that_was_asked_for_before_is_no_progress():
    cursor = step(
        rule("on_success", when="true", max_attempts=9, next_call={"params": {"cursor": "{{ response.cursor }}"}})
    )
    first = judged(cursor, facts(), well({"cursor": "a"}))
    second = judged(cursor, facts(page=2, marks=first.marks), well({"cursor": "b"}))

    again = judged(cursor, facts(page=3, marks=second.marks), well({"cursor": "a"}))

    assert (again.facts["again"], again.facts["sequence"]) == (False, "failed")
    assert "no progress" in again.facts["reason"]


@pytest.mark.parametrize(("value", "again"), [(5, True), (0, False), ([1], True), ([], False), (None, False)])
def test_a_condition_is_true_as_values_are_and_not_as_words(value, again):
    asks = rule("on_success", when="{{ response.more }}", next_call={"url": "/2"})

    assert judged(step(asks), facts(), well({"more": value})).facts["again"] is again


def test_of_a_page_the_part_is_kept_that_is_collected():
    collects = rule("on_success", when="false", collect="append", merge_path="data")

    assert judged(step(collects), facts(), well({"data": [1]})).part == [1]
    assert collecting(step(ON_ERROR)) is None
    assert collecting(step(ON_ERROR, collects)) is collects


# --- inputs ----------------------------------------------------------------------------------------------------


def assignment(**fields):
    return Assignment(execution_id="e", index=0, element=None, attempt_number=1, page=1, **fields)


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
    [
        *("https://evil.example.com/2", "http://api.example.com/2", "https://api.example.com:444/2"),
        *("//evil.example.com", "https://[broken", "https://api.example.com:x/2"),
    ],
)
def test_a_response_cannot_send_credentials_to_another_host(asked):
    spec = step(inputs={"url": "https://api.example.com/1", "headers_env": {"Authorization": "TOKEN"}})

    with pytest.raises(ExpressionError, match="credentials go to no other host"):
        inputs_of(spec, assignment(call={"url": asked}), {})
