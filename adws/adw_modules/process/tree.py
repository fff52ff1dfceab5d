"""
A process that adw started and everything that descends from it: found, asked to end, ended.

Only what is proven ours is signalled: the leader itself, what carries its token in the environment, what is in its
session, and what descends from those. Each is known by pid and start time and signalled through a pidfd, so a reused
pid is never hit; nothing is ever found by name, port or bare pid. Where /proc cannot be read, only the group of a
leader that is our own child is signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.interfaces import Clock, Observation, OwnerRecord, ProcessRecord, Verdict, judge
from adws.adw_modules.process.identity import ProcessStat

if TYPE_CHECKING:
    from adws.adw_modules.process.identity import SystemProcesses

#: The environment variable that says which run a process belongs to.
TOKEN_VARIABLE = "ADW_PROCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
#: Seconds that processes have to end by themselves after they were asked to.
GRACE_SECONDS = 10.0
#: Seconds between two checks of something that gives no notice.
TICK_SECONDS = 0.1

#: A shorter token could be somebody else's.
_MIN_TOKEN = 16
#: How often what is left is killed again: new ones may have been started meanwhile.
_KILL_ROUNDS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnding:
    """The result of ending the processes of a record."""

    evidence: str  #: why what was done was done, in one sentence
    ended: tuple[str, ...] = ()  #: those that were signalled and are gone
    left: tuple[str, ...] = ()  #: those that could not be ended
    is_certain: bool = False  #: whether it is proven that nothing of it runs any more

    def describe(self) -> str:
        """Return the result in one sentence, which never sounds more certain than it is."""
        doubt = "" if self.is_certain else "what it had started could not be confirmed dead: "
        ended = f", ended {', '.join(self.ended)}" if self.ended else ""
        left = f", still there: {', '.join(self.left)}" if self.left else ""

        return f"{doubt}{self.evidence}{ended}{left}"


class ProcessTree:
    """The leader in *identity* and its descendants; *is_child*: it is our own child and not collected yet."""

    def __init__(
        self, processes: SystemProcesses, identity: OwnerRecord, *, token: str, is_child: bool = False
    ) -> None:
        self._processes = processes
        self._leader = identity
        self._token = token
        self._is_child = is_child
        self._known = {identity.pid: identity.start_ticks}  #: seen to be ours, with the start time
        self._can_signal = bool(identity.start_ticks) and _has_pidfds()

    @property
    def is_visible(self) -> bool:
        """Whether its members can be told at all."""
        return self._can_signal and bool(self._processes.observe(self._leader.pid).pid_namespace)

    def holds_us(self) -> bool:
        """Whether its leader is this process or one that it came from, so that ending it would end ourselves."""
        return self._leader.pid in self._own_line() and self._has_leader()

    def look(self) -> None:
        """Remember the present descendants, so that they are known when they leave session, parent and environment."""
        waiting = [pid for pid, ticks in self._known.items() if self._is_still(pid, ticks)]
        self._known = {pid: self._known[pid] for pid in waiting} | {self._leader.pid: self._leader.start_ticks}
        while waiting:
            parent = waiting.pop()
            result = [stat for child in self._processes.children(parent) if (stat := self._processes.stat(child))]
            new = {s.pid: s.start_ticks for s in result if s.parent == parent and s.pid not in self._known}
            if self._is_still(parent, self._known[parent]):
                self._known.update(new)
                waiting.extend(new)

    def usage(self) -> tuple[int, int]:
        """Return how many of the remembered processes run, and the bytes of memory that they have together."""
        sizes = [size for pid in self._known if (size := self._processes.resident_bytes(pid)) is not None]

        return len(sizes), sum(sizes)

    def members(self) -> tuple[ProcessStat, ...]:
        """Return those that run, oldest first; nothing where it cannot be told."""
        if not self._can_signal:
            return ()
        seen = self._processes.all()
        ours = {pid: stat for pid, stat in seen.items() if self._is_proven(stat)}
        while True:
            new = {
                pid: stat
                for pid, stat in seen.items()
                # The parent is looked at again: had it ended meanwhile, its number could be somebody else's by now.
                if pid not in ours
                and (parent := ours.get(stat.parent)) is not None
                and self._is_still(parent.pid, parent.start_ticks)
            }
            if not new:
                break
            ours.update(new)
        self._known.update((pid, stat.start_ticks) for pid, stat in ours.items())
        running = [s for s in ours.values() if not s.is_zombie and s.pid not in self._own_line()]

        return tuple(sorted(running, key=lambda s: (s.start_ticks, s.pid)))

    def leader_is_lost(self) -> None:
        """Stop signalling the group: the leader was collected, so its number proves nothing any more."""
        self._is_child = False

    def ask_group(self) -> None:
        """Ask the leader and its group to end; whatever else there is, is the leader's to end."""
        self.members()  # remembered now: when the leader has ended, nothing may say any more whose they were
        if self._is_child:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped process ends only when it continues

    def ask(self, members: Iterable[ProcessStat]) -> None:
        """Ask each of *members* to end."""
        for member in members:
            self._send(member, signal.SIGTERM)
            self._send(member, signal.SIGCONT)

    def kill(self) -> tuple[ProcessStat, ...]:
        """End all of them at once, also those that appear meanwhile, and return what cannot be ended."""
        left = self.members()  # before the leader is killed, for the same reason as above
        if self._is_child:
            self._signal_group(signal.SIGKILL)
        were_none = False
        for _ in range(_KILL_ROUNDS):
            # Twice none: one that starts another and ends while we look can hide both of them.
            if were_none and not left:
                break
            were_none = not left
            for member in left:
                self._send(member, signal.SIGKILL)
            self.wait(left, TICK_SECONDS)
            left = self.members()

        return left

    def wait(self, members: Iterable[ProcessStat], seconds: float) -> None:
        """Wait until the first of *members* has ended, at most that long."""
        with contextlib.ExitStack() as stack:
            fds = [fd for member in members if (fd := stack.enter_context(self._handle(member))) is not None]
            poller = select.poll()
            for fd in fds:
                poller.register(fd, select.POLLIN)
            if fds:
                poller.poll(seconds * 1000)

    def _is_proven(self, stat: ProcessStat) -> bool:
        if self._known.get(stat.pid) == stat.start_ticks:
            return True
        if stat.start_ticks < self._leader.start_ticks:
            return False
        # As long as the leader is there, dead or alive, the kernel gives its number to no other session or group.
        if self._leader.pid in {stat.session, stat.group} and self._has_leader():
            return True

        return self._processes.has_variable(stat.pid, TOKEN_VARIABLE, self._token)

    def _own_line(self) -> set[int]:
        """Return this process and its ancestors, never to be ended: adw may run inside of what it examines."""
        line = {0, 1}
        pid = os.getpid()
        while pid not in line:
            line.add(pid)
            stat = self._processes.stat(pid)
            pid = stat.parent if stat else 0

        return line

    def _has_leader(self) -> bool:
        return self._is_child or self._is_still(self._leader.pid, self._leader.start_ticks)

    def _is_still(self, pid: int, start_ticks: int) -> bool:
        stat = self._processes.stat(pid)

        return stat is not None and stat.start_ticks == start_ticks

    def _signal_group(self, number: signal.Signals) -> None:
        # It is our own child and not collected yet, so its number cannot be the group of somebody else. macOS says
        # EPERM for a group of which only the dead leader is left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def _send(self, member: ProcessStat, number: signal.Signals) -> None:
        with self._handle(member) as fd, contextlib.suppress(ProcessLookupError, PermissionError):
            if fd is not None:
                signal.pidfd_send_signal(fd, number)

    @contextlib.contextmanager
    def _handle(self, member: ProcessStat) -> Iterator[int | None]:
        """Yield a pidfd of that very process, None when it is gone."""
        try:
            fd = os.pidfd_open(member.pid)
        except OSError:
            yield None
            return
        try:
            # The descriptor is of the process that has the pid now; the start time says whether it is the one we mean.
            yield fd if self._is_still(member.pid, member.start_ticks) else None
        finally:
            os.close(fd)


