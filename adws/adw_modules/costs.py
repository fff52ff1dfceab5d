"""
Cost of attempts: what an attempt used, what it may use, and when the budget is exceeded.

Pure. An agent's reported cost is used if plausible, otherwise it is computed from tokens; an unknown cost is unknown,
not 0. Some agents report totals of a whole conversation: the usage that earlier attempts of it reported is subtracted,
so no separate totals are stored; if a crash lost the report of an attempt, its cost is in the next total. If an agent
may report either, the result itself shows which; if it does not, all of it is counted and people are warned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules.agent import AgentProfile, AgentReading, TokenUsage, Usage
from adws.adw_modules.identifiers import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


# --- costs of attempts, read from documents as plain JSON, and their sums ------------------------------------------
#
# Without the document model, so that read-only commands start fast. Each ended attempt is one entry. A cost computed
# from tokens is marked as estimated; flat-rate usage costs nothing.


#: Maximum plausible cost of one attempt in US dollars: a higher figure is an error of its source.
MOST_USD = 1_000_000.0
#: Shown if the provider is unknown.
NO_PROVIDER = "unnamed"


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEntry:
    """The cost of one attempt."""

    adw_id: str
    workflow: str  #: name of its definition
    phase: str
    attempt: int
    status: str
    ended_at: str
    provider: str  #: "": unknown
    model: str
    cost_usd: float | None  #: counted cost; None: a subscription, or unknown
    tokens: TokenUsage
    is_estimated: bool = False
    is_subscription: bool = False
    is_unknown: bool = False  #: it cost an unknown amount

    @property
    def day(self) -> str:
        """The day it ended, UTC."""
        return self.ended_at[:10]

    def to_json(self) -> JsonObject:
        """Return the entry as JSON."""
        return {**asdict(self), "tokens": self.tokens.to_json()}


def money(value: object) -> float | None:
    """Return *value* as US dollars, or None if it is not a number, NaN, negative or above MOST_USD."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None

    return float(value) if 0 <= value <= MOST_USD else None


# --- reading ---------------------------------------------------------------------------------------------------


def of_document(document: WorkflowDocument) -> Iterator[CostEntry]:
    """Yield the cost of each ended attempt in *document*, as `entries_of` does."""
    for phase in document.phases:
        for attempt in phase.attempts:
            entry = _entry(document.adw_id, document.workflow_name, phase.name, vars(attempt))
            if entry is not None:
                yield entry


def entries_of(adw_id: str, workflow: str, phases: object) -> Iterator[CostEntry]:
    """
    Yield the cost of each ended attempt in *phases*, except attempts without cost, usage and agent.

    A document of another tool may contain anything: malformed parts are skipped.
    """
    for phase in _objects(phases):
        for attempt in _objects(phase.get("attempts")):
            result = _entry(adw_id, workflow, str(phase.get("name") or ""), attempt)
            if result is not None:
                yield result


def entries_in(adw_id: str, workflow: str, phases: str | None) -> Iterator[CostEntry]:
    """Yield the same entries from the JSON text of a document's phases."""
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
        tokens=TokenUsage.from_json(usage.get("tokens")),
        is_estimated=usage.get("is_estimated") is True and cost is not None,
        is_subscription=is_subscription,
        is_unknown=cost is None and not is_subscription,
    )


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# --- adding up -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """The total cost of several attempts."""

    key: str
    cost_usd: float  #: sum of the known costs
    tokens: TokenUsage
    attempts: int
    unknown: int = 0  #: attempts of unknown cost
    subscription: int = 0  #: attempts on a subscription
    is_estimated: bool = False  #: part of it was computed from a price table

    def to_json(self) -> JsonObject:
        """Return the line as JSON, unrounded."""
        return {
            "key": self.key,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens.to_json(),
            "attempts": self.attempts,
            "unknown_attempts": self.unknown,
            "subscription_attempts": self.subscription,
            "is_estimated": self.is_estimated,
        }


