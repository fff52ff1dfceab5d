"""
What a document keeps of the report of an attempt.

Pure. A result is kept as plain JSON or not at all, so that a phase sees the same before and after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.outcome import RunReport
from adws.adw_modules.state_record import as_json

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject


def said_by(report: RunReport) -> JsonObject | None:
    """Return what the record of an attempt keeps of its report, None when that is nothing."""
    said: JsonObject = {}
    if report.summary:
        said["summary"] = report.summary
    if report.exit_code is not None:
        said["exit_code"] = report.exit_code
    if report.cost_usd is not None:
        said["cost_usd"] = report.cost_usd
    if report.output_files:
        said["output_files"] = list(report.output_files)

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


def add_cost(draft: Draft, phase: str, report: RunReport) -> None:
    """Add what the attempt cost to the sums of the workflow; a failed attempt cost money too."""
    if report.cost_usd is None:
        return
    cost = draft.document.cost
    by_phase = {**cost.by_phase, phase: cost.by_phase.get(phase, 0.0) + report.cost_usd}
    draft.document.cost = cost.model_copy(update={"total_usd": cost.total_usd + report.cost_usd, "by_phase": by_phase})
