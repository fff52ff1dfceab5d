"""
What a home (`app.App`) is to the rooms that are wired for it: each names no more of it than it uses.

These are the parts that most of them use; what only one of them uses stands there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from adws import config
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces import Catalogue, Clock, StateStore
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.process import SystemProcesses
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.trigger import Deliveries


class Home(Protocol):
    """What every room uses."""

    settings: config.Settings
    clock: Clock

    @property
    def processes(self) -> SystemProcesses: ...
    @property
    def redactor(self) -> Redactor: ...


class HomeBooks(Home, Protocol):
    """What rooms use that look at the workflows of a home."""

    @property
    def store(self) -> StateStore: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def runs(self) -> RunQueue: ...
    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def forge(self) -> Forge: ...
