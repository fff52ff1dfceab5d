"""
Run a workflow's gates on the commit that it starts from, before an agent is paid.

A gate that is red there stays red whatever an agent does, so every attempt would be paid for nothing. The gates run in
a checkout of their own, which is removed afterwards, one check at a time; each result is stored for its commit below
`state/.base`, so that many workflows on one commit share one check. A red result is stored too, for comparison, but a
start requested by a person runs the gate again: what was missing may have been installed in the meantime.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import durable_file, timestamps
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.effects import branch_of_work
from adws.adw_modules.engine.gates import how_ended, is_red, last_line, output_of
from adws.adw_modules.errors import AdwError, BaseRed, GitError, OwnershipError, StateError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.phase import NoOrders, Order, PhaseContext
from adws.adw_modules.workflow.model import Gate, PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

REQUIRE, COMPARE = "require", "compare"

#: Directory below the state directory; the dot distinguishes it from workflows' directories.
FOLDER = ".base"
#: Most bytes of a stored result, and most results.
MAX_RESULT_BYTES = 4 << 20
MAX_RESULTS = 500
#: Seconds between two attempts to take the lock.
LOCK_SECONDS = 0.1

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
#: Matches a line about a failure: by a word, or by a place in a file (numbers are replaced by # there).
_FAILURE = re.compile(
    r"\b(?:errors?|fail(?:s|ed|ures?)?|fatal|exception|panic(?:ked)?|warnings?)\b|[✗✕✘]|[\w-]\.\w+:#", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseResult:
    """The result of one gate on a commit."""

    gate: str  #: as a person types it
    mode: str  #: the consequence of a red result
    passed: bool
    reason: str = ""  #: how it ended, if it did not pass
    output: str = ""
    is_red: bool = False  #: it was decided and did not pass
    is_stored: bool = False  #: from an earlier check

    def to_json(self) -> JsonObject:
        """Return the result as event data."""
        return {"gate": self.gate, "passed": self.passed, "reason": self.reason, "is_stored": self.is_stored}


class BaseCheck:
    """Runs workflows' gates on the commits that they start from."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.settings.state_dir / FOLDER
        self._tree = self._folder / "tree"  #: where gates run; exists while a check holds the lock

    def gates_of(self, spec: WorkflowSpec) -> list[tuple[PhaseSpec, Gate, str]]:
        """Return the gates of *spec* to run on its base, each once, with the consequence of a red one."""
        if not self._home.has_worktrees or not any(phase.is_paid for phase in spec.phases):
            return []
        result: dict[str, tuple[PhaseSpec, Gate, str]] = {}
        for phase in spec.phases:
            for gate in phase.gates:
                mode = self._mode(gate, spec.base)
                if gate.kind == "command" and mode in {REQUIRE, COMPARE}:
                    result.setdefault(self._key(phase, gate), (phase, gate, mode))

        return list(result.values())

    def before_creation(self, document: WorkflowDocument, spec: WorkflowSpec) -> None:
        """
        Raise BaseRed if a required gate is red on the default branch, before anything of *document* is stored.

        An unreachable remote is ignored here: the workflow itself reports it.
        """
        gates = [one for one in self.gates_of(spec) if one[2] == REQUIRE]
        if not gates:
            return
        try:
            _, commit = self._home.git.fetch_default()
        except GitError:
            return
        phase = next(one.name for one in spec.phases if one.is_paid)
        folder = self._folder / f"start-{document.adw_id}"
        context = PhaseContext(
            document=document,
            phase=phase,
            attempt_number=1,
            round=1,
            cwd=self._home.settings.home,
            folder=folder,
            orders=NoOrders(),
            record_process=lambda _process: None,  # ends with this command; nothing else resumes it
            say=lambda line: self._home.say(document.adw_id, line),
        )
        try:
            results = self._check(gates, context, commit, again=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(results, Order):
            refuse(results, commit)

    def before_agent(self, spec: WorkflowSpec, context: PhaseContext) -> tuple[str, list[BaseResult]] | Order | None:
        """
        Return the base commit of a workflow whose first agent is about to start, and the results of its gates there.

        None if there is no gate to run or no known base commit; the order, if one ended the check.
        """
        gates, commit = self.gates_of(spec), _base_of(context.document)
        if not gates or not commit:
            return None
        # A later attempt is one that a person requested after this check had refused the first.
        results = self._check(gates, context, commit, again=context.attempt_number > 1)

        return results if isinstance(results, Order) else (commit, results)

    def new_failures(
        self, phase: PhaseSpec, gate: Gate, context: PhaseContext, output: str
    ) -> list[str] | Order | None:
        """
        Return the failures in the *output* of a red gate that the base does not have.

        None if the base is irrelevant: the gate is green there, or not to be compared.
        """
        commit, frozen = _base_of(context.document), context.document.workflow
        mode = self._mode(gate, frozen.base if frozen is not None else "")
        if not commit or not self._home.has_worktrees or mode != COMPARE:
            return None
        results = self._check([(phase, gate, COMPARE)], context, commit, again=False)
        if isinstance(results, Order):
            return results
        [result] = results

        return new_failures(result.output, plain(output, context.cwd)) if result.is_red else None

    # --- one check ---------------------------------------------------------------------------------------------

    def _check(
        self, gates: list[tuple[PhaseSpec, Gate, str]], context: PhaseContext, commit: str, *, again: bool
    ) -> list[BaseResult] | Order:
        """Return the results of *gates* on *commit*, up to the first required one that did not pass."""
        stored = [self._stored(commit, one, again=again) for one in gates]
        if all(result is not None for result in stored):
            return [result for result in stored if result is not None]
        with self._locked(context) as order:
            if order is not None:
                return order
            results: list[BaseResult] = []
            try:
                for number, one in enumerate(gates, 1):
                    # Another process may have run it while this one waited for the lock.
                    result = self._stored(commit, one, again=again) or self._run(one, context, commit, number)
                    if isinstance(result, Order):
                        return result
                    if not result.is_stored and (result.passed or result.is_red):
                        self._store(commit, self._key(*one[:2]), result)
                    results.append(result)
                    if result.mode == REQUIRE and not result.passed:
                        break
            finally:
                self._home.git.remove_checkout(self._tree)

        return results

    def _run(
        self, one: tuple[PhaseSpec, Gate, str], context: PhaseContext, commit: str, number: int
    ) -> BaseResult | Order:
        """Run one gate in the checkout, which is created and set up for the first one."""
        phase, gate, mode = one
        shown = gate.shell or " ".join(gate.command)
        home, tree = self._home, self._tree
        inside = (
            home.settings.home.relative_to(home.git.root) if home.settings.home.is_relative_to(home.git.root) else ""
        )
        here = replace(context, cwd=tree / inside)
        # Its files are beside those of the waiting attempt.
        beside = replace(phase, name=context.phase)
        if not tree.exists():
            home.git.add_checkout(tree, commit)
            # The checkout is filled like every worktree; SetupFailed is raised from here.
            ordered: list[Order] = []

            def run(command: Sequence[str], number: int) -> str:
                setup = Gate(kind="command", command=tuple(command))
                in_tree = replace(context, cwd=tree)
                end = home.commands.run_beside(beside, setup, in_tree, f"base-setup-{number}")
                if end.ordered:
                    ordered.append(end.ordered)
                return "" if end.exit_code == 0 and end.timed_out is None else how_ended(end)

            try:
                home.workplace.fill(tree, run=run)
            except AdwError:
                if not ordered:
                    raise
            if ordered:
                return ordered[0]
        try:
            context.say(f"{shown} on the base commit {commit[:12]}")
            end = home.commands.run_beside(beside, gate, here, f"base-{number}")
        except (OwnershipError, StateError):  # not about the gate: we lost the workflow, or cannot write it
            raise
        except (AdwError, OSError) as exc:
            return BaseResult(gate=shown, mode=mode, passed=False, reason=f"could not be run: {exc}")
        if end.ordered:
            return end.ordered
        if end.exit_code == 0 and end.timed_out is None and not end.survivors:
            return BaseResult(gate=shown, mode=mode, passed=True)

        return BaseResult(
            gate=shown,
            mode=mode,
            passed=False,
            reason=f"{how_ended(end)}{last_line(end.tail)}",
            output=plain(
                output_of(AttemptFiles(context.folder, beside.name, context.attempt_number), f"base-{number}"), here.cwd
            ),
            is_red=is_red(end),
        )

    @contextmanager
    def _locked(self, context: PhaseContext) -> Iterator[Order | None]:
        """Hold the lock of all checks of this home; yields the order that came while waiting, or None."""
        durable_file.make_directory(str(self._folder))
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            order, is_told = None, False
            while order is None:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not is_told:
                        context.say("another workflow checks its base: waiting for it")
                    is_told = True
                    order = context.orders.current()
                    self._home.clock.sleep(LOCK_SECONDS)
            if order is None:
                self._home.git.remove_checkout(self._tree)  # left by a killed check
            yield order
        finally:
            os.close(fd)

    # --- stored results ----------------------------------------------------------------------------------------

    def _mode(self, gate: Gate, of_workflow: str) -> str:
        return gate.base or of_workflow or self._home.settings.gates_base

    def _key(self, phase: PhaseSpec, gate: Gate) -> str:
        """Return a key that differs for gates that may end differently on one commit."""
        settings = self._home.settings
        said = [list(gate.command), gate.shell, sorted(phase.env), settings.worktree_setup, settings.worktree_include]

        return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:16]

    def _stored(self, commit: str, one: tuple[PhaseSpec, Gate, str], *, again: bool) -> BaseResult | None:
        """Return an earlier result; with *again* not a red one of a required gate, which is run again."""
        phase, gate, mode = one
        path = self._folder / f"{commit}-{self._key(phase, gate)}.json"
        try:
            data = json.loads(durable_file.read_file(str(path), max_bytes=MAX_RESULT_BYTES)[0])
            result = BaseResult(
                gate=gate.shell or " ".join(gate.command),
                mode=mode,
                passed=data["passed"] is True,
                reason=str(data["reason"]),
                output=str(data["output"]),
                is_red=data["passed"] is not True,
                is_stored=True,
            )
        except (OSError, ValueError, KeyError, TypeError, StateError, TooLarge):
            return None  # no result, or an unreadable one: the gate is run

        return None if again and mode == REQUIRE and not result.passed else result

    def _store(self, commit: str, key: str, result: BaseResult) -> None:
        said = {name: getattr(result, name) for name in ("gate", "passed", "reason", "output")}
        said["at"] = timestamps.to_text(self._home.clock.now())
        payload = self._home.redactor.scrub_bytes(json.dumps(said).encode())
        directory = durable_file.open_directory(str(self._folder), follow=False)
        try:
            name = f"{commit}-{key}.json"
            durable_file.replace_file(directory, name, payload, path=str(self._folder / name))
        finally:
            os.close(directory)
        oldest_last = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in oldest_last[MAX_RESULTS:]:
            with suppress(OSError):
                path.unlink()


