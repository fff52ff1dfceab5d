"""A place to run real processes in: a clock moved by hand, orders that can be given, a look at who lives."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.phase import Order
from adws.adw_modules.process.identity import SystemProcesses, parse_stat
from adws.adw_modules.process.run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import Timeouts
from adws.testing import FakeClock

#: Far more than any clock of a test waits for.
LONG = 10_000.0
NO_TIMEOUTS = Timeouts(wall=None, idle=None, after_result=None)


def void(_value: object) -> None:
    """Take a value and return nothing."""


def is_alive(pid: int) -> bool:
    """Say whether *pid* runs; one that only waits to be collected does not."""
    try:
        stat = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat is not None and not stat.is_zombie


def is_gone(pid: int) -> bool:
    """Say whether *pid* ends; one that was killed a moment ago may still be in the middle of that."""
    for _ in range(1000):
        if not is_alive(pid):
            return True
        threading.Event().wait(0.01)
    return False


@dataclass
class LabOrders:
    """Orders that a test gives; *on_look* is called whenever somebody looks."""

    order: Order | None = None
    on_look: Callable[[], None] = lambda: None

    def current(self) -> Order | None:
        self.on_look()
        return self.order

    def wait(self, seconds: float) -> Order | None:
        return self.current()


@dataclass
class Lab:
    """Runs scripts through `run_process`."""

    place: Path
    clock: FakeClock = field(default_factory=FakeClock)
    orders: LabOrders = field(default_factory=LabOrders)
    redactor: Redactor = field(default_factory=Redactor)
    lines: list[tuple[str, str]] = field(default_factory=list)
    records: list[ProcessRecord] = field(default_factory=list)
    on_line: Callable[[str], None] = lambda _line: None
    on_record: Callable[[ProcessRecord], None] = lambda _record: None
    saw_result: Callable[[], bool] | None = None
    # Real tokens: those of a FakeClock come again in the next test, and processes are known by them.
    processes: SystemProcesses = field(default_factory=lambda: SystemProcesses(clock=SystemClock()))

    @property
    def stdout(self) -> Path:
        return self.place / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.place / "stderr.log"

    def advance_at_every_look(self, seconds: float) -> None:
        self.orders.on_look = lambda: self.clock.advance(seconds)

    @contextlib.contextmanager
    def gate(self, name: str) -> Iterator[Callable[[], None]]:
        """Make a FIFO at which a script waits (`read -r x < name`), and yield what lets one reader through."""
        os.mkfifo(self.place / name)
        fd = os.open(self.place / name, os.O_RDWR)  # both ends: opening never waits, and there is no end of file
        try:
            yield lambda: void(os.write(fd, b"go\n"))
        finally:
            os.close(fd)

    def command(self, *argv: str, **changes: object) -> CommandLine:
        values: dict[str, object] = {
            "argv": argv,
            "cwd": self.place,
            "env": {"PATH": os.environ["PATH"]},
            "timeouts": NO_TIMEOUTS,
            "stdout_path": self.stdout,
            "stderr_path": self.stderr,
        }
        return CommandLine(**{**values, **changes})  # type: ignore[arg-type]  # a test's own values

    def run(self, *argv: str, **changes: object) -> ProcessEnd:
        return run_process(
            self.command(*argv, **changes),
            clock=self.clock,
            processes=self.processes,
            orders=self.orders,
            record=self._record,
            redactor=self.redactor,
            on_line=self._line,
            saw_result=self.saw_result,
        )

    def sh(self, script: str, **changes: object) -> ProcessEnd:
        return self.run("/bin/sh", "-c", script, **changes)

    def python(self, script: str, **changes: object) -> ProcessEnd:
        return self.run(sys.executable, "-c", script, **changes)

    @property
    def said(self) -> list[str]:
        return [line for _, line in self.lines]

    def _record(self, record: ProcessRecord) -> None:
        self.records.append(record)
        self.on_record(record)

    def _line(self, stream: str, line: str) -> None:
        self.lines.append((stream, line))
        self.on_line(line)
