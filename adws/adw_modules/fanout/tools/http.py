"""
The tool `http`: one request, whose answer is the result.

JSON becomes a value, anything else a text. A status of 400 and more is a failure, with what the server says about
waiting. Credentials come from environment variables (`headers_env`) and are in no message and no result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from adws.adw_modules import server_wait
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.results import (
    MAX_RESULT_BYTES,
    ToolResult,
    as_text,
    parse,
    text_of,
    texts,
    wrong_input,
)
from adws.adw_modules.http_client import HttpAnswer, HttpClient, HttpRequest, shown
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.redaction import MASK

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Characters of an answer that a message shows.
EXCERPT = 200
#: Shorter credentials are not looked for in answers: they could be anything.
SHORTEST_SECRET = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpParts:
    """What requests are made with."""

    client: HttpClient
    now: Callable[[], datetime]
    redact: Callable[[str], str]
    env: Mapping[str, str] = field(repr=False)  #: where the values of `headers_env` are
    own_secrets: frozenset[str] = OWN_SECRETS
    max_bytes: int = MAX_RESULT_BYTES


class HttpTool:
    """Asks over HTTP."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make the request; raise RunFailed when it has no answer, or one that is a failure."""
        request = self._request(inputs, timeout_seconds)
        answer = self._parts.client.ask(request, context.orders)
        if isinstance(answer, Order):
            return ToolResult(ordered=answer.kind)
        if answer.status >= 400 or 300 <= answer.status < 400:
            raise self._failure(request, answer)
        body = _without(answer.body, request.secret_headers.values())

        return ToolResult(value=_value(answer, body), facts={"status": answer.status})

    def _request(self, inputs: Mapping[str, JsonValue], timeout_seconds: float) -> HttpRequest:
        method = as_text(inputs.get("method", "GET"), "method").upper()
        if method not in METHODS:
            raise wrong_input(f"method is {method!r}, which is no method of HTTP")
        body, headers = _body(inputs)

        return HttpRequest(
            method=method,
            url=as_text(inputs.get("url"), "url"),
            params=tuple(_params(inputs.get("params") or {})),
            headers={**headers, **texts(inputs.get("headers") or {}, "headers")},
            secret_headers=self._secrets(inputs.get("headers_env") or {}),
            body=body,
            timeout_seconds=timeout_seconds,
            max_bytes=self._parts.max_bytes,
        )

    def _secrets(self, names: JsonValue) -> dict[str, str]:
        found: dict[str, str] = {}
        for header, variable in texts(names, "headers_env").items():
            if variable in self._parts.own_secrets:
                raise wrong_input(f"the variable {variable} is for adw itself: name another one in headers_env")
            if not self._parts.env.get(variable):
                raise wrong_input(f"the environment variable {variable} of the header {header} is not set: set it")
            found[header] = self._parts.env[variable]

        return found

    def _failure(self, request: HttpRequest, answer: HttpAnswer) -> RunFailed:
        said = self._parts.redact(text_of(_without(answer.body, request.secret_headers.values())))
        excerpt = " ".join(said[: EXCERPT * 4].split())[:EXCERPT]
        name = f"{request.method} {shown(request.url)}"
        text = f"{name} was answered with {answer.status}{f': {excerpt}' if excerpt else ''}"
        wait = server_wait.by_headers(answer.headers)
        seconds = (wait.at - self._parts.now()).total_seconds() if wait.at else wait.seconds

        return RunFailed(
            FailedRun(
                http_status=answer.status,
                subtype="invalid" if answer.status < 400 else "",
                text=text,
                retry_after_seconds=None if seconds is None else max(0.0, seconds),
                tool="http",
            ),
            text,
        )


def _params(given: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a query: a list gives one for each element, null none."""
    if not isinstance(given, Mapping):
        raise wrong_input(f"params must be a table, and is {json.dumps(given)[:80]}")
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                yield str(name), as_text(one, f"params.{name}")


def _body(inputs: Mapping[str, JsonValue]) -> tuple[bytes | None, dict[str, str]]:
    if "json" in inputs:
        return json.dumps(inputs["json"]).encode(), {"Content-Type": "application/json"}
    if inputs.get("body") is None:
        return None, {}

    return as_text(inputs["body"], "body").encode("utf-8", "replace"), {"Content-Type": "text/plain; charset=utf-8"}


def _value(answer: HttpAnswer, body: bytes) -> JsonValue:
    if not body.strip():
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return parse(body, f"the answer from {shown(answer.url)}")

    return text_of(body)


def _without(body: bytes, secrets: Iterable[str]) -> bytes:
    """Return *body* without what was sent as a credential, which a server may send back; "Bearer" is none."""
    for secret in secrets:
        for part in (secret, secret.rpartition(" ")[2]):
            if len(part) >= SHORTEST_SECRET:
                body = body.replace(part.encode(), MASK.encode())

    return body
