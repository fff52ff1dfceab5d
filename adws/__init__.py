"""adw: carries a GitHub issue to a pull request through durable, resumable, reversible phases."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from adws.adw_modules import ambient

if TYPE_CHECKING:
    from adws.adw_modules.ambient import OpenedCheckpoints
    from adws.adw_modules.interfaces import Parts

__version__ = "0.1.0"


def _default_parts() -> Parts:
    """Build the parts of the home we are in, on first use: importing adws must stay cheap."""
    parts: Parts = importlib.import_module("adws.app").open_default()
    return parts


def _open_checkpoints(place: str) -> OpenedCheckpoints:
    """Open the checkpoints in a database that a library user names."""
    opened: OpenedCheckpoints = importlib.import_module("adws.app_checkpoints").open_checkpoints(place)
    return opened


ambient.provide(_default_parts)
ambient.provide_checkpoints(_open_checkpoints)
