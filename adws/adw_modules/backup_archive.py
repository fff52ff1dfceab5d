"""
The file format of a backup: one .tar.gz whose last member is a manifest with the hash of every other.

An archive appears under its name only when it is whole and on the disk. Reading writes nothing outside the directory it
is given: a member is copied under a name that was checked, never unpacked by the archive's own paths, links or modes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from adws.adw_modules import durable_file
from adws.adw_modules.errors import BackupError
from adws.adw_modules.ids import FOREIGN
from adws.adw_modules.json_value import JsonObject

MANIFEST = "manifest.json"
DATABASE = "adw.db"
EVENTS = "events.jsonl"
DOCUMENTS = "state"
#: Version of this format.
FORMAT = 1

#: One part of a path: no separators, no control characters, neither "." nor "..".
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:+ -]{1,255}")
_MAX_MANIFEST_BYTES = 256 * 1024 * 1024
_CHUNK = 1 << 20


class ArchiveWriter:
    """Adds files to an archive that is not yet under its name."""

    def __init__(self, archive: tarfile.TarFile, modified_at: int) -> None:
        self._archive = archive
        self._modified_at = modified_at
        self.files: JsonObject = {}

    def add(self, name: str, payload: bytes) -> None:
        """Add *payload* as the file *name*."""
        self._add(name, io.BytesIO(payload), len(payload), hashlib.sha256(payload).hexdigest())

    def add_file(self, name: str, path: Path) -> None:
        """Add the file at *path*, which nobody changes meanwhile, as *name*."""
        with path.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
            source.seek(0)
            self._add(name, source, path.stat().st_size, digest)

    def finish(self, facts: JsonObject) -> None:
        """Add the manifest: *facts* and the hash of every file."""
        manifest: JsonObject = {"format": FORMAT, **facts, "files": self.files}
        payload = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode()
        self._add(MANIFEST, io.BytesIO(payload), len(payload), "")
        del self.files[MANIFEST]

    def _add(self, name: str, source: IO[bytes], size: int, digest: str) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, self._modified_at
        self._archive.addfile(member, source)
        self.files[name] = {"sha256": digest, "size": size}


@contextmanager
def write_archive(path: Path, *, modified_at: int) -> Iterator[ArchiveWriter]:
    """Make the archive *path*, whole or not at all; raise BackupError when it exists or cannot be written."""
    temp = path.with_name(f".{path.name}.part")
    try:
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise BackupError(f"cannot write {temp}: {exc.strerror}; choose a directory that may be written") from exc
    try:
        with os.fdopen(fd, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
                yield ArchiveWriter(archive, modified_at)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(temp, path)  # a rename would overwrite
        durable_file.sync_directory_at(str(path.parent))
    except FileExistsError:
        raise BackupError(f"{path} exists already: choose another name") from None
    except OSError as exc:
        raise BackupError(f"cannot write the backup {path}: {exc.strerror or exc}") from exc
    finally:
        temp.unlink(missing_ok=True)


def unpack(path: Path, into: Path) -> JsonObject:
    """Copy every file of the archive into the directory *into*, return the manifest; raise BackupError unless whole."""
    digests: dict[str, str] = {}
    manifest: JsonObject | None = None
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or manifest is not None or member.name in digests:
                    raise BackupError(f"{path} is not a backup of adw: {member.name!r} does not belong there")
                if member.name == MANIFEST:
                    manifest = _manifest(path, source)
                else:
                    digests[member.name] = _copy(source, into / checked_name(path, member.name))
            while stream.read(_CHUNK):  # up to the check sum at the very end
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError) as exc:
        raise BackupError(f"cannot read the backup {path}: {exc}; it may be cut off or damaged") from exc
    if manifest is None:
        raise BackupError(f"{path} has no manifest: it is cut off, or not a backup of adw")
    _compare(path, manifest, digests)

    return manifest


def checked_name(path: Path, name: str) -> str:
    """Return *name* when a backup may hold such a file; raise BackupError."""
    parts = name.split("/")
    is_safe = all(_PART.fullmatch(part) for part in parts)
    is_ours = name in {DATABASE, EVENTS} or (len(parts) > 2 and parts[0] == DOCUMENTS and FOREIGN.fullmatch(parts[1]))
    if not is_safe or not is_ours:
        raise BackupError(f"{path} is not a backup of adw: it holds a file {name!r}")

    return name


def _copy(source: IO[bytes], target: Path) -> str:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as stream:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            stream.write(chunk)

    return digest.hexdigest()


def _manifest(path: Path, source: IO[bytes]) -> JsonObject:
    text = source.read(_MAX_MANIFEST_BYTES + 1)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        manifest = None
    if len(text) > _MAX_MANIFEST_BYTES or not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise BackupError(f"the manifest of {path} cannot be read: the backup is damaged")
    if manifest.get("format") != FORMAT:
        raise BackupError(
            f"{path} has format {manifest.get('format')!r}, this adw reads format {FORMAT}: upgrade adw to restore it"
        )

    return manifest


def _compare(path: Path, manifest: JsonObject, digests: dict[str, str]) -> None:
    files = manifest["files"]
    expected = {
        name: entry.get("sha256")
        for name, entry in (files if isinstance(files, dict) else {}).items()
        if isinstance(entry, dict)
    }
    wrong = sorted(name for name in expected.keys() | digests.keys() if expected.get(name) != digests.get(name))
    if wrong:
        raise BackupError(f"{path} is damaged: {', '.join(wrong[:5])} is missing or not what the manifest says")
