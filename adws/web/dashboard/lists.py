"""
`/workflows`, `/runs`, `/runners`, `/locks`, `/deliveries`: lists, one page at a time.

They show what the API lists, with the same filters. Filters are part of the URL, so a list can be bookmarked. Empty
filters are ignored.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import HTMLResponse

from adws.adw_modules import events
from adws.adw_modules.errors import ExecutionNotFound
from adws.adw_modules.events import Event
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.queue.workers import RunnerState
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.steps.model import IterationState
from adws.adw_modules.steps.views import ExecutionLine
from adws.web import api_views, api_workflows
from adws.web.api_steps import ExecutionId, Index
from adws.web.dashboard import frame
from adws.web.dashboard import start as dashboard_start
from adws.web.dependencies import AdwId, HomeOf, PageOf

if TYPE_CHECKING:
    from adws.app import Home


router = APIRouter(include_in_schema=False)

_Filter = TypeVar("_Filter", bound=BaseModel)
_VERDICTS = ("run", "command", "ignored")


@router.get("/workflows")
def list_workflows(request: Request, home: HomeOf) -> HTMLResponse:
    """Show workflows, newest first."""
    wanted = _asked(request, api_workflows.WorkflowFilter)
    result = api_workflows.list_workflows(home, wanted.model_copy(update={"with_results": True}))
    names = {*home.workflows.names(), *([wanted.workflow] if wanted.workflow else [])}

    def state_url(state: str) -> str:
        url = request.url.remove_query_params(("cursor", "state"))
        return str((url.include_query_params(state=state) if state else url).replace(scheme="", netloc=""))

    return _page(
        request,
        "workflows.html",
        wanted,
        result.next_cursor,
        wanted=wanted,
        states=[state.value for state in WorkflowState],
        counts=home.reports.states(),
        state_url=state_url,
        names=sorted(names),
        rows=result.workflows,
        pick=dashboard_start.PICK,
        bulk_actions=dashboard_start.BULK_ACTIONS,
    )


@router.get("/runs")
def list_runs(request: Request, home: HomeOf) -> HTMLResponse:
    """Show queued, running and finished runs, newest first."""
    wanted = _asked(request, api_views.RunFilter)
    result = api_views.list_runs(home, wanted)

    return _page(
        request,
        "runs.html",
        wanted,
        result.next_cursor,
        chosen={state.value for state in wanted.state},
        states=[state.value for state in RunState],
        rows=result.runs,
    )


@router.get("/runners")
def list_runners(request: Request, home: HomeOf) -> HTMLResponse:
    """Show live workers, the newest first, then those that are gone."""
    newest = sorted(api_views.list_runners(home).runners, key=lambda one: one.started_at, reverse=True)
    rows = sorted(newest, key=lambda one: one.state == RunnerState.GONE.value)

    return frame.render(request, "runners.html", topic="home", rows=rows)


@router.get("/locks")
def list_locks(request: Request, home: HomeOf) -> HTMLResponse:
    """Show which workflow holds the lock of which issue."""
    return frame.render(request, "locks.html", topic="home", rows=api_views.list_locks(home).locks)


@router.get("/deliveries")
def list_deliveries(request: Request, home: HomeOf) -> HTMLResponse:
    """Show webhook deliveries with their results, newest first."""
    wanted = _asked(request, api_views.DeliveryFilter)
    result = api_views.list_deliveries(home, wanted)

    return _page(
        request,
        "deliveries.html",
        wanted,
        result.next_cursor,
        chosen=set(wanted.verdict),
        verdicts=_VERDICTS,
        rows=result.deliveries,
    )


def _asked(request: Request, kind: type[_Filter]) -> _Filter:
    """Return the filter in the URL; raise RequestValidationError if it is invalid."""
    given: dict[str, object] = {}
    for name in request.query_params:
        values = [value for value in request.query_params.getlist(name) if value.strip()]
        field = kind.model_fields.get(name)
        if values:
            given[name] = values if field is not None and isinstance(field.default, list) else values[-1].strip()
    issue = given.get("issue_number")
    if isinstance(issue, str):
        given["issue_number"] = issue.removeprefix("#")
    try:
        return kind.model_validate(given)
    except ValidationError as exc:
        raise RequestValidationError(exc.errors()) from exc


def _page(request: Request, template: str, asked: PageOf, next_cursor: str | None, **facts: object) -> HTMLResponse:
    """Return a page of a list, with the URLs of the next page and of the first."""
    further = request.url.include_query_params(cursor=next_cursor) if next_cursor else None
    first = request.url.remove_query_params("cursor") if asked.cursor else None
    addresses = {
        name: str(url.replace(scheme="", netloc="")) if url else ""
        for name, url in (("next_url", further), ("first_url", first))
    }
    has_filter = bool(asked.model_dump(exclude_defaults=True, exclude={"limit", "cursor", "with_results"}))
    said: dict[str, Any] = {**facts, **addresses, "has_filter": has_filter}

    return frame.render(request, template, topic="home", **said)


# --- `/workflows/{id}/executions/...`: a step whose calls are spread over workers, and its iterations ----------


executions_router = APIRouter(prefix="/workflows/{adw_id}/executions/{execution_id}", include_in_schema=False)

#: Iterations per page.
ITERATIONS_OF_A_PAGE = 50
#: The most characters shown of an element, a result or a page.
MOST_CHARACTERS = 20_000
#: The most pages of an iteration that are listed.
MOST_PAGES = 200

PageNumber = Annotated[int, Path(ge=0, le=2**53, description="of a page, as the calls count them")]


@executions_router.get("")
def show_execution(
    *,
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    execution_id: ExecutionId,
    state: Annotated[IterationState | None, Query()] = None,
    after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
) -> HTMLResponse:
    """Show the progress of a step, and its iterations in the order of the collection."""
    line = _line(home, adw_id, execution_id)
    views = home.execution_views
    states = (state.value,) if state else ()
    rows = views.iterations(execution_id, states=states, after=after, limit=ITERATIONS_OF_A_PAGE + 1)
    shown = rows[:ITERATIONS_OF_A_PAGE]
    following = {**({"state": state.value} if state else {}), "after": shown[-1].index if shown else -1}

    return frame.of_workflow(
        request,
        "execution.html",
        home.load(adw_id),
        topic=f"workflow:{adw_id}",
        line=line,
        rows=shown,
        state=state.value if state else "",
        states=[one.value for one in IterationState],
        after=after,
        later=urlencode(following) if len(rows) > ITERATIONS_OF_A_PAGE else "",
    )


@executions_router.get("/iterations/{index}")
def show_iteration(
    request: Request, home: HomeOf, adw_id: AdwId, execution_id: ExecutionId, index: Index
) -> HTMLResponse:
    """Show one iteration with its calls, its pages and its result."""
    line = _line(home, adw_id, execution_id)
    result = home.execution_views.iteration(execution_id, index)
    calls = [Event.from_json(call) for call in result.calls]

    return frame.of_workflow(
        request,
        "iteration.html",
        home.load(adw_id),
        topic=f"workflow:{adw_id}",
        line=line,
        iteration=result.line,
        element=frame.pretty(result.element),
        result=frame.pretty(result.result),
        call=frame.pretty(result.call) if result.call else "",
        calls=[(call, events.facts_of(call)) for call in calls],
        pages=result.pages[:MOST_PAGES],
        page_count=len(result.pages),
        most=MOST_CHARACTERS,
    )


@executions_router.get("/iterations/{index}/pages/{page}")
def show_page(
    *, request: Request, home: HomeOf, adw_id: AdwId, execution_id: ExecutionId, index: Index, page: PageNumber
) -> HTMLResponse:
    """Show the stored content of one page."""
    line = _line(home, adw_id, execution_id)
    shown, length = home.execution_views.page(execution_id, index, page, limit=MOST_CHARACTERS)
    if length <= MOST_CHARACTERS:
        with suppress(ValueError):  # not JSON: show it unchanged
            shown = frame.pretty(json.loads(shown))

    return frame.of_workflow(
        request,
        "iteration_page.html",
        home.load(adw_id),
        line=line,
        index=index,
        number=page,
        text=shown,
        length=length,
        most=MOST_CHARACTERS,
    )


def _line(home: Home, adw_id: str, execution_id: str) -> ExecutionLine:
    """Return the execution; raise ExecutionNotFound also if it belongs to another workflow."""
    result = home.execution_views.get(execution_id)
    if result.adw_id != adw_id:
        raise ExecutionNotFound(execution_id)

    return result
