"""
What passes between Procrastinate's loop and the thread of a worker: the runs that were told of.

The loop adds a run when a job brings it and waits until it is over; the worker takes it up, and says when it is over. A
run that was not taken up when the loop ends goes back, so that others hear of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field

from adws.adw_modules.errors import DatabaseError


class NotTakenUp(Exception):
    """The listener ends, and the worker had not taken the run up."""


@dataclass(eq=False, slots=True)
class Told:
    """A run that a job told of."""

    run_id: int
    loop: asyncio.AbstractEventLoop
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False

    def end(self) -> None:
        """Say that it is over, from any thread; a loop that has ended needs not to know."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.over.set)


class Handover:
    """The runs that were told of. The loop and one worker share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Told] = deque()
        self._taken: dict[int, list[Told]] = {}
        self._problem: DatabaseError | None = None

    # --- the loop ----------------------------------------------------------------------------------------------

    async def bring(self, run_id: int) -> None:
        """Hand a run over and wait until it is over; raise NotTakenUp when this is cancelled before it is taken up."""
        told = Told(run_id=run_id, loop=asyncio.get_running_loop())
        with self._changed:
            self._waiting.append(told)
            self._changed.notify_all()
        try:
            await told.over.wait()
        except asyncio.CancelledError:
            if not self._forget(told):
                raise NotTakenUp from None
            raise

    def fail(self, problem: DatabaseError) -> None:
        """Have the worker hear of a problem that waiting does not mend."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _forget(self, told: Told) -> bool:
        """Forget a run, and say whether it was taken up."""
        with self._changed:
            if not told.is_taken:
                self._waiting.remove(told)
            return told.is_taken

    # --- the worker --------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Say whether a run waits to be taken up, at the latest after *seconds*; raise what the loop failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._problem, timeout=max(0.0, seconds))
            if self._problem is not None:
                raise self._problem
            return bool(self._waiting)

    def take(self) -> int | None:
        """Take up the run that has waited longest, None when none waits."""
        with self._changed:
            if not self._waiting:
                return None
            told = self._waiting.popleft()
            told.is_taken = True
            self._taken.setdefault(told.run_id, []).append(told)
            return told.run_id

    def end(self, run_id: int) -> None:
        """Say that a run that was taken up is over."""
        with self._changed:
            told = self._taken.get(run_id, [])
            ended = told.pop() if told else None
            if not told:
                self._taken.pop(run_id, None)
        if ended is not None:
            ended.end()
