"""
`/api/v1/workflows`: looking at workflows, and starting them.

Accepted means durable: when a start is answered, the document and its run exist, and a worker takes them up.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from adws.adw_modules import identifiers, views
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.worker.control import Applied, Asked, Control, last_workflow
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_modules.workflow.model import WorkflowSpec
from adws.app import Home
from adws.web import models
from adws.web.dependencies import ERRORS, AdwId, HomeOf, PageOf, asker, catch_up
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


@router.get("", operation_id="list_workflows")
def list_workflows(home: HomeOf, wanted: Annotated[WorkflowFilter, Query()]) -> models.WorkflowPage:
    """List workflows, newest first, one page at a time."""
    page = home.catalogue.page(
        PageQuery(
            limit=wanted.limit,
            cursor=wanted.cursor or None,
            state=wanted.state.value if wanted.state else None,
            issue_number=wanted.issue_number,
            repository=wanted.repository,
            workflow=wanted.workflow,
            search=wanted.search,
        )
    )

    return models.WorkflowPage(
        workflows=[models.WorkflowLine.model_validate(row) for row in page.rows], next_cursor=page.next_cursor
    )


@router.get("/{adw_id}", operation_id="get_workflow")
def get_workflow(home: HomeOf, adw_id: AdwId) -> models.Workflow:
    """Show one workflow: its state, phases, attempts and owner."""
    loaded = home.store.load(adw_id)
    lease = home.leases.read(adw_id)
    verdict = home.processes.verdict(lease.owner if lease else None)

    view = views.workflow(loaded.document, lease=lease, verdict=verdict, notices=loaded.notices)

    return models.Workflow.model_validate(view)


@router.post("", operation_id="start_workflow", status_code=201)
def start_workflow(home: HomeOf, new: models.NewWorkflow, response: Response) -> models.Started:
    """
    Start a workflow for an issue; a worker takes it up.

    With `adw_id` that workflow of the issue is carried on instead, and so is the last one for a workflow that goes on
    with earlier work (build, lint, test, review, document, ship, clean): the answer is 200 then. 409 when another
    workflow has the issue, an open pull request of ours is there for it, or the work could not be carried to its end:
    then nothing is created.
    """
    settings = home.settings
    repository = identifiers.normalise(new.repository)
    spec = home.workflows.get(new.workflow or settings.default_workflow)
    if new.adw_id or home.workflows.is_dependent(spec):
        response.status_code = 200
        return _carry_on(home, new, spec, repository)
    issue = home.preflight.check(
        StartRequest(
            spec=spec,
            issue_number=new.issue_number,
            repository=repository,
            title=new.title,
            body=new.body,
            is_in_place=new.in_place,
            is_again=new.again,
        )
    )
    start = NewWorkflow(
        issue_number=new.issue_number,
        spec=spec,
        repository=repository or settings.repository or "",
        issue=issue,
        priority=new.priority,
        asked_by=asker(new.by),
        max_retries=settings.max_retries,
        max_reworks=settings.max_reworks,
        max_total_attempts=settings.max_total_attempts,
        max_minutes=settings.max_minutes,
    )
    document = home.workflow_creator.start(start)
    catch_up(home)
    runs = home.runs.of_workflow(document.adw_id, limit=1)

    return models.Started(adw_id=document.adw_id, state=document.current_state, run_id=runs[0].run_id if runs else None)


def _carry_on(home: Home, new: models.NewWorkflow, spec: WorkflowSpec, repository: str) -> models.Started:
    if new.title or new.body or new.again or new.in_place:
        raise UsageError(
            "title, body, again and in_place are for a workflow that starts, and this carries an earlier one on: "
            "leave them out"
        )
    with fitting():
        adw_id = new.adw_id or last_workflow(home, new.issue_number, repository, spec).adw_id
        home.store.load(adw_id)  # raises StateNotFound for one that is not there
        applied = home.control.continue_with(
            adw_id,
            spec,
            by=asker(new.by),
            issue_number=new.issue_number,
            repository=repository,
            priority=new.priority,
        )
    catch_up(home)

    return models.Started(adw_id=adw_id, state=applied.state, run_id=applied.run.run_id if applied.run else None)


# Orders about a workflow over HTTP: the API and the dashboard do the same, and say the same about it.
#
# While the workflow has an owner the owner is asked, and the request is kept: `is_done` of the answer is false then.


#: Seconds that a rollback waits for the owner to release the workflow before it is refused.
ROLLBACK_WAIT_SECONDS = 5.0


class Orders:
    """Orders about one workflow, by one person."""

    def __init__(self, home: Home, adw_id: str, *, by: str, control: Control | None = None) -> None:
        """*by* is who orders it, for the history; *control* changes the workflow, that of the home unless given."""
        self._home = home
        self._adw_id = adw_id
        self._by = by
        self._given = control

    def pause(self, *, reason: str = "") -> models.Done:
        """Park the workflow; an attempt under way is suspended and does not count."""
        return self._told(self._control().pause(self._adw_id, by=self._by, reason=reason))

    def stop(self, *, reason: str = "", is_urgent: bool = False) -> models.Done:
        """Stop the work on it: its processes are asked to end, then killed; the workflow is paused."""
        return self._told(self._control().stop(self._adw_id, by=self._by, reason=reason, is_urgent=is_urgent))

    def abandon(self, *, reason: str = "") -> models.Done:
        """Give it up and free its issue; what it made is kept."""
        return self._told(self._control().abandon(self._adw_id, by=self._by, reason=reason))

    def resume(
        self, *, from_phase: str = "", hint: str = "", budget: float | None = None, workflow: str = ""
    ) -> models.Done:
        """Make it go on, with the phases of *workflow* if one is named; a worker takes it up."""
        control = self._control()
        if workflow and from_phase:
            raise UsageError("from_phase starts at a phase again, and workflow names other phases: leave one out")
        if workflow:
            spec = self._home.workflows.get(workflow)
            return self._told(control.continue_with(self._adw_id, spec, by=self._by, hint=hint, budget=budget))

        return self._told(control.resume(self._adw_id, by=self._by, from_phase=from_phase, hint=hint, budget=budget))

    def retry(self, *, hint: str = "", grant: int = 0, budget: float | None = None) -> models.Done:
        """Try a failed workflow again; with a *grant* also when its attempts are used up."""
        control, state = self._control(), self._state()
        if state != "failed":
            raise UsageError(f"workflow {self._adw_id} is {state}, not failed: resume it instead")

        return self._told(control.resume(self._adw_id, by=self._by, hint=hint, grant=grant, budget=budget))

    def approve(self, *, text: str = "") -> models.Done:
        """Let the phase that waits for a person pass, and go on."""
        return self._told(self._control().approve(self._adw_id, by=self._by, text=text))

    def reject(self, *, text: str = "") -> models.Done:
        """Send the phase that waits for a person back to work, with *text* as a hint."""
        return self._told(self._control().reject(self._adw_id, by=self._by, text=text))

    def hint(self, *, text: str) -> models.Done:
        """Say what to do differently in the next attempt."""
        return self._told(self._control().hint(self._adw_id, text, by=self._by))

    def roll_back(self, wishes: RollbackOptions) -> models.Done:
        """Let a worker undo everything it made; raises WorkflowBusy when its owner does not release it soon."""
        state = self._state()
        run = self._home.rollbacks.queue(self._adw_id, wishes, by=self._by, wait_seconds=ROLLBACK_WAIT_SECONDS)

        return models.Done(
            adw_id=self._adw_id,
            state=state,
            is_done=False,
            message=f"workflow {self._adw_id} waits for a worker that rolls it back",
            run_id=run.run_id,
        )

    def _control(self) -> Control:
        """Return what changes workflows; raise StateNotFound for one that is not there."""
        self._home.store.load(self._adw_id)

        return self._given or self._home.control

    def _state(self) -> str:
        return self._home.load(self._adw_id).current_state

    def _told(self, done: Asked | Applied) -> models.Done:
        catch_up(self._home)
        if isinstance(done, Applied):
            run_id = done.run.run_id if done.run else None
            return models.Done(adw_id=self._adw_id, state=done.state, is_done=True, message=done.message, run_id=run_id)

        return models.Done(
            adw_id=self._adw_id,
            state=self._state(),
            is_done=False,
            message=f"asked {done.owner}, who is at work; the {done.request.kind} is kept",
            request_id=done.request.request_id,
        )


def cancel_retry(home: Home, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
    """Cancel the retry *retry_id*, and return what was done; raise UsageError when there is none."""
    message = home.pending_retries.cancel(retry_id, by=by, index=index, reason=reason)
    catch_up(home)

    return message


# `/api/v1/workflows/{id}/...`: what people do to a workflow, by the same functions as the command line.
#
# While the workflow has an owner the owner is asked, and the answer is 202: the request is kept, `is_done` is false.


control_router = APIRouter(
    prefix="/api/v1/workflows/{adw_id}",
    tags=["workflows"],
    responses={**ERRORS, 202: {"model": models.Done, "description": "Whoever works on it was asked."}},
)

#: What a request without a body means.
_NO_ORDER, _NO_STOP, _NO_ROLLBACK = models.Order(), models.StopOrder(), models.RollbackOrder()
_NO_RESUME, _NO_RETRY, _NO_DECISION = models.Resume(), models.Retry(), models.Decision()


@control_router.post("/pause", operation_id="pause_workflow")
def pause(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Park a workflow; an attempt under way is suspended and does not count."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).pause(reason=order.reason))


@control_router.post("/stop", operation_id="stop_workflow")
def stop(home: HomeOf, adw_id: AdwId, response: Response, order: models.StopOrder = _NO_STOP) -> models.Done:
    """Stop the work on a workflow: its processes are asked to end, then killed; the workflow is paused."""
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        return _told(response, orders.stop(reason=order.reason, is_urgent=order.is_urgent))


@control_router.post("/abandon", operation_id="abandon_workflow")
def abandon(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Give a workflow up and free its issue; what it made is kept."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).abandon(reason=order.reason))


@control_router.post("/resume", operation_id="resume_workflow")
def resume(home: HomeOf, adw_id: AdwId, response: Response, order: models.Resume = _NO_RESUME) -> models.Done:
    """
    Make a workflow that stopped go on; a worker takes it up. 409 while somebody works on it.

    With `workflow` also one that is completed goes on, with the phases of that workflow.
    """
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        done = orders.resume(
            from_phase=order.from_phase, hint=order.hint, budget=order.budget_usd, workflow=order.workflow
        )
        return _told(response, done)


@control_router.post("/retry", operation_id="retry_workflow")
def retry(home: HomeOf, adw_id: AdwId, response: Response, order: models.Retry = _NO_RETRY) -> models.Done:
    """Try a failed workflow again; with a grant also when its attempts are used up."""
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        return _told(response, orders.retry(hint=order.hint, grant=order.grant, budget=order.budget_usd))


@control_router.post("/approve", operation_id="approve_workflow")
def approve(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Let the phase that waits for a person pass, and go on."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).approve(text=order.text))


@control_router.post("/reject", operation_id="reject_workflow")
def reject(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Send the phase that waits for a person back to work, with the text as a hint."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).reject(text=order.text))


@control_router.post("/rollback", operation_id="rollback_workflow", status_code=202)
def rollback(home: HomeOf, adw_id: AdwId, order: models.RollbackOrder = _NO_ROLLBACK) -> models.Done:
    """Undo everything a workflow made; a worker does it. 409 when whoever works on it does not let go soon."""
    by = asker(order.by)
    wishes = RollbackOptions(
        reason=order.reason or f"rolled back by {by}",
        keep_branch=order.keep_branch,
        force=order.force,
        forget_hosts=tuple(order.forget_hosts),
        by=by,
    )
    with fitting():
        return Orders(home, adw_id, by=by).roll_back(wishes)


def _told(response: Response, done: models.Done) -> models.Done:
    if not done.is_done:
        response.status_code = 202

    return done
