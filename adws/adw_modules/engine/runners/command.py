"""
Run a phase, or a gate, as a command of the user.

The command gets few variables: those every program needs, those the phase names, and what adw tells it. adw's own
tokens are never among them, whoever names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.checkpoint import CheckpointManager
from adws.adw_modules.engine.runners import checkpoint_file
from adws.adw_modules.engine.runners.checkpoint_file import CheckpointFile
from adws.adw_modules.engine.runners.phase_checkpoints import KIND
from adws.adw_modules.engine.runners.phase_files import clean_result, environment, read_result, told
from adws.adw_modules.engine.runners.phase_result import cost_of, report_of
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.process import SystemProcesses
from adws.adw_modules.process_run import MAX_OUTPUT_BYTES, CommandLine, ProcessEnd, run_process
from adws.adw_modules.process_tree import GRACE_SECONDS
from adws.adw_modules.redaction import Redactor
from adws.adw_modules.workflow import Gate, PhaseSpec, Timeouts

#: Characters of a line of shell that a message names it by.
MAX_NAME = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandParts:
    """What commands are run with."""

    clock: Clock
    processes: SystemProcesses
    redactor: Redactor
    env: Mapping[str, str] = field(repr=False)  #: the environment that the allowed variables are taken from
    own_secrets: frozenset[str] = OWN_SECRETS
    grace_seconds: float = GRACE_SECONDS
    max_output_bytes: int = MAX_OUTPUT_BYTES
    checkpoints: CheckpointManager | None = None  #: None: checkpoints are kept in files only


class CommandRunner:
    """Runs `command` or `shell` of a phase; implements `Runner`."""

    def __init__(self, parts: CommandParts) -> None:
        self._parts = parts

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is."""
        if bool(phase.command) == bool(phase.shell.strip()):
            return f"phase {phase.name} needs either command (a list) or shell (one line)"
        kept = sorted(self._parts.own_secrets.intersection(phase.env))
        if kept:
            return f"phase {phase.name} asks for {', '.join(kept)}, which adw keeps to itself: take it out of env"

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Run the phase's command once; its exit code and its result file say whether it worked."""
        problem = self.check(phase)
        if problem:
            raise RunFailed(FailedRun(subtype="config", text=problem), problem)

        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        files.discard("result.json")
        kept = CheckpointFile(context, self._parts.checkpoints, self._parts.redactor.scrub_bytes)
        command = self._command(phase.command, phase.shell, phase, context, files)
        command = replace(
            command,
            env={**command.env, checkpoint_file.VARIABLE: str(kept.lay_out())},
            timeouts=phase.timeouts,
            stdout_path=files.stdout,
            stderr_path=files.stderr,
        )
        try:
            end = self._run(command, context)
        finally:
            kept.save()
        if end.ordered:
            clean_result(files, redactor=self._parts.redactor)
            return Suspended(reason=end.ordered.kind)

        return self._report(phase, end, files)

    def run_gate(self, phase: PhaseSpec, gate: Gate, context: PhaseContext, number: int) -> ProcessEnd:
        """Run the command of *gate*, the phase's gate *number* counted from 1, with the variables of the phase."""
        return self.run_beside(phase, gate, context, f"gate-{number}")

    def run_beside(self, phase: PhaseSpec, gate: Gate, context: PhaseContext, name: str) -> ProcessEnd:
        """Run another command beside the phase's own, like a gate; its output is `attempt-<n>.<name>.*.log`."""
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        command = replace(
            self._command(gate.command, gate.shell, phase, context, files),
            timeouts=Timeouts(wall=gate.timeout_seconds, idle=None, after_result=None),
            stdout_path=files.path(f"{name}.stdout.log"),
            stderr_path=files.path(f"{name}.stderr.log"),
        )

        return self._run(command, context)

    def _command(
        self, argv: tuple[str, ...], shell: str, phase: PhaseSpec, context: PhaseContext, files: AttemptFiles
    ) -> CommandLine:
        parts = self._parts

        return CommandLine(
            argv=argv or ("/bin/sh", "-c", shell),
            cwd=context.cwd,
            env={
                **environment(parts.env, phase.env, context, own_secrets=parts.own_secrets),
                **told(context, files, redactor=parts.redactor),
            },
            max_output_bytes=parts.max_output_bytes,
            grace_seconds=parts.grace_seconds,
        )

    def _run(self, command: CommandLine, context: PhaseContext) -> ProcessEnd:
        return run_process(
            command,
            clock=self._parts.clock,
            processes=self._parts.processes,
            orders=context.orders,
            record=context.record_process,
            redactor=self._parts.redactor,
            on_line=lambda _stream, line: context.say(line),
        )

    def _report(self, phase: PhaseSpec, end: ProcessEnd, files: AttemptFiles) -> RunReport:
        name = _name_of(phase)
        failure = failure_of(end, tool=_tool_of(phase), name=name)
        report = RunReport(ok=False, error=failure)
        try:
            result = read_result(files, redactor=self._parts.redactor)
            report = replace(report, result=result)
            report = replace(report, cost_usd=cost_of(result))
            if failure is None:
                report = report_of(result, summary=_summary(name, end))
        except RunFailed as exc:
            report = replace(report, error=failure or exc)

        return replace(
            report,
            summary=report.summary or str(report.error),
            exit_code=end.exit_code,
            output_files=tuple(name for name in files.existing() if not name.endswith(KIND)),
        )


def failure_of(end: ProcessEnd, *, tool: str, name: str) -> RunFailed | None:
    """Return why a process that ended like this failed, None when it worked; people know it by *name*."""
    if end.survivors:
        what = f"{name} has ended, but what it started could not be ended: {', '.join(end.survivors)}"
        return RunFailed(FailedRun(exit_code=end.exit_code, signal=end.signal, text=what, tool=tool), what)
    if end.exit_code == 0 and end.timed_out is None:
        return None

    return RunFailed(
        FailedRun(exit_code=end.exit_code, signal=end.signal, timed_out=end.timed_out, text=end.tail, tool=tool),
        name=name,
    )


def _tool_of(phase: PhaseSpec) -> str:
    """Return the program whose exit codes these are, as far as the definition tells."""
    return phase.command[0].rpartition("/")[2] if phase.command else phase.shell.split()[0]


def _name_of(phase: PhaseSpec) -> str:
    """Return what people know the command by; a line of shell is itself: its first word says nothing (cd, if, test)."""
    line = " ".join(phase.shell.split())
    if not line:
        return _tool_of(phase)

    return f"`{line}`" if len(line) <= MAX_NAME else f"`{line[:MAX_NAME].rstrip()}...`"


def _summary(name: str, end: ProcessEnd) -> str:
    last = next((line.strip() for line in reversed(end.tail.splitlines()) if line.strip()), "")
    left = f" (ended what it left running: {', '.join(end.leftovers)})" if end.leftovers else ""

    return f"{last[:200] or f'{name} ended well'}{left}"
