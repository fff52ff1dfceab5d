"""
Where log lines go: a file for each workflow, and a terminal or a pipe.

The work never stops for the log. A full disk, a broken pipe, a deleted directory or a closed stream is counted and said
once on standard error. Several processes may write the same file: each line is one append, and the file is only moved
aside under a lock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from adws.adw_modules.errors import UsageError

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class QuietHandler(logging.Handler, ABC):
    """A handler whose failures are counted and said once, never raised."""

    #: What is written to, for messages.
    target = "the log"

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0  #: records that could not be written

    @abstractmethod
    def write_line(self, line: str) -> None:
        """Write one record; may raise."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*, or count that it could not be written."""
        try:
            self.write_line(self.format(record))
        except Exception as exc:  # noqa: BLE001 - a sink: whatever happens here must not reach the work
            self.failures += 1
            if self.failures == 1:
                _say_on_stderr(f"adw: cannot write {self.target}: {_reason(exc)}; the work goes on without it")


class StreamLog(QuietHandler):
    """Lines to a stream. One that is backed by a file descriptor is written to directly, a line at a time."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.target = f"the log to {getattr(stream, 'name', 'its stream')}"

    def write_line(self, line: str) -> None:
        """Write past the stream's buffer: what stays in the buffer of a broken pipe fails again at exit."""
        self.stream.flush()
        try:
            descriptor = self.stream.fileno()
        except (OSError, AttributeError):
            self.stream.write(line + "\n")
            self.stream.flush()
            return

        _write_all(descriptor, (line + "\n").encode("utf-8", "backslashreplace"))


class LogFile(QuietHandler):
    """
    Lines to a file that is moved aside when it is full: `adw.log`, `adw.log.1`, ...

    A writer holds a shared lock while it appends and an exclusive one while it moves files; both are only tried, never
    waited for, because a stopped process must not stop another. If the lock is busy the line is written all the same.
    """

    def __init__(self, path: Path, *, max_bytes: int, backups: int, adw_id: str = "") -> None:
        if max_bytes < 1024 or backups < 1:
            raise UsageError(f"a log needs at least 1024 bytes and 1 backup, not {max_bytes} and {backups}")

        super().__init__()
        self.path, self.max_bytes, self.backups, self.adw_id = path, max_bytes, backups, adw_id
        self.target = f"the log {path}"
        self._name = os.fspath(path)  #: on the way of every line: a Path would be turned into a text each time
        self._file = self._lock_file = -1
        self._opened = (0, 0)  #: device and inode of the file that is open
        self._owner = 0  #: pid that opened the files: a child opens its own, a lock belongs to one opening
        self._is_torn = False

    def open(self) -> None:
        """Make the directory and open the file; a failure is counted at the first line."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            _say_on_stderr(f"adw: cannot make {self.path.parent}: {_reason(exc)}; the work goes on without this log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def filter(self, record: logging.LogRecord) -> bool:
        """Take only the records of our workflow, when we have one."""
        return not self.adw_id or getattr(record, "adw_id", "") == self.adw_id

    def write_line(self, line: str) -> None:
        """Append one line, in the file that has the name now."""
        data = (line + "\n").encode("utf-8", "backslashreplace")
        if self._append_if_room(data):
            return
        self._rotate(len(data))
        with self._locked(fcntl.LOCK_SH):
            self._follow_name()
            self._append(data)

    def close(self) -> None:
        """Close the file; the next line, if one comes, opens it again."""
        self._close_files()
        super().close()

    def _append_if_room(self, data: bytes) -> bool:
        """Append *data* unless the file is too full for it: the way of nearly every line, with as few calls as go."""
        is_locked = self._try_lock(fcntl.LOCK_SH)
        try:
            if self._follow_name() + len(data) > self.max_bytes:
                return False
            self._append(data)
        finally:
            if is_locked:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)

        return True

    def _append(self, data: bytes) -> None:
        """Write in one call. After a write that was cut short the next line starts on a line of its own."""
        prefix = b"\n" if self._is_torn else b""
        written = os.write(self._file, prefix + data)
        self._is_torn = written != len(prefix + data)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow_name(self) -> int:
        """Open the file anew when another process moved it aside or deleted it; return its size."""
        if self._file >= 0:
            named = self._named()
            if named is not None and (named.st_dev, named.st_ino) == self._opened:
                return named.st_size
            os.close(self._file)
            self._file = -1
        self._file = os.open(self._name, _FLAGS, 0o600)
        found = os.fstat(self._file)
        self._opened = (found.st_dev, found.st_ino)

        return found.st_size

    def _named(self) -> os.stat_result | None:
        """Return what has our name now."""
        try:
            return os.lstat(self._name)
        except FileNotFoundError:
            return None

    def _rotate(self, needed: int) -> None:
        """Move the files on by one number, unless somebody else just did."""
        with self._locked(fcntl.LOCK_EX) as is_ours:
            size = self._follow_name()
            if not is_ours or size == 0 or size + needed <= self.max_bytes:
                return
            for number in range(self.backups - 1, 0, -1):
                if self._numbered(number).exists():
                    self._numbered(number).replace(self._numbered(number + 1))
            self.path.replace(self._numbered(1))
            self._follow_name()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    @contextmanager
    def _locked(self, kind: int) -> Iterator[bool]:
        """Hold the lock inside the block if it is free; say whether it was."""
        is_locked = self._try_lock(kind)
        try:
            yield is_locked
        finally:
            if is_locked:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _try_lock(self, kind: int) -> bool:
        if self._owner != os.getpid():
            self._close_files()
        if self._lock_file < 0:
            self._owner = os.getpid()
            self._lock_file = os.open(f"{self._name}.lock", _FLAGS, 0o600)
        try:
            fcntl.flock(self._lock_file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False

        return True

    def _close_files(self) -> None:
        for descriptor in (self._file, self._lock_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock_file = -1


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _reason(exc: Exception) -> str:
    return str(getattr(exc, "strerror", None) or f"{type(exc).__name__}: {exc}")


def _say_on_stderr(text: str) -> None:
    """Tell a person, if there is a way to."""
    try:
        StreamLog(sys.stderr).write_line(text)
    except (OSError, ValueError, AttributeError):
        return
