"""
The files of an attempt: `phases/<phase>/attempt-<n>.<what>` in the workflow's directory.

No attempt overwrites the output of another. Only the owner can access directories and files; symbolic links are never
followed, neither as parent directories nor as files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import durable_file
from adws.adw_modules.errors import UnsafePath, UsageError

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: The log of a workflow, in its own directory.
LOG_NAME = "adw.log"
#: Readable transcript of an agent's event stream.
TRANSCRIPT = "transcript.log"
#: Directory of all attempt files, below the workflow's own.
FOLDER = "phases"
#: Default size of the shown end of a file, in bytes.
TAIL_BYTES = 16_384

_PHASE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_KIND = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*")
_NAME = re.compile(r"attempt-([1-9][0-9]{0,8})\.(.+)")
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFile:
    """A file of an attempt, or the workflow's log, which has neither phase nor attempt."""

    name: str  #: relative to the workflow's directory
    size: int
    phase: str = ""
    attempt: int = 0
    kind: str = ""  #: stdout.log | stderr.log | setup-1.stdout.log | gate-1.stdout.log | result.json | ...

    @property
    def stream(self) -> str:
        """The displayed kind: stdout | stderr | setup-1.stdout | cleanup.stdout | gate-1.stdout | ..."""
        return self.kind.removesuffix(".log")

    @property
    def heading(self) -> str:
        """The heading shown above its lines."""
        return f"== {self.phase}, attempt {self.attempt}, {self.stream}" if self.phase else ""


class AttemptFiles:
    """The output and result files of one attempt at a phase."""

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
        """The file of its stdout."""
        return self.path("stdout.log")

    @property
    def stderr(self) -> Path:
        """The file of its stderr."""
        return self.path("stderr.log")

    @property
    def result(self) -> Path:
        """The file of its result, if it wrote one."""
        return self.path("result.json")

    def path(self, kind: str) -> Path:
        """Return the path of another file of this attempt, such as `issue.json`."""
        if not _KIND.fullmatch(kind):
            raise UsageError(f"{kind!r} cannot be the end of a file name: use such as stdout.log")

        return self._place / f"attempt-{self._attempt}.{kind}"

    def make_folder(self) -> None:
        """Make the directory; raise UnsafePath if it or its parent is anything but a real directory."""
        durable_file.make_directory(str(self._place))
        for place in (self._place.parent, self._place):
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                raise UnsafePath(f"{place} is not a directory of its own: move it away, adw makes it again")

    def write(self, kind: str, payload: bytes) -> Path:
        """Write *payload* to a new file, replacing an existing one; the file is not synced to disk."""
        path = self.path(kind)
        self.discard(kind)
        fd = os.open(path, _WRITE_FLAGS, durable_file.NEW_FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(payload)

        return path

    def discard(self, kind: str) -> None:
        """Remove a file left by an earlier run of the same attempt."""
        with contextlib.suppress(FileNotFoundError):
            self.path(kind).unlink()

    def read(self, kind: str, *, max_bytes: int) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist; raise UnsafePath or TooLarge."""
        try:
            return durable_file.read_file(str(self.path(kind)), max_bytes=max_bytes)[0]
        except FileNotFoundError:
            return None

    def has(self, kind: str) -> bool:
        """Return whether the file exists."""
        return self.path(kind).exists()

    def relative(self, path: Path) -> str:
        """Return *path* relative to the workflow's directory, as in the document."""
        return path.relative_to(self._folder).as_posix()

    def existing(self) -> tuple[str, ...]:
        """Return the files of this attempt, named as in the document."""
        prefix = f"{self._place.name}/attempt-{self._attempt}."

        return tuple(f.name for f in list_files(self._folder) if f.name.removeprefix(f"{FOLDER}/").startswith(prefix))


def list_files(folder: Path) -> tuple[AttemptFile, ...]:
    """Return the files of all attempts in the workflow's directory, sorted by phase, attempt and kind; no links."""
    result: list[AttemptFile] = []
    top = folder / FOLDER
    places = sorted(top.iterdir()) if top.is_dir() and not top.is_symlink() else []
    for place in (one for one in places if one.is_dir() and not one.is_symlink()):
        for path in place.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_file():
                continue
            result.append(
                AttemptFile(
                    phase=place.name,
                    attempt=int(match[1]),
                    kind=match[2],
                    name=path.relative_to(folder).as_posix(),
                    size=path.stat().st_size,
                )
            )

    return tuple(sorted(result, key=lambda file: (file.phase, file.attempt, file.kind)))


def read_tail(folder: Path, name: str, *, max_bytes: int = TAIL_BYTES) -> str:
    """Return the end of a file named as by `list_files`, from the beginning of a line; raise UnsafePath."""
    with _place_of(folder, name) as (directory, own):
        result, end = durable_file.look_at_end(own, directory=directory, size=max_bytes)
    if result.st_size > len(end):
        end = end.partition(b"\n")[2] or end

    return end.decode("utf-8", "replace")


def read_part(folder: Path, name: str, *, start: int, max_bytes: int) -> tuple[bytes, int]:
    """Return up to *max_bytes* of a file from *start*, and the file's size; raise UnsafePath, FileNotFoundError."""
    with _place_of(folder, name) as (directory, own):
        result, part = durable_file.look_at_part(own, directory=directory, start=start, size=max_bytes)

    return part, result.st_size


@contextlib.contextmanager
def _place_of(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the open directory and the name of an attempt's file; raise UnsafePath for any other file."""
    path = folder / name
    parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
    is_inside = len(parts) == 3 and parts[0] == FOLDER and _PHASE.fullmatch(parts[1]) and _NAME.fullmatch(parts[2])
    if not is_inside:
        raise UnsafePath(f"{name} is not a file of this workflow's attempts")
    directory = durable_file.open_directory(str(path.parent), follow=False)
    try:
        yield directory, path.name
    finally:
        os.close(directory)


# --- output of attempts in order, and new output since the last read -----------------------------------------------
#
# A spot is how far a client has read: an attempt and an offset in each of its files. Clients send it back unchanged as
# text; it is validated like all external input.


#: Order of the output files of an attempt; "" is the phase itself.
_TURNS = {"setup": 0, "cleanup": 1, "base": 2, "": 3, "gate": 4}
#: Bytes read at a time, and bytes of a file's end that are shown first.
PART_BYTES = 128 * 1024
FIRST_BYTES = 24 * 1024
#: Maximum shown characters of a line, and bytes after which an unfinished line is shown.
LINE_CHARACTERS = 4000
_LONGEST_LINE = 32 * 1024
_SPOT = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})~([1-9][0-9]{0,8})((?:~[a-z][a-z0-9.-]{0,60}:[0-9]{1,15}){0,40})"
)


