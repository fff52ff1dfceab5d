"""`/workflows/{id}/executions/...`: a step whose calls are spread over workers, its iterations, and one of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import HTMLResponse

from adws.adw_modules import event_words
from adws.adw_modules.events import Event
from adws.adw_modules.execution_views import ExecutionLine, ExecutionNotFound
from adws.adw_modules.execution_words import IterationState
from adws.web.api_steps import ExecutionId, Index
from adws.web.pages import frame
from adws.web.pages.workflow import name_of
from adws.web.routes import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.json_value import JsonValue
    from adws.web.home import Home

router = APIRouter(prefix="/workflows/{adw_id}/executions/{execution_id}", include_in_schema=False)

#: Iterations of a page.
ITERATIONS_OF_A_PAGE = 50
#: Characters of an element, a result or a page that are shown.
MOST_CHARACTERS = 20_000
#: Pages of an iteration that are listed.
MOST_PAGES = 200

PageNumber = Annotated[int, Path(ge=0, le=2**53, description="of a page, as the calls count them")]


@router.get("")
def show_execution(
    *,
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    execution_id: ExecutionId,
    state: Annotated[IterationState | None, Query()] = None,
    after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
) -> HTMLResponse:
    """Show how far it is, and its iterations in the order of the collection."""
    line = _line(home, adw_id, execution_id)
    views = home.part(lambda app: app.execution_views)
    states = (state.value,) if state else ()
    rows = views.iterations(execution_id, states=states, after=after, limit=ITERATIONS_OF_A_PAGE + 1)
    shown = rows[:ITERATIONS_OF_A_PAGE]
    following = {**({"state": state.value} if state else {}), "after": shown[-1].index if shown else -1}

    return frame.render(
        request,
        "execution.html",
        topic=f"workflow:{adw_id}",
        adw_id=adw_id,
        name=_name(home, adw_id),
        line=line,
        rows=shown,
        state=state.value if state else "",
        states=[one.value for one in IterationState],
        after=after,
        later=urlencode(following) if len(rows) > ITERATIONS_OF_A_PAGE else "",
    )


@router.get("/iterations/{index}")
def show_iteration(
    request: Request, home: HomeOf, adw_id: AdwId, execution_id: ExecutionId, index: Index
) -> HTMLResponse:
    """Show one iteration with its calls, its pages and its result."""
    line = _line(home, adw_id, execution_id)
    found = home.part(lambda app: app.execution_views).iteration(execution_id, index)
    calls = [Event.from_json(call) for call in found.calls]

    return frame.render(
        request,
        "iteration.html",
        topic=f"workflow:{adw_id}",
        adw_id=adw_id,
        name=_name(home, adw_id),
        line=line,
        iteration=found.line,
        element=_pretty(found.element),
        result=_pretty(found.result),
        call=_pretty(found.call) if found.call else "",
        calls=[(call, event_words.facts_of(call)) for call in calls],
        pages=found.pages[:MOST_PAGES],
        page_count=len(found.pages),
        most=MOST_CHARACTERS,
    )


@router.get("/iterations/{index}/pages/{page}")
def show_page(
    *, request: Request, home: HomeOf, adw_id: AdwId, execution_id: ExecutionId, index: Index, page: PageNumber
) -> HTMLResponse:
    """Show what was kept of one page."""
    line = _line(home, adw_id, execution_id)
    text, length = home.part(lambda app: app.execution_views).page(execution_id, index, page, limit=MOST_CHARACTERS)

    return frame.render(
        request,
        "iteration_page.html",
        adw_id=adw_id,
        name=_name(home, adw_id),
        line=line,
        index=index,
        number=page,
        text=_pretty_text(text) if length <= MOST_CHARACTERS else text,
        length=length,
        most=MOST_CHARACTERS,
    )


def _line(home: Home, adw_id: str, execution_id: str) -> ExecutionLine:
    """Return the execution; raise ExecutionNotFound for one of another workflow too."""
    found = home.part(lambda app: app.execution_views).get(execution_id)
    if found.adw_id != adw_id:
        raise ExecutionNotFound(execution_id)

    return found


def _name(home: Home, adw_id: str) -> str:
    return name_of(home.part(lambda app: app.store).load(adw_id).document)


def _pretty(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


def _pretty_text(text: str) -> str:
    try:
        return _pretty(json.loads(text))
    except ValueError:
        return text
