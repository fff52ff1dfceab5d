"""
The output of attempts as a person reads it: in the order it came about, line by line, also while it grows.

Starts without pydantic and the like, as all views do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from adws.adw_modules import attempt_files
from adws.adw_modules.attempt_output import Source
from adws.adw_modules.json_value import JsonObject
from adws.cli import output

#: Bytes that are read of a growing file at a time.
_CHUNK = 65_536


def source_data(folder: Path, source: Source) -> dict[str, output.Printable]:
    """Return a file and the end of its text, for programs."""
    path = folder / source.name
    text = attempt_files.read_tail(folder, source.name) if source.phase else path.read_text("utf-8", "replace")

    return {
        "phase": source.phase or None,
        "attempt": source.attempt or None,
        "stream": source.stream or None,
        "path": str(path),
        "size": source.size,
        "text": text,
    }


def line_data(source: Source, line: str) -> JsonObject:
    """Return one line of a file that is followed, for programs."""
    return {
        "phase": source.phase or None,
        "attempt": source.attempt or None,
        "stream": source.stream or None,
        "line": line,
    }


class Tail:
    """What came into a file since the last look; one that was put in its place is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""

    def lines(self, *, is_last: bool) -> Iterator[str]:
        """Yield the lines that are whole; with *is_last* also one that no line break ended."""
        for piece in self._pieces():
            *whole, self._rest = (self._rest + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
        if is_last and self._rest:
            yield self._rest.decode("utf-8", "replace")
            self._rest = b""

    def _pieces(self) -> Iterator[bytes]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset, self._rest = found.st_ino, 0, b""
            file.seek(self._offset)
            while piece := file.read(_CHUNK):
                self._offset += len(piece)
                yield piece
