"""
Run a phase as a call of a Python function `package.module:function`, or of an executor `package.module:Class`.

The function gets only the context and runs in adw's own process: no timeout ends it, so a long-running function checks
`context.orders` and returns a `Suspended` on an order. An executor is created by its class, called without arguments,
or by a function that returns it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from adws.adw_modules.checkpoint import CheckpointManager, PhaseCheckpoints
from adws.adw_modules.engine.runner_command import check_result, report_of
from adws.adw_modules.errors import ConfigError, FailedRun, RunFailed
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.retry_handler import is_async, is_pending
from adws.adw_modules.workflow.model import PhaseSpec

# Executors: a user's objects that execute a phase, and may resume from a checkpoint.
#
# An executor has `execute(context)` and optionally `supports_checkpoint()`, `get_checkpoint()` and
# `resume_from_checkpoint(checkpoint)`. Without `resume_from_checkpoint` it starts from the beginning again.


#: The methods of executors that adw calls.
METHODS = ("execute", "supports_checkpoint", "get_checkpoint", "resume_from_checkpoint")

_ASYNC = "is async, and adw calls it as a plain function: call asyncio.run inside of it"


def has_execute(made: object) -> bool:
    """Say whether *made* is an executor or the class of one."""
    return callable(getattr(made, "execute", None))


def find_problem(made: object, name: str) -> str:
    """Return what keeps *made*, an executor, its class or a function, from being called, or ""."""
    parts = [made, *(getattr(made, method, None) for method in METHODS)]
    if any(map(is_async, parts)):
        return f"{name} {_ASYNC}"
    if not isinstance(made, type):
        return ""
    if not has_execute(made):
        return f"{name} is a class without a method execute: give it one that takes the context"
    try:
        inspect.signature(made).bind()
    except TypeError as exc:
        return f"{name} is a class that cannot be made without arguments ({exc}): what it needs is in the context"
    except ValueError:  # a class not written in Python has no signature
        return ""

    return ""


def execute(made: object, name: str, context: PhaseContext) -> object:
    """
    Run the executor *made*, called *name*, once, from its last checkpoint if it can; return its result.

    Unless it succeeds, its progress is saved first. Raises ConfigError if the executor cannot be used.
    """
    if problem := find_problem(made, name):
        raise ConfigError(problem)

    def has(method: str) -> bool:
        return callable(getattr(made, method, None))

    def call(method: str, *arguments: object) -> object:
        result: object = getattr(made, method)(*arguments)
        if is_pending(result):
            raise ConfigError(f"{method} of {name} {_ASYNC}")
        return result

    def keep(failure: BaseException | None = None) -> None:
        """Save the progress so far; an error in doing so is reported and never hides the *failure*."""
        try:
            if has("get_checkpoint") and (data := call("get_checkpoint")) is not None:
                context.save_checkpoint(data)
        except Exception as exc:  # noqa: BLE001 - a method of the user may raise anything; the real error must survive it
            said = f"no checkpoint was saved: {type(exc).__name__}: {exc}"
            context.say(said)
            if failure is not None:
                failure.add_note(said)

    can_resume = has("resume_from_checkpoint")
    supports = bool(call("supports_checkpoint")) if has("supports_checkpoint") else can_resume
    if supports and not can_resume:
        raise ConfigError(f"{name} supports checkpoints and has no method resume_from_checkpoint: add it")
    if supports and context.checkpoint is not None:
        call("resume_from_checkpoint", context.checkpoint)
    try:
        result = call("execute", context)
    except BaseException as exc:
        if supports:
            keep(exc)
        raise
    if supports and (isinstance(result, Suspended) or (isinstance(result, RunReport) and not result.ok)):
        keep()

    return result


class Callables:
    """Finds the function named by `package.module:function`, on Python's path and, after that, in *search*."""

    def __init__(self, *search: Path) -> None:
        self._search = tuple(map(str, search))
        self._known: dict[str, Callable[..., object]] = {}

    def find(self, call: str) -> Callable[..., object]:
        """Return the function *call*; raise ConfigError with the reason if it cannot be found."""
        module_name, _, name = call.partition(":")
        known = self._known.get(call)
        if known is not None and getattr(sys.modules.get(module_name), name, None) is known:
            return self._known[call]
        if not module_name or not name.isidentifier():
            raise ConfigError(f"the call {call!r} cannot be read: write it as package.module:function")
        sys.path.extend(path for path in self._search if path not in sys.path)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as exc:  # importing runs code of others, which may raise anything
            raise ConfigError(
                f"cannot import {module_name}: {type(exc).__name__}: {exc}; install it, or correct the call {call}"
            ) from exc
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{module_name} has no function {name}: correct the call {call}")
        if is_async(function):
            raise ConfigError(f"{call} {_ASYNC}")
        self._known[call] = function

        return self._known[call]


class PythonRunner:
    """Calls `call` of a phase; implements `Runner`."""

    def __init__(self, *, search: Sequence[Path] = (), checkpoints: CheckpointManager | None = None) -> None:
        """Look for modules also in *search*, after all installed ones; keep checkpoints in *checkpoints*."""
        self._callables = Callables(*search)
        self._sound: dict[str, object] = {}  #: call -> the function or class that was found to be usable
        self._checkpoints = checkpoints

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, or ""; imports the module."""
        try:
            self._function(phase)
        except ConfigError as exc:
            return str(exc)

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Call the function once. Its exceptions are passed on with their traceback."""
        function = self._function(phase)
        if self._checkpoints is not None:
            kept = PhaseCheckpoints(self._checkpoints, context)
            last = kept.latest()
            context.checkpoint, context.save_checkpoint = last.data if last else None, kept.save

        try:
            result = function() if isinstance(function, type) else function(context)
            if has_execute(result):
                result = execute(result, phase.call, context)
        except SystemExit as exc:  # it means to end its own program, not adw
            code = exc.code if isinstance(exc.code, int) else 1
            text = f"{phase.call} called sys.exit({exc.code!r})"
            raise RunFailed(FailedRun(exit_code=code, text=text, tool=phase.call), text) from exc
        if result is None:
            return RunReport(ok=True, summary=f"{phase.call} returned")
        if is_pending(result):
            raise ConfigError(f"{phase.call} {_ASYNC}")
        if isinstance(result, Suspended):
            return result
        if isinstance(result, RunReport):
            check_result(result.result)
            if result.ok != (result.error is None):
                text = "a RunReport has an error exactly when it is not ok: correct the function"
                raise RunFailed(FailedRun(subtype="bad_output", text=text), text)
            return result

        return report_of(check_result(result), summary=f"{phase.call} returned")

    def _function(self, phase: PhaseSpec) -> Callable[..., object]:
        """Return the function or class of *phase*; raise ConfigError with the reason if it cannot be used."""
        try:
            function = self._callables.find(phase.call)
        except ConfigError as exc:
            raise ConfigError(f"phase {phase.name} cannot be run: {exc}") from exc
        if self._sound.get(phase.call) is not function:
            if problem := find_problem(function, phase.call):
                raise ConfigError(f"phase {phase.name} cannot be run: {problem}")
            self._sound[phase.call] = function

        return function
