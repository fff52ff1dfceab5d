"""
Replace a file so that a crash or power cut leaves either the old or the new file, complete.

The order of steps guarantees this: temp file in the same directory, all bytes, sync, rename, sync of the directory.
Every function works relative to an open directory, never follows a symbolic link and never waits for a FIFO. A temp
file is opened with O_EXCL and locked (flock), so it has at most one writer, and one of a dead writer is recognised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

from adws.adw_modules.errors import AdwError, DurabilityUnknown, StateWriteFailed, UnsafePath

#: Modes of new files and new directories.
NEW_FILE_MODE = 0o600
NEW_DIRECTORY_MODE = 0o700

_TEMP_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Flags to open a file that may have been replaced by a link or a FIFO.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 20


class TempBusy(Exception):
    """Another writer is using this temp name."""


class TempBlocked(Exception):
    """A directory exists at the temp name: this writer was fenced out."""


class TooLarge(Exception):
    """A file has more bytes than its reader allows."""


def open_directory(path: str, *, follow: bool = True) -> int:
    """Return a descriptor of the directory *path*; if *follow* is False, a symbolic link raises OSError."""
    return os.open(path, _DIRECTORY_FLAGS if follow else _DIRECTORY_FLAGS | os.O_NOFOLLOW)


def make_directory(path: str) -> None:
    """Make *path* and its missing parents, durably; do nothing if it exists."""
    try:
        os.mkdir(path, NEW_DIRECTORY_MODE)  # noqa: PTH102 - Path.mkdir would make another object for the same call
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.split(path)[0]
        if parent in {"", path}:
            raise
        make_directory(parent)
        make_directory(path)
        return
    sync_directory_at(path)
    sync_directory_at(os.path.split(path)[0] or ".")


def sync_directory_at(path: str) -> None:
    """Make the names in the directory *path* durable."""
    fd = open_directory(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(name: str, *, directory: int) -> None:
    """Make the bytes of the file *name* durable, even if another program wrote them."""
    fd = _open_to_read(name, directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def claim_temp(directory: int, name: str, *, wait: bool = False) -> int:
    """
    Return a descriptor of the new, empty and locked temp file *name*; keep it open until the rename.

    A temp left by a dead writer is removed. If its writer is alive, wait for it or raise TempBusy.
    """
    while True:
        try:
            fd = os.open(name, _TEMP_FLAGS, NEW_FILE_MODE, dir_fd=directory)
        except FileExistsError:
            _clear_stale(directory, name, wait=wait)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and lock, another writer may have mistaken the temp for an abandoned one and removed it.
            if os.fstat(fd).st_nlink:
                return fd
        except BlockingIOError:
            pass
        except BaseException:
            discard_temp(directory, name, fd)
            raise
        os.close(fd)


def discard_temp(directory: int, name: str, fd: int) -> None:
    """Remove the temp *name* of *fd* and close *fd*. Keeps a tombstone at *name*; no error here hides a prior one."""
    try:
        if is_at(directory, name, fd):
            os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # the next writer recognises it as abandoned, because its lock ends with *fd*
    finally:
        close_quietly(fd)


def _clear_stale(directory: int, name: str, *, wait: bool) -> None:
    """Remove the temp *name* unless a live writer has it; raise TempBusy or TempBlocked."""
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise _unsafe(name, exc) from exc
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise TempBlocked
        if not stat.S_ISREG(mode):
            raise UnsafePath(f"{name} is not a regular file: move it away")
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        # We hold the lock: its writer is gone, has finished (the name is another file), or will see that we removed it.
        if is_at(directory, name, fd):
            os.unlink(name, dir_fd=directory)
    except BlockingIOError as exc:
        raise TempBusy from exc
    except FileNotFoundError:
        return
    finally:
        os.close(fd)


def is_at(directory: int, name: str, fd: int) -> bool:
    """Say whether *name* is the file that *fd* is open on."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(info, os.fstat(fd))


def fill(fd: int, payload: bytes, *, mode: int) -> None:
    """Write *payload* to the new file *fd*, set its mode and sync it. A failed sync is never repeated."""
    left = memoryview(payload)
    while left:
        written = os.write(fd, left)
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        left = left[written:]
    os.fchmod(fd, mode)
    os.fsync(fd)


def settle(directory: int, fd: int) -> None:
    """Finish a replacement after its rename: close the file and make the new name durable, each once."""
    _unlock_quietly(fd)
    try:
        os.close(fd)
    except InterruptedError:
        pass  # the descriptor is closed anyway
    finally:
        os.fsync(directory)


