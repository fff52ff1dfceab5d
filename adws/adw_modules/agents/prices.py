"""
Token prices in US dollars per million, for agents that do not report their cost.

List prices, so every sum based on them is an estimate. A model of no family listed here has no price: None, never 0. A
user's own prices come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.errors import ConfigError, FailedRun
from adws.adw_modules.identifiers import hint

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.workflow.model import PhaseSpec
    from adws.config.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None  #: None: same as input
    cache_write: float | None = None  #: likewise

    def of(self, tokens: TokenUsage) -> float:
        """Return the cost of *tokens*."""
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
    """Return an Anthropic price: output costs 5 times *price*, a cache read a tenth, a cache write a quarter more."""
    return Price(input=price, output=5 * price, cache_read=price / 10, cache_write=1.25 * price)


def _price(price: float, output: float, cached: float) -> Price:
    return Price(input=price, output=output, cache_read=cached)


#: Family of models -> price. A name that ends with "*" matches every name with that prefix; the longest one wins.
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
        # Aliases of Claude Code and aider for the newest models: the only name known until the agent reports one.
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

#: Parts around a model's own name: its seller before, its date and revision after.
_SELLER = re.compile(r"^(?:[\w.-]+/)*(?:(?:us|eu|apac|global|jp|au)\.)?(?:anthropic\.)?")
_REVISION = re.compile(r"(?:\[\w+\]|-v\d+|-\d{8}|-\d{4}-\d\d-\d\d|-latest|@\w+|:\w+)+$")
_KEYS = ("input", "output", "cache_read", "cache_write")
#: Upper bound of a valid price, in US dollars per million tokens.
MAX_PRICE = 100_000.0
#: Characters of a model's name that are considered.
MAX_NAME = 200


def cost_of(model: str, tokens: TokenUsage, prices: Mapping[str, Price] = MappingProxyType({})) -> float | None:
    """Return the cost of *tokens* of *model* in US dollars, by *prices* first; None if its price is unknown."""
    price = price_of(model, prices)

    return None if price is None else price.of(tokens)


def price_of(model: str, prices: Mapping[str, Price] = MappingProxyType({})) -> Price | None:
    """Return the price of *model*, or None. Names in *prices* may include seller and date, or omit them."""
    full = model[:MAX_NAME].strip().lower()
    plain = _REVISION.sub("", _SELLER.sub("", full))
    own = {name.strip().lower(): price for name, price in prices.items()}

    return _found(full, own) or _found(plain, own) or _found(plain, PRICES)


def read_prices(tables: Mapping[str, object]) -> Mapping[str, Price]:
    """Return the prices in a user's tables `[prices.MODEL]`; raise ConfigError for an invalid one."""
    result = {}
    for model, table in tables.items():
        where = f"[prices.{model}]"
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"{where} is no table; write input = DOLLARS and output = DOLLARS for a million tokens in it"
            )
        for key, value in table.items():
            if key not in _KEYS:
                raise ConfigError(f"{where} has an unknown key {key!r}{hint(str(key), _KEYS)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_PRICE:
                raise ConfigError(f"{where}: {key} is {value!r}, not a number of dollars from 0 to {MAX_PRICE:.0f}")
        missing = [key for key in _KEYS[:2] if key not in table]
        if missing:
            raise ConfigError(f"{where} has no {missing[0]}; input and output are needed")
        result[model] = Price(**{key: float(value) for key, value in table.items()})

    return MappingProxyType(result)


def _found(name: str, prices: Mapping[str, Price]) -> Price | None:
    if name in prices:
        return prices[name]
    families = [family for family in prices if family.endswith("*") and name.startswith(family[:-1])]

    return prices[max(families, key=len)] if families else None


# When a used-up quota is available again, for agents that say it in prose: "resets 3:45pm", "try again at Aug 9th,
# 2026".
#
# Agents write such times in the time zone of the machine, or name UTC. The caller passes the machine's local time.


_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap])\.?m\b\.?"
_DAY = r"(?P<day>mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? "
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}"
_DATE = rf"{_MONTH} (?P<date>\d{{1,2}})(?:st|nd|rd|th)?(?:, (?P<year>\d{{4}}))?(?:,| at)? "
_RESET = re.compile(
    rf"\b(?:resets?|try again) (?:at |on )?(?:{_DAY}|{_DATE})?(?:at )?{_CLOCK}(?P<utc> ?\(?UTC\)?)?", re.IGNORECASE
)
_DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def with_reset(failed: FailedRun, *, now: datetime) -> FailedRun:
    """Return *failed* with the reset time from its text, if it has none yet; *now* is in the machine's zone."""
    if failed.resets_at is not None:
        return failed
    moment = reset_in(failed.text, now=now)

    return failed if moment is None else replace(failed, resets_at=moment.timestamp())


