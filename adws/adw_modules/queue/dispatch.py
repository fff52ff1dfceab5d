"""
The embedded dispatcher: a worker learns of runs by checking whether anything was committed.

A check costs microseconds and asks the database nothing, so it is made often and nothing has to be delivered. It serves
every queue that has such a watcher: SQLite's, and the one in memory. Nothing is handed to a worker, so nothing can be
left with a dead one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from adws.adw_modules.interfaces import Clock, Listener, OwnerRecord

if TYPE_CHECKING:
    from adws.adw_modules.db.sqlite import CommitWatcher


class WatchDispatcher:
    """A `Dispatcher` over a watch; *watch* makes one."""

    def __init__(self, watch: Callable[[], CommitWatcher], *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the listener of a worker; owner and places do not matter here."""
        del owner, places

        return WatchListener(self._watch(), clock=self._clock)


class WatchListener:
    """A `Listener` that polls."""

    def __init__(self, watch: CommitWatcher, *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()

    def hear(self, seconds: float) -> bool:
        """Wait, then return whether anything was committed since the last check."""
        if seconds > 0.0:
            self._clock.sleep(seconds)

        return self._watch.has_changed()

    def heard(self) -> int | None:
        """Return None: a commit does not say which run it was about."""
        return None

    def done(self, run_id: int) -> None:
        """Do nothing: nothing was handed over."""

    def sweep(self) -> int:
        """Return 0: nothing is left with anybody."""
        return 0
