"""
The home used when a library caller passes none.

Library modules do not know how a home is built: `adws/__init__.py` registers a factory here. Tests and embedders set
their own home with `using()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.errors import UsageError

if TYPE_CHECKING:
    from adws.adw_modules.checkpoint import CheckpointStore
    from adws.adw_modules.interfaces import Clock
    from adws.app import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedCheckpoints:
    """The checkpoints of a database opened for them."""

    store: CheckpointStore
    clock: Clock
    close: Callable[[], None]


_factory: Callable[[], Home] | None = None
_opener: Callable[[str], OpenedCheckpoints] | None = None
_current: ContextVar[Home | None] = ContextVar("adw_home", default=None)


def provide(factory: Callable[[], Home]) -> None:
    """Register how to open the default home; nothing is built before its first use."""
    global _factory  # noqa: PLW0603 - the only place where the composition root registers a factory
    _factory = factory


def provide_checkpoints(opener: Callable[[str], OpenedCheckpoints]) -> None:
    """Register how to open the checkpoints of a database, given by path or URL."""
    global _opener  # noqa: PLW0603 - the only place where the composition root registers a factory
    _opener = opener


def open_checkpoints(place: str) -> OpenedCheckpoints:
    """Return the checkpoints of the database at *place*, a path or URL."""
    if _opener is None:
        raise UsageError("databases cannot be opened by name here: import adws, or pass the store explicitly")

    return _opener(place)


def get() -> Home:
    """Return the current home, opened by the factory on first use."""
    current = _current.get()
    if current is not None:
        return current
    if _factory is None:
        raise UsageError("no adw home is open: import adws, or pass the store explicitly")

    built = _factory()
    _current.set(built)
    return built


@contextmanager
def using(home: Home) -> Iterator[Home]:
    """Use *home* inside the block, and restore the previous home afterwards."""
    token = _current.set(home)
    try:
        yield home
    finally:
        _current.reset(token)
