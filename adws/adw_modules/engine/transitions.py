"""
How the begin, success, failure, waiting and interruption of an attempt change a workflow; which phase is next.

Pure: each function changes a draft and returns the outcome; one write stores everything. An attempt is counted when it
begins. When the last attempt of a phase fails, phase and workflow fail in the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from adws.adw_modules import costs, timestamps
from adws.adw_modules.costs import money
from adws.adw_modules.errors import QUOTA_WAIT, IllegalTransition, StateInvalid, StateUnserialisable
from adws.adw_modules.phase import (
    Done,
    Failed,
    Next,
    Outcome,
    Paused,
    RetryAt,
    RunReport,
    Stopped,
    Wait,
    WaitingForChildren,
)
from adws.adw_modules.state_machine import STATES, WorkflowState, as_json, rank
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.adw_modules.document import AttemptRecord, Cost, Draft, PhaseRecord, WorkflowDocument
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.identifiers import JsonObject
    from adws.adw_modules.phase import Harvest


# --- choosing a phase, and limits ------------------------------------------------------------------------------
#
# Everything is derived from the attempts themselves; no second counter could disagree with them.


#: Consecutive stops on order after which a person has to decide; again after as many more.
MAX_SUSPENSIONS = 20

#: Statuses of ended attempts that count against no limit.
NOT_COUNTED = frozenset({"suspended", "parked"})
#: Status of an attempt that waits for work done elsewhere and will resume.
WAITING = "waiting"

_PASSED = frozenset({"complete", "skipped"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The phase to work on."""

    spec: PhaseSpec
    record: PhaseRecord
    index: int  #: index of the record in the document


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """A phase whose needs can no longer be met."""

    spec: PhaseSpec
    index: int
    missing: tuple[str, ...]  #: phases that would have to be complete


@dataclass(frozen=True, kw_only=True, slots=True)
class AllPassed:
    """Every phase has ended."""


def choose(spec: WorkflowSpec, phases: Sequence[PhaseRecord]) -> Chosen | Blocked | AllPassed:
    """
    Return the first phase that has not ended, in the order of the definition.

    That order respects tiers and needs, and a required phase that failed ends the workflow, so no phase of a later tier
    starts after a failed one. Raises StateInvalid if the document does not have the phases of its definition: otherwise
    a missing phase would go unnoticed.
    """
    if [record.name for record in phases] != [item.name for item in spec.phases]:
        raise StateInvalid(f"the document does not have the phases of its definition {spec.catalog_id}")
    for index, record in enumerate(phases):
        item = spec.phases[index]
        if record.status in _PASSED or is_over(item, record.status):
            continue
        missing = _missing(item.needs, phases) if item.needs else ()
        if missing:
            return Blocked(spec=item, index=index, missing=missing)

        return Chosen(spec=item, record=record, index=index)

    return AllPassed()


def _missing(needs: tuple[str, ...], phases: Sequence[PhaseRecord]) -> tuple[str, ...]:
    """Return the phases in *needs* that are not complete."""
    complete = {record.name for record in phases if record.status == "complete"}

    return tuple(name for name in needs if name not in complete)


def unmet_before(spec: WorkflowSpec, phases: Sequence[PhaseRecord], state: str) -> tuple[str, ...]:
    """Return, as text, the required phases of states before *state* that are not complete."""
    required = {item.name for item in spec.phases if item.is_required}

    return tuple(
        unmet(record.name, record)
        for record in phases
        if record.name in required and record.status != "complete" and _comes_before(record.state, state)
    )


def _comes_before(state: str, other: str) -> bool:
    return rank(WorkflowState(state)) < rank(WorkflowState(other))


def unmet(name: str, record: PhaseRecord | None) -> str:
    """Return the name of a phase that is not complete, with its status."""
    if record is not None and record.terminal_reason == OUTDATED:
        return f"{name} (the work was changed after it: do it again)"

    return f"{name} ({record.status if record is not None else 'missing'})"


def is_over(phase: PhaseSpec, status: str) -> bool:
    """Say whether the workflow may continue past *phase*."""
    return status in _PASSED or (status == "failed" and not phase.is_required)


# --- attempts --------------------------------------------------------------------------------------------------


def limit(record: PhaseRecord) -> int:
    """Return the number of attempts the phase may use in this round, including those a person granted."""
    return record.max_attempts + record.granted


def is_exhausted(record: PhaseRecord) -> bool:
    """Say whether the round has no attempt left, and none that waits and will resume."""
    return record.attempts_used >= limit(record) and waiting_attempt(record) is None


