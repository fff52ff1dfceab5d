"""The turn to write is given back by whoever had it, whatever happens to its lock file meanwhile."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from adws.adw_modules.db import sqlite
from adws.adw_modules.db.sqlite import WriterLock
from adws.adw_modules.errors import DatabaseUnavailable

#: Far more than any of this takes: it only ends a test that would hang.
LONG_SECONDS = 20.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adw.db.write-lock"


def is_free(path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_closing_between_turns_leaves_those_who_wait_in_the_queue(path):
    """Threads that wait on one lock while others take another would write at the same time."""
    turn = WriterLock(path, patience_seconds=LONG_SECONDS)
    before = turn._threads
    with turn.held():
        pass

    turn.close()

    assert turn._threads is before
    assert turn._fd is None
    with turn.held():
        assert not is_free(path)
    assert is_free(path)


def test_a_child_forked_inside_a_turn_leaves_the_block_without_trouble(path):
    turn = WriterLock(path, patience_seconds=LONG_SECONDS)

    with turn.held():
        turn.forget()  # as the child does

    with turn.held():
        pass


def test_a_place_that_was_given_up_keeps_no_lock_for_a_child_that_shares_its_descriptor(path):
    turn = WriterLock(path, patience_seconds=0.01)
    other = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    shared = os.dup(turn._open())  # a forked child has the same open file
    try:
        with pytest.raises(DatabaseUnavailable, match="another process"), turn.held():
            pass
        (waiting,) = [thread for thread in threading.enumerate() if thread.name == "adw-write-turn"]
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.join(LONG_SECONDS)

        assert is_free(path)
    finally:
        os.close(shared)
        os.close(other)


def test_no_thread_to_wait_with_is_told_and_leaves_nothing_open(path, monkeypatch):
    turn = WriterLock(path, patience_seconds=LONG_SECONDS)
    other = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    opened = turn._open()

    def no_thread(_) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite.threading.Thread, "start", no_thread)
        with pytest.raises(DatabaseUnavailable, match=r"can't start new thread.*more threads"), turn.held():
            pass

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)
    os.close(other)
    with turn.held():
        assert not is_free(path)
