"""
Run a process for one call, within its time, and return all that it printed.

Through the same door as every process of adw: it is recorded before it runs, gets few variables, obeys orders, and
nothing of it is left running. What it printed is without secrets. Its files go when the call is over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.runners.phase_files import ALLOWED_VARIABLES
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.results import MAX_RESULT_BYTES, too_long, wrong_input
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.process import SystemProcesses
from adws.adw_modules.process_run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.process_tree import GRACE_SECONDS
from adws.adw_modules.redaction import Redactor
from adws.adw_modules.workflow import Timeouts

#: Directory of the files of calls that are under way, below the workflow's own.
FOLDER = "calls"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessParts:
    """What processes are run with."""

    clock: Clock
    processes: SystemProcesses
    redactor: Redactor
    env: Mapping[str, str] = field(repr=False)  #: the environment that the allowed variables are taken from
    own_secrets: frozenset[str] = OWN_SECRETS
    grace_seconds: float = GRACE_SECONDS
    max_bytes: int = MAX_RESULT_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFiles:
    """The files of one call."""

    folder: Path

    @property
    def stdout(self) -> Path:
        """What it printed."""
        return self.folder / "stdout"

    @property
    def stdin(self) -> Path:
        """What it reads."""
        return self.folder / "stdin"

    @property
    def result(self) -> Path:
        """What it gave back, when it does not print that."""
        return self.folder / "result.json"

    def read(self, path: Path, *, max_bytes: int, besides: int) -> bytes | None:
        """
        Return what is in one of them, None when it is not there.

        Raises RunFailed for a file of more than *max_bytes* and what may stand *besides*.
        """
        try:
            return durable_file.read_file(str(path), max_bytes=max_bytes + besides)[0]
        except FileNotFoundError:
            return None
        except TooLarge:
            raise too_long(path.stat().st_size, max_bytes) from None


@contextmanager
def call_files(context: CallContext, token: str) -> Iterator[CallFiles]:
    """Make a directory for a call, and remove it with what is in it."""
    folder = context.folder / FOLDER / token
    durable_file.make_directory(str(folder.parent))
    folder.mkdir(mode=0o700)
    try:
        yield CallFiles(folder=folder)
    finally:
        for path in folder.iterdir():
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # what a program made there is left to whoever removes the workflow
            folder.rmdir()


class CallProcesses:
    """Runs processes for calls."""

    def __init__(self, parts: ProcessParts) -> None:
        self.parts = parts

    def run(
        self,
        argv: tuple[str, ...],
        context: CallContext,
        files: CallFiles,
        *,
        timeout_seconds: float,
        stdin: bytes | None = None,
        names: Iterable[str] = (),
    ) -> ProcessEnd:
        """Run *argv* in the working directory; *names* are variables it gets besides. Raises RunFailed."""
        if stdin is not None:
            files.stdin.write_bytes(stdin)
        parts = self.parts
        command = CommandLine(
            argv=argv,
            cwd=context.cwd,
            env=self.environment(context, names),
            timeouts=Timeouts(wall=timeout_seconds, idle=None, after_result=None),
            stdout_path=files.stdout,
            # One more than may be: what is cut shall be seen to be too long.
            max_output_bytes=parts.max_bytes + 1,
            grace_seconds=parts.grace_seconds,
            stdin_path=files.stdin if stdin is not None else None,
        )

        return run_process(
            command,
            clock=parts.clock,
            processes=parts.processes,
            orders=context.orders,
            record=context.record_process,
            redactor=parts.redactor,
            on_line=lambda _stream, line: context.say(line),
        )

    def environment(self, context: CallContext, names: Iterable[str] = ()) -> dict[str, str]:
        """Return the variables that a process of a call gets; raise RunFailed when it asks for those of adw."""
        wanted = {*ALLOWED_VARIABLES, *names}
        if kept := sorted(self.parts.own_secrets.intersection(wanted)):
            raise wrong_input(f"env asks for {', '.join(kept)}, which adw keeps to itself: take it out")
        given = {name: value for name, value in self.parts.env.items() if name in wanted or name.startswith("LC_")}
        allowed = {name: one for name, one in (given | dict(context.env)).items() if name not in self.parts.own_secrets}

        return {
            **allowed,
            "PWD": os.fspath(context.cwd),
            "ADW_ID": context.document.adw_id,
            "ADW_PHASE": context.phase,
            "ADW_ATTEMPT": str(context.phase_attempt),
        }
