"""
What making a database again asks of it: reading what is left, setting it aside, filling it anew.

Apart from `interfaces` because only backup, restore and rebuild need it, and every view would load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from adws.adw_modules.interfaces import IssueLock, ProjectedWrite, Request
from adws.adw_modules.owner_record import OwnerRecord

if TYPE_CHECKING:
    from adws.adw_modules.events import Event
    from adws.adw_modules.interfaces_durability import BreakerRow, CheckpointRow
    from adws.adw_modules.runs import NewRun, Run
    from adws.adw_modules.trigger import KeptDelivery


#: A row of a table that only the database has, by column.
KeptRow: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWorkflow:
    """What a database says about a workflow, whatever its document says."""

    adw_id: str
    home: str  #: files | database
    revision: int  #: 0: registered, its document was never written
    fence: int
    owner: OwnerRecord | None = None
    seconds_left: float = 0.0  #: of its lease; negative when over
    events: int = 0  #: how many the database has


@dataclass(frozen=True, kw_only=True, slots=True)
class Salvage:
    """What could be read of a database."""

    is_missing: bool = False
    problems: tuple[str, ...] = ()  #: why it cannot go on being used; then everything below is what was left of it
    workflows: tuple[KnownWorkflow, ...] = ()
    locks: tuple[IssueLock, ...] = ()
    requests: tuple[Request, ...] = ()  #: not handled yet
    runs: tuple[Run, ...] = ()  #: not finished yet, in their order
    events: tuple[Event, ...] = ()  #: read only when there are problems: else they stay where they are
    checkpoints: tuple[CheckpointRow, ...] = ()  #: in their order; read like events
    breakers: tuple[BreakerRow, ...] = ()  #: read like events
    deliveries: tuple[KeptDelivery, ...] = ()  #: in their order; read like events
    kept: Mapping[str, tuple[KeptRow, ...]] = field(default_factory=dict)  #: by table; read like events


@dataclass(frozen=True, kw_only=True, slots=True)
class NewContents:
    """What a database is to hold about workflows; events, requests, runs, checkpoints and the like stay."""

    home: str = "files"
    rows: tuple[ProjectedWrite, ...] = ()  #: each replaces the row of its workflow; the owner stays, its lease is over
    locks: tuple[IssueLock, ...] | None = None  #: all there are to be; None: those there are stay
    events: tuple[Event, ...] = ()
    requests: tuple[Request, ...] = ()
    runs: tuple[NewRun, ...] = ()  #: each for a workflow that has no unfinished run: else that one stays
    checkpoints: tuple[CheckpointRow, ...] = ()  #: in their order; those that are there stay
    breakers: tuple[BreakerRow, ...] = ()  #: those that are there stay
    deliveries: tuple[KeptDelivery, ...] = ()  #: in their order; those that are there stay
    kept: Mapping[str, tuple[KeptRow, ...]] = field(default_factory=dict)  #: by table; those that are there stay
    forget: tuple[str, ...] = ()  #: workflows that were registered and never written


class Reconstruction(Protocol):
    """A database that is read for what it has, perhaps set aside, and filled again."""

    def salvage(self) -> Salvage:
        """Return what the database says, as far as it can be read; change nothing but an old schema."""

    def set_aside(self) -> str | None:
        """Move the database's file away and return where to, None when it has no file of its own."""

    def set_aside_left_overs(self) -> str | None:
        """Move what a lost database left away and return where to; None when nothing is left, or it is there."""

    def may_install(self, path: str) -> bool:
        """Say whether the file *path* can become the database; raise DatabaseError when it is damaged or too new."""

    def install(self, path: str) -> None:
        """Use the file *path* as the database; the one there is is kept aside."""

    def put(self, contents: NewContents) -> int:
        """Write *contents* in one transaction, making the database when it is missing; return how many events came."""

    def all_events(self) -> Iterator[Event]:
        """Yield every event, in the order they were stored."""

    def copy_to(self, path: str) -> bool:
        """Write a whole copy of the database to the new file *path*; False for one that only its server copies."""
