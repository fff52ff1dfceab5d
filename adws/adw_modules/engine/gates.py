"""
The gates of a phase: conditions checked after the phase itself succeeded.

Gates fail closed: one that cannot be decided fails, with a reason. A person is asked last, after all automatic checks
have passed.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.errors import AdwError, OwnershipError, StateError
from adws.adw_modules.phase import Order, PhaseContext, RunReport
from adws.adw_modules.process.run import ProcessEnd
from adws.adw_modules.workflow.model import Gate, PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.engine.base_check import BaseCheck
    from adws.adw_modules.engine.git_guard import Guard
    from adws.adw_modules.engine.runner_command import CommandRunner

#: Most bytes of each output of a gate that are compared or stored.
MAX_OUTPUT_BYTES = 128 * 1024
#: Most new failures named in a reason.
MAX_NAMED = 5
#: A shell's exit codes for a command that could not be run: no evidence about the work.
NOT_RUN = (126, 127)
#: Keys of a result that say whether the phase succeeded.
VERDICT_KEYS = ("success", "passed")


@dataclass(frozen=True, kw_only=True, slots=True)
class GateVerdict:
    """Whether a phase may count as complete."""

    passed: bool
    reason: str = ""  #: why not, or the question to the person
    needs_human: bool = False  #: all else passed: a person decides
    is_suspended: bool = False  #: an order interrupted a gate: no evidence about the phase
    error: Exception | None = None  #: a problem beyond the gate itself
    is_red: bool = False  #: a gate was decided against the work: retrying the same work does not help


PASSED = GateVerdict(passed=True)


class Gates:
    """Checks the gates of phases."""

    def __init__(self, commands: CommandRunner, git_guard: Guard, base_check: BaseCheck | None = None) -> None:
        """
        *commands* runs the commands of gates, watched by *git_guard*.

        *base_check* has the gates' results on the commit that the work started from.
        """
        self._commands = commands
        self._guard = git_guard
        self._base = base_check

    def check(self, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> GateVerdict:
        """Return the verdict of the first gate of *phase* that does not pass."""
        if not report.ok:
            return _failed(f"phase {phase.name} itself failed")
        machine = [(number, gate) for number, gate in enumerate(phase.gates, 1) if gate.kind != "human"]
        is_guarded = any(gate.kind == "command" for _, gate in machine)
        if is_guarded:
            self._guard.look(context)
        verdict, tampered = PASSED, None
        try:
            for number, gate in machine:
                if gate.kind == "command":
                    verdict = self._check_command(phase, gate, number, context)
                elif gate.kind == "artifact":
                    verdict = _check_artifact(gate.artifact, context.cwd)
                elif gate.kind == "result":
                    verdict = _check_result(report)
                else:
                    verdict = _failed(f"there is no gate of the kind {gate.kind!r}")
                if verdict is not PASSED:
                    break
        finally:
            if is_guarded:
                tampered = self._guard.end(context)
        # Gates that changed what worktrees share never pass.
        if tampered is not None and not verdict.is_suspended:
            return GateVerdict(passed=False, reason=str(tampered), error=tampered)
        if verdict is PASSED and len(machine) < len(phase.gates):
            asked = f"phase {phase.name} waits for a person: adw approve {context.document.adw_id}, or adw reject"
            return GateVerdict(passed=False, needs_human=True, reason=asked)

        return verdict

    def _check_command(self, phase: PhaseSpec, gate: Gate, number: int, context: PhaseContext) -> GateVerdict:
        shown = gate.shell or " ".join(gate.command)
        if not shown.strip():
            return _failed("a gate of the kind command has no command")
        try:
            end = self._commands.run_beside(phase, gate, context, f"gate-{number}")
        except (OwnershipError, StateError):  # not about the gate: we lost the workflow, or cannot write it
            raise
        except (AdwError, OSError) as exc:
            return _failed(f"the gate `{shown}` could not be run: {exc}")
        if end.ordered:
            return GateVerdict(passed=False, is_suspended=True, reason=end.ordered.kind)
        if end.exit_code == 0 and end.timed_out is None and not end.survivors:
            return PASSED

        verdict = _failed(f"the gate `{shown}` {how_ended(end)}{last_line(end.tail)}", is_red=is_red(end))
        if self._base is None or not verdict.is_red:
            return verdict
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        new = self._base.new_failures(phase, gate, context, output_of(files, f"gate-{number}"))
        if isinstance(new, Order):
            return GateVerdict(passed=False, is_suspended=True, reason=new.kind)
        if new is None:
            return verdict
        if not new:
            context.say(f"the gate `{shown}` is red as it is on the base commit: nothing failed that did not before")
            return PASSED
        more = f" and {len(new) - MAX_NAMED} more" if len(new) > MAX_NAMED else ""
        named = "; ".join(line[:200] for line in new[:MAX_NAMED])

        return replace(verdict, reason=f"{verdict.reason}; new since the base commit: {named}{more}")


def _failed(reason: str, *, is_red: bool = False) -> GateVerdict:
    return GateVerdict(passed=False, reason=reason, is_red=is_red)


def output_of(files: AttemptFiles, name: str) -> str:
    """Return the output of a command beside an attempt: the ends of both streams, stderr last."""
    parts = []
    for stream in ("stdout", "stderr"):
        with suppress(OSError):
            parts.append(files.path(f"{name}.{stream}.log").read_bytes()[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace"))

    return "".join(parts)


def is_red(end: ProcessEnd) -> bool:
    """Say whether a command, not stopped by an order, ran and failed because of the work."""
    return end.timed_out is not None or (end.exit_code not in (None, 0, *NOT_RUN) and not end.survivors)


# --- kinds -----------------------------------------------------------------------------------------------------


def how_ended(end: ProcessEnd) -> str:
    """Return how a command that did not pass ended, as the continuation of a sentence."""
    if end.exceeded:
        return f"was killed: {end.exceeded}"
    if end.timed_out:
        return f"took too long ({end.timed_out})"
    if end.signal is not None:
        return f"was ended by signal {end.signal}"
    if end.survivors:
        return f"left processes that could not be ended: {', '.join(end.survivors)}"

    return f"ended with exit code {end.exit_code}"


def last_line(tail: str) -> str:
    """Return the last line of an output as the continuation of a sentence, or ""."""
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")

    return f": {last[:300]}" if last else ""


def _check_artifact(pattern: str, cwd: Path) -> GateVerdict:
    pure = PurePosixPath(pattern)
    if not pattern.strip() or "\0" in pattern or pure.is_absolute() or ".." in pure.parts:
        return _failed(f"the artifact {pattern!r} is no path below the working directory")
    reason = "is not there"
    try:
        root = cwd.resolve(strict=True)
        for path in root.glob(pattern):
            try:
                real = path.resolve(strict=True)
                info = real.stat()
            except (OSError, RuntimeError):  # the latter for circular links
                reason = "cannot be read, or is a symbolic link to nothing"
                continue
            if not real.is_relative_to(root):
                reason = "is a symbolic link that leaves the working directory"
            elif not stat.S_ISREG(info.st_mode):
                reason = "is not a regular file"
            elif not info.st_size:
                reason = "is empty"
            else:
                return PASSED
    except (OSError, ValueError, RuntimeError) as exc:
        return _failed(f"the artifact {pattern} cannot be looked up: {exc}")

    return _failed(f"the artifact {pattern} {reason}")


def _check_result(report: RunReport) -> GateVerdict:
    said = {key: report.result[key] for key in VERDICT_KEYS if key in report.result}
    if not said:
        return _failed("the result does not say `success` or `passed`")
    wrong = [key for key, value in said.items() if value is not True]
    if wrong:
        reason = f"the result says `{wrong[0]}`: {str(said[wrong[0]])[:60]}, not true"
        return _failed(reason, is_red=said[wrong[0]] is False)

    return PASSED
