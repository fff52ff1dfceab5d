"""
What a document keeps of the report of an attempt.

Pure. A result is kept as plain JSON or not at all, so that a phase sees the same before and after a restart. What an
attempt cost is added to the sums of the workflow in the write that ends it, however it ended; sums never go down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules import cost_rules
from adws.adw_modules.cost_entries import money
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.outcome import RunReport
from adws.adw_modules.state_record import as_json

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.adw_modules.document import Cost
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject


def said_by(report: RunReport) -> JsonObject | None:
    """Return what the record of an attempt keeps of its report, None when that is nothing."""
    said: JsonObject = {}
    if report.summary:
        said["summary"] = report.summary
    if report.exit_code is not None:
        said["exit_code"] = report.exit_code
    cost = _cost_of(report)
    if cost is not None:
        said["cost_usd"] = cost
    if report.usage is not None:
        said["usage"] = _kept(report.usage)
    if report.output_files:
        said["output_files"] = list(report.output_files)
    if report.was_done:
        said["was_done"] = True

    return said or None


def result_of(phase: str, report: RunReport) -> JsonObject | None:
    """
    Return a copy of what the phase gave back.

    Raises StateUnserialisable for what would come back from the document as something else: a later phase would see
    another result after a restart than before it.
    """
    try:
        return as_json(report.result) or None
    except StateUnserialisable as exc:
        why = exc.__cause__ or "it would come back as something else"
        raise StateUnserialisable(
            f"what {phase} gave back is not plain JSON ({why}): use texts as keys, lists, texts and numbers"
        ) from exc


def summary_of(report: RunReport) -> JsonObject:
    """Return what an event tells of a report."""
    return {"summary": report.summary} if report.summary else {}


def without_traceback(error: JsonObject) -> JsonObject:
    """Return a classified error as an event tells it: the document has the long part."""
    return {name: value for name, value in error.items() if name != "traceback"}


# --- costs -----------------------------------------------------------------------------------------------------


def add_cost(draft: Draft, phase: str, report: RunReport) -> None:
    """Add what the attempt cost to the sums of the workflow; a failed attempt cost money too."""
    _add(draft, phase, _cost_of(report), report.usage)


def _add(draft: Draft, phase: str, cost: float | None, usage: Usage | None) -> None:
    if cost is None and usage is None:
        return
    draft.document.cost = _grown(draft.document.cost, phase, cost, usage)
    draft.tell("cost_added", node_id=phase, node_name=phase, node_type="phase", data=_told(cost, usage))
    cap = cost_rules.cap_of(draft.document, draft.max_cost_usd)
    warning = cost_rules.warning_for(draft.document, cap)
    if warning is None:
        return
    draft.document.cost = draft.document.cost.changed(warned_at=cap)
    told: JsonObject = {"cap_usd": cap, "spent_usd": draft.document.cost.total_usd, "message": warning}
    draft.tell("budget_warning", data=told)


def _told(cost: float | None, usage: Usage | None) -> JsonObject:
    """Return what an event tells of a cost: the amount that counts, and whom it is paid to for what."""
    said: JsonObject = {} if usage is None else _kept(usage)

    return {**said, "cost_usd": cost}


def _grown(cost: Cost, phase: str, usd: float | None, usage: Usage | None) -> Cost:
    more = usd or 0.0
    by_provider, tokens = cost.by_provider, cost.token_counts
    if usage is not None:
        by_provider = {**by_provider, usage.provider: by_provider.get(usage.provider, 0.0) + more}
        counts = {name: count for name, count in usage.tokens.to_json().items() if isinstance(count, int)}
        tokens = {**tokens, **{name: tokens.get(name, 0) + count for name, count in counts.items()}}
    is_reckoned = usd is not None and usage is not None and usage.is_estimated

    return cost.changed(
        total_usd=cost.total_usd + more,
        by_phase=cost.by_phase if usd is None else {**cost.by_phase, phase: cost.by_phase.get(phase, 0.0) + more},
        by_provider=by_provider,
        token_counts=tokens,
        is_estimated=cost.is_estimated or is_reckoned,
    )


def _cost_of(report: RunReport) -> float | None:
    """
    Return what counts as money; what an agent used decides, where there is one.

    Raises StateUnserialisable for an amount that is none: a runner that says so is wrong in other things too.
    """
    if report.usage is not None:
        return cost_rules.counted(report.usage)
    cost = money(report.cost_usd)
    if cost is None and report.cost_usd is not None:
        raise StateUnserialisable(f"{report.cost_usd} is no amount of US dollars: a cost is a number from 0 up")

    return cost


def _kept(usage: Usage) -> JsonObject:
    """Return the usage as the document keeps it: an amount that is none is not known."""
    return {**usage.to_json(), "cost_usd": money(usage.cost_usd)}
