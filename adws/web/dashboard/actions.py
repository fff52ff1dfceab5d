"""
Actions on the page of a workflow, with the same code as the command line and the API.

Every action redirects to the page, which shows the result or the refusal. What cannot be undone is confirmed on its own
page, which shows the plan of a rollback.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from adws.adw_modules.document import Mark
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.rollback.plan import RollbackOptions, plan_lines
from adws.adw_modules.worker.control import Control, allowed_actions
from adws.app import Home
from adws.web import api_workflows
from adws.web.dashboard import frame
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.auth import PageAuth
from adws.web.dashboard.frame import sentence
from adws.web.dashboard.sessions import Form
from adws.web.dependencies import AdwId, HomeOf

# When a route runs, `PageAuth` has already checked login, origin, read-only mode and the form's token.


logger = logging.getLogger("adw.web")

#: Lifetime in seconds of the message for the next page.
_NOTE_SECONDS = 60


def guard(request: Request) -> Form:
    """Return the form that `PageAuth` accepted; a KeyError without one would be a bug."""
    return cast("Form", request.scope[frame.FORM_IN_SCOPE])


def source(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else "nowhere"


def note(request: Request, action: str, *, adw_id: str = "", **facts: object) -> None:
    """Log an action that was requested."""
    said = {"by": frame.viewer(request).by, "from": source(request), "asked": action, "adw_id": adw_id, **facts}
    logger.warning("An action was requested on the dashboard", extra={"action": "action_asked", **said})


def mark(request: Request, home: Home, action: str) -> Mark:
    """Return the mark of a request, from which the event `action_asked` is recorded together with the change."""
    click = f"dashboard:{home.clock.token()}"

    return Mark(delivery=click, kind=action, by=frame.viewer(request).by, source=f"dashboard, {source(request)}")


def control(request: Request, home: Home, action: str, adw_id: str) -> Control:
    """Return a control of workflow *adw_id* that records the requester of *action*; raise StateNotFound."""
    home.store.load(adw_id)
    note(request, action, adw_id=adw_id)

    return home.control.asked_by(mark(request, home, action))


def done(request: Request, where: str, text: str) -> Response:
    """Redirect to the page at *where*, which shows *text* at its top."""
    answer = RedirectResponse(dashboard_sessions.own_path(where), status_code=303)
    auth, known = cast("PageAuth", request.app.state.page_auth), frame.known(request)
    if known is not None and text:
        sealed = dashboard_sessions.seal_note(text, known)
        answer.headers.append("Set-Cookie", auth.cookie_line(auth.note_cookie, sealed, seconds=_NOTE_SECONDS))

    return answer


router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)

#: The most characters of a text and dollars of a budget, as in the API.
_LONGEST, _MOST_USD = 10_000, 1_000_000.0
_MOST_GRANT = 100
#: The prefix of a refusal on the next page.
NOT_DONE = "Not done: "


#: Order -> a function from its form to the options of `api_workflows.order`.
_FORMS: Mapping[str, Callable[[Form], dict[str, Any]]] = MappingProxyType(
    {
        "pause": lambda form: {"text": _text(form, "reason")},
        "stop": lambda form: {"text": _text(form, "reason"), "is_urgent": form.is_set("urgent")},
        "abandon": lambda form: {"text": _text(form, "reason")},
        "resume": lambda form: {
            "text": _text(form, "hint"),
            "from_phase": form.text("from_phase", most=100),
            "budget": _budget(form),
        },
        "retry": lambda form: {"text": _text(form, "hint"), "grant": granted(form), "budget": _budget(form)},
        "approve": lambda form: {"text": _text(form, "text")},
        "reject": lambda form: {"text": _text(form, "text")},
        "hint": lambda form: {"text": _hint(form)},
    }
)


def _order(kind: str) -> Callable[[Request, Home, str], Response]:
    def carry_out(request: Request, home: HomeOf, adw_id: AdwId) -> Response:
        def work(form: Form, control_: Control) -> str:
            options = _FORMS[kind](form)
            return api_workflows.order(home, adw_id, kind, by=_by(request), control=control_, **options).message

        return _ordered(request, home, adw_id, kind, work)

    return carry_out


for _kind in _FORMS:
    router.add_api_route(f"/{_kind}", _order(_kind), methods=["POST"], name=_kind)


@router.post("/cancel")
def cancel(request: Request, home: HomeOf, adw_id: AdwId) -> Response:
    """Cancel a scheduled retry: of a phase, of a call of a step, or of all that a step has left."""
    form = guard(request)
    retry_id, index = form.text("retry", most=300), form.text("index", most=20)

    def work(form: Form, control_: Control) -> str:
        if retry_id == adw_id:
            return control_.cancel_retry(adw_id, by=_by(request), reason=_text(form, "reason")).message
        _refuse_foreign(home, adw_id, retry_id)
        number = _whole(index, "the number of an iteration", most=2**53) if index else None
        return api_workflows.cancel_retry(home, retry_id, by=_by(request), index=number, reason=_text(form, "reason"))

    where = "" if retry_id == adw_id else f"/executions/{retry_id}"

    return _ordered(request, home, adw_id, "cancel_retry", work, where=where)


# --- actions with a confirmation -------------------------------------------------------------------------------


@router.get("/abandon")
def ask_abandon(request: Request, home: HomeOf, adw_id: AdwId) -> HTMLResponse:
    """Ask whether the workflow is to be abandoned."""
    document = home.load(adw_id)
    is_possible = allowed_actions(document, now=home.clock.now).may_abandon

    return frame.of_workflow(request, "workflow_abandon.html", document, is_possible=is_possible)


@router.get("/rollback")
def ask_rollback(
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    keep_branch: Annotated[bool, Query()] = False,
) -> HTMLResponse:
    """Show the plan of a rollback, and ask whether it is to be done."""
    document = home.load(adw_id)
    by = _by(request)
    wishes = RollbackOptions(reason=f"rolled back by {by}", keep_branch=keep_branch, by=by)
    try:
        plan, problem = home.rollbacks.plan(adw_id, wishes), ""
    except AdwError as exc:
        plan, problem = None, sentence(str(exc))

    return frame.of_workflow(
        request,
        "workflow_rollback.html",
        document,
        steps=plan_lines(plan.steps, will="") if plan else [],  # the heading says that they are only planned
        hosts=sorted({step.host for step in plan.steps if step.host and not step.is_over}) if plan else [],
        keep_branch=keep_branch,
        problem=problem,
        is_over=document.current_state == "rolled_back",
    )


@router.post("/rollback")
def roll_back(request: Request, home: HomeOf, adw_id: AdwId) -> Response:
    """Queue the rollback for a worker."""

    def work(form: Form, _control: Control) -> str:
        by = _by(request)
        hosts = tuple(dict.fromkeys(form.text("forget_hosts").replace(",", " ").split()))
        wishes = RollbackOptions(
            reason=_text(form, "reason") or f"rolled back by {by}",
            keep_branch=form.is_set("keep_branch"),
            force=form.is_set("force"),
            forget_hosts=hosts,
            by=by,
            mark=mark(request, home, "rollback"),
        )
        return api_workflows.roll_back(home, adw_id, wishes).message

    return _ordered(request, home, adw_id, "rollback", work)


# --- shared functions ------------------------------------------------------------------------------------------


def _ordered(
    request: Request,
    home: Home,
    adw_id: str,
    action: str,
    work: Callable[[Form, Control], str],
    *,
    where: str = "",
) -> Response:
    """Do *work*, then redirect to the page, which shows the result."""
    form = guard(request)
    control_ = control(request, home, action, adw_id)
    try:
        said = sentence(work(form, control_))
    except AdwError as exc:
        said = f"{NOT_DONE}{exc}"

    return done(request, f"/workflows/{adw_id}{where}", said)


def _by(request: Request) -> str:
    return frame.viewer(request).by


def _hint(form: Form) -> str:
    text = _text(form, "text")
    if not text:
        raise UsageError("the hint is empty: say what to do differently")

    return text


def _refuse_foreign(home: Home, adw_id: str, execution_id: str) -> None:
    """Raise UsageError if the execution belongs to another workflow."""
    if home.execution_views.get(execution_id).adw_id != adw_id:
        raise UsageError(f"execution {execution_id} does not belong to workflow {adw_id}")


def _text(form: Form, name: str) -> str:
    return form.text(name, most=_LONGEST)


def granted(form: Form) -> int:
    text = form.text("grant", most=20)

    return _whole(text, "the number of further attempts", most=_MOST_GRANT) if text else 0


def _whole(text: str, what: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
        raise UsageError(f"{what} is a whole number from 0 to {most}, not {text[:20]!r}")

    return int(text)


def _budget(form: Form) -> float | None:
    text = form.text("budget", most=30).replace(",", ".").removeprefix("$").strip()
    if not text:
        return None
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount <= _MOST_USD:  # nan fails this, too
        raise UsageError(f"a budget is an amount of US dollars above 0, such as 20, not {text[:20]!r}")

    return amount
