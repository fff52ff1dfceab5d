"""
The output of attempts as a person reads it: in the order it came about, line by line, also while it grows.

Starts without pydantic and the like, as all views do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules import attempt_files
from adws.adw_modules.attempt_files import AttemptFile
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.cli import output

#: Bytes that are read of a growing file at a time.
_CHUNK = 65_536
#: When the output of an attempt is written; "" stands for that of the phase itself.
_TURNS = {"setup": 0, "cleanup": 1, "": 2, "gate": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file that is shown."""

    name: str  #: relative to the workflow's directory
    size: int
    phase: str = ""  #: "" for the log of the workflow
    attempt: int = 0
    stream: str = ""  #: stdout | stderr | setup-1.stdout | cleanup.stdout | gate-1.stdout | ...

    @property
    def heading(self) -> str:
        """What stands above its lines."""
        return f"== {self.phase}, attempt {self.attempt}, {self.stream}" if self.phase else ""


def in_order(document: JsonObject, files: Sequence[AttemptFile]) -> tuple[Source, ...]:
    """Return *files* as their attempts were begun, those of one attempt as they are written, stdout before stderr."""
    begun = _begun(document)
    sources = [
        Source(
            name=file.name,
            size=file.size,
            phase=file.phase,
            attempt=file.attempt,
            stream=file.kind.removesuffix(".log"),
        )
        for file in files
    ]

    return tuple(sorted(sources, key=lambda one: (begun.get((one.phase, one.attempt), ""), _place(one))))


def _begun(document: JsonObject) -> dict[tuple[str, int], str]:
    """Return when each attempt was begun, as the document has it."""
    found: dict[tuple[str, int], str] = {}
    for phase in _objects(document.get("phases")):
        for attempt in _objects(phase.get("attempts")):
            number = attempt.get("number")
            if isinstance(number, int):
                found[str(phase.get("name")), number] = str(attempt.get("started_at"))

    return found


def _place(source: Source) -> tuple[str, int, int, int, str]:
    """Return where a file comes among those of its attempt: set-up, clean-up, the phase itself, its gates."""
    *whose, stream = source.stream.split(".")
    what, _, number = whose[0].partition("-") if whose else ("", "", "")
    turn = _TURNS.get(what, _TURNS[""])

    return source.phase, source.attempt, turn, int(number) if number.isdigit() else 0, f"{stream != 'stdout'}{stream}"


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


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
