"""
Documents in files: `<root>/<adw_id>/adw_state.json`, one durable replace for each revision.

No lock is taken on the way. A writer first makes the temp file of its fence, alone (O_EXCL), then compares, then
renames; a takeover puts a directory in the temp's place, so that the kernel refuses the former owner wherever it was
stopped. Reading writes nothing. A document that cannot be used is kept aside by the next write, never overwritten.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import durable_file, fenced_write, state_reading, state_repair, state_revision, state_text
from adws.adw_modules.errors import (
    AdwError,
    DurabilityUnknown,
    Fenced,
    StateConflict,
    StateExists,
    StateNotFound,
    StateReadFailed,
    StateWriteFailed,
)
from adws.adw_modules.events import Event
from adws.adw_modules.fenced_write import FencedWrite, SpareInUse
from adws.adw_modules.ids import FOREIGN, check_adw_id
from adws.adw_modules.interfaces import Clock, LoadedState, PeekedState, Projection
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.state_reading import FILE_NAME, PREVIOUS_NAME, Kind, Resolved, Signature
from adws.adw_modules.state_repair import Repair
from adws.adw_modules.state_revision import Revision, RevisionBuilder

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

logger = logging.getLogger("adw.state")

#: Events a document keeps when there is no projection that would collect them.
OUTBOX_WITHOUT_PROJECTION = 200
#: Waiting events from which on a write first brings them into the database: owners that are killed again and again
#: before the projection comes round would else leave more and more.
OUTBOX_LIMIT = 100
#: Workflows whose file a store remembers, so that a save need not read it again.
MAX_REMEMBERED = 4096


#: Stands in for a file that is missing; its mode is that of a new one.
_NO_FILE: Signature = (0, 0, 0, 0, durable_file.NEW_FILE_MODE, b"")


class _Known(NamedTuple):
    """A document as it was when we last wrote or read it."""

    signature: Signature
    revision: int
    fence: int
    own_writes: int = 0  #: how many revisions in a row, up to this one, this store wrote and synced itself


class _Base(NamedTuple):
    """What the next revision is built on."""

    mode: int
    repair: Repair | None = None  #: set when the file in place is not a good document
    own_writes: int = 0  #: as in _Known


class FileStateStore:
    """
    A `StateStore` on a local disk.

    *parse* makes a document of plain JSON and *dump* the indented JSON text of a document (`document.parse`,
    `document.to_bytes`); *scrub* takes secrets out of that text; *projection* is told of every write and asked for its
    copy when a file is lost.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        parse: Callable[[Mapping[str, JsonValue]], WorkflowDocument],
        dump: Callable[[WorkflowDocument], bytes] | None = None,
        projection: Projection | None = None,
        scrub: Callable[[bytes], bytes] | None = None,
        max_bytes: int = state_text.MAX_BYTES,
    ) -> None:
        self._root = os.fspath(root)
        self._clock = clock
        self._parse = parse
        self._projection = projection
        self._max_bytes = max_bytes
        self._builder = RevisionBuilder(
            clock=clock,
            parse=parse,
            dump=dump,
            scrub=scrub,
            max_bytes=max_bytes,
            max_outbox=OUTBOX_WITHOUT_PROJECTION if projection is None else None,
        )
        self._known: dict[str, _Known] = {}
        self._handed_over: dict[str, int] = {}  #: the last revision the projection got from here
        self._handed_over_by = os.getpid()
        self._has_leases = True  #: until the system refuses one

    # --- reading -----------------------------------------------------------------------------------------------

    def load(self, adw_id: str) -> LoadedState:
        """Return the last valid revision and what was noticed; raise StateNotFound or StateCorrupt."""
        resolved = self._resolve(check_adw_id(adw_id))
        document = self._parse(resolved.data)
        self._remember_good(adw_id, resolved)

        return LoadedState(document=document, notices=resolved.notices)

    def peek(self, adw_id: str) -> PeekedState:
        """Return the same as plain JSON of the current version, for viewers."""
        resolved = self._resolve(check_adw_id(adw_id))

        return PeekedState(data=resolved.data, notices=resolved.notices)

    def exists(self, adw_id: str) -> bool:
        """Say whether there is a document, good or bad."""
        folder = self._folder(check_adw_id(adw_id))
        return os.path.lexists(f"{folder}/{FILE_NAME}") or os.path.lexists(f"{folder}/{PREVIOUS_NAME}")

    def ids(self) -> Iterator[str]:
        """Yield the id of every document, in no order; other names in the root are not looked at."""
        try:
            with os.scandir(self._root) as entries:
                names = [e.name for e in entries if FOREIGN.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StateReadFailed(self._root, exc) from exc
        yield from (name for name in names if self.exists(name))

    def _resolve(self, adw_id: str) -> Resolved:
        folder = self._folder(adw_id)
        try:
            directory = state_reading.open_folder(folder)
        except OSError as exc:
            raise StateReadFailed(folder, exc) from exc
        try:
            return self._resolve_in(directory, folder, adw_id)
        except StateNotFound:
            raise StateNotFound(adw_id) from None
        finally:
            if directory is not None:
                durable_file.close_quietly(directory)

    def _resolve_in(self, directory: int | None, folder: str, adw_id: str) -> Resolved:
        return state_reading.resolve(directory, folder, adw_id, max_bytes=self._max_bytes, copy_of=self._copy_of)

    def _copy_of(self, adw_id: str) -> bytes | None:
        if self._projection is None:
            return None
        self._projection.flush()  # what this process handed over a moment ago is the newest there is
        return self._projection.copy_of(adw_id)

    def _remember_good(self, adw_id: str, resolved: Resolved) -> None:
        current = resolved.current
        if current.kind is not Kind.GOOD or current.signature is None:
            return
        known = self._known.get(adw_id)
        if known is None or known.signature != current.signature:
            self._remember(adw_id, _Known(current.signature, current.revision, current.fence))

    def _remember(self, adw_id: str, known: _Known) -> None:
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
            self._handed_over.clear()
        self._known[adw_id] = known

    # --- writing -----------------------------------------------------------------------------------------------

    def create(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* as revision 1; raise StateExists when its id is taken, also by a document that is bad."""
        adw_id = check_adw_id(document.adw_id)
        folder = self._folder(adw_id)
        after = self._builder.build(document, revision=1, fence=document.fence, outbox=[], events=events)
        directory = _make_folder(folder)
        try:
            with FencedWrite(directory, folder, adw_id, document.fence) as write:
                self._refuse_if_taken(adw_id)
                write.fill(state_text.seal(after.body), mode=durable_file.NEW_FILE_MODE)
                state_repair.publish_first(write, adw_id)
                signature = write.settle()
                # The directory may be new, or made by who holds the lock in it: its own name must be durable too.
                durable_file.sync_directory_at(self._root)
        except durable_file.TempBusy:
            raise StateExists(adw_id) from None
        self._hand_over(after, signature, own_writes=1)

        return after.document

    def save(self, document: WorkflowDocument, *, fence: int, events: Sequence[Event] = ()) -> WorkflowDocument:
        """
        Store *document* with *events* as the next revision, in one durable step.

        Raises StateConflict, Fenced, StateWriteFailed (the old revision is intact) or DurabilityUnknown.
        """
        adw_id = check_adw_id(document.adw_id)
        try:
            return self._save(adw_id, document, fence, events, may_borrow=self._may_borrow(adw_id))
        except (SpareInUse, durable_file.NoLeases) as exc:
            self._has_leases = self._has_leases and isinstance(exc, SpareInUse)
            return self._save(adw_id, document, fence, events, may_borrow=False)

    def _save(
        self, adw_id: str, document: WorkflowDocument, fence: int, events: Sequence[Event], *, may_borrow: bool
    ) -> WorkflowDocument:
        folder = self._folder(adw_id)
        directory = self._open_for_save(adw_id, folder)
        try:
            with FencedWrite(directory, folder, adw_id, fence, may_borrow=may_borrow) as write:
                # Compared only now: from here to the rename nobody else with this fence can write.
                base = self._compare(directory, folder, document, fence)
                if base.repair is not None or base.own_writes < 2:
                    write.need_spare()
                if len(document.outbox) > OUTBOX_LIMIT:
                    self._relieve(directory, folder, adw_id)
                after = self._build_on(base, document, fence, events)
                write.fill(state_text.seal(after.body), mode=base.mode)
                state_repair.publish(write, base.repair, adw_id=adw_id, expected=document.revision)
                signature = write.settle()
        except durable_file.TempBusy:
            # A writer of the same fence is about to make the next revision.
            raise StateConflict(adw_id, document.revision, document.revision + 1) from None
        except DurabilityUnknown:
            self._known.pop(adw_id, None)  # what is on the disk must be read to be known
            raise
        self._hand_over(after, signature, own_writes=base.own_writes + 1)

        return after.document

    def fence_out(self, adw_id: str, *, fence: int) -> None:
        """
        Make every write under *fence* fail from now on, also one that is half done.

        The fences between the document's own and *fence* are shut too: their owners may have died during a takeover,
        before they could shut out an older one that was only stopped.
        """
        folder = self._folder(check_adw_id(adw_id))
        directory = _make_folder(folder)
        try:
            for shut in range(self._lowest_open_fence(directory, folder, adw_id, fence), fence + 1):
                fenced_write.block(directory, shut)
        except OSError as exc:
            raise StateWriteFailed(folder, exc) from exc
        finally:
            durable_file.close_quietly(directory)
        self._known.pop(adw_id, None)

    def sweep(self, adw_id: str) -> None:
        """
        Remove the temps and fences that former owners left.

        Only for an owner that holds the machine's lock of the workflow: then no former owner lives.
        """
        folder = self._folder(check_adw_id(adw_id))
        directory = _open_to_write(folder)
        if directory is None:
            return
        try:
            fenced_write.clear(directory)
        except OSError as exc:
            raise StateWriteFailed(folder, exc) from exc
        finally:
            durable_file.close_quietly(directory)

    # --- the parts of a write ----------------------------------------------------------------------------------

    def _folder(self, adw_id: str) -> str:
        return f"{self._root}/{adw_id}"

    def _may_borrow(self, adw_id: str) -> bool:
        """
        Say whether the predecessor's file may be written over.

        Only when document and predecessor are both our own writes. Before that the document may not be durable, and the
        disk may still have the predecessor's file under its name; or a former owner may have it open.
        """
        known = self._known.get(adw_id)
        return self._has_leases and known is not None and known.own_writes >= 2

    def _refuse_if_taken(self, adw_id: str) -> None:
        if self.exists(adw_id):
            raise StateExists(adw_id)

    def _open_for_save(self, adw_id: str, folder: str) -> int:
        directory = _open_to_write(folder)
        if directory is not None:
            return directory
        if self._projection is None or self._projection.copy_of(adw_id) is None:
            raise StateNotFound(adw_id)

        return _make_folder(folder)

    def _lowest_open_fence(self, directory: int, folder: str, adw_id: str, fence: int) -> int:
        try:
            found = self._resolve_in(directory, folder, adw_id).used.fence
        except AdwError:  # also a database that is away: a takeover must not wait for it
            return 0
        return min(found, fence)

    def _compare(self, directory: int, folder: str, document: WorkflowDocument, fence: int) -> _Base:
        """Return what to build on; raise Fenced or StateConflict."""
        adw_id = document.adw_id
        known = self._known.get(adw_id)
        if known is None or known.signature != state_reading.look_at(directory):
            known, repair = self._read_again(directory, folder, adw_id)
        else:
            repair = None
        if fence < known.fence:
            raise Fenced(adw_id, fence, known.fence)
        if document.revision != known.revision:
            raise StateConflict(adw_id, document.revision, known.revision)

        return _Base(mode=known.signature[4] & 0o777, repair=repair, own_writes=known.own_writes)

    def _read_again(self, directory: int, folder: str, adw_id: str) -> tuple[_Known, Repair | None]:
        try:
            resolved = self._resolve_in(directory, folder, adw_id)
        except StateNotFound:
            raise StateNotFound(adw_id) from None
        known = _Known(resolved.current.signature or _NO_FILE, resolved.used.revision, resolved.used.fence)

        return known, state_repair.plan_repair(directory, resolved, self._clock.now())

    def _build_on(self, base: _Base, document: WorkflowDocument, fence: int, events: Sequence[Event]) -> Revision:
        confirmed = 0 if self._projection is None else self._projection.confirmed_revision(document.adw_id)
        outbox = state_revision.waiting_after(document.outbox, confirmed)
        if base.repair is not None:
            events = (*state_repair.repair_events(base.repair), *events)

        return self._builder.build(document, revision=document.revision + 1, fence=fence, outbox=outbox, events=events)

    def bring_up(self, adw_id: str) -> None:
        """Bring the database copy of a document, and the events that wait in it, up to what is on the disk."""
        if self._projection is None:
            return
        stored = self.load(adw_id).document
        now = self._builder.as_it_is(stored)
        self._projection.submit(state_revision.projected(now, state_revision.events_after(stored, 0)))
        self._projection.flush()

    def _relieve(self, directory: int, folder: str, adw_id: str) -> None:
        """Bring the events that wait in the stored document into the database now; when that fails, they wait on."""
        if self._projection is None:
            return
        try:
            stored = self._parse(self._resolve_in(directory, folder, adw_id).data)
            now = self._builder.as_it_is(stored)
            self._projection.submit(state_revision.projected(now, state_revision.events_after(stored, 0)))
            self._projection.flush()
        except AdwError:
            logger.warning("Events wait in the document", extra={"action": "outbox_waits"}, exc_info=True)

    def _hand_over(self, after: Revision, signature: Signature | None, *, own_writes: int) -> None:
        """Remember what is on the disk now and tell the projection."""
        document = after.document
        adw_id, revision = document.adw_id, document.revision
        if signature is None:
            self._known.pop(adw_id, None)
        else:
            self._remember(adw_id, _Known(signature, revision, document.fence, own_writes))
        if self._projection is None:
            return
        if self._handed_over_by != os.getpid():  # forked: what the parent handed over waits in the parent
            self._handed_over_by = os.getpid()
            self._handed_over.clear()
        events = after.events
        if self._handed_over.get(adw_id) != revision - 1:
            # An earlier process, or a write that failed half-way, left events behind: storing them twice is harmless.
            events = state_revision.events_after(document, self._handed_over.get(adw_id, 0))
        self._handed_over[adw_id] = revision
        self._projection.submit(state_revision.projected(after, events))


def _open_to_write(folder: str) -> int | None:
    try:
        return state_reading.open_folder(folder)
    except OSError as exc:
        raise StateWriteFailed(folder, exc) from exc


def _make_folder(folder: str) -> int:
    """Return a descriptor of the real directory *folder*, which is made when it is missing."""
    try:
        durable_file.make_directory(folder)
    except OSError as exc:
        raise StateWriteFailed(folder, exc) from exc
    directory = _open_to_write(folder)
    if directory is None:
        raise StateWriteFailed(folder, FileNotFoundError(errno.ENOENT, "it was removed a moment after it was made"))

    return directory