def last_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the newest attempt, or None."""
    return record.attempts[-1] if record.attempts else None


def running_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt recorded as running, or None."""
    last = record.attempts[-1] if record.attempts else None
    return last if last is not None and last.status == "running" else None


def waiting_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt of this round that waits for work done elsewhere, or None."""
    last = record.attempts[-1] if record.attempts else None
    return last if last is not None and last.status == WAITING and last.round == record.round else None


def hints_for(document: WorkflowDocument, phase: str) -> tuple[str, ...]:
    """Return the hints people gave for *phase* or for the whole workflow, oldest first."""
    return tuple(str(hint.get("text", "")) for hint in document.hints if hint.get("phase") in (phase, "", None))


def suspensions(record: PhaseRecord) -> int:
    """Return the number of consecutive stops on order."""
    return sum(1 for _ in takewhile(lambda attempt: attempt.status == "suspended", reversed(record.attempts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTotals:
    """Totals over the attempts of a phase in all rounds."""

    attempts: int
    counted: int  #: excluding suspended and parked attempts
    seconds: float
    average_seconds: float | None  #: over the attempts with a known duration


def totals(record: PhaseRecord) -> AttemptTotals:
    """Return the totals over the attempts of *record*."""
    times = [attempt.duration for attempt in record.attempts if attempt.duration is not None]
    counted = sum(1 for attempt in record.attempts if attempt.status not in NOT_COUNTED)

    return AttemptTotals(
        attempts=len(record.attempts),
        counted=counted,
        seconds=sum(times),
        average_seconds=sum(times) / len(times) if times else None,
    )


def over_budget(document: WorkflowDocument) -> str:
    """Return which health budget of the workflow is used up, or "" while some of it is left."""
    if document.max_total_attempts is None and document.max_minutes is None:
        return ""
    attempts, seconds = 0, 0.0
    for record in document.phases:
        for attempt in record.attempts:
            attempts += attempt.status not in NOT_COUNTED
            seconds += attempt.duration or 0.0
    if document.max_total_attempts is not None and attempts >= document.max_total_attempts:
        return f"{attempts} of {document.max_total_attempts} attempts are used"
    minutes = seconds / 60.0
    if document.max_minutes is not None and minutes >= document.max_minutes:
        return f"{minutes:.1f} of {document.max_minutes:g} minutes are used"

    return ""


# --- the report of an attempt in the document ------------------------------------------------------------------
#
# A result is stored as plain JSON or not at all, so that a phase sees the same before and after a restart. The cost of
# an attempt is added to the workflow's sums in the write that ends it, however it ended; sums never decrease.


def said_by(report: RunReport) -> JsonObject | None:
    """Return the part of a report stored in the attempt's record, or None if it is empty."""
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
    Return a copy of the output of the phase.

    Raises StateUnserialisable if the output would change on its way through the document: a later phase would see
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
    """Return the part of a report shown in an event."""
    return {"summary": report.summary} if report.summary else {}


def without_traceback(error: JsonObject) -> JsonObject:
    """Return a classified error for an event; only the document keeps the long traceback."""
    return {name: value for name, value in error.items() if name != "traceback"}


# --- costs -----------------------------------------------------------------------------------------------------


def add_cost(draft: Draft, phase: str, report: RunReport) -> None:
    """Add the cost of the attempt to the workflow's sums; failed attempts cost money too."""
    _add(draft, phase, _cost_of(report), report.usage)


def _add(draft: Draft, phase: str, cost: float | None, usage: Usage | None) -> None:
    if cost is None and usage is None:
        return
    draft.document.cost = _grown(draft.document.cost, phase, cost, usage)
    draft.add_event("cost_added", node_id=phase, node_name=phase, node_type="phase", data=_told(cost, usage))
    doubt = costs.doubt_of(usage)
    if doubt:
        draft.document.warnings = [*draft.document.warnings, f"{phase}: {doubt}"]
        draft.add_event("cost_unclear", node_id=phase, node_name=phase, node_type="phase", data={"message": doubt})
    cap = costs.cap_of(draft.document, draft.max_cost_usd)
    warning = costs.warning_for(draft.document, cap)
    if warning is None:
        return
    draft.document.cost = draft.document.cost.changed(warned_at=cap)
    told: JsonObject = {"cap_usd": cap, "spent_usd": draft.document.cost.total_usd, "message": warning}
    draft.add_event("budget_warning", data=told)


