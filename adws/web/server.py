"""
The server: sockets, the deadline of heads, and ending in order.

uvicorn waits for ever for the head of a request; here it has a deadline, from the connection or the first byte on.
Bodies have theirs in `adw_triggers.asgi`. Signals are for whoever runs the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from adws.adw_modules.errors import UsageError

if TYPE_CHECKING:
    from adws.config import Settings
    from adws.web.gate import Gate

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
#: Seconds that a connection is kept open between two requests.
_KEEP_ALIVE_SECONDS = 15
#: Connections that wait until they are accepted.
_BACKLOG = 2048
#: Bytes that the head of a request may have.
_MAX_HEAD_BYTES = 64 * 1024


class WebConfig(uvicorn.Config):
    """How the server works; the settings of uvicorn that are not ours are left out."""

    def __init__(self, app: Gate, settings: Settings) -> None:
        super().__init__(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=settings.web_max_connections,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(settings.web_shutdown_seconds),
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self.header_seconds = settings.web_header_seconds


class GuardedProtocol(H11Protocol):
    """A connection whose client has so much time for the head of each request, and no more."""

    config: WebConfig
    cycle: Any  #: of the request under way or the last one; None before the first, whatever its own annotation says
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next head has begun
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Let the clock run while a head is waited for, and stop it when one is whole."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.config.header_seconds, self._cut_off)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut_off(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is None:
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class Server(uvicorn.Server):
    """The server, which leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: Gate, settings: Settings) -> Server:
    """Return a server for *app* that is not started."""
    return Server(WebConfig(app, settings))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise UsageError when that cannot be."""
    try:
        family, kind, number, _, address = _addresses(host, port)[0]
        listening = socket.socket(family, kind, number)
    except OSError as exc:
        raise UsageError(f"cannot listen at {host}: {exc.strerror or exc}; use an address of this machine") from exc
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as exc:
        listening.close()
        raise UsageError(
            f"cannot listen at {host} port {port}: {exc.strerror or exc}; choose another with --port or --host"
        ) from exc

    return listening


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach *host*; a name that leads nowhere is not taken for that."""
    try:
        found = {str(address[0]) for *_, address in _addresses(host, 0)}
    except OSError:
        return False

    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def address_of(listening: socket.socket) -> str:
    """Return where a socket listens, as the beginning of a URL."""
    host, port = listening.getsockname()[:2]

    return url_of(host, port)


def url_of(host: str, port: int) -> str:
    """Return the beginning of the URLs of a server at *host* and *port*."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_for_people(address: str) -> str:
    """Return *address* as one opens it on this machine: that of a server that listens everywhere leads nowhere."""
    return address.replace("http://0.0.0.0:", "http://127.0.0.1:").replace("http://[::]:", "http://[::1]:")


def _addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
