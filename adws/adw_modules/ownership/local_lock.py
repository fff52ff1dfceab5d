"""
The file lock a worker holds while it works: `<root>/<adw_id>/.lock`.

The kernel releases it however the worker ends, so holding it proves that nobody else on this machine is in the middle
of a write. The file is never unlinked: otherwise two processes could hold "the" lock on two different files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from threading import Lock

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import LOCK_NAME
from adws.adw_modules.errors import LockUnavailable, UnsafePath
from adws.adw_modules.identifiers import check_adw_id


class LocalLock:
    """One lock file per workflow below *root*. Threads share the locks; a forked child holds none of them."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._held: dict[str, int] = {}  #: workflow -> descriptor
        self._guard = Lock()
        self._pid = os.getpid()

    def try_hold(self, adw_id: str) -> bool:
        """Take the lock without waiting; return False if anyone has it, including this process."""
        path = self._path(adw_id)
        with self._guard:
            if adw_id in self._held:
                return False
            _make_folder(os.path.dirname(path))  # noqa: PTH120 - runs once per run: takes a tenth of the time of Path
            fd = _locked(path)
            if fd is None:
                return False
            self._held[adw_id] = fd

        return True

    def let_go(self, adw_id: str) -> None:
        """Release the lock; do nothing if it is not ours. The file stays."""
        self._path(adw_id)
        with self._guard:
            fd = self._held.pop(adw_id, None)
        if fd is not None:
            os.close(fd)

    def is_held(self, adw_id: str) -> bool:
        """Say whether anyone holds the lock, including this process."""
        path = self._path(adw_id)
        with self._guard:
            if adw_id in self._held:
                return True
            if not os.path.exists(path):  # noqa: PTH110 - as above
                return False
            fd = _locked(path)
            if fd is None:
                return True
            os.close(fd)

        return False

    def _path(self, adw_id: str) -> str:
        if self._pid != os.getpid():
            for fd in self._held.values():
                os.close(fd)  # the parent has the lock as long as its own descriptor is open
            self._start_afresh()

        return f"{self._root}/{check_adw_id(adw_id)}/{LOCK_NAME}"


def _locked(path: str) -> int | None:
    """Return a descriptor that holds the lock, or None if another process holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafePath(f"{path} is a symbolic link: remove it, adw does not follow links") from exc
        raise LockUnavailable(path, exc) from exc
    try:
        # If the disk has no flock, never use another kind of lock: it would outlive its holder.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as exc:
        os.close(fd)
        raise LockUnavailable(path, exc) from exc

    return fd


def _make_folder(path: str) -> None:
    """
    Make the directory of a workflow; raise UnsafePath for a link.

    Not synced: a store with a document in it syncs the directory and its name together with the document.
    """
    try:
        try:
            os.mkdir(path, durable_file.NEW_DIRECTORY_MODE)  # noqa: PTH102 - as above
        except FileNotFoundError:
            durable_file.make_directory(path)
        except FileExistsError:
            pass
        is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError as exc:
        raise LockUnavailable(path, exc) from exc
    if not is_directory:
        raise UnsafePath(f"{path} is not a directory of its own: move it away, adw does not follow links")
