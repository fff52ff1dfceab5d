"""
The files of a repository that `adw init` looks at, and those it writes: new ones only.

Links are not followed where something is written, and nothing that is there is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from adws.adw_modules.errors import UsageError

#: Directories whose files count too; of the first three only programs.
_PROGRAMS = ("bin", "script", "scripts")
_LISTED = (*_PROGRAMS, "spec", "test", "tests")
#: Most bytes of a file that are read.
_MAX_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class ProjectFiles:
    """The files below *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> frozenset[str]:
        """Return what is in the root and in a few directories of it; a directory ends with a slash."""
        return frozenset(self._names())

    def _names(self) -> Iterator[str]:
        yield from _listed(self._root)
        for folder in _LISTED:
            for name in _listed(self._root / folder):
                if folder not in _PROGRAMS or os.access(self._root / folder / name, os.X_OK):
                    yield f"{folder}/{name}"

    def texts(self, names: Collection[str]) -> dict[str, str]:
        """Return the texts of those of *names* that are there and can be read."""
        return {name: text for name in names if (text := self.text(name)) is not None}

    def text(self, name: str) -> str | None:
        """Return the beginning of a file, None when it is not there or is no file."""
        path = self._root / name
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Say whether there is anything called *name*, also a link that leads nowhere."""
        return os.path.lexists(self._root / name)

    def write_new(self, name: str, text: str) -> bool:
        """Write a file that is not there yet; False when there is one. Raises UsageError when it cannot be."""
        path = self._root / name
        if self.has(name):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, _NEW, 0o666)
        except OSError as exc:
            raise _cannot_write(path, exc) from exc
        _write(fd, text, path)

        return True

    def add_lines(self, name: str, lines: Collection[str]) -> None:
        """Add *lines* to the end of a file, which is made when it is not there."""
        path = self._root / name
        before = self.text(name) or ""
        try:
            fd = os.open(path, _MORE, 0o666)
        except OSError as exc:
            raise _cannot_write(path, exc) from exc
        gap = "\n" if before and not before.endswith("\n") else ""
        _write(fd, gap + "".join(f"{line}\n" for line in lines), path)


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except OSError:
        return


def _write(fd: int, text: str, path: Path) -> None:
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise _cannot_write(path, exc) from exc


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror or error}")
