"""adw: carries a GitHub issue to a pull request through durable, resumable, reversible phases."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from adws.adw_modules import default_home

if TYPE_CHECKING:
    from adws.adw_modules.default_home import OpenedCheckpoints
    from adws.app import Home

__version__ = "0.2.0"


def _default_home() -> Home:
    """Open the home we are in, on first use: importing adws must stay cheap."""
    home: Home = importlib.import_module("adws.app").open_default()
    return home


def _open_checkpoints(place: str) -> OpenedCheckpoints:
    """Open the checkpoints in a database that a library user names."""
    opened: OpenedCheckpoints = importlib.import_module("adws.app").open_checkpoints(place)
    return opened


default_home.provide(_default_home)
default_home.provide_checkpoints(_open_checkpoints)
