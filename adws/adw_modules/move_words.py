"""What is said of a database that has moved; apart from what moves it, because everybody who opens one may say it."""

from __future__ import annotations

from adws.adw_modules.errors import DatabaseMoved


def moved(name: str, target: str) -> DatabaseMoved:
    """Return the error that says where the database *name* went."""
    return DatabaseMoved(
        f"the database {name} has moved to {target}: set database.url (ADW_DATABASE_URL) to that one and state.store "
        "(ADW_STORE) to database"
    )
