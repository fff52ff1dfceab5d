"""
The outermost frame of the web door: what every request passes before anything of it is parsed.

Webhook deliveries go to their own door, and pages for people have a guard of theirs. For the API the token is checked
first, then the body is read within its limits; a client without a token cannot make the server read anything. Whatever
goes wrong behind it, the client gets the one error shape and the log gets the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from adws.adw_triggers import problems
from adws.adw_triggers.asgi import (
    App,
    Budget,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    head_of,
    read_body,
    send_problem,
)
from adws.adw_triggers.problems import Problem
from adws.web import auth

logger = logging.getLogger("adw.web")

#: Everything below needs a token.
CLOSED = ("/api/", "/admin/")
#: What Prometheus reads; a token of its own opens it, too.
METRICS = "/metrics"
#: What else is no page for people.
OPEN = frozenset({"/health", METRICS})
#: Of what is closed, what the token of a task opens for that task.
FOR_TASKS = ("/api/v1/external/", "/api/v1/event/emit")
#: Where the routes find the task whose token was shown.
TASK_IN_SCOPE = "adw.task"
#: Requests of the largest size that may be in memory at a time.
_LARGEST_AT_A_TIME = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRules:
    """Who is let in, and what is put up with."""

    tokens: tuple[str, ...] = ()
    metrics_tokens: tuple[str, ...] = ()  #: open METRICS and nothing else
    may_read_metrics: Callable[[str, str], bool] = lambda _client, _host: False  #: METRICS without a token
    max_body_bytes: int = 1024 * 1024
    body_seconds: float = 10.0
    task_of: Callable[[str], str | None] = lambda _token: None  #: token -> the task that it is for


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """How a request for a page goes on."""

    scope: Scope
    most_bytes: int  #: that its body may have
    look: Callable[[bytes], App | None] = lambda _body: None  #: the body -> what answers it instead; None: it is well


class Guard(Protocol):
    """Lets requests for pages in."""

    def headed(self, send: Send) -> Send: ...
    def admit(self, scope: Scope, head: Mapping[str, str]) -> Entry | App: ...


class Gate:
    """Lets requests in."""

    def __init__(
        self,
        app: App,
        rules: GateRules,
        *,
        doors: Mapping[str, App],
        pages: Guard,
        drain: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """
        *doors* are paths whose requests are read by somebody else, from the stream on; *pages* lets in to pages.

        *drain* makes answers end that would go on for ever; *close* ends everything.
        """
        self.drain = drain
        self.close = close
        self._app = app
        self._rules = rules
        self._doors = doors
        self._pages = pages
        self._budget = Budget(_LARGEST_AT_A_TIME * rules.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        watched = _Watched(send)
        try:
            await self._serve(scope, receive, watched)
        except ClientGone:
            return
        except Exception:  # the outermost frame of a request: a bug becomes a log line and a 500
            logger.exception(
                "A request could not be answered",
                extra={"action": "request_failed", "method": scope["method"], "path": scope["path"]},
            )
            if not watched.is_started:
                await send_problem(send, problems.bug())

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._doors.get(scope["path"])
        if door is not None:
            await door(scope, receive, send)
            return
        head = head_of(scope)
        if not scope["path"].startswith(CLOSED) and scope["path"] not in OPEN:
            await self._show(scope, head, receive, self._pages.headed(send))
            return
        task = self._rules.task_of(auth.token_in(head)) if scope["path"].startswith(FOR_TASKS) else None
        scope = scope if task is None else {**scope, TASK_IN_SCOPE: task}
        problem = self._why_not(scope, head) if task is None else None
        if problem is not None:
            await send_problem(send, problem, {"WWW-Authenticate": "Bearer", "Connection": "close"})
            return
        await self._pass(Entry(scope=scope, most_bytes=self._rules.max_body_bytes), head, receive, send)

    async def _show(self, scope: Scope, head: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Answer a request for a page."""
        entry = self._pages.admit(scope, head)
        if isinstance(entry, Entry):
            await self._pass(entry, head, receive, send)
        else:
            await entry(scope, receive, send)

    async def _pass(self, entry: Entry, head: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Read the body within its limits, and let the request through."""
        with self._budget.share() as share:
            most_bytes, seconds = entry.most_bytes, self._rules.body_seconds
            body = await read_body(receive, head, most_bytes=most_bytes, seconds=seconds, share=share)
            if isinstance(body, Problem):
                await send_problem(send, body)
                return
            answer = entry.look(body) or self._app
            await answer(entry.scope, _Replay(body, receive), send)

    def _why_not(self, scope: Scope, head: Mapping[str, str]) -> Problem | None:
        """Return why a request is not let in, None when it is, or when what it asks for is open to everybody."""
        rules = self._rules
        if scope["path"] == METRICS:
            client, _port = scope.get("client") or ("", 0)
            if rules.may_read_metrics(client, head.get("host", "")):
                return None
            return auth.why_not(head, (*rules.tokens, *rules.metrics_tokens))

        return auth.why_not(head, rules.tokens) if scope["path"].startswith(CLOSED) else None


class _Watched:
    """Knows whether an answer was begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        self.is_started = True
        await self._send(message)


class _Replay:
    """Gives a body that was read already, then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None

        return {"type": "http.request", "body": body, "more_body": False}
