"""
How a stopped workflow continues: resume, retry, approval, and what a person may change then.

Pure. A plan comes first (`plan_resume`), which describes what will happen or raises the reason why it cannot; then the
same plan is applied to a draft. Resume, retry and recovery share this one path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.costs import cap_of, money, shown
from adws.adw_modules.engine.transitions import (
    REJECTED,
    AllPassed,
    TerminalFailure,
    after_phase,
    choose,
    fail_waiting,
    is_exhausted,
    limit,
    new_round,
    over_budget,
)
from adws.adw_modules.errors import StateInvalid, UsageError
from adws.adw_modules.state_machine import (
    ACTIVE_STATES,
    TERMINAL_STATES,
    WorkflowState,
    WorkflowStateMachine,
    rank,
    return_phase,
)
from adws.adw_modules.workflow.model import freeze, thaw

if TYPE_CHECKING:
    from adws.adw_modules.document import Draft, WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject
    from adws.adw_modules.phase import Outcome
    from adws.adw_modules.workflow.model import WorkflowSpec


def definition_of(document: WorkflowDocument) -> WorkflowSpec:
    """Return the definition frozen in *document*; raise StateInvalid with the remedy if it has none."""
    if document.workflow is None or not document.workflow.phases:
        raise StateInvalid(
            f"workflow {document.adw_id} comes from an older version and has no definition:"
            f" adw resume {document.adw_id} --workflow NAME gives it one"
        )

    return thaw(document.workflow)


def adopt(draft: Draft, spec: WorkflowSpec) -> None:
    """
    Make *spec* the definition of a document that has none.

    Phases before its current state are taken as complete, as the state implies. Raises UsageError if *spec* has no
    phase for that state.
    """
    from adws.adw_modules.document import PhaseRecord, WorkflowRef  # noqa: PLC0415 - only this rule makes new parts

    document, machine = draft.document, draft.machine
    refuse_what_is_over(document, machine)
    states = [WorkflowState(phase.state) for phase in spec.phases]
    stands = _back(machine) or machine.current_state
    if stands is not WorkflowState.PENDING and stands not in states:
        raise UsageError(
            f"workflow {document.adw_id} stands at {stands.value}, which {spec.name} has no phase for:"
            " name another with --workflow"
        )
    done = rank(stands)
    document.workflow = WorkflowRef.model_validate(freeze(spec))
    document.phases = [
        PhaseRecord(
            name=phase.name,
            state=phase.state,
            max_attempts=phase.max_attempts,
            status="complete" if rank(state) < done else "queued",
        )
        for phase, state in zip(spec.phases, states, strict=True)
    ]
    try:
        draft.machine = WorkflowStateMachine.of(document, now=draft.now)
    except StateInvalid as exc:
        raise UsageError(f"{spec.name} does not fit workflow {document.adw_id}: {exc}; take another workflow") from exc


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePlan:
    """How a workflow continues."""

    adw_id: str
    target: WorkflowState | None  #: the state it moves to; None: it stays in its state
    phase: str  #: the next phase to work on
    starts_round: bool = False  #: that phase and later ones start afresh
    grant: int = 0  #: additional attempts for it
    grants_retry: bool = False  #: it comes with one more retry from FAILED
    budget: float | None = None  #: its cost limit from now on, in US dollars; None: unchanged

    def describe(self) -> str:
        """Describe the plan in a sentence."""
        where = f"continues with {self.phase}" if self.phase else "is finished"
        afresh = ", from its beginning" if self.starts_round else ""
        more = f", with {self.grant} more attempt{'s' if self.grant > 1 else ''}" if self.grant else ""

        budget = f", and may cost {shown(self.budget)} USD in all" if self.budget is not None else ""

        return f"workflow {self.adw_id} {where}{afresh}{more}{budget}"


def plan_resume(
    document: WorkflowDocument,
    spec: WorkflowSpec,
    machine: WorkflowStateMachine,
    *,
    from_phase: str = "",
    grant: int = 0,
    budget: float | None = None,
    max_cost_usd: float | None = None,
) -> ResumePlan:
    """
    Return how the workflow continues; raise UsageError with the alternative if it cannot.

    *budget* is its cost limit from now on; without one its own cap applies, or *max_cost_usd* from the settings.
    """
    adw_id, state = document.adw_id, machine.current_state
    refuse_what_is_over(document, machine)
    refuse_used_up(document, machine, grant)
    refuse_spent(document, budget, max_cost_usd)
    names, result = [record.name for record in document.phases], choose(spec, document.phases)
    stopped = None if isinstance(result, AllPassed) else document.phases[result.index]
    target = _back(machine)
    if from_phase:
        if from_phase not in names:
            raise UsageError(f"workflow {adw_id} has no phase {from_phase!r}; it has: {', '.join(names)}")
        if state in ACTIVE_STATES:
            raise UsageError(f"workflow {adw_id} is {state.value}: pause it first (adw pause {adw_id})")
        if stopped is not None and names.index(from_phase) > names.index(stopped.name):
            raise UsageError(f"{from_phase} comes after {stopped.name}, where it stopped: no phase may be skipped")
        wanted = WorkflowState(document.phases[names.index(from_phase)].state)
        # A phase not begun yet comes after the state where it stopped: from there it is a step forward.
        target = wanted if target is None or rank(wanted) < rank(target) else target
    elif stopped is not None:
        if state is WorkflowState.PAUSED and stopped.status == "waiting":
            raise UsageError(
                f"workflow {adw_id} waits for approval of {stopped.name}:"
                f" adw approve {adw_id}, or adw reject {adw_id} -m TEXT"
            )
        if state is WorkflowState.FAILED and is_exhausted(stopped) and not grant:
            raise UsageError(
                f"{stopped.name} used {stopped.attempts_used} of {limit(stopped)} attempts: allow more with"
                f" adw retry {adw_id} --grant N, or start it afresh with adw resume {adw_id} --from {stopped.name}"
            )

    return ResumePlan(
        adw_id=adw_id,
        target=target,
        phase=from_phase or (stopped.name if stopped is not None else ""),
        starts_round=bool(from_phase),
        grant=grant,
        grants_retry=grant > 0 and state is WorkflowState.FAILED and machine.retries_left == 0,
        budget=None if budget is None else float(budget),
    )


def refuse_used_up(document: WorkflowDocument, machine: WorkflowStateMachine, grant: int) -> None:
    """Raise UsageError with the way to allow more if attempts, retries or the health budget are used up."""
    adw_id, state = document.adw_id, machine.current_state
    if grant < 0:
        raise UsageError(f"{grant} attempts cannot be granted: give a number from 1 up")
    if grant and state is not WorkflowState.FAILED:
        raise UsageError(f"only a failed workflow can be granted attempts, and {adw_id} is {state.value}")
    spent = over_budget(document)
    if spent:
        raise UsageError(
            f"the health budget of workflow {adw_id} is gone ({spent}): raise it with"
            f" adw state set {adw_id} max_total_attempts=N, or max_minutes=N"
        )
    if state is WorkflowState.FAILED and machine.retries_left == 0 and not grant:
        raise UsageError(
            f"workflow {adw_id} used {machine.retry_count} of {machine.max_retries} retries: allow more with"
            f" adw retry {adw_id} --grant N"
        )


def refuse_spent(document: WorkflowDocument, budget: float | None, max_cost_usd: float | None) -> None:
    """Raise UsageError with the way to allow more if the workflow has reached its cost limit."""
    spent = document.cost.total_usd
    if budget is not None and not money(budget):
        raise UsageError(f"a workflow cannot have a budget of {budget} USD: give an amount above 0, such as 20")
    if budget is not None and budget <= spent:
        raise UsageError(
            f"workflow {document.adw_id} has cost {shown(spent)} USD already, and --budget counts that too:"
            " give a larger amount"
        )
    cap = cap_of(document, max_cost_usd) if budget is None and spent else None
    if cap and spent >= cap:
        raise UsageError(
            f"workflow {document.adw_id} has cost {shown(spent)} of {shown(cap)} USD: allow it more with"
            f" adw resume {document.adw_id} --budget USD"
        )


def refuse_what_is_over(document: WorkflowDocument, machine: WorkflowStateMachine) -> None:
    """Raise UsageError for a workflow that has ended, or is being rolled back."""
    if machine.rollback_pending:
        raise UsageError(f"a rollback of {document.adw_id} was begun: finish it with adw rollback {document.adw_id}")
    if machine.current_state in TERMINAL_STATES:
        may_continue = machine.current_state is WorkflowState.COMPLETED and not machine.is_merged
        ways = [f"adw resume {document.adw_id} --workflow NAME carries it on"] if may_continue else []
        ways += [f"adw run {document.issue_number} starts anew"] if document.issue_number is not None else []
        other = f": {', '.join(ways)}" if ways else ""
        raise UsageError(f"workflow {document.adw_id} is {machine.current_state.value} and cannot go on{other}")


def _back(machine: WorkflowStateMachine) -> WorkflowState | None:
    """Return the state that a parked workflow returns to, or None if it is not parked."""
    if machine.current_state is WorkflowState.PAUSED:
        return machine.resume_state or WorkflowState.PENDING
    if machine.current_state is WorkflowState.FAILED:
        return return_phase(machine.position, machine.table)

    return None


def apply_resume(draft: Draft, plan: ResumePlan, *, hint: str = "", by: str = "") -> None:
    """Make the workflow ready to continue as planned."""
    if hint:
        add_hint(draft, plan.phase, hint, by)
    if plan.starts_round:
        new_round(draft, plan.phase)
    index = _index(draft, plan.phase)
    if plan.grant:
        if index is not None:
            draft.change_phase(index, granted=draft.phase(index).granted + plan.grant)
        if plan.grants_retry:
            draft.machine.grant_retries(1)
        given: JsonObject = {"attempts": plan.grant, "retries": int(plan.grants_retry), "by": by}
        draft.add_event("grant_given", index, data=given)
    if plan.budget is not None:
        set_budget(draft, plan.budget, by)
    if index is not None and draft.phase(index).status in ("failed", "retry_wait", "suspended", "interrupted"):
        draft.change_phase(index, status="queued", retry_at=None, wait_reason=None, terminal_reason=None)
    if plan.target is not None:
        if plan.target is not _back(draft.machine):
            draft.machine.resume_from(plan.target)
        draft.move(plan.target, {"reason": "resumed", "by": by})
    draft.document.pause_reason = None
    draft.document.terminal_reason = None
    draft.add_event("resumed", index, data={"phase": plan.phase, "by": by})


def set_budget(draft: Draft, budget: float, by: str) -> None:
    """Record the workflow's cost limit from now on."""
    before = cap_of(draft.document, draft.max_cost_usd)
    draft.document.max_cost_usd = budget
    draft.add_event("budget_set", data={"usd": budget, "before": before, "by": by})


