"""
What begin, success, failure, waiting and interruption of an attempt do to a workflow, and which phase comes next.

Pure: each function changes a draft and returns the outcome; one write stores all of it. An attempt is counted when it
begins. A phase whose last attempt fails and the workflow that fails with it are one change.
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


# Which phase comes next, how many attempts it has, and what its attempts add up to.
#
# Pure. Everything is read off the attempts themselves: there is no second counter that could say something else.


#: Ordered stops in a row after which a person has to decide, and again after as many more.
MAX_SUSPENSIONS = 20

#: How attempts end that do not count against any limit.
NOT_COUNTED = frozenset({"suspended", "parked"})
#: The status of an attempt that waits for work that others do, and goes on.
WAITING = "waiting"

_PASSED = frozenset({"complete", "skipped"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The phase to work on."""

    spec: PhaseSpec
    record: PhaseRecord
    index: int  #: of the record in the document


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """A phase whose needs can never be met any more."""

    spec: PhaseSpec
    index: int
    missing: tuple[str, ...]  #: phases that would have to be complete


@dataclass(frozen=True, kw_only=True, slots=True)
class AllPassed:
    """There is nothing left to do."""


def choose(spec: WorkflowSpec, phases: Sequence[PhaseRecord]) -> Chosen | Blocked | AllPassed:
    """
    Return the first phase that is not over, in the order of the definition.

    That order respects tiers and needs, and a required phase that failed ends the workflow: so nothing of a later tier
    starts after a failed one. Raises StateInvalid when the document has other phases than its definition: one that was
    left out would be one that nobody missed.
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
    """Return those of *needs* that are not complete."""
    complete = {record.name for record in phases if record.status == "complete"}

    return tuple(name for name in needs if name not in complete)


def unmet_before(spec: WorkflowSpec, phases: Sequence[PhaseRecord], state: str) -> tuple[str, ...]:
    """Return the required phases of states before *state* that are not explicitly complete, as text."""
    required = {item.name for item in spec.phases if item.is_required}

    return tuple(
        unmet(record.name, record)
        for record in phases
        if record.name in required and record.status != "complete" and _comes_before(record.state, state)
    )


def _comes_before(state: str, other: str) -> bool:
    return rank(WorkflowState(state)) < rank(WorkflowState(other))


def unmet(name: str, record: PhaseRecord | None) -> str:
    """Return a phase that is not complete, with how it stands."""
    if record is not None and record.terminal_reason == OUTDATED:
        return f"{name} (the work was changed after it: do it again)"

    return f"{name} ({record.status if record is not None else 'missing'})"


def is_over(phase: PhaseSpec, status: str) -> bool:
    """Say whether the workflow may go past *phase*."""
    return status in _PASSED or (status == "failed" and not phase.is_required)


# --- attempts --------------------------------------------------------------------------------------------------


def limit(record: PhaseRecord) -> int:
    """Return how many attempts the phase has in this round, with what a person granted."""
    return record.max_attempts + record.granted


def is_exhausted(record: PhaseRecord) -> bool:
    """Say whether the round has no attempt left, nor one that waits for others and goes on."""
    return record.attempts_used >= limit(record) and waiting_attempt(record) is None


def last_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the newest attempt."""
    return record.attempts[-1] if record.attempts else None


def running_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt that is recorded as running, if its end is not."""
    last = record.attempts[-1] if record.attempts else None
    return last if last is not None and last.status == "running" else None


def waiting_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt of this round that waits for work that others do."""
    last = record.attempts[-1] if record.attempts else None
    return last if last is not None and last.status == WAITING and last.round == record.round else None


def hints_for(document: WorkflowDocument, phase: str) -> tuple[str, ...]:
    """Return what people said about *phase*, or about the workflow as a whole, oldest first."""
    return tuple(str(hint.get("text", "")) for hint in document.hints if hint.get("phase") in (phase, "", None))


