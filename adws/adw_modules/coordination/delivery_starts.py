"""
Starting the workflows that deliveries ask for, each once.

The id of the workflow was chosen when the delivery was accepted: whoever is cut off and comes again finds what he has
made. A new workflow takes the issue's lock with its first write, or says who has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adws.adw_modules import command_rules, forge_effects, resume_rules
from adws.adw_modules.coordination.delivery_parts import DONE, FAILED, REFUSED, Came, DeliveryParts
from adws.adw_modules.coordination.launch import Start
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import (
    Fenced,
    ForgeNotFound,
    IssueLocked,
    StateExists,
    StateInvalid,
    StateNotFound,
    UnknownWorkflow,
    WorkflowInvalid,
)
from adws.adw_modules.state_table import WorkflowState
from adws.adw_modules.trigger import Command, DeliveryRow, RunRequest
from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


class Starts:
    """Starts workflows for deliveries."""

    def __init__(self, parts: DeliveryParts) -> None:
        self._parts = parts

    def start(self, request: RunRequest, row: DeliveryRow) -> Came:
        """Start what *request* asks for under the id that *row* has, unless that was done."""
        known = self._known(row.adw_id)
        if known is not None:
            return self._came(known, request.issue.number)
        closed = self._why_not_open(request.issue.number)
        if closed:
            return Came(status=REFUSED, text=closed)
        options = self._parts.options
        try:
            spec = self._parts.workflow(request.workflow or options.default_workflow)
        except UnknownWorkflow as exc:
            return Came(status=REFUSED, text=str(exc))

        return self._launch(
            self._start_of(
                row,
                spec,
                issue_number=request.issue.number,
                issue=forge_effects.freeze(request.issue),
                model_set=request.model_set or None,
                asked_by=request.actor.login,
                hint=request.hint,
                cause=request.cause,
            )
        )

    def follow_up(self, command: Command, row: DeliveryRow, document: WorkflowDocument) -> Came:
        """Go on with the branch and the pull request of a workflow that is completed, in a new one."""
        known = self._known(row.adw_id)
        if known is not None:
            return self._came(known, document.issue_number)
        try:
            spec = followup_spec(document)
            start = self._start_of(
                row,
                spec,
                issue_number=document.issue_number,
                issue=document.issue or FrozenIssue(),
                model_set=document.model_set,
                asked_by=command.actor.login,
                hint=command.text,
                cause=command.cause,
                continues=document,
            )
            self._parts.launcher.document(start)  # raises before anything is touched when it cannot be run here
        except (WorkflowInvalid, StateInvalid) as exc:
            return Came(status=REFUSED, text=f"{document.adw_id} cannot be gone on with: {exc}", adw_id=document.adw_id)
        if document.worktree_path:
            self._parts.clean_up.worktree(document.adw_id)  # its branch can be in one worktree only

        return self._launch(start)

    # --- how ---------------------------------------------------------------------------------------------------

    def _start_of(self, row: DeliveryRow, spec: WorkflowSpec, **fields: object) -> Start:
        options = self._parts.options
        usual = Start(
            issue_number=None,
            spec=spec,
            repository=options.repository,
            adw_id=row.adw_id,
            delivery=row.guid,
            max_retries=options.max_retries,
            max_reworks=options.max_reworks,
            max_total_attempts=options.max_total_attempts,
            max_minutes=options.max_minutes,
        )

        return replace(usual, **fields)  # type: ignore[arg-type]  # the callers above name fields of Start

    def _launch(self, start: Start) -> Came:
        try:
            return _started(self._parts.launcher.start(start))
        except IssueLocked as exc:
            known = self._known(exc.holder)
            if known is not None and start.delivery in known.deliveries:
                return _started(known)
            if exc.holder != start.adw_id:
                # Fifty labels at once are one thing to say.
                why = command_rules.why_no_second(exc.holder, known)
                return Came(status=REFUSED, text=why, adw_id=exc.holder, topic=f"at work {exc.holder}")
        except StateExists:
            known = self._known(start.adw_id)
            if known is not None:
                return self._came(known, start.issue_number)
        except WorkflowInvalid as exc:
            return Came(status=REFUSED, text=f"{start.spec.name} cannot be run here: {exc}")
        except Fenced:
            if not start.adw_id:
                raise
            # Recovery forgot it already.
            return self._launch(replace(start, adw_id=""))
        # Cut off before its first write. Whoever began it is shut out for good, and with him the id.
        self._parts.claims.forget_unwritten(start.adw_id)

        return self._launch(replace(start, adw_id=""))

    def _known(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._parts.store.load(adw_id).document
        except StateNotFound:
            return None

    def _came(self, known: WorkflowDocument, issue_number: int | None) -> Came:
        locks = self._parts.locks
        is_here = locks.key(known.repository) == locks.key(self._parts.options.repository)
        if known.issue_number != issue_number or not is_here:
            text = f"the id {known.adw_id} that was chosen for it belongs to another workflow: ask once more"
            return Came(status=FAILED, text=text)

        return _started(known)

    def _why_not_open(self, number: int) -> str:
        """Return why nothing is started for an issue, as the forge has it now; "" when it is open."""
        try:
            state = self._parts.forge().issue(number).state
        except ForgeNotFound:
            return f"there is no issue {number} any more"

        return "" if state == "open" else f"issue {number} is {state}: open it again first"


def followup_spec(document: WorkflowDocument) -> WorkflowSpec:
    """Return what a follow-up runs: the definition frozen in *document*, without what comes before building."""
    spec = resume_rules.definition_of(document)
    first = command_rules.first_to_rework(document)
    names = [phase.name for phase in spec.phases]
    kept = spec.phases[names.index(first) :]
    there = {phase.name for phase in kept}

    return replace(spec, phases=tuple(_without(phase, there) for phase in kept))


def _without(phase: PhaseSpec, there: set[str]) -> PhaseSpec:
    needs = tuple(name for name in phase.needs if name in there)

    return replace(phase, needs=needs, on_rework=phase.on_rework if phase.on_rework in there else "")


def _started(document: WorkflowDocument) -> Came:
    is_new = document.current_state == WorkflowState.PENDING.value
    said = "is started" if is_new else f"was started, and is {document.current_state.replace('_', ' ')}"

    # Its own comment, which is kept up to date, says the rest.
    return Came(status=DONE, text=f"workflow {document.adw_id} {said}", adw_id=document.adw_id, is_silent=True)
