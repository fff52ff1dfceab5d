"""
A worker's sign of life: it registers, says every few seconds that it is there, and says goodbye.

A thread of its own does that: work may block for an hour, and what a worker offers is counted on by those who wait.
Whoever cannot be told is told the next time; nothing depends on a single heartbeat.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from adws.adw_modules.demands import Offer
from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Runners
from adws.adw_modules.owner_record import OwnerRecord

logger = logging.getLogger("adw.worker")

#: Seconds between two looks whether there is something to say.
LOOK_SECONDS = 0.5


class Presence:
    """
    One worker, known to all inside the block.

    `busy` and `is_draining` are plain marks for the next heartbeat: a signal handler may leave them, too.
    """

    def __init__(
        self,
        runners: Runners,
        *,
        me: OwnerRecord,
        offer: Offer,
        places: int,
        version: str,
        clock: Clock,
        every_seconds: float = 10.0,
    ) -> None:
        self._runners = runners
        self._me = me
        self._offer = offer
        self._places = places
        self._version = version
        self._clock = clock
        self._every_seconds = every_seconds
        self._told: tuple[float, bool] = (float("-inf"), False)  #: when, and whether it was draining then
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.busy = 0
        self.is_draining = False

    def __enter__(self) -> Self:
        self.tell()
        self._thread = threading.Thread(target=self._keep, name="adw-presence", daemon=True)
        self._thread.start()

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._runners.leave(self._me)
        except (AdwError, OSError):
            # It is listed as silent, then: the reason why it ends matters more.
            logger.debug("Could not say goodbye", extra={"action": "presence_trouble"}, exc_info=True)

    def _keep(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Tell what is due, or what changed and does not wait: that it takes nothing more."""
        told_at, was_draining = self._told
        if self._clock.monotonic() - told_at >= self._every_seconds or self.is_draining != was_draining:
            self.tell()

    def tell(self) -> None:
        """Say that it is there; who is not known, or was forgotten, registers."""
        busy, is_draining = self.busy, self.is_draining
        try:
            if not self._runners.beat(self._me, busy=busy, is_draining=is_draining):
                self._runners.register(self._me, self._offer, concurrency=self._places, version=self._version)
                if busy or is_draining:
                    self._runners.beat(self._me, busy=busy, is_draining=is_draining)
        except (AdwError, OSError) as exc:
            # The worker itself says when its database is gone; this is for who wonders why it is listed as silent.
            said = {"action": "presence_trouble", "why": str(exc)}
            logger.info("Could not tell that the worker lives", extra=said)
        self._told = (self._clock.monotonic(), is_draining)
