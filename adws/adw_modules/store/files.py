"""
Documents in files: `<root>/<adw_id>/adw_state.json`, one durable replace for each revision.

No lock is taken on the way. A writer first makes the temp file of its fence, alone (O_EXCL), then compares, then
renames; a takeover puts a directory in the temp's place, so that the kernel refuses the former owner wherever it was
stopped. Reading writes nothing. A document that cannot be used is kept aside by the next write, never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import LOCK_NAME
from adws.adw_modules.errors import (
    AdwError,
    BackupError,
    DurabilityUnknown,
    Fenced,
    StateConflict,
    StateCorrupt,
    StateExists,
    StateNotFound,
    StateReadFailed,
    StateWriteFailed,
    UnsafePath,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import FOREIGN, JsonObject, JsonValue, check_adw_id
from adws.adw_modules.interfaces import Clock, LoadedState, LoadNotice, PeekedState
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, backup_name, version_of
from adws.adw_modules.store import serialization
from adws.adw_modules.store.serialization import Revision, RevisionBuilder, Seal

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.store.projection import Projection


# What stands in a workflow's directory, and which of it is the document.
#
# Reading only: nothing here writes, locks or follows a symbolic link. A file is used when its checksum is good, or when
# it is of an older version that had none; everything else is named for what it is and left to the next owner.


FILE_NAME = "adw_state.json"
PREVIOUS_NAME = "adw_state.json.prev"

#: Inode, size, mtime and ctime in nanoseconds, mode, and the file's last bytes, which are its checksum. While they are
#: the same, so is the file. The numbers alone would not do: file systems use inodes again, and their clocks are coarse.
Signature: TypeAlias = tuple[int, int, int, int, int, bytes]
#: Gives the database's copy of a document, None when it has none.
CopyOf: TypeAlias = Callable[[str], bytes | None]


class Kind(Enum):
    """What a file turned out to be."""

    GOOD = "good"  #: ours, every byte
    LEGACY = "legacy"  #: of an older version, brought up in memory
    FOREIGN = "foreign"  #: JSON, but not as adw wrote it: changed by hand, damaged, or of another workflow
    CORRUPT = "corrupt"  #: not readable as a document
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCopy:
    """A file, or the database's copy, and what it is."""

    kind: Kind
    path: str
    reason: str = ""
    data: JsonObject | None = None  #: of the current version; None unless GOOD or LEGACY
    version: str = CURRENT_VERSION  #: as it stands in the file
    signature: Signature | None = None

    @property
    def revision(self) -> int:
        """Revision of the document, 0 for one that never had any."""
        return _whole_number(self.data, "revision")

    @property
    def fence(self) -> int:
        """Fence it was written under, 0 for one that never had any."""
        return _whole_number(self.data, "fence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The document to use, and the file in its place."""

    data: JsonObject
    used: StoredCopy  #: where it came from
    current: StoredCopy  #: what stands at the document's own path
    notices: tuple[LoadNotice, ...] = ()


def signature_of(status: os.stat_result, tail: bytes) -> Signature:
    """Return what tells one file from another; *tail* is its last `serialization.SEAL_BYTES` bytes."""
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, tail)


def look_at(directory: int) -> Signature | None:
    """Return the signature of the document without reading it, None when it is missing."""
    try:
        status, tail = durable_file.look_at_end(FILE_NAME, directory=directory, size=serialization.SEAL_BYTES)
    except (FileNotFoundError, UnsafePath):
        return None  # the read that follows reports it

    return signature_of(status, tail)


def open_folder(folder: str) -> int | None:
    """Return a descriptor of the directory *folder*, None when there is none; raise UnsafePath for a link, OSError."""
    try:
        return durable_file.open_directory(folder, follow=False)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise UnsafePath(f"{folder} is not a real directory: adw never follows it, move it away") from exc
        raise


