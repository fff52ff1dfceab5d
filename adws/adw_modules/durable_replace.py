"""
Replacing a file durably, as a whole: a reader sees the old one or the new one, also after a power cut.

What goes wrong is said in our own errors: before the new name is in place the old file is intact, after it nobody knows
what is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from adws.adw_modules import durable_file
from adws.adw_modules.errors import AdwError, DurabilityUnknown, StateWriteFailed, UnsafePath


def replace_file(
    directory: int,
    name: str,
    payload: bytes,
    *,
    path: str,
    mode: Callable[[], int] = lambda: durable_file.NEW_FILE_MODE,
) -> None:
    """
    Make *payload* all that is in the file *name* of an open *directory*; errors call it *path*.

    *mode* is asked for the permissions of the new file. Raises UnsafePath, StateWriteFailed or DurabilityUnknown.
    """
    temp = f".{name}.tmp"
    try:
        fd = durable_file.claim_temp(directory, temp, wait=True)
    except durable_file.TempBlocked:
        raise UnsafePath(f"a directory stands at {temp} beside {path}: move it away") from None
    except AdwError:
        raise
    except OSError as exc:
        raise StateWriteFailed(path, exc) from exc
    try:
        durable_file.fill(fd, payload, mode=mode())
        os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as exc:
        durable_file.discard_temp(directory, temp, fd)
        if isinstance(exc, OSError) and not isinstance(exc, AdwError):
            raise StateWriteFailed(path, exc) from exc
        raise
    try:
        durable_file.settle(directory, fd)
    except OSError as exc:
        raise DurabilityUnknown(path, exc) from exc
