"""
Putting the dashboard together: its frame, its door, and what it keeps while the server runs.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from fastapi import FastAPI, Request
from starlette.responses import Response

from adws.adw_triggers.asgi import head_of
from adws.adw_triggers.problems import Problem
from adws.app_forge import key_of
from adws.web.home import Home
from adws.web.pages import address_rules, frame
from adws.web.pages.door import DoorParts, PageDoor, wants_page
from adws.web.pages.error_pages import ErrorPages
from adws.web.pages.live import Live
from adws.web.pages.login_limit import LoginLimit
from adws.web.pages.logins import Logins


def open_pages(api: FastAPI, home: Home, *, host: str) -> PageDoor:
    """Make pages of *home* possible in *api*, and return the door to them; *host* is where the server listens."""
    settings, clock = home.settings, home.part(lambda app: app.clock)
    api.state.frame = frame.of_home(home)
    api.state.live = Live(lambda: home.part(lambda app: app.changes()))
    api.state.login_limit = LoginLimit(clock.monotonic)
    api.state.door = DoorParts(
        logins=Logins(
            home_key=partial(key_of, settings, clock=clock),
            tokens=settings.web_token or (),
            clock=clock,
            session_seconds=settings.web_session_seconds,
        ),
        addresses=address_rules.addresses_of(host, settings.web_public_url or ""),
        errors=ErrorPages(api.state.frame, redact=home.part(lambda app: app.redactor).redact_text),
        is_read_only=settings.web_read_only,
    )

    return PageDoor(api.state.door)


def error_page(request: Request, problem: Problem) -> Response | None:
    """Return *problem* as a page, None when it did not come up for a page."""
    if frame.VIEWER_IN_SCOPE not in request.scope:
        return None
    door = cast("DoorParts", request.app.state.door)

    return door.errors.of_request(request, problem, is_page=wants_page(head_of(request.scope)))