def _place(source: AttemptFile) -> tuple[str, int, int, int, str]:
    """Return the sort key of a file within its attempt: set-up, clean-up, base check, the phase itself, gates."""
    *whose, stream = source.stream.split(".")
    what, _, number = whose[0].partition("-") if whose else ("", "", "")
    turn = _TURNS.get(what, _TURNS[""])

    return source.phase, source.attempt, turn, int(number) if number.isdigit() else 0, f"{stream != 'stdout'}{stream}"


def in_order(document: WorkflowDocument, files: Sequence[AttemptFile]) -> tuple[AttemptFile, ...]:
    """Return *files* by start of their attempt, then in the order they are written, stdout before stderr."""
    begun = {
        (phase.name, attempt.number): attempt.started_at for phase in document.phases for attempt in phase.attempts
    }

    return tuple(sorted(files, key=lambda one: (begun.get((one.phase, one.attempt), ""), _place(one))))


def outputs(folder: Path, document: WorkflowDocument, *, is_raw: bool = False) -> tuple[AttemptFile, ...]:
    """
    Return the output files of all attempts of the workflow in *folder*, in order.

    For an agent that is the transcript written by its runner, or its raw event stream if *is_raw* is set.
    """
    files = [file for file in list_files(folder) if file.kind.endswith(".log")]
    with_transcript = {(file.phase, file.attempt) for file in files if file.kind == TRANSCRIPT}
    hidden = TRANSCRIPT if is_raw else "stdout.log"

    return in_order(
        document, [one for one in files if one.kind != hidden or (one.phase, one.attempt) not in with_transcript]
    )


