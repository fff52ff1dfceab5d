"""
`/api/v1/workflows`: view, start and control workflows.

Accepted means durable: when a start is answered, the document and its run are stored, and a worker will claim the run.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from adws.adw_modules import identifiers, views
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.worker.control import Applied, Control, last_workflow
from adws.adw_modules.worker.preflight import StartRequest, title_and_body
from adws.adw_modules.workflow.model import WorkflowSpec
from adws.app import Home
from adws.web import changes, models
from adws.web.dependencies import ERRORS, AdwId, HomeOf, NoExtras, PageOf, asker, catch_up
from adws.web.middleware import fitting

router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"], responses=ERRORS)


class WorkflowFilter(PageOf):
    """Which workflows to list."""

    state: WorkflowState | None = None
    issue_number: int | None = Field(default=None, ge=1, le=10**18 - 1)
    repository: str | None = Field(default=None, max_length=200)
    workflow: str | None = Field(default=None, max_length=200)
    search: str = Field(
        default="", max_length=200, description="words that are all found in title, repository, id or issue number"
    )
    with_results: bool = Field(default=False, description="with phase, cost, work time, branch and pull request")


@router.get("", operation_id="list_workflows")
def list_workflows(home: HomeOf, wanted: Annotated[WorkflowFilter, Query()]) -> models.WorkflowPage:
    """List workflows, newest first, one page at a time."""
    asked = dict(wanted) | {"cursor": wanted.cursor or None, "state": wanted.state.value if wanted.state else None}
    page = home.catalogue.page(PageQuery(**asked))

    return models.WorkflowPage.model_validate(
        {"workflows": page.rows, "next_cursor": page.next_cursor}, from_attributes=True
    )


@router.get("/{adw_id}", operation_id="get_workflow")
def get_workflow(home: HomeOf, adw_id: AdwId) -> models.Workflow:
    """Show one workflow: its state, phases, attempts and owner."""
    loaded = home.store.load(adw_id)
    lease = home.leases.read(adw_id)
    verdict = home.processes.verdict(lease.owner if lease else None)

    view = views.workflow(loaded.document, lease=lease, verdict=verdict, notices=loaded.notices)

    return models.Workflow.model_validate(view, from_attributes=True)


class DiffQuery(NoExtras):
    """Which changes to show."""

    phase: str = Field(default="", max_length=100, description='name of a phase; "": the changes of all phases')
    attempt: int = Field(default=0, ge=0, le=999_999_999, description="number of an attempt at that phase")


@router.get("/{adw_id}/diff", operation_id="get_workflow_diff")
def get_diff(home: HomeOf, adw_id: AdwId, wanted: Annotated[DiffQuery, Query()]) -> models.WorkflowDiff:
    """
    Show what a workflow committed: a unified diff of each file, in all or of one attempt.

    At most 500 files and 400 KiB of patches, 64 KiB of each file; what is left out is named. Binary files and files
    larger than 512 KiB have no patch.
    """
    if bool(wanted.phase) != bool(wanted.attempt):
        raise UsageError("phase and attempt name the attempt whose changes are shown: give both, or neither")
    result = changes.read(home, home.load(adw_id), phase=wanted.phase, attempt=wanted.attempt)
    diff = result.diff

    nothing = {"base": None, "head": None, "added": 0, "deleted": 0, "file_count": 0, "is_cut": False, "files": ()}
    made = {name: getattr(diff, name) for name in nothing} if diff else nothing
    of_attempt = {"adw_id": adw_id, "phase": wanted.phase, "attempt": wanted.attempt}

    return models.WorkflowDiff.model_validate(
        {**of_attempt, **made, "attempts": result.ranges, "problem": result.problem or None}, from_attributes=True
    )


@router.post("", operation_id="start_workflow", status_code=201)
def start_workflow(home: HomeOf, new: models.NewWorkflow, response: Response) -> models.Started:
    """
    Start a workflow for an issue or a task; a worker takes it up.

    With `adw_id` that workflow of the issue is continued instead, and so is the last one for a workflow that continues
    earlier work (build, lint, test, review, document, ship, clean): the answer is 200 then. 409 when another workflow
    has the issue, it has an open pull request of adw, or something needed to finish the work is missing: then nothing
    is created.
    """
    started, is_new = start(home, new, by=asker(new.by))
    response.status_code = 201 if is_new else 200

    return started


def start(home: Home, new: models.NewWorkflow, *, by: str) -> tuple[models.Started, bool]:
    """Start or continue a workflow; return it and whether it is new, or raise the reason why nothing was created."""
    settings = home.settings
    repository = identifiers.normalise(new.repository)
    spec = home.workflows.get(new.workflow or settings.default_workflow)
    if (new.issue_number is None) is not bool(new.task):
        raise UsageError("give either the issue_number of an issue or a task: a workflow has one goal")
    if new.adw_id or home.workflows.is_dependent(spec):
        return _carry_on(home, new, spec, repository, by=by), False
    task_title, task_body = title_and_body(new.task)
    request = StartRequest(
        spec=spec,
        issue_number=new.issue_number,
        repository=repository,
        title=new.title or task_title,
        body=new.body or task_body,
        is_in_place=new.in_place,
        is_again=new.again,
    )
    document = home.workflow_creator.start(home.preflight.accept(request, asked_by=by, priority=new.priority))
    catch_up(home)
    runs = home.runs.of_workflow(document.adw_id, limit=1)
    run_id = runs[0].run_id if runs else None

    return models.Started(adw_id=document.adw_id, state=document.current_state, run_id=run_id), True


def _carry_on(home: Home, new: models.NewWorkflow, spec: WorkflowSpec, repository: str, *, by: str) -> models.Started:
    if new.issue_number is None:
        raise UsageError(f"{spec.name} continues an earlier workflow of an issue: give its issue_number, and no task")
    if new.title or new.body or new.again or new.in_place:
        raise UsageError(
            "title, body, again and in_place are for a new workflow, and this continues an earlier one: leave them out"
        )
    with fitting():
        adw_id = new.adw_id or last_workflow(home, new.issue_number, repository, spec).adw_id
        home.store.load(adw_id)  # raises StateNotFound for an unknown id
        applied = home.control.continue_with(
            adw_id,
            spec,
            by=by,
            issue_number=new.issue_number,
            repository=repository,
            priority=new.priority,
        )
    catch_up(home)

    return models.Started(adw_id=adw_id, state=applied.state, run_id=applied.run.run_id if applied.run else None)


# --- functions that control a workflow, shared by the API and the dashboard ------------------------------------
#
# While a worker owns the workflow, the request is stored for it, and `is_done` of the answer is false.


#: Seconds that a rollback waits for the owner to release the workflow; after that it is refused.
ROLLBACK_WAIT_SECONDS = 5.0


def order(
    home: Home,
    adw_id: str,
    kind: str,
    *,
    by: str,
    control: Control | None = None,
    workflow: str = "",
    **options: Any,
) -> models.Done:
    """
    Carry out one order about a workflow and return the result; *by* is recorded in the history.

    *options* are those of `Control.order`. A retry is a resume of a failed workflow, and a resume with *workflow*
    continues with the phases of that workflow. *control* is the home's unless the change is to be marked. Raise
    StateNotFound, and UsageError if the order does not fit the state of the workflow.
    """
    state = home.load(adw_id).current_state
    if kind == "retry" and state != "failed":
        raise UsageError(f"workflow {adw_id} is {state}, not failed: resume it instead")
    method = "resume" if kind == "retry" else kind
    if workflow:
        if options.pop("from_phase", ""):
            raise UsageError("from_phase starts at a phase again, and workflow names other phases: leave one out")
        method, options = "continue_with", {**options, "spec": home.workflows.get(workflow)}
    answer = (control or home.control).order(adw_id, method, by=by, **options)
    catch_up(home)
    if isinstance(answer, Applied):
        run_id = answer.run.run_id if answer.run else None
        return models.Done(adw_id=adw_id, state=answer.state, is_done=True, message=answer.message, run_id=run_id)

    return models.Done(
        adw_id=adw_id,
        state=home.load(adw_id).current_state,
        is_done=False,
        message=f"asked {answer.owner}, who is at work; the {answer.request.kind} is kept",
        request_id=answer.request.request_id,
    )


def roll_back(
    home: Home, adw_id: str, options: RollbackOptions, *, wait_seconds: float = ROLLBACK_WAIT_SECONDS
) -> models.Done:
    """Queue a rollback for a worker; raise WorkflowBusy if the owner does not release the workflow in time."""
    state = home.load(adw_id).current_state
    run = home.rollbacks.queue(adw_id, options, by=options.by, wait_seconds=wait_seconds)
    message = f"workflow {adw_id} waits for a worker that rolls it back"

    return models.Done(adw_id=adw_id, state=state, is_done=False, message=message, run_id=run.run_id)


def cancel_retry(home: Home, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
    """Cancel the retry *retry_id* and return what was done; raise UsageError if there is no such retry."""
    message = home.pending_retries.cancel(retry_id, by=by, index=index, reason=reason)
    catch_up(home)

    return message


# --- `/api/v1/workflows/{id}/...`: control of one workflow; a stored request is answered with 202 --------------


control_router = APIRouter(
    prefix="/api/v1/workflows/{adw_id}",
    tags=["workflows"],
    responses={**ERRORS, 202: {"model": models.Done, "description": "The worker that owns it was asked."}},
)

#: The defaults for a request without a body.
_NO_ORDER, _NO_STOP, _NO_ROLLBACK = models.Order(), models.StopOrder(), models.RollbackOrder()
_NO_RESUME, _NO_RETRY, _NO_DECISION = models.Resume(), models.Retry(), models.Decision()


@control_router.post("/pause", operation_id="pause_workflow")
def pause(home: HomeOf, adw_id: AdwId, response: Response, body: models.Order = _NO_ORDER) -> models.Done:
    """Pause a workflow; an attempt under way is suspended and does not count."""
    return _ordered(response, home, adw_id, "pause", body)


@control_router.post("/stop", operation_id="stop_workflow")
def stop(home: HomeOf, adw_id: AdwId, response: Response, body: models.StopOrder = _NO_STOP) -> models.Done:
    """Stop the work on a workflow: its processes are asked to end, then killed; the workflow is paused."""
    return _ordered(response, home, adw_id, "stop", body)


@control_router.post("/abandon", operation_id="abandon_workflow")
def abandon(home: HomeOf, adw_id: AdwId, response: Response, body: models.Order = _NO_ORDER) -> models.Done:
    """Abandon a workflow and release its issue lock; what it made is kept."""
    return _ordered(response, home, adw_id, "abandon", body)


@control_router.post("/resume", operation_id="resume_workflow")
def resume(home: HomeOf, adw_id: AdwId, response: Response, body: models.Resume = _NO_RESUME) -> models.Done:
    """
    Resume a paused or failed workflow; a worker takes it up. 409 while a worker owns it.

    With `workflow` a completed one is continued too, with the phases of that workflow.
    """
    return _ordered(response, home, adw_id, "resume", body)


@control_router.post("/retry", operation_id="retry_workflow")
def retry(home: HomeOf, adw_id: AdwId, response: Response, body: models.Retry = _NO_RETRY) -> models.Done:
    """Retry a failed workflow; with a grant also when its attempts are used up."""
    return _ordered(response, home, adw_id, "retry", body)


@control_router.post("/approve", operation_id="approve_workflow")
def approve(home: HomeOf, adw_id: AdwId, response: Response, body: models.Decision = _NO_DECISION) -> models.Done:
    """Approve the phase that waits for approval, and continue."""
    return _ordered(response, home, adw_id, "approve", body)


@control_router.post("/reject", operation_id="reject_workflow")
def reject(home: HomeOf, adw_id: AdwId, response: Response, body: models.Decision = _NO_DECISION) -> models.Done:
    """Send the phase that waits for approval back to work, with the text as a hint."""
    return _ordered(response, home, adw_id, "reject", body)


@control_router.post("/rollback", operation_id="rollback_workflow", status_code=202)
def rollback(home: HomeOf, adw_id: AdwId, body: models.RollbackOrder = _NO_ROLLBACK) -> models.Done:
    """Undo everything a workflow made; a worker does it. 409 when the worker that owns it does not release it soon."""
    by = asker(body.by)
    options = RollbackOptions(
        reason=body.text or f"rolled back by {by}",
        keep_branch=body.keep_branch,
        force=body.force,
        forget_hosts=tuple(body.forget_hosts),
        by=by,
    )
    with fitting():
        return roll_back(home, adw_id, options)


def _ordered(response: Response, home: Home, adw_id: str, kind: str, body: models.AnyOrder) -> models.Done:
    """Carry out an order; all fields of *body* except `by` are options of `order`."""
    options: dict[str, Any] = {name: value for name, value in body if name != "by"}
    with fitting():
        done = order(home, adw_id, kind, by=asker(body.by), **options)
    if not done.is_done:
        response.status_code = 202

    return done
