"""
Run a phase, or a gate, as a command of the user.

The command gets few variables: those every program needs, those the phase names, and adw's own about the task. adw's
tokens are never among them, even if they are named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from adws.adw_modules import checkpoint, effects
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.checkpoint import KIND, CheckpointFile
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.errors import FailedRun, RunFailed, UnsafePath, UsageError
from adws.adw_modules.identifiers import OWN_SECRETS, JsonObject
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.process.run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import Gate, PhaseSpec, Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.git.repository import Repository
    from adws.app import Home


# Results of phases: checked, and converted to a report.
#
# Pure. It fails closed: anything but one JSON object is a failed attempt, never an empty result.


#: Most bytes of a result.
MAX_RESULT_BYTES = 1 << 20


def parse_result(payload: bytes) -> JsonObject:
    """Return the JSON object in *payload*; raise RunFailed if it is anything else."""
    if len(payload) > MAX_RESULT_BYTES:
        raise bad_result(f"it has {len(payload)} bytes, the limit is {MAX_RESULT_BYTES}")
    try:
        result = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise bad_result(f"it is not JSON ({exc})") from exc
    if not isinstance(result, dict):
        raise bad_result(f"it must be a JSON object, such as {{}}, and is {_kind(result)}")

    return result


def check_result(value: object) -> JsonObject:
    """Return a Python function's result if it is one JSON object; otherwise raise RunFailed."""
    if not isinstance(value, dict):
        raise bad_result(f"it must be a dict, a RunReport, a Suspended or None, and is {type(value).__name__}")
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise bad_result(f"it cannot be written as JSON ({exc})") from exc
    result = parse_result(text.encode())
    if result != value:
        raise bad_result("it would not come back from JSON as it is: use text keys, and lists, not tuples")

    return result


def report_of(result: JsonObject, *, summary: str = "") -> RunReport:
    """Return the report of a success with *result*; its `rework`, `summary` and `cost_usd` are copied."""
    for name, kind, rule in (("summary", str, "a text"), ("rework", bool, "true or false")):
        value = result.get(name)
        if value is not None and not isinstance(value, kind):
            raise bad_result(f"{name} must be {rule}, and is {_kind(value)}")
    said = str(result.get("summary") or "").strip().splitlines()

    return RunReport(
        ok=True,
        summary=said[0] if said else summary,
        result=result,
        wants_rework=result.get("rework") is True,
        cost_usd=cost_of(result),
    )


def cost_of(result: Mapping[str, object]) -> float | None:
    """Return the cost that a result states, or None; raise RunFailed if it is not an amount."""
    cost = result.get("cost_usd")
    if cost is None:
        return None
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf:
        raise bad_result(f"cost_usd must be a number from 0 up, and is {str(cost)[:60]!r}")

    return float(cost)


def bad_result(why: str) -> RunFailed:
    """Return the error for an unusable result."""
    message = f"the result of the phase cannot be used: {why}"

    return RunFailed(FailedRun(subtype="bad_output", text=message), message)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

    return names.get(type(value), "a number")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


# Files and variables that describe the task to a phase's process, and the result it writes: the same for commands and
# agents.
#
# The process gets few variables: those every program needs, those named for it, and adw's own about the task. adw's
# tokens are never among them, even if they are named.


#: Variables passed on to a process, besides all that begin with LC_.
ALLOWED_VARIABLES = ("PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TMPDIR")


def environment(env: Mapping[str, str], names: Iterable[str], context: PhaseContext) -> dict[str, str]:
    """Return the variables of *env* that a process may have, including *names*, and those of the attempt."""
    wanted = {*ALLOWED_VARIABLES, *names}
    given = {name: value for name, value in env.items() if name in wanted or name.startswith("LC_")}
    allowed = {name: value for name, value in (given | dict(context.env)).items() if name not in OWN_SECRETS}

    return {**allowed, "PWD": str(context.cwd)}