# --- following -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """How far a client has read."""

    phase: str
    attempt: int
    offsets: Mapping[str, int] = field(default_factory=dict)  #: stream -> bytes

    def __str__(self) -> str:
        """Return the spot as text for `spot_in`."""
        return "~".join([self.phase, str(self.attempt), *(f"{name}:{at}" for name, at in self.offsets.items())])


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """The output since a spot."""

    text: str
    spot: Spot | None  #: where to continue; None: there is no output at all
    left_out: int = 0  #: bytes left out before the text


def spot_in(text: str) -> Spot:
    """Return the spot in *text*; raise UsageError if it is invalid."""
    match = _SPOT.fullmatch(text)
    if match is None:
        raise UsageError("this is no place in the output of an attempt: open the log anew")
    offsets = (part.rpartition(":") for part in match[3].split("~") if part)

    return Spot(phase=match[1], attempt=int(match[2]), offsets={name: int(at) for name, _, at in offsets})


def begin(folder: Path, found: Sequence[AttemptFile], *, phase: str = "", attempt: int = 0) -> Followed:
    """Return the end of one attempt's output, by default that of the newest attempt in *found*."""
    groups = _groups(found)
    wanted = [key for key in groups if phase in ("", key[0]) and attempt in (0, key[1])]
    if not wanted:
        return Followed(text="", spot=None)
    name, number = wanted[-1]
    spot = Spot(phase=name, attempt=number)
    left_out = 0
    for source in groups[name, number]:
        start = max(0, source.size - FIRST_BYTES)
        if start:  # start at the first line that begins there, if there is one
            part = read_part(folder, source.name, start=start, max_bytes=FIRST_BYTES)[0]
            cut = part.find(b"\n")
            start += cut + 1 if 0 <= cut < len(part) - 1 else 0
        spot = replace(spot, offsets={**spot.offsets, source.stream: start})
        left_out += start
    followed = _read(folder, groups[name, number], spot)

    return replace(followed, left_out=left_out)


def follow(folder: Path, found: Sequence[AttemptFile], spot: Spot, *, has_ended: bool) -> Followed:
    """
    Return the output after *spot*, or that of the next attempt if this one is read to its end.

    *has_ended* means that the attempt writes nothing more: a last line without a line break is then complete.
    """
    groups = _groups(found)
    here = (spot.phase, spot.attempt)
    if here not in groups:
        return Followed(text="", spot=spot)
    later = list(groups)[list(groups).index(here) + 1 :]
    followed = _read(folder, groups[here], spot, is_last=has_ended or bool(later))
    if followed.text or not later:
        return followed
    name, number = later[0]

    return _read(folder, groups[name, number], Spot(phase=name, attempt=number))


def _groups(found: Sequence[AttemptFile]) -> dict[tuple[str, int], list[AttemptFile]]:
    """Return the files of each attempt, in the order in which the attempts were begun."""
    groups: dict[tuple[str, int], list[AttemptFile]] = {}
    for source in found:
        groups.setdefault((source.phase, source.attempt), []).append(source)

    return groups


def _read(folder: Path, sources: Sequence[AttemptFile], spot: Spot, *, is_last: bool = False) -> Followed:
    """Return the next part of each file of one attempt, with a heading above each part."""
    pieces, offsets = [], dict(spot.offsets)
    for source in sources:
        start = min(offsets.get(source.stream, 0), source.size)  # a file that replaced it may be shorter
        part = read_part(folder, source.name, start=start, max_bytes=PART_BYTES)[0]
        end = part.rfind(b"\n") + 1
        rest = len(part) - end
        if (is_last and rest) or rest >= _LONGEST_LINE:  # do not wait for the end of a line that is too long
            end = len(part)
        offsets[source.stream] = start + end
        if end:
            pieces.append(f"{source.heading}\n{clipped(part[:end].decode('utf-8', 'replace'))}")

    return Followed(text="".join(pieces), spot=replace(spot, offsets=offsets))


def clipped(text: str) -> str:
    """Return *text* with long lines cut and a final line break."""
    lines = (
        line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} [{len(line) - LINE_CHARACTERS} more]"
        for line in text.removesuffix("\n").split("\n")
    )

    return "\n".join(lines) + "\n"
