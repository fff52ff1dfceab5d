"""Reading what attempts cost from documents, whatever is in them, and adding it up."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.costs import MOST_USD, entries_of, grouped, money

ENDED = "2026-01-31T09:00:00.000000Z"


def usage(cost=1.0, **more):
    return {"provider": "robots", "model": "robot-1", "tokens": {"input": 10}, "cost_usd": cost, **more}


def phases(*attempts, name="build"):
    return [{"name": name, "attempts": list(attempts)}]


def attempt(number=1, ended=ENDED, **more):
    return {"number": number, "status": "failed", "ended_at": ended, **more}


def entry(**more):
    (result,) = entries_of("1a2b3c4d", "full", phases(attempt(**more)))
    return result


# --- amounts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -1e-9, MOST_USD + 1, 10**400, True, "1", None, []], ids=str)
def test_anything_else_is_none(value):
    assert money(value) is None


# --- reading ---------------------------------------------------------------------------------------------------


def test_an_attempt_that_ended_is_one_entry_with_all_that_is_known():
    result = entry(report={"cost_usd": 0.5, "usage": usage(0.5, is_estimated=True)}, agent={"provider": "x"})

    assert (result.adw_id, result.workflow, result.phase, result.attempt) == ("1a2b3c4d", "full", "build", 1)
    assert (result.status, result.ended_at, result.day) == ("failed", ENDED, "2026-01-31")
    assert (result.provider, result.model, result.tokens) == ("robots", "robot-1", TokenUsage(input=10))
    assert (result.cost_usd, result.is_estimated, result.is_unknown) == (0.5, True, False)
    assert result.to_json()["tokens"] == {"input": 10}


@pytest.mark.parametrize(
    "more",
    [
        {"report": {"usage": usage(None)}},
        {"report": {"usage": usage(-1.0), "cost_usd": -1.0}},
        {"agent": {"provider": "robots"}},
        {"agent": {"provider": "robots"}, "report": {"summary": "killed"}},
    ],
    ids=["no-price", "impossible", "cut-off", "no-usage"],
)
def test_the_work_of_an_agent_without_a_cost_is_unknown_and_not_nothing(more):
    result = entry(**more)

    assert (result.cost_usd, result.is_unknown, result.is_estimated, result.provider) == (None, True, False, "robots")


@pytest.mark.parametrize(
    "more",
    [{}, {"report": {"summary": "ok"}}, {"report": None, "agent": None}, {"report": {"cost_usd": 1.0}, "ended": None}],
    ids=["bare", "without-cost", "empty", "running"],
)
def test_an_attempt_that_cost_nothing_or_still_runs_is_no_entry(more):
    assert list(entries_of("1a2b3c4d", "full", phases(attempt(**more)))) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "attempts", "report", "usage", "agent", "cost_usd", "tokens", "input", "ended_at", "number"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(json_values)
def test_a_document_of_another_tool_may_hold_anything(value):
    for item in entries_of("1a2b3c4d", "full", value):
        json.dumps(item.to_json())


# --- adding up -------------------------------------------------------------------------------------------------


def many():
    first = [
        attempt(1, report={"cost_usd": 0.1, "usage": usage(0.1)}),
        attempt(2, report={"cost_usd": 0.2, "usage": usage(0.2, is_estimated=True)}),
        attempt(3, ended="2026-02-01T00:00:00.000000Z", agent={"provider": "robots"}),
    ]
    second = [attempt(1, report={"usage": usage(7.0, is_subscription=True)}), attempt(2, report={"cost_usd": 4.0})]
    yield from entries_of("1a2b3c4d", "full", phases(*first))
    yield from entries_of("5e6f7a8b", "small", phases(*second, name="plan"))


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("phase", {"build": 0.3, "plan": 4.0}),
        ("day", {"2026-01-31": 4.3, "2026-02-01": 0.0}),
        ("provider", {"robots": 0.3, "unnamed": 4.0}),
        ("workflow", {"1a2b3c4d": 0.3, "5e6f7a8b": 4.0}),
    ],
)
def test_entries_are_added_up_by_what_is_asked_for(by, keys):
    lines, total = grouped(many(), by)

    assert {line.key: round(line.cost_usd, 9) for line in lines} == keys
    assert (round(total.cost_usd, 9), total.attempts, total.unknown, total.subscription) == (4.3, 5, 1, 1)
    assert total.is_estimated


def test_a_line_says_what_of_it_is_reckoned_unknown_or_paid_by_the_month():
    (build, plan), _ = grouped(many(), "phase")

    assert (build.is_estimated, build.unknown, build.subscription, build.attempts) == (True, 1, 0, 3)
    assert (plan.is_estimated, plan.unknown, plan.subscription, plan.attempts) == (False, 0, 1, 2)
    assert build.to_json()["unknown_attempts"] == 1
    assert (build.tokens.input, plan.tokens.input) == (20, 10)
