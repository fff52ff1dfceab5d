"""
One writer at a time on this machine: a thread lock inside the process, a flock between processes.

SQLite's own lock is taken by polling, so the newest writer may win for seconds while the oldest waits. The kernel's
flock has a queue. The lock file stays where it is for ever: two processes that lock an unlinked file and its successor
would both be in.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from adws.adw_modules.errors import DatabaseUnavailable, LockUnavailable

#: A turn that was taken: the lock among threads, and the descriptor of the lock among processes.
Turn: TypeAlias = tuple[threading.Lock, int]


class WriteTurn:
    """The right to write, taken in turn."""

    def __init__(self, path: Path, *, patience_seconds: float) -> None:
        self._path = path
        self._patience = patience_seconds
        self._threads = threading.Lock()
        self._fd: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the turn inside the block; raise DatabaseUnavailable after waiting long enough."""
        turn = self.take()
        try:
            yield
        finally:
            self.give_back(turn)

    def take(self) -> Turn:
        """Return the turn, which must be given back; raise as `held` does."""
        threads = self._threads
        if not threads.acquire(timeout=self._patience):
            raise self._too_long("another thread of this process")
        try:
            fd = self._open()
            self._lock(fd)
        except BaseException:
            threads.release()
            raise

        return threads, fd

    def give_back(self, turn: Turn) -> None:
        """Let the next one write."""
        threads, fd = turn  # what was taken is what is freed: a child forked meanwhile has other ones
        try:
            if self._fd == fd:
                self._unlock(fd)
        finally:
            threads.release()

    def close(self) -> None:
        """Close the lock file; the next turn opens it again."""
        with self._threads:
            self._close_file()

    def forget(self) -> None:
        """Start afresh, as a forked child must: a lock on the inherited descriptor would be its parent's."""
        self._threads = threading.Lock()  # a thread that exists only in the parent may have had the old one
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as exc:
                raise LockUnavailable(str(self._path), exc) from exc

        return self._fd

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._queue_up(fd)
        except OSError as exc:
            raise LockUnavailable(str(self._path), exc) from exc

    def _unlock(self, fd: int) -> None:
        """Give the turn back. This never fails: what was done in the turn is done, and the next one must get in."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            self._fd = None
            with suppress(OSError):
                os.close(fd)  # the lock goes with its descriptor; the next turn opens a new one

    def _queue_up(self, fd: int) -> None:
        """Wait in the kernel's queue, which has no time limit: so a thread stands in it, and this one may give up."""
        place = _Place(fd)
        try:
            self._send(place)
            place.arrived.wait(self._patience)
        except BaseException:  # an interrupt: leave the queue, or the turn would never be given back
            self._leave(place)
            raise
        if self._leave(place):
            raise self._too_long("another process")
        if place.error is not None:
            raise LockUnavailable(str(self._path), place.error) from place.error

    def _send(self, place: _Place) -> None:
        try:
            threading.Thread(target=place.wait, name="adw-write-turn", daemon=True).start()
        except RuntimeError as exc:
            os.close(place.fd)  # nobody stands in the queue who would do it when the place is left
            raise DatabaseUnavailable(
                f"cannot wait for {self._path}: {exc}; nothing was changed: let this process have more threads"
            ) from exc

    def _leave(self, place: _Place) -> bool:
        """Give the place up, False when the turn came at the last moment."""
        if not place.leave():
            return False
        self._fd = None  # the waiting thread has the descriptor now and closes it

        return True

    def _too_long(self, who: str) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{who} has been writing for {self._patience:.0f} s and holds {self._path}: "
            "look whether it is stopped or stuck (fuser shows who), then try again"
        )


class _Place:
    """A place in the kernel's queue for a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._deciding = threading.Lock()
        self._left = False
        self.arrived = threading.Event()
        self.error: OSError | None = None  #: why the turn will never come; `arrived` is set then too

    def wait(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as exc:
            self.error = exc
        with self._deciding:
            if self._left:
                self._give_up()
            else:
                self.arrived.set()

    def leave(self) -> bool:
        with self._deciding:
            self._left = not self.arrived.is_set()

        return self._left

    def _give_up(self) -> None:
        # A child forked meanwhile may have the same descriptor: closing ours would leave the lock with it.
        with suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)
