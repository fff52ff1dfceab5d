"""
Carry out deliveries: load, authorise, act, answer, finish, in this order (`DeliveryHandler.work`).

The requester's permission is checked on every try, before any lock is taken. Every step can be interrupted and
repeated: a new workflow has the id chosen when the delivery was accepted, a change is stored together with the mark of
its delivery, an answer is found by its marker, and the delivery ends in one transaction with its run. If the forge does
not respond, the delivery is retried later, a limited number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import document as document_module
from adws.adw_modules import effects, timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import (
    CONTINUING,
    FACTS,
    Command,
    CommandAction,
    Delivery,
    No,
    Request,
    RunRequest,
)
from adws.adw_modules.document import Draft, FrozenIssue, Mark
from adws.adw_modules.effects import Ledger
from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import (
    ConfigError,
    DatabaseError,
    DeliveryNotFound,
    Fenced,
    ForgeBusy,
    ForgeError,
    ForgeNotFound,
    ForgeUnavailable,
    GitError,
    GitUnreachable,
    IllegalTransition,
    InvalidAdwId,
    IssueLocked,
    LeaseLost,
    NotTheLockOwner,
    PullRequestMerged,
    PullRequestOpen,
    QuotaExceeded,
    RetriesExhausted,
    RunLost,
    StartRefused,
    StateConflict,
    StateError,
    StateExists,
    StateInvalid,
    StateNotFound,
    UnknownWorkflow,
    UsageError,
    WorkflowBusy,
    WorkflowInvalid,
)
from adws.adw_modules.forge import effects as forge_effects
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.identifiers import comparable
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.queue.model import Run, RunEnd, RunResult, RunState
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.state_machine import PARKED_STATES, WorkflowState
from adws.adw_modules.worker import control
from adws.adw_modules.worker.control import Applied, Asked
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_modules.workflow.model import WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


logger = logging.getLogger("adw.deliveries")

#: The most tries of a delivery, and the seconds before the second; each further wait doubles.
MAX_TRIES = 10
FIRST_SECONDS = 5.0
MAX_SECONDS = 600.0

DONE, REFUSED, FAILED = "done", "refused", "failed"

#: Errors after which a retry may succeed: the forge did not respond, or another process has the workflow right now.
_LATER = (ForgeUnavailable, ForgeBusy, GitUnreachable, WorkflowBusy, LeaseLost, Fenced, StateConflict)
#: Errors that prevent a start until a person changes something.
_NO_START = (StartRefused, UsageError, ConfigError, UnknownWorkflow, QuotaExceeded, GitError)
#: Errors that say why a workflow cannot do what is requested.
_CANNOT = (
    UsageError,
    IllegalTransition,
    RetriesExhausted,
    StateInvalid,
    NotTheLockOwner,
    IssueLocked,
    PullRequestMerged,
)
#: Causes of commands that concern a pull request.
_OF_PULL_REQUESTS = frozenset({"pull_request", "review", "checks"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryResult:
    """The result of a delivery."""

    status: str  #: done | refused | failed
    text: str  #: one sentence
    adw_id: str = ""
    answer: str = ""  #: the comment to post instead of the sentence
    topic: str = ""  #: one comment is posted per topic; "": each delivery gets its own answer
    is_silent: bool = False  #: post no comment
    is_forbidden: bool = False  #: the requester lacks the permission, which is said once


class DeliveryHandler:
    """Executes runs of kind `delivery`; implements `JobHandler`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def work(self, run: Run) -> RunResult:
        """Carry out the delivery of a claimed run and end both in one transaction, or requeue the run for later."""
        home = self._home
        run = home.runs.begin(run)
        row = home.deliveries.get(_guid(run))
        if row is None:
            raise UsageError(f"delivery {_guid(run)} is not kept any more: there is nothing to do")
        if row.status != "received":  # a worker recorded the end and died before it ended the run
            ended = home.runs.finish(run, RunState.COMPLETED, reason=row.outcome)
            return RunResult(run=ended, outcome=None, message=row.outcome)
        if run.state is RunState.STOPPING:
            stopped = DeliveryResult(status=FAILED, text=f"its run was stopped: {run.reason}")
            return self._finish(run, stopped, RunEnd(state=RunState.STOPPED, reason=run.reason))
        try:
            request = commands.from_json(home.deliveries.request_of(row.guid) or {})
        except DatabaseError as exc:  # written by another version: a retry would not help
            raise UsageError(str(exc)) from exc

        try:
            with home.lease_renewer.keep(run, is_wanted=lambda: True) as claim:
                why = self._why_not_authorised(request)
                order = claim.current()
                if order is not None and order.kind == "lost_lease":  # the forge was slow: another worker has it
                    raise RunLost(run.run_id)
                if why:
                    result = DeliveryResult(status=REFUSED, text=why, is_forbidden=True)
                else:
                    result = self._act(request, run, row)
                self._answer(request, row, result)
        except _LATER as exc:
            if run.attempts < MAX_TRIES:
                seconds = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** min(max(run.attempts - 1, 0), 16))
                if isinstance(exc, ForgeBusy):
                    seconds = min(MAX_SECONDS, max(seconds, exc.seconds))
                due = timestamps.to_text(home.clock.now() + timedelta(seconds=seconds))
                again = home.runs.requeue(run, not_before=due, reason=str(exc))
                return RunResult(run=again, outcome=None, message=str(exc))
            why = f"failed after {run.attempts} tries: {exc}"
            return self._finish(run, DeliveryResult(status=FAILED, text=why), RunEnd(state=RunState.FAILED, reason=why))

        facts = {"delivery": row.guid, "status": result.status, "outcome": result.text, "workflow": result.adw_id}
        action = "delivery_done" if result.status == DONE else "delivery_refused"
        logger.info("Delivery carried out", extra={"action": action, **facts})

        return self._finish(run, result, RunEnd(state=RunState.COMPLETED, reason=result.text))

    def give_up(self, run: Run, why: str) -> None:
        """Record that the delivery of *run* failed, and why."""
        try:
            self._home.deliveries.finish(_guid(run), status=FAILED, outcome=why)
        except DeliveryNotFound:
            return  # deleted meanwhile: nobody needs the result

    def _finish(self, run: Run, result: DeliveryResult, end: RunEnd) -> RunResult:
        ended = self._home.deliveries.finish_with_run(
            run, end, status=result.status, outcome=result.text, adw_id=result.adw_id
        )

        return RunResult(run=ended, outcome=None, message=end.reason)

    # --- authorise, act, answer --------------------------------------------------------------------------------

    def _why_not_authorised(self, request: Request) -> str:
        """Return why the request is refused, or ""."""
        settings = self._home.settings
        ours = comparable(settings.repository) if settings.repository else ""
        if ours and request.repository and comparable(request.repository) != ours:
            return f"it is about {request.repository}, and this home works on {settings.repository}"
        if isinstance(request, Command) and request.cause in FACTS:
            return ""  # not a request: the report is verified at the forge before anything is done
        why = commands.why_not_listed(request.actor, settings)
        if why or request.actor.is_bot:  # bots have no permission at the forge: only the list of bots counts
            return why

        return commands.why_not_permitted(request.actor, self._home.forge.permission(request.actor.login), settings)

    def _act(self, request: Request, run: Run, row: Delivery) -> DeliveryResult:
        # The mark names the run as well as the delivery, because `adw webhook replay` is meant to act once more.
        kind = request.kind if isinstance(request, Command) else "run"
        mark = Mark(delivery=f"{row.guid}#{run.run_id}", kind=kind, by=request.actor.login)
        if isinstance(request, Command):
            return self._obey(request, row, mark)
        going_on = Command(
            kind="resume",
            repository=request.repository,
            number=request.issue.number,
            actor=request.actor,
            adw_id=request.adw_id,
            text=request.hint,
            cause=request.cause,
        )
        if request.adw_id and not request.workflow:
            return self._obey(going_on, row, mark)
        continued = self._carry_on(request, mark)
        if continued is not None:
            return continued
        try:
            return self._start(request, row)
        except PullRequestOpen as exc:
            if not request.hint:
                topic = f"open pull request {exc.pr_number}"
                return DeliveryResult(status=REFUSED, text=str(exc), adw_id=exc.adw_id, topic=topic)
            # A requested change goes to the branch of the open pull request.
            rework = replace(going_on, kind="rework", number=exc.pr_number, adw_id=exc.adw_id)
            result = self._obey(rework, row, mark)
            if result.status == DONE:
                return result
            return replace(result, text=f"{exc}; it is not continued, as {result.text}")

    def _answer(self, request: Request, row: Delivery, result: DeliveryResult) -> None:
        """Post the result where it was requested; if the forge refuses the comment, only log it."""
        if result.is_silent or (isinstance(request, Command) and not request.answers):
            return
        number = request.number if isinstance(request, Command) else request.issue.number
        try:
            answers = self._home.forge_effects()
            if result.is_forbidden:
                answers.refuse(number, f"Sorry, nothing was done: {result.text}.", login=request.actor.login)
            else:
                sentence = f"{result.text[:1].upper()}{result.text[1:]}."
                answers.answer(number, result.answer or sentence, delivery=result.topic or row.guid)
        except (ForgeUnavailable, ForgeBusy):
            raise
        except (ForgeError, ConfigError):
            said = {"action": "delivery_not_answered", "delivery": row.guid}
            logger.warning("The forge does not take the answer", extra=said, exc_info=True)

    # --- starting workflows ------------------------------------------------------------------------------------

    def _start(self, request: RunRequest, row: Delivery) -> DeliveryResult:
        """
        Start the requested workflow under the id in *row*, unless it exists already.

        Raise PullRequestOpen if the work on the issue should be continued instead.
        """
        home, number = self._home, request.issue.number
        known = self._load(row.adw_id)
        if known is not None:
            return self._found(known, number)
        try:
            spec = home.workflows.get(request.workflow or home.settings.default_workflow)
            issue = forge_effects.freeze(request.issue)
            home.preflight.check(
                StartRequest(
                    spec=spec,
                    issue_number=number,
                    title=issue.title,
                    body=issue.body,
                    hint=request.hint,
                    is_again=request.is_again,
                )
            )
        except (PullRequestOpen, GitUnreachable):
            raise
        except _NO_START as exc:
            return DeliveryResult(status=REFUSED, text=str(exc))

        return self._launch(
            NewWorkflow(
                issue_number=number,
                spec=spec,
                repository=home.repository,
                issue=issue,
                model_set=request.model_set or None,
                adw_id=row.adw_id,
                delivery=row.guid,
                asked_by=request.actor.login,
                hint=request.hint,
                cause=request.cause,
            )
        )

    def _follow_up(self, command: Command, row: Delivery, document: WorkflowDocument) -> DeliveryResult:
        """Continue the branch and the pull request of a completed workflow in a new one."""
        known = self._load(row.adw_id)
        if known is not None:
            return self._found(known, document.issue_number)
        try:
            new = NewWorkflow(
                issue_number=document.issue_number,
                spec=followup_spec(document),
                repository=self._home.repository,
                issue=document.issue or FrozenIssue(),
                model_set=document.model_set,
                adw_id=row.adw_id,
                delivery=row.guid,
                asked_by=command.actor.login,
                hint=command.text,
                cause=command.cause,
                continues=document,
            )
            self._home.workflow_creator.document(new)  # raises, before anything is changed, if it cannot be run here
        except (WorkflowInvalid, StateInvalid) as exc:
            return DeliveryResult(
                status=REFUSED, text=f"{document.adw_id} cannot be continued: {exc}", adw_id=document.adw_id
            )
        if document.worktree_path:
            self._home.post_merge_cleanup.worktree(document.adw_id)  # a branch can be checked out in one worktree only

        return self._launch(new)

    def _launch(self, new: NewWorkflow) -> DeliveryResult:
        try:
            return _started(self._home.workflow_creator.start(new))
        except IssueLocked as exc:
            known = self._load(exc.holder)
            if known is not None and new.delivery in known.deliveries:
                return _started(known)
            if exc.holder != new.adw_id:
                # Fifty labels at once get one comment.
                why = commands.why_no_second(exc.holder, known)
                return DeliveryResult(status=REFUSED, text=why, adw_id=exc.holder, topic=f"at work {exc.holder}")
        except StateExists:
            known = self._load(new.adw_id)
            if known is not None:
                return self._found(known, new.issue_number)
        except WorkflowInvalid as exc:
            return DeliveryResult(status=REFUSED, text=f"{new.spec.name} cannot be run here: {exc}")
        except Fenced:
            if not new.adw_id:
                raise
            return self._launch(replace(new, adw_id=""))  # recovery has already removed the unwritten workflow
        # The start was interrupted before its first write. Fence out the worker that began it, and do not reuse the id.
        self._home.ownership.forget_unwritten(new.adw_id)

        return self._launch(replace(new, adw_id=""))

    def _load(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._home.load(adw_id)
        except StateNotFound:
            return None

    def _found(self, known: WorkflowDocument, issue_number: int | None) -> DeliveryResult:
        """Return the result of a start whose workflow exists already."""
        if known.issue_number != issue_number or not self._is_here(known):
            text = f"the id {known.adw_id} that was chosen for it belongs to another workflow: ask once more"
            return DeliveryResult(status=FAILED, text=text)

        return _started(known)

    def _is_here(self, document: WorkflowDocument) -> bool:
        locks = self._home.locks

        return locks.key(document.repository) == locks.key(self._home.repository)

    def _carry_on(self, request: RunRequest, mark: Mark) -> DeliveryResult | None:
        """
        Continue a workflow of the issue with the phases that *request* names, or return why not.

        Return None if a new workflow is to be started: no id is named, and the phases do not depend on earlier work.
        """
        home, number = self._home, request.issue.number
        try:
            spec = home.workflows.get(request.workflow) if request.workflow else None
            if spec is None or not (request.adw_id or home.workflows.is_dependent(spec)):
                return None
            if request.is_again:
                raise UsageError(
                    f"--again starts a new workflow, and {spec.name} carries an earlier one on: leave it out"
                )
            adw_id = request.adw_id or control.last_workflow(home, number, request.repository, spec).adw_id
            document = home.load(adw_id)
            if document_module.is_marked(document, mark):
                return _done_before(document)
            applied = home.control.asked_by(mark).continue_with(
                adw_id,
                spec,
                by=request.actor.login,
                issue_number=number,
                repository=request.repository,
                hint=request.hint,
                model_set=request.model_set,
            )
        except (StateNotFound, InvalidAdwId):
            return DeliveryResult(status=REFUSED, text=f"there is no workflow {request.adw_id} of #{number}")
        except GitUnreachable:
            raise
        except (*_CANNOT, *_NO_START, WorkflowInvalid) as exc:
            return DeliveryResult(status=REFUSED, text=str(exc), adw_id=request.adw_id)

        return DeliveryResult(status=DONE, text=applied.message, adw_id=adw_id)

    # --- commands ----------------------------------------------------------------------------------------------

    def _obey(self, command: Command, row: Delivery, mark: Mark) -> DeliveryResult:
        """
        Carry out *command*, or return why not.

        The workflow's current state decides what the command means, not the state when it was written. Raise
        WorkflowBusy and the errors of the forge, after which the delivery is retried.
        """
        document = self._target(command)
        if document is None:
            named = f"there is no workflow {command.adw_id} of" if command.adw_id else "no workflow is known for"
            return DeliveryResult(status=REFUSED, text=f"{named} #{command.number}")
        if document_module.is_marked(document, mark):
            return _done_before(document)
        adw_id = document.adw_id
        action = commands.meaning(command.kind, commands.standing_of(document), adw_id=adw_id, text=command.text)
        if isinstance(action, No):
            return DeliveryResult(status=DONE if action.is_done else REFUSED, text=action.why, adw_id=adw_id)
        why = self._why_not_so(command, document)
        if why:
            return DeliveryResult(status=REFUSED, text=why, adw_id=adw_id)
        if action is CommandAction.STATUS:
            state = document.current_state.replace("_", " ")
            return DeliveryResult(
                status=DONE,
                text=f"workflow {adw_id} is {state}",
                adw_id=adw_id,
                answer=forge_text.sticky_text(document, now=self._home.clock.now()),
            )
        if action is CommandAction.FOLLOW_UP:
            return self._follow_up(command, row, document)
        try:
            if action in CONTINUING and document.issue_number is not None:
                self._home.ownership.prove_continuing(adw_id, document.issue_number, document.repository)
            said = self._apply(action, command, document, mark)
        except _CANNOT as exc:
            return DeliveryResult(status=REFUSED, text=str(exc), adw_id=adw_id)

        return DeliveryResult(status=DONE, text=said, adw_id=adw_id)

    def _apply(self, action: CommandAction, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        """Do *action*, stored together with *mark* so that it is done once; return what was done."""
        home, adw_id, by, text = self._home, document.adw_id, command.actor.login, command.text
        made = home.control.asked_by(mark)
        if action.value in control.ORDERS:
            said = _said(made.order(adw_id, action.value, by=by, text=text))
            is_decision = action in {CommandAction.APPROVE, CommandAction.REJECT}
            return f"workflow {adw_id}: {said}" if is_decision else said
        match action:
            case CommandAction.REWORK:
                made = home.control.asked_by(replace(mark, is_follow_up=True))
                return made.resume(adw_id, by=by, hint=text, from_phase=commands.rework_from(document)).message
            case CommandAction.CLEAN_UP:
                return home.post_merge_cleanup.after_merge(adw_id, mark)
            case CommandAction.ROLL_BACK:  # safe to repeat: its run is unique, and the state shows a finished rollback
                if document.pr_merged:
                    raise PullRequestMerged(document.pr_number)
                options = RollbackOptions(reason=text or f"rolled back by {by}")
                home.rollbacks.queue(adw_id, options, by=by, wait_seconds=0.0)
                return f"workflow {adw_id} is rolled back as soon as a worker is free"
            case _:
                raise UsageError(f"{action.value} is not done to a workflow")

    def _why_not_so(self, command: Command, document: WorkflowDocument) -> str:
        """Return why a report of the forge is outdated or does not count, or ""."""
        forge, number = self._home.forge, command.number
        if command.kind == "rework":
            settings, head = self._home.settings, commands.recorded_head(document)
            if not settings.webhook_max_followups:
                return "reviews and checks are not followed up here: the setting webhook.max_followups is 0"
            if document.followups >= settings.webhook_max_followups:
                times = f"{document.followups} of {settings.webhook_max_followups}"
                return f"the work was sent on {times} times already: a person has to decide"
            pull = forge.pull_request(number)
            if pull.state != "open":
                return f"pull request #{number} is not open any more"
            if not head or pull.head_sha != head:
                return f"pull request #{number} has commits that are not of workflow {document.adw_id}"
            if command.cause == "checks" and command.head_sha != head:
                return f"the checks are of {command.head_sha[:12]}, and the pull request is at {head[:12]}"
        elif command.cause == "pull_request":
            pull = forge.pull_request(number)
            if command.kind == "clean_up" and not pull.is_merged:
                return f"pull request #{number} is not merged"
            if command.kind == "abandon" and pull.state == "open":
                return f"pull request #{number} is open again"
        elif command.cause == "closed":
            with suppress(ForgeNotFound):
                return f"issue {number} is open again" if forge.issue(number).state == "open" else ""

        return ""

    # --- which workflow a command means ------------------------------------------------------------------------

    def _target(self, command: Command) -> WorkflowDocument | None:
        """
        Return the document of the workflow that *command* means, or None.

        An id counts only if that workflow's document names the same issue or pull request. Without an id it is the
        workflow that has the issue, else the newest for it. A pull request is ours if its marker says so.
        """
        if command.adw_id:
            named = self._readable(command.adw_id)
            is_about = (
                named is not None and self._is_here(named) and command.number in {named.issue_number, named.pr_number}
            )
            return named if is_about else None
        if command.cause not in _OF_PULL_REQUESTS:
            document = next(self._workflows_of_issue(command.number), None)
            if document is not None:
                return document

        home, forge, number = self._home, self._home.forge, command.number
        try:
            pull = forge.pull_request(number)
        except ForgeNotFound:
            return None
        marker = forge_text.read_marker(pull.body, key=home.forge_key, repository=forge.repository)
        if marker is None or marker.op != forge_text.PULL_REQUEST or pull.author != forge.login():
            return None
        first = self._readable(marker.adw_id)
        if first is None or first.pr_number != number or first.issue_number is None:
            return first if first is not None and first.pr_number == number else None
        chain = [one for one in self._workflows_of_issue(first.issue_number) if one.pr_number == number]
        holder = home.locks.holder(first.issue_number, home.repository)

        # The newest workflow of it: each follow-up counts one more than its predecessor, whatever the clocks say.
        return max([*chain, first], key=lambda one: (holder is not None and one.adw_id == holder.adw_id, one.followups))

    def _workflows_of_issue(self, number: int) -> Iterator[WorkflowDocument]:
        """Yield the workflows of an issue: first the holder of its lock, then the others, newest first."""
        repository = self._home.repository
        holder = self._home.locks.holder(number, repository)
        rows = self._home.catalogue.find_by_issue(number, repository)
        ids = dict.fromkeys([*([holder.adw_id] if holder else []), *(row.adw_id for row in rows)])
        for adw_id in ids:
            document = self._readable(adw_id)
            if document is not None and document.issue_number == number:
                yield document

    def _readable(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._home.load(adw_id)
        except (StateError, InvalidAdwId):
            return None  # missing or unreadable, so nobody could work on it


def followup_spec(document: WorkflowDocument) -> WorkflowSpec:
    """Return the definition of a follow-up: the one frozen in *document*, without the phases before building."""
    spec = resume.definition_of(document)
    first = commands.first_to_rework(document)
    kept = spec.phases[[phase.name for phase in spec.phases].index(first) :]
    names = {phase.name for phase in kept}
    phases = (
        replace(
            phase,
            needs=tuple(name for name in phase.needs if name in names),
            on_rework=phase.on_rework if phase.on_rework in names else "",
        )
        for phase in kept
    )

    return replace(spec, phases=tuple(phases))


def _guid(run: Run) -> str:
    return str(run.payload.get("guid") or "")


def _started(document: WorkflowDocument) -> DeliveryResult:
    is_new = document.current_state == WorkflowState.PENDING.value
    said = "is started" if is_new else f"was started, and is {document.current_state.replace('_', ' ')}"

    # No answer: the workflow's own comment, which is kept up to date, says it.
    return DeliveryResult(
        status=DONE, text=f"workflow {document.adw_id} {said}", adw_id=document.adw_id, is_silent=True
    )


def _done_before(document: WorkflowDocument) -> DeliveryResult:
    state = document.current_state.replace("_", " ")

    return DeliveryResult(
        status=DONE, text=f"it is done: workflow {document.adw_id} is {state}", adw_id=document.adw_id
    )


def _said(answer: Asked | Applied) -> str:
    if isinstance(answer, Applied):
        return answer.message

    return f"workflow {answer.request.adw_id} is running: its worker was asked, and acts within a moment"


# Cleanup after a merge: remove the worktree, keep the branch, unlock the issue.
#
# It goes through the ledger, so it can be interrupted anywhere and repeated. Uncommitted work is never deleted.


_WORKTREE = "worktree"


class PostMergeCleanup:
    """Cleans up after finished workflows and after merges."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def after_merge(self, adw_id: str, mark: Mark) -> str:
        """Record the merge, abandon a parked workflow, remove the worktree; say what was done. Raise WorkflowBusy."""
        home = self._home

        def note_merge(draft: Draft) -> None:
            draft.machine.mark_merged()
            document_module.mark(draft, mark)
            if draft.machine.current_state in PARKED_STATES:
                transitions.abandon(draft, "its pull request was merged")

        with home.ownership.own(adw_id) as owned, home.lease_renewer.charge(owned), home.engine.log_of(adw_id):
            session = WorkSession(home.engine, owned, NoOrders())
            session.settle()
            session.change(note_merge)
            left = self._remove_worktree(session)
            session.rest()

            return f"the pull request of workflow {adw_id} is merged: {left}"

    def worktree(self, adw_id: str) -> str:
        """Remove the worktree of a finished workflow, keep its branch, and return what was done."""
        home = self._home
        with home.ownership.own(adw_id) as owned, home.lease_renewer.charge(owned), home.engine.log_of(adw_id):
            return self._remove_worktree(WorkSession(home.engine, owned, NoOrders()))

    def _remove_worktree(self, session: WorkSession) -> str:
        home, document = self._home, session.document
        effect, ledger = effects.effect(document, _WORKTREE), Ledger(session, host=home.host)
        if effect is not None and effect.outcome in effects.MADE and effect.host not in {"", home.host}:
            return f"its worktree is on {effect.host}, and is left to adw admin gc there"
        facts = ledger.facts(_WORKTREE)
        if facts is None or not home.has_worktrees:
            return "there is no worktree to remove"
        git, path, reason = home.git, Path(str(facts["path"])), str(facts["reason"])
        is_damaged = bool(git.why_damaged(path, reason=reason))  # its files are saved before it is removed
        if path.is_dir() and not is_damaged and home.workplace.status(path):
            return "its worktree has changes that are not committed, so it is left where it is"
        kept, head = "", effects.secured_head(document)
        if head and is_damaged:
            kept = home.workplace.keep_files(document.adw_id, path, head)
        was_there = git.remove_worktree(path, reason=reason, is_recorded=True)
        ledger.undone(_WORKTREE, "undone" if was_there else "gone")
        ledger.set_fields(worktree_path=None)
        but = f"; it was damaged, and its files are kept as {kept}" if kept else ""

        return f"its worktree is removed, its branch kept{but}" if was_there else "its worktree was gone already"
