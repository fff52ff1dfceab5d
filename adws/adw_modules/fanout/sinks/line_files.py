"""
Sinks that are files of lines: JSON Lines and CSV.

Each part is in the file once, whoever writes it and however often, wherever a writer is killed. Under the lock of the
file: what a dead writer left is settled first (whole: kept; torn: cut off), then the part is written down, then it is
written, and then it is settled. What people write into the file is never cut. The ledger is in `.adw-sinks` beside the
file, which git does not see.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from adws.adw_modules import durable_file, sink_rows
from adws.adw_modules.errors import SinkRefused, UnsafePath
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.phase_checks import why_outside

#: Directory of the ledgers, beside the files.
LEDGERS = ".adw-sinks"
#: Longest header of a CSV file.
MAX_HEADER_BYTES = 1 << 16
#: Ledgers that are kept open.
KEPT = 8

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


class PartLike(Protocol):
    """What one call saved, or was about to."""

    @property
    def sink_key(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def sha256(self) -> str: ...


class Ledger(Protocol):
    """What was saved to a file (`db.sink_ledger.SinkLedger`)."""

    def has(self, sink_key: str) -> bool: ...
    def unsettled(self) -> PartLike | None: ...
    def intend(self, sink_key: str, *, start: int, length: int, sha256: str) -> None: ...
    def settle(self, sink_key: str) -> None: ...
    def drop(self, sink_key: str) -> None: ...
    def close(self) -> None: ...


#: Ledgers that a parent process has open: never used, never closed, never collected.
_PARENTS: list[Ledger] = []

#: Makes the bytes of a part; gets what reads the first line of the file, None when that is empty.
Compose = Callable[[Callable[[], bytes] | None], bytes]


class LineFiles:
    """Saves rows to files below a working directory."""

    def __init__(self, open_ledger: Callable[[Path], Ledger]) -> None:
        self._open_ledger = open_ledger
        self._open: dict[Path, tuple[int, os.stat_result, Ledger]] = {}

    def save_json(self, rows: list[JsonObject], *, root: Path, path: str, sink_key: str) -> bool:
        """Append *rows* to a file of JSON Lines, once for *sink_key*; say whether this did it."""
        return self._save(root, path, sink_key, lambda _header: sink_rows.json_lines(rows))

    def save_csv(self, rows: list[JsonObject], *, root: Path, path: str, sink_key: str, delimiter: str = ",") -> bool:
        """Append *rows* to a file of CSV, whose first line names the columns; once for *sink_key*."""

        def compose(header: Callable[[], bytes] | None) -> bytes:
            columns = sink_rows.columns_of(rows)
            if header is None:
                return sink_rows.csv_lines(rows, columns, delimiter=delimiter, with_header=True)
            known = sink_rows.csv_columns(header(), delimiter=delimiter)
            sink_rows.refuse_unknown(columns, known, path)

            return sink_rows.csv_lines(rows, known, delimiter=delimiter, with_header=False)

        return self._save(root, path, sink_key, compose)

    def close(self) -> None:
        """Close the ledgers."""
        while self._open:
            self._let_go(next(iter(self._open)))

    # --- one part ----------------------------------------------------------------------------------------------

    def _save(self, root: Path, path: str, sink_key: str, compose: Compose) -> bool:
        place = _inside(root, path)
        with _locked(place) as fd:
            ledger = self._ledger(place)
            _settle_left(fd, ledger, place)
            if ledger.has(sink_key):
                return False
            size = os.fstat(fd).st_size
            payload = compose(partial(_header, fd, place) if size else None)
            if size and os.pread(fd, 1, size - 1) != b"\n":
                payload = b"\n" + payload  # somebody's last line has no end
            ledger.intend(sink_key, start=size, length=len(payload), sha256=hashlib.sha256(payload).hexdigest())
            _write(fd, payload, at=size)
            if not size:
                durable_file.sync_directory_at(str(place.parent))
            ledger.settle(sink_key)

        return True

    def _ledger(self, place: Path) -> Ledger:
        """Return the ledger of a file, open; another process' or that of a directory that is gone is not used."""
        path = _ledger_path(place)
        found = self._open.get(path)
        if found is not None:
            pid, seen, ledger = found
            if pid == os.getpid() and _is_same(path, seen):
                return ledger
            self._let_go(path)
        while len(self._open) >= KEPT:
            self._let_go(next(iter(self._open)))
        ledger = self._open_ledger(path)
        self._open[path] = (os.getpid(), path.stat(), ledger)

        return ledger

    def _let_go(self, path: Path) -> None:
        pid, _, ledger = self._open.pop(path)
        if pid == os.getpid():
            ledger.close()
        else:
            _PARENTS.append(ledger)