#: Grouping -> the key of an entry's line. A grouping by attempt needs no key: each entry is its own line.
KEYS: Mapping[str, Callable[[CostEntry], str]] = {
    "phase": lambda entry: entry.phase,
    "day": lambda entry: entry.day,
    "provider": lambda entry: entry.provider or NO_PROVIDER,
    "workflow": lambda entry: entry.adw_id,
}


def grouped(entries: Iterable[CostEntry], by: str) -> tuple[tuple[CostLine, ...], CostLine]:
    """Return one line per key of *by*, in order of first appearance, and the total line."""
    groups: dict[str, list[CostEntry]] = {}
    for entry in entries:
        groups.setdefault(KEYS[by](entry), []).append(entry)
    everything = [entry for group in groups.values() for entry in group]

    return tuple(_line(key, group) for key, group in groups.items()), _line("total", everything)


def _line(key: str, entries: Collection[CostEntry]) -> CostLine:
    return CostLine(
        key=key,
        cost_usd=math.fsum(entry.cost_usd for entry in entries if entry.cost_usd is not None),
        tokens=TokenUsage.sum_of([entry.tokens for entry in entries]),
        attempts=len(entries),
        unknown=sum(entry.is_unknown for entry in entries),
        subscription=sum(entry.is_subscription for entry in entries),
        is_estimated=any(entry.is_estimated for entry in entries),
    )


#: (model, tokens) -> US dollars; None: the price is unknown (`agents.prices.cost_of`).
CostOf: TypeAlias = Callable[[str, TokenUsage], float | None]

#: Share of a cap at which people are warned.
WARN_AT = 0.8
#: Decimal places of a displayed amount; a smaller remainder counts as 0.
DIGITS = 4


# --- usage -----------------------------------------------------------------------------------------------------


#: Scope of a result's totals (`Usage.scope`): this call, the whole conversation, both because it is the conversation's
#: first call, or unknown.
CALL, CONVERSATION, EITHER, UNCLEAR = "call", "conversation", "either", "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTotals:
    """The usage of a conversation before an attempt continued it."""

    cost_usd: float = 0.0
    tokens: TokenUsage = field(default_factory=TokenUsage)
    counts_calls: bool = False  #: the agent was seen to report single calls of it


NOTHING = SessionTotals()


def totals_before(document: WorkflowDocument, session_id: str) -> SessionTotals:
    """Return the usage of all attempts of any phase in the conversation *session_id*; NOTHING for ""."""
    if not session_id:
        return NOTHING
    attempts = (attempt for phase in document.phases for attempt in phase.attempts)
    mine = (attempt for attempt in attempts if (attempt.agent or {}).get("session_id") == session_id)
    totals = NOTHING
    for attempt in sorted(mine, key=lambda one: (one.started_at, one.number)):
        usage = (attempt.report or {}).get("usage")
        if isinstance(usage, dict):
            totals = _with(totals, usage)

    return totals


def _with(totals: SessionTotals, usage: JsonObject) -> SessionTotals:
    """Return *totals* after an attempt: totals of the conversation replace them, usage of a call is added."""
    scope, reported = usage.get("scope"), TokenUsage.from_json(usage.get("reported_tokens"))
    reported_usd = money(usage.get("reported_usd")) or 0.0
    if scope == CONVERSATION:
        return SessionTotals(cost_usd=reported_usd, tokens=reported)
    if scope == UNCLEAR:
        # The totals may be of the call alone, so they never lower the totals before it.
        return replace(totals, cost_usd=max(totals.cost_usd, reported_usd), tokens=totals.tokens.highest(reported))

    return SessionTotals(
        cost_usd=totals.cost_usd + (money(usage.get("cost_usd")) or 0.0),
        tokens=TokenUsage.sum_of([totals.tokens, TokenUsage.from_json(usage.get("tokens"))]),
        counts_calls=totals.counts_calls or scope == CALL,
    )


