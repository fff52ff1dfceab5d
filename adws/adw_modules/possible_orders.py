"""
What a person may order about a workflow as it stands now.

Pure, and no second set of rules: whether a workflow can go on is asked of the plan that going on is made with. A live
owner is asked to stop or to take a hint; what needs the workflow to be free is not offered while he has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import resume_rules, retry_rules
from adws.adw_modules.errors import AdwError, StateInvalid, UsageError
from adws.adw_modules.phase_choice import waiting_attempt
from adws.adw_modules.resume_rules import ResumePlan
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import ACTIVE_STATES, TERMINAL_STATES, state_named

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.workflow import WorkflowSpec

#: More than a workflow has cost, to see whether money is what it lacks.
_ENOUGH_USD = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GoingOn:
    """How a workflow can go on."""

    plan: str = ""  #: what would happen, in words; "": it cannot
    needs: tuple[str, ...] = ()  #: grant | budget: what has to come with the order
    phases: tuple[str, ...] = ()  #: those that it can be started from afresh
    refusal: str = ""  #: why it cannot go on, or what it needs


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """What may be ordered."""

    approval: str = ""  #: the phase that waits to be approved or rejected, "" for none
    may_pause: bool = False
    may_stop: bool = False  #: somebody works on it, and can be stopped
    may_abandon: bool = False
    may_hint: bool = False
    may_roll_back: bool = False
    is_retry: bool = False  #: it failed: going on is trying again
    going_on: GoingOn = field(default_factory=GoingOn)
    cancels: str = ""  #: the phase whose next attempt can be cancelled, "" for none

    @property
    def may_go_on(self) -> bool:
        """Whether it can be told to go on."""
        return bool(self.going_on.plan)


def possible_orders(
    document: WorkflowDocument,
    *,
    is_live: bool = False,
    is_rolled_back_next: bool = False,
    max_cost_usd: float | None = None,
    now: Callable[[], datetime],
) -> Possible:
    """
    Return what may be ordered about the workflow in *document*.

    *is_live*: somebody works on it. *is_rolled_back_next*: a rollback waits for a worker. *max_cost_usd* is the cap of
    the settings.
    """
    state = state_named(document.current_state)
    may_roll_back = state is not WorkflowState.ROLLED_BACK and not document.pr_merged
    if document.rollback is not None or is_rolled_back_next:
        return Possible(may_roll_back=may_roll_back and not is_rolled_back_next)
    is_over = state in TERMINAL_STATES
    is_free = not is_live and not is_over

    return Possible(
        approval=_approval(document) if is_free else "",
        may_pause=state in ACTIVE_STATES,
        may_stop=is_live and state in ACTIVE_STATES,
        may_abandon=not is_over,
        may_hint=not is_over,
        may_roll_back=may_roll_back,
        is_retry=state is WorkflowState.FAILED,
        going_on=_going_on(document, max_cost_usd, now) if is_free and not _waits_for_others(document) else GoingOn(),
        cancels=_cancels(document) if is_free else "",
    )


def _waits_for_others(document: WorkflowDocument) -> bool:
    """Say whether an attempt goes on by itself when others have done their work: told to go on it would wait again."""
    return any(waiting_attempt(record) is not None for record in document.phases)


def _approval(document: WorkflowDocument) -> str:
    try:
        return document.phases[resume_rules.waiting_phase(document)].name
    except UsageError:
        return ""


def _cancels(document: WorkflowDocument) -> str:
    try:
        return document.phases[retry_rules.waiting_phase(document)].name
    except UsageError:
        return ""


def _going_on(document: WorkflowDocument, max_cost_usd: float | None, now: Callable[[], datetime]) -> GoingOn:
    try:
        spec = resume_rules.definition_of(document)
        machine = WorkflowStateMachine.of(document, now=now)
    except StateInvalid as exc:
        return GoingOn(refusal=str(exc))
    asking = _Asking(document, spec, machine, max_cost_usd)
    found = asking.plan()
    if isinstance(found, ResumePlan):
        return GoingOn(plan=found.describe(), phases=asking.phases())
    for needs in (("grant",), ("budget",), ("grant", "budget")):
        other = asking.plan(needs=needs)
        if isinstance(other, ResumePlan):
            phase = f"workflow {document.adw_id} goes on with {other.phase}"
            return GoingOn(plan=phase, needs=needs, phases=asking.phases(), refusal=found)

    return GoingOn(refusal=found)


class _Asking:
    """Asks the plan of going on what it says to this and that."""

    def __init__(
        self,
        document: WorkflowDocument,
        spec: WorkflowSpec,
        machine: WorkflowStateMachine,
        max_cost_usd: float | None,
    ) -> None:
        self._document, self._spec, self._machine = document, spec, machine
        self._max_cost_usd = max_cost_usd

    def plan(self, *, from_phase: str = "", needs: tuple[str, ...] = ()) -> ResumePlan | str:
        """Return the plan, or why there is none."""
        spent = self._document.cost.total_usd
        try:
            return resume_rules.plan_resume(
                self._document,
                self._spec,
                self._machine,
                from_phase=from_phase,
                grant=1 if "grant" in needs else 0,
                budget=spent + _ENOUGH_USD if "budget" in needs else None,
                max_cost_usd=self._max_cost_usd,
            )
        except AdwError as exc:
            return str(exc)

    def phases(self) -> tuple[str, ...]:
        """Return the phases that it can be started from."""
        names = [record.name for record in self._document.phases]

        return tuple(
            name
            for name in names
            if isinstance(self.plan(from_phase=name), ResumePlan)
            or isinstance(self.plan(from_phase=name, needs=("budget",)), ResumePlan)
        )