def _is_same(path: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), seen)
    except FileNotFoundError:
        return False


# --- places ----------------------------------------------------------------------------------------------------


def _inside(root: Path, path: str) -> Path:
    """Return the file *path* below *root*; raise SinkRefused when it is not there, also by way of a link."""
    if why := why_outside(path):
        raise SinkRefused(f"the path {path!r} of the sink {why}")
    place = root / path
    durable_file.make_directory(str(place.parent))
    if not place.parent.resolve().is_relative_to(root.resolve()):
        raise SinkRefused(f"the path {path!r} of the sink leaves the working directory by a link: move that away")

    return place


def _ledger_path(place: Path) -> Path:
    """Return where the ledger of a file is, and see to it that git leaves it alone."""
    folder = place.parent / LEDGERS
    if not folder.is_dir() or folder.is_symlink():
        if folder.is_symlink():
            raise SinkRefused(f"{folder} is a link: move it away, adw makes a directory of its own")
        durable_file.make_directory(str(folder))
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")

    return folder / f"{place.name}.db"


@contextmanager
def _locked(place: Path) -> Iterator[int]:
    """Open the file and hold its lock; a file that was moved away while we waited is not the one any more."""
    while True:
        try:
            fd = os.open(place, _FLAGS, 0o666)
        except OSError as exc:
            raise UnsafePath(f"{place} cannot be written by a sink: {exc.strerror or exc}") from exc
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UnsafePath(f"{place} is not a regular file: move it away, or give the sink another path")
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_same(place, os.fstat(fd)):
                yield fd
                return
        finally:
            with suppress(OSError):  # closing frees it; a child that was forked meanwhile must not keep it
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


# --- bytes -----------------------------------------------------------------------------------------------------


def _settle_left(fd: int, ledger: Ledger, place: Path) -> None:
    """Find out what became of a part whose writer vanished: it is in the file, or nothing of it is."""
    part = ledger.unsettled()
    if part is None:
        return
    size, end = os.fstat(fd).st_size, part.start + part.length
    if size >= end and _digest(fd, part.start, part.length) == part.sha256:
        os.fsync(fd)
        ledger.settle(part.sink_key)
        return
    if size > end:
        raise SinkRefused(
            f"{place} was changed while a part of it was being written (at byte {part.start}): look at it, and remove"
            f" {_ledger_path(place)} when it is as it shall be"
        )
    if size > part.start:
        os.ftruncate(fd, part.start)
        os.fsync(fd)
    ledger.drop(part.sink_key)


def _digest(fd: int, start: int, length: int) -> str:
    digest = hashlib.sha256()
    while length > 0 and (chunk := os.pread(fd, min(length, _CHUNK), start)):
        digest.update(chunk)
        start, length = start + len(chunk), length - len(chunk)

    return digest.hexdigest()


def _header(fd: int, place: Path) -> bytes:
    """Return the first line of a file that is not empty."""
    begin = os.pread(fd, MAX_HEADER_BYTES, 0)
    line, end, _ = begin.partition(b"\n")
    if not end and len(begin) == MAX_HEADER_BYTES:
        raise SinkRefused(f"the first line of {place} is longer than {MAX_HEADER_BYTES} bytes")

    return line


def _write(fd: int, payload: bytes, *, at: int) -> None:
    """Put *payload* into the file, durably."""
    left = memoryview(payload)
    place = at
    while left:
        written = os.pwrite(fd, left, place)
        left, place = left[written:], place + written
    os.fsync(fd)
