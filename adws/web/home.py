"""
The parts of a home, for many requests at a time.

Parts are built on first use, which is not made for threads: here one thread builds at a time, and what is built is
shared. What a part does is safe for threads already, because a worker uses it so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules.errors import DatabaseError
from adws.web.lately import Lately

if TYPE_CHECKING:
    from adws.app import App
    from adws.config import Settings

_Part = TypeVar("_Part")

#: Seconds after which worktrees are measured again, when somebody looks.
_SIZES_SECONDS = 60.0


class Home:
    """What the routes use."""

    def __init__(self, app: App, *, workers: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        """*workers* says how many workers are wanted beside this server, and how many run."""
        self._app = app
        self._building = threading.RLock()
        self.workers = workers
        self.refused: Mapping[str, int] = {}  #: why deliveries were refused, and how many
        self.worktree_sizes = Lately(self._measure, clock=app.clock, keep_seconds=_SIZES_SECONDS)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._app.settings

    def part(self, choose: Callable[[App], _Part]) -> _Part:
        """Return a part of the home, built if nobody did before."""
        with self._building:
            return choose(self._app)

    def _measure(self) -> Mapping[str, int]:
        return self.part(lambda app: app.quotas).sizes()

    def bring_up(self) -> None:
        """Let lists show what was just changed; with documents in files their copy comes a moment later."""
        if self.settings.store == "files":
            with suppress(DatabaseError):  # the change is durable, and its copy is made later
                self.part(lambda app: app.projection).flush()
