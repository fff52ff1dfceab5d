"""
A home with workflows of shell commands, and commands that run beside the test.

The home is no git repository, so that phases work in it and find the pipes of the test.

Nothing here waits for time to pass: a phase says through a pipe that it has begun, and goes on when the test says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from tests import templates, warm

ADW = warm.ADW
#: Seconds after which something that should happen at once is taken as hanging.
PATIENCE = 30.0

WORKFLOWS = """
[worktree]
enabled = false

[workflows.short]
[[workflows.short.phases]]
name = "plan"
shell = "echo the plan"
[[workflows.short.phases]]
name = "build"
shell = "echo built; echo careful >&2"

[workflows.flaky]
[[workflows.flaky.phases]]
name = "build"
shell = "echo try $ADW_ATTEMPT; test -e mended || { echo connection reset by peer >&2; exit 1; }"
max_attempts = 2
retry = { base_seconds = 0.01, strategy = "fixed" }

[workflows.patient]
[[workflows.patient.phases]]
name = "build"
shell = "echo connection reset by peer >&2; exit 1"
max_attempts = 3
retry = { base_seconds = 300, max_seconds = 300, strategy = "fixed" }

[workflows.gated]
[[workflows.gated.phases]]
name = "plan"
shell = "echo plan $ADW_ATTEMPT; cat $ADW_HINTS_FILE"
gate = "human"
max_attempts = 2
[[workflows.gated.phases]]
name = "build"
shell = "echo built"

[workflows.long]
[[workflows.long.phases]]
name = "build"
shell = "echo attempt $ADW_ATTEMPT begins; echo up > up; cat go; echo attempt $ADW_ATTEMPT ends"

[workflows.stubborn]
[[workflows.stubborn.phases]]
name = "build"
shell = "trap '' TERM; echo up > up; while :; do cat go; done"
"""


def make_home(tmp_path: Path, *, is_used: bool = True) -> Path:
    """Make a plain directory a home with the workflows above, and the pipes `up` (a phase has begun) and `go`."""
    home = tmp_path.resolve() / "home"
    home.mkdir()
    if is_used:
        templates.prepare_home(home)
    (home / "adw.toml").write_text(WORKFLOWS)
    os.mkfifo(home / "up")
    os.mkfifo(home / "go")
    return home


def has_begun(home: Path, *, phases: int = 1, patience: float = PATIENCE) -> None:
    """Return when so many phases of `long` or `stubborn` have begun."""
    # Opened for both, so that it neither blocks here nor ends when a phase closes its side.
    fd = os.open(home / "up", os.O_RDWR | os.O_NONBLOCK)
    try:
        heard = b""
        while heard.count(b"up\n") < phases:
            assert select.select([fd], [], [], patience)[0], "the phase has not begun"
            heard += os.read(fd, 100)
    finally:
        os.close(fd)


def let_go(home: Path) -> None:
    """Let a phase of `long` end."""
    with (home / "go").open("w"):
        pass  # opening waits for the reader, closing ends it


def newest(home: Path) -> str:
    """Return the id of the workflow that was started last."""
    stored = [json.loads(path.read_text()) for path in home.glob("state/*/adw_state.json")]
    return max(stored, key=lambda one: one["created_at"])["adw_id"]


def document(home: Path, adw_id: str) -> dict:
    """Return what is stored about a workflow."""
    return json.loads((home / "state" / adw_id / "adw_state.json").read_text())


class Beside:
    """An `adw` command that runs beside the test, its output in pipes."""

    def __init__(
        self, home: Path, *args: str, program: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """*program* runs instead of `adw --home HOME`; *env* is added to the environment."""
        self.process = warm.Popen(
            [*(program or (ADW, "--home", str(home))), *args],
            cwd=home,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=warm.default_interrupts,
        )
        self.stdout = self.stderr = ""

    def line(self, words: str, *, of: str = "stdout") -> str:
        """Return the next line with *words* in it."""
        for line in getattr(self.process, of):
            if words in line:
                return line
        raise AssertionError(f"{words!r} never came")

    def end(self) -> int:
        """Wait for its end and return the exit code."""
        self.stdout, self.stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def json(self):
        return json.loads(self.stdout)

    def __enter__(self):
        return self

    def __exit__(self, *args: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Terminal:
    """An `adw` command on a terminal of its own."""

    def __init__(self, home: Path, *args: str) -> None:
        self._master, child = pty.openpty()
        termios.tcsetwinsize(child, (24, 100))
        self.process = subprocess.Popen(
            [ADW, "--home", str(home), *args],
            cwd=home,
            env={**os.environ, "TERM": "xterm"},
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads before exec
        )
        os.close(child)
        self.text = ""

    def until(self, words: str) -> None:
        """Read until *words* are on the screen."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.text:
            assert time.monotonic() < deadline, f"{words!r} never came: {self.text!r}"
            assert self._read(), f"it ended without {words!r}: {self.text!r}"

    def ctrl_c(self) -> None:
        """Type Ctrl-C."""
        os.write(self._master, b"\x03")

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, f"{text}\n".encode())

    def end(self) -> int:
        """Read until it ends and return the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=PATIENCE)

    def _read(self) -> bool:
        assert select.select([self._master], [], [], PATIENCE)[0], f"nothing came any more: {self.text!r}"
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # how a terminal says that the other side is gone
            return False
        self.text += piece.decode()
        return bool(piece)

    def __enter__(self):
        return self

    def __exit__(self, *args: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    warm.default_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
