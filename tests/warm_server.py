"""
A process that has loaded adw, and forks for each `adw` command, and each helper in Python, that the tests start.

Loading is most of the time of a command. A fork is a fresh process all the same: nothing of any home is open here, no
thread runs, and the child gets the streams, environment, directory and signals of the command before it begins. It
then runs the script, which may be the one that is installed as `adw`, and ends as an interpreter does: threads are
joined, what is registered for the end is called, streams are flushed. Only the taking apart of modules is left out.

Run by tests/warm.py; talks over the socket whose number is its first argument, and ends when the other side closes it.
Commands that a shell starts ask at the listening socket that is the second argument (tests/warm_client.py).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import adws

#: What no command loads by itself: fakes, and the scripts of Alembic, which only run inside of it.
NOT_LOADED = ("adws.testing", "adws.adw_modules.db.migrations.")
#: A request is its length, and then JSON.
HEADER = struct.Struct("!Q")
#: Standard input, output, error output, and where the pid and then the exit code are told.
FDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What a child is to become."""

    argv: list[str]  #: a script and its arguments, or "-c", a program and its arguments
    cwd: str
    env: dict[str, str]
    umask: int
    fds: list[int]


def load() -> None:
    """Load what any command may load; it reads no settings and opens nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about themselves
        for module in pkgutil.walk_packages(adws.__path__, "adws."):
            if not module.name.startswith(NOT_LOADED):
                with contextlib.suppress(Exception):  # the command that needs it will try again, and say so
                    importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # a child that looks for garbage leaves alone what it shares with the server
    if threading.active_count() != 1:
        raise RuntimeError(f"loading adw started threads, so forking is not safe: {threading.enumerate()}")


def serve(control: socket.socket, door: socket.socket) -> Command | None:
    """Fork for each request; return in each child with what it is to become, and in the server when it is to end."""
    running: dict[int, tuple[int, int]] = {}  #: pidfd -> pid, and where to tell how it ended
    while True:
        ready = select.select([control, door, *running], [], [])[0]
        for pidfd in [one for one in ready if one in running]:
            _tell_end(pidfd, *running.pop(pidfd))
        if control in ready:
            command = receive(control)
            if command is None:
                return None
        elif door in ready:
            caller, _ = door.accept()
            with caller:
                command = receive(caller)
        else:
            continue
        if command is not None and _fork(command, running) == 0:
            control.close()
            door.close()
            for pidfd, (_, status) in running.items():
                os.close(pidfd)
                os.close(status)
            return command


def receive(control: socket.socket) -> Command | None:
    """Return the next request, None when nobody will ask any more."""
    head, fds, _, _ = socket.recv_fds(control, HEADER.size, FDS)
    if not head:
        return None
    (size,) = HEADER.unpack(head)
    body = b""
    while len(body) < size:
        body += control.recv(size - len(body))

    return Command(**json.loads(body), fds=list(fds))


def _fork(command: Command, running: dict[int, tuple[int, int]]) -> int:
    # An interrupt that comes before the child is ready for it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pid = os.fork()
    if pid == 0:
        return pid
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    status = command.fds[-1]
    for fd in command.fds[:-1]:
        os.close(fd)
    running[os.pidfd_open(pid)] = (pid, status)
    _tell(status, pid)

    return pid


def _tell_end(pidfd: int, pid: int, status: int) -> None:
    os.close(pidfd)
    _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(status)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test was ended and does not ask any more
        os.write(status, b"%d\n" % number)


def become(command: Command) -> None:
    """Run the command; returns as the script of it does, which is by SystemExit."""
    for number, fd in enumerate(command.fds[:3]):
        os.dup2(fd, number)
    for fd in command.fds:
        os.close(fd)
    os.chdir(command.cwd)
    os.umask(command.umask)
    os.environ.clear()
    os.environ.update(command.env)
    sys.path[0] = "" if command.argv[0] == "-c" else str(Path(command.argv[0]).parent)
    sys.stdin = sys.__stdin__ = _stream(0, sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _run(command.argv)


def _stream(fd: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream on what *fd* is now, made as the interpreter made that of the server."""
    raw = io.FileIO(fd, "r" if fd == 0 else "w", closefd=False)
    if like.write_through:  # PYTHONUNBUFFERED
        buffer: io.BufferedIOBase | io.RawIOBase = raw
    else:
        buffer = io.BufferedReader(raw) if fd == 0 else io.BufferedWriter(raw)
    made = io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=fd == 2 or raw.isatty(),
        write_through=like.write_through,
    )
    made.mode = like.mode

    return made


def _run(argv: list[str]) -> None:
    code: int | None = None

    def end_at_once() -> None:
        # Registered first, so called last; threads have ended, and what the command registered was called.
        if code is not None:
            os._exit(code if _is_flushed() else 120)

    atexit.register(end_at_once)
    try:
        if argv[0] == "-c":
            _run_text(argv)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else None
        raise


def _run_text(argv: list[str]) -> None:
    sys.argv = ["-c", *argv[2:]]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    exec(compile(argv[1], "<string>", "exec"), module.__dict__)


def _is_flushed() -> bool:
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except (OSError, ValueError):
        return False

    return True


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal of the tests is for the tests
    load()
    control.sendall(b".")
    command = serve(control, socket.socket(fileno=int(sys.argv[2])))
    if command is not None:
        become(command)


if __name__ == "__main__":
    main()
