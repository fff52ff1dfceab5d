"""
The file lock a worker holds while it works: `<root>/<adw_id>/.lock`.

The kernel frees it when the worker ends, however it ends, so holding it is proof that nobody else on this machine is in
the middle of a write. The file is never unlinked: two processes could then hold "the" lock on two different files. It
has a module of its own because the library behind it is slow to import, and looking at locks must start fast.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from threading import Lock

from filelock import FileLock, Timeout

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import LOCK_NAME
from adws.adw_modules.errors import LockUnavailable, UnsafePath
from adws.adw_modules.identifiers import check_adw_id


class LocalLock:
    """One lock file for each workflow below *root*; safe to share between threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, FileLock] = {}
        self._guard = Lock()
        _OPEN.add(self)

    def start_in_child(self) -> None:
        """Renew the guard after a fork: a thread that exists only in the parent may have had the old one."""
        self._guard = Lock()

    def try_hold(self, adw_id: str) -> bool:
        """Take the lock without waiting; False when anybody has it, this process included."""
        path = self._path(adw_id)
        with self._guard:
            if self._is_ours(adw_id):
                return False
            _make_folder(path.parent)
            lock = _new_lock(path)
            if not _acquire(lock, path):
                return False
            self._held[adw_id] = lock

        return True

    def let_go(self, adw_id: str) -> None:
        """Free the lock; nothing happens when it is not ours. The file stays."""
        with self._guard:
            lock = self._held.pop(check_adw_id(adw_id), None)
        if lock is not None:
            lock.release(force=True)

    def is_held(self, adw_id: str) -> bool:
        """Say whether anybody holds the lock, this process included."""
        path = self._path(adw_id)
        with self._guard:
            if self._is_ours(adw_id):
                return True
            if not path.exists():
                return False
            lock = _new_lock(path)
            if not _acquire(lock, path):
                return True
            lock.release()

        return False

    def _path(self, adw_id: str) -> Path:
        return self._root / check_adw_id(adw_id) / LOCK_NAME

    def _is_ours(self, adw_id: str) -> bool:
        # After a fork the child has the table but not the locks; the library knows.
        held = self._held.get(adw_id)
        return held is not None and held.is_locked


def _make_folder(path: Path) -> None:
    """Make the directory of a workflow, durably: its document will be in it. Raise UnsafePath for a link."""
    try:
        durable_file.make_directory(str(path))
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError as exc:
        raise LockUnavailable(str(path), exc) from exc
    if not is_directory:
        raise UnsafePath(f"{path} is not a directory of its own: move it away, adw does not follow links")


def _new_lock(path: Path) -> FileLock:
    # No soft lock where flock is missing: that one outlives its holder. Threads share the hold: the worker that takes
    # the lock and the one that frees it need not be the same thread.
    return FileLock(path, mode=0o600, timeout=0, thread_local=False, fallback_to_soft=False, preserve_lock_file=True)


def _acquire(lock: FileLock, path: Path) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafePath(f"{path} is a symbolic link: remove it, adw does not follow links") from exc
        raise LockUnavailable(str(path), exc) from exc

    return True


#: Every set of locks of this process.
_OPEN: weakref.WeakSet[LocalLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for locks in list(_OPEN):
        locks.start_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
