"""
What stands in a workflow's directory, and which of it is the document.

Reading only: nothing here writes, locks or follows a symbolic link. A file is used when its checksum is good, or when
it is of an older version that had none; everything else is named for what it is and left to the next owner.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from adws.adw_modules import durable_file, state_text
from adws.adw_modules.errors import StateCorrupt, StateNotFound, StateReadFailed, UnsafePath
from adws.adw_modules.interfaces import LoadNotice
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, version_of
from adws.adw_modules.state_text import Seal

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
class Found:
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
    used: Found  #: where it came from
    current: Found  #: what stands at the document's own path
    notices: tuple[LoadNotice, ...] = ()


def signature_of(status: os.stat_result, tail: bytes) -> Signature:
    """Return what tells one file from another; *tail* is its last `state_text.SEAL_BYTES` bytes."""
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, tail)


def look_at(directory: int) -> Signature | None:
    """Return the signature of the document without reading it, None when it is missing."""
    try:
        status, tail = durable_file.look_at_end(FILE_NAME, directory=directory, size=state_text.SEAL_BYTES)
    except (FileNotFoundError, UnsafePath):
        return None  # whoever reads it will say so

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
) -> tuple[Found, ...]:
    previous = examine(directory, folder, PREVIOUS_NAME, adw_id, max_bytes=max_bytes)
    copy = copy_of(adw_id) if copy_of is not None else None
    if copy is None:
        return (previous,)
    return (previous, examine_copy(copy, adw_id))


def _fall_back(current: Found, candidates: tuple[Found, ...]) -> Resolved:
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


def _nothing_left(current: Found, candidates: tuple[Found, ...]) -> StateNotFound | StateCorrupt:
    if current.kind is not Kind.MISSING:
        return StateCorrupt(current.path, current.reason, "and there is no other copy: restore it from a backup")
    bad = [found for found in candidates if found.kind is not Kind.MISSING]
    if bad:
        return StateCorrupt(bad[0].path, bad[0].reason, f"and {current.path} is missing: restore it from a backup")
    return StateNotFound(current.path)


def examine(directory: int | None, folder: str, name: str, adw_id: str, *, max_bytes: int) -> Found:
    """Return what the file *name* is; raise UnsafePath, StateReadFailed, or NewerVersion and other migration errors."""
    path = f"{folder}/{name}"
    if directory is None:
        return Found(kind=Kind.MISSING, path=path, reason="there is no such directory")
    try:
        text, status = durable_file.read_file(name, directory=directory, max_bytes=max_bytes)
    except FileNotFoundError:
        return Found(kind=Kind.MISSING, path=path, reason="there is no such file")
    except durable_file.TooLarge as exc:
        return Found(kind=Kind.CORRUPT, path=path, reason=str(exc))
    except UnsafePath as exc:
        raise UnsafePath(f"{folder}/{exc}") from exc
    except OSError as exc:
        raise StateReadFailed(path, exc) from exc

    return _judge(text, path, adw_id, signature_of(status, text[-state_text.SEAL_BYTES :]))


def examine_copy(text: bytes, adw_id: str) -> Found:
    """Return what the database's copy is; it has no checksum, the database looks after its bytes."""
    path = "the copy in the database"
    try:
        data = state_text.parse(text)
    except state_text.Unreadable as exc:
        return Found(kind=Kind.CORRUPT, path=path, reason=str(exc))
    if data.get("adw_id") != adw_id or data.get("state_version") != CURRENT_VERSION:
        return Found(kind=Kind.FOREIGN, path=path, reason="it is of another workflow or version")

    return Found(kind=Kind.GOOD, path=path, data=data)


def _judge(text: bytes, path: str, adw_id: str, signature: Signature) -> Found:
    seal = state_text.check_seal(text)
    try:
        data = state_text.parse(text, is_ours=seal is Seal.GOOD)
    except state_text.Unreadable as exc:
        return Found(kind=Kind.CORRUPT, path=path, reason=str(exc))
    if seal is Seal.BROKEN or (seal is Seal.ABSENT and b'"checksum"' in text):
        reason = "its checksum does not match: it was changed by hand or damaged"
        return Found(kind=Kind.FOREIGN, path=path, reason=reason)
    if data.get("adw_id") != adw_id:
        return Found(kind=Kind.FOREIGN, path=path, reason=f"it is the document of {data.get('adw_id', 'nobody')!r}")
    version = version_of(data)
    if version != CURRENT_VERSION:
        migrated = StateMigration.migrate(data)
        return Found(kind=Kind.LEGACY, path=path, data=migrated, version=version, signature=signature)
    if seal is Seal.ABSENT:
        return Found(kind=Kind.FOREIGN, path=path, reason="it has no checksum: it was not written by adw")

    return Found(kind=Kind.GOOD, path=path, data=data, signature=signature)


def _whole_number(data: JsonObject | None, key: str) -> int:
    value: JsonValue = 0 if data is None else data.get(key, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
