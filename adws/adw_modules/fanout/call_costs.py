"""
What the agents of calls used, added up for the attempt that made them.

Pure. Every report of a call has it in `meta.call`, and so has its event: `action_completed`, `action_failed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from adws.adw_modules import cost_rules
from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.cost_entries import money


def used(metas: Iterable[Mapping[str, object]]) -> Usage | None:
    """
    Return what all calls with these *metas* used together, None when no agent was called.

    With several providers or models, the name of the first stands for all. A part that nobody knows the cost of leaves
    the sum of the others; paid by the month is only what is so altogether.
    """
    found = [usage for meta in metas if (usage := _used(meta)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    known = [usage.cost_usd for usage in found if usage.cost_usd is not None and not usage.is_subscription]

    return replace(
        found[0],
        tokens=_sum(usage.tokens for usage in found),
        cost_usd=sum(known) if known else None,
        is_estimated=any(usage.is_estimated for usage in found),
        is_subscription=all(usage.is_subscription for usage in found),
    )


def spent(metas: Iterable[Mapping[str, object]]) -> float:
    """Return the US dollars that count of it."""
    return cost_rules.counted(used(metas)) or 0.0


def _used(meta: Mapping[str, object]) -> Usage | None:
    call = meta.get("call")
    usage = call.get("usage") if isinstance(call, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    tokens = usage.get("tokens")

    return Usage(
        provider=str(usage.get("provider") or ""),
        model=str(usage.get("model") or ""),
        tokens=TokenUsage.from_json(tokens) if isinstance(tokens, Mapping) else TokenUsage(),
        cost_usd=money(usage.get("cost_usd")),
        is_estimated=usage.get("is_estimated") is True,
        is_subscription=usage.get("is_subscription") is True,
    )


def _sum(tokens: Iterable[TokenUsage]) -> TokenUsage:
    total = dict.fromkeys((part.name for part in fields(TokenUsage)), 0)
    for one in tokens:
        for name in total:
            total[name] += getattr(one, name)

    return TokenUsage(**total)
