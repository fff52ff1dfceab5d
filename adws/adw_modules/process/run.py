"""
Run one command to its end, whatever it does.

It runs in a session of its own, without input but for a file, and is recorded before it executes anything: until the
record is durable it waits at a pipe, and if we die before that, it ends without having run. Three clocks and the orders
of people end it: first asked, then killed, together with all that it started. When this returns, nothing of it runs any
more; what could not be ended is named.
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

#: Most bytes of one output that are kept in its file.
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
#: Seconds that output is read on after the process has ended while something it left holds its pipes open.
PIPE_SECONDS = 5.0

#: Waits for our signal, then becomes the command: same pid, same start time. No signal means that we died: do nothing.
_WAIT = 'read -r adw_go || exit 125; adw_in=$1; unset adw_go; shift; exec "$@" <"$adw_in"'
_CHUNK = 65_536
#: CPU time from the signal that says that it is used up to the one that kills.
_CPU_GRACE_SECONDS = 5
#: Signals of the kernel that say which limit was reached; a shell reports them as 128 and more.
_LIMIT_SIGNALS = {signal.SIGXCPU: "cpu", signal.SIGXFSZ: "file"}
#: Reads after the end: far more than a pipe can hold.
_LAST_READS = 64
#: Seconds between two checks of the descendants while the output never pauses.
_LOOK_SECONDS = 1.0

OnLine = Callable[[str, str], None]  #: called with "stdout" or "stderr" and a line


class Sandbox(Protocol):
    """A box that is ready for one command."""

    @property
    def name(self) -> str:
        """Which backend it is."""

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return what is run in the place of *argv*."""

    @property
    def confines_thread(self) -> bool:
        """Whether `confine` has to be called by a thread of its own, which then starts the command."""

    def confine(self) -> None:
        """Confine the calling thread and all that it starts, for good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one command and all that it starts may use; None: no limit."""

    memory_bytes: int | None = None  #: resident, of all together
    processes: int | None = None  #: at the same time
    open_files: int | None = None  #: of each process
    cpu_seconds: int | None = None  #: of each process
    file_bytes: int | None = None  #: of each file that is written
    free_disk_bytes: int | None = None  #: that have to stay free where the command works

    def describe(self, kind: str) -> str:
        """Return the limit of *kind* as messages name it, such as `memory limit 8 GiB`."""
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
    """A user of this machine whom a command is run as."""

    name: str
    uid: int
    gid: int
    home: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """What to run, where, and within which limits."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)  #: all of it: nothing is inherited
    timeouts: Timeouts = field(default_factory=Timeouts)
    stdout_path: Path | None = None
    stderr_path: Path | None = None
    max_output_bytes: int = MAX_OUTPUT_BYTES  #: of each of the two files
    grace_seconds: float = GRACE_SECONDS  #: from being asked to end to being killed
    stdin_path: Path | None = None  #: absolute; what it reads, None: nothing
    sandbox: Sandbox | None = None
    limits: Limits = field(default_factory=Limits)
    account: Account | None = None  #: whom it is run as; None: this user, or whom its sandbox turns into


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnd:
    """How it ended."""

    exit_code: int | None  #: None when a signal ended it, or when it never ran
    signal: int | None = None
    timed_out: str | None = None  #: wall | idle | after_result
    ordered: Order | None = None  #: the order that ended it
    duration: float = 0.0  #: seconds
    tail: str = ""  #: the end of its output, both kinds in the order they came, without secrets
    exceeded: str = ""  #: the limit that ended it, such as `memory limit 8.0 GiB`
    leftovers: tuple[str, ...] = ()  #: what it had left running, and was ended
    survivors: tuple[str, ...] = ()  #: what could not be ended


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
    Run *command* and return how it ended; raise RunFailed when it cannot be started.

    *record* returns when the record is durable; if it raises, the command does not run. *on_line* gets every line of
    output as it comes, without secrets. Once *saw_result* says yes, the after-result clock runs. Whatever is raised,
    nothing of the command is left running.
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
    """Return the absolute path of what *command* runs, as its own PATH and directory say; raise RunFailed."""
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
    # An entry that is relative is meant from where the command runs, not from where we are.
    result = shutil.which(name, path=os.pathsep.join(str(command.cwd / place) for place in places))
    if result is None:
        raise _unusable(name, "missing", f"there is no command {name!r} in PATH: install it, or write its whole path")
    return result


def _unusable(name: str, subtype: str, message: str) -> RunFailed:
    code = 126 if subtype == "permission" else 127  # what a shell says

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
    """Start a process, by a thread that confines itself first where a box wants that: we are not confined."""
    if sandbox is None or not sandbox.confines_thread:
        return start()  # by this thread, which lives as long as it: bwrap dies with the thread that started it

    def run() -> subprocess.Popen[bytes]:
        sandbox.confine()
        return start()

    # Its only thread ends with it: no other work is ever done in the confined one.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="adw-confined") as pool:
        return pool.submit(run).result()


def _ulimits(limits: Limits) -> str:
    """Return the lines of shell that limit a process which waits at its pipe, and all that it starts."""
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
        # First comes SIGXCPU, which says why; one that ignores it is killed.
        last = most + _CPU_GRACE_SECONDS if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else most
        lines += [f"ulimit -S -{letter} {most // unit}", f"ulimit -H -{letter} {last // unit}"]

    return "".join(f"{line}; " for line in lines)


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Watch:
    """Follows one process from its start to the end of all that it started."""

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
        self._is_all_gone = False  #: the leader has ended and nothing else was found
        self._status: os.waitid_result | None = None  #: how the leader ended
        self._is_lost = False  #: it was collected by somebody else
        self._timed_out: str | None = None
        self._exceeded = ""
        least = command.limits.free_disk_bytes
        #: Bytes that have to stay free; None: no limit, or there was less before the command began.
        self._disk_bytes = least if least is not None and _free_bytes(command.cwd) >= least else None
        self._ordered: Order | None = None
        self._leftovers: tuple[ProcessStat, ...] = ()
        self._survivors: tuple[ProcessStat, ...] = ()

    # --- the way of a process

    def go(self) -> None:
        """Let the recorded process run its command, unless something was ordered meanwhile."""
        stdin = self._child.stdin
        self._listen()
        self._ordered = self._orders.current()
        self._has_run = self._ordered is None
        self._started_at = self._heard_at = self._clock.monotonic()
        if stdin and self._has_run:
            with contextlib.suppress(BrokenPipeError):  # somebody ended it while it waited: seen at once
                stdin.write(b"go\n")
        if stdin:
            stdin.close()

    def follow(self) -> None:
        """Read what it says until it and all that it left has ended, or has to be killed."""
        looked_at, has_asked_all = self._started_at, False
        result_at: float | None = None
        ended_at: float | None = None
        kill_at: float | None = None  # set once it was asked to end
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
            elif ended_at is None:  # it runs, and is asked to end when that is ordered or one of its clocks ran out
                if result_at is None and self._saw_result():
                    result_at = now
                self._ordered = self._ordered or self._orders.current()
                self._timed_out = None if self._ordered else self._clock_that_ran_out(now, result_at)
                if self._ordered or self._timed_out:
                    kill_at = now + self._command.grace_seconds
                    self._tree.ask_group()
            elif not self._open_pipes or now - ended_at >= PIPE_SECONDS or self._orders.current() is not None:
                # It has ended by itself: whatever is ordered from here on, its result stands.
                self._leftovers = self._tree.members()
                kill_at = now + self._command.grace_seconds
                self._is_all_gone = not self._leftovers

    def _exceeded_limit(self) -> str:
        """Return the limit that all that it started exceeds, "" for none."""
        limits = self._command.limits
        hit = self._group.limit_hit() if self._group is not None else ""
        if limits.memory_bytes is not None or limits.processes is not None:
            number, memory = self._tree.usage()
            if limits.processes is not None and number > limits.processes:
                hit = "processes"
            elif limits.memory_bytes is not None and memory > limits.memory_bytes:
                hit = "memory"
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
        """Kill what is left and collect the child."""
        self._has_ended()
        # Looking for them costs more than all the rest of a short command: not twice.
        self._survivors = () if self._is_all_gone and self._tree.is_visible else self._tree.kill()
        if all(member.pid != self._child.pid for member in self._survivors):
            self._has_ended(wait=True)
            self._child.wait()

    def read_rest(self) -> None:
        """Read what is in the pipes; other processes that hold them and write on are not waited for."""
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
            # What is in a process namespace of its own ends with it, so that nothing is left running.
            leftovers=() if self._is_namespaced else describe(self._leftovers),
            survivors=describe(self._survivors),
        )

    @property
    def _is_namespaced(self) -> bool:
        return self._command.sandbox is not None and not self._command.sandbox.confines_thread

    # --- looking

    def _listen(self) -> None:
        for name, pipe in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            if pipe:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe.fileno(), selectors.EVENT_READ, name)
                self._open_pipes.add(name)
        with contextlib.suppress(AttributeError, OSError):  # without pidfds its end is seen at the next tick
            self._selector.register(os.pidfd_open(self._child.pid), selectors.EVENT_READ, "end")

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Read one piece; say whether there may be more at once."""
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
        """Say whether the leader has ended, without collecting it: until then its number is nobody else's."""
        if self._status or self._is_lost:
            return True
        try:
            options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
            self._status = os.waitid(os.P_PID, self._child.pid, options)
        except ChildProcessError:
            # Somebody else collected it, or the system did because our parent had us ignore SIGCHLD. How it ended is
            # not known, so it did not end well; and its number may be anybody's by now.
            self._is_lost = True
            self._tree.leader_is_lost()

        return self._is_lost or self._status is not None


