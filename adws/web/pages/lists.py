"""
`/workflows`, `/runs`, `/runners`, `/locks`, `/deliveries`: lists of what there is, one page at a time.

They show what the API lists, asked for by the same filters: what is typed into the form stands in the address, so that
a list can be sent to somebody. A filter that is left empty is none.
"""

from __future__ import annotations

from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import HTMLResponse

from adws.adw_modules.run_waiting import RunnerState
from adws.adw_modules.runs import RunState
from adws.adw_modules.state_table import WorkflowState
from adws.web import api_views, api_workflows
from adws.web.pages import frame
from adws.web.routes import HomeOf

router = APIRouter(include_in_schema=False)

_Filter = TypeVar("_Filter", bound=BaseModel)
_VERDICTS = ("run", "command", "ignored")


@router.get("/workflows")
def list_workflows(request: Request, home: HomeOf) -> HTMLResponse:
    """Show workflows, newest first."""
    wanted = _asked(request, api_workflows.WorkflowFilter)
    found = api_workflows.list_workflows(home, wanted)

    return frame.render(
        request,
        "workflows.html",
        topic="home",
        wanted=wanted,
        states=[state.value for state in WorkflowState],
        rows=found.workflows,
        has_filter=_has_filter(wanted),
        next_url=_further(request, found.next_cursor),
        first_url=_first(request, wanted.cursor),
    )


@router.get("/runs")
def list_runs(request: Request, home: HomeOf) -> HTMLResponse:
    """Show what waits for a worker, what is with one, and how it ended; newest first."""
    wanted = _asked(request, api_views.RunFilter)
    found = api_views.list_runs(home, wanted)

    return frame.render(
        request,
        "runs.html",
        topic="home",
        chosen={state.value for state in wanted.state},
        states=[state.value for state in RunState],
        rows=found.runs,
        has_filter=_has_filter(wanted),
        next_url=_further(request, found.next_cursor),
        first_url=_first(request, wanted.cursor),
    )


@router.get("/runners")
def list_runners(request: Request, home: HomeOf) -> HTMLResponse:
    """Show the workers there are, the newest first, and after them those that are gone."""
    newest = sorted(api_views.list_runners(home).runners, key=lambda one: one.started_at, reverse=True)
    rows = sorted(newest, key=lambda one: one.state == RunnerState.GONE.value)

    return frame.render(request, "runners.html", topic="home", rows=rows)


@router.get("/locks")
def list_locks(request: Request, home: HomeOf) -> HTMLResponse:
    """Show which workflow has which issue."""
    return frame.render(request, "locks.html", topic="home", rows=api_views.list_locks(home).locks)


@router.get("/deliveries")
def list_deliveries(request: Request, home: HomeOf) -> HTMLResponse:
    """Show webhook deliveries with what was made of them, newest first."""
    wanted = _asked(request, api_views.DeliveryFilter)
    found = api_views.list_deliveries(home, wanted)

    return frame.render(
        request,
        "deliveries.html",
        topic="home",
        chosen=set(wanted.verdict),
        verdicts=_VERDICTS,
        rows=found.deliveries,
        has_filter=_has_filter(wanted),
        next_url=_further(request, found.next_cursor),
        first_url=_first(request, wanted.cursor),
    )


def _asked(request: Request, kind: type[_Filter]) -> _Filter:
    """Return the filter in the address; raise RequestValidationError for one that cannot be."""
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


def _has_filter(wanted: BaseModel) -> bool:
    """Say whether anything is left out on purpose."""
    return bool(wanted.model_dump(exclude_defaults=True, exclude={"limit", "cursor"}))


def _further(request: Request, cursor: str | None) -> str:
    """Return the address of the page behind this one, "" when there is none."""
    return str(request.url.include_query_params(cursor=cursor).replace(scheme="", netloc="")) if cursor else ""


def _first(request: Request, cursor: str) -> str:
    """Return the address of the first page of this list, "" when this is it."""
    return str(request.url.remove_query_params("cursor").replace(scheme="", netloc="")) if cursor else ""
