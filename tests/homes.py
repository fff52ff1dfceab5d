"""
Homes for tests of single parts: real stores in a temporary directory, with processes and a forge that a test turns.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adws import testing
from adws.adw_modules.resources.ports import PortRange, is_free
from adws.adw_modules.sandbox.sandbox import OFF, Choice
from adws.adw_modules.store.database import DatabaseStateStore
from adws.app import Home
from adws.config.settings import FRONTEND_OFFSET
from adws.testing import FakeProcesses, MemoryForge

#: For a home that is made of single parts: commands run without a box.
NO_SANDBOX = SimpleNamespace(
    choose=lambda _own="": Choice(backend=OFF), boxed=lambda command, *_args, **_options: nullcontext(command)
)
#: What tests opened and did not close; a fixture in tests/conftest.py closes them after each test.
_OPEN: list[Home] = []
#: Blocks in which imagined processes own workflows and never come back. Kept here, because a block that is collected is
#: left in good order; they are left when the test is over, before its homes are closed.
ABANDONED: list[AbstractContextManager[Any]] = []


def lab_home(path: Path | None = None, *, clock: Any = None, **settings: Any) -> Home:
    """
    Return a home whose owners live until the test kills them, and whose forge is in memory.

    Taking a workflow from a dead owner ends no processes: those that tests record are invented.
    """
    home = testing.home(path, clock=clock, **settings)
    home.processes = FakeProcesses(home.clock.token)
    home.forge = MemoryForge(settings.get("repository") or "acme/widget", clock=home.clock)
    home.end_former_processes = lambda _takeover: None
    _OPEN.append(home)

    return home


def use_store(home: Home, kind: type[DatabaseStateStore], **options: Any) -> Any:
    """Let *home* keep its documents in a store of another kind, which the test makes fail, and return it."""
    home.store = kind(home.database, clock=home.clock, **options)

    return home.store


def free_range(count: int) -> PortRange:
    """Return a range in which nothing listens now; other tests look for theirs at the same time, so start anywhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = 10_000 + probe.getsockname()[1] % 15_000
    while True:
        result = PortRange(backend_start=first, frontend_start=first + FRONTEND_OFFSET, count=count)
        if all(is_free(port + more) for port in range(first, first + count) for more in (0, FRONTEND_OFFSET)):
            return result
        first += count


def close_all() -> None:
    """Leave what was abandoned, and close every home that is open still."""
    while ABANDONED:
        with suppress(Exception):
            ABANDONED.pop().__exit__(None, None, None)
    while _OPEN:
        _OPEN.pop().close()
