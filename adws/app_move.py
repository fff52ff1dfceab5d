"""
The wiring of moving a home to another database.

Apart from `app` because only one command needs it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from adws.adw_modules.coordination import move as moving
from adws.adw_modules.coordination.move import MoveParts, MoveReport
from adws.adw_modules.db.move import PostgresMove
from adws.adw_modules.errors import UsageError

if TYPE_CHECKING:
    from adws.app import App


def move(app: App, url: str, *, dry_run: bool = False) -> MoveReport:
    """Move the home of *app* to the database *url*, or say how much there is to move."""
    settings = app.settings
    if settings.database_file is not None and not settings.database_file.exists():
        app.refuse_lost_database()
        raise UsageError(
            f"there is nothing to move: {settings.database_file} does not exist; set database.url to the new database"
        )
    databases = PostgresMove(
        settings.database_url,
        url,
        clock=app.clock,
        boot_id=app.processes.boot_id,
        silent_seconds=2 * settings.lease_ttl_seconds,
    )
    with closing(databases):
        return moving.move(
            MoveParts(
                databases=databases,
                target=databases.target_name,
                source=databases.source_name,
                store_kind=settings.store,
                store=lambda: app.store,
                bring_up=app.bring_up,
                local_lock=app.local_lock,
                processes=app.processes,
            ),
            dry_run=dry_run,
        )
