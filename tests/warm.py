"""
Starting `adw` without the time that loading it takes: `Popen` and `run` are those of subprocess, only faster.

A command, or a helper of the tests that is written in Python, is forked from a process that has loaded adw
(tests/warm_server.py). What such a fork could not show is started as a process of its own, without a word: any other
program, a command whose environment changes the interpreter, one that is given a session or file descriptors, and
every command in the soak and where coverage is measured. A test that looks at how a program starts, at its command line
in /proc, or that is to be its parent, uses subprocess. A shell that a test starts finds such an `adw` in `bin_dir()`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import warm_server

ROOT = str(Path(__file__).parents[1])

#: The installed command.
ADW = str(Path(sysconfig.get_path("scripts")) / "adw")

#: What an interpreter, or a library that is loaded, has looked at when it began; a fork cannot have others.
FIXED_PREFIXES = ("PYTHON", "PYDANTIC_", "LC_", "LD_", "COVERAGE_")
FIXED_NAMES = frozenset({"LANG", "LANGUAGE", "TZ"})

#: Options that a fork can be given; with others, such as a session of its own, the command is a process of its own.
USUAL = frozenset({"cwd", "env", "stdin", "stdout", "stderr", "text", "preexec_fn"})


def default_interrupts() -> None:
    """To be called in a child: a shell may have started the tests with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Popen(subprocess.Popen):
    """A process like any other, that begins sooner when it is `adw`."""

    _status: Any = None  #: tells the exit code of a fork; None: a process of its own

    def __init__(self, args: Any, **options: Any) -> None:
        self._script = _script_of(args)
        is_usual = bool(self._script) and options.keys() <= USUAL
        is_usual = is_usual and options.get("preexec_fn") in {None, default_interrupts}
        self._may_be_forked = is_usual and is_warm(_or_ours(options.get("env")))
        super().__init__(args, **options)

    def _execute_child(  # noqa: PLR0917 - subprocess calls it so, to make the child
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *rest
    ):
        place = os.fspath(cwd or Path.cwd())
        if not self._may_be_forked or not Path(place).is_dir():
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *rest
            )
            return
        pipes = rest[:6]  # for input, output, error output: the end to read from, and the end to write to
        streams = [fd if fd != -1 else number for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        try:
            self.pid, self._status = _server().start(self._script, place, dict(_or_ours(env)), streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self._status is None:
            return super().poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)

        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when there is one; raise TimeoutExpired."""
        if self._status is None:
            return super().wait(timeout)
        with self._waitpid_lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                self.returncode = _number(self._status)
                self._status.close()

        return self.returncode


def run(args: Any, *, input: Any = None, capture_output: bool = False, **options: Any):  # noqa: A002 - as there
    """Run a command to its end, as `subprocess.run` does."""
    timeout, check = options.pop("timeout", None), options.pop("check", False)
    streams = {} if input is None else {"stdin": subprocess.PIPE}
    streams |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(args, **(streams | options)) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()

    return done


def is_warm(env: Mapping[str, str]) -> bool:
    """Say whether a command with this environment may be a fork of the server of this process."""
    is_asked_for = os.environ.get("ADW_SOAK", "") in {"", "0"} and not any(
        n.startswith("COVERAGE_") for n in os.environ
    )

    return is_asked_for and hasattr(os, "pidfd_open") and _fixed(env) == _server().fixed


def bin_dir() -> str:
    """Return the directory that a shell needs in its PATH to find `adw`."""
    return str(_server().bin) if is_warm(os.environ) else str(Path(ADW).parent)


def _script_of(args: Any) -> list[str]:
    """Return what Python is to run and its arguments; nothing for another program."""
    argv = [args] if isinstance(args, str) else [os.fspath(arg) for arg in args]
    if argv[0] == ADW:
        return argv
    is_python = len(argv) > 1 and argv[0] == sys.executable

    return argv[1:] if is_python and (argv[1].endswith(".py") or (argv[1] == "-c" and len(argv) > 2)) else []


def _or_ours(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env


def _fixed(env: Mapping[str, str]) -> dict[str, str]:
    looked_at = {name: value for name, value in env.items() if name.startswith(FIXED_PREFIXES) or name in FIXED_NAMES}
    # The server finds what is in this checkout anyhow.
    return {name: value for name, value in looked_at.items() if (name, value) != ("PYTHONPATH", ROOT)}


class Server:
    """The process that forks, and the socket to it."""

    def __init__(self) -> None:
        self.fixed = _fixed(os.environ)
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._place = Path(tempfile.mkdtemp(prefix="adw-warm-"))
        self.bin = self._place / "bin"
        self._write_command()
        with theirs, socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self._place / "door"))
            door.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, warm_server.__file__, str(theirs.fileno()), str(door.fileno())],
                pass_fds=[theirs.fileno(), door.fileno()],
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        assert self._control.recv(1), "the process that loads adw for the tests has died: its last words are above"

    def start(self, argv: list[str], cwd: str, env: dict[str, str], streams: list[int]) -> tuple[int, Any]:
        """Start a command; return its pid, and what its exit code can be read from."""
        request = json.dumps({"argv": argv, "cwd": cwd, "env": env, "umask": _umask()}).encode()
        read_end, write_end = os.pipe()
        status = os.fdopen(read_end, "rb", buffering=0)
        try:
            with self._lock:
                socket.send_fds(self._control, [warm_server.HEADER.pack(len(request))], [*streams, write_end])
                self._control.sendall(request)
        finally:
            os.close(write_end)

        return _number(status), status

    def close(self) -> None:
        """End the server; what it started goes on."""
        self._control.close()
        self._process.wait()
        shutil.rmtree(self._place)

    def _write_command(self) -> None:
        given = {
            "ADDRESS": str(self._place / "door"),
            "FIXED": self.fixed,
            "FIXED_PREFIXES": FIXED_PREFIXES,
            "FIXED_NAMES": tuple(FIXED_NAMES),
            "REAL": ADW,
        }
        words = [f"#!{sys.executable} -IS", *(f"{name} = {value!r}" for name, value in given.items())]
        self.bin.mkdir()
        command = self.bin / "adw"
        command.write_text("\n".join([*words, Path(__file__).with_name("warm_client.py").read_text()]))
        command.chmod(0o755)


@functools.cache
def _server() -> Server:
    made = Server()
    atexit.register(made.close)

    return made


def _number(status: Any) -> int:
    line = status.readline()
    assert line, "the process that starts commands for the tests is gone"

    return int(line)


def _umask() -> int:
    # Asking the system for it means to set it, which other threads would notice.
    words = Path("/proc/self/status").read_text().split()

    return int(words[words.index("Umask:") + 1], 8)


def begin_together(*commands: list[str]) -> list[Popen]:
    """Start helpers of the tests that say `ready` and wait for a line, and let all of them begin at once."""
    env = {**os.environ, "PYTHONPATH": ROOT}
    running = [Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=env) for command in commands]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()

    return running
