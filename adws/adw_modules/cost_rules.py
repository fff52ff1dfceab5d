"""
What an attempt used, what it may use, and when that is too much.

Pure. What an agent says is taken when it can be true, else it is reckoned from tokens; what nobody knows is unknown,
not 0. Some agents tell the sums of a whole conversation: what the earlier attempts of that conversation used comes off.
Their own reports are what is taken off, so nothing is kept twice; an attempt that a crash took the report from is in
the sum of the next one, and an agent that begins to count anew after all is believed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules.agent import AgentProfile, AgentReading, TokenUsage, Usage
from adws.adw_modules.cost_entries import money

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument

#: US dollars of so many tokens of a model; None: its price is not known (`agents.prices.cost_of`).
CostOf: TypeAlias = Callable[[str, TokenUsage], float | None]

#: The part of a cap at which people are warned.
WARN_AT = 0.8
#: How an agent's work is paid, as the setting `agent.billing` says it; auto: as the agent itself says.
BILLING = ("auto", "api", "subscription")
#: Digits of an amount that people are shown, and below which a rest is none.
DIGITS = 4


# --- what was used ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTotals:
    """What a conversation had used before an attempt went on with it."""

    cost_usd: float = 0.0
    tokens: TokenUsage = field(default_factory=TokenUsage)


NOTHING = SessionTotals()


def totals_before(document: WorkflowDocument, session_id: str) -> SessionTotals:
    """Return what the attempts used that worked in the conversation *session_id*, of whichever phase; "" had none."""
    if not session_id:
        return NOTHING
    attempts = (attempt for phase in document.phases for attempt in phase.attempts)

    return _sum(attempt for attempt in attempts if (attempt.agent or {}).get("session_id") == session_id)


def _sum(attempts: Iterable[AttemptRecord]) -> SessionTotals:
    cost, tokens = 0.0, TokenUsage()
    for attempt in attempts:
        usage = (attempt.report or {}).get("usage")
        if isinstance(usage, dict):
            cost += money(usage.get("cost_usd")) or 0.0
            said = usage.get("tokens")
            tokens = _plus(tokens, TokenUsage.from_json(said) if isinstance(said, dict) else TokenUsage())

    return SessionTotals(cost_usd=cost, tokens=tokens)


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
    Return what the attempt used whose output says *reading*, *before* taken off.

    *model* is the one that was asked for, in case the agent names none. Sums of a whole conversation come with an
    agent's result only: what its single messages said until then is of this attempt alone.
    """
    is_of_session = profile.capabilities.totals_are_of_session and reading.has_result
    taken_off = before if is_of_session else NOTHING
    tokens = _tokens_since(reading.tokens, taken_off.tokens)
    said = money(reading.cost_usd)
    name = reading.model or model
    usage = Usage(provider=profile.provider, model=name, tokens=tokens, is_subscription=_by_month(reading, billing))
    if said is not None:
        return replace(usage, cost_usd=_cost_since(said, taken_off.cost_usd))
    reckoned = money(cost_of(name, tokens)) if tokens.total else None

    return replace(usage, cost_usd=reckoned, is_estimated=reckoned is not None)


def counted(usage: Usage | None) -> float | None:
    """Return what of *usage* counts as money; None when nobody knows, or when it is paid by the month."""
    return None if usage is None or usage.is_subscription else money(usage.cost_usd)


def _by_month(reading: AgentReading, billing: str) -> bool:
    return billing == "subscription" or (billing == "auto" and reading.is_subscription is True)


def _cost_since(total: float, before: float) -> float:
    # A sum that is below what was there before is no sum of the conversation: the agent counted anew.
    return total - before if total >= before else total


def _tokens_since(total: TokenUsage, before: TokenUsage) -> TokenUsage:
    has_grown = all(getattr(total, part.name) >= getattr(before, part.name) for part in fields(total))

    return total.minus(before) if has_grown else total


