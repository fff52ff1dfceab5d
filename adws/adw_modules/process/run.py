"""
Run one command and everything it starts to the end.

The command gets its own session, no input except a file, and is recorded before it executes anything: until the record
is durable it waits at a pipe, and if we die before that, it ends without having run. Three timeouts, its limits and
orders from people end it: it is asked to end first, then killed together with everything it started. When
`run_process` returns, nothing of the command still runs, except processes that could not be killed, which it names.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adws.adw_modules import timestamps
from adws.adw_modules.errors import FailedRun, RunFailed
from adws.adw_modules.interfaces import Clock, ProcessRecord
from adws.adw_modules.phase import Order, Orders
from adws.adw_modules.process.cgroup import ControlGroup
from adws.adw_modules.process.identity import ProcessStat
from adws.adw_modules.process.output import OutputStream, Tail
from adws.adw_modules.process.tree import GRACE_SECONDS, TICK_SECONDS, TOKEN_VARIABLE, ProcessTree, describe
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.process.identity import SystemProcesses

#: Maximum bytes of one output kept in its file.
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
#: Seconds to keep reading after the process has ended, while leftover processes hold its pipes open.
PIPE_SECONDS = 5.0

#: Waits for a line from us, then becomes the command (same pid and start time). No line means that we died: do nothing.
_WAIT = 'read -r adw_go || exit 125; adw_in=$1; unset adw_go; shift; exec "$@" <"$adw_in"'
_CHUNK = 65_536
#: CPU seconds between SIGXCPU, which announces the limit, and SIGKILL.
_CPU_GRACE_SECONDS = 5
#: Kernel signals that say which limit was reached; a shell reports them as 128 + number.
_LIMIT_SIGNALS = {signal.SIGXCPU: "cpu", signal.SIGXFSZ: "file"}
#: Maximum reads per pipe after the end: far more than a pipe can hold.
_LAST_READS = 64
#: Seconds between two checks of the descendants while output arrives without a pause.
_LOOK_SECONDS = 1.0

OnLine = Callable[[str, str], None]  #: called with "stdout" or "stderr" and a line


class Sandbox(Protocol):
    """A sandbox prepared for one command."""

    @property
    def name(self) -> str:
        """The name of the backend."""

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line that runs *argv* inside the sandbox."""

    @property
    def confines_thread(self) -> bool:
        """Whether a dedicated thread has to call `confine` and then start the command."""

    def confine(self) -> None:
        """Confine the calling thread and everything it starts, permanently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Resource limits of one command and everything it starts; None: no limit."""

    memory_bytes: int | None = None  #: resident memory of all processes together
    processes: int | None = None  #: at the same time
    open_files: int | None = None  #: of each process
    cpu_seconds: int | None = None  #: of each process
    file_bytes: int | None = None  #: of each file written
    free_disk_bytes: int | None = None  #: that must stay free on the file system of the working directory

    def describe(self, kind: str) -> str:
        """Return the limit of *kind* as shown in messages, such as `memory limit 8 GiB`."""
        if kind == "memory":
            return f"memory limit {_size(self.memory_bytes)}"
        if kind == "disk":
            return f"disk limit, less than {_size(self.free_disk_bytes)} is free"
        if kind == "file":
            return f"file size limit {_size(self.file_bytes)}"
        if kind == "cpu":
            return f"CPU time limit {self.cpu_seconds} seconds"

        return f"process limit {self.processes}"