def task_variables(context: PhaseContext, files: AttemptFiles, *, redactor: Redactor) -> dict[str, str]:
    """Write the description of the task to files, and return the variables that name them."""
    document = context.document
    issue: JsonObject = document.issue.model_dump(mode="json") if document.issue else {}
    about: JsonObject = {**issue, "number": document.issue_number, "repository": document.repository}

    return {
        "ADW_ID": document.adw_id,
        "ADW_ISSUE_NUMBER": "" if document.issue_number is None else str(document.issue_number),
        "ADW_PHASE": context.phase,
        "ADW_ATTEMPT": str(context.attempt_number),
        "ADW_RESULT_FILE": str(files.result),
        "ADW_ISSUE_FILE": str(files.write("issue.json", _clean(about, redactor))),
        "ADW_HINTS_FILE": str(files.write("hints.json", _clean(list(context.hints), redactor))),
    }


def read_result(files: AttemptFiles, *, redactor: Redactor) -> JsonObject:
    """Return what a process wrote to its result file, {} if it wrote nothing; raise RunFailed."""
    try:
        raw = files.read("result.json", max_bytes=MAX_RESULT_BYTES)
    except (TooLarge, UnsafePath, OSError) as exc:
        with contextlib.suppress(OSError):  # nobody reads it, and it may contain secrets
            files.discard("result.json")
        raise bad_result(str(exc)) from exc
    if raw is None:
        return {}

    clean = redactor.scrub_bytes(raw)
    if clean != raw:
        files.write("result.json", clean)
    return parse_result(clean)


def clean_result(files: AttemptFiles, *, redactor: Redactor) -> None:
    """Remove secrets from the result of a stopped process: nobody reads it, but it stays on the disk."""
    with contextlib.suppress(RunFailed):
        read_result(files, redactor=redactor)


def _clean(value: object, redactor: Redactor) -> bytes:
    return redactor.scrub_bytes(json.dumps(value, ensure_ascii=False, indent=1).encode())


#: Characters of a shell line used as its name in messages.
MAX_NAME = 60
#: Files that determine the installed dependencies: set-up commands run again if one of them has changed.
LOCK_FILES = (
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "requirements.txt",
    "pyproject.toml",
    "poetry.lock",
    "uv.lock",
    "Pipfile.lock",
    "Cargo.lock",
    "go.sum",
    "Gemfile.lock",
)
#: Prefix of files, beside the document, that record which set-up commands have run in the worktree.
_SET_UP = "setup-"


