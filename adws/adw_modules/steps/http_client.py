"""
One HTTP request, limited in time, in the size of the response and in where redirects may lead.

A response is returned whatever its status; without a response RunFailed is raised. Credentials go only to the host they
are for: neither along a redirect to another host nor into a message. Cookies are not kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from adws.adw_modules.errors import FailedRun, RunFailed
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.phase import Order, Orders

if TYPE_CHECKING:
    import httpx


#: Most redirects followed, and the methods for which they are: with another one, a redirect would repeat an action.
MAX_REDIRECTS = 5
FOLLOWED = ("GET", "HEAD", "OPTIONS")
#: Seconds between two checks for orders.
TICK_SECONDS = 0.1

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
#: Name of an error, or of its cause -> error class; every other error is a network error.
_CLASSES = {
    "SSLCertVerificationError": "tls",
    "InvalidURL": "invalid",
    "UnsupportedProtocol": "invalid",
    "LocalProtocolError": "invalid",
    "UnicodeError": "invalid",
    "UnicodeEncodeError": "invalid",
    "ValueError": "invalid",
    "DecodingError": "bad_output",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """A request to make."""

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: sent only to the host of *url*
    body: bytes | None = None
    timeout_seconds: float = 600.0  #: for the whole request
    max_bytes: int = 8 * 1024 * 1024  #: of the response body, decompressed


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """The response."""

    status: int
    headers: Mapping[str, str]  #: names in lower case
    body: bytes
    url: str  #: final URL, after redirects


class HttpClient:
    """Makes requests over pooled connections; a forked child opens its own."""

    def __init__(self, clock: Clock, *, allowed_hosts: Sequence[str] | None = None) -> None:
        """*allowed_hosts* are host names, or `*.` and a domain; None allows every host."""
        self._clock = clock
        self._allowed_hosts = allowed_hosts
        self._clients: dict[int, httpx.Client] = {}  #: by process: clients of a parent are never used or closed

    def ask(self, request: HttpRequest, orders: Orders) -> HttpAnswer | Order:
        """
        Return the response, or the order that came first; raise RunFailed if there is no response.

        The request runs in its own thread, so that neither a silent server nor an endless response delays an order. An
        abandoned request may still reach the server.
        """
        done: list[HttpAnswer | BaseException] = []
        is_over = threading.Event()
        given_up = threading.Event()
        self._open()

        def work() -> None:
            try:
                done.append(self._follow(request, given_up))
            except BaseException as exc:  # noqa: BLE001 - raised again by the waiting caller
                done.append(exc)
            finally:
                is_over.set()

        threading.Thread(target=work, name="adw-http", daemon=True).start()
        began = self._clock.monotonic()
        while not is_over.wait(TICK_SECONDS):
            order = orders.current()
            if order is not None:
                given_up.set()
                return order
            if self._clock.monotonic() - began >= request.timeout_seconds:
                given_up.set()
                raise _too_late(request)
        if isinstance(done[0], BaseException):
            raise done[0]

        return done[0]

    def close(self) -> None:
        """Close the connections."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _open(self) -> httpx.Client:
        """Return the client of this process, which its threads share."""
        client = self._clients.get(os.getpid())
        if client is None:
            import httpx  # noqa: PLC0415 - slow to import, and few workflows make requests

            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            made = httpx.Client(cookies=no_cookies, headers={"User-Agent": "adw"}, follow_redirects=False)
            client = self._clients.setdefault(os.getpid(), made)
            if client is not made:  # another thread was faster
                made.close()

        return client

    def _follow(self, request: HttpRequest, given_up: threading.Event) -> HttpAnswer:
        """Return the response after redirects; every host on the way must be allowed."""
        step, allowed = request, self._allowed_hosts
        for _ in range(MAX_REDIRECTS + 1):
            host = origin_of(step.url)[1]
            if not host:
                raise _failed("invalid", f"{shown(step.url)} is no address of HTTP")
            if allowed is not None and not any(host_matches(host.lower(), name) for name in allowed):
                raise _failed("config", f"{host} must not be asked: steps.http_allow does not name it")
            answer = self._once(step, given_up)
            location = answer.headers.get("location", "")
            if answer.status not in _REDIRECTS or not location or request.method not in FOLLOWED:
                return answer
            url = urljoin(answer.url, location)
            is_home = origin_of(url) == origin_of(request.url)
            step = replace(request, url=url, params=(), secret_headers=request.secret_headers if is_home else {})

        raise _failed("invalid", f"{shown(request.url)} redirects more than {MAX_REDIRECTS} times")

    def _once(self, request: HttpRequest, given_up: threading.Event) -> HttpAnswer:
        import httpx  # noqa: PLC0415 - see above

        client, body = self._open(), bytearray()
        try:
            url = httpx.URL(request.url)
            built = client.build_request(
                request.method,
                url.copy_merge_params(list(request.params)) if request.params else url,
                headers={**request.headers, **request.secret_headers},
                content=request.body,
                timeout=request.timeout_seconds,
            )
            with closing(client.send(built, stream=True)) as answer:
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > request.max_bytes:
                        text = f"the answer from {shown(request.url)} has more than {request.max_bytes} bytes"
                        raise _failed("invalid", f"{text}: ask for less at a time")
                    if given_up.is_set():
                        break  # the caller has stopped waiting
        except httpx.TimeoutException as exc:
            raise _too_late(request) from exc
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as exc:
            said = f"{type(exc).__name__}: {exc}"[:200]
            cause: BaseException | None = exc
            while cause is not None and type(cause).__name__ not in _CLASSES:
                cause = cause.__cause__ or cause.__context__
            subtype = _CLASSES[type(cause).__name__] if cause is not None else "network"
            raise _failed(subtype, f"no answer from {shown(request.url)}: {said}") from exc

        return HttpAnswer(
            status=answer.status_code,
            headers={name.lower(): value for name, value in answer.headers.items()},
            body=bytes(body),
            url=str(answer.url),
        )


def shown(url: str) -> str:
    """Return a URL for people: without credentials, query and fragment, which may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the address"

    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"[:200]


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an HTTP URL; an empty host if *url* is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", 0
    if parts.scheme not in _PORTS or not parts.hostname:
        return "", "", 0

    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def host_matches(host: str, name: str) -> bool:
    """Return whether *name* of the allow list matches *host*; one that begins with `*.` matches all hosts below it."""
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _too_late(request: HttpRequest) -> RunFailed:
    return _failed("timeout", f"no answer from {shown(request.url)} within {request.timeout_seconds:g} s")


def _failed(subtype: str, text: str) -> RunFailed:
    return RunFailed(FailedRun(subtype=subtype, text=text, tool="http"), text)
