"""
The wiring of what brings runs to workers: looks at SQLite, or Procrastinate on PostgreSQL.

Apart from `app` because only workers need it, and because Procrastinate is imported only by them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from adws.adw_modules.coordination.dispatch import WatchDispatcher
from adws.adw_modules.db.queue_watch import SqliteWatch
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from adws import config
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.interfaces_coordination import Dispatcher


def open_dispatcher(
    database: Database, settings: config.Settings, *, clock: Clock, tick: Callable[[], object] | None = None
) -> Dispatcher:
    """
    Return the dispatcher of *database*.

    On PostgreSQL *tick* is called each minute, by one of all workers: it does what is due on the schedule. On one
    machine that is left to `adw cron`.
    """
    if isinstance(database, SqliteDatabase):
        return WatchDispatcher(partial(SqliteWatch, database), clock=clock)
    try:
        # Late: it is an extra, and those who use SQLite do not have it.
        module = importlib.import_module("adws.adw_modules.db.procrastinate_dispatch")
    except ImportError as exc:
        raise DatabaseUnavailable(
            f"workers on PostgreSQL need Procrastinate, which is missing ({exc}): pip install 'adw[postgres]'"
        ) from exc
    times = module.ProcrastinateTimes(stalled=settings.lease_ttl_seconds)
    dispatcher: Dispatcher = module.ProcrastinateDispatcher(database, clock=clock, times=times, tick=tick)

    return dispatcher
