"""
The server: sockets, a deadline for the head of each request, a clean shutdown, and the workers beside it.

uvicorn waits forever for the head of a request. Here it has a deadline, counted from the connection or from its first
byte; the deadline of bodies is in `adw_triggers.http`. `Serving` handles signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Clock

if TYPE_CHECKING:
    from adws.adw_modules.process.run import ChildProcess
    from adws.web.middleware import RequestMiddleware


_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
#: Seconds that a connection stays open between two requests.
_KEEP_ALIVE_SECONDS = 15
#: How long requests and workers may take to end at a shutdown: a phase's grace period and time to record the result.
#: Service managers kill after 90 s.
SHUTDOWN_SECONDS = 30
#: How long a client may take to send the head of a request.
HEADER_SECONDS = 10.0
#: The most connections at a time; further ones are answered with 503.
MAX_CONNECTIONS = 500
#: The most connections that wait to be accepted.
_BACKLOG = 2048
#: The largest head of a request.
_MAX_HEAD_BYTES = 64 * 1024


class WebConfig(uvicorn.Config):
    """The fixed configuration of uvicorn."""

    def __init__(self, app: RequestMiddleware) -> None:
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
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self.header_seconds = HEADER_SECONDS


class GuardedProtocol(H11Protocol):
    """A connection with a deadline for the head of each request."""

    config: WebConfig
    cycle: Any  #: the current or last request; None before the first, despite uvicorn's annotation
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the same signature as uvicorn's
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next head has already begun
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the deadline when a head is expected, and stop it when the head is complete."""
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
    """A uvicorn server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: RequestMiddleware) -> Server:
    """Return a server for *app*, not yet started."""
    return Server(WebConfig(app))


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise UsageError if that is impossible."""
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
    """Return whether only this machine can reach *host*; False if the name cannot be resolved."""
    try:
        result = {str(address[0]) for *_, address in _addresses(host, 0)}
    except OSError:
        return False

    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in result)


