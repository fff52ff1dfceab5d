"""
The web door of a home: API, health, and the ingress of webhooks, as one ASGI application.

Built from the parts of an open home; whoever serves it (`web.server`, a test) decides about sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

import adws
from adws.adw_modules.external_tasks import task_of_token
from adws.adw_triggers.trigger_webhook import PATHS, WebhookDoor
from adws.app_forge import key_of
from adws.web import (
    api_admin,
    api_control,
    api_external,
    api_health,
    api_steps,
    api_views,
    api_workflows,
    errors,
    metrics_page,
)
from adws.web.gate import CLOSED, METRICS, Gate, GateRules
from adws.web.home import Home
from adws.web.pages import (
    assets,
    executions,
    lists,
    live,
    login,
    opening,
    overview,
    workflow,
    workflow_log,
    workflow_orders,
)
from adws.web.pages.address_rules import is_from_here

if TYPE_CHECKING:
    from adws.app import App

#: What has pages for people.
PAGES = (assets, live, login, overview, lists, workflow, workflow_log, workflow_orders, executions)
_ABOUT = "Workflows that carry an issue to a pull request: look at them, start them, stop them, undo them."


def create_app(app: App, *, workers: Callable[[], tuple[int, int]] = lambda: (0, 0), host: str | None = None) -> Gate:
    """
    Return the web door of the home *app*.

    *workers* says how many workers are wanted beside it, and run; *host* is where it listens, None as the settings say.
    """
    settings = app.settings
    home = Home(app, workers=workers)
    api = create_api(home)
    pages = opening.open_pages(api, home, host=host or settings.web_host)
    rules = GateRules(
        tokens=settings.web_token or (),
        metrics_tokens=settings.web_metrics_token or (),
        may_read_metrics=is_from_here if settings.web_metrics_open else lambda _client, _host: False,
        max_body_bytes=settings.web_max_body_bytes,
        body_seconds=settings.web_body_seconds,
        task_of=partial(_task_of, app),
    )
    webhook = WebhookDoor.of(app, store=lambda: home.part(lambda parts: parts.deliveries))
    home.refused = webhook.refused

    def close() -> None:
        api.state.live.close()
        webhook.close()

    doors = dict.fromkeys(PATHS, webhook)

    return Gate(api, rules, doors=doors, pages=pages, drain=api.state.live.drain, close=close)


def create_api(home: Home) -> FastAPI:
    """Return the API alone, behind whose gate everybody has shown a token."""
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
    errors.install(api, redact=home.part(lambda app: app.redactor).redact_text, page=opening.error_page)
    for part in (api_health, api_workflows, api_control, api_views, api_admin, api_external, api_steps, metrics_page):
        api.include_router(part.router)
    for page in PAGES:
        api.include_router(page.router)
    api.openapi = lambda: _openapi(api)  # type: ignore[method-assign]  # FastAPI documents this way of extending it

    return api


def _task_of(app: App, token: str) -> str | None:
    """Return the task whose token this is; the key of the home is read only for what looks like one."""
    return task_of_token(token, lambda: key_of(app.settings, clock=app.clock))


def _openapi(api: FastAPI) -> dict[str, object]:
    """Return the description of the API, with the token that the gate asks for."""
    if api.openapi_schema is None:
        schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["security"] = [{"token": []}] if path.startswith((*CLOSED, METRICS)) else []
        api.openapi_schema = schema

    return api.openapi_schema