def scope_of(reading: AgentReading, before: SessionTotals) -> str:
    """
    Return the scope of a result's totals, judged by the tokens that it also reports for this call alone.

    Totals of the conversation include this call and the usage *before*; totals of the call exceed the call only by the
    unreported usage of its helpers. Anything in between is unclear.
    """
    if before == NOTHING:
        return EITHER
    if reading.own_tokens is None or not before.tokens.total:
        return UNCLEAR
    if reading.tokens.covers(TokenUsage.sum_of([reading.own_tokens, before.tokens])):
        return CONVERSATION

    return CALL if reading.tokens.minus(reading.own_tokens).total < before.tokens.total / 2 else UNCLEAR


def usage_of(
    reading: AgentReading,
    profile: AgentProfile,
    before: SessionTotals = NOTHING,
    *,
    cost_of: CostOf,
    model: str = "",
    billing: str = "auto",
) -> Usage:
    """
    Return the usage of the attempt whose output is *reading*, with *before* subtracted.

    *model* is the requested one, in case the agent names none. Only an agent's result has totals of the whole
    conversation: usage in single messages before it belongs to this attempt alone.
    """
    able = profile.capabilities
    said = money(reading.cost_usd)
    scope = scope_of(reading, before) if able.tells_own_tokens and reading.has_result and said is not None else ""
    is_of_session = able.totals_are_of_session and reading.has_result and scope not in {CALL, UNCLEAR}
    taken_off = before if is_of_session else NOTHING
    # A total below the usage before is not of the conversation: the agent restarted its count.
    tokens = reading.tokens.minus(taken_off.tokens) if reading.tokens.covers(taken_off.tokens) else reading.tokens
    name = reading.model or model
    is_subscription = billing == "subscription" or (billing == "auto" and reading.is_subscription is True)
    usage = Usage(provider=profile.provider, model=name, tokens=tokens, is_subscription=is_subscription)
    if scope:
        usage = replace(usage, scope=scope, reported_usd=said, reported_tokens=reading.tokens)
    if said is not None:
        return replace(usage, cost_usd=said - taken_off.cost_usd if said >= taken_off.cost_usd else said)
    reckoned = money(cost_of(name, tokens)) if tokens.total else None

    return replace(usage, cost_usd=reckoned, is_estimated=reckoned is not None)


def doubt_of(usage: Usage | None) -> str:
    """Return the warning about a cost of unclear scope, or ""."""
    if usage is None or usage.scope != UNCLEAR or not counted(usage):
        return ""

    return (
        f"{usage.model or usage.provider} reported {shown(usage.reported_usd or 0.0)} USD, and its tokens do not show "
        "whether that is the cost of this attempt or of its whole conversation: all of it is counted"
    )


def counted(usage: Usage | None) -> float | None:
    """Return the counted cost of *usage*, or None if it is unknown or on a subscription."""
    return None if usage is None or usage.is_subscription else money(usage.cost_usd)


# --- allowances and budgets ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """The maximum cost of one attempt."""

    usd: float  #: never below 0
    reason: str  #: its origin and how to raise it, for the message when it is used up


def cap_of(document: WorkflowDocument, max_cost_usd: float | None) -> float | None:
    """Return the maximum cost of the workflow: its own cap if a person set one, else that of the settings."""
    return document.max_cost_usd if document.max_cost_usd is not None else max_cost_usd


