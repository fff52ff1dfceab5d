"""
What tokens cost: by the model's family, by a user's own price first, and never 0 for a model nobody knows.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.agents.prices import Price, cost_of, read_prices
from adws.adw_modules.errors import ConfigError

MILLION = TokenUsage(input=1_000_000, output=1_000_000, cache_read=1_000_000, cache_write=1_000_000)


@pytest.mark.parametrize(
    ("model", "dollars"),
    [
        ("claude-sonnet-4-5", 3.0 + 15.0 + 0.3 + 3.75),
        ("anthropic/claude-sonnet-4-5-20250929", 22.05),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 22.05),
        ("claude-sonnet-4@20250514", 22.05),
        ("openrouter/anthropic/claude-sonnet-4.5:beta", 22.05),
        (" Claude-Sonnet-4-5[1m] ", 22.05),
        ("claude-opus-4-1-20250805", 15.0 + 75.0 + 1.5 + 18.75),
        ("claude-opus-4-5-20251101", 5.0 + 25.0 + 0.5 + 6.25),
        ("haiku", 1.0 + 5.0 + 0.1 + 1.25),
        ("sonnet", 22.05),
        ("opus", 4.0 + 20.0 + 0.4 + 5.0),
        ("gpt-5-2025-08-07", 1.25 + 10.0 + 0.125 + 1.25),
        ("openai/gpt-5-mini", 0.25 + 2.0 + 0.025 + 0.25),
        ("gemini-2.5-flash-lite-preview", 0.1 + 0.4 + 0.01 + 0.1),
        ("gemini-2.5-flash", 0.3 + 2.5 + 0.03 + 0.3),
    ],
)
def test_tokens_cost_what_their_family_costs(model, dollars):
    assert cost_of(model, MILLION) == pytest.approx(dollars)


@pytest.mark.parametrize("model", ["", "gpt-5-stub", "openai/stub", "claude", "<synthetic>", "*", "/", "x" * 10_000])
def test_a_model_nobody_knows_has_no_price(model):
    assert cost_of(model, MILLION) is None


@pytest.mark.parametrize("name", ["my-model", "MY-MODEL", "my-*", "lab/my-model"])
def test_the_price_of_a_user_comes_first(name):
    own = {name: Price(input=2.0, output=4.0), "gpt-5": Price(input=0.0, output=0.0)}

    assert cost_of("lab/my-model", MILLION, own) == pytest.approx(2.0 + 4.0 + 2.0 + 2.0)
    assert cost_of("gpt-5", MILLION, own) == 0.0
    assert cost_of("gpt-5-mini", MILLION, own) == pytest.approx(2.525)


def test_prices_of_a_user_are_read():
    prices = read_prices({"my-model": {"input": 1, "output": 2.5, "cache_read": 0.1, "cache_write": 0}})

    assert prices == {"my-model": Price(input=1.0, output=2.5, cache_read=0.1, cache_write=0.0)}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (3, r"\[prices.m\] is no table"),
        ({"input": 1}, r"\[prices.m\] has no output"),
        ({"output": 1}, r"\[prices.m\] has no input"),
        ({"input": 1, "output": 1, "inputs": 1}, "unknown key 'inputs', did you mean input"),
        ({"input": -1, "output": 1}, "input is -1, not a number of dollars"),
        ({"input": True, "output": 1}, "input is True"),
        ({"input": "1", "output": 1}, "input is '1'"),
        ({"input": float("nan"), "output": 1}, "input is nan"),
        ({"input": 10**400, "output": 1}, "not a number of dollars from 0 to 100000"),
    ],
)
def test_a_price_that_is_none_is_named(table, said):
    with pytest.raises(ConfigError, match=said):
        read_prices({"m": table})
