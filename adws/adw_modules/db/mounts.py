"""
Whether a path lies on a network file system.

SQLite's locks and shared memory do not hold there, and two machines would write over each other without an error.
"""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules.errors import DatabaseUnavailable

MOUNT_TABLE = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs"}
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"}
)


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


def file_system_of(path: Path, mount_table: str) -> str:
    """Return the type of the file system that *path* is on, by the longest mount point above it; "" when unknown."""
    where, found, kind = str(path.absolute()), "", ""
    for line in mount_table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _unescaped(fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        # Not shorter: of two mounts on one point the later one is on top.
        if inside and len(point) >= len(found):
            found, kind = point, after.split(" ", 1)[0]

    return kind


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)

    return text