def _told(cost: float | None, usage: Usage | None) -> JsonObject:
    """Return the cost data of an event: the amount that counts, and the provider and usage it pays for."""
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
    Return the cost that counts as money, taken from the agent's usage if there is one.

    Raises StateUnserialisable for an invalid amount: a runner that reports one is not reliable in other facts either.
    """
    if report.usage is not None:
        return costs.counted(report.usage)
    if report.cost_usd is None:
        return None
    cost = money(report.cost_usd)
    if cost is None:
        raise StateUnserialisable(f"{report.cost_usd} is no amount of US dollars: a cost is a number from 0 up")

    return cost


def _kept(usage: Usage) -> JsonObject:
    """Return the usage as stored in the document; an invalid amount is stored as unknown."""
    return {**usage.to_json(), "cost_usd": money(usage.cost_usd)}


#: Terminal reasons; `retry_handler.decide` has further ones.
EXHAUSTED = "MAX_ATTEMPTS_EXHAUSTED"
REWORKS_EXHAUSTED = "MAX_REWORKS_EXHAUSTED"
HEALTH_BUDGET = "HEALTH_BUDGET"
NEEDS_UNMET = "NEEDS_UNMET"
REJECTED = "REJECTED"
DEADLINE = "DEADLINE"
ABANDONED = "ABANDONED"
OUTDATED = "OUTDATED"  #: done before an earlier phase was redone

#: Pause reason of a workflow.
AWAITING_APPROVAL = "awaiting_approval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A classified attempt failure, and the decision about it."""

    error: JsonObject  #: category, class, message, advice, traceback
    retry_at: datetime | None  #: None: the attempt is not retried
    terminal_reason: str = EXHAUSTED  #: used if not retried although attempts are left
    needs_cleanup: bool = False  #: something must be freed before the next attempt
    is_parked: bool = False  #: waits for a quota or a service, which uses no attempt
    wait_deadline: datetime | None = None  #: when to stop waiting for a service
    facts: ErrorFacts | None = None  #: the classified error, for the advisor and the breakers

    @property
    def message(self) -> str:
        """What went wrong, in one sentence."""
        return str(self.error.get("message") or "no reason was given")

    @property
    def advice(self) -> str:
        """What a person can do."""
        return str(self.error.get("advice") or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalFailure:
    """Why a phase ended without success."""

    reason: str  #: terminal reason
    message: str
    advice: str = ""

    def to_json(self) -> JsonObject:
        """Return the failure as event data."""
        return {"terminal_reason": self.reason, "message": self.message}


# --- beginning -------------------------------------------------------------------------------------------------


def begin(draft: Draft, chosen: Chosen, *, owner: str, fence: int, model: str = "") -> None:
    """Count and record the next attempt of *chosen*, using *model*, and move the workflow to the phase's state."""
    from adws.adw_modules.document import AttemptRecord  # noqa: PLC0415 - viewers import these rules without pydantic

    phase, record = chosen.spec, draft.document.phases[chosen.index]
    draft.advance_to(STATES[phase.state])
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
        waits_for={},
        wait_deadline_at=None,
        attempts=[*record.attempts, attempt],
    )
    counters: JsonObject = {"round": begun.round, "attempts_used": begun.attempts_used, "limit": limit(begun)}
    if model:
        counters["model"] = model
    draft.add_event("attempt_started", chosen.index, data=counters)


def _deadline(phase: PhaseSpec, start: datetime) -> str | None:
    wall = phase.timeouts.wall
    return None if wall is None else timestamps.to_text(start + timedelta(seconds=wall))


def before_attempt(draft: Draft, spec: WorkflowSpec) -> Chosen | Outcome:
    """
    Return the phase to begin now, or the outcome if none can begin.

    Fails phases that are exhausted, over budget or can never start; optional ones are passed over. Completes a workflow
    that has no phase left.
    """
    while True:
        result = choose(spec, draft.document.phases)
        if isinstance(result, AllPassed):
            return _complete(draft)
        ready = _ready(draft, result)
        if isinstance(ready, Chosen):
            return _when_due(draft, ready)
        if result.spec.is_required or ready.reason == HEALTH_BUDGET:
            return fail_workflow(draft, result.spec, result.index, ready)
        _pass_over(draft, result.spec, result.index, ready)


def _ready(draft: Draft, found: Chosen | Blocked) -> Chosen | TerminalFailure:
    """Return *found*, or why it can no longer begin."""
    if isinstance(found, Blocked):
        return TerminalFailure(reason=NEEDS_UNMET, message=f"{', '.join(found.missing)} is not complete")
    if is_exhausted(found.record):
        return TerminalFailure(reason=EXHAUSTED, message=found.record.last_failure_reason or "all attempts are used")

    return spent_budget(draft) or found


