"""
Whether a path lies on a network file system.

SQLite's locks and shared memory do not hold there, and two machines would write over each other without an error.
"""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.file_systems import NETWORK_TYPES, file_system_of

MOUNT_TABLE = Path("/proc/self/mountinfo")


def refuse_network(path: Path, table: Path = MOUNT_TABLE) -> None:
    """Raise DatabaseUnavailable when *path* is known to lie on a network file system."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return  # no such table on this system: it cannot be told
    kind = file_system_of(path, text)
    if kind in NETWORK_TYPES:
        raise DatabaseUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite loses data: "
            "use a local disk, or PostgreSQL for several machines"
        )
