"""
What people do on a page: the form they sent, who they are for the history, and what the next page tells them.

By the time a route runs the door has checked login, origin, read-only mode and the token of the form.
"""

from __future__ import annotations

import logging
from typing import cast

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from adws.adw_modules.command_rules import Mark
from adws.adw_modules.coordination.control import Applied, Asked, Control
from adws.web.home import Home
from adws.web.pages import address_rules, frame, session_rules
from adws.web.pages.door import DoorParts
from adws.web.pages.form_rules import Form

logger = logging.getLogger("adw.web")

#: Seconds that a message waits for the next page.
_NOTE_SECONDS = 60


def guard(request: Request) -> Form:
    """Return the form that was sent; raises KeyError where the door has let none in, which is a bug."""
    return cast("Form", request.scope[frame.FORM_IN_SCOPE])


def source(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else "nowhere"


def note(request: Request, action: str, *, adw_id: str = "", **facts: object) -> None:
    """Write into the log what somebody asked for: every action does."""
    said = {"by": frame.viewer(request).by, "from": source(request), "asked": action, "adw_id": adw_id, **facts}
    logger.warning("Something was asked for on the dashboard", extra={"action": "action_asked", **said})


def mark(request: Request, home: Home, action: str) -> Mark:
    """Return who asks for *action* and from where, as it is written with the change (event `action_asked`), once."""
    click = f"dashboard:{home.part(lambda app: app.clock).token()}"

    return Mark(delivery=click, kind=action, by=frame.viewer(request).by, source=f"dashboard, {source(request)}")


def control(request: Request, home: Home, action: str, adw_id: str) -> Control:
    """Return what changes workflow *adw_id*: its history says who did *action*. Raises StateNotFound."""
    home.part(lambda app: app.store).peek(adw_id)
    note(request, action, adw_id=adw_id)

    return home.part(lambda app: app.work.control).asked_by(mark(request, home, action))


def told(done: Asked | Applied) -> str:
    """Return what a person is told about what they asked for."""
    if isinstance(done, Applied):
        return done.message

    return f"asked {done.owner}, who is at work; the {done.request.kind} is kept"


def done(request: Request, where: str, text: str) -> Response:
    """Return the answer to a form: the page at *where*, with *text* on top of it."""
    answer = RedirectResponse(address_rules.own_path(where), status_code=303)
    door, known = cast("DoorParts", request.app.state.door), frame.known(request)
    if known is not None and text:
        sealed = session_rules.seal_note(text, known)
        answer.headers.append("Set-Cookie", door.cookie_line(door.note_cookie, sealed, seconds=_NOTE_SECONDS))

    return answer
