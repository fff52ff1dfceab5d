"""
The web application of a home: API, health, and the ingress of webhooks, as one ASGI application.

Built from the parts of an open home; its server (`web.server`, or a test) opens the sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

import adws
from adws.adw_modules.external_tasks import task_of_token
from adws.adw_triggers.http import BODY_SECONDS, Problem, head_of
from adws.adw_triggers.trigger_webhook import PATHS, WebhookReceiver
from adws.app import key_of
from adws.web import api_steps, api_views, api_workflows, middleware
from adws.web.dashboard import (
    actions,
    frame,
    lists,
    live,
    login,
    overview,
    start,
    workflow,
    workflow_log,
)
from adws.web.dashboard import (
    sessions as dashboard_sessions,
)
from adws.web.dashboard.auth import PageAuth, wants_page
from adws.web.dashboard.frame import ErrorPages
from adws.web.dashboard.live import Live
from adws.web.dashboard.sessions import SESSION_SECONDS, Logins, TokenLimit
from adws.web.dependencies import ServerState
from adws.web.middleware import CLOSED, METRICS, RequestLimits, RequestMiddleware

if TYPE_CHECKING:
    from adws.app import Home


# The dashboard: its frame, its authentication, and its state while the server runs.


def open_pages(api: FastAPI, home: Home, *, host: str) -> PageAuth:
    """Add the pages of *home* to *api*, and return their authentication; *host* is where the server listens."""
    settings, clock = home.settings, home.clock
    pages = frame.of_home(home)
    auth = PageAuth(
        logins=Logins(
            home_key=partial(key_of, settings, clock=clock),
            tokens=settings.web_token or (),
            clock=clock,
            session_seconds=SESSION_SECONDS,
        ),
        addresses=dashboard_sessions.addresses_of(host, settings.web_public_url or ""),
        errors=ErrorPages(pages, redact=home.redactor.redact_text),
        is_read_only=settings.web_read_only,
    )
    api.state.frame = pages
    api.state.live = Live(home.changes)
    api.state.login_limit = TokenLimit(clock.monotonic)
    api.state.page_auth = auth

    return auth


def error_page(request: Request, problem: Problem) -> Response | None:
    """Return *problem* as a page, None for a request of the API."""
    if frame.VIEWER_IN_SCOPE not in request.scope:
        return None
    auth = cast("PageAuth", request.app.state.page_auth)

    return auth.errors.of_request(request, problem, is_page=wants_page(head_of(request.scope)))


#: Routers of the pages.
PAGES = (
    frame.router,
    live.router,
    login.router,
    overview.router,
    start.router,
    lists.router,
    workflow.router,
    workflow_log.router,
    actions.router,
    lists.executions_router,
)
_ABOUT = "Workflows that take an issue to a pull request: list, start, stop and undo them."


def create_app(
    home: Home, *, workers: Callable[[], tuple[int, int]] = lambda: (0, 0), host: str | None = None
) -> RequestMiddleware:
    """
    Return the web application of *home*.

    *workers* returns how many workers are wanted and how many run; *host* is where it listens, by default the setting.
    """
    settings, server = home.settings, ServerState(home, workers=workers)
    api = create_api(home, server)
    pages = open_pages(api, home, host=host or settings.web_host)
    rules = RequestLimits(
        tokens=settings.web_token or (),
        metrics_tokens=settings.web_metrics_token or (),
        body_seconds=BODY_SECONDS,
        task_of=partial(_task_of, home),
    )
    webhook = WebhookReceiver(home)
    server.refused = webhook.refused

    def close() -> None:
        api.state.live.close()
        webhook.close()

    raw_apps = dict.fromkeys(PATHS, webhook)

    return RequestMiddleware(
        api,
        rules,
        raw_apps=raw_apps,
        pages=pages,
        limit=TokenLimit(home.clock.monotonic),
        drain=api.state.live.drain,
        close=close,
    )


def create_api(home: Home, server: ServerState) -> FastAPI:
    """Return the API alone, without authentication: the middleware in front of it has that."""
    api = FastAPI(
        title="adw",
        version=adws.__version__,
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.home = home
    api.state.server = server
    middleware.install(api, redact=home.redactor.redact_text, page=error_page)
    for router in (
        api_views.health_router,
        api_workflows.router,
        api_workflows.control_router,
        api_views.router,
        api_views.admin_router,
        api_steps.external_router,
        api_steps.router,
        api_views.metrics_router,
        *PAGES,
    ):
        # Not include_router: that builds every route once more when the first request comes.
        api.router.routes.extend(router.routes)
    api.openapi = lambda: _openapi(api)  # type: ignore[method-assign]  # FastAPI documents this way of extending it

    return api


def _task_of(home: Home, token: str) -> str | None:
    """Return the task whose token this is; the key of the home is read only when it looks like one."""
    return task_of_token(token, lambda: key_of(home.settings, clock=home.clock))


def _openapi(api: FastAPI) -> dict[str, object]:
    """Return the description of the API, with the token that the middleware requires."""
    if api.openapi_schema is None:
        schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["security"] = [{"token": []}] if path.startswith((*CLOSED, METRICS)) else []
        api.openapi_schema = schema

    return api.openapi_schema
