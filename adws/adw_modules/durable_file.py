"""
Replacing a file so that a crash or a power cut leaves the old one or the new one, whole.

The order is the rule: temp file in the same directory, all bytes, sync, rename, sync of the directory. Every function
works relative to an open directory, never follows a symbolic link and never waits for a FIFO. A temp is opened with
O_EXCL and locked (flock), so at most one writer has it and one that a dead writer left is recognised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

from adws.adw_modules.errors import AdwError, DurabilityUnknown, StateWriteFailed, UnsafePath

#: Mode of a file that was not there before, and of new directories.
NEW_FILE_MODE = 0o600
NEW_DIRECTORY_MODE = 0o700

_TEMP_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: How a file is opened that may have been replaced by a link or a FIFO.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 20


class TempBusy(Exception):
    """Another writer is in the middle of a write with this temp name."""


class TempBlocked(Exception):
    """A directory stands at the temp name: this writer was fenced out."""


class TooLarge(Exception):
    """A file has more bytes than its reader allows."""


def open_directory(path: str, *, follow: bool = True) -> int:
    """Return a descriptor of the directory *path*; with *follow* False a symbolic link is refused with OSError."""
    return os.open(path, _DIRECTORY_FLAGS if follow else _DIRECTORY_FLAGS | os.O_NOFOLLOW)


def make_directory(path: str) -> None:
    """Make *path* and its missing parents, durably; nothing happens when it is there."""
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
    """Make the bytes of the file *name* durable, also when another program wrote them."""
    fd = _open_to_read(name, directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def claim_temp(directory: int, name: str, *, wait: bool = False) -> int:
    """
    Return a descriptor of the new, empty and locked temp *name*; keep it open until the rename.

    What a dead writer left is removed. A live writer is waited for, or raises TempBusy.
    """
    while True:
        try:
            fd = os.open(name, _TEMP_FLAGS, NEW_FILE_MODE, dir_fd=directory)
        except FileExistsError:
            _clear_stale(directory, name, wait=wait)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the open and the lock another writer may have taken the temp for a left-over and removed it.
            if os.fstat(fd).st_nlink:
                return fd
        except BlockingIOError:
            pass
        except BaseException:
            discard_temp(directory, name, fd)
            raise
        os.close(fd)


def discard_temp(directory: int, name: str, fd: int) -> None:
    """Remove the temp *name* of *fd* and close it; a tombstone in its place stays, and no error hides the first one."""
    try:
        if is_at(directory, name, fd):
            os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # the next writer recognises it as left over, because its lock ends with *fd*
    finally:
        close_quietly(fd)


def _clear_stale(directory: int, name: str, *, wait: bool) -> None:
    """Remove the temp *name* if no live writer has it; raise TempBusy or TempBlocked."""
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
        # We hold its lock, so its writer is gone, finished (then the name is another file), or sees that we removed it.
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
    """Write *payload* into the new file of *fd*, set its mode and sync it; a failed sync is never repeated."""
    left = memoryview(payload)
    while left:
        written = os.write(fd, left)
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        left = left[written:]
    os.fchmod(fd, mode)
    os.fsync(fd)


def settle(directory: int, fd: int) -> None:
    """Finish a replace after its rename: close the file and make the new name durable, each once."""
    _unlock_quietly(fd)
    try:
        os.close(fd)
    except InterruptedError:
        pass  # the descriptor is closed all the same
    finally:
        os.fsync(directory)


def _unlock_quietly(fd: int) -> None:
    # A child that was forked meanwhile has the descriptor too: closing ours alone would leave its lock on the file.
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        return


def link_previous(directory: int, name: str, previous: str) -> None:
    """
    Make *previous* a second name of *name*, which is about to be replaced.

    By a link, so that there is no moment without *name*; and never over an old *previous*, which is unlinked before: so
    a writer that was stopped here for long and goes on can only make it the present file, never an older one.
    """
    try:  # noqa: SIM105 - each step passes here, and `suppress` costs three calls
        os.unlink(previous, dir_fd=directory)
    except FileNotFoundError:
        pass
    try:  # noqa: SIM105 - as above
        os.link(name, previous, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        pass  # a writer that was stopped at this very place did it for us


def read_file(name: str, *, directory: int | None = None, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the bytes of the regular file *name* and what it is; raise FileNotFoundError, UnsafePath, TooLarge."""
    fd = _open_to_read(name, directory)
    try:
        result = _regular(fd, name)
        if result.st_size > max_bytes:
            raise TooLarge(f"it has {result.st_size} bytes, the limit is {max_bytes}")
        return _read_all(fd, max_bytes), result
    finally:
        os.close(fd)


def look_at_end(name: str, *, directory: int, size: int) -> tuple[os.stat_result, bytes]:
    """Return what the regular file *name* is and its last *size* bytes; raise as `read_file` does."""
    return _look(name, directory, size, lambda length: max(0, length - size))


def look_at_part(name: str, *, directory: int, start: int, size: int) -> tuple[os.stat_result, bytes]:
    """Return what the regular file *name* is and up to *size* bytes from *start* on; raise as `read_file` does."""
    return _look(name, directory, size, lambda _length: start)


def _look(name: str, directory: int, size: int, place: Callable[[int], int]) -> tuple[os.stat_result, bytes]:
    """Return what a file is and *size* bytes of it, from where *place* says when it knows the length."""
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
    """Close *fd*; an error is of no use here, because nothing unsynced depends on it."""
    try:
        os.close(fd)
    except OSError:
        return


def _unsafe(name: str, exc: OSError) -> UnsafePath:
    what = "a symbolic link" if exc.errno == errno.ELOOP else f"not usable ({exc.strerror})"
    return UnsafePath(f"{name} is {what}: adw never follows it, put a regular file there or move it away")


#: Name of the lock file in a workflow's directory.
LOCK_NAME = ".lock"


# Replacing a file durably, as a whole: a reader sees the old one or the new one, also after a power cut.
#
# What goes wrong is said in our own errors: before the new name is in place the old file is intact, after it nobody
# knows what is on the disk.


def replace_file(
    directory: int,
    name: str,
    payload: bytes,
    *,
    path: str,
    mode: Callable[[], int] = lambda: NEW_FILE_MODE,
) -> None:
    """
    Make *payload* all that is in the file *name* of an open *directory*; errors call it *path*.

    *mode* is asked for the permissions of the new file. Raises UnsafePath, StateWriteFailed or DurabilityUnknown.
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