def address_of(listening: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = listening.getsockname()[:2]

    return url_of(host, port)


def url_of(host: str, port: int) -> str:
    """Return the base URL of a server at *host* and *port*."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_for_people(address: str) -> str:
    """Return the URL to open on this machine: the address of all interfaces becomes loopback."""
    return address.replace("http://0.0.0.0:", "http://127.0.0.1:").replace("http://[::]:", "http://[::1]:")


def _addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))


# --- server and workers together, until a signal ---------------------------------------------------------------
#
# The first signal shuts both down cleanly, the second at once. Cleanly means: no new work is accepted, requests under
# way are answered, workers suspend their runs and end. Processes still running at the deadline are killed, and recovery
# finds their runs.


#: Seconds between two checks of the workers.
TICK_SECONDS = 0.1


class Serving:
    """Runs a server and the workers beside it."""

    def __init__(
        self,
        server: Server,
        supervisor: Supervisor,
        *,
        clock: Clock,
        shutdown_seconds: float,
        say: Callable[[str], None] = lambda _line: None,
        drain: Callable[[], None] = lambda: None,
    ) -> None:
        """*drain* ends responses that never end by themselves."""
        self._drain = drain
        self._server = server
        self._supervisor = supervisor
        self._clock = clock
        self._shutdown_seconds = shutdown_seconds
        self._say = say
        self._until: float | None = None  #: the deadline on the monotonic clock; None: no shutdown yet
        self.signals: list[int] = []  #: the signals received

    @property
    def is_urgent(self) -> bool:
        """Whether a second signal came."""
        return len(self.signals) > 1

    def run(self, listening: socket.socket) -> None:
        """Serve at *listening* until a signal comes; return when everything has ended."""
        asyncio.run(self._run(listening))

    async def _run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = loop.create_task(self._server.serve(sockets=[listening]))
        try:
            while not serving.done():
                self._look()
                await asyncio.wait({serving}, timeout=TICK_SECONDS)
        finally:
            await self._end_workers()
        await serving  # raises the error that ended it

    def _on_signal(self, number: int) -> None:
        self.signals.append(number)
        if self.is_urgent:
            self._server.force_exit = True
            self._supervisor.kill()
            return
        self._say(f"asked to end by {signal.Signals(number).name}; once more ends everything at once")
        self._end()

    def _end(self) -> None:
        self._until = self._clock.monotonic() + self._shutdown_seconds
        self._server.should_exit = True
        self._drain()
        self._supervisor.drain()

    def _look(self) -> None:
        self._supervisor.tick()
        if self._until is not None and self._clock.monotonic() >= self._until:
            self._supervisor.kill()

    async def _end_workers(self) -> None:
        if self._until is None:  # the server ended by itself
            self._end()
        while self._supervisor.counts()[1]:
            self._look()
            await asyncio.sleep(TICK_SECONDS)


# --- the workers beside the server -----------------------------------------------------------------------------
#
# A worker that ends is restarted. If it ended soon after its start, the delay grows each time, up to a minute, so that
# a worker that cannot work here does not keep the machine busy. The caller calls `tick` a few times a second.


logger = logging.getLogger("adw.serve")

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
#: A worker that lived this long worked: the count of failures is reset.
STEADY_SECONDS = 60.0


@dataclass(kw_only=True)
class _Place:
    """The slot of one worker."""

    number: int
    child: ChildProcess | None = None
    started: float = 0.0
    due: float = field(default=float("-inf"))  #: when it may be started, on the monotonic clock
    failures: int = 0  #: in a row


def wait_seconds(failures: int) -> float:
    """Return the delay before a worker is restarted that ended early *failures* times in a row."""
    # Cap the exponent, not just the product: 2.0 ** 1025 raises OverflowError.
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 32))


class Supervisor:
    """Keeps workers running."""

    def __init__(
        self,
        start: Callable[[], ChildProcess],
        *,
        count: int,
        clock: Clock,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._start = start
        self._clock = clock
        self._say = say
        self._places = [_Place(number=number) for number in range(1, count + 1)]
        self._is_draining = False

    def counts(self) -> tuple[int, int]:
        """Return how many workers should run, and how many do."""
        return len(self._places), sum(place.child is not None for place in self._places)

    def tick(self) -> None:
        """Check every worker: note the ones that ended, start the ones that are due."""
        for place in self._places:
            self._note_end(place)
            if place.child is None and not self._is_draining and self._clock.monotonic() >= place.due:
                self._fill(place)

    def drain(self) -> None:
        """Ask every worker to end and start no more."""
        self._is_draining = True
        for place in self._places:
            if place.child is not None:
                place.child.ask_to_end()

    def kill(self) -> None:
        """Kill every worker; recovery finds their runs."""
        self._is_draining = True
        for place in self._places:
            if place.child is not None:
                logger.warning("Killed a worker", extra={"action": "worker_killed", "pid": place.child.pid})
                place.child.kill()

    def _fill(self, place: _Place) -> None:
        place.started = self._clock.monotonic()
        try:
            place.child = self._start()
        except OSError as exc:
            self._wait_longer(place, f"could not be started: {exc.strerror or exc}")
            return
        logger.info("Started a worker", extra={"action": "worker_started", "pid": place.child.pid})

    def _note_end(self, place: _Place) -> None:
        code = place.child.exit_code() if place.child is not None else None
        if code is None:
            return
        place.child = None
        if self._is_draining:
            return
        if self._clock.monotonic() - place.started >= STEADY_SECONDS:
            place.failures = 0
        self._wait_longer(place, f"ended with {code}" if code >= 0 else f"was ended by signal {-code}")

    def _wait_longer(self, place: _Place, what: str) -> None:
        place.failures += 1
        seconds = wait_seconds(place.failures)
        place.due = self._clock.monotonic() + seconds
        logger.warning(
            "A worker is gone",
            extra={"action": "worker_gone", "what": what, "failures": place.failures, "wait_seconds": seconds},
        )
        self._say(f"worker {place.number} {what}; it is started again in {seconds:g} s")
