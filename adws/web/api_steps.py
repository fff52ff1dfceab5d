"""
`/api/v1/.../executions` and `/api/v1/retries`: steps that loop or retry, and what is tried again later.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from adws.adw_modules.errors import StateNotFound, UsageError
from adws.adw_modules.execution_views import ExecutionLine, IterationLine
from adws.adw_modules.execution_words import IterationState
from adws.web import orders
from adws.web.errors import fitting
from adws.web.routes import ERRORS, AdwId, HomeOf, PageOf, asker

router = APIRouter(prefix="/api/v1", tags=["steps"], responses=ERRORS)

ExecutionId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,299}$", description="id of an execution")]
Index = Annotated[int, Path(ge=0, le=2**53, description="of an iteration, counted from 0")]


class ExecutionFilter(BaseModel):
    """Which executions to list."""

    model_config = ConfigDict(extra="forbid")

    step: str = Field(default="", max_length=200)
    limit: int = Field(default=100, ge=1, le=1000)


class IterationFilter(PageOf):
    """Which iterations to list."""

    state: list[IterationState] = Field(default=[], max_length=len(IterationState))


class RetryFilter(BaseModel):
    """Which retries to list."""

    model_config = ConfigDict(extra="forbid")

    adw_id: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")
    limit: int = Field(default=1000, ge=1, le=10_000)


class CancelOrder(BaseModel):
    """What is given up, and why."""

    model_config = ConfigDict(extra="forbid")

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

    iteration: Iteration
    element: JsonValue
    result: JsonValue
    call: dict[str, JsonValue] = Field(description="inputs that the page before asked for")
    pages: list[int] = Field(description="characters of what was kept of each page")
    calls: list[dict[str, JsonValue]] = Field(description="events of its calls, in order")


class Retry(BaseModel):
    """Something that is tried again at a moment."""

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
    """What waits for its time, the next one first."""

    retries: list[Retry]


class Cancelled(BaseModel):
    """What was given up."""

    retry_id: str
    message: str


@router.get("/workflows/{adw_id}/executions", operation_id="list_executions")
def list_executions(home: HomeOf, adw_id: AdwId, wanted: Annotated[ExecutionFilter, Query()]) -> ExecutionList:
    """List the steps of a workflow that loop or retry, the newest first."""
    views = home.part(lambda app: app.execution_views)
    found = views.of_workflow(adw_id, step=wanted.step, limit=wanted.limit)
    if not found and not home.part(lambda app: app.store).exists(adw_id):
        raise StateNotFound(adw_id)

    return ExecutionList(executions=[_execution(one) for one in found])


@router.get("/executions/{execution_id}", operation_id="show_execution")
def show_execution(home: HomeOf, execution_id: ExecutionId) -> Execution:
    """Show one, with its counts."""
    return _execution(home.part(lambda app: app.execution_views).get(execution_id))


@router.get("/executions/{execution_id}/iterations", operation_id="list_iterations")
def list_iterations(
    home: HomeOf, execution_id: ExecutionId, wanted: Annotated[IterationFilter, Query()]
) -> IterationPage:
    """List its iterations, in the order of the collection."""
    views = home.part(lambda app: app.execution_views)
    views.get(execution_id)
    states = [state.value for state in wanted.state]
    rows = views.iterations(execution_id, states=states, after=_after(wanted.cursor), limit=wanted.limit + 1)
    shown = rows[: wanted.limit]

    return IterationPage(
        iterations=[_iteration(row) for row in shown],
        next_cursor=str(shown[-1].index) if len(rows) > wanted.limit else None,
    )


@router.get("/executions/{execution_id}/iterations/{index}", operation_id="show_iteration")
def show_iteration(home: HomeOf, execution_id: ExecutionId, index: Index) -> OpenIteration:
    """Show one iteration with its calls and pages."""
    found = home.part(lambda app: app.execution_views).iteration(execution_id, index)

    return OpenIteration(
        iteration=_iteration(found.line),
        element=found.element,
        result=found.result,
        call=found.call,
        pages=list(found.pages),
        calls=list(found.calls),
    )


@router.get("/retries", operation_id="list_retries")
def list_retries(home: HomeOf, wanted: Annotated[RetryFilter, Query()]) -> RetryList:
    """List what is tried again later: phases, and calls of steps."""
    found = home.part(lambda app: app.retries).all(adw_id=wanted.adw_id, limit=wanted.limit)

    return RetryList(retries=[Retry.model_validate(one.to_json()) for one in found])


@router.post("/retries/{retry_id}/cancel", operation_id="cancel_retry")
def cancel_retry(home: HomeOf, retry_id: ExecutionId, order: CancelOrder | None = None) -> Cancelled:
    """Give it up: the calls of an execution, or the next attempt of a workflow's phase. 409 when nothing waits."""
    asked = order or CancelOrder()
    with fitting():
        message = orders.cancel_retry(home, retry_id, by=asker(asked.by), index=asked.index, reason=asked.reason)

    return Cancelled(retry_id=retry_id, message=message)


def _execution(line: ExecutionLine) -> Execution:
    return Execution.model_validate(line.to_json())


def _iteration(line: IterationLine) -> Iteration:
    return Iteration.model_validate(line.to_json())


def _after(cursor: str) -> int:
    if not cursor:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 15):
        raise UsageError("the cursor names no iteration: use the next_cursor of the page before, unchanged")

    return int(cursor)