def end_recorded(
    record: ProcessRecord, *, clock: Clock, processes: SystemProcesses, grace_seconds: float = GRACE_SECONDS
) -> ProcessEnding:
    """
    End what is left of a process that another adw recorded, and say what was found.

    Nothing is signalled unless machine, boot and pid namespace are those of the record. A leader that is gone does not
    end the search: what carries its token is ended too.
    """
    identity = record.identity
    seen = processes.observe(identity.pid)
    refusal = _why_not(record, seen)
    if refusal is not None:
        return refusal

    verdict = judge(identity, seen)
    tree = ProcessTree(processes, identity, token=record.token)
    if verdict is not Verdict.DEAD and tree.holds_us():
        return ProcessEnding(evidence=f"pid {identity.pid} is this process or one it came from: nothing was signalled")
    result = tree.members()
    if not result:
        return ProcessEnding(evidence=f"pid {identity.pid} is gone and nothing carries its token", is_certain=True)

    what = "runs" if verdict is Verdict.ALIVE else "is gone, but processes with its token run"
    members = result
    tree.ask(members)
    deadline = clock.monotonic() + grace_seconds
    while members and clock.monotonic() < deadline:
        tree.wait(members, TICK_SECONDS)
        members = tree.members()
    left = tree.kill() if members else ()
    names = describe(result)

    return ProcessEnding(
        evidence=f"pid {identity.pid} {what}: same boot, start time and token",
        ended=tuple(name for name in names if name not in describe(left)),
        left=describe(left),
        is_certain=not left,
    )