def resolve(
    directory: int | None, folder: str, adw_id: str, *, max_bytes: int, copy_of: CopyOf | None = None
) -> Resolved:
    """
    Return the last valid revision: the document, else the newer of its predecessor and what *copy_of* gives.

    Raises StateNotFound, StateCorrupt naming path and reason, UnsafePath, StateReadFailed, or a MigrationError.
    """
    current = examine(directory, folder, FILE_NAME, adw_id, max_bytes=max_bytes)
    if current.kind is Kind.GOOD and current.data is not None:
        return Resolved(data=current.data, used=current, current=current)
    if current.kind is Kind.LEGACY and current.data is not None:
        reason = f"brought from version {current.version} to {CURRENT_VERSION} in memory"
        notice = LoadNotice(kind="migrated", path=current.path, reason=reason)
        return Resolved(data=current.data, used=current, current=current, notices=(notice,))

    return _fall_back(current, _candidates(directory, folder, adw_id, max_bytes=max_bytes, copy_of=copy_of))


def _candidates(
    directory: int | None, folder: str, adw_id: str, *, max_bytes: int, copy_of: CopyOf | None
) -> tuple[StoredCopy, ...]:
    previous = examine(directory, folder, PREVIOUS_NAME, adw_id, max_bytes=max_bytes)
    copy = copy_of(adw_id) if copy_of is not None else None
    if copy is None:
        return (previous,)
    return (previous, examine_copy(copy, adw_id))


def _fall_back(current: StoredCopy, candidates: tuple[StoredCopy, ...]) -> Resolved:
    good = [found for found in candidates if found.kind is Kind.GOOD]
    if not good:
        raise _nothing_left(current, candidates)
    # The first of equals is the file, which needs no database to be checked again.
    best = max(good, key=lambda found: found.revision)
    why = "is missing" if current.kind is Kind.MISSING else "was not used"
    recovered = LoadNotice(
        kind="recovered", path=best.path, reason=f"revision {best.revision} was used, because {current.path} {why}"
    )
    if current.kind is Kind.MISSING:
        return Resolved(data=best.data or {}, used=best, current=current, notices=(recovered,))
    unused = LoadNotice(kind=current.kind.value, path=current.path, reason=current.reason)

    return Resolved(data=best.data or {}, used=best, current=current, notices=(unused, recovered))


def _nothing_left(current: StoredCopy, candidates: tuple[StoredCopy, ...]) -> StateNotFound | StateCorrupt:
    if current.kind is not Kind.MISSING:
        return StateCorrupt(current.path, current.reason, "and there is no other copy: restore it from a backup")
    bad = [item for item in candidates if item.kind is not Kind.MISSING]
    if bad:
        return StateCorrupt(bad[0].path, bad[0].reason, f"and {current.path} is missing: restore it from a backup")
    return StateNotFound(current.path)


def examine(directory: int | None, folder: str, name: str, adw_id: str, *, max_bytes: int) -> StoredCopy:
    """Return what the file *name* is; raise UnsafePath, StateReadFailed, or NewerVersion and other migration errors."""
    path = f"{folder}/{name}"
    if directory is None:
        return StoredCopy(kind=Kind.MISSING, path=path, reason="there is no such directory")
    try:
        text, status = durable_file.read_file(name, directory=directory, max_bytes=max_bytes)
    except FileNotFoundError:
        return StoredCopy(kind=Kind.MISSING, path=path, reason="there is no such file")
    except durable_file.TooLarge as exc:
        return StoredCopy(kind=Kind.CORRUPT, path=path, reason=str(exc))
    except UnsafePath as exc:
        raise UnsafePath(f"{folder}/{exc}") from exc
    except OSError as exc:
        raise StateReadFailed(path, exc) from exc

    return _judge(text, path, adw_id, signature_of(status, text[-serialization.SEAL_BYTES :]))


def examine_copy(text: bytes, adw_id: str) -> StoredCopy:
    """Return what the database's copy is; it has no checksum, because the database protects its bytes."""
    path = "the copy in the database"
    try:
        data = serialization.parse(text)
    except serialization.Unreadable as exc:
        return StoredCopy(kind=Kind.CORRUPT, path=path, reason=str(exc))
    if data.get("adw_id") != adw_id or data.get("state_version") != CURRENT_VERSION:
        return StoredCopy(kind=Kind.FOREIGN, path=path, reason="it is of another workflow or version")

    return StoredCopy(kind=Kind.GOOD, path=path, data=data)