def spent_budget(draft: Draft) -> TerminalFailure | None:
    """Return a failure if the health budget is used up, or None while some of it is left."""
    spent = over_budget(draft.document)

    return TerminalFailure(reason=HEALTH_BUDGET, message=f"its health budget is gone: {spent}") if spent else None


def _when_due(draft: Draft, chosen: Chosen) -> Chosen | Outcome:
    record = chosen.record
    if record.retry_at is None or timestamps.parse(record.retry_at) <= draft.at:
        return chosen
    reason = record.wait_reason or record.last_failure_reason or "the attempt before failed"

    return RetryAt(phase=record.name, at=timestamps.parse(record.retry_at), reason=reason)


# --- success ---------------------------------------------------------------------------------------------------


def succeed(draft: Draft, spec: WorkflowSpec, chosen: Chosen, report: RunReport) -> Outcome:
    """Complete the phase, after every gate passed."""
    _close_well(draft, chosen, report, status="complete", terminal_reason=None)
    draft.add_event("phase_completed", chosen.index, duration=since_first(draft, chosen.index))

    return after_phase(draft, spec)


def after_phase(draft: Draft, spec: WorkflowSpec) -> Outcome:
    """Return the phase after one that has ended; complete the workflow if no phase is left."""
    result = choose(spec, draft.document.phases)
    if isinstance(result, AllPassed):
        return _complete(draft)

    return Next(phase=result.spec.name)


def await_approval(draft: Draft, chosen: Chosen, report: RunReport, reason: str) -> Outcome:
    """Pause the workflow until a person approves the work of the phase."""
    _close_well(draft, chosen, report, status="waiting")
    draft.add_event("approval_asked", chosen.index, data={"reason": reason})

    return pause(draft, AWAITING_APPROVAL, chosen.spec.name)


def _close_well(draft: Draft, chosen: Chosen, report: RunReport, **changes: object) -> None:
    """Record that an attempt succeeded, with *changes* to its phase record."""
    index, name = chosen.index, chosen.spec.name
    attempt = draft.end_attempt(
        index,
        "succeeded",
        duration=duration(draft, index),
        report=said_by(report),
        phase={"result": result_of(name, report), "parks": 0, **changes},
    )
    add_cost(draft, name, report)
    meta = end_meta(draft, index)
    draft.add_event(
        "attempt_succeeded", index, status=attempt.status, duration=attempt.duration, data=summary_of(report), meta=meta
    )


def rework(
    draft: Draft, spec: WorkflowSpec, chosen: Chosen, report: RunReport, trouble: Failure | None = None
) -> Outcome:
    """
    Send the work back to an earlier phase: that phase and all later ones start a new round.

    *trouble* is the failed gate, or None if the phase itself asked for rework.
    """
    target, number = chosen.spec.on_rework, draft.document.phases[chosen.index].attempts[-1].number
    if trouble is None:
        _close_well(draft, chosen, report)
    else:
        close_badly(draft, chosen, trouble, replace(report, was_done=True))
        # Nor is an older result kept: the building phase is given the results of earlier phases.
        draft.change_phase(chosen.index, result=None)
    asks = trouble.message if trouble is not None else "it asks for rework"
    goal = next(phase for phase in spec.phases if phase.name == target)
    try:
        draft.move(WorkflowState(goal.state), {"reason": "rework", "phase": chosen.spec.name})
    except IllegalTransition as exc:
        loss = TerminalFailure(reason=REWORKS_EXHAUSTED, message=f"{asks}, but {exc.why or exc}")
        draft.change_phase(chosen.index, last_failure_reason=loss.message)
        return _fail_phase(draft, spec, chosen.spec, chosen.index, loss)
    why = trouble.message if trouble is not None else report.summary
    said: JsonObject = {"gate": trouble.message} if trouble is not None else summary_of(report)
    draft.add_event("rework_asked", chosen.index, data={"back_to": target, **said})
    new_round(draft, target)
    index = next(index for index, record in enumerate(draft.document.phases) if record.name == target)
    draft.change_phase(index, sent_back={"phase": chosen.spec.name, "attempt": number, "reason": why})

    return Next(phase=target)


def new_round(draft: Draft, first: str) -> None:
    """Start a new round for the phase *first* and every later one."""
    is_after = False
    for index, record in enumerate(draft.document.phases):
        is_after = is_after or record.name == first
        if is_after:
            start_round(draft, index)


