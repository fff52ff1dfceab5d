"""
The wiring of checkpoints in a database that belongs to no home: a library user names it.

Apart from `app` because nothing of a home is needed for it.
"""

from __future__ import annotations

from adws.adw_modules.ambient import OpenedCheckpoints
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import opening
from adws.adw_modules.db.checkpoints import DatabaseCheckpoints


def open_checkpoints(place: str) -> OpenedCheckpoints:
    """Return the checkpoints in the database at *place*, a path or a URL, which is made when it is not there."""
    clock = SystemClock()
    opened = opening.open_database(place if "://" in place else f"sqlite:///{place}", clock=clock)

    return OpenedCheckpoints(store=DatabaseCheckpoints(opened, clock=clock), clock=clock, close=opened.close)
