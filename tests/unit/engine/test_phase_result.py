"""What a phase gives back is one JSON object, or the attempt failed."""

from __future__ import annotations

import math

import pytest

from adws.adw_modules.engine.runner_command import MAX_RESULT_BYTES, check_result, parse_result, report_of
from adws.adw_modules.errors import RunFailed


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff{}", "not JSON"),
        (b"[]", "is a list"),
        (b'"x"', "is a text"),
        (b"null", "is null"),
        (b"true", "is true or false"),
        (b"3", "is a number"),
        (b'{"n": NaN}', "NaN"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MAX_RESULT_BYTES + 1), "the limit"),
    ],
)
def test_everything_else_fails_the_attempt(payload, words):
    with pytest.raises(RunFailed, match=words) as caught:
        parse_result(payload)

    assert caught.value.run.subtype == "bad_output"


@pytest.mark.parametrize(
    "value",
    [3, "text", [1], {"a": object()}, {"a": math.nan}, {1: "a"}, {"a": (1, 2)}, {"a": {1, 2}}],
    ids=["number", "text", "list", "object", "nan", "number-as-key", "tuple", "set"],
)
def test_a_function_may_not_give_back_what_json_would_change(value):
    with pytest.raises(RunFailed):
        check_result(value)


def test_a_result_that_contains_itself_is_refused():
    value: dict[str, object] = {}
    value["me"] = value

    with pytest.raises(RunFailed):
        check_result(value)


def test_rework_summary_and_cost_are_taken_over():
    report = report_of({"rework": True, "summary": "two lines\nof it", "cost_usd": 2}, summary="else")

    assert (report.ok, report.wants_rework, report.summary) == (True, True, "two lines")
    assert report.cost_usd == 2.0


@pytest.mark.parametrize(
    "result",
    [
        {"rework": "yes"},
        {"rework": 1},
        {"summary": 3},
        {"cost_usd": "3"},
        {"cost_usd": True},
        {"cost_usd": -1},
        {"cost_usd": 1e999},
    ],
)
def test_what_they_may_not_be_fails_the_attempt(result):
    with pytest.raises(RunFailed, match="must be"):
        report_of(result)
