"""
One HTTP request, with limits: on its time, on the size of its answer, on where redirections lead.

An answer is returned whatever its status; what never became an answer raises RunFailed. Credentials go to the host
they are for and no further: neither along a redirection to another one, nor into a message. Cookies are not kept.
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


#: Redirections that are followed, and the methods they are followed for: another one would be made again elsewhere.
MAX_REDIRECTS = 5
FOLLOWED = ("GET", "HEAD", "OPTIONS")
#: Seconds between two checks for orders.
TICK_SECONDS = 0.1

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
#: Name of an error, or of what caused it -> class; all others are the network.
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
    """What to ask for."""

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: only for the host of *url*
    body: bytes | None = None
    timeout_seconds: float = 600.0  #: of all of it
    max_bytes: int = 8 * 1024 * 1024  #: of the answer, unpacked


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    headers: Mapping[str, str]  #: names in lower case
    body: bytes
    url: str  #: where it came from, after redirections


class HttpClient:
    """Makes requests over connections that are kept; a forked child makes its own."""

    def __init__(self, clock: Clock, *, allowed_hosts: Sequence[str] | None = None) -> None:
        """*allowed_hosts* are names of hosts, or `*.` and the end of names; None allows every host."""
        self._clock = clock
        self._allowed_hosts = allowed_hosts
        self._clients: dict[int, httpx.Client] = {}  #: by process: those of a parent are never used, never closed

    def ask(self, request: HttpRequest, orders: Orders) -> HttpAnswer | Order:
        """
        Return the answer, or the order that came before it; raise RunFailed when there is none.

        The request is made in a thread of its own: neither a server that does not answer nor one that answers for ever
        keeps anybody from obeying. A request that was given up may still reach the server.
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
            import httpx  # noqa: PLC0415 - takes a while to import, and few workflows ask anybody

            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            made = httpx.Client(cookies=no_cookies, headers={"User-Agent": "adw"}, follow_redirects=False)
            client = self._clients.setdefault(os.getpid(), made)
            if client is not made:  # another thread was faster
                made.close()

        return client

    def _follow(self, request: HttpRequest, given_up: threading.Event) -> HttpAnswer:
        """Return the answer after redirections; every host on the way must be an allowed one."""
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
                        raise _failed("invalid", f"{text} (steps.max_result_bytes): ask for less at a time")
                    if given_up.is_set():
                        break  # nobody waits for it any more
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
    """Return an address for people: without what stands before the host or behind the path, which may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the address"

    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"[:200]


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address of HTTP; no host when it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", 0
    if parts.scheme not in _PORTS or not parts.hostname:
        return "", "", 0

    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def host_matches(host: str, name: str) -> bool:
    """Say whether *name* of the allow list means *host*; one that begins with `*.` means all hosts below it."""
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _too_late(request: HttpRequest) -> RunFailed:
    return _failed("timeout", f"no answer from {shown(request.url)} within {request.timeout_seconds:g} s")


def _failed(subtype: str, text: str) -> RunFailed:
    return RunFailed(FailedRun(subtype=subtype, text=text, tool="http"), text)