def recorded(data: Mapping[str, object]) -> ProcessRecord | None:
    """Return the record that `ProcessRecord.to_json` wrote, None when *data* is not one."""
    identity, argv = data.get("identity"), data.get("argv")
    token, started_at = data.get("token"), data.get("started_at")
    known = OwnerRecord.from_text(identity) if isinstance(identity, str) else None
    if known is None or not isinstance(token, str):
        return None

    return ProcessRecord(
        token=token,
        identity=known,
        argv=tuple(str(item) for item in argv) if isinstance(argv, list) else (),
        started_at=started_at if isinstance(started_at, str) else "",
    )


def describe(members: Iterable[ProcessStat]) -> tuple[str, ...]:
    """Return *members* for people: `1234 (sleep)`."""
    return tuple(f"{member.pid} ({member.command})" for member in members)


def _why_not(record: ProcessRecord, seen: Observation) -> ProcessEnding | None:
    """Return why nothing may be signalled for *record*, None when it may."""
    known = record.identity
    if len(record.token) < _MIN_TOKEN or not known.start_ticks or known.pid <= 1:
        why = "the record does not say enough to recognise a process"
    elif not known.machine or known.machine != seen.machine:
        why = f"it was started on {known.host}, which is not this machine"
    elif known.boot_id and seen.boot_id and known.boot_id != seen.boot_id:
        evidence = "the machine was started again since then: it cannot run any more"
        return ProcessEnding(evidence=evidence, is_certain=True)
    elif not known.boot_id or not seen.boot_id:
        why = "which start of the machine it belongs to cannot be told"
    elif not seen.pid_namespace or known.pid_namespace != seen.pid_namespace:
        why = "it is in another pid namespace, or /proc cannot be read"
    elif not _has_pidfds():
        why = "this kernel has no pidfds, so a pid could be reused"
    else:
        return None

    return ProcessEnding(evidence=f"{why}: nothing was signalled")


def _has_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False

    return True
