"""
Doing what deliveries ask of workflows that are there.

What a command means is decided by `command_rules` from where the workflow stands now, not where it stood when somebody
asked. Each change is written together with the delivery that asked for it, so that nobody makes it twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules import command_rules, forge_texts
from adws.adw_modules.command_rules import CONTINUING, Action, Mark, No
from adws.adw_modules.coordination.control import Applied, Asked
from adws.adw_modules.coordination.delivery_parts import DONE, REFUSED, Came, DeliveryParts
from adws.adw_modules.coordination.delivery_starts import Starts
from adws.adw_modules.coordination.delivery_targets import Targets
from adws.adw_modules.errors import (
    ForgeNotFound,
    IllegalTransition,
    IssueLocked,
    NotTheLockOwner,
    PullRequestMerged,
    RetriesExhausted,
    StateInvalid,
    UsageError,
)
from adws.adw_modules.rollback_rules import Wishes
from adws.adw_modules.trigger import Command, DeliveryRow

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: What says that a workflow cannot do what it is asked, and why.
_CANNOT = (
    UsageError,
    IllegalTransition,
    RetriesExhausted,
    StateInvalid,
    NotTheLockOwner,
    IssueLocked,
    PullRequestMerged,
)
_Doer: TypeAlias = "Callable[[Command, WorkflowDocument, Mark], str]"


class Commands:
    """Does what commands ask."""

    def __init__(self, parts: DeliveryParts) -> None:
        self._parts = parts
        self._targets = Targets(parts)
        self._starts = Starts(parts)
        self._doers: dict[Action, _Doer] = {
            Action.PAUSE: self._pause,
            Action.STOP: self._stop,
            Action.HINT: self._hint,
            Action.RESUME: self._resume,
            Action.APPROVE: self._approve,
            Action.REJECT: self._reject,
            Action.ABANDON: self._abandon,
            Action.ROLL_BACK: self._roll_back,
            Action.CLEAN_UP: lambda _command, document, mark: parts.clean_up.after_merge(document.adw_id, mark),
            Action.REWORK: self._rework,
        }

    def obey(self, command: Command, row: DeliveryRow, mark: Mark) -> Came:
        """Do what *command* asks, or say why not; raises WorkflowBusy and what the forge raises: then it is later."""
        document = self._targets.find(command)
        if document is None:
            named = f"there is no workflow {command.adw_id} of" if command.adw_id else "no workflow is known for"
            return Came(status=REFUSED, text=f"{named} #{command.number}")
        if command_rules.is_marked(document, mark):
            state = document.current_state.replace("_", " ")
            return Came(status=DONE, text=f"it is done: workflow {document.adw_id} is {state}", adw_id=document.adw_id)
        standing = command_rules.standing_of(document)
        action = command_rules.meaning(command.kind, standing, adw_id=document.adw_id, text=command.text)
        if isinstance(action, No):
            return Came(status=DONE if action.is_done else REFUSED, text=action.why, adw_id=document.adw_id)
        why = self._why_not(command, document)
        if why:
            return Came(status=REFUSED, text=why, adw_id=document.adw_id)

        return self._done(action, command, row, document, mark)

    def _done(self, action: Action, command: Command, row: DeliveryRow, document: WorkflowDocument, mark: Mark) -> Came:
        if action is Action.TELL:
            return self._tell(document)
        if action is Action.FOLLOW_UP:
            return self._starts.follow_up(command, row, document)
        try:
            if action in CONTINUING and document.issue_number is not None:
                self._parts.claims.prove_continuing(document.adw_id, document.issue_number, document.repository)
            said = self._doers[action](command, document, mark)
        except _CANNOT as exc:
            return Came(status=REFUSED, text=str(exc), adw_id=document.adw_id)

        return Came(status=DONE, text=said, adw_id=document.adw_id)

    # --- what the forge says now -------------------------------------------------------------------------------

    def _why_not(self, command: Command, document: WorkflowDocument) -> str:
        """Return why what the forge told is not so, or does not count; "" when it does."""
        if command.kind == "rework":
            return self._why_no_rework(command, document)
        if command.cause == "pull_request":
            return self._why_not_closed(command)
        if command.cause == "closed":
            return self._why_issue_is_open(command.number)

        return ""

    def _why_not_closed(self, command: Command) -> str:
        pull = self._parts.forge().pull_request(command.number)
        if command.kind == "clean_up" and not pull.is_merged:
            return f"pull request #{command.number} is not merged"
        if command.kind == "abandon" and pull.state == "open":
            return f"pull request #{command.number} is open again"

        return ""

    def _why_issue_is_open(self, number: int) -> str:
        try:
            is_open = self._parts.forge().issue(number).state == "open"
        except ForgeNotFound:
            return ""

        return f"issue {number} is open again" if is_open else ""

    def _why_no_rework(self, command: Command, document: WorkflowDocument) -> str:
        options = self._parts.options
        if not options.has_followups:
            return "reviews and checks are not followed up here: the setting webhook.followups is off"
        spent = command_rules.why_no_follow_up(document, most=options.max_followups)
        if spent:
            return spent
        pull = self._parts.forge().pull_request(command.number)
        head = command_rules.recorded_head(document)
        if pull.state != "open":
            return f"pull request #{command.number} is not open any more"
        if not head or pull.head_sha != head:
            return f"pull request #{command.number} has commits that are not of workflow {document.adw_id}"
        if command.cause == "checks" and command.head_sha != head:
            return f"the checks are of {command.head_sha[:12]}, and the pull request is at {head[:12]}"

        return ""

    # --- doing it ----------------------------------------------------------------------------------------------

    def _tell(self, document: WorkflowDocument) -> Came:
        facts = forge_texts.sticky_facts(document, now=self._parts.clock.now())
        state = document.current_state.replace("_", " ")

        return Came(
            status=DONE,
            text=f"workflow {document.adw_id} is {state}",
            adw_id=document.adw_id,
            answer=forge_texts.sticky_text(facts),
        )

    def _pause(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)

        return _said(made.pause(document.adw_id, by=command.actor.login, reason=_reason(command, "paused")))

    def _stop(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)

        return _said(made.stop(document.adw_id, by=command.actor.login, reason=_reason(command, "stopped")))

    def _abandon(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)

        return _said(made.abandon(document.adw_id, by=command.actor.login, reason=_reason(command, "abandoned")))

    def _hint(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        return _said(self._parts.control.asked_by(mark).hint(document.adw_id, command.text, by=command.actor.login))

    def _resume(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)

        return made.resume(document.adw_id, by=command.actor.login, hint=command.text).message

    def _rework(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(replace(mark, is_follow_up=True))
        first = command_rules.rework_from(document)

        return made.resume(document.adw_id, by=command.actor.login, hint=command.text, from_phase=first).message

    def _approve(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)
        said = made.approve(document.adw_id, by=command.actor.login, text=command.text).message

        return f"workflow {document.adw_id}: {said}"

    def _reject(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._parts.control.asked_by(mark)
        said = made.reject(document.adw_id, by=command.actor.login, text=command.text).message

        return f"workflow {document.adw_id}: {said}"

    def _roll_back(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        del mark  # the run of a rollback is unique, and one that is over is found by the state
        if document.pr_merged:
            raise PullRequestMerged(document.pr_number)
        wishes = Wishes(reason=_reason(command, "rolled back"))
        self._parts.roll_back(document.adw_id, wishes, by=command.actor.login, wait_seconds=0.0)

        return f"workflow {document.adw_id} is rolled back as soon as a worker is free"


def _reason(command: Command, done: str) -> str:
    return command.text or f"{done} by {command.actor.login}"


def _said(answer: Asked | Applied) -> str:
    if isinstance(answer, Applied):
        return answer.message

    return f"workflow {answer.request.adw_id} is at work: its worker was told, and obeys within a moment"
