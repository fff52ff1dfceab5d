"""
The workers beside the server: as many as are wanted, each started again when it ended.

One that ends soon waits longer each time before it is started again, up to a minute: a worker that cannot work here
does not make the machine busy. All of this happens in `tick`, which somebody calls a few times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from adws.adw_modules.interfaces import Clock

logger = logging.getLogger("adw.serve")

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
#: A worker that lived this long was well: the count of failures begins again.
STEADY_SECONDS = 60.0


class Child(Protocol):
    """A worker that was started."""

    @property
    def pid(self) -> int: ...
    def exit_code(self) -> int | None: ...
    def ask_to_end(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(kw_only=True)
class _Place:
    """The place of one worker."""

    number: int
    child: Child | None = None
    started: float = 0.0
    due: float = field(default=float("-inf"))  #: when it may be started, by the monotonic clock
    failures: int = 0  #: in a row


def wait_seconds(failures: int) -> float:
    """Return how long to wait before a worker is started again that ended soon so many times in a row."""
    # Cap the exponent, not just the product: 2.0 ** 1025 raises OverflowError.
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 32))


class Supervisor:
    """Keeps workers running."""

    def __init__(
        self, start: Callable[[], Child], *, count: int, clock: Clock, say: Callable[[str], None] = lambda _line: None
    ) -> None:
        self._start = start
        self._clock = clock
        self._say = say
        self._places = [_Place(number=number) for number in range(1, count + 1)]
        self._is_draining = False

    def counts(self) -> tuple[int, int]:
        """Return how many workers are wanted, and how many run."""
        return len(self._places), sum(place.child is not None for place in self._places)

    def tick(self) -> None:
        """Look at every worker: note those that ended, start those that are due."""
        for place in self._places:
            self._note_end(place)
            if place.child is None and not self._is_draining and self._clock.monotonic() >= place.due:
                self._fill(place)

    def drain(self) -> None:
        """Ask every worker to end, and start none any more."""
        self._is_draining = True
        for place in self._places:
            if place.child is not None:
                place.child.ask_to_end()

    def kill(self) -> None:
        """End every worker at once; what it worked on is found by recovery."""
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
