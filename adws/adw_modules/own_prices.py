"""
Prices that a user wrote into `[prices]` of adw.toml: they win over the table that comes with adw.

Pure. US dollars for a million tokens. What is read from or written to a cache costs as much as other input where
nothing else is said: too much is safer than too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.cost_entries import money
from adws.adw_modules.cost_rules import CostOf
from adws.adw_modules.errors import ConfigError

#: Tokens that a price is for.
UNIT = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a million tokens of a model cost, in US dollars."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def cost(self, tokens: TokenUsage) -> float:
        """Return what *tokens* cost."""
        return float(sum(getattr(self, part.name) * getattr(tokens, part.name) for part in fields(self))) / UNIT


def parse_prices(data: Mapping[str, object], where: Callable[..., str]) -> dict[str, Price]:
    """
    Return the prices in the table `[prices]`, by model; *where* says the place of keys in the file.

    Raises ConfigError with a sentence for each thing that is wrong.
    """
    problems = tuple(_problems(data, where))
    if problems:
        raise ConfigError(*problems)

    return {model: _price(table) for model, table in data.items() if isinstance(table, dict)}


def with_own(prices: Mapping[str, Price], cost_of: CostOf) -> CostOf:
    """
    Return *cost_of* with *prices* in front of it.

    A name may have `*` and `?` in it: the same name wins over a pattern, and a longer pattern over a shorter one.
    """
    ordered = sorted(prices, key=lambda name: (_is_pattern(name), -len(name), name))

    def cost(model: str, tokens: TokenUsage) -> float | None:
        found = next((name for name in ordered if fnmatchcase(model.casefold(), name.casefold())), None)

        return cost_of(model, tokens) if found is None else prices[found].cost(tokens)

    return cost


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _price(table: Mapping[str, object]) -> Price:
    known = {part.name: money(table.get(part.name)) for part in fields(Price)}
    usual = known["input"] or 0.0

    return Price(**{name: usual if value is None else value for name, value in known.items()})


def _problems(data: Mapping[str, object], where: Callable[..., str]) -> Iterator[str]:
    names = tuple(part.name for part in fields(Price))
    for model, table in data.items():
        if not isinstance(table, dict):
            yield f'{where(model)}: prices.{model} must be a table, such as [prices."{model}"] with input and output'
            continue
        for name in ("input", "output"):
            if name not in table:
                yield f"{where(model)}: prices.{model} has no {name}: give US dollars for a million tokens"
        for name, value in table.items():
            if name not in names:
                yield f"{where(model, name)}: prices.{model}.{name} is not known; use {', '.join(names)}"
            elif money(value) is None:
                yield f"{where(model, name)}: prices.{model}.{name} must be US dollars for a million tokens, 0 or more"
