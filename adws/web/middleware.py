"""
The outermost middleware of the web server, which every request passes before it is parsed.

Webhook deliveries go to their own receiver, and pages for people have their own authentication. For the API the token
is checked first, then the body is read within its limits, so a client without a token cannot make the server read
anything. Whatever fails behind it, the client gets the common error shape and the log gets the details.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.external_tasks import task_of_token
from adws.adw_triggers import http as adw_triggers_http
from adws.adw_triggers.http import (
    BODY_SECONDS,
    App,
    BodyBudget,
    ClientGone,
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    head_of,
    problem_of,
    read_body,
    send_problem,
)
from adws.adw_triggers.trigger_webhook import PATHS

if TYPE_CHECKING:
    from adws.adw_triggers.trigger_webhook import WebhookReceiver
    from adws.app import Home
    from adws.web.dashboard.auth import PageAuth
    from adws.web.dashboard.live import Live
    from adws.web.dashboard.sessions import TokenLimit

# --- the tokens of the API -------------------------------------------------------------------------------------
#
# Every token of the settings is compared, each in constant time, so that the response time reveals nothing. After a few
# wrong tokens an address has to wait, as at the login; while it waits its tokens are not checked.


_CLOSED = Problem(
    status=403,
    code="api_closed",
    message="the API is closed because no token is set",
    advice="Set ADW_WEB_TOKEN to a secret of 16 characters or more, such as openssl rand -hex 32 prints, and restart.",
)
_NO_TOKEN = Problem(
    status=401,
    code="unauthorized",
    message="this needs a token that the server knows",
    advice="Send the header Authorization: Bearer TOKEN, with a token of ADW_WEB_TOKEN.",
)


def _too_many(seconds: float) -> Problem:
    left = math.ceil(seconds)

    return Problem(
        status=429,
        code="too_many_wrong_tokens",
        message=f"too many wrong tokens came from this address: it has to wait {left} s",
        advice="Wait, then send the header Authorization: Bearer TOKEN, with a token of ADW_WEB_TOKEN.",
        retry_after=left,
    )


def why_not(head: Mapping[str, str], tokens: Sequence[str]) -> Problem | None:
    """Return why a request with the headers *head* is refused, or None."""
    if not tokens:
        return _CLOSED
    shown = token_in(head).encode("utf-8", "surrogateescape")
    # A list, because any() over a generator would stop at the first match.
    fits = [hmac.compare_digest(shown, token.encode()) for token in tokens]

    return None if any(fits) else _NO_TOKEN


def token_in(head: Mapping[str, str]) -> str:
    """Return the bearer token in the headers *head*, or ""."""
    scheme, _, given = head.get("authorization", "").partition(" ")

    return given.strip() if scheme.lower() == "bearer" else ""


logger = logging.getLogger("adw.web")

#: Path prefixes that need a token.
CLOSED = ("/api/", "/admin/")
#: The path for Prometheus, which a token of its own opens, too.
METRICS = "/metrics"
#: The other paths that are not pages.
OPEN = frozenset({"/health", METRICS})
#: Prefixes that the token of a task opens for that task.
FOR_TASKS = ("/api/v1/external/", "/api/v1/event/emit")
#: The key in the scope for the task whose token was shown.
TASK_IN_SCOPE = "adw.task"
#: The largest body of a request to the API.
MAX_BODY_BYTES = 2**20
#: How many requests of the largest size may be in memory at a time.
_LARGEST_AT_A_TIME = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class PageAccess:
    """How a request for a page is passed on."""

    scope: Scope
    most_bytes: int  #: the largest body it may have
    look: Callable[[bytes], App | None] = lambda _body: None  #: body -> an app that refuses it, or None


class RequestMiddleware:
    """Authenticates requests, limits their size, and passes them to the application."""

    def __init__(
        self, app: App, home: Home, *, webhook: WebhookReceiver, pages: PageAuth, live: Live, limit: TokenLimit
    ) -> None:
        """
        *webhook* reads its own stream; *pages* authenticates pages; responses of *live* do not end by themselves.

        *limit* counts wrong tokens of the API.
        """
        self._app = app
        self._home = home
        self._webhook = webhook
        self._pages = pages
        self._live = live
        self._limit = limit
        self._budget = BodyBudget(_LARGEST_AT_A_TIME * MAX_BODY_BYTES)

    def drain(self) -> None:
        """End the responses that do not end by themselves."""
        self._live.drain()

    def close(self) -> None:
        """End every thread."""
        self._live.close()
        self._webhook.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._serve(scope, receive, watched)
        except ClientGone:
            return
        except Exception:  # the outermost frame of a request: a bug becomes a log line and a 500
            logger.exception(
                "A request could not be answered",
                extra={"action": "request_failed", "method": scope["method"], "path": scope["path"]},
            )
            if not is_started:
                await send_problem(send, adw_triggers_http.bug())

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PATHS:
            await self._webhook(scope, receive, send)
            return
        head = head_of(scope)
        if not scope["path"].startswith(CLOSED) and scope["path"] not in OPEN:
            entry, send = self._pages.admit(scope, head), self._pages.headed(send)
            if isinstance(entry, PageAccess):
                await self._pass(entry, head, receive, send)
            else:
                await entry(scope, receive, send)
            return
        is_for_tasks = scope["path"].startswith(FOR_TASKS)
        # The key of the home is read only if the token looks like a task's.
        task = task_of_token(token_in(head), lambda: self._home.forge_key) if is_for_tasks else None
        scope = scope if task is None else {**scope, TASK_IN_SCOPE: task}
        problem = self._why_not(scope, head) if task is None else None
        if problem is not None:
            await send_problem(send, problem, {"WWW-Authenticate": "Bearer", "Connection": "close"})
            return
        await self._pass(PageAccess(scope=scope, most_bytes=MAX_BODY_BYTES), head, receive, send)

    async def _pass(self, entry: PageAccess, head: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Read the body within its limits and pass the request on."""
        with self._budget.share() as share:
            body = await read_body(receive, head, most_bytes=entry.most_bytes, seconds=BODY_SECONDS, share=share)
            if isinstance(body, Problem):
                await send_problem(send, body)
                return
            answer = entry.look(body) or self._app
            await answer(entry.scope, _replay(body, receive), send)

    def _why_not(self, scope: Scope, head: Mapping[str, str]) -> Problem | None:
        """Return why a request is refused, or None if its token is right or its path is open."""
        settings, path = self._home.settings, scope["path"]
        tokens = settings.web_token or ()
        address, _port = scope.get("client") or ("nowhere", 0)
        if path == METRICS:
            tokens = (*tokens, *(settings.web_metrics_token or ()))
        elif not path.startswith(CLOSED):
            return None
        is_shown = bool(token_in(head))  # a request without a token is no guess
        seconds = self._limit.seconds_left(address) if is_shown and tokens else 0.0
        if seconds > 0:
            return _too_many(seconds)
        problem = why_not(head, tokens)
        if problem is None:
            self._limit.succeeded(address)
        elif is_shown and tokens:
            self._limit.failed(address)
            logger.warning(
                "A request showed a wrong token", extra={"action": "token_refused", "from": address, "path": path}
            )

        return problem


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that gives the body already read, then the rest of the stream."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


