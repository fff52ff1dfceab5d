"""
The embedded dispatcher: workers discover runs by checking for new commits.

A check takes microseconds and runs no query, so it can be frequent, and nothing has to be delivered. It works for every
queue with such a watcher: SQLite's, and the one in memory. No run is handed over, so none is left with a dead worker.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from adws.adw_modules.interfaces import Clock, Listener, OwnerRecord

if TYPE_CHECKING:
    from adws.adw_modules.db.sqlite import CommitWatcher


class WatchDispatcher:
    """A `Dispatcher` that watches for commits; *watch* makes a watcher."""

    def __init__(self, watch: Callable[[], CommitWatcher], *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the listener of a worker; *owner* and *places* are not used here."""
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
        """Wait *seconds*, then return whether anything was committed since the last check."""
        if seconds > 0.0:
            self._clock.sleep(seconds)

        return self._watch.has_changed()

    def heard(self) -> int | None:
        """Return None: a commit does not show which run it concerns."""
        return None

    def done(self, run_id: int) -> None:
        """Do nothing: no run was handed over."""

    def sweep(self) -> int:
        """Return 0: no worker holds announcements."""
        return 0