def _free_bytes(place: Path) -> int:
    """Return how many bytes of the file system of *place* ordinary users may still use."""
    try:
        found = os.statvfs(place)
    except OSError:
        return sys.maxsize  # the directory itself is gone: nothing can be said

    return found.f_bavail * found.f_frsize


# --- a short command whose output is the answer ----------------------------------------------------------------------


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
    Run *argv* to its end and return its exit code, output and errors; None when it was killed after *seconds*.

    It is killed with all that it started. *env* is all of its environment, and the descriptors *keep* stay open in it.
    Raises OSError when it cannot be started.
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
    """Run a short command of our own in a box and return both of its outputs; raises RunFailed."""
    done = capture(argv, cwd=cwd, env=env, seconds=seconds, sandbox=sandbox)
    if done is None:
        raise _unusable(argv[0], "timeout", f"{argv[0]} took longer than {seconds:g} seconds in a box")

    return done[1].decode("utf-8", "replace"), done[2].decode("utf-8", "replace")


# --- processes of adw that live beside this one --------------------------------------------------------------------
#
# Such as a worker of `adw serve`, or a command that a person watches. Unlike what the runner above runs, each is adw
# itself and shuts down by itself: only it is ever signalled, never what it started.


_STDERR = 2


class ChildProcess:
    """
    A child, known by the handle that started it: no other process can be meant by mistake.

    Its input is a pipe that stays open as long as we live, by which it notices our death.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, is_heard: bool = False) -> None:
        """
        Start *argv*; raises OSError when that cannot be.

        What it prints goes where our errors go; with *is_heard*, to `first_line`.
        """
        # A session of its own: Ctrl-C at the terminal reaches us, and we tell it.
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
        """Its number."""
        return self._process.pid

    def first_line(self) -> str:
        """Return the first line that it prints, "" when it ends without one; it is started with *is_heard*."""
        stdout = self._process.stdout

        return "" if stdout is None else stdout.readline().decode("utf-8", "replace")

    def exit_code(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it lives."""
        code = self._process.poll()
        if code is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

        return code

    def end(self) -> int:
        """Ask it to end in order, wait for that, and return how it ended."""
        self.ask_to_end()
        self._process.wait()

        return self.exit_code() or 0

    def ask_to_end(self) -> None:
        """Ask it to end in order."""
        self._process.terminate()  # does nothing to one that was seen to have ended

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class WatchedCommand(ChildProcess):
    """A command with our terminal, as if the person had typed it: what it prints is seen, and Ctrl-C reaches it."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output_to_errors: bool = False
    ) -> None:
        """Start *argv*; with *output_to_errors* its output goes where its errors go, and does not mix with ours."""
        self._process = subprocess.Popen(  # noqa: S603 - argv is ours
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=_STDERR if output_to_errors else None,
        )

    def wait(self) -> int:
        """Return how it ended; Ctrl-C is answered by it first, and raised here when it has ended."""
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            self._process.wait()
            raise

    def kill(self) -> None:
        """End it at once, with SIGKILL, and wait for that."""
        self._process.kill()
        self._process.wait()


# --- the person's browser ------------------------------------------------------------------------------------------

#: Browsers that show pages in the terminal they were started from.
_IN_TERMINAL = frozenset({"elinks", "links", "lynx", "w3m", "www-browser"})


def open_page(url: str) -> bool:
    """Show *url* in the person's browser, unless that would take the terminal over; say whether there was one."""
    try:
        result = webbrowser.get()
    except webbrowser.Error:
        return False
    if getattr(result, "name", "") in _IN_TERMINAL:
        return False

    return result.open(url)