class CommandRunner:
    """Runs `command` or `shell` of a phase; implements `Runner`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, or ""."""
        if bool(phase.command) == bool(phase.shell.strip()):
            return f"phase {phase.name} needs either command (a list) or shell (one line)"
        kept = sorted(OWN_SECRETS.intersection(phase.env))
        if kept:
            return f"phase {phase.name} asks for {', '.join(kept)}, which adw keeps to itself: take it out of env"

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Run the phase's command once; its exit code and its result file decide whether it succeeded."""
        problem = self.check(phase)
        if problem:
            raise RunFailed(FailedRun(subtype="config", text=problem), problem)

        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        files.discard("result.json")
        self.set_up(phase, context)
        kept = CheckpointFile(context, self._home.checkpoint_manager, self._home.redactor.scrub_bytes)
        command = self._command(phase.command, phase.shell, phase, context, files)
        command = replace(
            command,
            env={**command.env, checkpoint.VARIABLE: str(kept.prepare())},
            timeouts=phase.timeouts,
            stdout_path=files.stdout,
            stderr_path=files.stderr,
        )
        try:
            outputs = {name: Path(command.env[name]) for name in ("ADW_RESULT_FILE", checkpoint.VARIABLE)}
            end = self._run(command, phase, context, outputs=outputs)
        finally:
            kept.save()
        if end.ordered:
            clean_result(files, redactor=self._home.redactor)
            return Suspended(reason=end.ordered.kind)

        name, line = _program_of(phase), " ".join(phase.shell.split())
        if line:  # a shell line names itself: its first word means little (cd, if, test)
            name = f"`{line}`" if len(line) <= MAX_NAME else f"`{line[:MAX_NAME].rstrip()}...`"
        failure = failure_of(end, tool=_program_of(phase), name=name)
        report = RunReport(ok=False, error=failure)
        try:
            result = read_result(files, redactor=self._home.redactor)
            report = replace(report, result=result)
            report = replace(report, cost_usd=cost_of(result))
            if failure is None:
                last = next((line.strip() for line in reversed(end.tail.splitlines()) if line.strip()), "")
                left = f" (ended what it left running: {', '.join(end.leftovers)})" if end.leftovers else ""
                report = report_of(result, summary=f"{last[:200] or f'{name} ended well'}{left}")
        except RunFailed as exc:
            report = replace(report, error=failure or exc)

        return replace(
            report,
            summary=report.summary or str(report.error),
            exit_code=end.exit_code,
            output_files=tuple(name for name in files.existing() if not name.endswith(KIND)),
        )

    def run_beside(self, phase: PhaseSpec, gate: Gate, context: PhaseContext, name: str) -> ProcessEnd:
        """Run another command beside the phase's own, such as a gate; its output is `attempt-<n>.<name>.*.log`."""
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        command = replace(
            self._command(gate.command, gate.shell, phase, context, files),
            timeouts=Timeouts(wall=gate.timeout_seconds, idle=None, after_result=None),
            stdout_path=files.path(f"{name}.stdout.log"),
            stderr_path=files.path(f"{name}.stderr.log"),
        )

        return self._run(command, phase, context, own=gate.sandbox)

    def set_up(self, phase: PhaseSpec, context: PhaseContext) -> None:
        """Run the set-up commands of *phase*, once for the same commands and lock files; raise RunFailed."""
        if not phase.setup:
            return
        known = hashlib.sha256("\0".join(phase.setup).encode())
        for path in (context.cwd / name for name in LOCK_FILES):
            if path.is_file():
                with path.open("rb") as file:  # in pieces: an agent may have made it arbitrarily large
                    known.update(hashlib.file_digest(file, "sha256").digest())
        done = context.folder / f"{_SET_UP}{known.hexdigest()[:32]}"
        if done.exists():
            return
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        for number, line in enumerate(phase.setup, 1):
            command = replace(
                self._command((), line, phase, context, files),
                timeouts=phase.timeouts,
                stdout_path=files.path(f"setup-{number}.stdout.log"),
                stderr_path=files.path(f"setup-{number}.stderr.log"),
            )
            end = self._run(command, phase, context, egress=phase.setup_egress)
            failure = failure_of(end, tool=line.split()[0], name=f"the set-up command `{line[:MAX_NAME]}`")
            if failure is not None and end.ordered is None:
                raise failure
            if end.ordered is not None:
                return  # the phase itself sees the order and does not begin
        done.touch()

    def forget_set_up(self, context: PhaseContext) -> None:
        """Let the set-up commands of each phase run again in a new worktree."""
        for done in context.folder.glob(f"{_SET_UP}*"):
            done.unlink()

    def clean_up(self, phase: PhaseSpec, context: PhaseContext) -> None:
        """Run the clean-up command, if one is set, before a phase that ran out of a resource is retried."""
        command = self._home.settings.cleanup_command
        if command:
            end = self.run_beside(phase, Gate(kind="command", shell=command), context, "cleanup")
            context.say(f"clean-up ended with exit code {end.exit_code}")

    def _command(
        self, argv: tuple[str, ...], shell: str, phase: PhaseSpec, context: PhaseContext, files: AttemptFiles
    ) -> CommandLine:
        home = self._home

        return CommandLine(
            argv=argv or ("/bin/sh", "-c", shell),
            cwd=context.cwd,
            env={
                **environment(home.env, phase.env, context),
                **task_variables(context, files, redactor=home.redactor),
            },
            grace_seconds=home.settings.grace_seconds,
        )

    def _run(
        self,
        command: CommandLine,
        phase: PhaseSpec,
        context: PhaseContext,
        *,
        own: str = "",
        egress: tuple[str, ...] = (),
        outputs: Mapping[str, Path] = MappingProxyType({}),
    ) -> ProcessEnd:
        """Run *command* in the sandbox of *phase*, or in the one called *own*; see `Sandboxes.boxed`."""
        told = [Path(command.env[name]) for name in ("ADW_ISSUE_FILE", "ADW_HINTS_FILE")]
        with self._home.sandboxes.boxed(
            command,
            context.document,
            say=context.say,
            denied=context.denied,
            own=own or phase.sandbox,
            egress=(*phase.egress, *egress),
            files=told,
            outputs=outputs,
        ) as boxed:
            return run_process(
                boxed,
                clock=self._home.clock,
                processes=self._home.processes,
                orders=context.orders,
                record=context.record_process,
                redactor=self._home.redactor,
                on_line=lambda _stream, line: context.say(line),
            )


