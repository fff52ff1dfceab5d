"""
Processes of ours that live beside this one, such as a worker of `adw serve`, or a command that a person watches.

Unlike what `process_run` runs, each is one of us and ends by itself in order: only it is ever signalled, never what it
started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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


class WatchedCommand:
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

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it runs."""
        return self._process.poll()

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