def start_round(draft: Draft, index: int) -> None:
    """Start a new round for the phase at *index*; a phase that never began keeps its round number."""
    record = draft.document.phases[index]
    draft.change_phase(
        index,
        status="queued",
        round=record.round + 1 if record.attempts else record.round,
        attempts_used=0,
        granted=0,
        retry_at=None,
        wait_reason=None,
        terminal_reason=None,
        parks=0,
        model=None,
        sent_back=None,
    )


# --- failure ---------------------------------------------------------------------------------------------------


def fail(draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Failure, report: RunReport | None) -> Outcome:
    """Close a failed attempt: it is retried later, or the phase and its workflow have failed."""
    close_badly(draft, chosen, trouble, report)

    return after_failure(draft, spec, chosen, trouble)


def close_badly(draft: Draft, chosen: Chosen, trouble: Failure, report: RunReport | None) -> None:
    """Record that an attempt failed, without its consequences."""
    index = chosen.index
    attempt = draft.end_attempt(
        index,
        "failed",
        duration=duration(draft, index),
        error=trouble.error,
        report=said_by(report) if report else None,
        phase={"last_failure_reason": trouble.message, "parks": 0},
    )
    if report is not None:
        add_cost(draft, chosen.spec.name, report)
    told: JsonObject = {"error": without_traceback(trouble.error)}
    meta: JsonObject = {
        **end_meta(draft, index),
        "error": {
            "message": trouble.message[:500],
            "has_stack_trace": bool(trouble.error.get("traceback")),
            "failed_at": draft.text,
        },
    }
    draft.add_event("attempt_failed", index, status=attempt.status, duration=attempt.duration, data=told, meta=meta)


def after_failure(draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Failure) -> Outcome:
    """Apply the decision about a failed attempt."""
    record = draft.document.phases[chosen.index]
    if trouble.retry_at is None or is_exhausted(record):
        reason = EXHAUSTED if is_exhausted(record) else trouble.terminal_reason
        loss = TerminalFailure(reason=reason, message=trouble.message, advice=trouble.advice)
        return fail_phase(draft, spec, chosen, loss)

    return retry_at(draft, chosen, trouble.retry_at, trouble)


def retry_at(draft: Draft, chosen: Chosen, at: datetime, trouble: Failure) -> Outcome:
    """Schedule a phase that has attempts left to be retried at that time."""
    spent = spent_budget(draft)
    if spent is not None:  # do not wait for an attempt that the budget forbids
        return fail_workflow(draft, chosen.spec, chosen.index, spent)

    return _retry_later(draft, chosen.index, at, trouble)


def _retry_later(draft: Draft, index: int, at: datetime, trouble: Failure) -> Outcome:
    why = trouble.message
    record = draft.change_phase(index, status="retry_wait", retry_at=timestamps.to_text(at))
    told: JsonObject = {"at": record.retry_at or "", "why": why, "category": trouble.error.get("category")}
    draft.add_event("retry_scheduled", index, data=told)

    return RetryAt(phase=record.name, at=at, reason=why)


def fail_phase(draft: Draft, spec: WorkflowSpec, chosen: Chosen, loss: TerminalFailure) -> Outcome:
    """Fail a phase for good, and its workflow too if the phase is required."""
    return _fail_phase(draft, spec, chosen.spec, chosen.index, loss)


def _fail_phase(draft: Draft, spec: WorkflowSpec, phase: PhaseSpec, index: int, loss: TerminalFailure) -> Outcome:
    if phase.is_required:
        return fail_workflow(draft, phase, index, loss)
    _pass_over(draft, phase, index, loss)

    return after_phase(draft, spec)


def _pass_over(draft: Draft, phase: PhaseSpec, index: int, loss: TerminalFailure) -> None:
    """Let the workflow continue without an optional phase."""
    has_run = bool(draft.document.phases[index].attempts)
    draft.change_phase(index, status="failed" if has_run else "skipped", terminal_reason=loss.reason, retry_at=None)
    draft.document.warnings = [*draft.document.warnings, f"{phase.name} was passed over: {loss.message}"]
    passed = since_first(draft, index)
    draft.add_event("phase_failed" if has_run else "phase_skipped", index, duration=passed, data=loss.to_json())