def failure_of(end: ProcessEnd, *, tool: str, name: str) -> RunFailed | None:
    """Return why a process with this end failed, or None if it succeeded; messages call it *name*."""
    if end.exceeded:
        what = f"{name} was killed: {end.exceeded}"
        return RunFailed(FailedRun(signal=end.signal, subtype="killed", text=what, tool=tool), what)
    if end.survivors:
        what = f"{name} has ended, but what it started could not be ended: {', '.join(end.survivors)}"
        return RunFailed(FailedRun(exit_code=end.exit_code, signal=end.signal, text=what, tool=tool), what)
    if end.exit_code == 0 and end.timed_out is None:
        return None

    return RunFailed(
        FailedRun(
            exit_code=end.exit_code, signal=end.signal, timed_out=end.timed_out, text=end.tail, tool=tool, box=end.box
        ),
        name=name,
    )


def _program_of(phase: PhaseSpec) -> str:
    """Return the program whose exit codes these are, as far as the definition shows."""
    return phase.command[0].rpartition("/")[2] if phase.command else phase.shell.split()[0]


# Cleaning up after work: the worktree is removed, branch and pull request stay.
#
# It goes through the ledger, so that it can be interrupted anywhere and run again: what is gone counts as done.


_WORKTREE = "worktree"


class CleanRunner:
    """Removes the worktree of a workflow; implements `Runner`."""

    def __init__(self, git: Repository | None, *, host: str = "") -> None:
        """
        Without *git* work is done in place, and nothing is removed.

        *host* is this machine if others share the work: a worktree on another host is left to the workers there.
        """
        self._git = git
        self._host = host

    def check(self, phase: PhaseSpec) -> str:
        """Return "": every phase can be a clean-up."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Remove the worktree; raise NotOurs if it belongs to somebody else by now."""
        if context.effects is None:
            raise UsageError(f"phase {phase.name} cleans up, and needs the ledger of effects to know what")
        facts = context.effects.facts(_WORKTREE)
        if self._git is None or facts is None:
            return RunReport(ok=True, summary="there is no worktree to remove", result={"success": True, "removed": []})
        made = effects.effect(context.document, _WORKTREE)
        where = made.place if made is not None else ""
        if self._host and where and where != self._host:
            said = f"the worktree is on {where}: a worker there removes it"
            return RunReport(ok=True, summary=said, result={"success": True, "removed": []})
        path = str(facts["path"])
        was_there = self._git.remove_worktree(Path(path), reason=str(facts["reason"]), is_recorded=True)
        context.effects.undone(_WORKTREE, "undone" if was_there else "gone")
        context.effects.set_fields(worktree_path=None)
        said = f"removed the worktree {path}" if was_there else f"the worktree {path} was gone already"

        return RunReport(ok=True, summary=said, result={"success": True, "removed": [path] if was_there else []})