def _plus(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    return TokenUsage(**{part.name: getattr(one, part.name) + getattr(other, part.name) for part in fields(one)})


# --- what may be used ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What one attempt may cost."""

    usd: float  #: never below 0
    reason: str  #: what it comes from and what can be done, for when it is used up


def cap_of(document: WorkflowDocument, max_cost_usd: float | None) -> float | None:
    """Return what the workflow may cost: its own cap when a person gave it one, else that of the settings."""
    return document.max_cost_usd if document.max_cost_usd is not None else max_cost_usd


def allowance(
    document: WorkflowDocument,
    *,
    max_cost_usd: float | None = None,
    attempt_usd: float | None = None,
    rest_of_day_usd: float | None = None,
) -> Allowance | None:
    """
    Return what the next attempt may cost, None when nothing limits it.

    The least of three: what is left of the workflow's cap (*max_cost_usd* is that of the settings), what the phase
    allows an attempt (`budget_usd`), and what all workflows together may still spend today.
    """
    found = []
    cap = cap_of(document, max_cost_usd)
    if cap is not None:
        why = (
            f"the workflow may cost {shown(cap)} USD: raise that with adw resume {document.adw_id} --budget USD,"
            " or quota.max_cost for all"
        )
        found.append(Allowance(usd=_left(cap - document.cost.total_usd), reason=why))
    if attempt_usd is not None:
        why = (
            f"budget_usd of its phase allows an attempt {shown(attempt_usd)} USD: adw resume {document.adw_id} goes on"
        )
        found.append(Allowance(usd=_left(attempt_usd), reason=why))
    if rest_of_day_usd is not None:
        left = shown(_left(rest_of_day_usd))
        why = f"{left} USD were left for today: wait until midnight UTC, or raise quota.max_cost_per_day"
        found.append(Allowance(usd=_left(rest_of_day_usd), reason=why))

    return min(found, key=lambda one: one.usd, default=None)


def budget_for_agent(allowed: Allowance | None, billing: str) -> float | None:
    """
    Return what an agent is told to stop at by itself, None for nothing.

    Only where it is sure that money is spent: an agent on a subscription would stop for a cost that nobody pays.
    """
    return allowed.usd if allowed is not None and allowed.usd > 0 and billing == "api" else None


def shown(usd: float) -> str:
    """Return an amount as people are shown it."""
    return f"{usd:.{DIGITS}f}"


def _left(usd: float) -> float:
    """Return a rest; one that only comes from adding up floating-point numbers is none."""
    return max(0.0, usd) if round(usd, DIGITS) > 0 else 0.0


def warning_for(document: WorkflowDocument, cap: float | None) -> str | None:
    """Return the warning that most of *cap* is spent, None when it is not or when that was said of this cap before."""
    spent = document.cost.total_usd
    if not cap or document.cost.warned_at == cap or round(spent, DIGITS) < round(cap * WARN_AT, DIGITS):
        return None

    return f"{shown(spent)} of {shown(cap)} USD are spent: adw resume {document.adw_id} --budget USD allows more"


# --- while it runs ---------------------------------------------------------------------------------------------


class BudgetWatch:
    """Says, while an agent works, when it has used up what it may."""

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
        """Watch one attempt; *before* is what its conversation had used already."""
        self._allowed = allowed
        self._read: Callable[[AgentReading], Usage] = lambda reading: usage_of(
            reading, profile, before, cost_of=cost_of, model=model, billing=billing
        )
        self._reading = AgentReading()
        self._usage: Usage | None = None

    def take(self, reading: AgentReading) -> None:
        """Take in what the agent's output says by now."""
        if reading is not self._reading:
            self._reading, self._usage = reading, None

    @property
    def usage(self) -> Usage:
        """What was used by now."""
        if self._usage is None:
            self._usage = self._read(self._reading)

        return self._usage

    @property
    def passed(self) -> str:
        """
        Why the agent has to stop, "" while it may go on.

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
        """Why the budget cannot be watched though there is one, "" when it can, or need not."""
        usage = self.usage
        if self._allowed is None or usage.is_subscription or usage.cost_usd is not None or not usage.tokens.total:
            return ""
        name = usage.model or "the agent's model"

        return f"the budget cannot be watched: no price is known for {name}; add it to [prices] of adw.toml"
