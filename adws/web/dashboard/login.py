"""`/login` and `/logout`: a token, or a link that `adw serve` and `adw dashboard` print, for a cookie."""

from __future__ import annotations

import logging
import math
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from adws.web.dashboard import actions, frame
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.auth import LOGIN, PageAuth
from adws.web.dashboard.sessions import SESSION_SECONDS, TokenLimit

logger = logging.getLogger("adw.web")

router = APIRouter(include_in_schema=False)

_LINKS_ONLY = "No token is set here. The command adw dashboard, typed where adw serve runs, prints a link that logs in."
_WRONG = "That is no token of this server."
_USED = "This link was used already, or is too old. The command adw dashboard prints a new one."


@router.get(LOGIN)
def show_login(
    request: Request, after: Annotated[str, Query(alias="next")] = "/", link: Annotated[str, Query()] = ""
) -> Response:
    """Show where one logs in; who comes by a link that is good is let in."""
    if not link:
        return _form(request, after)
    cookie = _door(request).logins.by_link(link)
    if cookie is None:
        return _form(request, after, problem=_USED, status=403)

    return _let_in(request, cookie, after, how="link")


@router.post(LOGIN)
def log_in(request: Request) -> Response:
    """Take a token."""
    form = actions.guard(request)
    door, limit = _door(request), cast("TokenLimit", request.app.state.login_limit)
    address, after = actions.source(request), form.text("next", most=500) or "/"
    seconds = limit.seconds_left(address)
    if seconds > 0:
        text = f"Too many wrong tokens: try again in {math.ceil(seconds)} s."
        return _form(request, after, problem=text, status=429, headers={"Retry-After": str(math.ceil(seconds))})
    cookie = door.logins.by_token(form.text("token"), form.text("name"))
    if cookie is None:
        limit.failed(address)
        logger.warning("A login failed", extra={"action": "login_failed", "from": address})
        return _form(request, after, problem=_WRONG, status=403)
    limit.succeeded(address)

    return _let_in(request, cookie, after, how="token")


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the login: the cookie counts nowhere any more."""
    door, known = _door(request), frame.known(request)
    if known is not None:
        door.logins.end(known)
    logger.info("Somebody logged out", extra={"action": "logged_out", "by": frame.viewer(request).by})
    answer = RedirectResponse(LOGIN, status_code=303)
    answer.headers.append("Set-Cookie", door.cookie_line(door.cookie, "", seconds=0))

    return answer


def _let_in(request: Request, cookie: str, after: str, *, how: str) -> Response:
    door = _door(request)
    known = door.logins.known(cookie)
    name = known.session.name if known else ""
    said = {"action": "logged_in", "by": name, "how": how, "from": actions.source(request)}
    logger.info("Somebody logged in", extra=said)
    answer = RedirectResponse(dashboard_sessions.own_path(after), status_code=303)
    seconds = SESSION_SECONDS
    answer.headers.append("Set-Cookie", door.cookie_line(door.cookie, cookie, seconds=seconds))

    return answer


def _form(
    request: Request, after: str, *, problem: str = "", status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    has_tokens = _door(request).logins.has_tokens
    answer = frame.render(
        request,
        "login.html",
        status=status,
        after=dashboard_sessions.own_path(after),
        has_tokens=has_tokens,
        problem=problem or ("" if has_tokens else _LINKS_ONLY),
    )
    answer.headers.update(headers or {})

    return answer


def _door(request: Request) -> PageAuth:
    return cast("PageAuth", request.app.state.door)