def _size(size: int | None) -> str:
    number = size or 0

    return f"{number / 2**30:g} GiB" if number >= 2**30 else f"{number / 2**20:g} MiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A user of this machine as whom a command runs."""

    name: str
    uid: int
    gid: int
    home: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """A command, its place and its limits."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)  #: the whole environment: nothing is inherited
    timeouts: Timeouts = field(default_factory=Timeouts)
    stdout_path: Path | None = None
    stderr_path: Path | None = None
    max_output_bytes: int = MAX_OUTPUT_BYTES  #: limit of each of the two files
    grace_seconds: float = GRACE_SECONDS  #: between the request to end and the kill
    stdin_path: Path | None = None  #: absolute path of its input; None: no input
    sandbox: Sandbox | None = None
    limits: Limits = field(default_factory=Limits)
    account: Account | None = None  #: user to run as; None: this user, or the one its sandbox switches to


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnd:
    """How a command ended."""

    exit_code: int | None  #: None if a signal ended it or it never ran
    signal: int | None = None
    timed_out: str | None = None  #: wall | idle | after_result
    ordered: Order | None = None  #: the order that ended it
    duration: float = 0.0  #: seconds
    tail: str = ""  #: end of its output, stdout and stderr in order of arrival, redacted
    exceeded: str = ""  #: the limit that ended it, such as `memory limit 8.0 GiB`
    box: str = ""  #: name of the sandbox it ran in
    leftovers: tuple[str, ...] = ()  #: processes it left running, which were ended
    survivors: tuple[str, ...] = ()  #: processes that could not be ended


def run_process(
    command: CommandLine,
    *,
    clock: Clock,
    processes: SystemProcesses,
    orders: Orders,
    record: Callable[[ProcessRecord], None],
    redactor: Redactor,
    on_line: OnLine | None = None,
    saw_result: Callable[[], bool] | None = None,
) -> ProcessEnd:
    """
    Run *command* and return how it ended; raise RunFailed if it cannot be started.

    *record* must return only when the record is durable; if it raises, the command does not run. *on_line* receives
    each line of output as it arrives, redacted. Once *saw_result* returns true, the after-result timeout runs. Whatever
    is raised, nothing of the command is left running.
    """
    argv = (find_program(command), *command.argv[1:])
    me = processes.me("process")
    with contextlib.ExitStack() as stack:
        tail = Tail()
        streams = {}
        for name, path in (("stdout", command.stdout_path), ("stderr", command.stderr_path)):
            streams[name] = OutputStream(
                path=path,
                redactor=redactor,
                max_bytes=command.max_output_bytes,
                on_line=partial(on_line, name) if on_line else lambda _line: None,
                tail=tail,
            )
            stack.callback(streams[name].close)
        child = _start(command, command.sandbox.argv(argv) if command.sandbox else argv, token=me.token)
        stack.callback(_close_pipes, child)
        limits = command.limits
        group = ControlGroup.make(me.token, memory_bytes=limits.memory_bytes, processes=limits.processes)
        if group is not None:
            group.add(child.pid)
            stack.callback(group.remove)
        identity = replace(me, pid=child.pid, start_ticks=processes.observe(child.pid).start_ticks)
        tree = ProcessTree(processes, identity, token=me.token, is_child=True)
        watch = _Watch(command, child, tree, streams, clock=clock, orders=orders, saw_result=saw_result, group=group)
        stack.callback(watch.close)
        try:
            shown = redactor.redact(list(command.argv))
            record(
                ProcessRecord(
                    token=identity.token,
                    identity=identity,
                    argv=tuple(str(item) for item in shown) if isinstance(shown, list) else (),
                    started_at=timestamps.to_text(clock.now()),
                )
            )
            watch.go()
            watch.follow()
        finally:
            watch.clear()

        watch.read_rest()
        return watch.end(tail.text)


def find_program(command: CommandLine) -> str:
    """Return the absolute path of the program of *command*, by its own PATH and directory; raise RunFailed."""
    if not command.argv or not command.argv[0] or any("\0" in item for item in command.argv):
        raise _unusable("", "missing", "the command is empty or has a null character in it: correct the workflow")
    if not command.cwd.is_dir():
        raise _unusable("", "missing", f"cannot run a command in {command.cwd}: it is not a directory")
    name = command.argv[0]
    if "/" in name:
        path = command.cwd / name
        if not path.is_file():
            raise _unusable(name, "missing", f"there is no command {name!r}: {path} is not a file")
        if not os.access(path, os.X_OK):
            problem = f"{path} may not be executed: chmod +x it, or run it through its program"
            raise _unusable(name, "permission", problem)
        return str(path)

    places = command.env.get("PATH", os.defpath).split(os.pathsep)
    # Relative PATH entries are relative to the directory of the command, not to ours.
    result = shutil.which(name, path=os.pathsep.join(str(command.cwd / place) for place in places))
    if result is None:
        raise _unusable(name, "missing", f"there is no command {name!r} in PATH: install it, or write its whole path")
    return result


def _unusable(name: str, subtype: str, message: str) -> RunFailed:
    code = 126 if subtype == "permission" else 127  # as a shell reports it

    return RunFailed(FailedRun(exit_code=code, subtype=subtype, text=message, tool=Path(name).name), message)


def _start(command: CommandLine, argv: tuple[str, ...], *, token: str) -> subprocess.Popen[bytes]:
    account = command.account
    whom: dict[str, Any] = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            ["/bin/sh", "-c", f"{_ulimits(command.limits)}{_WAIT}", "sh", str(command.stdin_path or os.devnull), *argv],
            cwd=command.cwd,
            env={**command.env, TOKEN_VARIABLE: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **whom,
        )

    return _started(command.sandbox, start)


def _started(sandbox: Sandbox | None, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process, in a thread that confines itself first if the sandbox needs that: we stay unconfined."""
    if sandbox is None or not sandbox.confines_thread:
        return start()  # by this thread, which outlives it: bwrap dies with the thread that started it

    def run() -> subprocess.Popen[bytes]:
        sandbox.confine()
        return start()

    # The pool's only thread ends with the pool: the confined thread never does other work.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adw-confined") as pool:
        return pool.submit(run).result()