def reset_in(text: str, *, now: datetime) -> datetime | None:
    """Return the moment after *now* at which *text* says that a quota is available again, or None."""
    match = _RESET.search(text)
    if match is None or int(match["hour"]) > 12 or int(match["minute"] or 0) > 59:
        return None
    there = now.astimezone(UTC) if match["utc"] else now
    hour = int(match["hour"]) % 12 + (12 if match["half"].lower() == "p" else 0)
    today = there.replace(hour=hour, minute=int(match["minute"] or 0), second=0, microsecond=0)
    if match["month"]:
        month, day = _MONTHS.index(match["month"].lower()) + 1, int(match["date"])
        # Without a year, a past date means next year; with one, it is ignored.
        years = [int(match["year"])] if match["year"] else [today.year, today.year + 1]
        try:
            moments = [today.replace(year=year, month=month, day=day) for year in years]
        except ValueError:  # for example Feb 30
            return None
        return next((moment for moment in moments if moment > now), None)
    days = (_DAYS.index(match["day"].lower()) - today.weekday()) % 7 if match["day"] else 0
    moment = today + timedelta(days=days)

    return moment if moment > now else moment + timedelta(days=7 if match["day"] else 1)


# Choosing the model of an attempt.
#
# Pure. The model is chosen when the attempt begins and recorded with it, so that it is still known after a crash.


#: Model sets that older tools write into documents. They are not models; the settings may map them to some.
KNOWN_SETS = frozenset({"base", "heavy", "lightweight"})


#: The models of Claude Code for the known sets.
_CLAUDE_SETS: Mapping[str, str] = {"base": "sonnet", "heavy": "opus", "lightweight": "haiku"}


def model_sets(settings: Settings) -> dict[str, str]:
    """Return the model of each model set: from the settings, else the default agent's model for it."""
    usual = _CLAUDE_SETS if settings.agent_name == "claude" else {}
    said = {name: model for name, model in (settings.agent_model or {}).items() if name in KNOWN_SETS}

    return {**usual, **said}


def model_for(
    document: WorkflowDocument,
    phase: PhaseSpec,
    record: PhaseRecord,
    *,
    usual: str = "",
    sets: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """
    Return the model of the next attempt of *phase*, "" for the agent's own choice.

    The advisor's decision comes first, then the phase's options (`models`, one per attempt of the round, the last one
    repeated; or `model`), then the model set of the workflow (a name in *sets*, or a model itself), then the *usual*
    one.
    """
    if not phase.has_model:
        return ""
    ladder = ladder_of(phase)
    if record.model and record.model not in ladder:
        return record.model
    if ladder:
        # A model that the advisor chose from the same list is a step up: later attempts never fall back below it.
        least = ladder.index(record.model) if record.model else 0
        return ladder[min(max(record.attempts_used, least), len(ladder) - 1)]
    wanted = phase.options.get("model")
    if isinstance(wanted, str) and wanted:
        return wanted

    name = document.model_set or ""

    return sets.get(name, "" if name in KNOWN_SETS else name) or usual


def ladder_of(phase: PhaseSpec) -> tuple[str, ...]:
    """Return the models of *phase*, beginning with that of the first attempt."""
    models = phase.options.get("models")
    if not isinstance(models, Sequence) or isinstance(models, str):
        return ()

    return tuple(model for model in models if isinstance(model, str) and model)


def another_model(phase: PhaseSpec, record: PhaseRecord, spare: Sequence[str] = ()) -> str:
    """Return a model not used in this round, from the phase's own or the *spare* ones, or ""."""
    if not phase.has_model:
        return ""
    tried = {attempt.model for attempt in record.attempts if attempt.round == record.round}

    return next((model for model in (*ladder_of(phase), *spare) if model not in tried), "")