def suspensions(record: PhaseRecord) -> int:
    """Return how many ordered stops there were in a row."""
    return sum(1 for _ in takewhile(lambda attempt: attempt.status == "suspended", reversed(record.attempts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTotals:
    """What the attempts of a phase add up to, over all rounds."""

    attempts: int
    counted: int  #: without those that were ended on order or parked
    seconds: float
    average_seconds: float | None  #: of those whose time is known


def totals(record: PhaseRecord) -> AttemptTotals:
    """Return what the attempts of *record* add up to."""
    times = [attempt.duration for attempt in record.attempts if attempt.duration is not None]
    counted = sum(1 for attempt in record.attempts if attempt.status not in NOT_COUNTED)

    return AttemptTotals(
        attempts=len(record.attempts),
        counted=counted,
        seconds=sum(times),
        average_seconds=sum(times) / len(times) if times else None,
    )


def over_budget(document: WorkflowDocument) -> str:
    """Return how the workflow's health budget is used up, "" while there is some left."""
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


# What a document keeps of the report of an attempt.
#
# Pure. A result is kept as plain JSON or not at all, so that a phase sees the same before and after a restart. What an
# attempt cost is added to the sums of the workflow in the write that ends it, however it ended; sums never go down.


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
    """Return what an event shows of a report."""
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
    """Return what an event shows of a cost: the amount that counts, and whom it is paid to for what."""
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
        return costs.counted(report.usage)
    if report.cost_usd is None:
        return None
    cost = money(report.cost_usd)
    if cost is None:
        raise StateUnserialisable(f"{report.cost_usd} is no amount of US dollars: a cost is a number from 0 up")

    return cost


def _kept(usage: Usage) -> JsonObject:
    """Return the usage as the document keeps it: an amount that is none is not known."""
    return {**usage.to_json(), "cost_usd": money(usage.cost_usd)}


#: Terminal reasons; `retry_handler.decide` has further ones.
EXHAUSTED = "MAX_ATTEMPTS_EXHAUSTED"
REWORKS_EXHAUSTED = "MAX_REWORKS_EXHAUSTED"
HEALTH_BUDGET = "HEALTH_BUDGET"
NEEDS_UNMET = "NEEDS_UNMET"
REJECTED = "REJECTED"
DEADLINE = "DEADLINE"
ABANDONED = "ABANDONED"
OUTDATED = "OUTDATED"  #: it was done before an earlier phase was done again

#: Why a workflow is paused.
AWAITING_APPROVAL = "awaiting_approval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed, classified, and what was decided about it."""

    error: JsonObject  #: category, class, message, advice, traceback
    retry_at: datetime | None  #: None: not again
    terminal_reason: str = EXHAUSTED  #: when it is not retried though attempts are left
    is_parked: bool = False  #: it waits for a quota or a service, which uses no attempt
    wait_deadline: datetime | None = None  #: when a service is no longer waited for
    facts: ErrorFacts | None = None  #: the error as the advisor and the breakers read it

    @property
    def message(self) -> str:
        """What went wrong, in a sentence."""
        return str(self.error.get("message") or "no reason was given")

    @property
    def advice(self) -> str:
        """What a person can do."""
        return str(self.error.get("advice") or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalFailure:
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
    Return the phase to begin now, or the outcome when there is none to begin.

    Fails what is exhausted, over its budget or can never start, passes over such phases when they are not required, and
    ends a workflow that has none left.
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
    """Return *found*, or why it cannot be begun any more."""
    if isinstance(found, Blocked):
        return TerminalFailure(reason=NEEDS_UNMET, message=f"{', '.join(found.missing)} is not complete")
    if is_exhausted(found.record):
        return TerminalFailure(reason=EXHAUSTED, message=found.record.last_failure_reason or "all attempts are used")

    return spent_budget(draft) or found


def spent_budget(draft: Draft) -> TerminalFailure | None:
    """Return that the health budget is used up, None while there is some left."""
    spent = over_budget(draft.document)

    return TerminalFailure(reason=HEALTH_BUDGET, message=f"its health budget is gone: {spent}") if spent else None


def _when_due(draft: Draft, chosen: Chosen) -> Chosen | Outcome:
    record = chosen.record
    if record.retry_at is None or timestamps.parse(record.retry_at) <= draft.at:
        return chosen
    reason = record.wait_reason or record.last_failure_reason or "the attempt before failed"

    return RetryAt(phase=record.name, at=timestamps.parse(record.retry_at), reason=reason)


# --- ending well -----------------------------------------------------------------------------------------------


def succeed(draft: Draft, spec: WorkflowSpec, chosen: Chosen, report: RunReport) -> Outcome:
    """Complete the phase; every gate has passed."""
    _close_well(draft, chosen, report, status="complete", terminal_reason=None)
    draft.add_event("phase_completed", chosen.index, duration=since_first(draft, chosen.index))

    return after_phase(draft, spec)


def after_phase(draft: Draft, spec: WorkflowSpec) -> Outcome:
    """Return what comes after a phase that is over; ends the workflow when nothing does."""
    result = choose(spec, draft.document.phases)
    if isinstance(result, AllPassed):
        return _complete(draft)

    return Next(phase=result.spec.name)


def await_approval(draft: Draft, chosen: Chosen, report: RunReport, reason: str) -> Outcome:
    """Park the workflow until a person approves what the phase did."""
    _close_well(draft, chosen, report, status="waiting")
    draft.add_event("approval_asked", chosen.index, data={"reason": reason})

    return pause(draft, AWAITING_APPROVAL, chosen.spec.name)


def _close_well(draft: Draft, chosen: Chosen, report: RunReport, **changes: object) -> None:
    """Record that an attempt succeeded, with *changes* of its phase."""
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
    Send the work back to an earlier phase: it and all after it start a new round.

    *trouble* is the gate that was red; None when the phase itself asks for it.
    """
    target, number = chosen.spec.on_rework, draft.document.phases[chosen.index].attempts[-1].number
    if trouble is None:
        _close_well(draft, chosen, report)
    else:
        close_badly(draft, chosen, trouble, replace(report, was_done=True))
        # Not as it was before either: the phase that builds is told what earlier phases gave back.
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
    """Start a new round for the phase called *first* and for every one after it."""
    is_after = False
    for index, record in enumerate(draft.document.phases):
        is_after = is_after or record.name == first
        if is_after:
            start_round(draft, index)


def start_round(draft: Draft, index: int) -> None:
    """Start a new round for the phase at *index*, unless it was never begun."""
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


# --- ending badly ----------------------------------------------------------------------------------------------


def fail(draft: Draft, spec: WorkflowSpec, chosen: Chosen, trouble: Failure, report: RunReport | None) -> Outcome:
    """Close a failed attempt: retried later, or the phase and its workflow have failed."""
    close_badly(draft, chosen, trouble, report)

    return after_failure(draft, spec, chosen, trouble)


def close_badly(draft: Draft, chosen: Chosen, trouble: Failure, report: RunReport | None) -> None:
    """Write down that an attempt failed, and nothing about what follows from it."""
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
    """Go on after a failed attempt as was judged."""
    record = draft.document.phases[chosen.index]
    if trouble.retry_at is None or is_exhausted(record):
        reason = EXHAUSTED if is_exhausted(record) else trouble.terminal_reason
        loss = TerminalFailure(reason=reason, message=trouble.message, advice=trouble.advice)
        return fail_phase(draft, spec, chosen, loss)

    return retry_at(draft, chosen, trouble.retry_at, trouble)


def retry_at(draft: Draft, chosen: Chosen, at: datetime, trouble: Failure) -> Outcome:
    """Let a phase that has attempts left be retried at that moment."""
    spent = spent_budget(draft)
    if spent is not None:  # nobody waits an hour for an attempt that may not be made
        return fail_workflow(draft, chosen.spec, chosen.index, spent)

    return _retry_later(draft, chosen.index, at, trouble)


def _retry_later(draft: Draft, index: int, at: datetime, trouble: Failure) -> Outcome:
    why = trouble.message
    record = draft.change_phase(index, status="retry_wait", retry_at=timestamps.to_text(at))
    told: JsonObject = {"at": record.retry_at or "", "why": why, "category": trouble.error.get("category")}
    draft.add_event("retry_scheduled", index, data=told)

    return RetryAt(phase=record.name, at=at, reason=why)


def fail_phase(draft: Draft, spec: WorkflowSpec, chosen: Chosen, loss: TerminalFailure) -> Outcome:
    """Fail a phase for good, and its workflow when it is required."""
    return _fail_phase(draft, spec, chosen.spec, chosen.index, loss)


def _fail_phase(draft: Draft, spec: WorkflowSpec, phase: PhaseSpec, index: int, loss: TerminalFailure) -> Outcome:
    if phase.is_required:
        return fail_workflow(draft, phase, index, loss)
    _pass_over(draft, phase, index, loss)

    return after_phase(draft, spec)


def _pass_over(draft: Draft, phase: PhaseSpec, index: int, loss: TerminalFailure) -> None:
    """Let the workflow go on without a phase that is not required."""
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
    """Fail a phase that waited for a person, or for its next attempt."""
    return _fail_phase(draft, spec, spec.phases[index], index, loss)


def _complete(draft: Draft) -> Outcome:
    draft.document.terminal_reason = None
    draft.advance_to(WorkflowState.COMPLETED)

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
    record = draft.document.phases[index]

    return {
        "retry": {"has_config": True, "attempt_number": record.attempts_used, "max_attempts": limit(record)},
        "execution": {"duration_seconds": record.attempts[-1].duration, "completed_at": draft.text},
    }


def duration(draft: Draft, index: int) -> float:
    """Return the seconds since the newest attempt of a phase was begun, without those it waited for others."""
    attempt = draft.document.phases[index].attempts[-1]
    passed = (draft.at - timestamps.parse(attempt.started_at)).total_seconds()
    return max(0.0, passed - attempt.waited_seconds)


def since_first(draft: Draft, index: int) -> float | None:
    """Return the seconds since the first attempt of a phase's round was begun, None when none was."""
    record = draft.document.phases[index]
    for attempt in record.attempts:
        if attempt.round == record.round:
            return max(0.0, (draft.at - timestamps.parse(attempt.started_at)).total_seconds())

    return None


# Attempts that end early: interrupted by a crash, or suspended on order.
#
# Pure. An interrupted attempt stays counted, a suspended one is taken out of the count again. What either had used and
# learned until then is kept. An attempt that is closed where it cannot be told whether its process has ended is in
# doubt: its record says so until that was checked on the right host.


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
    """Keep what an attempt had achieved that never reported."""
    if harvest is None:
        return
    if harvest.agent:
        draft.mark_attempt(index, agent={**(draft.document.phases[index].attempts[-1].agent or {}), **harvest.agent})
    if harvest.report is not None:
        draft.mark_attempt(index, report=said_by(harvest.report))
        add_cost(draft, draft.document.phases[index].name, harvest.report)


def suspend(draft: Draft, chosen: Chosen, *, kind: str, reason: str, harvest: Harvest | None = None) -> Outcome:
    """Close an attempt that was ended on order; it does not count, but what it used does."""
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


# Waiting: for an external service that is down, for a quota that is used up, and for external tasks.
#
# Pure. None of them uses an attempt. How long a service is waited for is decided by `retry_handler.decide`.


#: Seconds between two checks of a service, at least: one that says "now" must not be asked without end.
SHORTEST_WAIT_SECONDS = 1.0


def wait_for(draft: Draft, spec: WorkflowSpec, chosen: Chosen, wait: Wait) -> Outcome:
    """Let a phase wait for an external service before its next attempt; no attempt is used."""
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
    """Return until when a service is waited for, in words."""
    return f"adw gives up at {deadline:%Y-%m-%d %H:%M} UTC"


def fork(draft: Draft, chosen: Chosen, forked: WaitingForChildren) -> Outcome:
    """Let the attempt wait for work that others do; it is not over, and not counted again when it goes on."""
    draft.mark_attempt(chosen.index, status=WAITING, waiting_since=timestamps.to_text(draft.at))
    record = draft.change_phase(chosen.index, status="retry_wait", retry_at=None, wait_reason=forked.reason)
    told: JsonObject = {"until": timestamps.to_text(forked.until), "why": forked.reason, **forked.facts}
    draft.add_event("attempt_waits", chosen.index, status=WAITING, data=told)

    return RetryAt(phase=record.name, at=forked.until, reason=forked.reason, is_waiting=True)


def go_on(draft: Draft, chosen: Chosen, *, owner: str, fence: int) -> None:
    """Go on with the attempt that waited."""
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
    """Return the attempts of this round, newest first, that met a used-up quota or a service that is not available."""
    over = (attempt for attempt in reversed(record.attempts) if attempt.status not in {"running", "suspended"})

    return tuple(takewhile(lambda attempt: attempt.status == "parked" and attempt.round == record.round, over))


def is_named_reset(attempt: AttemptRecord) -> bool:
    """Say whether an attempt met a quota whose service named the moment of its reset."""
    error = attempt.error or {}
    said = error.get("metadata")
    facts = said if isinstance(said, dict) else {}

    is_named = str(facts.get("retry_at") or "") > (attempt.ended_at or "") or facts.get("retry_delay_from") == "server"

    return error.get("klass") == "quota_window" and is_named


def end_wait(draft: Draft, index: int) -> None:
    """Make a phase due that waits for a service which is available again."""
    draft.change_phase(index, retry_at=None)


def park(
    draft: Draft, chosen: Chosen, trouble: Failure, at: datetime, report: RunReport, *, waits_for: dict[str, int]
) -> Outcome:
    """
    Close an attempt that met a used-up quota or a service that is not available, and wait for that.

    The attempt is taken out of the count. *waits_for* are the services, with the generations of their breakers.
    """
    index, record = chosen.index, draft.document.phases[chosen.index]
    # Without the traceback: there may be a hundred of these, and the message says which service it was.
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
