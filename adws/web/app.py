"""
The web application of a home as one ASGI application: API, pages, health, and the webhook ingress.

It is built from the parts of an open home; the server (`web.server`, or a test) opens the sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

import adws
from adws.adw_triggers.http import Problem, head_of
from adws.adw_triggers.trigger_webhook import WebhookReceiver
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
from adws.web.dashboard.auth import PageAuth, wants_page
from adws.web.dashboard.live import Live
from adws.web.dashboard.sessions import TokenLimit
from adws.web.dependencies import ServerState
from adws.web.middleware import CLOSED, METRICS, RequestMiddleware

if TYPE_CHECKING:
    from adws.app import Home


def error_page(request: Request, problem: Problem) -> Response | None:
    """Return *problem* as a page, or None for a request to the API."""
    if frame.VIEWER_IN_SCOPE not in request.scope:
        return None

    return frame.error(request, problem, is_page=wants_page(head_of(request.scope)))


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

    *workers* returns how many workers should run and how many do; *host* is the address the server listens at, by
    default the setting.
    """
    server = ServerState(home, workers=workers)
    api = create_api(home, server)
    pages, live, webhook = frame.of_home(home), Live(home.changes), WebhookReceiver(home)
    auth = PageAuth(home, pages, host=host or home.settings.web_host)
    server.refused = webhook.refused
    api.state.frame, api.state.live, api.state.page_auth = pages, live, auth
    api.state.login_limit = TokenLimit(home.clock.monotonic)

    limit = TokenLimit(home.clock.monotonic)

    return RequestMiddleware(api, home, webhook=webhook, pages=auth, live=live, limit=limit)


def create_api(home: Home, server: ServerState) -> FastAPI:
    """Return the API without authentication, which the middleware in front of it does."""
    api = FastAPI(
        title="adw",
        version=adws.__version__,
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages load scripts from other sites
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
        # Not include_router, which builds every route again at the first request.
        api.router.routes.extend(router.routes)
    api.openapi = lambda: _openapi(api)  # type: ignore[method-assign]  # FastAPI documents this way of extending it

    return api


def _openapi(api: FastAPI) -> dict[str, object]:
    """Return the OpenAPI schema, with the token that the middleware requires."""
    if api.openapi_schema is None:
        schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["security"] = [{"token": []}] if path.startswith((*CLOSED, METRICS)) else []
        api.openapi_schema = schema

    return api.openapi_schema
