"""
Identify processes by more than their pid.

Pids are reused, machines restart and containers count their own pids, so an owner is recognised by machine, boot, pid
namespace, pid and start time together. If a fact cannot be read, the verdict is `unknown`, never `dead`; no process is
ever signalled to find out.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules.interfaces import Clock, Observation, OwnerRecord, Verdict, judge

#: Where Linux lists processes.
PROC = Path("/proc")
#: Identity of a Linux installation.
MACHINE_FILE = Path("/etc/machine-id")
#: Indexes among the fields after the command name, the first of which is field 3 (counted from 1).
_PARENT, _GROUP, _SESSION, _START_TICKS = 4 - 3, 5 - 3, 6 - 3, 22 - 3
#: Longer than any stat line.
_STAT_BYTES = 4096
#: States of a process that has ended and waits to be reaped.
_ENDED = frozenset("ZXx")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessStat:
    """The fields used from /proc/<pid>/stat."""

    pid: int
    start_ticks: int
    is_zombie: bool
    parent: int = 0
    group: int = 0
    session: int = 0
    command: str = ""  #: name of its program, truncated by the kernel; for display only


def parse_stat(text: str) -> ProcessStat | None:
    """Return the parsed stat line, or None if *text* is not one."""
    head, _, tail = text.rpartition(")")  # the command may contain spaces and parentheses: split at the last one
    fields = tail.split()
    number, _, command = head.partition("(")
    try:
        return ProcessStat(
            pid=int(number),
            start_ticks=int(fields[_START_TICKS]),
            is_zombie=fields[0] in _ENDED,
            parent=int(fields[_PARENT]),
            group=int(fields[_GROUP]),
            session=int(fields[_SESSION]),
            command=command,
        )
    except (ValueError, IndexError):
        return None


class SystemProcesses:
    """The processes of this machine, read from /proc."""

    def __init__(
        self, *, clock: Clock, host: str | None = None, root: Path = PROC, machine_file: Path = MACHINE_FILE
    ) -> None:
        """Use *host* as the name of this machine; *root* and *machine_file* replace the system's in tests."""
        self._clock = clock
        self._host = host or os.uname().nodename
        self._root = root
        self._machine_file = machine_file
        self._self: tuple[int, Observation] | None = None  #: our own pid and its observation

    @property
    def boot_id(self) -> str:
        """The id of the current boot, or "" if it cannot be read."""
        return _read(self._root / "sys/kernel/random/boot_id")

    def me(self, role: str) -> OwnerRecord:
        """Return a new owner record of this process; facts that cannot be read are left empty."""
        pid = os.getpid()
        if self._self is not None and self._self[0] == pid:  # a forked child has another pid
            seen = self._self[1]  # observed once: it does not change while we live
        else:
            seen = self.observe(pid)
            if seen.start_ticks:  # else retry next time
                self._self = (pid, seen)

        return OwnerRecord(
            token=self._clock.token(),
            host=self._host,
            machine=seen.machine,
            boot_id=seen.boot_id,
            pid_namespace=seen.pid_namespace,
            pid=pid,
            start_ticks=seen.start_ticks,
            role=role,
        )

    def observe(self, pid: int) -> Observation:
        """Return what this machine reports now about *pid*."""
        exists, stat = self._look(pid)
        # Cloned images share their machine id, and two machines may share a name: only both together identify a
        # machine. After a rename, a machine no longer recognises itself; then lease expiry decides, which is safe.
        installation = _read(self._machine_file)

        return Observation(
            machine=hashlib.sha256(f"{installation}\n{self._host}".encode()).hexdigest()[:32],
            boot_id=self.boot_id,
            pid_namespace=self._pid_namespace(),
            exists=exists,
            start_ticks=stat.start_ticks if stat else 0,
            is_zombie=stat.is_zombie if stat else False,
        )

    def stat(self, pid: int) -> ProcessStat | None:
        """Return the stat of *pid*, or None if it is gone or cannot be read."""
        return self._look(pid)[1]

    def all(self) -> dict[int, ProcessStat]:
        """Return every visible process by pid; empty if /proc is missing or shows another namespace."""
        if not self._pid_namespace():
            return {}
        root = str(self._root)
        result = (_stat_at(f"{root}/{entry}/stat") for entry in os.listdir(root) if entry.isdigit())  # noqa: PTH208 - names are enough

        return {stat.pid: stat for stat in result if stat}

    def children(self, pid: int) -> set[int]:
        """Return the pids of the current children of *pid*; empty if the kernel does not list them."""
        tasks = self._root / str(pid) / "task"
        try:  # no check beforehand: the process may end between any two reads
            threads = os.listdir(tasks)  # noqa: PTH208 - names are enough
        except OSError:
            return set()

        return {int(child) for thread in threads for child in _read(tasks / thread / "children").split()}

    def resident_bytes(self, pid: int) -> int | None:
        """Return the resident memory of *pid* in bytes, or None if it is gone."""
        fields = _read(self._root / str(pid) / "statm").split()

        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None

    def has_variable(self, pid: int, name: str, value: str) -> bool:
        """Return whether *pid* was started with the environment variable *name* set to *value*."""
        return f"{name}={value}".encode() in self._environment(pid)

    def variables(self, pid: int) -> dict[str, str]:
        """Return the environment *pid* was started with; empty if it is gone or belongs to another user."""
        pairs = (entry.decode(errors="replace").partition("=") for entry in self._environment(pid) if b"=" in entry)

        return {name: value for name, _, value in pairs}

    def _environment(self, pid: int) -> list[bytes]:
        try:
            return (self._root / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return []

    def verdict(self, record: OwnerRecord | None) -> Verdict:
        """Return whether the recorded owner is alive or dead; `unknown` without proof."""
        if record is None:
            return Verdict.UNKNOWN

        return judge(record, self.observe(record.pid))

    def _look(self, pid: int) -> tuple[bool | None, ProcessStat | None]:
        if pid <= 0:
            return None, None
        try:
            stat = parse_stat((self._root / str(pid) / "stat").read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            # A /proc mounted with hidepid hides other users' processes. Process 1 always exists: if even that one is
            # hidden, a missing entry proves nothing.
            return False if (self._root / "1").exists() else None, None
        except OSError:
            return None, None

        return (True, stat) if stat else (None, None)

    def _pid_namespace(self) -> str:
        # A /proc of another pid namespace (a bind mount into a container) shows other processes under our pids.
        me = parse_stat(_read(self._root / "self/stat"))
        if me is None or me.pid != os.getpid():
            return ""
        try:
            return str((self._root / "self/ns/pid").readlink())
        except OSError:
            return ""


def _stat_at(path: str) -> ProcessStat | None:
    """Return the parsed stat file at *path*; by plain calls, because all processes are read after every command."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_stat(os.read(fd, _STAT_BYTES).decode(errors="replace"))
    except OSError:
        return None
    finally:
        os.close(fd)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
