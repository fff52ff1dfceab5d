"""
Moving a home to another database: nobody may be at work, every document goes with it, and the old files stay.

A document in files is brought up in its row first, so that its events are there; what cannot be read or is not known is
named, and nothing is moved. The file locks of all workflows are held while the copy is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from adws.adw_modules.errors import AdwError, OwnershipError, StateInvalid
from adws.adw_modules.interfaces import LocalLock, Processes, StateStore
from adws.adw_modules.interfaces_move import DatabaseMove, Holder, Move, MovedDocument
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.move_words import moved
from adws.adw_modules.owner_record import Verdict

#: Names in one sentence.
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveParts:
    """What a home is moved with."""

    databases: DatabaseMove
    target: str  #: name of the new database, without a password
    source: str
    store_kind: str  #: files | database
    store: Callable[[], StateStore]  #: built late: a database that has moved gives none
    bring_up: Callable[[str], None]  #: brings the row of a document in files up
    local_lock: LocalLock
    processes: Processes


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveReport:
    """What was moved, or would be."""

    move: Move
    counts: dict[str, int] = field(default_factory=dict)  #: rows of each table
    is_dry_run: bool = False

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "source": self.move.source,
            "target": self.move.target,
            "tables": dict(self.counts),
            "digests": {name: total.digest for name, total in self.move.tables.items()},
            "announced": self.move.announced,
            "was_done": self.move.was_done,
            "gone_on": self.move.gone_on,
            "dry_run": self.is_dry_run,
        }


def move(parts: MoveParts, *, dry_run: bool = False) -> MoveReport:
    """Move the home, or say how much there is to move; raise OwnershipError while somebody works."""
    moved_to = parts.databases.moved_to()
    if moved_to and moved_to != parts.target:
        raise moved(parts.source, moved_to)
    if moved_to:
        return _report(parts.databases.verify())
    counts = dict(parts.databases.counts())
    if dry_run:
        return MoveReport(move=Move(source=parts.source, target=parts.target), counts=counts, is_dry_run=True)
    if parts.store_kind == "database":
        done = parts.databases.carry(refuse=lambda holders: _refuse(parts, holders), document=lambda _adw_id: None)
        return _report(done)
    ids = sorted(parts.store().ids())
    with _held(parts.local_lock, ids):
        _bring_up(parts, ids)
        done = parts.databases.carry(
            refuse=lambda holders: _refuse(parts, holders), document=lambda adw_id: _document(parts.store(), adw_id)
        )

    return _report(done)


def _report(done: Move) -> MoveReport:
    return MoveReport(move=done, counts={name: total.rows for name, total in done.tables.items()})


@contextmanager
def _held(local_lock: LocalLock, ids: Iterable[str]) -> Iterator[None]:
    """Hold the file locks of all *ids*, so that nobody begins to work on what is being moved."""
    with ExitStack() as held:
        for adw_id in ids:
            if not local_lock.try_hold(adw_id):
                raise OwnershipError(f"workflow {adw_id} is being worked on by another process: stop it first")
            held.callback(local_lock.let_go, adw_id)
        yield


def _bring_up(parts: MoveParts, ids: Iterable[str]) -> None:
    """See to it that the database has every document as it is on the disk, with its events."""
    known = parts.databases.revisions()
    for adw_id in ids:
        try:
            revision = parts.store().load(adw_id).document.revision
            if adw_id in known and known[adw_id][1] <= revision:
                parts.bring_up(adw_id)
        except AdwError as exc:
            raise StateInvalid(f"the document of {adw_id} cannot be moved: {exc}") from exc
    known = parts.databases.revisions()
    strange = [
        adw_id for adw_id in ids if parts.store().load(adw_id).document.revision != known.get(adw_id, ("", -1))[1]
    ]
    if strange:
        raise StateInvalid(
            f"the database does not have these documents as they are on the disk: {_named(strange)}; adw db rebuild "
            "makes it again from them"
        )


def _document(store: StateStore, adw_id: str) -> MovedDocument | None:
    """Return a document as it lives in a database, None when only its copy is left, or it was never written."""
    if not store.exists(adw_id):
        return None
    data = {**store.peek(adw_id).data, "outbox": []}  # its events are in the database
    revision = data.get("revision")

    return MovedDocument(
        revision=revision if isinstance(revision, int) else 0, body=json.dumps(data, ensure_ascii=False)
    )


def _refuse(parts: MoveParts, holders: Iterable[Holder]) -> None:
    """Raise OwnershipError naming those of *holders* that are not proven dead."""
    living = [holder for holder in holders if parts.processes.verdict(holder.owner) is not Verdict.DEAD]
    if not living:
        return
    named = [
        f"{holder.what} ({holder.owner.describe() if holder.owner else 'an owner whose record cannot be read'})"
        for holder in living
    ]

    raise OwnershipError(f"somebody is at work: {_named(named)}; stop them first, and move again")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""

    return ", ".join(names[:MOST_NAMED]) + more
