"""
The copy of documents in the database, opened when a write or a lost file first needs it.

Reading a good file opens no database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import ProjectedWrite, Projection


class LateProjection:
    """A projection that is opened on first use."""

    def __init__(self, opened: Callable[[], Projection], *, may_be: Callable[[], bool]) -> None:
        """*may_be* says, without opening anything, whether there can be a copy."""
        self._opened = opened
        self._may_be = may_be

    def submit(self, write: ProjectedWrite) -> None:
        """Hand a write on."""
        self._opened().submit(write)

    def flush(self) -> None:
        """Bring the copy up, where there is one."""
        if self._may_be():
            self._opened().flush()

    def confirmed_revision(self, adw_id: str) -> int:
        """Return the last revision that the copy has."""
        return self._opened().confirmed_revision(adw_id)

    def copy_of(self, adw_id: str) -> bytes | None:
        """Return the copy of a document, None where there is none."""
        return self._opened().copy_of(adw_id) if self._may_be() else None