def _judge(text: bytes, path: str, adw_id: str, signature: Signature) -> StoredCopy:
    add_checksum = serialization.verify_checksum(text)
    try:
        data = serialization.parse(text, is_ours=add_checksum is Seal.GOOD)
    except serialization.Unreadable as exc:
        return StoredCopy(kind=Kind.CORRUPT, path=path, reason=str(exc))
    if add_checksum is Seal.BROKEN or (add_checksum is Seal.ABSENT and b'"checksum"' in text):
        reason = "its checksum does not match: it was changed by hand or damaged"
        return StoredCopy(kind=Kind.FOREIGN, path=path, reason=reason)
    if data.get("adw_id") != adw_id:
        return StoredCopy(
            kind=Kind.FOREIGN, path=path, reason=f"it is the document of {data.get('adw_id', 'nobody')!r}"
        )
    version = version_of(data)
    if version != CURRENT_VERSION:
        migrated = StateMigration.migrate(data)
        return StoredCopy(kind=Kind.LEGACY, path=path, data=migrated, version=version, signature=signature)
    if add_checksum is Seal.ABSENT:
        return StoredCopy(kind=Kind.FOREIGN, path=path, reason="it has no checksum: it was not written by adw")

    return StoredCopy(kind=Kind.GOOD, path=path, data=data, signature=signature)


