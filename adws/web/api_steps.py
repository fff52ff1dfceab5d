"""`/api/v1/.../executions` and `/api/v1/retries`: steps that loop or retry, and scheduled retries."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AfterValidator, BaseModel, Field, JsonValue, StrictInt

from adws.adw_modules.errors import ForeignToken, TaskNotFound, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.external_tasks import DEFAULT_CLAIM_SECONDS
from adws.adw_modules.steps.model import IterationState
from adws.web import api_workflows
from adws.web.dependencies import ERRORS, AdwId, HomeOf, NoExtras, OptionalAdwId, PageOf, asker
from adws.web.middleware import TASK_IN_SCOPE, fitting

router = APIRouter(prefix="/api/v1", tags=["steps"], responses=ERRORS)

ExecutionId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,299}$", description="id of an execution")]
Index = Annotated[int, Path(ge=0, le=2**53, description="of an iteration, counted from 0")]


class ExecutionFilter(NoExtras):
    """Which executions to list."""

    step: str = Field(default="", max_length=200)
    limit: int = Field(default=100, ge=1, le=1000)


class IterationFilter(PageOf):
    """Which iterations to list."""

    state: list[IterationState] = Field(default=[], max_length=len(IterationState))


class RetryFilter(NoExtras):
    """Which retries to list."""

    adw_id: OptionalAdwId = ""
    limit: int = Field(default=1000, ge=1, le=10_000)


class CancelOrder(NoExtras):
    """Which retry is cancelled, and why."""

    index: int | None = Field(default=None, ge=0, le=2**53, description="of an execution: only this iteration")
    by: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=10_000)


class Execution(BaseModel):
    """A step whose calls are spread over workers."""

    execution_id: str
    adw_id: str
    phase: str
    attempt_number: int
    step: str
    state: str
    reason: str
    total: int | None = Field(description="null while its elements are being stored")
    done: int
    succeeded: int
    failed: int
    cancelled: int
    running: int = Field(description="calls in flight")
    waiting: int = Field(description="calls that wait for their time")
    next_retry: str | None
    created_at: str
    ended_at: str | None


class ExecutionList(BaseModel):
    """Executions, the newest first."""

    executions: list[Execution]


class Iteration(BaseModel):
    """An iteration in a list."""

    index: int
    state: str
    attempts: int = Field(description="calls so far, over all pages")
    page: int
    next_at: str | None
    why: str
    is_cut: bool = Field(description="completed at max_attempts: its result lacks the pages after that")
    error: str
    started_at: str | None
    ended_at: str | None
    element: str = Field(description="the beginning of its JSON")
    result: str = Field(description="the beginning of its JSON")


class IterationPage(BaseModel):
    """Iterations, in the order of the collection."""

    iterations: list[Iteration]
    next_cursor: str | None


class OpenIteration(BaseModel):
    """All about one iteration."""

    iteration: Iteration = Field(validation_alias="line")
    element: JsonValue
    result: JsonValue
    call: dict[str, JsonValue] = Field(description="inputs that the page before asked for")
    pages: list[int] = Field(description="characters of what was kept of each page")
    calls: list[dict[str, JsonValue]] = Field(description="events of its calls, in order")


class Retry(BaseModel):
    """A scheduled retry."""

    kind: str = Field(description="phase, or call of a step")
    retry_id: str = Field(description="what is cancelled: the workflow, or the execution")
    adw_id: str
    phase: str
    step: str
    index: int | None
    attempt_number: int
    page: int | None
    next_at: str
    why: str
    error: str


class RetryList(BaseModel):
    """Scheduled retries, the next one first."""

    retries: list[Retry]


class Cancelled(BaseModel):
    """A retry that was cancelled."""

    retry_id: str
    message: str


@router.get("/workflows/{adw_id}/executions", operation_id="list_executions")
def list_executions(home: HomeOf, adw_id: AdwId, wanted: Annotated[ExecutionFilter, Query()]) -> ExecutionList:
    """List the steps of a workflow that loop or retry, the newest first."""
    result = home.execution_views.of_workflow(adw_id, step=wanted.step, limit=wanted.limit)
    if not result and not home.store.exists(adw_id):
        raise home.no_workflow(adw_id)

    return ExecutionList.model_validate({"executions": result}, from_attributes=True)


@router.get("/executions/{execution_id}", operation_id="show_execution")
def show_execution(home: HomeOf, execution_id: ExecutionId) -> Execution:
    """Show one step with its counts."""
    return Execution.model_validate(home.execution_views.get(execution_id), from_attributes=True)


@router.get("/executions/{execution_id}/iterations", operation_id="list_iterations")
def list_iterations(
    home: HomeOf, execution_id: ExecutionId, wanted: Annotated[IterationFilter, Query()]
) -> IterationPage:
    """List the iterations of a step, in the order of the collection."""
    views = home.execution_views
    views.get(execution_id)
    states = [state.value for state in wanted.state]
    before = wanted.number("iteration")
    after = -1 if before is None else before
    rows = views.iterations(execution_id, states=states, after=after, limit=wanted.limit + 1)
    shown, last = wanted.cut(rows)

    return IterationPage.model_validate(
        {"iterations": shown, "next_cursor": str(last.index) if last else None}, from_attributes=True
    )


@router.get("/executions/{execution_id}/iterations/{index}", operation_id="show_iteration")
def show_iteration(home: HomeOf, execution_id: ExecutionId, index: Index) -> OpenIteration:
    """Show one iteration with its calls and pages."""
    return OpenIteration.model_validate(home.execution_views.iteration(execution_id, index), from_attributes=True)


@router.get("/retries", operation_id="list_retries")
def list_retries(home: HomeOf, wanted: Annotated[RetryFilter, Query()]) -> RetryList:
    """List scheduled retries of phases and of calls of steps."""
    rows = home.pending_retries.all(adw_id=wanted.adw_id, limit=wanted.limit)

    return RetryList.model_validate({"retries": rows}, from_attributes=True)


@router.post("/retries/{retry_id}/cancel", operation_id="cancel_retry")
def cancel_retry(home: HomeOf, retry_id: ExecutionId, order: CancelOrder | None = None) -> Cancelled:
    """Cancel a retry: calls of an execution, or the next attempt of a phase. 409 when none is scheduled."""
    asked = order or CancelOrder()
    with fitting():
        message = api_workflows.cancel_retry(home, retry_id, by=asker(asked.by), index=asked.index, reason=asked.reason)

    return Cancelled(retry_id=retry_id, message=message)


# --- `/api/v1/external` and `/api/v1/event/emit`: reports on external tasks ------------------------------------
#
# The token of a task opens only the routes of that task; a token of the settings opens all. A report by a worker that
# has lost its claim is answered with 409 and changes nothing.


external_router = APIRouter(prefix="/api/v1", tags=["external"], responses=ERRORS)

TaskId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,159}$", description="id of a task")]
EventId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$")]


def _refuse_foreign(request: Request, task_id: str) -> str:
    """Return *task_id*; raise ForeignToken if the token belongs to another task."""
    if request.scope.get(TASK_IN_SCOPE, task_id) != task_id:
        raise ForeignToken(task_id)

    return task_id


def _open_task(request: Request, task_id: TaskId) -> str:
    return _refuse_foreign(request, task_id)


#: The id of a task that the request's token opens.
OpenTask = Annotated[str, Depends(_open_task)]
Claim = Annotated[int, Field(ge=1, le=2**53, description="the number that the claim was answered with")]
Values = dict[str, JsonValue]

_KEPT = "kept as it is sent; adw fills in what it knows when it is missing"
Label = Annotated[
    Annotated[str, Field(max_length=200)] | Annotated[StrictInt, AfterValidator(str)], Field(description=_KEPT)
]
#: Fields of the request that are not fields of the event.
_ABOUT = frozenset({"claim", "summary", "attempt_number"})


class ClaimOrder(NoExtras):
    """The worker that claims a task."""

    worker: str = Field(default="", max_length=200, description="who asks; the same name again takes its claim over")
    seconds: float = Field(
        default=DEFAULT_CLAIM_SECONDS, ge=1, le=86_400, description="how long the claim lasts without a heartbeat"
    )


class Heartbeat(NoExtras):
    """A heartbeat of a claimed task."""

    claim: Claim


class Report(NoExtras):
    """The result of a task."""

    claim: Claim
    ok: bool
    result: Values = Field(default={}, description="what the phase gives back")
    summary: str = Field(default="", max_length=2000, description="one line for people")
    error: Values | str = Field(
        default="", description="of one that failed: a sentence, or message with category, exit_code or status"
    )
    event_id: EventId | None = Field(default=None, description="the same report again changes nothing")


class EmittedEvent(NoExtras):
    """Something that happened to a task."""

    claim: Claim
    execution_id: str = Field(
        default="",
        max_length=300,
        description="the task, or a loop of it (the task, a dot and a name); not needed with the token of the task",
    )
    event_id: EventId = Field(description="the sender's own; the same one again changes nothing")
    event_type: str = Field(max_length=60)
    status: str = Field(default="", max_length=60)
    duration: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    result: JsonValue = None
    context: Values = Field(default={})
    data: Values = Field(default={})
    meta: Values = Field(default={})
    summary: str = Field(default="", max_length=2000)
    catalog_id: Label | None = None
    node_id: Label | None = None
    node_name: Label | None = None
    node_type: Label | None = None
    parent_execution_id: Label | None = Field(default=None, description="of an iteration: the loop it belongs to")
    parent_event_id: Label | None = Field(default=None, description="an event_id of the sender, or any other id")
    iteration_index: int | None = Field(
        default=None, ge=0, le=2**31, description="of an iteration, counted from 0; may stand in data instead"
    )
    attempt_number: JsonValue = Field(default=None, description="adw knows this itself; it may be sent, and is ignored")


class Task(BaseModel):
    """A task."""

    task_id: str
    adw_id: str
    phase: str
    attempt_number: int
    state: Literal["open", "reported", "expired"]
    path: str = Field(description="where to claim it and report on it")
    deadline: str
    created_at: str
    ended_at: str | None
    claim: int = Field(description="number of the last claim, 0: there was none")
    worker: str
    claim_until: str | None = Field(description="when the claim is over without a heartbeat; null: it is not claimed")
    is_ok: bool | None = Field(description="null: not reported yet")
    summary: str


class TaskList(BaseModel):
    """Tasks, the newest first."""

    tasks: list[Task]


class Accepted(BaseModel):
    """Confirms that a report was accepted."""

    task_id: str
    is_new: bool = Field(description="false: it was reported before, and nothing was changed")


class TaskFilter(NoExtras):
    """Which tasks to list."""

    adw_id: OptionalAdwId = ""
    only_open: bool = False
    limit: int = Field(default=100, ge=1, le=1000)


@external_router.get("/external", operation_id="list_external_tasks")
def list_tasks(home: HomeOf, wanted: Annotated[TaskFilter, Query()]) -> TaskList:
    """List external tasks, the newest first; no token is shown."""
    tasks = home.external_tasks
    page = tasks.page(adw_id=wanted.adw_id, only_open=wanted.only_open, limit=wanted.limit)

    return TaskList(tasks=[Task.model_validate(task.to_json()) for task in page])


@external_router.get("/external/{task_id}", operation_id="show_external_task")
def show(home: HomeOf, task_id: OpenTask) -> Task:
    """Show one task, without its token."""
    result = home.external_tasks.get(task_id)
    if result is None:
        raise TaskNotFound(task_id)

    return Task.model_validate(result.to_json())


@external_router.post("/external/{task_id}/claim", operation_id="claim_external_task")
def claim(home: HomeOf, task_id: OpenTask, order: ClaimOrder | None = None) -> Task:
    """Claim a task; 409 while another worker holds it, or when the workflow does not wait for it any more."""
    asked = order or ClaimOrder()

    task = home.external.claim(task_id, worker=asked.worker, seconds=asked.seconds)

    return Task.model_validate(task.to_json())


@external_router.post("/external/{task_id}/heartbeat", operation_id="beat_external_task")
def heartbeat(home: HomeOf, task_id: OpenTask, sign: Heartbeat) -> Task:
    """Extend the claim of a task; 409 when the claim has expired."""
    return Task.model_validate(home.external.heartbeat(task_id, sign.claim).to_json())


@external_router.post("/external/{task_id}/report", operation_id="report_external_task")
def report(home: HomeOf, task_id: OpenTask, said: Report) -> Accepted:
    """Report the end of a task; the workflow continues. 409 when the claim has expired."""
    event = Event(
        event_type="action_completed" if said.ok else "action_failed",
        event_id=said.event_id or f"report-{said.claim}",
        result=said.result,
        data={} if said.ok else {"error": said.error},
    )
    is_new = home.external.emit(task_id, said.claim, event, summary=said.summary)

    return Accepted(task_id=task_id, is_new=is_new)


@external_router.post("/event/emit", operation_id="emit_event")
def emit(home: HomeOf, request: Request, said: EmittedEvent) -> Accepted:
    """
    Report an event of a task or of a loop that is run for it; action_completed and action_failed end the task.

    409 when the claim has expired, or when an event contradicts what is recorded of its loop.
    """
    # The id of a task has three parts without dots, and the name of a loop comes after them.
    task_id = ".".join(said.execution_id.split(".")[:3]) or str(request.scope.get(TASK_IN_SCOPE, ""))
    if not task_id:
        raise UsageError("execution_id is missing: name the task, or show its own token")
    _refuse_foreign(request, task_id)
    event = Event(**{name: value for name, value in said if value is not None and name not in _ABOUT})
    is_new = home.external.emit(task_id, said.claim, event, summary=said.summary)

    return Accepted(task_id=task_id, is_new=is_new)
