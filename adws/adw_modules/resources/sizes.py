"""How much of a disk a directory takes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The unit of st_blocks, whatever the file system's own is.
_BLOCK_BYTES = 512


def size_of(path: Path) -> int:
    """Return the bytes that a directory takes on its disk; what vanishes or cannot be read meanwhile is left out."""
    total, seen = 0, set()
    for folder, names, files in os.walk(path, followlinks=False):
        for name in (*names, *files):
            try:
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - there may be a hundred thousand of them
            except OSError:
                continue
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * _BLOCK_BYTES

    return total
