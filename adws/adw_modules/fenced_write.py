"""
One write of a document under a fence: from a temp file that nobody else has to a durable new name.

The temp's name carries the fence. `fence_out` puts a directory there: then the open of a former owner fails (the name
is taken), and so does the rename of a temp it had already made (the name is a directory, or gone). So an owner that was
stopped between any two system calls can never overwrite its successor.
"""

from __future__ import annotations

import contextlib
import os
import stat
from types import TracebackType
from typing import Self

from adws.adw_modules import durable_file, state_text
from adws.adw_modules.errors import AdwError, DurabilityUnknown, Fenced, StateWriteFailed
from adws.adw_modules.state_reading import FILE_NAME, PREVIOUS_NAME, Signature, signature_of

#: The fence of the writer follows.
TEMP_PREFIX = f".{FILE_NAME}.tmp"


class SpareInUse(Exception):
    """The file that was borrowed is needed by somebody: write again, with a new one."""


def temp_name(fence: int) -> str:
    """Return the name of the temp that writers under *fence* use."""
    return f"{TEMP_PREFIX}.{fence}"


class FencedWrite:
    """
    A write in the open directory *directory*, which is closed at the end.

    Inside the block nobody else with this fence can write. Leaving it by an error removes the temp; an OSError becomes
    DurabilityUnknown once the new name is in place, and before that Fenced when the temp was taken away, else
    StateWriteFailed.
    """

    def __init__(self, directory: int, folder: str, adw_id: str, fence: int, *, may_borrow: bool = False) -> None:
        """With *may_borrow* the file of the predecessor may be used again, once `fill` is called."""
        self.directory = directory
        self._may_borrow = may_borrow
        self._is_borrowed = False
        self._path = f"{folder}/{FILE_NAME}"
        self._adw_id = adw_id
        self._fence = fence
        self._temp = temp_name(fence)
        self._fd = -1
        self._tail = b""
        self._is_published = False

    def __enter__(self) -> Self:
        """Make the temp; raise Fenced, or durable_file.TempBusy while another write under this fence goes on."""
        try:
            self._fd = self._claim()
        except durable_file.TempBlocked:
            durable_file.close_quietly(self.directory)
            raise Fenced(self._adw_id, self._fence) from None
        except OSError as exc:
            durable_file.close_quietly(self.directory)
            raise StateWriteFailed(self._path, exc) from exc
        except BaseException:
            durable_file.close_quietly(self.directory)
            raise
        return self

    def _claim(self) -> int:
        if self._may_borrow:
            fd = durable_file.borrow_temp(self.directory, self._temp, PREVIOUS_NAME)
            if fd is not None:
                self._is_borrowed = True
                return fd

        return durable_file.claim_temp(self.directory, self._temp)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(exc, OSError) or isinstance(exc, AdwError):
            self._let_go()
            return
        is_fenced = not self._is_published and self._was_taken_away()
        self._let_go()
        if self._is_published:
            raise DurabilityUnknown(self._path, exc) from exc
        if is_fenced:
            raise Fenced(self._adw_id, self._fence) from exc
        raise StateWriteFailed(self._path, exc) from exc

    def _let_go(self) -> None:
        if self._fd >= 0:
            durable_file.discard_temp(self.directory, self._temp, self._fd)
        durable_file.close_quietly(self.directory)

    def fill(self, payload: bytes, *, mode: int) -> None:
        """Put *payload* into the temp and on the disk; raise SpareInUse or durable_file.NoLeases for a borrowed one."""
        self._tail = payload[-state_text.SEAL_BYTES :]
        if self._is_borrowed and not durable_file.own_spare(self.directory, PREVIOUS_NAME, self._fd):
            raise SpareInUse
        durable_file.fill(self._fd, payload, mode=mode)

    def need_spare(self) -> None:
        """Raise SpareInUse when the predecessor's file is borrowed: it must stay whole for now."""
        if self._is_borrowed:
            raise SpareInUse

    def keep_previous(self) -> None:
        """Keep the document that is about to be replaced as its predecessor."""
        durable_file.link_previous(self.directory, FILE_NAME, PREVIOUS_NAME)

    def keep_aside(self, name: str) -> None:
        """Keep what stands in the document's place as *name*, too; it is not overwritten by the rename then."""
        os.link(FILE_NAME, name, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)

    def publish(self) -> None:
        """Put the temp in the document's place: the moment from which the new revision is there."""
        os.rename(self._temp, FILE_NAME, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self._is_published = True

    def publish_new(self) -> bool:
        """
        Put the temp where no document is; return False when there is one.

        By a link and not by a rename, which would overwrite, and would put the directory of a takeover in its place.
        """
        try:
            os.link(self._temp, FILE_NAME, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
        except FileExistsError:
            return False
        self._is_published = True
        # Left behind, it is a second name of a good document, and the next writer clears it away.
        with contextlib.suppress(OSError):
            os.unlink(self._temp, dir_fd=self.directory)

        return True

    def settle(self) -> Signature | None:
        """Make the new name durable, once; return what the file is recognised by, None when that cannot be told."""
        fd, self._fd = self._fd, -1
        try:
            signature = signature_of(os.fstat(fd), self._tail)
        except OSError:
            signature = None
        durable_file.settle(self.directory, fd)

        return signature

    def _was_taken_away(self) -> bool:
        """Say whether our temp is gone while the directory is not: only a takeover takes it away."""
        if self._fd < 0:
            return False
        try:
            return not durable_file.is_at(self.directory, self._temp, self._fd) and self._directory_is_there()
        except OSError:
            return False

    def _directory_is_there(self) -> bool:
        return os.fstat(self.directory).st_nlink > 0


def block(directory: int, fence: int) -> None:
    """Put a directory where writers under *fence* make their temp; return when it stands."""
    name = temp_name(fence)
    while True:
        try:
            os.mkdir(name, durable_file.NEW_DIRECTORY_MODE, dir_fd=directory)
        except FileExistsError:
            if _is_directory(directory, name):
                return
            # A former owner may make its temp again between this and the next mkdir: then go round once more.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=directory)
        else:
            return


def clear(directory: int) -> None:
    """Remove every temp and every blocking directory; only for who knows that no former owner lives."""
    for name in os.listdir(directory):
        if not name.startswith(TEMP_PREFIX):
            continue
        with contextlib.suppress(FileNotFoundError):
            if _is_directory(directory, name):
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
