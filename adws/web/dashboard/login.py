"""`/login` and `/logout`: exchange a token, or a link from `adw serve` or `adw dashboard`, for a cookie."""

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
    """Show the login form; log in by a valid link."""
    if not link:
        return _form(request, after)
    cookie = _page_auth(request).logins.by_link(link)
    if cookie is None:
        return _form(request, after, problem=_USED, status=403)

    return _let_in(request, cookie, after, how="link")


@router.post(LOGIN)
def log_in(request: Request) -> Response:
    """Log in with a token."""
    form = actions.guard(request)
    auth, limit = _page_auth(request), cast("TokenLimit", request.app.state.login_limit)
    address, after = actions.source(request), form.text("next", most=500) or "/"
    seconds = limit.seconds_left(address)
    if seconds > 0:
        text = f"Too many wrong tokens: retry in {math.ceil(seconds)} s."
        return _form(request, after, problem=text, status=429, headers={"Retry-After": str(math.ceil(seconds))})
    cookie = auth.logins.by_token(form.text("token"), form.text("name"))
    if cookie is None:
        limit.failed(address)
        logger.warning("A login failed", extra={"action": "login_failed", "from": address})
        return _form(request, after, problem=_WRONG, status=403)
    limit.succeeded(address)

    return _let_in(request, cookie, after, how="token")


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the login: its cookie is not accepted any more."""
    auth, known = _page_auth(request), frame.known(request)
    if known is not None:
        auth.logins.end(known)
    logger.info("A person logged out", extra={"action": "logged_out", "by": frame.viewer(request).by})
    answer = RedirectResponse(LOGIN, status_code=303)
    answer.headers.append("Set-Cookie", auth.cookie_line(auth.cookie, "", seconds=0))

    return answer


def _let_in(request: Request, cookie: str, after: str, *, how: str) -> Response:
    auth = _page_auth(request)
    known = auth.logins.known(cookie)
    said = {"action": "logged_in", "by": known.name if known else "", "how": how, "from": actions.source(request)}
    logger.info("A person logged in", extra=said)
    answer = RedirectResponse(dashboard_sessions.own_path(after), status_code=303)
    answer.headers.append("Set-Cookie", auth.cookie_line(auth.cookie, cookie, seconds=SESSION_SECONDS))

    return answer


def _form(
    request: Request, after: str, *, problem: str = "", status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    has_tokens = _page_auth(request).logins.has_tokens
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


def _page_auth(request: Request) -> PageAuth:
    return cast("PageAuth", request.app.state.page_auth)
