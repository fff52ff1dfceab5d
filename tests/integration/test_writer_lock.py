"""The writer lock is released by whoever had it, whatever happens to its file, and waited for only so long."""

from __future__ import annotations

import fcntl
import os

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.sqlite import LONGEST_PAUSE_SECONDS, WriterLock
from adws.adw_modules.errors import DatabaseUnavailable, LockUnavailable
from adws.testing import FakeClock

#: Far more than any of this takes: it only ends a test that would hang.
LONG_SECONDS = 20.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adw.db.write-lock"


@pytest.fixture
def holder(path):
    """Another open file with the lock, as another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield fd
    os.close(fd)


def is_free(path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


class ActingClock(FakeClock):
    """A clock whose sleeps do something: what another process does meanwhile."""

    def __init__(self, acts) -> None:
        super().__init__()
        self._acts = iter(acts)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        next(self._acts, lambda: None)()


def test_closing_between_writers_keeps_the_lock_that_threads_wait_on(path):
    """Threads that wait on one lock while others take another would write at the same time."""
    lock = WriterLock(path, patience_seconds=LONG_SECONDS, clock=SystemClock())
    before = lock._threads
    with lock.held():
        pass

    lock.close()

    assert lock._threads is before
    assert lock._fd is None
    with lock.held():
        assert not is_free(path)
    assert is_free(path)


def test_a_writer_gets_the_lock_as_soon_as_another_process_releases_it(path, holder):
    clock = ActingClock([lambda: None, lambda: None, lambda: fcntl.flock(holder, fcntl.LOCK_UN)])
    lock = WriterLock(path, patience_seconds=30.0, clock=clock)

    with lock.held():
        assert not is_free(path)

    assert len(clock.slept) == 3
    assert clock.slept == sorted(clock.slept), "pauses grow"


def test_a_writer_gives_up_when_its_patience_is_over(path, holder):
    clock = FakeClock()
    lock = WriterLock(path, patience_seconds=30.0, clock=clock)

    with pytest.raises(DatabaseUnavailable, match=r"another process has been writing for 30 s.*write-lock.*fuser"):
        lock.acquire()

    assert sum(clock.slept) == pytest.approx(30.0, abs=2 * LONGEST_PAUSE_SECONDS)
    assert max(clock.slept) == LONGEST_PAUSE_SECONDS
    fcntl.flock(holder, fcntl.LOCK_UN)
    assert is_free(path), "who gave up does not get the lock later"
    with lock.held():
        assert not is_free(path)


def test_a_writer_that_is_interrupted_while_it_waits_leaves_the_lock_to_others(path, holder):
    def interrupt() -> None:
        raise KeyboardInterrupt

    lock = WriterLock(path, patience_seconds=30.0, clock=ActingClock([interrupt]))
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()

    fcntl.flock(holder, fcntl.LOCK_UN)
    assert is_free(path)
    with lock.held():
        assert not is_free(path)


def test_a_lock_that_breaks_while_a_writer_waits_is_reported_at_once(path, holder, monkeypatch):
    def break_locks() -> None:
        monkeypatch.setattr(fcntl, "flock", no_locks)

    def no_locks(fd, how) -> None:
        raise OSError(37, "No locks available")

    clock = ActingClock([break_locks])
    lock = WriterLock(path, patience_seconds=30.0, clock=clock)

    with pytest.raises(LockUnavailable, match="No locks available"):
        lock.acquire()
    assert len(clock.slept) == 1