def allowance(
    document: WorkflowDocument,
    *,
    max_cost_usd: float | None = None,
    attempt_usd: float | None = None,
    rest_of_day_usd: float | None = None,
) -> Allowance | None:
    """
    Return the maximum cost of the next attempt, or None if nothing limits it.

    The lowest of three: the rest of the workflow's cap (*max_cost_usd* is that of the settings), the phase's budget per
    attempt (`budget_usd`), and the rest of today's budget of all workflows.
    """
    result = []
    cap = cap_of(document, max_cost_usd)
    if cap is not None:
        why = (
            f"the workflow may cost {shown(cap)} USD: raise that with adw resume {document.adw_id} --budget USD,"
            " or quota.max_cost for all"
        )
        result.append(Allowance(usd=_left(cap - document.cost.total_usd), reason=why))
    if attempt_usd is not None:
        why = (
            f"budget_usd of its phase allows an attempt {shown(attempt_usd)} USD: adw resume {document.adw_id} goes on"
        )
        result.append(Allowance(usd=_left(attempt_usd), reason=why))
    if rest_of_day_usd is not None:
        left = shown(_left(rest_of_day_usd))
        why = f"{left} USD were left for today: wait until midnight UTC, or raise quota.max_cost_per_day"
        result.append(Allowance(usd=_left(rest_of_day_usd), reason=why))

    return min(result, key=lambda one: one.usd, default=None)


def budget_for_agent(allowed: Allowance | None, billing: str) -> float | None:
    """
    Return the cost at which an agent is told to stop itself, or None.

    Only if money is certainly spent: an agent on a subscription would stop for a cost that nobody pays.
    """
    return allowed.usd if allowed is not None and allowed.usd > 0 and billing == "api" else None


def shown(usd: float) -> str:
    """Return an amount for display."""
    return f"{usd:.{DIGITS}f}"


def _left(usd: float) -> float:
    """Return a remainder, at least 0; one that is only a floating-point error becomes 0."""
    return max(0.0, usd) if round(usd, DIGITS) > 0 else 0.0


def warning_for(document: WorkflowDocument, cap: float | None) -> str | None:
    """Return the warning that most of *cap* is spent, or None if it is not or this cap was warned about before."""
    spent = document.cost.total_usd
    if not cap or document.cost.warned_at == cap or round(spent, DIGITS) < round(cap * WARN_AT, DIGITS):
        return None

    return f"{shown(spent)} of {shown(cap)} USD are spent: adw resume {document.adw_id} --budget USD allows more"


# --- while an agent runs ---------------------------------------------------------------------------------------


class BudgetWatch:
    """Checks a working agent's usage against its allowance."""

    def __init__(
        self,
        allowed: Allowance | None,
        profile: AgentProfile,
        before: SessionTotals = NOTHING,
        *,
        cost_of: CostOf,
        model: str = "",
        billing: str = "auto",
    ) -> None:
        """Watch one attempt; *before* is the earlier usage of its conversation."""
        self._allowed = allowed
        self._read: Callable[[AgentReading], Usage] = lambda reading: usage_of(
            reading, profile, before, cost_of=cost_of, model=model, billing=billing
        )
        self._reading = AgentReading()
        self._usage: Usage | None = None

    def take(self, reading: AgentReading) -> None:
        """Take the current reading of the agent's output."""
        if reading is not self._reading:
            self._reading, self._usage = reading, None

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        if self._usage is None:
            self._usage = self._read(self._reading)

        return self._usage

    @property
    def passed(self) -> str:
        """
        Why the agent has to stop, or "" while it may continue.

        It is not stopped after its result: the money is spent, and the work would be lost.
        """
        allowed = self._allowed
        if allowed is None or self.usage.is_subscription or self._reading.has_result:
            return ""
        spent = counted(self.usage) or 0.0
        if spent < allowed.usd:
            return ""
        if not spent:
            return f"nothing is left of the budget: {allowed.reason}"
        about = "about " if self.usage.is_estimated else ""

        return f"the budget is used up: the attempt has cost {about}{shown(spent)} USD, and {allowed.reason}"

    @property
    def blind(self) -> str:
        """Why an existing budget cannot be checked, or "" if it can or need not be."""
        usage = self.usage
        if self._allowed is None or usage.is_subscription or usage.cost_usd is not None or not usage.tokens.total:
            return ""
        name = usage.model or "the agent's model"

        return f"the budget cannot be watched: no price is known for {name}; add it to [prices] of adw.toml"
