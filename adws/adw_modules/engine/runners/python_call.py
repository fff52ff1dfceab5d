"""
Run a phase as a call of a Python function: `package.module:function`, or of an executor: `package.module:Class`.

The function gets the context and nothing else, and runs in adw's own process: no clock ends it, so a function that
takes long looks at `context.orders` and returns a `Suspended` when something is ordered. An executor is made by its
class, which gets nothing, or by a function that returns it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from adws.adw_modules.checkpoint import CheckpointManager
from adws.adw_modules.engine.runners.executor import Executor, find_problem, has_execute
from adws.adw_modules.engine.runners.phase_checkpoints import PhaseCheckpoints
from adws.adw_modules.engine.runners.phase_result import check_result, report_of
from adws.adw_modules.errors import ConfigError, RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.workflow import PhaseSpec


class PythonRunner:
    """Calls `call` of a phase; implements `Runner`."""

    def __init__(self, *, search: Sequence[Path] = (), checkpoints: CheckpointManager | None = None) -> None:
        """Look for modules in *search* too, after everything that is installed; keep *checkpoints* there."""
        self._search = tuple(str(path) for path in search)
        self._checkpoints = checkpoints

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is; imports the module."""
        try:
            self._function(phase)
        except ConfigError as exc:
            return str(exc)

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Call the function once. What it raises is passed on, with its traceback."""
        function = self._function(phase)
        if self._checkpoints is None:
            return self._call(phase, function, context)

        return self._call(phase, function, PhaseCheckpoints(self._checkpoints, context).told())

    def _call(self, phase: PhaseSpec, function: Callable[..., object], context: PhaseContext) -> RunReport | Suspended:
        try:
            found = function() if isinstance(function, type) else function(context)
            if has_execute(found):
                found = Executor(found, phase.call).run(context)
        except SystemExit as exc:  # it means to end its program, not ours
            code = exc.code if isinstance(exc.code, int) else 1
            text = f"{phase.call} called sys.exit({exc.code!r})"
            raise RunFailed(FailedRun(exit_code=code, text=text, tool=phase.call), text) from exc
        if isinstance(found, RunReport | Suspended):
            return _checked(found)

        return report_of({} if found is None else check_result(found), summary=f"{phase.call} returned")

    def _function(self, phase: PhaseSpec) -> Callable[..., object]:
        """Return the function or class of *phase*; raise ConfigError that says why there is none."""
        module_name, _, name = phase.call.partition(":")
        if not module_name or not name.isidentifier():
            raise ConfigError(f"phase {phase.name} has the call {phase.call!r}: write it as package.module:function")
        sys.path.extend(path for path in self._search if path not in sys.path)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as exc:  # a stranger's module may raise anything
            raise ConfigError(
                f"phase {phase.name} cannot import {module_name}: {type(exc).__name__}: {exc}; install it, or correct "
                "the call"
            ) from exc
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"phase {phase.name} calls {phase.call}, but {module_name} has no function {name}")
        problem = find_problem(function, phase.call)
        if problem:
            raise ConfigError(f"phase {phase.name} cannot be run: {problem}")

        return function  # type: ignore[no-any-return]  # what it returns is looked at when it did


def _checked(found: RunReport | Suspended) -> RunReport | Suspended:
    """Return *found* as it is, once its result is known to be JSON."""
    if isinstance(found, RunReport):
        check_result(found.result)
        if found.ok != (found.error is None):
            text = "a RunReport has an error exactly when it is not ok: correct the function"
            raise RunFailed(FailedRun(subtype="bad_output", text=text), text)

    return found
