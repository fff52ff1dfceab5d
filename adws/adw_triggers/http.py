"""
Read a request within limits and send the answer.

Only this module reads a request's body. Reading stops when the body exceeds its size limit or when the time for all of
it is up: a client that sends one byte a second cannot hold a connection for long.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from adws.adw_modules import errors
from adws.adw_modules.errors import ExecutionNotFound, ForeignToken, TaskNotFound
from adws.adw_modules.identifiers import JsonObject

# --- errors: one shape, and a status for every error of adw ----------------------------------------------------
#
# Whatever a client sends wrong is a 4xx; 502 and 503 mean trouble the client did not cause, such as a database that is
# down.

#: Seconds after which a client may retry what failed for now.
RETRY_SECONDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why a request was not carried out."""

    status: int  #: HTTP status
    code: str  #: for programs
    message: str  #: one sentence for people
    advice: str = ""  #: what to do; "" if the message says it
    retry_after: int | None = None  #: seconds

    def to_json(self) -> JsonObject:
        """Return the body of the error response."""
        return {"error": {"code": self.code, "message": self.message, "advice": self.advice}}

    def headers(self) -> dict[str, str]:
        """Return the extra headers of the error response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


#: Error -> status. An error that is not listed has the status of its nearest base class.
STATUSES: Mapping[type[errors.AdwError], int] = MappingProxyType(
    {
        errors.AdwError: 409,
        errors.UsageError: 422,
        errors.InvalidAdwId: 422,
        errors.UnknownWorkflow: 422,
        errors.StateNotFound: 404,
        errors.RunNotFound: 404,
        TaskNotFound: 404,
        ExecutionNotFound: 404,
        ForeignToken: 401,
        errors.ForgeNotFound: 404,
        errors.QuotaExceeded: 429,
        errors.PortsExhausted: 429,
        errors.ForgeError: 502,
        errors.ForgeUnavailable: 503,
        errors.ForgeBusy: 503,
        errors.GitUnreachable: 503,
        errors.DatabaseError: 503,
        errors.DurabilityUnknown: 503,
        errors.StateWriteFailed: 503,
        errors.StateReadFailed: 503,
        errors.LockUnavailable: 503,
    }
)
_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        404: "GET /api/v1/workflows lists the workflows there are.",
        422: "Change the request; /api/v1/openapi.json describes what is expected.",
        429: "Try again later; GET /api/v1/quota shows what is used up.",
        502: "The forge answered with an error: look at its side, then try again.",
        503: "Nothing is wrong with the request: try again later.",
    }
)


def problem_of(error: errors.AdwError) -> Problem:
    """Return the answer to a request that failed with *error*."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)

    return Problem(
        status=status,
        code=code_of(type(error)),
        message=str(error),
        advice=_ADVICE.get(status, ""),
        retry_after=RETRY_SECONDS if status in {429, 503} else None,
    )


def code_of(kind: type[BaseException]) -> str:
    """Return the code of an error class: `workflow_busy` for `WorkflowBusy`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def bug() -> Problem:
    """Return the answer to a request that hit a bug; the answer reveals nothing about the error."""
    return Problem(
        status=500,
        code="internal_error",
        message="adw could not do this because of a bug of its own",
        advice="The log of adw serve has the details; please report them.",
    )


Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Share: TypeAlias = Callable[[int], bool]


class BodyBudget:
    """Limits the bytes of all request bodies in memory at a time."""

    def __init__(self, most_bytes: int) -> None:
        self.left = most_bytes

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield a function that reserves bytes for one request and returns whether they were left; free all at exit."""
        taken = 0

        def grow(count: int) -> bool:
            nonlocal taken
            if count > self.left:
                return False
            self.left -= count
            taken += count
            return True

        try:
            yield grow
        finally:
            self.left += taken


#: How long a client may take to send the whole body of a request.
BODY_SECONDS = 10.0


class ClientGone(Exception):
    """The client disconnected before its request was complete; there is nobody to answer."""


def head_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by lower-case name; the last of a repeated header counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(
    receive: Receive, head: Mapping[str, str], *, most_bytes: int, seconds: float, share: Share
) -> bytes | Problem:
    """Return the whole body, or why reading stopped; raise ClientGone if the client disconnects."""
    declared = head.get("content-length", "")  # only a shortcut: the bytes are counted anyway
    is_number = declared.isascii() and declared.isdigit() and len(declared) <= 18
    if is_number and int(declared) > most_bytes:
        return _too_large(most_bytes)
    parts: list[bytes] = []
    size, is_whole = 0, False
    try:
        async with asyncio.timeout(seconds):
            while not is_whole:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > most_bytes:
                    return _too_large(most_bytes)
                if not share(len(chunk)):
                    return _BUSY
                parts.append(chunk)
                is_whole = not message.get("more_body", False)
    except TimeoutError:
        return Problem(
            status=408,
            code="too_slow",
            message=f"the body of the request did not come within {seconds:g} s",
            advice="Send it in one go.",
        )

    return parts[0] if len(parts) == 1 else b"".join(parts)


_BUSY = Problem(
    status=503,
    code="too_much_at_once",
    message="too many large requests come in at once",
    advice="Try again in a moment.",
    retry_after=1,
)


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        status=413,
        code="too_large",
        message=f"the body of the request is larger than {most_bytes} bytes",
        advice="Send less; the request was not used.",
    )


async def send_problem(send: Send, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
    """Answer with *problem*, and close the connection if the rest of the body may be unread."""
    extra = {**problem.headers(), **(headers or {})}
    if problem.status in {408, 413, 503}:
        extra["Connection"] = "close"
    await send_json(send, problem.status, problem.to_json(), extra)


async def send_json(send: Send, status: int, data: JsonObject, headers: Mapping[str, str] | None = None) -> None:
    """Answer with *data* as JSON."""
    body = json.dumps(data).encode()
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
