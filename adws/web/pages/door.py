"""
Who is let in to the pages, before anything else of a request is read.

In this order: the name that the browser called, the login, the page that a form was sent from, read-only mode, and when
the body is there the token of the form. So no route can forget one of them. Static files and the login are for
everybody; every answer carries the headers that keep a browser from doing more with it than showing it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response

from adws.adw_triggers.asgi import App, Message, Scope, Send
from adws.adw_triggers.problems import Problem
from adws.web.gate import Entry
from adws.web.pages import address_rules, assets, form_rules, session_rules
from adws.web.pages.address_rules import Addresses
from adws.web.pages.error_pages import ErrorPages
from adws.web.pages.form_rules import BadForm, Form
from adws.web.pages.frame import FORM_IN_SCOPE, KNOWN_IN_SCOPE, VIEWER_IN_SCOPE, Viewer
from adws.web.pages.logins import Logins
from adws.web.pages.session_rules import Known

logger = logging.getLogger("adw.web")

LOGIN = "/login"
#: What a page may do: show itself. Its styles, scripts and pictures come from here, its forms go here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with that, browsers do not say any more which page a form comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DoorParts:
    """What the door works with."""

    logins: Logins
    addresses: Addresses
    errors: ErrorPages
    is_read_only: bool = False

    @property
    def cookie(self) -> str:
        """The name of the cookie of a login."""
        return self.logins.cookie_name(is_secure=self.addresses.is_https)

    @property
    def note_cookie(self) -> str:
        """The name of the cookie that tells something on the next page."""
        return f"{self.cookie}-note"

    @property
    def forget_note(self) -> str:
        """What takes that cookie away when it was told."""
        return self.cookie_line(self.note_cookie, "", seconds=0)

    def cookie_line(self, name: str, value: str, *, seconds: float) -> str:
        """Return a cookie as it is set; 0 seconds take it away."""
        line = f"{name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Strict"

        return f"{line}; Secure" if self.addresses.is_https else line


class PageDoor:
    """Lets requests for pages in; the gate asks it."""

    def __init__(self, parts: DoorParts) -> None:
        self._parts = parts

    def headed(self, send: Send) -> Send:
        """Return *send* for an answer that gets the headers of every page."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(key.encode(), value.encode()) for key, value in _HEADERS.items() if key.encode() not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        return with_headers

    def admit(self, scope: Scope, head: Mapping[str, str]) -> Entry | App:
        """Return how a request goes on, or what answers it instead."""
        if not self._parts.addresses.is_ours(head.get("host", "")):
            return self._refused(scope, head, _WRONG_NAME)
        if scope["path"].startswith(assets.PREFIX):
            return Entry(scope=scope, most_bytes=0)
        known = self._known(head)
        scope = {**scope, KNOWN_IN_SCOPE: known, VIEWER_IN_SCOPE: self._viewer(head, known)}
        if scope["method"] in {"GET", "HEAD"}:
            if known is None and scope["path"] != LOGIN:
                return self._stranger(scope, head)
            return Entry(scope=scope, most_bytes=0)
        if scope["method"] != "POST":
            return self._refused(scope, head, _NO_SUCH_METHOD)

        return self._admit_form(scope, head, known)

    def _admit_form(self, scope: Scope, head: Mapping[str, str], known: Known | None) -> Entry | App:
        why = address_rules.why_foreign(head, self._parts.addresses)
        if why:
            return self._refused(scope, head, _foreign(why))
        if scope["path"] == LOGIN:
            return self._entry(scope, head, None, form_rules.MOST_LOGIN_BYTES)
        if known is None:
            return self._refused(scope, head, _NOT_LOGGED_IN)
        if self._parts.is_read_only and scope["path"] != "/logout":
            return self._refused(scope, head, _READ_ONLY)

        return self._entry(scope, head, known, form_rules.MOST_BYTES)

    def _entry(self, scope: Scope, head: Mapping[str, str], known: Known | None, most_bytes: int) -> Entry:
        """Let a form in whose body is looked at when it is there; *known* is whose token it has to carry."""
        scope = dict(scope)

        def look(body: bytes) -> App | None:
            try:
                form = form_rules.parse(body, head.get("content-type", ""), most_bytes=most_bytes)
            except BadForm as exc:
                return self._refused(scope, head, Problem(status=400, code="bad_form", message=str(exc)))
            if known is not None and not session_rules.is_csrf(form.text("csrf"), known):
                return self._refused(scope, head, _foreign("the form was not made for this login"))
            scope[FORM_IN_SCOPE] = Form({name: text for name, text in form.fields.items() if name != "csrf"})
            return None

        return Entry(scope=scope, most_bytes=most_bytes, look=look)

    def _known(self, head: Mapping[str, str]) -> Known | None:
        return self._parts.logins.known(_cookies(head).get(self._parts.cookie, ""))

    def _viewer(self, head: Mapping[str, str], known: Known | None) -> Viewer:
        if known is None:
            return Viewer()
        note = _cookies(head).get(self._parts.note_cookie, "")

        return Viewer(
            by=session_rules.asker(known.session.name),
            csrf=session_rules.csrf_of(known),
            flash=session_rules.unseal_note(note, known),
        )

    def _stranger(self, scope: Scope, head: Mapping[str, str]) -> App:
        """Answer somebody who is not logged in."""
        if not wants_page(head):
            return self._refused(scope, head, _NOT_LOGGED_IN)
        here = _here(scope)
        if head.get("sec-fetch-site") == "cross-site":
            # The cookie does not come along with a link on somebody else's page. It does from a page of ours.
            return self._parts.errors.hop(here)

        return RedirectResponse(LOGIN if here == "/" else f"{LOGIN}?next={quote(here, safe='')}", status_code=303)

    def _refused(self, scope: Scope, head: Mapping[str, str], problem: Problem) -> Response:
        said = {"action": "page_refused", "why": problem.code, "method": scope["method"], "path": scope["path"]}
        logger.info("A request for a page was refused", extra=said)
        viewer = scope.get(VIEWER_IN_SCOPE) or Viewer()

        return self._parts.errors.answer(problem, path=scope["path"], viewer=viewer, is_page=wants_page(head))


def wants_page(head: Mapping[str, str]) -> bool:
    """Say whether whoever asks is a browser that shows pages."""
    return "text/html" in head.get("accept", "")


def _cookies(head: Mapping[str, str]) -> dict[str, str]:
    return cookie_parser(head.get("cookie", ""))


def _here(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")

    return address_rules.own_path(f"{quote(scope['path'])}?{query}" if query else quote(scope["path"]))


def _foreign(why: str) -> Problem:
    return Problem(
        status=403, code="foreign_form", message=f"nothing was done: {why}", advice="Load the page again and try again."
    )


_WRONG_NAME = Problem(
    status=421,
    code="wrong_host",
    message="the dashboard is not known by this name",
    advice="Use the address that adw serve prints, or set web.public_url to the one that you use.",
)
_NO_SUCH_METHOD = Problem(status=405, code="method_not_allowed", message="pages are read, and forms are posted")
_NOT_LOGGED_IN = Problem(
    status=401, code="not_logged_in", message="this needs a login", advice="Log in at /login, then try again."
)
_READ_ONLY = Problem(
    status=403,
    code="read_only",
    message="nothing was done: the dashboard is read-only here",
    advice="The command line does the same; web.read_only turns this off.",
)
