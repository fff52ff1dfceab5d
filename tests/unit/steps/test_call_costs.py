"""What calls of agents used, added up."""

from __future__ import annotations

from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.steps import iteration_worker


def _meta(**changes) -> dict:
    usage = Usage(provider="anthropic", model="m", tokens=TokenUsage(input=5, output=1), cost_usd=0.5)
    return {"call": {"usage": {**usage.to_json(), **changes}}}


def test_calls_without_an_agent_used_nothing_and_tokens_that_are_none_count_as_none():
    metas = [{}, {"call": {"status": 200}}, {"call": None}, {"call": {"usage": "x"}}]

    assert iteration_worker.used(metas) is None
    assert iteration_worker.spent(metas) == 0.0
    assert iteration_worker.used([_meta(tokens="many")]).tokens.total == 0


def test_one_call_used_what_it_says():
    assert iteration_worker.used([_meta()]) == Usage(
        provider="anthropic", model="m", tokens=TokenUsage(input=5, output=1), cost_usd=0.5
    )


def test_several_calls_used_the_sum():
    result = iteration_worker.used([_meta(), _meta(cost_usd=0.25, is_estimated=True), {}])

    assert result is not None
    assert (result.cost_usd, result.is_estimated, result.tokens) == (0.75, True, TokenUsage(input=10, output=2))


def test_what_nobody_knows_the_cost_of_leaves_the_sum_of_the_others():
    assert iteration_worker.spent([_meta(cost_usd=None), _meta()]) == 0.5
    assert iteration_worker.spent([_meta(cost_usd=float("nan")), _meta(cost_usd=-1)]) == 0.0


def test_what_is_paid_by_the_month_counts_as_no_money():
    monthly = _meta(is_subscription=True)

    assert iteration_worker.spent([monthly, monthly]) == 0.0
    assert iteration_worker.spent([monthly, _meta()]) == 0.5