def fail_workflow(draft: Draft, phase: PhaseSpec, index: int, loss: TerminalFailure) -> Outcome:
    """Fail a phase for good, and its workflow with it."""
    machine = draft.machine
    draft.change_phase(index, status="failed", terminal_reason=loss.reason, retry_at=None)
    draft.add_event("phase_failed", index, duration=since_first(draft, index), data=loss.to_json())
    if machine.is_merged and phase.state == WorkflowState.CLEANING.value:
        draft.advance_to(WorkflowState.CLEANING)
        machine.finish_cleaning(loss.message)
        draft.record_transition(WorkflowState.CLEANING, {"warnings": [loss.message]})
        draft.document.warnings = [*draft.document.warnings, f"{phase.name} failed: {loss.message}"]
        return Done(state=machine.current_state.value, warnings=tuple(draft.document.warnings))
    draft.document.terminal_reason = loss.reason
    draft.move(WorkflowState.FAILED, {"reason": loss.reason, "phase": phase.name})

    return Failed(phase=phase.name, reason=loss.reason, message=loss.message, advice=loss.advice)


def fail_waiting(draft: Draft, spec: WorkflowSpec, index: int, loss: TerminalFailure) -> Outcome:
    """Fail a phase that waited for a person or for its next attempt."""
    return _fail_phase(draft, spec, spec.phases[index], index, loss)


def _complete(draft: Draft) -> Outcome:
    draft.document.terminal_reason = None
    draft.advance_to(WorkflowState.COMPLETED)

    return Done(state=WorkflowState.COMPLETED.value, warnings=tuple(draft.document.warnings))


# --- pausing and abandoning ------------------------------------------------------------------------------------


def pause(draft: Draft, reason: str, phase: str = "") -> Outcome:
    """Pause the workflow in its current state."""
    draft.document.pause_reason = reason
    draft.move(WorkflowState.PAUSED, {"reason": reason, **({"phase": phase} if phase else {})})

    return Paused(reason=reason)


def abandon(draft: Draft, reason: str) -> Outcome:
    """Abandon the workflow; what it made is kept until a rollback."""
    draft.document.terminal_reason = ABANDONED
    draft.move(WorkflowState.ABANDONED, {"reason": reason})

    return Done(state=WorkflowState.ABANDONED.value)


def end_meta(draft: Draft, index: int) -> JsonObject:
    """Return the `meta` of an event about an attempt that has ended."""
    record = draft.document.phases[index]

    return {
        "retry": {"has_config": True, "attempt_number": record.attempts_used, "max_attempts": limit(record)},
        "execution": {"duration_seconds": record.attempts[-1].duration, "completed_at": draft.text},
    }


def duration(draft: Draft, index: int) -> float:
    """Return the seconds since the newest attempt of a phase began, without the time it waited for others."""
    attempt = draft.document.phases[index].attempts[-1]
    passed = (draft.at - timestamps.parse(attempt.started_at)).total_seconds()
    return max(0.0, passed - attempt.waited_seconds)


def since_first(draft: Draft, index: int) -> float | None:
    """Return the seconds since the first attempt of the phase's round began, or None if none has begun."""
    record = draft.document.phases[index]
    for attempt in record.attempts:
        if attempt.round == record.round:
            return max(0.0, (draft.at - timestamps.parse(attempt.started_at)).total_seconds())

    return None


# --- attempts that end early: interrupted by a crash, or suspended on order ------------------------------------
#
# An interrupted attempt stays counted; a suspended one is subtracted from the count again. Usage and facts learned
# until then are kept in both cases. An attempt is in doubt if it is closed where nobody can tell whether its process
# has ended; its record says so until that is checked on the right host.


#: Key in a process record: why it is unknown whether the process has ended.
IN_DOUBT = "in_doubt"

#: Pause reason of a workflow that was suspended too often.
TOO_MANY_STOPS = "suspended_too_often"


def interrupt(
    draft: Draft, spec: WorkflowSpec, index: int, why: str, harvest: Harvest | None = None, *, doubt: str = ""
) -> Outcome | None:
    """
    Close an attempt interrupted by a crash or a deadline; it counts. Returns the outcome if no attempt is left.

    *doubt* says why it is unknown whether the attempt's process has ended.
    """
    draft.end_attempt(index, "interrupted", error={"category": "interrupted", "message": why})
    if doubt:
        draft.mark_attempt(
            index, process={**(draft.document.phases[index].attempts[-1].process or {}), IN_DOUBT: doubt}
        )
    bring_in(draft, index, harvest)
    draft.change_phase(index, status="interrupted", last_failure_reason=why, parks=0)
    draft.add_event("attempt_interrupted", index, data={"why": why})
    if not is_exhausted(draft.document.phases[index]):
        return None

    chosen = Chosen(spec=spec.phases[index], record=draft.document.phases[index], index=index)

    return fail_phase(draft, spec, chosen, TerminalFailure(reason=EXHAUSTED, message=why))


