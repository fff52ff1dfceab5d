"""Prices that a user gives win over those that come with adw, and a wrong one is named with its place."""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.own_prices import Price, parse_prices, with_own

MILLION = 1_000_000


def where(*keys):
    return "adw.toml:" + ".".join(keys)


def problems(data):
    with pytest.raises(ConfigError) as refused:
        parse_prices(data, where)
    return refused.value.problems


def test_a_price_is_for_a_million_tokens_of_each_kind():
    price = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    tokens = TokenUsage(input=MILLION, output=MILLION, cache_read=MILLION, cache_write=2 * MILLION)

    assert price.cost(tokens) == pytest.approx(3.0 + 15.0 + 0.3 + 7.5)


def test_what_is_not_said_of_the_cache_costs_as_much_as_other_input():
    found = parse_prices({"robot-1": {"input": 3, "output": 15.0}, "free": {"input": 0, "output": 0}}, where)

    assert found["robot-1"] == Price(input=3.0, output=15.0, cache_read=3.0, cache_write=3.0)
    assert found["free"].cost(TokenUsage(input=MILLION, cache_read=MILLION)) == 0.0
    cached = parse_prices({"robot-1": {"input": 3, "output": 15, "cache_read": 0}}, where)
    assert cached["robot-1"].cache_read == 0.0


def test_no_table_has_no_prices():
    assert parse_prices({}, where) == {}


def test_own_prices_win_and_other_models_keep_theirs():
    prices = parse_prices({"robot-*": {"input": 1, "output": 1}, "ROBOT-2": {"input": 2, "output": 2}}, where)
    cost_of = with_own(prices, lambda model, _tokens: 9.0 if model == "other" else None)
    tokens = TokenUsage(input=MILLION)

    assert cost_of("robot-1", tokens) == 1.0
    assert cost_of("robot-2", tokens) == 2.0, "the same name wins over a pattern"
    assert cost_of("other", tokens) == 9.0
    assert cost_of("unheard of", tokens) is None


def test_the_longer_pattern_wins():
    prices = parse_prices({"*": {"input": 1, "output": 1}, "robot-?": {"input": 2, "output": 2}}, where)

    assert with_own(prices, lambda _model, _tokens: None)("robot-7", TokenUsage(input=MILLION)) == 2.0


def test_everything_that_is_wrong_is_named_with_its_place():
    found = problems({"a": 3, "b": {"input": -1, "output": "x", "outptu": 3}, "c": {"input": True}})

    assert found == (
        'adw.toml:a: prices.a must be a table, such as [prices."a"] with input and output',
        "adw.toml:b.input: prices.b.input must be US dollars for a million tokens, 0 or more",
        "adw.toml:b.output: prices.b.output must be US dollars for a million tokens, 0 or more",
        "adw.toml:b.outptu: prices.b.outptu is not known; use input, output, cache_read, cache_write",
        "adw.toml:c: prices.c has no output: give US dollars for a million tokens",
        "adw.toml:c.input: prices.c.input must be US dollars for a million tokens, 0 or more",
    )
