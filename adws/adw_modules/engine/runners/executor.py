"""
An object of the user that executes a phase, and may go on from a checkpoint.

It has `execute(context)`, and if it wants `supports_checkpoint()`, `get_checkpoint()` and
`resume_from_checkpoint(checkpoint)`. One without `resume_from_checkpoint` starts again from the beginning.
"""

from __future__ import annotations

import inspect

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.outcome import RunReport, Suspended

#: The methods of executors that adw calls.
METHODS = ("execute", "supports_checkpoint", "get_checkpoint", "resume_from_checkpoint")


def has_execute(made: object) -> bool:
    """Say whether *made* is an executor, or the class of one."""
    return callable(getattr(made, "execute", None))


def find_problem(made: object, name: str) -> str:
    """Return what keeps *made*, an executor, its class or a function, from being called, "" when nothing does."""
    parts = [made, *(getattr(made, method, None) for method in METHODS)]
    if any(map(inspect.iscoroutinefunction, parts)):
        return f"{name} is async, and adw calls it as a plain function: call asyncio.run inside of it"
    if not isinstance(made, type):
        return ""
    if not has_execute(made):
        return f"{name} is a class without a method execute: give it one that takes the context"
    try:
        inspect.signature(made).bind()
    except TypeError as exc:
        return f"{name} is a class that cannot be made without arguments ({exc}): what it needs is in the context"
    except ValueError:  # a class that is not written in Python tells nothing about itself
        return ""

    return ""


class Executor:
    """Runs an executor once, from its last checkpoint if it can."""

    def __init__(self, made: object, name: str) -> None:
        """Take *made*, which is *name* in messages; raise ConfigError when it cannot be used."""
        problem = find_problem(made, name)
        if problem:
            raise ConfigError(problem)
        self._made = made
        self._name = name

    def run(self, context: PhaseContext) -> object:
        """Return what it returns; when that is no success, or it raises, what it has got so far is kept first."""
        supports = self._supports_checkpoint()
        if supports and context.checkpoint is not None:
            self._call("resume_from_checkpoint", context.checkpoint)
        try:
            found = self._call("execute", context)
        except BaseException as exc:
            if supports:
                self._keep(context, exc)
            raise
        if supports and (isinstance(found, Suspended) or (isinstance(found, RunReport) and not found.ok)):
            self._keep(context)

        return found

    def _supports_checkpoint(self) -> bool:
        can_resume = self._has("resume_from_checkpoint")
        if not self._has("supports_checkpoint"):
            return can_resume
        supports = bool(self._call("supports_checkpoint"))
        if supports and not can_resume:
            raise ConfigError(f"{self._name} supports checkpoints and has no method resume_from_checkpoint: add it")

        return supports

    def _keep(self, context: PhaseContext, failure: BaseException | None = None) -> None:
        """Save what it has got so far; what goes wrong with that is told and never hides the *failure*."""
        if not self._has("get_checkpoint"):
            return
        try:
            data = self._call("get_checkpoint")
            if data is not None:
                context.save_checkpoint(data)  # type: ignore[arg-type]  # looked at there
        except Exception as exc:  # noqa: BLE001 - a method of the user may raise anything; the real error must survive it
            said = f"no checkpoint was saved: {type(exc).__name__}: {exc}"
            context.say(said)
            if failure is not None:
                failure.add_note(said)

    def _has(self, method: str) -> bool:
        return callable(getattr(self._made, method, None))

    def _call(self, method: str, *arguments: object) -> object:
        found: object = getattr(self._made, method)(*arguments)

        return found
