"""
Server and workers together, until a signal: the first ends both in order, the second at once.

In order means: nothing new is taken, requests under way are answered, workers suspend what they are at and go. Who is
not done at the deadline is killed; recovery finds what it worked on.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

from adws.adw_modules.interfaces import Clock
from adws.web.server import Server
from adws.web.supervisor import Supervisor

#: Seconds between two looks at the workers.
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
        """*drain* makes those answers end that would go on for ever."""
        self._drain = drain
        self._server = server
        self._supervisor = supervisor
        self._clock = clock
        self._shutdown_seconds = shutdown_seconds
        self._say = say
        self._until: float | None = None  #: by the monotonic clock; None: not told to end
        self.signals: list[int] = []  #: those that came

    @property
    def is_urgent(self) -> bool:
        """Whether it was told to end twice."""
        return len(self.signals) > 1

    def run(self, listening: socket.socket) -> None:
        """Serve at *listening* until a signal comes, and return when everything has ended."""
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
        await serving  # raises what ended it

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
