"""
What all routes of the API share: the home, ids, cursors, and documented errors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeVar, cast

from fastapi import Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from adws.adw_modules.errors import DatabaseError, UsageError
from adws.adw_modules.interfaces import Clock
from adws.app import Home
from adws.web.middleware import ErrorBody

# --- a cache for values that take long to compute: stale while revalidate --------------------------------------


logger = logging.getLogger("adw.web")

_Value = TypeVar("_Value")


def _beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="adw-lately", daemon=True).start()


class CachedValue(Generic[_Value]):
    """Caches one value: callers get it at once, and an old one is computed again in the background."""

    def __init__(
        self,
        find: Callable[[], _Value],
        *,
        clock: Clock,
        keep_seconds: float,
        beside: Callable[[Callable[[], None]], None] = _beside,
    ) -> None:
        """Compute the value with *find*, at most once in *keep_seconds*; *beside* starts work in the background."""
        self._find = find
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._beside = beside
        self._lock = threading.Lock()
        self._is_looking = False
        self._looked_at = float("-inf")
        self._value: _Value | None = None

    def get(self) -> _Value | None:
        """Return the last value, or None before the first."""
        with self._lock:
            is_due = not self._is_looking and self._clock.monotonic() - self._looked_at >= self._keep_seconds
            self._is_looking = self._is_looking or is_due
        if is_due:
            self._beside(self._look)

        return self._value

    def _look(self) -> None:
        try:
            self._value = self._find()
        except OSError:  # measuring failed: keep the last value until it succeeds
            logger.warning("A value could not be measured", exc_info=True, extra={"action": "lately_failed"})
        finally:
            with self._lock:
                self._looked_at = self._clock.monotonic()
                self._is_looking = False


#: Seconds after which a request measures the worktrees again.
_SIZES_SECONDS = 60.0


class ServerState:
    """The state of this server besides its home."""

    def __init__(self, home: Home, *, workers: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        """*workers* returns how many workers this server should run, and how many do run."""
        self.workers = workers
        self.refused: Mapping[str, int] = {}  #: reason -> number of refused deliveries
        self.worktree_sizes = CachedValue(self._measure, clock=home.clock, keep_seconds=_SIZES_SECONDS)
        self._home = home

    def _measure(self) -> Mapping[str, int]:
        return self._home.quotas.sizes()


def catch_up(home: Home) -> None:
    """Update the projection, so that lists show the last change."""
    with suppress(DatabaseError):  # the change is durable, and its projection follows later
        home.flush_projection()


#: The most rows of a page.
MOST_ROWS = 1000

#: status -> meaning, for OpenAPI; all error bodies have the same shape.
_MEANINGS = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    403: "The API is closed: no token is set.",
    404: "It does not exist.",
    408: "The body did not arrive in time.",
    409: "It does not fit the present state: a worker owns the workflow, or the state does not allow it.",
    413: "The body is too large.",
    422: "The request is invalid.",
    429: "A limit is used up.",
    500: "A bug in adw.",
    502: "The forge answered with an error.",
    503: "A service that is needed does not answer, such as the database.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _MEANINGS.items()
}


def _home_of(request: Request) -> Home:
    return cast("Home", request.app.state.home)


def _server_of(request: Request) -> ServerState:
    return cast("ServerState", request.app.state.server)


HomeOf = Annotated[Home, Depends(_home_of)]
ServerOf = Annotated[ServerState, Depends(_server_of)]
AdwId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", description="id of a workflow")]


#: The id of a workflow in a filter; "": all workflows.
OptionalAdwId = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")]


class NoExtras(BaseModel):
    """A model that refuses unknown fields, so that a misspelt filter does not show everything."""

    model_config = ConfigDict(extra="forbid")


class PageOf(NoExtras):
    """Which page."""

    limit: int = Field(default=50, ge=1, le=MOST_ROWS, description="rows of the page")
    cursor: str = Field(default="", max_length=400, description="next_cursor of the page before")

    def number(self, what: str, *, least: int = 0, most: int = 2**53) -> int | None:
        """Return the number of *what* after which the page starts, or None for the first page; raise UsageError."""
        if not self.cursor:
            return None
        is_number = self.cursor.isascii() and self.cursor.isdigit() and len(self.cursor) <= 19
        if not is_number or not least <= int(self.cursor) <= most:
            raise UsageError(f"the cursor names no {what}: use the next_cursor of the page before, unchanged")

        return int(self.cursor)

    def cut(self, rows: Sequence[_Value]) -> tuple[Sequence[_Value], _Value | None]:
        """Return the rows of the page and, if there are more, its last row; *rows* has one row more than a page."""
        shown = rows[: self.limit]

        return shown, shown[-1] if len(rows) > self.limit else None


def asker(by: str) -> str:
    """Return the requester for the history; only the token gives permission, the name is just a claim."""
    said = " ".join(by.split())

    return f"{said} (API)" if said else "the API"