def _whole_number(data: JsonObject | None, key: str) -> int:
    value: JsonValue = 0 if data is None else data.get(key, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# One write of a document under a fence: from a temp file that nobody else has to a durable new name.
#
# The temp's name carries the fence. `block` puts a directory there: then the open of a former owner fails (the name is
# taken), and so does the rename of a temp it had already made (the name is a directory, or gone). So an owner that was
# stopped between any two system calls can never overwrite its successor.


#: The fence of the writer follows.
TEMP_PREFIX = f".{FILE_NAME}.tmp"


class SpareInUse(Exception):
    """The file that was borrowed is needed by somebody: write again, with a new one."""


def temp_name(fence: int) -> str:
    """Return the name of the temp that writers under *fence* use."""
    return f"{TEMP_PREFIX}.{fence}"


class FencedWrite:
    """
    A write in the open directory *directory*, which is closed at the end.

    Inside the block nobody else with this fence can write. Leaving it by an error removes the temp; an OSError becomes
    DurabilityUnknown once the new name is in place, and before that Fenced when the temp was taken away, else
    StateWriteFailed.
    """

    def __init__(self, directory: int, folder: str, adw_id: str, fence: int, *, may_borrow: bool = False) -> None:
        """With *may_borrow* the file of the predecessor may be used again, once `fill` is called."""
        self.directory = directory
        self._may_borrow = may_borrow
        self._is_borrowed = False
        self._path = f"{folder}/{FILE_NAME}"
        self._adw_id = adw_id
        self._fence = fence
        self._temp = temp_name(fence)
        self._fd = -1
        self._tail = b""
        self._is_published = False

    def __enter__(self) -> Self:
        """Make the temp; raise Fenced, or durable_file.TempBusy while another write under this fence goes on."""
        try:
            self._fd = self._claim()
        except durable_file.TempBlocked:
            durable_file.close_quietly(self.directory)
            raise Fenced(self._adw_id, self._fence) from None
        except OSError as exc:
            durable_file.close_quietly(self.directory)
            raise StateWriteFailed(self._path, exc) from exc
        except BaseException:
            durable_file.close_quietly(self.directory)
            raise
        return self

    def _claim(self) -> int:
        if self._may_borrow:
            fd = durable_file.borrow_temp(self.directory, self._temp, PREVIOUS_NAME)
            if fd is not None:
                self._is_borrowed = True
                return fd

        return durable_file.claim_temp(self.directory, self._temp)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(exc, OSError) or isinstance(exc, AdwError):
            self._let_go()
            return
        is_fenced = not self._is_published and self._was_taken_away()
        self._let_go()
        if self._is_published:
            raise DurabilityUnknown(self._path, exc) from exc
        if is_fenced:
            raise Fenced(self._adw_id, self._fence) from exc
        raise StateWriteFailed(self._path, exc) from exc

    def _let_go(self) -> None:
        if self._fd >= 0:
            durable_file.discard_temp(self.directory, self._temp, self._fd)
        durable_file.close_quietly(self.directory)

    def fill(self, payload: bytes, *, mode: int) -> None:
        """Put *payload* into the temp and on the disk; raise SpareInUse or durable_file.NoLeases for a borrowed one."""
        self._tail = payload[-serialization.SEAL_BYTES :]
        if self._is_borrowed and not durable_file.own_spare(self.directory, PREVIOUS_NAME, self._fd):
            raise SpareInUse
        durable_file.fill(self._fd, payload, mode=mode)

    def need_spare(self) -> None:
        """Raise SpareInUse when the predecessor's file is borrowed: it must stay whole for now."""
        if self._is_borrowed:
            raise SpareInUse

    def keep_previous(self) -> None:
        """Keep the document that is about to be replaced as its predecessor."""
        durable_file.link_previous(self.directory, FILE_NAME, PREVIOUS_NAME)

    def keep_aside(self, name: str) -> None:
        """Keep what stands in the document's place as *name*, too; it is not overwritten by the rename then."""
        os.link(FILE_NAME, name, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)

    def publish(self) -> None:
        """Put the temp in the document's place: the moment from which the new revision is there."""
        os.rename(self._temp, FILE_NAME, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self._is_published = True

    def publish_new(self) -> bool:
        """
        Put the temp where no document is; return False when there is one.

        By a link and not by a rename, which would overwrite, and would put the directory of a takeover in its place.
        """
        try:
            os.link(self._temp, FILE_NAME, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
        except FileExistsError:
            return False
        self._is_published = True
        # Left behind, it is a second name of a good document, and the next writer clears it away.
        with contextlib.suppress(OSError):
            os.unlink(self._temp, dir_fd=self.directory)

        return True

    def settle(self) -> Signature | None:
        """Make the new name durable, once; return what the file is recognised by, None when that cannot be told."""
        fd, self._fd = self._fd, -1
        try:
            signature = signature_of(os.fstat(fd), self._tail)
        except OSError:
            signature = None
        durable_file.settle(self.directory, fd)

        return signature

    def _was_taken_away(self) -> bool:
        """Say whether our temp is gone while the directory is not: only a takeover takes it away."""
        if self._fd < 0:
            return False
        try:
            return not durable_file.is_at(self.directory, self._temp, self._fd) and self._directory_is_there()
        except OSError:
            return False

    def _directory_is_there(self) -> bool:
        return os.fstat(self.directory).st_nlink > 0


def block(directory: int, fence: int) -> None:
    """Put a directory where writers under *fence* make their temp; return when it stands."""
    name = temp_name(fence)
    while True:
        try:
            os.mkdir(name, durable_file.NEW_DIRECTORY_MODE, dir_fd=directory)
        except FileExistsError:
            if _is_directory(directory, name):
                return
            # A former owner may make its temp again between this and the next mkdir: then go round once more.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=directory)
        else:
            return


def clear(directory: int) -> None:
    """Remove every temp and every blocking directory; only for a caller that knows that no former owner lives."""
    for name in os.listdir(directory):
        if not name.startswith(TEMP_PREFIX):
            continue
        with contextlib.suppress(FileNotFoundError):
            if _is_directory(directory, name):
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


# Putting a workflow's directory right: what the next write does about a file that is no good document.
#
# Nothing is thrown away. A corrupt file, one that was changed by hand and one of an older version each get a second
# name before they are replaced, and an event that says so is stored in the same write.


class Repair(NamedTuple):
    """What the next write has to put right."""

    resolved: Resolved
    aside: str | None  #: name under which the file in place is kept, None when there is none


def plan_repair(directory: int, resolved: Resolved, now: datetime) -> Repair | None:
    """Return what has to be done, None when the document in place is good."""
    if resolved.current.kind is Kind.GOOD:
        return None
    if resolved.current.kind is Kind.MISSING:
        return Repair(resolved, None)

    taken = frozenset(os.listdir(directory))
    return Repair(resolved, next(name for name in _names(resolved.current, now) if name not in taken))


def _names(current: StoredCopy, now: datetime) -> Iterator[str]:
    """Yield the names under which *current* may be kept, the best one first."""
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for number in itertools.count(1):
        if current.kind is Kind.LEGACY:
            yield backup_name(FILE_NAME, current.version, number)
        else:
            yield f"{FILE_NAME}.{current.kind.value}-{moment}" + ("" if number == 1 else f".{number}")


def publish(write: FencedWrite, repair: Repair | None, *, adw_id: str, expected: int) -> None:
    """Keep what is in the document's place, then replace it: there is no moment without a document."""
    if repair is None:
        write.keep_previous()
        write.publish()
        return
    if repair.aside is not None:
        write.keep_aside(repair.aside)
        write.publish()
        return
    if not write.publish_new():
        raise StateConflict(adw_id, expected, expected + 1)


def publish_first(write: FencedWrite, adw_id: str) -> None:
    """Put the first revision in its place; raise StateExists when somebody was faster."""
    if not write.publish_new():
        raise StateExists(adw_id)


def repair_events(repair: Repair) -> tuple[Event, ...]:
    """Return the events that say what was found and what was done about it."""
    current, used = repair.resolved.current, repair.resolved.used
    aside = f"{current.path.removesuffix(FILE_NAME)}{repair.aside}"
    recovered = Event(event_type="document_recovered", data={"from": used.path, "revision": used.revision})
    if current.kind is Kind.LEGACY:
        versions: JsonObject = {"from": current.version, "to": CURRENT_VERSION, "backup": aside}
        return (Event(event_type="state_migrated", data=versions),)
    if current.kind is Kind.FOREIGN:
        return (Event(event_type="document_foreign", data={"path": aside, "reason": current.reason}),)
    if current.kind is Kind.CORRUPT:
        kept = Event(event_type="document_quarantined", data={"path": aside, "reason": current.reason})
        return (kept, recovered)
    return (recovered,)


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
        max_bytes: int = serialization.MAX_BYTES,
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
            directory = open_folder(folder)
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
        return resolve(directory, folder, adw_id, max_bytes=self._max_bytes, copy_of=self._copy_of)

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
                write.fill(serialization.add_checksum(after.body), mode=durable_file.NEW_FILE_MODE)
                publish_first(write, adw_id)
                signature = write.settle()
                # The directory may be new, or made by the holder of the lock in it: its own name must be durable too.
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
                write.fill(serialization.add_checksum(after.body), mode=base.mode)
                publish(write, base.repair, adw_id=adw_id, expected=document.revision)
                signature = write.settle()
        except durable_file.TempBusy:
            # A writer of the same fence is about to make the next revision.
            raise StateConflict(adw_id, document.revision, document.revision + 1) from None
        except DurabilityUnknown:
            self._known.pop(adw_id, None)  # what is on the disk must be read to be known
            raise
        self._hand_over(after, signature, own_writes=base.own_writes + 1)

        return after.document

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """
        Make every write under *fence* fail from now on, also one that is half done.

        The fences between the document's own and *fence* are shut too: their owners may have died during a takeover,
        before they could shut out an older one that was only stopped.
        """
        folder = self._folder(check_adw_id(adw_id))
        directory = _make_folder(folder)
        try:
            for shut in range(self._lowest_open_fence(directory, folder, adw_id, fence), fence + 1):
                block(directory, shut)
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
            clear(directory)
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
            value = self._resolve_in(directory, folder, adw_id).used.fence
        except AdwError:  # also a database that is away: a takeover must not wait for it
            return 0
        return min(value, fence)

    def _compare(self, directory: int, folder: str, document: WorkflowDocument, fence: int) -> _Base:
        """Return what to build on; raise Fenced or StateConflict."""
        adw_id = document.adw_id
        known = self._known.get(adw_id)
        if known is None or known.signature != look_at(directory):
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

        return known, plan_repair(directory, resolved, self._clock.now())

    def _build_on(self, base: _Base, document: WorkflowDocument, fence: int, events: Sequence[Event]) -> Revision:
        confirmed = 0 if self._projection is None else self._projection.confirmed_revision(document.adw_id)
        outbox = serialization.waiting_after(document.outbox, confirmed)
        if base.repair is not None:
            events = (*repair_events(base.repair), *events)

        return self._builder.build(document, revision=document.revision + 1, fence=fence, outbox=outbox, events=events)

    def catch_up(self, adw_id: str) -> None:
        """Bring the database copy of a document, and the events that wait in it, up to what is on the disk."""
        if self._projection is None:
            return
        stored = self.load(adw_id).document
        now = self._builder.as_it_is(stored)
        self._projection.submit(serialization.projected(now, serialization.events_after(stored, 0)))
        self._projection.flush()

    def _relieve(self, directory: int, folder: str, adw_id: str) -> None:
        """Bring the events that wait in the stored document into the database now; when that fails, they wait on."""
        if self._projection is None:
            return
        try:
            stored = self._parse(self._resolve_in(directory, folder, adw_id).data)
            now = self._builder.as_it_is(stored)
            self._projection.submit(serialization.projected(now, serialization.events_after(stored, 0)))
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
            events = serialization.events_after(document, self._handed_over.get(adw_id, 0))
        self._handed_over[adw_id] = revision
        self._projection.submit(serialization.projected(after, events))


def _open_to_write(folder: str) -> int | None:
    try:
        return open_folder(folder)
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


# Workflow directories as a whole: which files are in them, and putting files back.
#
# Lock files and the temps of writers are never part of it: a copied lock locks nothing, and a copied temp is half a
# write. Symbolic links are neither followed nor copied.


#: Largest file that is copied; documents have a smaller limit of their own.
MAX_FILE_BYTES = 1 << 30


class StateFolders:
    """The directories below *root*, one for each workflow."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def highest_fence(self, adw_id: str) -> int:
        """Return the highest fence of any temp or tombstone, 0 when there is none."""
        try:
            names = [path.name for path in (self.root / check_adw_id(adw_id)).iterdir()]
        except FileNotFoundError:
            return 0
        endings = (name.removeprefix(f"{TEMP_PREFIX}.") for name in names if name.startswith(f"{TEMP_PREFIX}."))

        return max((int(ending) for ending in endings if ending.isascii() and ending.isdigit()), default=0)

    def links(self) -> tuple[str, ...]:
        """Return the workflows in whose place a symbolic link stands: adw does not follow it, so it sees nothing."""
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(e.name for e in entries if e.is_symlink() and FOREIGN.fullmatch(e.name)))
        except FileNotFoundError:
            return ()

    def files(self, adw_id: str) -> Iterator[str]:
        """Yield the name of every regular file, relative to the workflow's directory, in order."""
        folder = self.root / check_adw_id(adw_id)
        for place, directories, names in os.walk(folder, followlinks=False):
            directories[:] = sorted(name for name in directories if not name.startswith(TEMP_PREFIX))
            for name in sorted(names):
                path = Path(place, name)
                if name != LOCK_NAME and not name.startswith(TEMP_PREFIX) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(folder).as_posix()

    def read(self, adw_id: str, name: str) -> bytes | None:
        """Return the bytes of a file, None when it is gone; what a rename puts there meanwhile is whole too."""
        path = self.root / check_adw_id(adw_id) / name
        try:
            return durable_file.read_file(str(path), max_bytes=MAX_FILE_BYTES)[0]
        except FileNotFoundError:
            return None
        except (OSError, durable_file.TooLarge) as exc:
            raise BackupError(f"cannot read {path}: {exc}; move it away or make it readable") from exc

    def put(self, adw_id: str, name: str, payload: bytes) -> None:
        """Replace the file *name* durably by *payload*, readable by its owner alone; missing directories are made."""
        path = self.root / check_adw_id(adw_id) / name
        try:
            durable_file.make_directory(str(path.parent))
            directory = durable_file.open_directory(str(path.parent), follow=False)
        except OSError as exc:
            raise StateWriteFailed(str(path), exc) from exc
        try:
            _replace(directory, path.name, payload)
        except OSError as exc:
            raise StateWriteFailed(str(path), exc) from exc
        finally:
            durable_file.close_quietly(directory)


def _replace(directory: int, name: str, payload: bytes) -> None:
    temp = f".{name}.restoring"
    fd = durable_file.claim_temp(directory, temp, wait=True)
    try:
        durable_file.fill(fd, payload, mode=durable_file.NEW_FILE_MODE)
        os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        durable_file.discard_temp(directory, temp, fd)
        raise
    durable_file.settle(directory, fd)
