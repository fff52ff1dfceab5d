"""
Documents in files: `<root>/<adw_id>/adw_state.json`, durably replaced for each revision.

No lock is taken. A writer first creates the temp file of its fence exclusively (O_EXCL), then compares revisions, then
renames. A takeover puts a directory at the temp's name, so that the kernel refuses the former owner wherever it was
stopped. Reading writes nothing. The next write keeps an unusable document aside and never overwrites it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from adws.adw_modules import durable_file
from adws.adw_modules.document import WorkflowDocument, parse
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
from adws.adw_modules.interfaces import Clock, LoadedState, LoadNotice
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, backup_name, version_of
from adws.adw_modules.store import serialization
from adws.adw_modules.store.serialization import Seal, Serializer

if TYPE_CHECKING:
    from adws.adw_modules.store.projection import Projection


# --- the files in a workflow's directory -----------------------------------------------------------------------
#
# Reading only: nothing here writes, locks or follows a symbolic link. A file is used if its checksum is good, or if it
# is of an older version without checksums; every other file is classified and left to the next owner.


FILE_NAME = "adw_state.json"
PREVIOUS_NAME = "adw_state.json.prev"

#: Inode, size, mtime and ctime in nanoseconds, mode, and the file's last bytes, which are its checksum. While these are
#: the same, so is the file. The numbers alone do not suffice: inodes are reused, and file system clocks are coarse.
Signature: TypeAlias = tuple[int, int, int, int, int, bytes]
#: Returns the database copy of a document, or None if it does not exist.
CopyOf: TypeAlias = Callable[[str], bytes | None]


class Kind(Enum):
    """The classification of a file."""

    GOOD = "good"  #: written by adw, every byte unchanged
    LEGACY = "legacy"  #: of an older version, migrated in memory
    FOREIGN = "foreign"  #: JSON, but not as adw wrote it: changed by hand, damaged, or of another workflow
    CORRUPT = "corrupt"  #: not readable as a document
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCopy:
    """A file, or the database copy, and its classification."""

    kind: Kind
    path: str
    reason: str = ""
    data: JsonObject | None = None  #: in the current version; None unless GOOD or LEGACY
    version: str = CURRENT_VERSION  #: version in the file
    signature: Signature | None = None

    @property
    def revision(self) -> int:
        """Revision of the document, 0 if it has none."""
        return _whole_number(self.data, "revision")

    @property
    def fence(self) -> int:
        """Fence it was written under, 0 if it has none."""
        return _whole_number(self.data, "fence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The document to use, and the file at the document's path."""

    data: JsonObject
    used: StoredCopy  #: the source of `data`
    current: StoredCopy  #: the file at the document's own path
    notices: tuple[LoadNotice, ...] = ()


def signature_of(status: os.stat_result, tail: bytes) -> Signature:
    """Return the signature that distinguishes files; *tail* is the file's last `serialization.SEAL_BYTES` bytes."""
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, tail)


def look_at(directory: int) -> Signature | None:
    """Return the signature of the document without reading it, or None if it is missing or inaccessible."""
    try:
        fd = os.open(FILE_NAME, durable_file.READ_FLAGS, dir_fd=directory)
        try:
            status = os.fstat(fd)
            tail = os.pread(fd, serialization.SEAL_BYTES, max(0, status.st_size - serialization.SEAL_BYTES))
        finally:
            os.close(fd)
    except OSError:
        return None  # the following read reports it

    return signature_of(status, tail)


