"""
Continue a workflow with the phases of another definition: plan today, build tomorrow, ship after a review.

Pure. The definition in the document becomes that of all its phases together, in the order of the pipeline. Completed
work stays on record; the named phases start a new round. If the work is planned or built again, later phases that are
not named become outdated, and nothing ships before they are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.transitions import AllPassed, choose
from adws.adw_modules.errors import UsageError
from adws.adw_modules.state_machine import ACTIVE_STATES, PARKED_STATES, WorkflowState, WorkflowStateMachine
from adws.adw_modules.workflow.model import CLEAN, SHIP, freeze

if TYPE_CHECKING:
    from adws.adw_modules.document import Draft, WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject
    from adws.adw_modules.workflow.model import WorkflowSpec

#: Phases that make the work which later phases check or use.
_MAKING = (WorkflowState.PLANNING.value, WorkflowState.BUILDING.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuePlan:
    """How a workflow continues."""

    adw_id: str
    named: WorkflowSpec  #: with the phases to be done
    budget: float | None = None  #: its cost limit from now on, in US dollars; None: unchanged

    def describe(self) -> str:
        """Describe the plan in a sentence."""
        phases = " ".join(phase.name for phase in self.named.phases)

        return f"workflow {self.adw_id} continues with {self.named.name} ({phases})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """Limits for the phases that a workflow continues with, from the settings; None: no limit."""

    attempts: int | None
    minutes: float | None
    reworks: int


def plan_continue(
    document: WorkflowDocument,
    machine: WorkflowStateMachine,
    named: WorkflowSpec,
    *,
    budget: float | None = None,
    max_cost_usd: float | None = None,
) -> ContinuePlan:
    """
    Return how the workflow continues with the phases of *named*; raise UsageError with the alternative if it cannot.

    A paused or failed workflow continues where it stopped, if *named* has that phase, with the later phases of *named*.
    """
    adw_id, state = document.adw_id, machine.current_state
    if machine.rollback_pending and state is not WorkflowState.ROLLED_BACK:
        raise UsageError(f"a rollback of {adw_id} was begun: finish it with adw rollback {adw_id}")
    if state in {WorkflowState.ABANDONED, WorkflowState.ROLLED_BACK}:
        again = f": adw run {document.issue_number} starts anew" if document.issue_number is not None else ""
        raise UsageError(f"workflow {adw_id} is {state.value} and cannot be carried on{again}")
    if state in ACTIVE_STATES:
        raise UsageError(
            f"workflow {adw_id} is {state.value} with {document.workflow_name}: wait until that is over,"
            f" or stop it with adw pause {adw_id}"
        )
    if state in PARKED_STATES:
        result = choose(resume.definition_of(document), document.phases)
        stopped = "" if isinstance(result, AllPassed) else document.phases[result.index].name
        names = [phase.name for phase in named.phases]
        if stopped not in names:
            command = f"adw {'retry' if state is WorkflowState.FAILED else 'resume'} {adw_id}"
            raise UsageError(
                f"workflow {adw_id} is {state.value} in {stopped or document.workflow_name}, which {named.name} does"
                f" not have: {command} goes on there, adw resume {adw_id} --from PHASE starts at an earlier phase again"
            )
        rest = replace(named, phases=named.phases[names.index(stopped) :])
        return ContinuePlan(adw_id=adw_id, named=rest, budget=budget)
    resume.refuse_spent(document, budget, max_cost_usd)
    _refuse_nothing_to_do(document, named)

    return ContinuePlan(adw_id=adw_id, named=named, budget=budget)


def _refuse_nothing_to_do(document: WorkflowDocument, named: WorkflowSpec) -> None:
    """Refuse a definition that would complete with nothing done, or that comes too late."""
    adw_id, first = document.adw_id, named.phases[0]
    if document.pr_merged and first.state != WorkflowState.CLEANING.value:
        again = f": adw run {document.issue_number} starts anew" if document.issue_number is not None else ""
        raise UsageError(f"the pull request of workflow {adw_id} is merged, so it is not carried on{again}")
    branch = effects.effect(document, f"branch:{document.branch_name}")
    if first.runner == SHIP and (not document.branch_name or (branch is not None and not effects.has_commits(branch))):
        raise UsageError(
            f"workflow {adw_id} has nothing to ship, as nothing is committed on a branch of its own:"
            f" adw resume {adw_id} --workflow build makes the change first"
        )
    unmet = transitions.unmet_before(resume.definition_of(document), document.phases, first.state)
    if first.runner == SHIP and unmet:
        raise UsageError(
            f"workflow {adw_id} does not ship before it is complete: {', '.join(unmet)};"
            f" adw resume {adw_id} --workflow NAME does that"
        )
    worktree = effects.effect(document, effects.WORKTREE)
    has_worktree = worktree is not None and worktree.outcome in effects.OPEN_OUTCOMES
    if all(phase.runner == CLEAN for phase in named.phases) and not has_worktree:
        raise UsageError(f"workflow {adw_id} has nothing to clean up: its worktree is removed already")


def apply_continue(
    draft: Draft,
    plan: ContinuePlan,
    joined: WorkflowSpec,
    *,
    limits: RunLimits,
    hint: str = "",
    by: str = "",
    model_set: str = "",
) -> str:
    """
    Make the workflow ready to continue as planned, and return its next phase.

    *joined* is the definition of all phases that the document has or gets. A person's request has *limits* of its own:
    the usage of earlier runs is added to them.
    """
    document, before = draft.document, draft.document.workflow
    is_parked = draft.machine.current_state in PARKED_STATES
    if not is_parked:
        everything = [transitions.totals(record) for record in document.phases]
        if document.max_total_attempts is not None and limits.attempts is not None:
            used = sum(one.counted for one in everything)
            document.max_total_attempts = max(document.max_total_attempts, used + limits.attempts)
        if document.max_minutes is not None and limits.minutes is not None:
            minutes = sum(one.seconds for one in everything) / 60.0
            document.max_minutes = max(document.max_minutes, minutes + limits.minutes)
        document.max_reworks = max(document.max_reworks, document.reworks + limits.reworks)
    _define(draft, plan, joined)
    document.model_set = model_set or document.model_set
    phases: JsonObject = {"phases": [phase.name for phase in plan.named.phases]}
    said: JsonObject = {"workflow": plan.named.name, **phases, "by": by, "before": before.name if before else ""}
    if is_parked:
        # A failed phase that is named again gets all its attempts again; one that waits for approval still waits.
        is_failed = draft.machine.current_state is WorkflowState.FAILED
        going_on = resume.plan_resume(
            document,
            joined,
            draft.machine,
            from_phase=plan.named.phases[0].name if is_failed else "",
            budget=plan.budget,
            max_cost_usd=draft.max_cost_usd,
        )
        resume.apply_resume(draft, going_on, hint=hint, by=by)
        draft.add_event("workflow_continued", data=said)
        return going_on.phase
    first = plan.named.phases[0]
    if hint:
        resume.add_hint(draft, "", hint, by)
    if plan.budget is not None:
        resume.set_budget(draft, plan.budget, by)
    _start_rounds(draft, plan.named)
    draft.move(WorkflowState(first.state), {"reason": "continued", "workflow": plan.named.name, "by": by})
    document.terminal_reason = None
    draft.add_event("workflow_continued", data=said)

    return first.name


def _define(draft: Draft, plan: ContinuePlan, joined: WorkflowSpec) -> None:
    """Replace the document's definition with *joined*, and keep or create a record for each of its phases."""
    from adws.adw_modules.document import PhaseRecord, WorkflowRef  # noqa: PLC0415 - only this rule makes new parts

    document, before = draft.document, resume.definition_of(draft.document)
    earlier, dropped = document.workflow.earlier if document.workflow is not None else [], document.history_dropped
    kept = [one for one in earlier if isinstance(made := one.get("moves"), int) and made > dropped]
    moves = document.history_dropped + len(document.state_history)
    states: JsonObject = {"states": list(dict.fromkeys(phase.state for phase in before.phases))}
    former: JsonObject = {"name": before.name, "version": before.version, **states, "moves": moves}
    whole = replace(plan.named, phases=joined.phases, workload={**before.workload, **plan.named.workload})
    # Earlier moves are checked against the earlier definitions, as long as the document keeps those moves.
    more = {"run_phases": [phase.name for phase in plan.named.phases], "earlier": [*kept, former]}
    document.workflow = WorkflowRef.model_validate({**freeze(whole), **more})
    records, names = {record.name: record for record in document.phases}, {phase.name for phase in plan.named.phases}
    document.phases = [
        PhaseRecord(name=phase.name, state=phase.state, max_attempts=phase.max_attempts)
        if phase.name not in records
        else records[phase.name].changed(max_attempts=phase.max_attempts)
        if phase.name in names
        else records[phase.name]
        for phase in joined.phases
    ]
    draft.machine = WorkflowStateMachine.of(document, now=draft.now)


def _start_rounds(draft: Draft, named: WorkflowSpec) -> None:
    """Start a new round for the phases of *named*; work based on what is made again becomes outdated."""
    names = {phase.name for phase in named.phases}
    is_made_again = False
    for index, record in enumerate(draft.document.phases):
        if record.name in names:
            transitions.start_round(draft, index)
            is_made_again = is_made_again or record.state in _MAKING
        elif is_made_again:
            draft.change_phase(index, status="skipped", terminal_reason=transitions.OUTDATED, result=None)
