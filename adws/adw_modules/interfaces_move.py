"""
What moving a home to another database asks of the two: who is at work, how much there is, and the copy itself.

Apart from `interfaces` because only `adw db move-to` needs it, and every view would load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from adws.adw_modules.owner_record import OwnerRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Somebody who has something in the old database, by a lease, a claim or a heartbeat that is not over."""

    what: str  #: workflow a1b2c3d4 | run 7 | schedule entry gc | worker
    owner: OwnerRecord | None  #: None: its record cannot be read


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedDocument:
    """A workflow's document on its way into the database."""

    revision: int
    body: str  #: JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSum:
    """How many rows a table has, and a number made of all of them, whatever their order."""

    rows: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What came of a move."""

    source: str  #: where it was, without a password
    target: str
    tables: Mapping[str, TableSum] = field(default_factory=dict)
    announced: int = 0  #: waiting runs that workers are told of there
    was_done: bool = False  #: it had moved there already
    gone_on: int = 0  #: workflows that have gone on there since


class DatabaseMove(Protocol):
    """The old database and the new one."""

    def revisions(self) -> Mapping[str, tuple[str, int]]:
        """Return home and revision of every workflow that the old one knows."""

    def moved_to(self) -> str:
        """Return where the old one has moved to, "" when it is still in use."""

    def counts(self) -> Mapping[str, int]:
        """Return how many rows of each table there are to copy; raise DatabaseError when the new one is not free."""

    def carry(
        self, *, refuse: Callable[[tuple[Holder, ...]], None], document: Callable[[str], MovedDocument | None]
    ) -> Move:
        """
        Copy everything, read it back, and close the old database, which nobody writes meanwhile.

        *refuse* raises when one of the holders lives. *document* gives the document of a workflow, None: its row has
        it. Killed anywhere, it may be called again.
        """

    def verify(self) -> Move:
        """Hold a new database that is in use against the old one; raise DatabaseError when something is missing."""
