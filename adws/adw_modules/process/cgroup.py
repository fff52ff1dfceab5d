"""
Kernel limits on memory and tasks for everything one command starts, by a control group (cgroup v2) of its own.

Used where part of the cgroup tree is delegated to adw, as systemd does with `Delegate=memory pids` and
`DelegateSubgroup=worker`. Elsewhere `process.run` counts and measures the processes while they run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC, MOUNT = Path("/proc"), Path("/sys/fs/cgroup")
#: Prefix of the groups that adw makes; the token of the process follows.
PREFIX = "adw-"
_CONTROLLERS = {"memory", "pids"}
#: Tasks allowed per process of the limit: threads are tasks too.
_TASKS_FOR_EACH = 4


class ControlGroup:
    """The control group of one command, named by the token of its process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def make(
        cls,
        token: str,
        *,
        memory_bytes: int | None,
        processes: int | None,
        proc: Path = PROC,
        mount: Path = MOUNT,
    ) -> ControlGroup | None:
        """Return a new group with these limits, or None if no limit is given or adw may not make groups."""
        place = usable_place(proc=proc, mount=mount)
        if place is None or (memory_bytes is None and processes is None):
            return None
        for left in place.glob(f"{PREFIX}*"):  # left by a killed worker; a group with processes stays
            with contextlib.suppress(OSError):
                left.rmdir()
        group = place / f"{PREFIX}{token}"
        try:
            group.mkdir()
            if memory_bytes is not None:
                (group / "memory.max").write_text(str(memory_bytes))
                with contextlib.suppress(OSError):  # without swap there is no such file
                    (group / "memory.swap.max").write_text("0")
            if processes is not None:
                (group / "pids.max").write_text(str(processes * _TASKS_FOR_EACH))
        except OSError:
            return None

        return cls(group)

    def add(self, pid: int) -> None:
        """Put a process, and so everything it will start, into the group."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def limit_hit(self) -> str:
        """Return the limit that the kernel has enforced, or "" for none."""
        if _count(self._path / "memory.events", "oom_kill"):
            return "memory"
        if _count(self._path / "pids.events", "max"):
            return "processes"

        return ""

    def remove(self) -> None:
        """Remove the group; if a process still runs in it, it stays until the next group is made."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def usable_place(*, proc: Path = PROC, mount: Path = MOUNT) -> Path | None:
    """Return the group below which adw may make groups with limits, or None."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return None
    place = mount / own
    # With DelegateSubgroup= the worker is in a group below the one of its service.
    around = [place.parent] if place.parent.name.endswith((".service", ".scope")) else []
    for candidate in (place, *around):
        with contextlib.suppress(OSError):
            control = candidate / "cgroup.subtree_control"
            if not set(control.read_text().split()) >= _CONTROLLERS:
                # systemd delegates controllers without enabling them for child groups. The kernel refuses to enable
                # them (EBUSY) in a group that has processes, such as the worker's own without DelegateSubgroup=.
                control.write_text(" ".join(f"+{name}" for name in sorted(_CONTROLLERS)))
            if set(control.read_text().split()) >= _CONTROLLERS and os.access(candidate / "cgroup.procs", os.W_OK):
                return candidate

    return None


def _count(path: Path, name: str) -> int:
    try:
        pairs = dict(line.split() for line in path.read_text().splitlines())
        return int(pairs.get(name, 0))
    except (OSError, ValueError):
        return 0