def _ulimits(limits: Limits) -> str:
    """Return the shell commands that limit the waiting process and everything it starts."""
    wanted = [
        ("n", resource.RLIMIT_NOFILE, limits.open_files, 1),
        ("t", resource.RLIMIT_CPU, limits.cpu_seconds, 1),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes, 512),
    ]
    lines = []
    for letter, kind, value, unit in wanted:
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # SIGXCPU comes first and names the reason; a process that ignores it is killed at the hard limit.
        last = most + _CPU_GRACE_SECONDS if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else most
        lines += [f"ulimit -S -{letter} {most // unit}", f"ulimit -H -{letter} {last // unit}"]

    return "".join(f"{line}; " for line in lines)


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Watch:
    """Follows one process from its start until everything it started has ended."""

    def __init__(
        self,
        command: CommandLine,
        child: subprocess.Popen[bytes],
        tree: ProcessTree,
        streams: Mapping[str, OutputStream],
        *,
        clock: Clock,
        orders: Orders,
        saw_result: Callable[[], bool] | None,
        group: ControlGroup | None,
    ) -> None:
        self._command = command
        self._group = group
        self._child = child
        self._tree = tree
        self._streams = streams
        self._clock = clock
        self._orders = orders
        self._saw_result = saw_result or (lambda: False)
        self._selector = selectors.DefaultSelector()
        self._open_pipes: set[str] = set()
        self._has_run = False
        self._started_at = self._heard_at = clock.monotonic()
        self._is_all_gone = False  #: the leader has ended and no other process was found
        self._status: os.waitid_result | None = None  #: how the leader ended
        self._is_lost = False  #: somebody else reaped the leader
        self._timed_out: str | None = None
        self._exceeded = ""
        least = command.limits.free_disk_bytes
        #: Bytes that must stay free; None: no limit, or less was free before the command began.
        self._disk_bytes = least if least is not None and _free_bytes(command.cwd) >= least else None
        self._ordered: Order | None = None
        self._leftovers: tuple[ProcessStat, ...] = ()
        self._survivors: tuple[ProcessStat, ...] = ()

    # --- the life of a process

    def go(self) -> None:
        """Let the recorded process run its command, unless an order arrived meanwhile."""
        stdin = self._child.stdin
        self._listen()
        self._ordered = self._orders.current()
        self._has_run = self._ordered is None
        self._started_at = self._heard_at = self._clock.monotonic()
        if stdin and self._has_run:
            with contextlib.suppress(BrokenPipeError):  # somebody ended it while it waited: noticed below at once
                stdin.write(b"go\n")
        if stdin:
            stdin.close()

    def follow(self) -> None:
        """Read output until the process and everything it left have ended or must be killed."""
        looked_at, has_asked_all = self._started_at, False
        result_at: float | None = None
        ended_at: float | None = None
        kill_at: float | None = None  # set once the process was asked to end
        while not self._is_all_gone:
            ready = self._selector.select(TICK_SECONDS)
            for key, _ in ready:
                self._read(key)
            now = self._clock.monotonic()
            if not ready or now - looked_at >= _LOOK_SECONDS:
                looked_at = now
                self._tree.look()
                if not self._exceeded and ended_at is None and (exceeded := self._exceeded_limit()):
                    self._exceeded, kill_at = exceeded, now  # there is no time for a graceful end
            if ended_at is None and self._has_ended():
                ended_at = now

            if kill_at is not None:
                order = self._orders.current()
                if order and order.is_urgent:
                    self._ordered = order if self._ordered else None
                    return
                if now >= kill_at:
                    return
                if ended_at is not None:
                    left = self._tree.members()
                    if left and not has_asked_all:
                        has_asked_all = True
                        self._leftovers = self._leftovers or left
                        self._tree.ask(left)
                    self._is_all_gone = not left
            elif ended_at is None:  # it runs: ask it to end on an order or a timeout
                if result_at is None and self._saw_result():
                    result_at = now
                self._ordered = self._ordered or self._orders.current()
                self._timed_out = None if self._ordered else self._clock_that_ran_out(now, result_at)
                if self._ordered or self._timed_out:
                    kill_at = now + self._command.grace_seconds
                    self._tree.ask_group()
            elif not self._open_pipes or now - ended_at >= PIPE_SECONDS or self._orders.current() is not None:
                # It ended by itself: later orders do not change its result.
                self._leftovers = self._tree.members()
                kill_at = now + self._command.grace_seconds
                self._is_all_gone = not self._leftovers

    def _exceeded_limit(self) -> str:
        """Return the limit that the processes together exceed, or "" for none."""
        limits = self._command.limits
        hit = self._group.limit_hit() if self._group is not None else ""
        if limits.memory_bytes is not None or limits.processes is not None:
            number, memory = self._tree.usage()
            if limits.processes is not None and number > limits.processes:
                hit = "processes"
            elif self._group is None and limits.memory_bytes is not None and memory > limits.memory_bytes:
                hit = "memory"  # only without a control group, whose kernel count takes shared memory once
        if self._disk_bytes is not None and _free_bytes(self._command.cwd) < self._disk_bytes:
            hit = "disk"

        return limits.describe(hit) if hit else ""

    def _clock_that_ran_out(self, now: float, result_at: float | None) -> str | None:
        limits = self._command.timeouts
        clocks = {
            "wall": (self._started_at, limits.wall),
            "after_result": (result_at, limits.after_result),
            "idle": (self._heard_at, limits.idle),
        }
        ran_out = (
            name
            for name, (start, limit) in clocks.items()
            if start is not None and limit is not None and now - start >= limit
        )

        return next(ran_out, None)

    def clear(self) -> None:
        """Kill what is left and reap the child."""
        self._has_ended()
        # Searching for processes costs more than all the rest of a short command: do not search twice.
        self._survivors = () if self._is_all_gone and self._tree.is_visible else self._tree.kill()
        if all(member.pid != self._child.pid for member in self._survivors):
            self._has_ended(wait=True)
            self._child.wait()

    def read_rest(self) -> None:
        """Read what is left in the pipes, without waiting for other processes that still write to them."""
        for key in list(self._selector.get_map().values()):
            for _ in range(_LAST_READS):
                if not self._read(key):
                    break
        for stream in self._streams.values():
            stream.finish()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data == "end":
                os.close(key.fd)
        self._selector.close()

    def end(self, tail: str) -> ProcessEnd:
        status = self._status if self._has_run else None
        has_exited = status is not None and status.si_code == os.CLD_EXITED
        if not self._exceeded and status is not None and self._ordered is None and self._timed_out is None:
            code = status.si_status - 128 if has_exited else status.si_status
            hit = self._group.limit_hit() if self._group is not None and status.si_status != 0 else ""
            hit = hit or next((kind for number, kind in _LIMIT_SIGNALS.items() if code == number), "")
            self._exceeded = self._command.limits.describe(hit) if hit else ""

        return ProcessEnd(
            exit_code=status.si_status if status and has_exited else None,
            signal=status.si_status if status and not has_exited else None,
            timed_out=self._timed_out,
            ordered=self._ordered,
            duration=self._clock.monotonic() - self._started_at,
            tail=tail,
            exceeded=self._exceeded,
            box=self._command.sandbox.name if self._command.sandbox is not None else "",
            # A process namespace of its own ends with its first process, so nothing is left running.
            leftovers=() if self._is_namespaced else describe(self._leftovers),
            survivors=describe(self._survivors),
        )

    @property
    def _is_namespaced(self) -> bool:
        return self._command.sandbox is not None and not self._command.sandbox.confines_thread

    # --- output and end

    def _listen(self) -> None:
        for name, pipe in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            if pipe:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe.fileno(), selectors.EVENT_READ, name)
                self._open_pipes.add(name)
        with contextlib.suppress(AttributeError, OSError):  # without pidfds the end is noticed at the next tick
            self._selector.register(os.pidfd_open(self._child.pid), selectors.EVENT_READ, "end")

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Read one chunk; return whether more may be available now."""
        if key.data == "end":
            self._selector.unregister(key.fileobj)
            os.close(key.fd)
            return False
        try:
            chunk = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(key.fileobj)
            self._open_pipes.discard(key.data)
            return False

        self._heard_at = self._clock.monotonic()
        self._streams[key.data].feed(chunk)
        return True

    def _has_ended(self, *, wait: bool = False) -> bool:
        """Return whether the leader has ended, without reaping it: until then its pid is not reused."""
        if self._status or self._is_lost:
            return True
        try:
            options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
            self._status = os.waitid(os.P_PID, self._child.pid, options)
        except ChildProcessError:
            # Somebody else reaped it, or the system did because our parent had us ignore SIGCHLD. How it ended is
            # unknown, so it counts as failed, and its pid may be reused by now.
            self._is_lost = True
            self._tree.leader_is_lost()

        return self._is_lost or self._status is not None


def _free_bytes(place: Path) -> int:
    """Return the bytes that ordinary users may still use on the file system of *place*."""
    try:
        found = os.statvfs(place)
    except OSError:
        return sys.maxsize  # the directory itself is gone: unknown

    return found.f_bavail * found.f_frsize


# --- short commands whose output is the answer -----------------------------------------------------------------------


def capture(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    keep: Sequence[int] = (),
    sandbox: Sandbox | None = None,
) -> tuple[int, bytes, bytes] | None:
    """
    Run *argv* to its end and return its exit code, stdout and stderr, or None if it was killed after *seconds*.

    It is killed together with its descendants. *env* is its whole environment; the descriptors *keep* stay open in it.
    Raises OSError if it cannot be started.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - argv is ours
            list(argv if sandbox is None else sandbox.argv(tuple(argv))),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(keep),
            start_new_session=sandbox is not None,
        )

    with _started(sandbox, start) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 - no types of its own; takes time to load

            with suppress(psutil.NoSuchProcess):
                started = psutil.Process(child.pid)
                for each in (*started.children(recursive=True), started):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            child.communicate()
            return None
        except BaseException:
            child.terminate()
            raise

    return child.returncode, out, err


