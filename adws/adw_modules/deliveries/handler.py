"""
Doing what deliveries ask of workflows that are there.

What a command means is decided by `commands.meaning` from the state that the workflow has now, not from the one it had
when the command was written. Each change is written together with the delivery that asked for it, so that nobody makes
it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules import document as document_module
from adws.adw_modules import effects, timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import (
    CONTINUING,
    FACTS,
    Access,
    Command,
    CommandAction,
    DeliveryRow,
    No,
    RunRequest,
)
from adws.adw_modules.document import Draft, FrozenIssue, Mark
from adws.adw_modules.effects import Ledger
from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import (
    AdwError,
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
from adws.adw_modules.git import repository
from adws.adw_modules.identifiers import comparable
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.queue.model import Run, RunResult, RunState
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.state_machine import PARKED_STATES, WorkflowState
from adws.adw_modules.worker import control
from adws.adw_modules.worker.control import Applied, Asked
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.forge.model import PullRequest
    from adws.app import Home


# The result of a delivery.


DONE, REFUSED, FAILED = "done", "refused", "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryResult:
    """The result of a delivery."""

    status: str  #: done | refused | failed
    text: str  #: one sentence
    adw_id: str = ""
    answer: str = ""  #: what is said instead of the sentence
    topic: str = ""  #: what is said about one is said once; "": each delivery gets an answer of its own
    is_silent: bool = False  #: nothing is said
    is_forbidden: bool = False  #: the requester lacks the permission: they are told once


# Starting the workflows that deliveries ask for, each once.
#
# The id of the workflow was chosen when the delivery was accepted, so after a crash the retry finds the workflow it has
# already made. A new workflow takes the issue's lock with its first write, or says which workflow has it.


#: What says that nothing can be started until a person changes something.
_NO_START = (StartRefused, UsageError, ConfigError, UnknownWorkflow, QuotaExceeded, GitError)


class StartHandler:
    """Starts workflows for deliveries."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def start(self, request: RunRequest, row: DeliveryRow) -> DeliveryResult:
        """
        Start what *request* asks for under the id that *row* has, unless that was done.

        Raises PullRequestOpen when the work on the issue is to be continued instead.
        """
        known = self._known(row.adw_id)
        if known is not None:
            return self._came(known, request.issue.number)
        try:
            spec = self._home.workflows.get(request.workflow or self._home.settings.default_workflow)
            issue = forge_effects.freeze(request.issue)
            self._home.preflight.check(
                StartRequest(
                    spec=spec,
                    issue_number=request.issue.number,
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
            self._start_of(
                row,
                spec,
                issue_number=request.issue.number,
                issue=issue,
                model_set=request.model_set or None,
                asked_by=request.actor.login,
                hint=request.hint,
                cause=request.cause,
            )
        )

    def follow_up(self, command: Command, row: DeliveryRow, document: WorkflowDocument) -> DeliveryResult:
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
            self._home.workflow_creator.document(start)  # raises before anything is touched when it cannot be run here
        except (WorkflowInvalid, StateInvalid) as exc:
            return DeliveryResult(
                status=REFUSED, text=f"{document.adw_id} cannot be gone on with: {exc}", adw_id=document.adw_id
            )
        if document.worktree_path:
            self._home.post_merge_cleanup.worktree(document.adw_id)  # its branch can be in one worktree only

        return self._launch(start)

    # --- how ---------------------------------------------------------------------------------------------------

    def _start_of(self, row: DeliveryRow, spec: WorkflowSpec, **fields: object) -> NewWorkflow:
        settings = self._home.settings
        usual = NewWorkflow(
            issue_number=None,
            spec=spec,
            repository=settings.repository or "",
            adw_id=row.adw_id,
            delivery=row.guid,
            max_retries=settings.max_retries,
            max_reworks=settings.max_reworks,
            max_total_attempts=settings.max_total_attempts,
            max_minutes=settings.max_minutes,
        )

        return replace(usual, **fields)  # type: ignore[arg-type]  # the callers above name fields of Start

    def _launch(self, start: NewWorkflow) -> DeliveryResult:
        try:
            return _started(self._home.workflow_creator.start(start))
        except IssueLocked as exc:
            known = self._known(exc.holder)
            if known is not None and start.delivery in known.deliveries:
                return _started(known)
            if exc.holder != start.adw_id:
                # Fifty labels at once are one thing to say.
                why = commands.why_no_second(exc.holder, known)
                return DeliveryResult(status=REFUSED, text=why, adw_id=exc.holder, topic=f"at work {exc.holder}")
        except StateExists:
            known = self._known(start.adw_id)
            if known is not None:
                return self._came(known, start.issue_number)
        except WorkflowInvalid as exc:
            return DeliveryResult(status=REFUSED, text=f"{start.spec.name} cannot be run here: {exc}")
        except Fenced:
            if not start.adw_id:
                raise
            # Recovery forgot it already.
            return self._launch(replace(start, adw_id=""))
        # Interrupted before its first write. The worker that began it is fenced out, and its id is not reused.
        self._home.ownership.forget_unwritten(start.adw_id)

        return self._launch(replace(start, adw_id=""))

    def _known(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._home.load(adw_id)
        except StateNotFound:
            return None

    def _came(self, known: WorkflowDocument, issue_number: int | None) -> DeliveryResult:
        locks = self._home.locks
        is_here = locks.key(known.repository) == locks.key(self._home.settings.repository or "")
        if known.issue_number != issue_number or not is_here:
            text = f"the id {known.adw_id} that was chosen for it belongs to another workflow: ask once more"
            return DeliveryResult(status=FAILED, text=text)

        return _started(known)


def followup_spec(document: WorkflowDocument) -> WorkflowSpec:
    """Return what a follow-up runs: the definition frozen in *document*, without what comes before building."""
    spec = resume.definition_of(document)
    first = commands.first_to_rework(document)
    names = [phase.name for phase in spec.phases]
    kept = spec.phases[names.index(first) :]
    there = {phase.name for phase in kept}

    return replace(spec, phases=tuple(_without(phase, there) for phase in kept))


def _without(phase: PhaseSpec, there: set[str]) -> PhaseSpec:
    needs = tuple(name for name in phase.needs if name in there)

    return replace(phase, needs=needs, on_rework=phase.on_rework if phase.on_rework in there else "")


def _started(document: WorkflowDocument) -> DeliveryResult:
    is_new = document.current_state == WorkflowState.PENDING.value
    said = "is started" if is_new else f"was started, and is {document.current_state.replace('_', ' ')}"

    # Its own comment, which is kept up to date, says the rest.
    return DeliveryResult(
        status=DONE, text=f"workflow {document.adw_id} {said}", adw_id=document.adw_id, is_silent=True
    )


# Which workflow a command means.
#
# An id in a comment is only taken when the workflow's own document names the same issue or pull request. Without one it
# is the workflow that has the issue, else the newest for it. A pull request is ours when its marker says so.


#: Commands of these causes are about a pull request.
_OF_PULL_REQUESTS = frozenset({"pull_request", "review", "checks"})


class Targets:
    """Finds the workflows that commands are about."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def find(self, command: Command) -> WorkflowDocument | None:
        """Return the document of the workflow that *command* means, None when there is none."""
        if command.adw_id:
            named = self._load(command.adw_id)
            return named if named is not None and self._is_about(named, command.number) else None
        if command.cause not in _OF_PULL_REQUESTS:
            document = next(self._all_of_issue(command.number), None)
            if document is not None:
                return document

        return self._of_pull_request(command.number)

    def _is_about(self, document: WorkflowDocument, number: int) -> bool:
        locks = self._home.locks
        is_here = locks.key(document.repository) == locks.key(self._home.settings.repository or "")

        return is_here and number in {document.issue_number, document.pr_number}

    def _all_of_issue(self, number: int) -> Iterator[WorkflowDocument]:
        """Yield the workflows of an issue: the one that has it first, then the newest first."""
        repository = self._home.settings.repository or ""
        holder = self._home.locks.holder(number, repository)
        rows = self._home.catalogue.find_by_issue(number, repository)
        ids = dict.fromkeys([*([holder.adw_id] if holder else []), *(row.adw_id for row in rows)])
        for adw_id in ids:
            document = self._load(adw_id)
            if document is not None and document.issue_number == number:
                yield document

    def _of_pull_request(self, number: int) -> WorkflowDocument | None:
        """Return the newest workflow that works on a pull request of ours."""
        try:
            pull = self._home.forge.pull_request(number)
        except ForgeNotFound:
            return None
        first = self._load(self._owner_of(pull))
        if first is None or first.pr_number != number:
            return None
        if first.issue_number is None:
            return first
        chain = [one for one in self._all_of_issue(first.issue_number) if one.pr_number == number]
        holder = self._home.locks.holder(first.issue_number, self._home.settings.repository or "")

        # Each follow-up counts one more than what it follows, whatever the clocks say.
        return max([*chain, first], key=lambda one: (holder is not None and one.adw_id == holder.adw_id, one.followups))

    def _owner_of(self, pull: PullRequest) -> str:
        """Return the workflow that opened *pull*, "" when it is none of ours."""
        forge = self._home.forge
        marker = forge_text.read_marker(pull.body, key=self._home.forge_key, repository=forge.repository)
        is_ours = marker is not None and marker.op == forge_text.PULL_REQUEST and pull.author == forge.login()

        return marker.adw_id if marker is not None and is_ours else ""

    def _load(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._home.load(adw_id) if adw_id else None
        except (StateError, InvalidAdwId):
            return None  # there is none, or none that anybody could work on


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

    def __init__(self, home: Home) -> None:
        self._home = home
        self._targets = Targets(home)
        self._starts = StartHandler(home)
        self._doers: dict[CommandAction, _Doer] = {
            CommandAction.PAUSE: self._pause,
            CommandAction.STOP: self._stop,
            CommandAction.HINT: self._hint,
            CommandAction.RESUME: self._resume,
            CommandAction.APPROVE: self._approve,
            CommandAction.REJECT: self._reject,
            CommandAction.ABANDON: self._abandon,
            CommandAction.ROLL_BACK: self._roll_back,
            CommandAction.CLEAN_UP: self._clean_up,
            CommandAction.REWORK: self._rework,
        }

    def obey(self, command: Command, row: DeliveryRow, mark: Mark) -> DeliveryResult:
        """Do what *command* asks, or say why not; raises WorkflowBusy and what the forge raises: then it is later."""
        document = self._targets.find(command)
        if document is None:
            named = f"there is no workflow {command.adw_id} of" if command.adw_id else "no workflow is known for"
            return DeliveryResult(status=REFUSED, text=f"{named} #{command.number}")
        if document_module.is_marked(document, mark):
            state = document.current_state.replace("_", " ")
            return DeliveryResult(
                status=DONE, text=f"it is done: workflow {document.adw_id} is {state}", adw_id=document.adw_id
            )
        standing = commands.standing_of(document)
        action = commands.meaning(command.kind, standing, adw_id=document.adw_id, text=command.text)
        if isinstance(action, No):
            return DeliveryResult(status=DONE if action.is_done else REFUSED, text=action.why, adw_id=document.adw_id)
        why = self._why_not(command, document)
        if why:
            return DeliveryResult(status=REFUSED, text=why, adw_id=document.adw_id)

        return self._done(action, command, row, document, mark)

    def carry_on(self, request: RunRequest, mark: Mark) -> DeliveryResult | None:
        """
        Carry a workflow of the issue on with the phases that *request* names, or say why not.

        None when a new one is to be started: no id is named, and the phases do not go on with earlier work.
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
                state = document.current_state.replace("_", " ")
                return DeliveryResult(status=DONE, text=f"it is done: workflow {adw_id} is {state}", adw_id=adw_id)
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

    def _done(
        self, action: CommandAction, command: Command, row: DeliveryRow, document: WorkflowDocument, mark: Mark
    ) -> DeliveryResult:
        if action is CommandAction.TELL:
            return self._tell(document)
        if action is CommandAction.FOLLOW_UP:
            return self._starts.follow_up(command, row, document)
        try:
            if action in CONTINUING and document.issue_number is not None:
                self._home.ownership.prove_continuing(document.adw_id, document.issue_number, document.repository)
            said = self._doers[action](command, document, mark)
        except _CANNOT as exc:
            return DeliveryResult(status=REFUSED, text=str(exc), adw_id=document.adw_id)

        return DeliveryResult(status=DONE, text=said, adw_id=document.adw_id)

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
        pull = self._home.forge.pull_request(command.number)
        if command.kind == "clean_up" and not pull.is_merged:
            return f"pull request #{command.number} is not merged"
        if command.kind == "abandon" and pull.state == "open":
            return f"pull request #{command.number} is open again"

        return ""

    def _why_issue_is_open(self, number: int) -> str:
        try:
            is_open = self._home.forge.issue(number).state == "open"
        except ForgeNotFound:
            return ""

        return f"issue {number} is open again" if is_open else ""

    def _why_no_rework(self, command: Command, document: WorkflowDocument) -> str:
        settings = self._home.settings
        if not settings.webhook_followups:
            return "reviews and checks are not followed up here: the setting webhook.followups is off"
        spent = commands.why_no_follow_up(document, most=settings.webhook_max_followups)
        if spent:
            return spent
        pull = self._home.forge.pull_request(command.number)
        head = commands.recorded_head(document)
        if pull.state != "open":
            return f"pull request #{command.number} is not open any more"
        if not head or pull.head_sha != head:
            return f"pull request #{command.number} has commits that are not of workflow {document.adw_id}"
        if command.cause == "checks" and command.head_sha != head:
            return f"the checks are of {command.head_sha[:12]}, and the pull request is at {head[:12]}"

        return ""

    # --- doing it ----------------------------------------------------------------------------------------------

    def _tell(self, document: WorkflowDocument) -> DeliveryResult:
        facts = forge_text.sticky_facts(document, now=self._home.clock.now())
        state = document.current_state.replace("_", " ")

        return DeliveryResult(
            status=DONE,
            text=f"workflow {document.adw_id} is {state}",
            adw_id=document.adw_id,
            answer=forge_text.sticky_text(facts),
        )

    def _pause(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)

        return _said(made.pause(document.adw_id, by=command.actor.login, reason=_reason(command, "paused")))

    def _stop(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)

        return _said(made.stop(document.adw_id, by=command.actor.login, reason=_reason(command, "stopped")))

    def _abandon(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)

        return _said(made.abandon(document.adw_id, by=command.actor.login, reason=_reason(command, "abandoned")))

    def _hint(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        return _said(self._home.control.asked_by(mark).hint(document.adw_id, command.text, by=command.actor.login))

    def _resume(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)

        return made.resume(document.adw_id, by=command.actor.login, hint=command.text).message

    def _rework(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(replace(mark, is_follow_up=True))
        first = commands.rework_from(document)

        return made.resume(document.adw_id, by=command.actor.login, hint=command.text, from_phase=first).message

    def _approve(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)
        said = made.approve(document.adw_id, by=command.actor.login, text=command.text).message

        return f"workflow {document.adw_id}: {said}"

    def _reject(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        made = self._home.control.asked_by(mark)
        said = made.reject(document.adw_id, by=command.actor.login, text=command.text).message

        return f"workflow {document.adw_id}: {said}"

    def _clean_up(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        del command  # the forge reported the merge itself: there is nothing to say about it

        return self._home.post_merge_cleanup.after_merge(document.adw_id, mark)

    def _roll_back(self, command: Command, document: WorkflowDocument, mark: Mark) -> str:
        del mark  # the run of a rollback is unique, and one that is over is found by the state
        if document.pr_merged:
            raise PullRequestMerged(document.pr_number)
        wishes = RollbackOptions(reason=_reason(command, "rolled back"))
        self._home.rollback_runs.queue(document.adw_id, wishes, by=command.actor.login, wait_seconds=0.0)

        return f"workflow {document.adw_id} is rolled back as soon as a worker is free"


def _reason(command: Command, done: str) -> str:
    return command.text or f"{done} by {command.actor.login}"


def _said(answer: Asked | Applied) -> str:
    if isinstance(answer, Applied):
        return answer.message

    return f"workflow {answer.request.adw_id} is at work: its worker was told, and obeys within a moment"


# Executing a delivery: authorise, act, answer, record the result, in this order.
#
# The requester's permission is checked each time, before any lock is taken. Every step can be interrupted and repeated:
# the workflow has an id that was chosen before, a change is stored with its delivery, an answer is found by its marker.
# When the forge gives no answer the request is retried later, a bounded number of times.


logger = logging.getLogger("adw.deliveries")

#: How often a delivery is taken up, and the seconds before the second time; each wait is twice the one before.
MAX_TRIES = 10
FIRST_SECONDS = 5.0
MAX_SECONDS = 600.0

#: Errors after which a retry may succeed: the forge gave no answer, or somebody is at the workflow right now.
_LATER = (ForgeUnavailable, ForgeBusy, GitUnreachable, WorkflowBusy, LeaseLost, Fenced, StateConflict)


class DeliveryHandler:
    """Does what runs of kind `delivery` are for; implements `JobHandler`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._commands = Commands(home)
        self._starts = StartHandler(home)

    def work(self, run: Run) -> RunResult:
        """Carry out the delivery of a claimed run and end that, or put it off."""
        home = self._home
        run = home.runs.begin(run)
        row = home.deliveries.get(_guid(run))
        if row is None:
            raise UsageError(f"delivery {_guid(run)} is not kept any more: there is nothing to do")
        if row.status != "received":  # cut off between its end and that of its run
            return self._ended(run, RunState.COMPLETED, row.outcome)
        if run.state is RunState.STOPPING:
            self.give_up(run, f"its run was stopped: {run.reason}")
            return self._ended(run, RunState.STOPPED, run.reason)
        try:
            came = self._carry_out(run, row)
        except _LATER as exc:
            return self._later(run, exc)
        home.deliveries.finish(row.guid, status=came.status, outcome=came.text, adw_id=came.adw_id)
        _log(row, came)

        return self._ended(run, RunState.COMPLETED, came.text)

    def give_up(self, run: Run, why: str) -> None:
        """Write down that the delivery of *run* is not carried out, and why."""
        try:
            self._home.deliveries.finish(_guid(run), status=FAILED, outcome=why)
        except DeliveryNotFound:
            return  # it was deleted meanwhile: nobody needs the result any more

    # --- one delivery ------------------------------------------------------------------------------------------

    def _carry_out(self, run: Run, row: DeliveryRow) -> DeliveryResult:
        request = self._request(row)
        why = self._why_not(request)
        if why:
            came = DeliveryResult(status=REFUSED, text=why, is_forbidden=True)
        else:
            self._renew(run)
            came = self._act(request, run, row)
        self._renew(run)

        return self._answer(request, row, came)

    def _request(self, row: DeliveryRow) -> RunRequest | Command:
        try:
            return commands.from_json(self._home.deliveries.request_of(row.guid) or {})
        except DatabaseError as exc:  # of another version: asking again would not change it
            raise UsageError(str(exc)) from exc

    def _renew(self, run: Run) -> None:
        """Keep the claim, which a slow forge could outlast; raise RunLost when somebody else has it by now."""
        self._home.runs.renew(run, ttl_seconds=self._home.settings.lease_ttl_seconds)

    def _why_not(self, request: RunRequest | Command) -> str:
        """Return why the request is refused, "" when the requester has the permission."""
        settings = self._home.settings
        ours = comparable(settings.repository) if settings.repository else ""
        if ours and request.repository and comparable(request.repository) != ours:
            return f"it is about {request.repository}, and this home works on {settings.repository}"
        if isinstance(request, Command) and request.cause in FACTS:
            return ""  # nobody asked: what the forge told is looked at there before anything is done
        access = Access(
            permission=settings.webhook_permission,
            allow=settings.webhook_allow or (),
            deny=settings.webhook_deny or (),
            bots=settings.webhook_bots or (),
        )
        why = commands.why_not_listed(request.actor, access)
        if why or not commands.needs_permission(request.actor):
            return why
        permission = self._home.forge.permission(request.actor.login)

        return commands.why_not_permitted(request.actor, permission, access)

    def _act(self, request: RunRequest | Command, run: Run, row: DeliveryRow) -> DeliveryResult:
        # Of this run, not of the delivery alone: `adw replay` is meant to do it once more.
        made = Mark(delivery=f"{row.guid}#{run.run_id}", kind=_kind(request), by=request.actor.login)
        if isinstance(request, Command):
            return self._commands.obey(request, row, made)
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
            return self._commands.obey(going_on, row, made)
        continued = self._commands.carry_on(request, made)
        if continued is not None:
            return continued
        try:
            return self._starts.start(request, row)
        except PullRequestOpen as exc:
            if not request.hint:
                topic = f"open pull request {exc.pr_number}"
                return DeliveryResult(status=REFUSED, text=str(exc), adw_id=exc.adw_id, topic=topic)
            # What is to be changed goes to the branch that is there.
            rework = replace(going_on, kind="rework", number=exc.pr_number, adw_id=exc.adw_id)
            came = self._commands.obey(rework, row, made)
            return came if came.status == DONE else replace(came, text=f"{exc}; it is not continued, as {came.text}")

    def _answer(self, request: RunRequest | Command, row: DeliveryRow, came: DeliveryResult) -> DeliveryResult:
        """Post the result where it was asked for; a forge that refuses the comment changes nothing."""
        wants = request.answers if isinstance(request, Command) else True
        if came.is_silent or not wants:
            return came
        number = request.number if isinstance(request, Command) else request.issue.number
        try:
            answers = self._home.answers()
            if came.is_forbidden:
                answers.refuse(number, _sorry(came), login=request.actor.login)
            else:
                answers.say(number, came.answer or _sentence(came), delivery=came.topic or row.guid)
        except (ForgeUnavailable, ForgeBusy):
            raise
        except (ForgeError, ConfigError):
            said = {"action": "delivery_not_answered", "delivery": row.guid}
            logger.warning("The forge does not take the answer", extra=said, exc_info=True)

        return came

    # --- ends --------------------------------------------------------------------------------------------------

    def _later(self, run: Run, cause: AdwError) -> RunResult:
        """Put a delivery off, or end it when it was put off often enough."""
        if run.attempts >= MAX_TRIES:
            why = f"given up after {run.attempts} tries: {cause}"
            self.give_up(run, why)
            return self._ended(run, RunState.FAILED, why)
        seconds = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** min(max(run.attempts - 1, 0), 16))
        if isinstance(cause, ForgeBusy):
            seconds = min(MAX_SECONDS, max(seconds, cause.seconds))
        due = timestamps.to_text(self._home.clock.now() + timedelta(seconds=seconds))
        again = self._home.runs.requeue(run, not_before=due, reason=str(cause))

        return RunResult(run=again, outcome=None, message=str(cause))

    def _ended(self, run: Run, state: RunState, reason: str) -> RunResult:
        return RunResult(run=self._home.runs.finish(run, state, reason=reason), outcome=None, message=reason)


def _guid(run: Run) -> str:
    return str(run.payload.get("guid") or "")


def _kind(request: RunRequest | Command) -> str:
    return request.kind if isinstance(request, Command) else "run"


def _sentence(came: DeliveryResult) -> str:
    return f"{came.text[:1].upper()}{came.text[1:]}."


def _sorry(came: DeliveryResult) -> str:
    return f"Sorry, nothing was done: {came.text}."


def _log(row: DeliveryRow, came: DeliveryResult) -> None:
    facts = {"delivery": row.guid, "status": came.status, "outcome": came.text, "workflow": came.adw_id}
    action = "delivery_done" if came.status == DONE else "delivery_refused"
    logger.info("Delivery carried out", extra={"action": action, **facts})


# Cleaning up after a pull request was merged: the worktree goes, the branch stays, the issue becomes free.
#
# Through the ledger, so that it can be cut off anywhere and run again. Work that is not committed is never thrown away.


_WORKTREE = "worktree"


class PostMergeCleanup:
    """Cleans up after workflows that are over, or that a merge has overtaken."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def after_merge(self, adw_id: str, mark: Mark) -> str:
        """Record the merge, cancel waiting work, remove the worktree; return what was done. Raises WorkflowBusy."""
        home = self._home
        with home.ownership.own(adw_id) as owned, home.lease_renewer.charge(owned), home.engine.log_of(adw_id):
            session = WorkSession(home.engine, owned, NoOrders())
            session.settle()
            session.change(lambda draft: _note_merge(draft, mark))
            left = self._remove_worktree(session)
            session.rest()

            return f"the pull request of workflow {adw_id} is merged: {left}"

    def worktree(self, adw_id: str) -> str:
        """Remove the worktree of a workflow that is over, and keep its branch; say what was done."""
        home = self._home
        with home.ownership.own(adw_id) as owned, home.lease_renewer.charge(owned), home.engine.log_of(adw_id):
            return self._remove_worktree(WorkSession(home.engine, owned, NoOrders()))

    def _remove_worktree(self, session: WorkSession) -> str:
        why = self._why_left(session.document)
        ledger = Ledger(session, host=self._home.host)
        facts = ledger.facts(_WORKTREE)
        if why or facts is None or not self._home.has_worktrees:
            return why or "there is no worktree to remove"
        git, path, reason = self._home.git, Path(str(facts["path"])), str(facts["reason"])
        kept, head = "", effects.secured_head(session.document)
        if head and git.why_damaged(path, reason=reason):
            kept = repository.keep_files(git, self._home.workplace, session.document.adw_id, path, head)
        was_there = git.remove_worktree(path, reason=reason, is_recorded=True)
        ledger.undone(_WORKTREE, "undone" if was_there else "gone")
        ledger.set_fields(worktree_path=None)
        but = f"; it was damaged, and its files are kept as {kept}" if kept else ""

        return f"its worktree is removed, its branch kept{but}" if was_there else "its worktree was gone already"

    def _why_left(self, document: WorkflowDocument) -> str:
        effect = effects.effect(document, _WORKTREE)
        if effect is None or effect.outcome not in effects.MADE:
            return ""
        if effect.host and effect.host != self._home.host:
            return f"its worktree is on {effect.host}, and is left to adw gc there"
        path = Path(str(effect.undo.get("path") or ""))
        if not self._home.has_worktrees or not path.is_dir():
            return ""
        if self._home.git.why_damaged(path, reason=str(effect.undo.get("reason"))):
            return ""  # its files are kept before it is removed
        if self._home.workplace.status(path):
            return "its worktree has changes that are not committed, so it is left where it is"

        return ""


def _note_merge(draft: Draft, mark: Mark) -> None:
    draft.machine.mark_merged()
    document_module.mark(draft, mark)
    if draft.machine.current_state in PARKED_STATES:
        transitions.abandon(draft, "its pull request was merged")
