"""
Attempts that end before they are over: cut off by a crash, or ended on order.

Pure. One that was cut off stays counted, one that was ended on order is taken out of the count again. What either had
used and learned until then is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.attempt_report import add_cost, said_by
from adws.adw_modules.attempt_rules import EXHAUSTED, Loss, abandon, duration, fail_phase, pause
from adws.adw_modules.outcome import Outcome, Stopped
from adws.adw_modules.phase_choice import MAX_SUSPENSIONS, Chosen, is_exhausted, suspensions

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.interfaces_engine import Harvest
    from adws.adw_modules.workflow import WorkflowSpec

#: Why a workflow is paused that was stopped again and again.
TOO_MANY_STOPS = "suspended_too_often"


def interrupt(draft: Draft, spec: WorkflowSpec, index: int, why: str, harvest: Harvest | None = None) -> Outcome | None:
    """Close an attempt that a crash cut off, or a deadline; it counts. Returns the outcome when it was the last one."""
    draft.end_attempt(index, "interrupted", error={"category": "interrupted", "message": why})
    bring_in(draft, index, harvest)
    draft.change_phase(index, status="interrupted", last_failure_reason=why, parks=0)
    draft.tell("attempt_interrupted", index, data={"why": why})
    if not is_exhausted(draft.phase(index)):
        return None

    chosen = Chosen(spec=spec.phases[index], record=draft.phase(index), index=index)

    return fail_phase(draft, spec, chosen, Loss(reason=EXHAUSTED, message=why))


def bring_in(draft: Draft, index: int, harvest: Harvest | None) -> None:
    """Keep what an attempt had achieved that never reported."""
    if harvest is None:
        return
    if harvest.agent:
        draft.mark_attempt(index, agent={**(draft.phase(index).attempts[-1].agent or {}), **harvest.agent})
    if harvest.report is not None:
        draft.mark_attempt(index, report=said_by(harvest.report))
        add_cost(draft, draft.phase(index).name, harvest.report)


def suspend(draft: Draft, chosen: Chosen, *, kind: str, reason: str, harvest: Harvest | None = None) -> Outcome:
    """Close an attempt that was ended on order; it does not count, but what it used does."""
    index = chosen.index
    record = draft.phase(index)
    draft.end_attempt(index, "suspended", duration=duration(draft, index), error={"order": kind, "message": reason})
    bring_in(draft, index, harvest)
    draft.change_phase(index, status="suspended", attempts_used=max(0, record.attempts_used - 1))
    draft.tell("attempt_suspended", index, data={"order": kind, "reason": reason})
    if kind in ("pause", "stop"):
        return pause(draft, reason or "paused", chosen.spec.name)
    if kind in ("abandon", "rollback"):
        return abandon(draft, reason or kind)
    if suspensions(draft.phase(index)) % MAX_SUSPENSIONS == 0:
        return pause(draft, TOO_MANY_STOPS, chosen.spec.name)

    return Stopped(reason=kind)
