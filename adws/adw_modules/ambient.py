"""
The parts used when a caller names none: `ADWState.load("1a2b3c4d")` must work without wiring.

The house does not know how parts are built. Whoever wires them (`adws/__init__.py`) leaves a factory here; tests and
embedders put their own parts in place with `using()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.errors import UsageError

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import Clock, Parts
    from adws.adw_modules.interfaces_durability import CheckpointStore


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedCheckpoints:
    """The checkpoints in a database that was opened for them."""

    store: CheckpointStore
    clock: Clock
    close: Callable[[], None]


_factory: Callable[[], Parts] | None = None
_opener: Callable[[str], OpenedCheckpoints] | None = None
_current: ContextVar[Parts | None] = ContextVar("adw_parts", default=None)


def provide(factory: Callable[[], Parts]) -> None:
    """Remember how default parts are built; nothing is built before the first use."""
    global _factory  # noqa: PLW0603 - the one place where wiring is left for the house
    _factory = factory


def provide_checkpoints(opener: Callable[[str], OpenedCheckpoints]) -> None:
    """Remember how the checkpoints in a database are opened by its path or URL."""
    global _opener  # noqa: PLW0603 - the one place where wiring is left for the house
    _opener = opener


def open_checkpoints(place: str) -> OpenedCheckpoints:
    """Return the checkpoints in the database at *place*, a path or a URL."""
    if _opener is None:
        raise UsageError("databases cannot be opened by name here: import adws, or pass the store explicitly")

    return _opener(place)


def parts() -> Parts:
    """Return the parts in force here, built on first use from the factory."""
    current = _current.get()
    if current is not None:
        return current
    if _factory is None:
        raise UsageError("no adw home is open: import adws, or pass the store explicitly")

    built = _factory()
    _current.set(built)
    return built


@contextmanager
def using(parts_in_force: Parts) -> Iterator[Parts]:
    """Use *parts_in_force* inside the block, and what was there before after it."""
    token = _current.set(parts_in_force)
    try:
        yield parts_in_force
    finally:
        _current.reset(token)
