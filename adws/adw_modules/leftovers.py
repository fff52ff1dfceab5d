"""
What workflows leave beside git: directories of their own, and patches of salvaged work.

A directory is removed only below the root it belongs to, as itself: a symbolic link, or a way out of the root, is
refused with NotOurs. A patch is durable before this returns, and readable by its owner alone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import NotOurs

_PRIVATE = 0o600


def remove_directory(path: Path, *, root: Path) -> bool:
    """Remove the directory *path*, which lies directly in *root*; False when it is not there."""
    place = root.resolve() / path.name
    if path.name in {"", ".", ".."} or path.parent.resolve() != root.resolve():
        raise NotOurs(f"{path} does not lie in {root}: it is left alone")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise NotOurs(f"{path} is not a directory of its own: it is left alone")
    if not place.exists():
        return False
    shutil.rmtree(place)  # follows no link, whatever is swapped in meanwhile

    return not place.exists()


def write_patch(folder: Path, name: str, payload: bytes) -> Path:
    """Write *payload* as *folder*/*name*, durably, and return where; an older one of that name is replaced."""
    path, temp = folder / name, folder / f".{name}.tmp"
    durable_file.make_directory(str(folder))
    temp.unlink(missing_ok=True)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    with os.fdopen(fd, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)
    durable_file.sync_directory_at(str(folder))

    return path
