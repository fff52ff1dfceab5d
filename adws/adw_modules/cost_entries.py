"""
What attempts cost, read from documents as plain JSON, and the sums people ask for.

Pure, and without the document's own model: whoever only looks starts fast. An attempt that ended is one entry. A figure
that nobody knows is unknown, never 0; one that was reckoned says so; what is paid by the month counts nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.plain_document import objects

#: The most that one attempt can have cost, in US dollars: more is a mistake of whoever says it.
MOST_USD = 1_000_000.0
#: Stands for who was paid when nobody said it.
NO_PROVIDER = "unnamed"
_NO_TOKENS = TokenUsage()


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEntry:
    """What one attempt cost."""

    adw_id: str
    workflow: str  #: name of its definition
    phase: str
    attempt: int
    status: str
    ended_at: str
    provider: str  #: "": nobody was named
    model: str
    cost_usd: float | None  #: what counts as money; None: nothing does, or nobody knows
    tokens: TokenUsage
    is_estimated: bool = False
    is_subscription: bool = False
    is_unknown: bool = False  #: it cost something, and nobody knows what

    @property
    def day(self) -> str:
        """The day it ended, UTC."""
        return self.ended_at[:10]

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {
            "adw_id": self.adw_id,
            "workflow": self.workflow,
            "phase": self.phase,
            "attempt": self.attempt,
            "status": self.status,
            "ended_at": self.ended_at,
            "provider": self.provider,
            "model": self.model,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens.to_json(),
            "is_estimated": self.is_estimated,
            "is_subscription": self.is_subscription,
            "is_unknown": self.is_unknown,
        }


def money(value: object) -> float | None:
    """Return *value* as an amount of US dollars; None for what is none: NaN, below 0, beyond all reason, a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None

    return float(value) if 0 <= value <= MOST_USD else None


# --- reading ---------------------------------------------------------------------------------------------------


def entries_of(adw_id: str, workflow: str, phases: object) -> Iterator[CostEntry]:
    """
    Yield what each ended attempt in *phases* cost; those that nothing says to have cost anything are left out.

    A document of another tool may hold anything: what has not the right form is passed over.
    """
    for phase in objects(phases):
        for attempt in objects(phase.get("attempts")):
            found = _entry(adw_id, workflow, str(phase.get("name") or ""), attempt)
            if found is not None:
                yield found


def entries_in(adw_id: str, workflow: str, phases: str | None) -> Iterator[CostEntry]:
    """Yield the same of the text of a document's phases."""
    yield from entries_of(adw_id, workflow, json.loads(phases or "[]"))


def _entry(adw_id: str, workflow: str, phase: str, attempt: Mapping[str, object]) -> CostEntry | None:
    ended, report, agent = attempt.get("ended_at"), _object(attempt.get("report")), _object(attempt.get("agent"))
    usage = _object(report.get("usage"))
    cost = money(report.get("cost_usd"))
    if not isinstance(ended, str) or (cost is None and not usage and not agent):
        return None
    number = attempt.get("number")
    is_subscription = usage.get("is_subscription") is True

    return CostEntry(
        adw_id=adw_id,
        workflow=workflow,
        phase=phase,
        attempt=number if isinstance(number, int) else 0,
        status=str(attempt.get("status") or ""),
        ended_at=ended,
        provider=str(usage.get("provider") or agent.get("provider") or ""),
        model=str(usage.get("model") or attempt.get("model") or ""),
        cost_usd=cost,
        tokens=_tokens(usage.get("tokens")),
        is_estimated=usage.get("is_estimated") is True and cost is not None,
        is_subscription=is_subscription,
        is_unknown=cost is None and not is_subscription,
    )


def _tokens(value: object) -> TokenUsage:
    """Return `TokenUsage.from_json` of an object, at a fifth of the cost: there are tens of thousands of attempts."""
    if not isinstance(value, dict) or not value:
        return _NO_TOKENS

    return TokenUsage(
        input=_count(value.get("input")),
        output=_count(value.get("output")),
        cache_read=_count(value.get("cache_read")),
        cache_write=_count(value.get("cache_write")),
    )


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


# --- adding up -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """What several attempts cost together."""

    key: str
    cost_usd: float  #: of those whose cost is known
    tokens: TokenUsage
    attempts: int
    unknown: int = 0  #: attempts of which nobody knows what they cost
    subscription: int = 0  #: attempts that are paid by the month
    is_estimated: bool = False  #: some of it was reckoned from a price table

    def to_json(self) -> JsonObject:
        """Return it for programs, unrounded."""
        return {
            "key": self.key,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens.to_json(),
            "attempts": self.attempts,
            "unknown_attempts": self.unknown,
            "subscription_attempts": self.subscription,
            "is_estimated": self.is_estimated,
        }


@dataclass(slots=True)
class _Sum:
    """A line in the making; the amounts are added at the end, so that their order changes nothing."""

    amounts: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    attempts: int = 0
    unknown: int = 0
    subscription: int = 0
    is_estimated: bool = False

    def add(self, entry: CostEntry) -> None:
        used, sums = entry.tokens, self.tokens
        if entry.cost_usd is not None:
            self.amounts.append(entry.cost_usd)
        sums[0] += used.input
        sums[1] += used.output
        sums[2] += used.cache_read
        sums[3] += used.cache_write
        self.attempts += 1
        self.unknown += entry.is_unknown
        self.subscription += entry.is_subscription
        self.is_estimated = self.is_estimated or entry.is_estimated

    def line(self, key: str) -> CostLine:
        given, made, read, written = self.tokens

        return CostLine(
            key=key,
            cost_usd=math.fsum(self.amounts),
            tokens=TokenUsage(input=given, output=made, cache_read=read, cache_write=written),
            attempts=self.attempts,
            unknown=self.unknown,
            subscription=self.subscription,
            is_estimated=self.is_estimated,
        )


#: What lines can be made by -> the key of an entry's line. By attempt each entry is its own line.
KEYS: Mapping[str, Callable[[CostEntry], str]] = {
    "phase": lambda entry: entry.phase,
    "day": lambda entry: entry.day,
    "provider": lambda entry: entry.provider or NO_PROVIDER,
    "workflow": lambda entry: entry.adw_id,
}


def grouped(entries: Iterable[CostEntry], by: str) -> tuple[tuple[CostLine, ...], CostLine]:
    """Return a line for each key of *by*, in the order in which they first came, and the line of all together."""
    key_of, sums, total = KEYS[by], dict[str, _Sum](), _Sum()
    for entry in entries:
        sums.setdefault(key_of(entry), _Sum()).add(entry)
        total.add(entry)

    return tuple(made.line(key) for key, made in sums.items()), total.line("total")
