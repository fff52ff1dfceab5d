"""
What tokens cost, in US dollars per million, for agents that do not say it themselves.

List prices, so every sum made of them is an estimate. A model that is in no family here has no price: None, never 0. A
user's own prices come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.spelling import hint


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None  #: None: as much as input
    cache_write: float | None = None  #: likewise

    def of(self, tokens: TokenUsage) -> float:
        """Return what *tokens* cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        sums = (
            tokens.input * self.input,
            tokens.output * self.output,
            tokens.cache_read * read,
            tokens.cache_write * write,
        )

        return sum(sums) / 1_000_000


def _claude(price: float) -> Price:
    """Return a price of Anthropic: output is 5 times *price*, the cache a tenth to read, a quarter more to write."""
    return Price(input=price, output=5 * price, cache_read=price / 10, cache_write=1.25 * price)


def _price(price: float, output: float, cached: float) -> Price:
    return Price(input=price, output=output, cache_read=cached)


#: Family of models -> price. A name that ends with "*" stands for all that begin so; the longest one counts.
PRICES: Mapping[str, Price] = MappingProxyType(
    {
        "claude-opus-5*": _claude(4.0),
        "claude-opus-4*": _claude(15.0),
        "claude-opus-4-5*": _claude(5.0),
        "claude-opus-4-6*": _claude(5.0),
        "claude-opus-4-7*": _claude(5.0),
        "claude-3-opus*": _claude(15.0),
        "claude-sonnet-*": _claude(3.0),
        "claude-3-5-sonnet*": _claude(3.0),
        "claude-3-7-sonnet*": _claude(3.0),
        "claude-haiku-*": _claude(1.0),
        "claude-3-5-haiku*": _claude(0.8),
        "claude-3-haiku*": _claude(0.25),
        # What Claude Code and aider call the newest of each: all that is known before the agent says its name.
        "opus": _claude(4.0),
        "sonnet": _claude(3.0),
        "haiku": _claude(1.0),
        "gpt-5": _price(1.25, 10.0, 0.125),
        "gpt-5-codex": _price(1.25, 10.0, 0.125),
        "gpt-5-mini": _price(0.25, 2.0, 0.025),
        "gpt-5-nano": _price(0.05, 0.4, 0.005),
        "gpt-5.1": _price(1.25, 10.0, 0.125),
        "gpt-5.1-codex": _price(1.25, 10.0, 0.125),
        "gpt-5.1-codex-max": _price(1.25, 10.0, 0.125),
        "gpt-5.1-codex-mini": _price(0.25, 2.0, 0.025),
        "gpt-5.2": _price(1.75, 14.0, 0.175),
        "gpt-5.2-codex": _price(1.75, 14.0, 0.175),
        "gpt-4.1": _price(2.0, 8.0, 0.5),
        "gpt-4.1-mini": _price(0.4, 1.6, 0.1),
        "gpt-4.1-nano": _price(0.1, 0.4, 0.025),
        "gpt-4o": _price(2.5, 10.0, 1.25),
        "gpt-4o-mini": _price(0.15, 0.6, 0.075),
        "o3": _price(2.0, 8.0, 0.5),
        "o4-mini": _price(1.1, 4.4, 0.275),
        "codex-mini": _price(1.5, 6.0, 0.375),
        "gemini-2.5-pro*": _price(1.25, 10.0, 0.125),
        "gemini-2.5-flash*": _price(0.3, 2.5, 0.03),
        "gemini-2.5-flash-lite*": _price(0.1, 0.4, 0.01),
        "gemini-3-pro*": _price(2.0, 12.0, 0.2),
        "gemini-3-flash*": _price(0.5, 3.0, 0.05),
        "deepseek-chat": _price(0.28, 0.42, 0.028),
        "deepseek-reasoner": _price(0.28, 0.42, 0.028),
    }
)

#: What stands around a model's own name: who sells it before, its date and revision behind.
_SELLER = re.compile(r"^(?:[\w.-]+/)*(?:(?:us|eu|apac|global|jp|au)\.)?(?:anthropic\.)?")
_REVISION = re.compile(r"(?:\[\w+\]|-v\d+|-\d{8}|-\d{4}-\d\d-\d\d|-latest|@\w+|:\w+)+$")
_KEYS = ("input", "output", "cache_read", "cache_write")
#: US dollars per million tokens that no model costs.
MAX_PRICE = 100_000.0
#: Characters of a model's name that are looked at.
MAX_NAME = 200


def cost_of(model: str, tokens: TokenUsage, prices: Mapping[str, Price] = MappingProxyType({})) -> float | None:
    """Return what *tokens* of *model* cost in US dollars, by *prices* first; None when its price is not known."""
    found = price_of(model, prices)

    return None if found is None else found.of(tokens)


def price_of(model: str, prices: Mapping[str, Price] = MappingProxyType({})) -> Price | None:
    """Return the price of *model*, None when it is not known. *prices* may name it with seller and date, or without."""
    full, plain = model[:MAX_NAME].strip().lower(), plain_name(model)
    own = {name.strip().lower(): price for name, price in prices.items()}

    return _found(full, own) or _found(plain, own) or _found(plain, PRICES)


def read_prices(tables: Mapping[str, object]) -> Mapping[str, Price]:
    """Return the prices in the tables `[prices.MODEL]` of a user; raise ConfigError for what is no price."""
    return MappingProxyType({model: _read_price(model, table) for model, table in tables.items()})


def _read_price(model: str, table: object) -> Price:
    where = f"[prices.{model}]"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is no table; write input = DOLLARS and output = DOLLARS for a million tokens in it")
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(f"{where} has an unknown key {key!r}{hint(str(key), _KEYS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_PRICE:
            raise ConfigError(f"{where}: {key} is {value!r}, not a number of dollars from 0 to {MAX_PRICE:.0f}")
    missing = [key for key in _KEYS[:2] if key not in table]
    if missing:
        raise ConfigError(f"{where} has no {missing[0]}; input and output are needed")

    return Price(**{key: float(value) for key, value in table.items()})


def plain_name(model: str) -> str:
    """Return a model's own name as in the table: claude-opus-4-5 for us.anthropic.claude-opus-4-5-20251101-v1:0."""
    return _REVISION.sub("", _SELLER.sub("", model[:MAX_NAME].strip().lower()))


def _found(name: str, prices: Mapping[str, Price]) -> Price | None:
    if name in prices:
        return prices[name]
    families = [family for family in prices if family.endswith("*") and name.startswith(family[:-1])]

    return prices[max(families, key=len)] if families else None
