"""
The files of one attempt, numbered, in the workflow's own directory: `phases/<phase>/attempt-<n>.<what>`.

No attempt writes over what another one said. Directories and files are for their owner alone; a symbolic link is never
followed, neither on the way nor at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import UnsafePath, UsageError

#: Directory of all of them, below the workflow's own.
FOLDER = "phases"
#: How much of the end of a file is shown unless more is asked for, in bytes.
TAIL_BYTES = 16_384

_PHASE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_KIND = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*")
_NAME = re.compile(r"attempt-([1-9][0-9]{0,8})\.(.+)")
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFile:
    """One file of an attempt, as a list shows it."""

    phase: str
    attempt: int
    kind: str  #: stdout.log | stderr.log | result.json | ...
    name: str  #: relative to the workflow's directory
    size: int


class AttemptFiles:
    """Where one attempt at a phase keeps what it said and gave back."""

    def __init__(self, folder: Path, phase: str, attempt: int) -> None:
        if not _PHASE.fullmatch(phase):
            raise UsageError(f"{phase!r} cannot be part of a file name: use letters, digits, '-', '_' and '.'")
        if attempt < 1:
            raise UsageError(f"attempts are counted from 1: there is no attempt {attempt}")
        self._folder = folder
        self._place = folder / FOLDER / phase
        self._attempt = attempt

    @property
    def stdout(self) -> Path:
        """What it said."""
        return self.path("stdout.log")

    @property
    def stderr(self) -> Path:
        """What it said about errors."""
        return self.path("stderr.log")

    @property
    def result(self) -> Path:
        """What it gave back, if it wrote it."""
        return self.path("result.json")

    def path(self, kind: str) -> Path:
        """Return the path of another file of this attempt, such as `issue.json`."""
        if not _KIND.fullmatch(kind):
            raise UsageError(f"{kind!r} cannot be the end of a file name: use such as stdout.log")

        return self._place / f"attempt-{self._attempt}.{kind}"

    def make_folder(self) -> None:
        """Make the directory; raise UnsafePath when something else stands in its way."""
        durable_file.make_directory(str(self._place))
        for place in (self._place.parent, self._place):
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                raise UnsafePath(f"{place} is not a directory of its own: move it away, adw makes it again")

    def write(self, kind: str, payload: bytes) -> Path:
        """Make *payload* all that is in the file, which is new afterwards; it is as safe as the process needs it."""
        path = self.path(kind)
        self.discard(kind)
        fd = os.open(path, _WRITE_FLAGS, durable_file.NEW_FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(payload)

        return path

    def discard(self, kind: str) -> None:
        """Remove a file that an earlier try at the same attempt left."""
        with contextlib.suppress(FileNotFoundError):
            self.path(kind).unlink()

    def read(self, kind: str, *, max_bytes: int) -> bytes | None:
        """Return the bytes of a file, None when it is not there; raise UnsafePath or TooLarge."""
        try:
            return durable_file.read_file(str(self.path(kind)), max_bytes=max_bytes)[0]
        except FileNotFoundError:
            return None

    def relative(self, path: Path) -> str:
        """Return *path* as it stands in the document."""
        return path.relative_to(self._folder).as_posix()

    def existing(self) -> tuple[str, ...]:
        """Return the files of this attempt, as they stand in the document."""
        prefix = f"{self._place.name}/attempt-{self._attempt}."

        return tuple(f.name for f in list_files(self._folder) if f.name.removeprefix(f"{FOLDER}/").startswith(prefix))


def list_files(folder: Path) -> tuple[AttemptFile, ...]:
    """Return the files of all attempts in the workflow's directory, by phase, attempt and name; links are left out."""
    found: list[AttemptFile] = []
    for place in _directories(folder / FOLDER):
        for path in place.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_file():
                continue
            found.append(
                AttemptFile(
                    phase=place.name,
                    attempt=int(match[1]),
                    kind=match[2],
                    name=path.relative_to(folder).as_posix(),
                    size=path.stat().st_size,
                )
            )

    return tuple(sorted(found, key=lambda file: (file.phase, file.attempt, file.kind)))


def read_tail(folder: Path, name: str, *, max_bytes: int = TAIL_BYTES) -> str:
    """Return the end of a file named as `list_files` does, from the beginning of a line; raise UnsafePath."""
    with _place_of(folder, name) as (directory, own):
        found, end = durable_file.look_at_end(own, directory=directory, size=max_bytes)
    if found.st_size > len(end):
        end = end.partition(b"\n")[2] or end

    return end.decode("utf-8", "replace")


def read_part(folder: Path, name: str, *, start: int, max_bytes: int) -> tuple[bytes, int]:
    """Return up to *max_bytes* of a file from *start* on, and how large it is; raise UnsafePath, FileNotFoundError."""
    with _place_of(folder, name) as (directory, own):
        found, part = durable_file.look_at_part(own, directory=directory, start=start, size=max_bytes)

    return part, found.st_size


@contextlib.contextmanager
def _place_of(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """Give the directory and the own name of a file that is one of an attempt; raise UnsafePath."""
    path = folder / name
    if _is_outside(folder, path):
        raise UnsafePath(f"{name} is not a file of this workflow's attempts")
    directory = durable_file.open_directory(str(path.parent), follow=False)
    try:
        yield directory, path.name
    finally:
        os.close(directory)


def _is_outside(folder: Path, path: Path) -> bool:
    parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()

    return len(parts) != 3 or parts[0] != FOLDER or not _PHASE.fullmatch(parts[1]) or not _NAME.fullmatch(parts[2])


def _directories(place: Path) -> list[Path]:
    if place.is_symlink() or not place.is_dir():
        return []

    return [path for path in sorted(place.iterdir()) if path.is_dir() and not path.is_symlink()]
