"""What calls of agents used, added up."""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.steps import iteration_worker


def _meta(**changes) -> dict:
    usage = Usage(provider="anthropic", model="m", tokens=TokenUsage(input=5, output=1), cost_usd=0.5)
    return {"call": {"usage": {**usage.to_json(), **changes}}}


@pytest.mark.parametrize(
    ("metas", "usage"),
    [
        ([{}, {"call": {"status": 200}}, {"call": None}, {"call": {"usage": "x"}}], None),
        ([_meta()], (0.5, False, TokenUsage(input=5, output=1))),
        ([_meta(tokens="many")], (0.5, False, TokenUsage())),
        ([_meta(), _meta(cost_usd=0.25, is_estimated=True), {}], (0.75, True, TokenUsage(input=10, output=2))),
    ],
)
def test_calls_used_what_their_agents_say_added_up(metas, usage):
    result = iteration_worker.used(metas)

    assert usage == (result and (result.cost_usd, result.is_estimated, result.tokens))
    assert result is None or (result.provider, result.model) == ("anthropic", "m")


@pytest.mark.parametrize(
    ("metas", "usd"),
    [
        ([], 0.0),
        ([_meta(cost_usd=None), _meta()], 0.5),
        ([_meta(cost_usd=float("nan")), _meta(cost_usd=-1)], 0.0),
        ([_meta(is_subscription=True)] * 2, 0.0),
        ([_meta(is_subscription=True), _meta()], 0.5),
    ],
)
def test_only_a_cost_that_is_known_and_not_paid_by_the_month_is_money(metas, usd):
    assert iteration_worker.spent(metas) == usd
