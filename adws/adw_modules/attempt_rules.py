"""
What an attempt does to a workflow: beginning it, ending it well or badly.

Pure: each rule changes a draft and returns the outcome; one write stores all of it. An attempt is counted when it is
begun; `stopping_rules` and `waiting_rules` have those that end before they are over. A phase whose last attempt fails
and the workflow that fails with it are one change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.attempt_report import add_cost, result_of, said_by, summary_of, without_traceback
from adws.adw_modules.errors import IllegalTransition
from adws.adw_modules.outcome import Done, Failed, Next, Outcome, Paused, RetryAt, RunReport
from adws.adw_modules.phase_choice import (
    AllPassed,
    Blocked,
    Chosen,
    choose,
    is_exhausted,
    last_attempt,
    limit,
    over_budget,
)
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.json_value import JsonObject

#: Terminal reasons; `retry_handler.decide` has further ones.
EXHAUSTED = "MAX_ATTEMPTS_EXHAUSTED"
REWORKS_EXHAUSTED = "MAX_REWORKS_EXHAUSTED"
HEALTH_BUDGET = "HEALTH_BUDGET"
NEEDS_UNMET = "NEEDS_UNMET"
REJECTED = "REJECTED"
ABANDONED = "ABANDONED"

#: Why a workflow is paused.
AWAITING_APPROVAL = "awaiting_approval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Why an attempt failed, classified, and what was decided about it."""

    error: JsonObject  #: category, class, message, advice, traceback
    retry_at: datetime | None  #: None: not again
    terminal_reason: str = EXHAUSTED  #: when it is not tried again though attempts are left
    needs_cleanup: bool = False  #: something has to be freed before the next attempt
    is_parked: bool = False  #: it waits for a quota, which uses no attempt
    facts: ErrorFacts | None = None  #: the error as the doctor and the breakers read it

    @property
    def message(self) -> str:
        """What went wrong, in a sentence."""
        return str(self.error.get("message") or "no reason was given")

    @property
    def advice(self) -> str:
        """What a person can do."""
        return str(self.error.get("advice") or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Why a phase is over without success."""

    reason: str  #: terminal reason
    message: str
    advice: str = ""

    def to_json(self) -> JsonObject:
        """Return it as an event tells it."""
        return {"terminal_reason": self.reason, "message": self.message}


# --- beginning -------------------------------------------------------------------------------------------------


def begin(draft: Draft, chosen: Chosen, *, owner: str, fence: int, model: str = "") -> None:
    """Count and record the next attempt of *chosen*, with the *model* for it, and move the workflow to its state."""
    from adws.adw_modules.document import AttemptRecord  # noqa: PLC0415 - viewers read these rules without pydantic

    phase, record = chosen.spec, draft.phase(chosen.index)
    draft.move_on(WorkflowState(phase.state))
    last = last_attempt(record)
    attempt = AttemptRecord(
        number=last.number + 1 if last else 1,
        round=record.round,
        status="running",
        started_at=draft.text,
        owner=owner,
        fence=fence,
        deadline_at=_deadline(phase, draft.at),
        model=model or None,
    )
    begun = draft.change_phase(
        chosen.index,
        status="running",
        attempts_used=record.attempts_used + 1,
        last_attempt_timestamp=draft.text,
        retry_at=None,
        wait_reason=None,
        attempts=[*record.attempts, attempt],
    )
    counters: JsonObject = {"round": begun.round, "attempts_used": begun.attempts_used, "limit": limit(begun)}
    if model:
        counters["model"] = model
    draft.tell("attempt_started", chosen.index, data=counters)


def _deadline(phase: PhaseSpec, start: datetime) -> str | None:
    wall = phase.timeouts.wall
    return None if wall is None else timestamps.to_text(start + timedelta(seconds=wall))


def before_attempt(draft: Draft, spec: WorkflowSpec) -> Chosen | Outcome:
    """
    Return the phase to begin now, or the outcome when there is none to begin.

    Fails what is exhausted, over its budget or can never start, passes over such phases when they are not required, and
    ends a workflow that has none left.
    """
    while True:
        found = choose(spec, draft.document.phases)
        if isinstance(found, AllPassed):
            return _complete(draft)
        ready = _ready(draft, found)
        if isinstance(ready, Chosen):
            return _when_due(draft, ready)
        if found.spec.is_required or ready.reason == HEALTH_BUDGET:
            return fail_workflow(draft, found.spec, found.index, ready)
        _pass_over(draft, found.spec, found.index, ready)


def _ready(draft: Draft, found: Chosen | Blocked) -> Chosen | Loss:
    """Return *found*, or why it cannot be begun any more."""
    if isinstance(found, Blocked):
        return Loss(reason=NEEDS_UNMET, message=f"{', '.join(found.missing)} is not complete")
    if is_exhausted(found.record):
        return Loss(reason=EXHAUSTED, message=found.record.last_failure_reason or "all attempts are used")

    return spent_budget(draft) or found


def spent_budget(draft: Draft) -> Loss | None:
    """Return that the health budget is used up, None while there is some left."""
    spent = over_budget(draft.document)

    return Loss(reason=HEALTH_BUDGET, message=f"its health budget is gone: {spent}") if spent else None


def _when_due(draft: Draft, chosen: Chosen) -> Chosen | Outcome:
    record = chosen.record
    if record.retry_at is None or timestamps.parse(record.retry_at) <= draft.at:
        return chosen
    reason = record.wait_reason or record.last_failure_reason or "the attempt before failed"

    return RetryAt(phase=record.name, at=timestamps.parse(record.retry_at), reason=reason)


# --- ending well -----------------------------------------------------------------------------------------------


def succeed(draft: Draft, spec: WorkflowSpec, chosen: Chosen, report: RunReport) -> Outcome:
    """Complete the phase; every gate has passed."""
    _close_well(draft, chosen, report)
    draft.change_phase(chosen.index, status="complete", terminal_reason=None)
    draft.tell("phase_completed", chosen.index, duration=since_first(draft, chosen.index))

    return after_phase(draft, spec)


def after_phase(draft: Draft, spec: WorkflowSpec) -> Outcome:
    """Return what comes after a phase that is over; ends the workflow when nothing does."""
    found = choose(spec, draft.document.phases)
    if isinstance(found, AllPassed):
        return _complete(draft)

    return Next(phase=found.spec.name)


def await_approval(draft: Draft, chosen: Chosen, report: RunReport, reason: str) -> Outcome:
    """Park the workflow until a person approves what the phase did."""
    _close_well(draft, chosen, report)
    draft.change_phase(chosen.index, status="waiting")
    draft.tell("approval_asked", chosen.index, data={"reason": reason})

    return pause(draft, AWAITING_APPROVAL, chosen.spec.name)


def _close_well(draft: Draft, chosen: Chosen, report: RunReport) -> None:
    index, name = chosen.index, chosen.spec.name
    attempt = draft.end_attempt(index, "succeeded", duration=duration(draft, index), report=said_by(report))
    draft.change_phase(index, result=result_of(name, report), parks=0)
    add_cost(draft, name, report)
    meta = end_meta(draft, index)
    draft.tell(
        "attempt_succeeded", index, status=attempt.status, duration=attempt.duration, data=summary_of(report), meta=meta
    )


def rework(draft: Draft, spec: WorkflowSpec, chosen: Chosen, report: RunReport) -> Outcome:
    """Send the work back to an earlier phase: it and all after it start a new round."""
    target = chosen.spec.on_rework
    _close_well(draft, chosen, report)
    goal = next(phase for phase in spec.phases if phase.name == target)
    try:
        draft.move(WorkflowState(goal.state), {"reason": "rework", "phase": chosen.spec.name})
    except IllegalTransition as exc:
        loss = Loss(reason=REWORKS_EXHAUSTED, message=f"it asks for rework, but {exc.why or exc}")
        draft.change_phase(chosen.index, last_failure_reason=loss.message)
        return _fail_phase(draft, spec, chosen.spec, chosen.index, loss)
    draft.tell("rework_asked", chosen.index, data={"back_to": target, **summary_of(report)})
    new_round(draft, target)

    return Next(phase=target)


def new_round(draft: Draft, first: str) -> None:
    """Start a new round for the phase called *first* and for every one after it."""
    is_after = False
    for index, record in enumerate(draft.document.phases):
        is_after = is_after or record.name == first
        if is_after:
            was_used = bool(record.attempts)
            draft.change_phase(
                index,
                status="queued",
                round=record.round + 1 if was_used else record.round,
                attempts_used=0,
                granted=0,
                retry_at=None,
                wait_reason=None,
                terminal_reason=None,
                parks=0,
                model=None,
            )


# --- ending badly ----------------------------------------------------------------------------------------------


def fail(draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Trouble, report: RunReport | None) -> Outcome:
    """Close a failed attempt: tried again later, or the phase and its workflow have failed."""
    close_badly(draft, chosen, trouble, report)

    return after_failure(draft, spec, chosen, trouble)


def close_badly(draft: Draft, chosen: Chosen, trouble: Trouble, report: RunReport | None) -> None:
    """Write down that an attempt failed, and nothing about what follows from it."""
    index = chosen.index
    attempt = draft.end_attempt(
        index,
        "failed",
        duration=duration(draft, index),
        error=trouble.error,
        report=said_by(report) if report else None,
    )
    if report is not None:
        add_cost(draft, chosen.spec.name, report)
    draft.change_phase(index, last_failure_reason=trouble.message, parks=0)
    told: JsonObject = {"error": without_traceback(trouble.error)}
    meta: JsonObject = {
        **end_meta(draft, index),
        "error": {
            "message": trouble.message[:500],
            "has_stack_trace": bool(trouble.error.get("traceback")),
            "failed_at": draft.text,
        },
    }
    draft.tell("attempt_failed", index, status=attempt.status, duration=attempt.duration, data=told, meta=meta)


def after_failure(draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Trouble) -> Outcome:
    """Go on after a failed attempt as was judged."""
    record = draft.phase(chosen.index)
    if trouble.retry_at is None or is_exhausted(record):
        reason = EXHAUSTED if is_exhausted(record) else trouble.terminal_reason
        loss = Loss(reason=reason, message=trouble.message, advice=trouble.advice)
        return fail_phase(draft, spec, chosen, loss)

    return retry_at(draft, chosen, trouble.retry_at, trouble)


def retry_at(draft: Draft, chosen: Chosen, at: datetime, trouble: Trouble) -> Outcome:
    """Let a phase that has attempts left be tried again at that moment."""
    spent = spent_budget(draft)
    if spent is not None:  # nobody waits an hour for an attempt that may not be made
        return fail_workflow(draft, chosen.spec, chosen.index, spent)

    return _retry_later(draft, chosen.index, at, trouble)


def _retry_later(draft: Draft, index: int, at: datetime, trouble: Trouble) -> Outcome:
    why = trouble.message
    record = draft.change_phase(index, status="retry_wait", retry_at=timestamps.to_text(at))
    told: JsonObject = {"at": record.retry_at or "", "why": why, "category": trouble.error.get("category")}
    draft.tell("retry_scheduled", index, data=told)

    return RetryAt(phase=record.name, at=at, reason=why)


def fail_phase(draft: Draft, spec: WorkflowSpec, chosen: Chosen, loss: Loss) -> Outcome:
    """Fail a phase for good, and its workflow when it is required."""
    return _fail_phase(draft, spec, chosen.spec, chosen.index, loss)


def _fail_phase(draft: Draft, spec: WorkflowSpec, phase: PhaseSpec, index: int, loss: Loss) -> Outcome:
    if phase.is_required:
        return fail_workflow(draft, phase, index, loss)
    _pass_over(draft, phase, index, loss)

    return after_phase(draft, spec)


def _pass_over(draft: Draft, phase: PhaseSpec, index: int, loss: Loss) -> None:
    """Let the workflow go on without a phase that is not required."""
    has_run = bool(draft.phase(index).attempts)
    draft.change_phase(index, status="failed" if has_run else "skipped", terminal_reason=loss.reason, retry_at=None)
    draft.document.warnings = [*draft.document.warnings, f"{phase.name} was passed over: {loss.message}"]
    passed = since_first(draft, index)
    draft.tell("phase_failed" if has_run else "phase_skipped", index, duration=passed, data=loss.to_json())


def fail_workflow(draft: Draft, phase: PhaseSpec, index: int, loss: Loss) -> Outcome:
    """Fail a phase for good, and its workflow with it."""
    machine = draft.machine
    draft.change_phase(index, status="failed", terminal_reason=loss.reason, retry_at=None)
    draft.tell("phase_failed", index, duration=since_first(draft, index), data=loss.to_json())
    if machine.is_merged and phase.state == WorkflowState.CLEANING.value:
        draft.move_on(WorkflowState.CLEANING)
        machine.finish_cleaning(loss.message)
        draft.moved(WorkflowState.CLEANING, {"warnings": [loss.message]})
        draft.document.warnings = [*draft.document.warnings, f"{phase.name} failed: {loss.message}"]
        return Done(state=machine.current_state.value, warnings=tuple(draft.document.warnings))
    draft.document.terminal_reason = loss.reason
    draft.move(WorkflowState.FAILED, {"reason": loss.reason, "phase": phase.name})

    return Failed(phase=phase.name, reason=loss.reason, message=loss.message, advice=loss.advice)


def fail_waiting(draft: Draft, spec: WorkflowSpec, index: int, loss: Loss) -> Outcome:
    """Fail a phase that waited for a person, or for its next attempt."""
    return _fail_phase(draft, spec, spec.phases[index], index, loss)


def _complete(draft: Draft) -> Outcome:
    draft.document.terminal_reason = None
    draft.move_on(WorkflowState.COMPLETED)

    return Done(state=WorkflowState.COMPLETED.value, warnings=tuple(draft.document.warnings))


# --- parking, and giving up ------------------------------------------------------------------------------------


def pause(draft: Draft, reason: str, phase: str = "") -> Outcome:
    """Park the workflow where it is."""
    draft.document.pause_reason = reason
    draft.move(WorkflowState.PAUSED, {"reason": reason, **({"phase": phase} if phase else {})})

    return Paused(reason=reason)


def abandon(draft: Draft, reason: str) -> Outcome:
    """Give the workflow up; what it made is kept until a rollback."""
    draft.document.terminal_reason = ABANDONED
    draft.move(WorkflowState.ABANDONED, {"reason": reason})

    return Done(state=WorkflowState.ABANDONED.value)


def end_meta(draft: Draft, index: int) -> JsonObject:
    """Return what `meta` says about an attempt that is over."""
    record = draft.phase(index)

    return {
        "retry": {"has_config": True, "attempt_number": record.attempts_used, "max_attempts": limit(record)},
        "execution": {"duration_seconds": record.attempts[-1].duration, "completed_at": draft.text},
    }


def duration(draft: Draft, index: int) -> float:
    """Return the seconds since the newest attempt of a phase was begun, without those it waited for others."""
    attempt = draft.phase(index).attempts[-1]
    passed = (draft.at - timestamps.parse(attempt.started_at)).total_seconds()
    return max(0.0, passed - attempt.waited_seconds)


def since_first(draft: Draft, index: int) -> float | None:
    """Return the seconds since the first attempt of a phase's round was begun, None when none was."""
    record = draft.phase(index)
    first = next((attempt for attempt in record.attempts if attempt.round == record.round), None)

    return None if first is None else max(0.0, (draft.at - timestamps.parse(first.started_at)).total_seconds())
