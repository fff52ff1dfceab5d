"""
Protect worktrees from power cuts: sync file systems, and detect a worktree that may have lost writes.

git syncs its objects and refs, but not the files it checks out, and nobody syncs what a phase writes: after a power cut
such files can be empty although their names exist. So the file system is synced before a result is recorded, and a
worktree that may have lost writes is compared with the last recorded commit before anything runs in it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.workspace.change_audit import cut_off_phase

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject

#: Facts of a worktree in the ledger: kernel boot and mount when it was last known to be intact.
BOOT, MOUNT = "boot_id", "mount"

_LIBC = ctypes.CDLL(None, use_errno=True)
#: statx(2) since Linux 6.8: a mount id that is not reused until the machine restarts.
_AT_FDCWD, _STATX_MNT_ID_UNIQUE, _STATX_BYTES, _MNT_ID_AT = -100, 0x4000, 256, 144


def sync_file_systems(paths: Iterable[Path]) -> None:
    """
    Make everything on the file systems of *paths* durable, whichever process wrote it; raise OSError on failure.

    Without syncfs(2), which only Linux has, sync(2) is used, which reports no errors.
    """
    syncfs = getattr(_LIBC, "syncfs", None)
    done: set[int] = set()
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            device = os.fstat(fd).st_dev
            if device in done:
                continue
            done.add(device)
            code = errno.ENOSYS if syncfs is None else ctypes.get_errno() if syncfs(fd) else 0
        finally:
            os.close(fd)
        if code == errno.ENOSYS:
            os.sync()
        elif code:
            why = f"its file system could not be synced ({os.strerror(code)}) and nothing is recorded as done"
            raise OSError(code, f"{why}: check the disk", str(path))


def mount_of(path: Path) -> str:
    """Return the id of the mount that *path* is on, which changes on each mount; "" if the kernel has no such id."""
    statx = getattr(_LIBC, "statx", None)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return ""
    (filled,) = struct.unpack_from("I", buffer)
    (mount,) = struct.unpack_from("Q", buffer, _MNT_ID_AT)

    return str(mount) if filled & _STATX_MNT_ID_UNIQUE else ""


def why_unclean(document: WorkflowDocument, known: JsonObject, now: JsonObject) -> str:
    """
    Return why the worktree may differ from what the last phase left, or "" if nothing suggests that.

    *known* are the ledger's facts about the worktree, *now* the current boot and mount. A killed process alone loses
    none of its writes, so an interrupted attempt counts only if the file system was mounted again or if it is unknown
    whether the machine restarted.
    """
    if known.get(BOOT) and now[BOOT]:
        if known[BOOT] != now[BOOT]:
            return "the machine restarted since it was last worked on"
        if not known.get(MOUNT) or not now[MOUNT] or known[MOUNT] == now[MOUNT]:
            return ""
        what = "its file system was mounted again"
    else:
        what = "nobody can tell whether the machine restarted"
    phase = cut_off_phase(document)

    return f"{phase} was cut off, and {what}" if phase else ""