def add_hint(draft: Draft, phase: str, text: str, by: str) -> None:
    """Record what a person wants done differently in the next attempts of *phase*."""
    hint: JsonObject = {"text": text, "by": by, "at": draft.text, "phase": phase}
    draft.document.hints = [*draft.document.hints, hint]
    draft.add_event("hint_given", _index(draft, phase), data={"text": text, "by": by})


# --- approval --------------------------------------------------------------------------------------------------


def waiting_phase(document: WorkflowDocument) -> int:
    """Return the index of the phase that waits for a person; raise UsageError if no phase does."""
    if document.current_state == WorkflowState.PAUSED.value:
        for index, record in enumerate(document.phases):
            if record.status == "waiting":
                return index

    raise UsageError(f"workflow {document.adw_id} does not wait for approval: it is {document.current_state}")


def approve(draft: Draft, spec: WorkflowSpec, *, text: str = "", by: str = "") -> Outcome:
    """Complete the waiting phase, and continue after it."""
    index = waiting_phase(draft.document)
    record = draft.change_phase(index, status="complete")
    draft.document.pause_reason = None
    draft.add_event("approval_given", index, data={"by": by, "text": text})
    draft.move(WorkflowState(record.state), {"reason": "approved", "by": by})
    draft.add_event("phase_completed", index)

    return after_phase(draft, spec)


def reject(draft: Draft, spec: WorkflowSpec, *, text: str = "", by: str = "") -> Outcome | None:
    """
    Send the phase that waits for approval back to work, with *text* as a hint; None if it is retried.

    A rejected attempt is a failed one: without attempts left the workflow fails.
    """
    index = waiting_phase(draft.document)
    said = f"rejected by {by or 'a person'}" + (f": {text}" if text else "")
    record = draft.change_phase(index, last_failure_reason=said)
    draft.document.pause_reason = None
    draft.add_event("approval_refused", index, data={"by": by, "text": text})
    draft.move(WorkflowState(record.state), {"reason": "rejected", "by": by})
    if text:
        add_hint(draft, record.name, text, by)
    if is_exhausted(record):
        return fail_waiting(draft, spec, index, TerminalFailure(reason=REJECTED, message=said))
    draft.change_phase(index, status="queued", result=None)

    return None


def _index(draft: Draft, phase: str) -> int | None:
    return next((index for index, record in enumerate(draft.document.phases) if record.name == phase), None)
