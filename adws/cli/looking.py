"""
What a view may open.

Looking makes no database: in a home where nobody worked yet there is nothing to see, and where one was lost a new one
would hide that (`App.has_database`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.errors import AdwError, DatabaseError, DatabaseMoved, StateNotFound
from adws.adw_modules.interfaces import PeekedState
from adws.adw_modules.json_value import JsonObject

if TYPE_CHECKING:
    from adws.app import App

_STOPPED = frozenset({"completed", "failed", "paused", "abandoned", "rolled_back"})


def peek(app: App, adw_id: str) -> PeekedState:
    """Return the document of a workflow; raise StateNotFound when there is none, DatabaseMoved when it went on."""
    if app.settings.store == "database":
        if not app.has_database():
            raise StateNotFound(adw_id)
    else:
        refuse_moved(app)

    return app.store.peek(adw_id)


def refuse_moved(app: App) -> None:
    """Raise DatabaseMoved when the documents went to another database: the files that are still here say what was."""
    try:
        if app.has_database():
            _ = app.database
    except DatabaseMoved:
        raise
    except DatabaseError:
        return  # a document in files is shown without its database, too


def has_stopped(app: App, adw_id: str) -> bool:
    """Say whether nobody will work on the workflow before a person does something."""
    return peek(app, adw_id).data.get("current_state") in _STOPPED


def waiting_phase(data: JsonObject) -> str:
    """Return the phase that waits for a person, "" when none does."""
    phases = data.get("phases")
    if data.get("current_state") != "paused" or not isinstance(phases, list):
        return ""
    names = (phase.get("name") for phase in phases if isinstance(phase, dict) and phase.get("status") == "waiting")

    return str(next(names, ""))


def notes(peeked: PeekedState) -> tuple[str, ...]:
    """Return what was noticed while a document was read, in words."""
    return tuple(f"{notice.path}: {notice.reason}" for notice in peeked.notices)


def notes_before_a_write(app: App, adw_id: str) -> tuple[str, ...]:
    """Return the same of a document that is about to be written; what cannot be read is left to the write to refuse."""
    try:
        return notes(peek(app, adw_id))
    except AdwError:
        return ()