def refuse(results: list[BaseResult], commit: str) -> None:
    """Raise BaseRed for the first of *results* that is required and did not pass."""
    for result in results:
        if result.mode == REQUIRE and not result.passed:
            raise BaseRed(result.gate, commit, result.reason, output=result.output)


def plain(output: str, cwd: Path) -> str:
    """Return *output* without colours and without the directory that the command ran in."""
    return _ANSI.sub("", output).replace(f"{cwd}/", "").replace(str(cwd), ".")


def new_failures(before: str, now: str) -> list[str]:
    """
    Return the failure lines of *now* that *before* lacks, or has less often.

    Pure. Numbers are not compared: lines move, and times differ. If no line looks like a failure, all lines count.
    """
    known = Counter(_shape(line) for line in before.splitlines() if line.strip())
    lines = [line.strip() for line in now.splitlines() if line.strip()]
    telling = [line for line in lines if _FAILURE.search(_shape(line))]
    result = []
    for line in telling or lines:
        shape = _shape(line)
        known[shape] -= 1
        if known[shape] < 0:
            result.append(line)

    return result


def _shape(line: str) -> str:
    return _NUMBER.sub("#", " ".join(line.split()))


def _base_of(document: WorkflowDocument) -> str:
    """Return the commit that a workflow's branch began with, or "" if it is unknown."""
    branch = branch_of_work(document) if document.branch_name else None

    return str(branch.undo.get("start") or "") if branch is not None else ""