def _unlock_quietly(fd: int) -> None:
    # A child forked meanwhile has the descriptor too: closing only ours would leave the file locked.
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        return


def link_previous(directory: int, name: str, previous: str) -> None:
    """
    Make *previous* a second name of *name*, which is about to be replaced.

    A link leaves no moment without *name*. An old *previous* is unlinked first and never overwritten, so a writer that
    stalls here and later continues can only link the current file, never an older one.
    """
    try:  # noqa: SIM105 - runs on each step, and `suppress` costs three calls
        os.unlink(previous, dir_fd=directory)
    except FileNotFoundError:
        pass
    try:  # noqa: SIM105 - as above
        os.link(name, previous, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        pass  # a writer that stalled at this point linked it already


def read_file(name: str, *, directory: int | None = None, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the bytes of the regular file *name* and its stat; raise FileNotFoundError, UnsafePath or TooLarge."""
    fd = _open_to_read(name, directory)
    try:
        result = _regular(fd, name)
        if result.st_size > max_bytes:
            raise TooLarge(f"it has {result.st_size} bytes, the limit is {max_bytes}")
        return _read_all(fd, max_bytes), result
    finally:
        os.close(fd)


def look_at_end(name: str, *, directory: int, size: int) -> tuple[os.stat_result, bytes]:
    """Return the stat of the regular file *name* and its last *size* bytes; raise as `read_file` does."""
    return _look(name, directory, size, lambda length: max(0, length - size))


def look_at_part(name: str, *, directory: int, start: int, size: int) -> tuple[os.stat_result, bytes]:
    """Return the stat of the regular file *name* and up to *size* bytes from *start*; raise as `read_file` does."""
    return _look(name, directory, size, lambda _length: start)


def _look(name: str, directory: int, size: int, place: Callable[[int], int]) -> tuple[os.stat_result, bytes]:
    """Return the stat of a file and up to *size* bytes of it, from the offset that *place* computes from its length."""
    fd = _open_to_read(name, directory)
    try:
        result = _regular(fd, name)
        return result, os.pread(fd, size, place(result.st_size))
    finally:
        os.close(fd)


def _open_to_read(name: str, directory: int | None) -> int:
    try:
        return os.open(name, READ_FLAGS, dir_fd=directory)
    except OSError as exc:
        if exc.errno in {errno.ELOOP, errno.ENXIO}:
            raise _unsafe(name, exc) from exc
        raise


def _regular(fd: int, name: str) -> os.stat_result:
    result = os.fstat(fd)
    if not stat.S_ISREG(result.st_mode):
        raise UnsafePath(f"{name} is not a regular file: move it away")
    return result


def _read_all(fd: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := os.read(fd, _CHUNK):
        size += len(part)
        if size > max_bytes:
            raise TooLarge(f"it grew past the limit of {max_bytes} bytes while it was read")
        parts.append(part)
    return b"".join(parts)


def close_quietly(fd: int) -> None:
    """Close *fd* and ignore errors, as nothing unsynced depends on it."""
    try:
        os.close(fd)
    except OSError:
        return


def _unsafe(name: str, exc: OSError) -> UnsafePath:
    what = "a symbolic link" if exc.errno == errno.ELOOP else f"not usable ({exc.strerror})"
    return UnsafePath(f"{name} is {what}: adw never follows it, put a regular file there or move it away")


#: Name of the lock file in a workflow's directory.
LOCK_NAME = ".lock"


# --- replacing a whole file ------------------------------------------------------------------------------------
#
# Errors are our own: before the new name is in place the old file is intact; after that, the disk's content is unknown.


def replace_file(
    directory: int,
    name: str,
    payload: bytes,
    *,
    path: str,
    mode: Callable[[], int] = lambda: NEW_FILE_MODE,
) -> None:
    """
    Replace the content of the file *name* in an open *directory* by *payload*; errors call the file *path*.

    *mode* returns the permissions of the new file. Raises UnsafePath, StateWriteFailed or DurabilityUnknown.
    """
    temp = f".{name}.tmp"
    try:
        fd = claim_temp(directory, temp, wait=True)
    except TempBlocked:
        raise UnsafePath(f"a directory stands at {temp} beside {path}: move it away") from None
    except AdwError:
        raise
    except OSError as exc:
        raise StateWriteFailed(path, exc) from exc
    try:
        fill(fd, payload, mode=mode())
        os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as exc:
        discard_temp(directory, temp, fd)
        if isinstance(exc, OSError) and not isinstance(exc, AdwError):
            raise StateWriteFailed(path, exc) from exc
        raise
    try:
        settle(directory, fd)
    except OSError as exc:
        raise DurabilityUnknown(path, exc) from exc
