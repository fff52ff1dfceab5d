"""
Authentication of the pages, before anything else of a request is read.

The checks, in this order: the host name that the browser used, the login, the page that sent a form, read-only mode
and, once the body is read, the form's token. No route can forget one of them. Static files and the login page are open
to everyone. The headers of every response forbid the browser to do more with a page than show it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response

from adws.adw_triggers.http import App, Message, Problem, Scope, Send
from adws.web.dashboard import frame
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.frame import FORM_IN_SCOPE, KNOWN_IN_SCOPE, VIEWER_IN_SCOPE, Frame, Viewer
from adws.web.dashboard.sessions import BadForm, Form, Logins, LoginSession
from adws.web.middleware import PageAccess

if TYPE_CHECKING:
    from adws.app import Home

logger = logging.getLogger("adw.web")

LOGIN = "/login"
#: A page may only load styles, scripts and pictures from this server and send forms to it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer, with which browsers no longer say which page sent a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class PageAuth:
    """Authenticates requests for pages."""

    def __init__(self, home: Home, pages: Frame, *, host: str) -> None:
        """*pages* renders refusals; *host* is the address the server listens at."""
        settings = home.settings
        self.logins = Logins(
            home_key=lambda: home.forge_key,
            tokens=settings.web_token or (),
            clock=home.clock,
            session_seconds=dashboard_sessions.SESSION_SECONDS,
        )
        self._pages = pages
        self._addresses = dashboard_sessions.addresses_of(host, settings.web_public_url or "")
        self._is_read_only = settings.web_read_only

    @property
    def cookie(self) -> str:
        """The name of the login cookie."""
        return self.logins.cookie_name(is_secure=self._addresses.is_https)

    @property
    def note_cookie(self) -> str:
        """The name of the cookie with the message for the next page."""
        return f"{self.cookie}-note"

    @property
    def forget_note(self) -> str:
        """The Set-Cookie header that deletes the note cookie."""
        return self.cookie_line(self.note_cookie, "", seconds=0)

    def cookie_line(self, name: str, value: str, *, seconds: float) -> str:
        """Return the Set-Cookie header for a cookie; 0 seconds delete it."""
        line = f"{name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Strict"

        return f"{line}; Secure" if self._addresses.is_https else line

    def headed(self, send: Send) -> Send:
        """Return *send* wrapped so that it adds the headers of every page."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(key.encode(), value.encode()) for key, value in _HEADERS.items() if key.encode() not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        return with_headers

    def admit(self, scope: Scope, head: Mapping[str, str]) -> PageAccess | App:
        """Return how the request is passed on, or the response that refuses it."""
        if not self._addresses.is_ours(head.get("host", "")):
            return self._refused(scope, head, _WRONG_NAME)
        if scope["path"].startswith(frame.PREFIX):
            return PageAccess(scope=scope, most_bytes=0)
        known = self._known(head)
        scope = {**scope, KNOWN_IN_SCOPE: known, VIEWER_IN_SCOPE: self._viewer(head, known)}
        if scope["method"] in {"GET", "HEAD"}:
            if known is None and scope["path"] != LOGIN:
                return self._stranger(scope, head)
            return PageAccess(scope=scope, most_bytes=0)
        if scope["method"] != "POST":
            return self._refused(scope, head, _NO_SUCH_METHOD)

        return self._admit_form(scope, head, known)

    def _admit_form(self, scope: Scope, head: Mapping[str, str], known: LoginSession | None) -> PageAccess | App:
        why = dashboard_sessions.why_foreign(head, self._addresses)
        if why:
            return self._refused(scope, head, _foreign(why))
        if scope["path"] == LOGIN:
            return self._entry(scope, head, None, dashboard_sessions.MOST_LOGIN_BYTES)
        if known is None:
            return self._refused(scope, head, _NOT_LOGGED_IN)
        if self._is_read_only and scope["path"] != "/logout":
            return self._refused(scope, head, _READ_ONLY)

        return self._entry(scope, head, known, dashboard_sessions.MOST_BYTES)

    def _entry(self, scope: Scope, head: Mapping[str, str], known: LoginSession | None, most_bytes: int) -> PageAccess:
        """Accept a form; its body is checked once read, and has to carry the token of *known*."""
        scope = dict(scope)

        def look(body: bytes) -> App | None:
            try:
                form = dashboard_sessions.parse(body, head.get("content-type", ""), most_bytes=most_bytes)
            except BadForm as exc:
                return self._refused(scope, head, Problem(status=400, code="bad_form", message=str(exc)))
            if known is not None and not dashboard_sessions.is_csrf(form.text("csrf"), known):
                return self._refused(scope, head, _foreign("the form was not made for this login"))
            scope[FORM_IN_SCOPE] = Form({name: text for name, text in form.fields.items() if name != "csrf"})
            return None

        return PageAccess(scope=scope, most_bytes=most_bytes, look=look)

    def _known(self, head: Mapping[str, str]) -> LoginSession | None:
        return self.logins.known(_cookies(head).get(self.cookie, ""))

    def _viewer(self, head: Mapping[str, str], known: LoginSession | None) -> Viewer:
        if known is None:
            return Viewer()
        note = _cookies(head).get(self.note_cookie, "")

        return Viewer(
            by=dashboard_sessions.asker(known.name),
            csrf=dashboard_sessions.csrf_of(known),
            flash=dashboard_sessions.unseal_note(note, known),
        )

    def _stranger(self, scope: Scope, head: Mapping[str, str]) -> App:
        """Return the response to a request without a login."""
        if not wants_page(head):
            return self._refused(scope, head, _NOT_LOGGED_IN)
        here = _here(scope)
        if head.get("sec-fetch-site") == "cross-site":
            # Browsers send no cookie when a link on another site is followed, but do from a page of ours.
            return self._pages.hop(here)

        return RedirectResponse(LOGIN if here == "/" else f"{LOGIN}?next={quote(here, safe='')}", status_code=303)

    def _refused(self, scope: Scope, head: Mapping[str, str], problem: Problem) -> Response:
        said = {"action": "page_refused", "why": problem.code, "method": scope["method"], "path": scope["path"]}
        logger.info("A request for a page was refused", extra=said)
        viewer = scope.get(VIEWER_IN_SCOPE) or Viewer()

        return self._pages.error(problem, path=scope["path"], viewer=viewer, is_page=wants_page(head))


def wants_page(head: Mapping[str, str]) -> bool:
    """Return whether the client is a browser that accepts HTML."""
    return "text/html" in head.get("accept", "")


def _cookies(head: Mapping[str, str]) -> dict[str, str]:
    return cookie_parser(head.get("cookie", ""))


def _here(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")

    return dashboard_sessions.own_path(f"{quote(scope['path'])}?{query}" if query else quote(scope["path"]))


def _foreign(why: str) -> Problem:
    return Problem(
        status=403, code="foreign_form", message=f"nothing was done: {why}", advice="Load the page again, then retry."
    )


_WRONG_NAME = Problem(
    status=421,
    code="wrong_host",
    message="the dashboard is not known by this name",
    advice="Use the address that adw serve prints, or set web.public_url to the one that you use.",
)
_NO_SUCH_METHOD = Problem(status=405, code="method_not_allowed", message="pages are read, and forms are posted")
_NOT_LOGGED_IN = Problem(
    status=401, code="not_logged_in", message="this needs a login", advice="Log in at /login, then retry."
)
_READ_ONLY = Problem(
    status=403,
    code="read_only",
    message="nothing was done: the dashboard is read-only here",
    advice="The command line does the same; web.read_only turns this off.",
)
