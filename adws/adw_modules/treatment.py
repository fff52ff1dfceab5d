"""
What the doctor's decision does to a workflow: one change, together with the end of the attempt it is about.

Pure. Counters are kept whatever is decided: going back to the plan starts no round, and each phase has the attempts it
had left. A decision that cannot be carried out is written down with the reason, and what was judged is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.attempt_report import add_cost
from adws.adw_modules.attempt_rules import (
    Loss,
    Trouble,
    after_failure,
    close_badly,
    fail_phase,
    fail_workflow,
    retry_at,
    spent_budget,
)
from adws.adw_modules.doctor_rules import (
    HUMAN,
    REPLAN,
    RETRY,
    RETRY_MODEL,
    SKIP,
    Consultation,
    Prescription,
    way_back,
)
from adws.adw_modules.model_choice import has_model
from adws.adw_modules.outcome import Next, Outcome, RunReport
from adws.adw_modules.state_machine import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.phase_choice import Chosen
    from adws.adw_modules.workflow import WorkflowSpec

#: Terminal reasons of phases that the doctor ended.
DOCTOR_SKIP = "DOCTOR_SKIP"
NEEDS_PERSON = "NEEDS_PERSON"


def note_call(draft: Draft, index: int, by: str) -> None:
    """Count that the doctor is about to be asked; durable before it is, for who is asked may take long, or kill us."""
    record = draft.phase(index)
    asked: JsonObject = {"attempt": record.attempts[-1].number, "asked_at": draft.text, "by": by}
    draft.change_phase(index, doctor=[*record.doctor, asked])
    draft.document.doctor_calls += 1


def treat(
    draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Trouble, *, report: RunReport, found: Consultation
) -> Outcome:
    """Close a failed attempt, and go on as the doctor *found*; *report* is that of the attempt."""
    close_badly(draft, chosen, trouble, report)
    if found.report is not None:
        add_cost(draft, chosen.spec.name, found.report)
    ordered = found.prescription
    plan = way_back(draft.document, spec, chosen.index) if ordered.decision == REPLAN else None
    refusal = plan if isinstance(plan, str) else _refusal(chosen, ordered)
    _write_down(draft, chosen.index, found, refusal)
    if refusal or ordered.decision == RETRY:
        return after_failure(draft, spec, chosen, trouble)
    if ordered.decision in (SKIP, HUMAN):
        reason = DOCTOR_SKIP if ordered.decision == SKIP else NEEDS_PERSON
        return fail_phase(draft, spec, chosen, Loss(reason=reason, message=ordered.reason, advice=trouble.advice))
    if isinstance(plan, int):
        return _replan(draft, spec, chosen, plan, ordered.reason)
    draft.change_phase(chosen.index, model=ordered.model)

    return retry_at(draft, chosen, trouble.retry_at or draft.at, trouble)


def _refusal(chosen: Chosen, ordered: Prescription) -> str:
    """Return why a decision cannot be carried out, "" when it can."""
    if ordered.decision == RETRY_MODEL and not has_model(chosen.spec):
        return f"no model works on {chosen.spec.name}"

    return ""


def _write_down(draft: Draft, index: int, found: Consultation, refusal: str) -> None:
    """Put the answer where the question stands, or both when asking took nothing; and tell it."""
    ordered, record = found.prescription, draft.phase(index)
    if not _is_asked(record.doctor):
        note_call(draft, index, found.by)
        record = draft.phase(index)
    decided: JsonObject = {"decision": ordered.decision, "reason": ordered.reason}
    if ordered.model:
        decided["model"] = ordered.model
    problem = found.problem or (f"it cannot be done: {refusal}" if refusal else "")
    if problem:
        decided["problem"] = problem
    entry: JsonObject = {**record.doctor[-1], "decided_at": draft.text, **decided}
    draft.change_phase(index, doctor=[*record.doctor[:-1], entry])
    draft.tell("doctor_decided", index, data={"by": found.by, **decided})


def _is_asked(entries: list[JsonObject]) -> bool:
    """Say whether the newest call waits for its answer; one that a crash cut off before never gets one."""
    return bool(entries) and "decision" not in entries[-1]


def _replan(draft: Draft, spec: WorkflowSpec, chosen: Chosen, plan: int, reason: str) -> Outcome:
    """Go back to the plan: it, and all that was done since, is done again with the attempts that are left."""
    spent = spent_budget(draft)
    if spent is not None:
        return fail_workflow(draft, chosen.spec, chosen.index, spent)
    goal = spec.phases[plan]
    document = draft.document
    document.replans += 1
    hint: JsonObject = {"text": f"{chosen.spec.name} failed: {reason}", "by": "doctor", "at": draft.text}
    document.hints = [*document.hints, {**hint, "phase": goal.name}]
    for index in range(plan, chosen.index + 1):
        if index == chosen.index or draft.phase(index).status == "complete":
            draft.change_phase(index, status="queued", retry_at=None, wait_reason=None)
    _move_back(draft, WorkflowState(goal.state), chosen.spec.name)

    return Next(phase=goal.name)


def _move_back(draft: Draft, goal: WorkflowState, phase: str) -> None:
    """
    Move back to the state of the plan along edges of the table, as a person would: stop, and resume from there.

    Not through FAILED: nothing has failed for good, and no retry of the workflow is used.
    """
    if draft.machine.current_state is goal:
        return
    said: JsonObject = {"reason": "replan", "phase": phase}
    draft.move(WorkflowState.PAUSED, said)
    draft.machine.resume_from(goal)
    draft.move(goal, said)