def in_doubt(phases: Sequence[PhaseRecord]) -> tuple[tuple[int, AttemptRecord], ...]:
    """Return the attempts closed while it was unknown whether their process had ended, each with its phase index."""
    return tuple(
        (index, attempt)
        for index, record in enumerate(phases)
        for attempt in record.attempts
        if attempt.process and attempt.process.get(IN_DOUBT)
    )


def doubt_of(phases: Sequence[PhaseRecord]) -> str:
    """Return why it is unknown whether the newest attempt has ended, or "" if it is known."""
    newest = max((attempt for record in phases for attempt in record.attempts), key=_begun, default=None)

    return str((newest.process or {}).get(IN_DOUBT) or "") if newest is not None else ""


def _begun(attempt: AttemptRecord) -> tuple[str, int]:
    return attempt.started_at, attempt.number


def clear_doubt(draft: Draft, index: int, number: int, found: str) -> None:
    """Record that the process of an attempt has ended, and what the check *found*."""
    attempts = [
        one.changed(process={key: value for key, value in (one.process or {}).items() if key != IN_DOUBT})
        if one.number == number
        else one
        for one in draft.document.phases[index].attempts
    ]
    draft.change_phase(index, attempts=attempts)
    draft.add_event("left_processes_ended", index, data={"attempt": number, "found": found})


def bring_in(draft: Draft, index: int, harvest: Harvest | None) -> None:
    """Store what an attempt that never reported had achieved."""
    if harvest is None:
        return
    if harvest.agent:
        draft.mark_attempt(index, agent={**(draft.document.phases[index].attempts[-1].agent or {}), **harvest.agent})
    if harvest.report is not None:
        draft.mark_attempt(index, report=said_by(harvest.report))
        add_cost(draft, draft.document.phases[index].name, harvest.report)


def suspend(draft: Draft, chosen: Chosen, *, kind: str, reason: str, harvest: Harvest | None = None) -> Outcome:
    """Close an attempt that was suspended on order; it does not count, but its usage does."""
    index = chosen.index
    record = draft.document.phases[index]
    draft.end_attempt(index, "suspended", duration=duration(draft, index), error={"order": kind, "message": reason})
    bring_in(draft, index, harvest)
    draft.change_phase(index, status="suspended", attempts_used=max(0, record.attempts_used - 1))
    draft.add_event("attempt_suspended", index, data={"order": kind, "reason": reason})
    if kind in ("pause", "stop"):
        return pause(draft, reason or "paused", chosen.spec.name)
    if kind in ("abandon", "rollback"):
        return abandon(draft, reason or kind)
    if suspensions(draft.document.phases[index]) % MAX_SUSPENSIONS == 0:
        return pause(draft, TOO_MANY_STOPS, chosen.spec.name)

    return Stopped(reason=kind)


# --- waiting for a service that is down, a used-up quota, or external tasks ------------------------------------
#
# No wait uses an attempt. `retry_handler.decide` decides how long to wait for a service.


#: Minimum seconds between two checks of a service, so that one answering "now" is not polled in a tight loop.
SHORTEST_WAIT_SECONDS = 1.0


def wait_for(draft: Draft, spec: WorkflowSpec, chosen: Chosen, wait: Wait) -> Outcome:
    """Let a phase wait for an external service before its next attempt; this uses no attempt."""
    deadline = chosen.record.wait_deadline_at
    if deadline is not None and draft.at >= timestamps.parse(deadline):
        loss = TerminalFailure(reason=DEADLINE, message=f"it was waited for until {deadline}: {wait.reason}")
        draft.change_phase(chosen.index, last_failure_reason=loss.message)
        return fail_phase(draft, spec, chosen, loss)
    at = max(wait.at, draft.at + timedelta(seconds=SHORTEST_WAIT_SECONDS))
    reason = wait.reason if deadline is None else f"{wait.reason}; {_gives_up(timestamps.parse(deadline))}"
    record = draft.change_phase(
        chosen.index,
        status="retry_wait",
        retry_at=timestamps.to_text(at),
        wait_reason=reason,
        waits_for={wait.party: wait.generation},
    )
    told: JsonObject = {"party": wait.party, "at": record.retry_at or "", "why": reason}
    draft.add_event("breaker_waited", chosen.index, data=told)

    return RetryAt(phase=record.name, at=at, reason=reason)


