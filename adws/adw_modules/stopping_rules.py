"""
Attempts that end before they are over: cut off by a crash, or ended on order.

Pure. One that was cut off stays counted, one that was ended on order is taken out of the count again. What either had
used and learned until then is kept. One that is closed where nobody can tell whether its process has ended is in doubt:
its record says so until whoever can looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.attempt_report import add_cost, said_by
from adws.adw_modules.attempt_rules import EXHAUSTED, Loss, abandon, duration, fail_phase, pause
from adws.adw_modules.outcome import Outcome, Stopped
from adws.adw_modules.phase_choice import MAX_SUSPENSIONS, Chosen, is_exhausted, suspensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adws.adw_modules.document import AttemptRecord, PhaseRecord
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.interfaces_engine import Harvest
    from adws.adw_modules.workflow import WorkflowSpec

#: Key of the record of a process: why nobody knows whether it has ended.
IN_DOUBT = "in_doubt"

#: Why a workflow is paused that was stopped again and again.
TOO_MANY_STOPS = "suspended_too_often"


def interrupt(
    draft: Draft, spec: WorkflowSpec, index: int, why: str, harvest: Harvest | None = None, *, doubt: str = ""
) -> Outcome | None:
    """
    Close an attempt that a crash cut off, or a deadline; it counts. Returns the outcome when it was the last one.

    *doubt* says why nobody knows whether its process has ended.
    """
    draft.end_attempt(index, "interrupted", error={"category": "interrupted", "message": why})
    if doubt:
        draft.mark_attempt(index, process={**(draft.phase(index).attempts[-1].process or {}), IN_DOUBT: doubt})
    bring_in(draft, index, harvest)
    draft.change_phase(index, status="interrupted", last_failure_reason=why, parks=0)
    draft.tell("attempt_interrupted", index, data={"why": why})
    if not is_exhausted(draft.phase(index)):
        return None

    chosen = Chosen(spec=spec.phases[index], record=draft.phase(index), index=index)

    return fail_phase(draft, spec, chosen, Loss(reason=EXHAUSTED, message=why))


def in_doubt(phases: Sequence[PhaseRecord]) -> tuple[tuple[int, AttemptRecord], ...]:
    """Return the attempts that were closed while nobody knew whether their process had ended, each with its phase."""
    return tuple(
        (index, attempt)
        for index, record in enumerate(phases)
        for attempt in record.attempts
        if attempt.process and attempt.process.get(IN_DOUBT)
    )


def doubt_of(phases: Sequence[PhaseRecord]) -> str:
    """Return why nobody knows whether the newest attempt has ended, "" when that is known."""
    newest = max((attempt for record in phases for attempt in record.attempts), key=_begun, default=None)

    return str((newest.process or {}).get(IN_DOUBT) or "") if newest is not None else ""


def _begun(attempt: AttemptRecord) -> tuple[str, int]:
    return attempt.started_at, attempt.number


def clear_doubt(draft: Draft, index: int, number: int, found: str) -> None:
    """Write down that the process of an attempt has ended, and what was *found* by who looked."""
    attempts = [
        one.changed(process={key: value for key, value in (one.process or {}).items() if key != IN_DOUBT})
        if one.number == number
        else one
        for one in draft.phase(index).attempts
    ]
    draft.change_phase(index, attempts=attempts)
    draft.tell("left_processes_ended", index, data={"attempt": number, "found": found})


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