# --- error responses, all in the shape of `adw_triggers.http` --------------------------------------------------
#
# An error of adw becomes its message and a status. So do FastAPI's validation errors, which never repeat the input.


_ADVICE = "/api/v1/openapi.json describes what is expected."


class ErrorFacts(BaseModel):
    """Why something was not done."""

    code: str
    message: str
    advice: str


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorFacts


class Conflict(Exception):
    """The request is valid but does not fit the current state."""

    def __init__(self, error: AdwError) -> None:
        super().__init__(str(error))


@contextmanager
def fitting() -> Iterator[None]:
    """Turn a UsageError in the block into 409: the request itself is valid, so it must not fit the workflow's state."""
    try:
        yield
    except UsageError as exc:
        raise Conflict(exc) from exc


def install(
    app: FastAPI,
    *,
    redact: Callable[[str], str],
    page: Callable[[Request, Problem], Response | None] = lambda _request, _problem: None,
) -> None:
    """
    Answer every error of *app* in one shape, without the secrets that *redact* knows.

    *page* returns the error as a page for a browser's request, and None for any other.
    """
    answer = partial(_answer, redact=redact, page=page)

    @app.exception_handler(AdwError)
    def on_expected(request: Request, error: AdwError) -> Response:
        return answer(request, problem_of(error))

    @app.exception_handler(Conflict)
    def on_conflict(request: Request, error: Conflict) -> Response:
        return answer(request, Problem(status=409, code="conflict", message=str(error)))

    @app.exception_handler(RequestValidationError)
    def on_bad_request(request: Request, error: RequestValidationError) -> Response:
        return answer(request, Problem(status=422, code="bad_request", message=_said(error), advice=_ADVICE))

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: HTTPException) -> Response:
        response = answer(request, of_status(error.status_code))
        response.headers.update(error.headers or {})

        return response

    @app.exception_handler(Exception)
    def on_bug(request: Request, _error: Exception) -> Response:
        return answer(request, adw_triggers_http.bug())


def _answer(
    request: Request,
    problem: Problem,
    *,
    redact: Callable[[str], str],
    page: Callable[[Request, Problem], Response | None],
) -> Response:
    shown = page(request, problem)
    if shown is not None:
        return shown
    redacted = replace(problem, message=redact(problem.message))

    return JSONResponse(redacted.to_json(), status_code=redacted.status, headers=redacted.headers())


def of_status(status: int) -> Problem:
    """Return the problem for a status set by the framework: unknown path, wrong method, broken body."""
    phrase = HTTPStatus(status).phrase

    return Problem(status=status, code=phrase.lower().replace(" ", "_"), message=phrase.lower(), advice=_ADVICE)


def _said(error: RequestValidationError) -> str:
    """Return the errors with their places; names from the client are truncated and made valid UTF-8."""
    result = [f"{'.'.join(str(part)[:60] for part in one['loc'])}: {one['msg']}" for one in error.errors()[:10]]

    return "; ".join(result).encode("utf-8", "backslashreplace").decode() or "the request is not what was expected"