def start_boxed(
    sandbox: Sandbox, argv: tuple[str, ...], *, cwd: Path, env: Mapping[str, str], seconds: float
) -> tuple[str, str]:
    """Run a short command of our own in a sandbox and return its stdout and stderr; raise RunFailed on timeout."""
    done = capture(argv, cwd=cwd, env=env, seconds=seconds, sandbox=sandbox)
    if done is None:
        raise _unusable(argv[0], "timeout", f"{argv[0]} took longer than {seconds:g} seconds in a box")

    return done[1].decode("utf-8", "replace"), done[2].decode("utf-8", "replace")


# --- other adw processes -------------------------------------------------------------------------------------------
#
# Such as a worker of `adw serve`, or a command that a person watches. Each is adw itself and shuts down by itself, so
# only that process is signalled, never what it started.


_STDERR = 2


class ChildProcess:
    """
    A child process, addressed by the handle that started it, so that no other process is hit by mistake.

    Its input is a pipe that stays open as long as we live: its end tells the child that we died.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, is_heard: bool = False) -> None:
        """
        Start *argv*; raise OSError if that fails.

        Its output goes to our stderr; with *is_heard*, to `first_line`.
        """
        # A session of its own: Ctrl-C at the terminal reaches us, and we ask the child to end.
        self._process = subprocess.Popen(  # noqa: S603 - argv is ours
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if is_heard else _STDERR,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The pid of the child."""
        return self._process.pid

    def first_line(self) -> str:
        """Return the first line of output, or "" if it ends without one; requires *is_heard*."""
        stdout = self._process.stdout

        return "" if stdout is None else stdout.readline().decode("utf-8", "replace")

    def exit_code(self) -> int | None:
        """Return the exit code, a signal as a negative number, or None while the child runs."""
        code = self._process.poll()
        if code is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

        return code

    def end(self) -> int:
        """Ask the child to shut down, wait for it, and return its exit code."""
        self.ask_to_end()
        self._process.wait()

        return self.exit_code() or 0

    def ask_to_end(self) -> None:
        """Ask the child to shut down."""
        self._process.terminate()  # does nothing once its end was seen

    def kill(self) -> None:
        """Kill the child."""
        self._process.kill()


class WatchedCommand(ChildProcess):
    """A command on our terminal, as if the person had typed it: its output is shown, and Ctrl-C reaches it."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output_to_errors: bool = False
    ) -> None:
        """Start *argv*; with *output_to_errors* its stdout goes to stderr and does not mix with ours."""
        self._process = subprocess.Popen(  # noqa: S603 - argv is ours
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=_STDERR if output_to_errors else None,
        )

    def wait(self) -> int:
        """Wait for the exit code and return it; on Ctrl-C, wait for the command's own shutdown, then raise."""
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            self._process.wait()
            raise

    def kill(self) -> None:
        """Kill the command with SIGKILL and wait for its end."""
        self._process.kill()
        self._process.wait()


# --- the person's browser ------------------------------------------------------------------------------------------

#: Browsers that show pages in the terminal.
_IN_TERMINAL = frozenset({"elinks", "links", "lynx", "w3m", "www-browser"})


def open_page(url: str) -> bool:
    """Open *url* in the person's browser, unless that is a terminal browser; return whether it was opened."""
    try:
        result = webbrowser.get()
    except webbrowser.Error:
        return False
    if getattr(result, "name", "") in _IN_TERMINAL:
        return False

    return result.open(url)
