"""
Find and end a process that adw started and all its descendants.

Only processes proven to be ours are signalled: the leader, those with its token in the environment, those in its
session or group, and descendants of these. Each is identified by pid and start time and signalled through a pidfd, so a
reused pid is never hit; no process is found by name, port or bare pid. Where /proc cannot be read, only the group of a
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

#: The environment variable with the token of the recorded process a process belongs to.
TOKEN_VARIABLE = "ADW_PROCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
#: Seconds that processes have to end after they were asked to.
GRACE_SECONDS = 10.0
#: Seconds between two checks of a state that cannot be waited for.
TICK_SECONDS = 0.1

#: A shorter token could be somebody else's.
_MIN_TOKEN = 16
#: Maximum kill rounds: new processes may have been started meanwhile.
_KILL_ROUNDS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnding:
    """The result of ending the processes of a record."""

    evidence: str  #: the reason for the result, in one sentence
    ended: tuple[str, ...] = ()  #: processes that were signalled and are gone
    left: tuple[str, ...] = ()  #: processes that could not be ended
    is_certain: bool = False  #: whether it is proven that none of them runs any more

    def describe(self) -> str:
        """Return the result in one sentence that never claims more certainty than there is."""
        doubt = "" if self.is_certain else "what it had started could not be confirmed dead: "
        ended = f", ended {', '.join(self.ended)}" if self.ended else ""
        left = f", still there: {', '.join(self.left)}" if self.left else ""

        return f"{doubt}{self.evidence}{ended}{left}"


class ProcessTree:
    """The leader *identity* and its descendants; *is_child*: the leader is our own child and not reaped yet."""

    def __init__(
        self, processes: SystemProcesses, identity: OwnerRecord, *, token: str, is_child: bool = False
    ) -> None:
        self._processes = processes
        self._leader = identity
        self._token = token
        self._is_child = is_child
        self._known = {identity.pid: identity.start_ticks}  #: pids proven ours, with their start time
        self._can_signal = bool(identity.start_ticks) and _has_pidfds()

    @property
    def is_visible(self) -> bool:
        """Whether its members can be determined at all."""
        return self._can_signal and bool(self._processes.observe(self._leader.pid).pid_namespace)

    def holds_us(self) -> bool:
        """Return whether its leader is this process or an ancestor, so that ending it would end ourselves."""
        return self._leader.pid in self._own_line() and self._has_leader()

    def look(self) -> None:
        """Remember the current descendants, to know them after they change session, parent and environment."""
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
        """Return the number of remembered processes that run and their total resident bytes."""
        sizes = [size for pid in self._known if (size := self._processes.resident_bytes(pid)) is not None]

        return len(sizes), sum(sizes)

    def members(self) -> tuple[ProcessStat, ...]:
        """Return the running members, oldest first; empty if they cannot be determined."""
        if not self._can_signal:
            return ()
        seen = self._processes.all()
        ours = {pid: stat for pid, stat in seen.items() if self._is_proven(stat)}
        while True:
            new = {
                pid: stat
                for pid, stat in seen.items()
                # Check the parent again: had it ended meanwhile, its pid could be reused by now.
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
        """Stop signalling the group: the leader was reaped, so its pid proves nothing any more."""
        self._is_child = False

    def ask_group(self) -> None:
        """Ask the leader and its group to end; ending other descendants is left to the leader."""
        self.members()  # remember them now: once the leader has ended, nothing may prove that they are ours
        if self._is_child:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped process ends only when it continues

    def ask(self, members: Iterable[ProcessStat]) -> None:
        """Ask each of *members* to end."""
        for member in members:
            self._send(member, signal.SIGTERM)
            self._send(member, signal.SIGCONT)

    def kill(self) -> tuple[ProcessStat, ...]:
        """Kill all members, also those that appear meanwhile, and return those that cannot be killed."""
        left = self.members()  # before the leader is killed, for the same reason as above
        if self._is_child:
            self._signal_group(signal.SIGKILL)
        were_none = False
        for _ in range(_KILL_ROUNDS):
            # Require two empty rounds: a process that forks and exits during one scan can hide both processes.
            if were_none and not left:
                break
            were_none = not left
            for member in left:
                self._send(member, signal.SIGKILL)
            self.wait(left, TICK_SECONDS)
            left = self.members()

        return left

    def wait(self, members: Iterable[ProcessStat], seconds: float) -> None:
        """Wait until the first of *members* has ended, at most *seconds*."""
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
        # While the leader exists, even as a zombie, the kernel does not reuse its pid for another session or group.
        if self._leader.pid in {stat.session, stat.group} and self._has_leader():
            return True

        return self._processes.has_variable(stat.pid, TOKEN_VARIABLE, self._token)

    def _own_line(self) -> set[int]:
        """Return this process and its ancestors, which are never ended: adw may run inside the examined tree."""
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
        # The leader is our own child and not reaped yet, so its pid cannot be another group. macOS returns EPERM for
        # a group of which only the dead leader is left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def _send(self, member: ProcessStat, number: signal.Signals) -> None:
        with self._handle(member) as fd, contextlib.suppress(ProcessLookupError, PermissionError):
            if fd is not None:
                signal.pidfd_send_signal(fd, number)

    @contextlib.contextmanager
    def _handle(self, member: ProcessStat) -> Iterator[int | None]:
        """Yield a pidfd of exactly this process, or None if it is gone."""
        try:
            fd = os.pidfd_open(member.pid)
        except OSError:
            yield None
            return
        try:
            # The pidfd refers to the process that has the pid now; the start time shows whether it is the right one.
            yield fd if self._is_still(member.pid, member.start_ticks) else None
        finally:
            os.close(fd)


def end_recorded(
    record: ProcessRecord, *, clock: Clock, processes: SystemProcesses, grace_seconds: float = GRACE_SECONDS
) -> ProcessEnding:
    """
    End what is left of a process that another adw recorded, and return what was found.

    Nothing is signalled unless machine, boot and pid namespace match the record. If the leader is gone, processes that
    carry its token are still searched for and ended.
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
    """Return the record that `ProcessRecord.to_json` wrote, or None if *data* is not one."""
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
    """Return *members* for display: `1234 (sleep)`."""
    return tuple(f"{member.pid} ({member.command})" for member in members)


def _why_not(record: ProcessRecord, seen: Observation) -> ProcessEnding | None:
    """Return the ending that says why nothing may be signalled for *record*, or None if signalling is allowed."""
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
