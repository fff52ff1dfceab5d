"""
What this machine is to adw: its Python, the room on its disks, how it keeps what is written, who can read it.

Looks and changes nothing. Whether a sync works is tried with a file that has no name and is gone with its descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from adws.adw_modules.checkup import DiskFacts, PythonFacts, StorageFacts
from adws.adw_modules.file_systems import file_system_of
from adws.adw_modules.interfaces import Clock

PROC = Path("/proc")
MOUNT_TABLE = PROC / "self/mountinfo"
#: Files of the state directory whose permissions are looked at, at most.
MOST_FILES = 2_000
#: What a file system answers that has no files without a name.
_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


def python_facts() -> PythonFacts:
    """Return the Python that adw runs on."""
    return PythonFacts(version=sys.version_info[:3], executable=sys.executable, has_proc=(PROC / "self/stat").is_file())


def disk_facts(name: str, path: Path, *, min_free_bytes: int) -> DiskFacts:
    """Return the room where *path* is, or will be when it is made; *name* says what is kept there."""
    found = os.statvfs(nearest(path))

    return DiskFacts(
        name=name,
        path=str(path),
        free_bytes=found.f_bavail * found.f_frsize,
        min_free_bytes=min_free_bytes,
        free_inodes=found.f_favail,
        all_inodes=found.f_files,
    )


def storage_facts(path: Path, *, has_sqlite: bool, clock: Clock) -> StorageFacts:
    """Return how the directory *path* keeps what is written, or the one above it when it is not made yet."""
    place = nearest(path)
    is_writable = os.access(place, os.R_OK | os.W_OK | os.X_OK)
    problem, seconds = _try_sync(place, clock) if is_writable else ("", None)
    files = tuple(_files(path))

    return StorageFacts(
        path=str(path),
        kind=_file_system(place),
        has_sqlite=has_sqlite,
        sync_problem=problem,
        sync_seconds=seconds,
        is_writable=is_writable,
        owner_problem=_foreign(files),
        open_files=tuple(str(found) for found, mode, _ in files if mode & (0o022 if found == path else 0o077)),
    )


def nearest(path: Path) -> Path:
    """Return *path*, or the closest directory above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent

    return path


def _file_system(place: Path) -> str:
    try:
        return file_system_of(place.resolve(), MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ""


def _try_sync(place: Path, clock: Clock) -> tuple[str, float | None]:
    """Return why a sync failed and how long it took; where there are no files without a name, only of the directory."""
    began = clock.monotonic()
    try:
        nameless = getattr(os, "O_TMPFILE", None)
        if nameless is not None:
            _sync_nameless(place, nameless)
        _sync(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.strerror or str(exc), None

    return "", clock.monotonic() - began


def _sync_nameless(place: Path, flag: int) -> None:
    try:
        fd = os.open(place, flag | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno in _NO_NAMELESS:
            return
        raise
    try:
        os.write(fd, b"adw doctor")
    except OSError:
        os.close(fd)
        raise
    _sync(fd)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(path: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the directory, what is in it and the documents of workflows, each with its mode and owner."""
    patterns = ("adw.db*", ".home-key", "*/adw_state.json")
    places = [path, *(found for pattern in patterns for found in path.glob(pattern))] if path.is_dir() else []
    for found in places[:MOST_FILES]:
        try:
            known = found.lstat()
        except OSError:
            continue  # gone meanwhile
        if not stat.S_ISLNK(known.st_mode):
            yield found, stat.S_IMODE(known.st_mode), known.st_uid


def _foreign(files: tuple[tuple[Path, int, int], ...]) -> str:
    me = os.geteuid()
    other = next((path for path, _, owner in files if owner != me), None) if me != 0 else None

    return f"{other} belongs to another user than the one who runs adw" if other else ""