def open_folder(folder: str) -> int | None:
    """Return a descriptor of the directory *folder*, or None if missing; raise UnsafePath for a link, or OSError."""
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
    Return the last valid revision: the document, else the newer of its predecessor and the copy from *copy_of*.

    Raises StateNotFound, StateCorrupt with path and reason, UnsafePath, StateReadFailed, or a MigrationError.
    """
    current = examine(directory, folder, FILE_NAME, adw_id, max_bytes=max_bytes)
    if current.kind is Kind.GOOD and current.data is not None:
        return Resolved(data=current.data, used=current, current=current)
    if current.kind is Kind.LEGACY and current.data is not None:
        reason = (
            f"brought from version {current.version} to {CURRENT_VERSION} in memory;"
            " its next write, or adw state migrate, stores it so and keeps a backup"
        )
        notice = LoadNotice(kind="migrated", path=current.path, reason=reason)
        return Resolved(data=current.data, used=current, current=current, notices=(notice,))

    return _fall_back(current, _candidates(directory, folder, adw_id, max_bytes=max_bytes, copy_of=copy_of))


def not_found(adw_id: str, places: Sequence[Path]) -> StateNotFound:
    """Return the error for a missing workflow; it names a document below *places* that can be imported."""
    for place in places:
        path = place / adw_id / FILE_NAME
        try:
            text, _ = durable_file.read_file(str(path), max_bytes=serialization.MAX_BYTES)
            version = version_of(serialization.parse(text))
        except (AdwError, OSError, durable_file.TooLarge, serialization.Unreadable):
            continue  # missing, or cannot be imported
        return StateNotFound(adw_id, f"{path}, of version {version}, is not imported: adw state migrate does that")

    return StateNotFound(adw_id)


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
    # Of equal revisions, prefer the file: checking it again needs no database.
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
    """Return the file *name*, classified; raise UnsafePath, StateReadFailed, NewerVersion or other migration errors."""
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
    """Return the classified database copy; it has no checksum, because the database protects its bytes."""
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


# --- fences ----------------------------------------------------------------------------------------------------
#
# A writer's temp file has its fence in the name. A takeover puts a directory there: then a former owner can no longer
# create the temp (the name is taken), nor rename one it made before (the name is a directory, or gone). So an owner
# stopped between any two system calls can never overwrite its successor.


#: Followed by the fence of the writer.
TEMP_PREFIX = f".{FILE_NAME}.tmp"


def temp_name(fence: int) -> str:
    """Return the temp name of writers under *fence*."""
    return f"{TEMP_PREFIX}.{fence}"


class _FencedTemp:
    """
    The temp file of a fence: inside the block, nobody else with this fence can write. Closes *directory* at the end.

    Entering raises Fenced, or durable_file.TempBusy while another write under this fence is in progress. An OSError
    inside becomes DurabilityUnknown once the new name is in place. Before that it becomes Fenced if a takeover removed
    the temp, else StateWriteFailed.
    """

    def __init__(self, directory: int, folder: str, adw_id: str, fence: int) -> None:
        self.fd = -1
        self.name = temp_name(fence)
        self._directory = directory
        self._path = f"{folder}/{FILE_NAME}"
        self._adw_id = adw_id
        self._fence = fence
        self._is_published = False  #: whether the document's name refers to the new file

    def __enter__(self) -> Self:
        try:
            self.fd = durable_file.claim_temp(self._directory, self.name)
        except BaseException as exc:
            self.__exit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_fenced = False
        if exc is not None:
            is_fenced = isinstance(exc, durable_file.TempBlocked)
            if isinstance(exc, OSError) and not self._is_published and self.fd >= 0:
                is_fenced = self._was_taken_away()
        if self.fd >= 0:
            durable_file.discard_temp(self._directory, self.name, self.fd)
        durable_file.close_quietly(self._directory)
        if exc is None or isinstance(exc, AdwError):
            return
        if is_fenced:
            raise Fenced(self._adw_id, self._fence) from exc
        if isinstance(exc, OSError):
            raise (DurabilityUnknown if self._is_published else StateWriteFailed)(self._path, exc) from exc

    def replace_document(self) -> None:
        """Rename the temp to the document's name; from this moment the new revision exists."""
        os.rename(self.name, FILE_NAME, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._is_published = True

    def publish_new(self, taken: AdwError) -> None:
        """
        Publish the temp where there is no document; raise *taken* if there is one.

        Uses a link, because a rename would overwrite, and would move the directory of a takeover to that name.
        """
        directory = self._directory
        try:
            os.link(self.name, FILE_NAME, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            raise taken from None
        self._is_published = True
        # If left behind, it is a second name of a good document, and the next writer removes it.
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=directory)

    def settle(self, text: bytes) -> Signature | None:
        """Make the new name durable, once; return the file's signature, or None if it cannot be read."""
        fd, self.fd = self.fd, -1
        try:
            signature = signature_of(os.fstat(fd), text[-serialization.SEAL_BYTES :])
        except OSError:
            signature = None
        durable_file.settle(self._directory, fd)

        return signature

    def _was_taken_away(self) -> bool:
        """Say whether the temp is gone while its directory still exists: only a takeover removes it."""
        try:
            is_there = durable_file.is_at(self._directory, self.name, self.fd)
            return not is_there and os.fstat(self._directory).st_nlink > 0
        except OSError:
            return False


def block(directory: int, fence: int) -> None:
    """Put a directory at the temp name of writers under *fence*; return once it exists."""
    name = temp_name(fence)
    while True:
        try:
            os.mkdir(name, durable_file.NEW_DIRECTORY_MODE, dir_fd=directory)
        except FileExistsError:
            if _is_directory(directory, name):
                return
            # A former owner may create its temp again before the next mkdir; then repeat.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=directory)
        else:
            return


def clear(directory: int) -> None:
    """Remove every temp and blocking directory; only for callers that know that no former owner is alive."""
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


# --- repairing a workflow's directory: what the next write does about a file that is not a good document -------
#
# Nothing is thrown away. A corrupt, a hand-edited or an outdated file each gets a second name before it is replaced,
# and an event that says so is stored in the same write.


class Repair(NamedTuple):
    """The repair that the next write must make."""

    resolved: Resolved
    aside: str | None  #: name under which the current file is kept; None if there is no file


def plan_repair(directory: int, resolved: Resolved, now: datetime) -> Repair | None:
    """Return the repair needed, or None if the current document is good."""
    if resolved.current.kind is Kind.GOOD:
        return None
    if resolved.current.kind is Kind.MISSING:
        return Repair(resolved, None)

    taken = frozenset(os.listdir(directory))
    names = _names(resolved.current, now)
    return Repair(resolved, next(name for name in names if name not in taken or is_same_file(directory, name)))


def is_same_file(directory: int, name: str) -> bool:
    """Say whether *name* is a second name of the current document, left by a writer killed before its rename."""
    try:
        kept, current = (os.stat(each, dir_fd=directory, follow_symlinks=False) for each in (name, FILE_NAME))
    except FileNotFoundError:
        return False
    return os.path.samestat(kept, current)


def keep_aside(directory: int, name: str) -> None:
    """
    Keep the current document as *name*, too, durably, before the rename.

    Another program wrote that file and may not have synced it. A writer killed here may have left the name behind.
    """
    if not is_same_file(directory, name):
        os.link(FILE_NAME, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    durable_file.sync_file(name, directory=directory)
    os.fsync(directory)


def _names(current: StoredCopy, now: datetime) -> Iterator[str]:
    """Yield names under which *current* may be kept, best first."""
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for number in itertools.count(1):
        if current.kind is Kind.LEGACY:
            yield backup_name(FILE_NAME, current.version, number)
        else:
            yield f"{FILE_NAME}.{current.kind.value}-{moment}" + ("" if number == 1 else f".{number}")


def repair_events(repair: Repair) -> tuple[Event, ...]:
    """Return events that say what was found and what was done about it."""
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


#: Number of events a document keeps if no projection collects them.
OUTBOX_WITHOUT_PROJECTION = 200
#: Number of workflows whose file signature a store remembers, so that a save need not read the file.
MAX_REMEMBERED = 4096


class _Known(NamedTuple):
    """A document as last written or read by this store."""

    signature: Signature | None  #: None: there is no file, or it is unknown
    revision: int
    fence: int

    @property
    def mode(self) -> int:
        """The permissions of the next revision."""
        return durable_file.NEW_FILE_MODE if self.signature is None else self.signature[4] & 0o777


class FileStateStore:
    """
    A `StateStore` on a local disk.

    *scrub* removes secrets from the text of a document. *projection* receives every write and supplies its copy if a
    file is lost. *not_imported* are directories whose documents `adw state migrate` would import.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        projection: Projection | None = None,
        scrub: Callable[[bytes], bytes] | None = None,
        max_bytes: int = serialization.MAX_BYTES,
        not_imported: Sequence[Path] = (),
    ) -> None:
        self._root = os.fspath(root)
        self._not_imported = not_imported
        self._clock = clock
        self._projection = projection
        self._max_bytes = max_bytes
        self._serializer = Serializer(
            clock=clock,
            scrub=scrub,
            max_bytes=max_bytes,
            max_outbox=OUTBOX_WITHOUT_PROJECTION if projection is None else None,
        )
        self._known: dict[str, _Known] = {}

    # --- reading -----------------------------------------------------------------------------------------------

    def load(self, adw_id: str) -> LoadedState:
        """Return the last valid revision and its notices; raise StateNotFound or StateCorrupt."""
        resolved = self._resolve(check_adw_id(adw_id))
        document = parse(resolved.data)
        current = resolved.current
        if current.kind is Kind.GOOD:
            self._remember(adw_id, _Known(current.signature, current.revision, current.fence))

        return LoadedState(document=document, notices=resolved.notices)

    def exists(self, adw_id: str) -> bool:
        """Say whether a document exists, valid or not."""
        folder = self._folder(check_adw_id(adw_id))
        return os.path.lexists(f"{folder}/{FILE_NAME}") or os.path.lexists(f"{folder}/{PREVIOUS_NAME}")

    def ids(self) -> Iterator[str]:
        """Yield the id of every document, in no order; other names in the root are ignored."""
        try:
            with os.scandir(self._root) as entries:
                names = [e.name for e in entries if FOREIGN.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StateReadFailed(self._root, exc) from exc
        yield from (name for name in names if self.exists(name))

    def _folder(self, adw_id: str) -> str:
        return f"{self._root}/{adw_id}"

    def _resolve(self, adw_id: str) -> Resolved:
        folder = self._folder(adw_id)
        try:
            directory = open_folder(folder)
        except OSError as exc:
            raise StateReadFailed(folder, exc) from exc
        try:
            return self._resolve_in(directory, folder, adw_id)
        except StateNotFound:
            raise not_found(adw_id, self._not_imported) from None
        finally:
            if directory is not None:
                durable_file.close_quietly(directory)

    def _resolve_in(self, directory: int | None, folder: str, adw_id: str) -> Resolved:
        copy_of = None if self._projection is None else self._projection.copy_of
        return resolve(directory, folder, adw_id, max_bytes=self._max_bytes, copy_of=copy_of)

    def _remember(self, adw_id: str, known: _Known) -> None:
        if known.signature is None:
            self._known.pop(adw_id, None)
            return
        if adw_id not in self._known and len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[adw_id] = known

    # --- writing -----------------------------------------------------------------------------------------------

    def create(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* as revision 1; raise StateExists if its id is taken, even by an unusable document."""
        adw_id, fence = check_adw_id(document.adw_id), document.fence
        folder = self._folder(adw_id)
        after = self._serializer.next_revision(document, revision=1, fence=fence, events=events)
        directory = _make_folder(folder)
        try:
            with _FencedTemp(directory, folder, adw_id, fence) as temp:
                if self.exists(adw_id):
                    raise StateExists(adw_id)
                text = serialization.add_checksum(after.body)
                durable_file.fill(temp.fd, text, mode=durable_file.NEW_FILE_MODE)
                temp.publish_new(StateExists(adw_id))
                signature = temp.settle(text)
                # The workflow's directory may be new, or created for its lock: its own name must be durable too.
                durable_file.sync_directory_at(self._root)
        except durable_file.TempBusy:
            raise StateExists(adw_id) from None
        self._remember(adw_id, _Known(signature, 1, fence))
        if self._projection is not None:
            self._projection.update(after)

        return after.document

    def save(
        self,
        document: WorkflowDocument,
        *,
        fence: int,
        events: Sequence[Event] = (),
        may_collect: bool = False,
    ) -> WorkflowDocument:
        """
        Store *document* with *events* as the next revision, in one durable step.

        *may_collect* is passed to the projection. Raises StateConflict, Fenced, StateWriteFailed (the old revision is
        intact) or DurabilityUnknown.
        """
        adw_id, expected = check_adw_id(document.adw_id), document.revision
        folder = self._folder(adw_id)
        directory = _open_to_write(folder)
        if directory is None:  # perhaps the database has a copy of the lost document
            if self._projection is None or self._projection.copy_of(adw_id) is None:
                raise StateNotFound(adw_id)
            directory = _make_folder(folder)
        try:
            with _FencedTemp(directory, folder, adw_id, fence) as temp:
                # Compare only now: until the rename, nobody else with this fence can write.
                known, repair = self._known.get(adw_id), None
                if known is None or known.signature != look_at(directory):
                    known, repair = self._read_again(directory, folder, adw_id)
                if fence < known.fence:
                    raise Fenced(adw_id, fence, known.fence)
                if expected != known.revision:
                    raise StateConflict(adw_id, expected, known.revision)

                if repair is not None:
                    events = (*repair_events(repair), *events)
                confirmed = 0 if self._projection is None else self._projection.confirmed_revision(adw_id)
                after = self._serializer.next_revision(
                    document,
                    revision=expected + 1,
                    fence=fence,
                    events=events,
                    outbox=serialization.waiting_after(document.outbox, confirmed),
                )
                text = serialization.add_checksum(after.body)
                durable_file.fill(temp.fd, text, mode=known.mode)

                # Keep the current document under a second name, then replace it: at no moment is there no document.
                if repair is None:
                    durable_file.link_previous(directory, FILE_NAME, PREVIOUS_NAME)
                    temp.replace_document()
                elif repair.aside is not None:
                    keep_aside(directory, repair.aside)
                    temp.replace_document()
                else:
                    temp.publish_new(StateConflict(adw_id, expected, expected + 1))
                signature = temp.settle(text)
                if repair is not None and repair.aside is None:
                    # The file was lost, perhaps with its directory, which the lock holder made again.
                    durable_file.sync_directory_at(self._root)
        except durable_file.TempBusy:
            # A writer with the same fence is about to write the next revision.
            raise StateConflict(adw_id, expected, expected + 1) from None
        except DurabilityUnknown:
            self._known.pop(adw_id, None)  # the content of the disk is known only after reading it
            raise
        self._remember(adw_id, _Known(signature, expected + 1, fence))
        if self._projection is not None:
            self._projection.update(after, may_collect=may_collect)

        return after.document

    def flush(self, adw_id: str = "") -> None:
        """Commit the revisions that the projection collected, of one document or of all."""
        if self._projection is not None:
            self._projection.flush(adw_id)

    def catch_up(self, adw_id: str) -> None:
        """Bring the database copy of a document, and its waiting events, up to date with the file."""
        if self._projection is not None:
            stored = self.load(adw_id).document
            self._projection.catch_up(stored)

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """
        Make every write under *fence* fail from now on, even one in progress.

        Fences from the document's own up to *fence* are blocked too: their owners may have died during a takeover,
        before they could block an older owner that was only stopped.
        """
        folder = self._folder(check_adw_id(adw_id))
        directory = _make_folder(folder)
        try:
            try:
                lowest = min(fence, self._resolve_in(directory, folder, adw_id).used.fence)
            except AdwError:  # including an unreachable database: a takeover must not wait for it
                lowest = 0
            for shut in range(lowest, fence + 1):
                block(directory, shut)
        except OSError as exc:
            raise StateWriteFailed(folder, exc) from exc
        finally:
            durable_file.close_quietly(directory)
        self._known.pop(adw_id, None)

    def sweep(self, adw_id: str) -> None:
        """
        Remove the temps and fences left by former owners.

        Only for an owner that holds this machine's file lock of the workflow: then no former owner is alive.
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

    def _read_again(self, directory: int, folder: str, adw_id: str) -> tuple[_Known, Repair | None]:
        """Return the document on the disk, and the repair it needs."""
        try:
            resolved = self._resolve_in(directory, folder, adw_id)
        except StateNotFound:
            raise StateNotFound(adw_id) from None
        known = _Known(resolved.current.signature, resolved.used.revision, resolved.used.fence)

        return known, plan_repair(directory, resolved, self._clock.now())


def _open_to_write(folder: str) -> int | None:
    try:
        return open_folder(folder)
    except OSError as exc:
        raise StateWriteFailed(folder, exc) from exc


def _make_folder(folder: str) -> int:
    """Return a descriptor of the real directory *folder*, created if missing."""
    try:
        durable_file.make_directory(folder)
    except OSError as exc:
        raise StateWriteFailed(folder, exc) from exc
    directory = _open_to_write(folder)
    if directory is None:
        raise StateWriteFailed(folder, FileNotFoundError(errno.ENOENT, "it was removed a moment after it was made"))

    return directory


# --- workflow directories as a whole: listing and restoring files ----------------------------------------------
#
# Lock files and writers' temps are never included: a copied lock locks nothing, and a copied temp is half a write.
# Symbolic links are neither followed nor copied.


#: Largest file to copy; documents have a smaller limit of their own.
MAX_FILE_BYTES = 1 << 30


class StateFolders:
    """The directories below *root*, one per workflow."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def highest_fence(self, adw_id: str) -> int:
        """Return the highest fence of any temp or tombstone, 0 without any."""
        try:
            names = [path.name for path in (self.root / check_adw_id(adw_id)).iterdir()]
        except FileNotFoundError:
            return 0
        endings = (name.removeprefix(f"{TEMP_PREFIX}.") for name in names if name.startswith(f"{TEMP_PREFIX}."))

        return max((int(ending) for ending in endings if ending.isascii() and ending.isdigit()), default=0)

    def links(self) -> tuple[str, ...]:
        """Return the workflow ids whose directory is a symbolic link: adw does not follow it and sees no workflow."""
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(e.name for e in entries if e.is_symlink() and FOREIGN.fullmatch(e.name)))
        except FileNotFoundError:
            return ()

    def files(self, adw_id: str) -> Iterator[str]:
        """Yield the path of every regular file, relative to the workflow's directory, in order."""
        folder = self.root / check_adw_id(adw_id)
        for place, directories, names in os.walk(folder, followlinks=False):
            directories[:] = sorted(name for name in directories if not name.startswith(TEMP_PREFIX))
            for name in sorted(names):
                path = Path(place, name)
                if name != LOCK_NAME and not name.startswith(TEMP_PREFIX) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(folder).as_posix()

    def read(self, adw_id: str, name: str) -> bytes | None:
        """Return the bytes of a file, or None if it is gone. A file renamed there meanwhile is complete, too."""
        path = self.root / check_adw_id(adw_id) / name
        try:
            return durable_file.read_file(str(path), max_bytes=MAX_FILE_BYTES)[0]
        except FileNotFoundError:
            return None
        except (OSError, durable_file.TooLarge) as exc:
            raise BackupError(f"cannot read {path}: {exc}; move it away or make it readable") from exc

    def put(self, adw_id: str, name: str, payload: bytes) -> None:
        """Durably replace the file *name* by *payload*, readable only by its owner; missing directories are made."""
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
