"""
Which file system a path is on, by the table of mounts, and what that means for what is written there.

Pure: the table is passed in.
"""

from __future__ import annotations

from pathlib import Path

#: SQLite's locks and shared memory do not hold there, and two machines would write over each other without an error.
NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs"}
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"}
)
#: Directories of a host that a virtual machine sees.
SHARED_TYPES = frozenset({"9p", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse"})
#: Gone after a restart.
VOLATILE_TYPES = frozenset({"devtmpfs", "ramfs", "tmpfs"})
#: Gone with the container.
LAYERED_TYPES = frozenset({"aufs", "overlay"})


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
