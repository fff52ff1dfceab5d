"""
What a view may open.

Looking makes no database: in a home where nobody worked yet there is nothing to see, and where one was lost a new one
would hide that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.errors import DatabaseError, StateNotFound
from adws.adw_modules.interfaces import PeekedState

if TYPE_CHECKING:
    from pathlib import Path

    from adws.app import App

_LOST_COPY = "the database {} is missing or empty: adw db rebuild makes it again from the documents"
_LOST_DOCUMENTS = "the database {} is missing or empty, and the documents with it: bring a backup back with adw restore"


def has_database(app: App) -> bool:
    """Say whether there is a database to look into; raise DatabaseError when there is none but should be."""
    file = app.settings.database_file
    if file is None or _is_made(file):
        return True
    if app.settings.store == "files" and any(app.store.ids()):
        raise DatabaseError(_LOST_COPY.format(file))
    if app.settings.store == "database" and file.with_name(f"{file.name}.write-lock").exists():
        raise DatabaseError(_LOST_DOCUMENTS.format(file))  # only writing leaves that lock file, and it stays for ever

    return False


def peek(app: App, adw_id: str) -> PeekedState:
    """Return the document of a workflow; raise StateNotFound when there is none."""
    if app.settings.store == "database" and not has_database(app):
        raise StateNotFound(adw_id)

    return app.store.peek(adw_id)


def _is_made(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False