def _gives_up(deadline: datetime) -> str:
    """Return the end of the wait for a service, as text."""
    return f"adw gives up at {deadline:%Y-%m-%d %H:%M} UTC"


def fork(draft: Draft, chosen: Chosen, forked: WaitingForChildren) -> Outcome:
    """Let the attempt wait for work done elsewhere. It does not end, and is not counted again when it resumes."""
    draft.mark_attempt(chosen.index, status=WAITING, waiting_since=timestamps.to_text(draft.at))
    record = draft.change_phase(chosen.index, status="retry_wait", retry_at=None, wait_reason=forked.reason)
    told: JsonObject = {"until": timestamps.to_text(forked.until), "why": forked.reason, **forked.facts}
    draft.add_event("attempt_waits", chosen.index, status=WAITING, data=told)

    return RetryAt(phase=record.name, at=forked.until, reason=forked.reason, is_waiting=True)


def go_on(draft: Draft, chosen: Chosen, *, owner: str, fence: int) -> None:
    """Resume the attempt that waited."""
    draft.advance_to(WorkflowState(chosen.spec.state))
    attempt = draft.document.phases[chosen.index].attempts[-1]
    waited = attempt.waited_seconds
    if attempt.waiting_since is not None:
        waited += max(0.0, (draft.at - timestamps.parse(attempt.waiting_since)).total_seconds())
    draft.mark_attempt(
        chosen.index, status="running", owner=owner, fence=fence, waiting_since=None, waited_seconds=waited
    )
    draft.change_phase(chosen.index, status="running", wait_reason=None)
    draft.add_event("attempt_went_on", chosen.index)


def parked_in_a_row(record: PhaseRecord) -> tuple[AttemptRecord, ...]:
    """Return the last attempts in a row that this round parked, newest first (used-up quota or unavailable service)."""
    over = (attempt for attempt in reversed(record.attempts) if attempt.status not in {"running", "suspended"})

    return tuple(takewhile(lambda attempt: attempt.status == "parked" and attempt.round == record.round, over))


def is_named_reset(attempt: AttemptRecord) -> bool:
    """Say whether an attempt hit a quota whose service named the time of its reset."""
    error = attempt.error or {}
    said = error.get("metadata")
    facts = said if isinstance(said, dict) else {}

    is_named = str(facts.get("retry_at") or "") > (attempt.ended_at or "") or facts.get("retry_delay_from") == "server"

    return error.get("klass") == "quota_window" and is_named


def end_wait(draft: Draft, index: int) -> None:
    """Make a waiting phase due at once, because its service is available again."""
    draft.change_phase(index, retry_at=None)


def park(
    draft: Draft, chosen: Chosen, trouble: Failure, at: datetime, report: RunReport, *, waits_for: dict[str, int]
) -> Outcome:
    """
    Close an attempt that met a used-up quota or an unavailable service, and wait for the quota or service.

    The attempt is not counted. *waits_for* maps the services to the generations of their breakers.
    """
    index, record = chosen.index, draft.document.phases[chosen.index]
    # Without the traceback: there may be a hundred such attempts, and the message names the service.
    error = without_traceback(trouble.error)
    attempt = draft.end_attempt(index, "parked", duration=duration(draft, index), error=error, report=said_by(report))
    add_cost(draft, chosen.spec.name, report)
    if error.get("klass") == "quota_window":
        what = QUOTA_WAIT
    else:
        what = f"{' and '.join(waits_for) or 'a service'} is not available ({error.get('klass')})"
    deadline = None if trouble.wait_deadline is None else timestamps.to_text(trouble.wait_deadline)
    why = f"{what}: {trouble.message}"
    if trouble.wait_deadline is not None:
        why = f"{why}; {_gives_up(trouble.wait_deadline)}"
    parked = draft.change_phase(
        index,
        status="retry_wait",
        attempts_used=max(0, record.attempts_used - 1),
        parks=record.parks + 1,
        retry_at=timestamps.to_text(at),
        wait_reason=why,
        waits_for=waits_for,
        wait_deadline_at=deadline,
    )
    told: JsonObject = {"at": parked.retry_at or "", "why": why, "parks": parked.parks, "error": error}
    if deadline is not None:
        told["deadline"] = deadline
    draft.add_event("attempt_parked", index, status=attempt.status, duration=attempt.duration, data=told)

    return RetryAt(phase=record.name, at=at, reason=why)
