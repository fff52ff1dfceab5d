"""
Agents under guard: what all worktrees share is looked at before an agent starts and after it ended.

Whatever was changed there fails the attempt and needs a person, before any git command of ours reads it: a planted
filter or hook would run with adw's rights. What it looked like is durable before the agent starts, so that a crash
hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import tampering
from adws.adw_modules.errors import RepositoryTampered
from adws.adw_modules.interfaces_engine import PhaseContext, Runner
from adws.adw_modules.outcome import Forked, RunReport, Suspended
from adws.adw_modules.tampering import BEFORE, CHANGED, Marks

if TYPE_CHECKING:
    from adws.adw_modules.workflow import PhaseSpec


class SharedPlace(Protocol):
    """What is watched (`SharedGit`)."""

    def marks(self) -> Marks: ...
    def is_ancestor(self, old: str, new: str) -> bool: ...


class Guard:
    """Remembers what was shared before the agents that run now."""

    def __init__(self, place: Callable[[], SharedPlace | None]) -> None:
        """*place* is None where work is not done in worktrees."""
        self._place = place
        self._before: dict[Path, Marks] = {}

    def begin(self, context: PhaseContext) -> None:
        """Write the marks down; raise RepositoryTampered for what an attempt left that was cut off."""
        place = self._place()
        if place is None:
            return
        now = place.marks()
        cut_off = tampering.unsettled(context.document)
        changed = tampering.still(cut_off.before, now) if cut_off and _was_cut_off(context, cut_off.attempt) else {}
        if changed:
            context.record_agent({BEFORE: dict(now), CHANGED: dict(changed)})
            raise RepositoryTampered(context.phase, tampering.described(changed, now))
        context.record_agent({BEFORE: dict(now)})
        self._before[context.cwd] = now

    def is_touched(self, cwd: Path) -> bool:
        """Say whether anything shared was changed since the agent in *cwd* began."""
        place, before = self._place(), self._before.get(cwd)

        return place is not None and before is not None and bool(tampering.differences(before, place.marks()))

    def end(self, context: PhaseContext) -> RepositoryTampered | None:
        """Return what was changed since `begin` as an error, and keep it with the attempt; None when nothing was."""
        place, before = self._place(), self._before.pop(context.cwd, None)
        if place is None or before is None:
            return None
        after = place.marks()
        changed = tampering.differences(before, after, is_forward=lambda old, new: _is_work(place, context, old, new))
        if not changed:
            return None
        context.record_agent({CHANGED: dict(changed)})

        return RepositoryTampered(context.phase, tampering.described(changed, after))


class GuardedRunner:
    """A runner of agents, under guard; implements `Runner`."""

    def __init__(self, runner: Runner, guard: Guard) -> None:
        self._runner = runner
        self._guard = guard

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is; starts nothing."""
        return self._runner.check(phase)

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | Forked:
        """Run *phase* once; an attempt that changed what is shared has failed, whatever it says."""
        self._guard.begin(context)
        try:
            report = self._runner.run(phase, context)
        except BaseException as exc:
            tampered = self._guard.end(context)
            if tampered is not None and isinstance(exc, Exception):
                raise tampered from exc
            raise
        error = self._guard.end(context)
        if error is None or isinstance(report, Suspended):
            return report
        if isinstance(report, Forked):
            raise error

        return replace(report, ok=False, error=error, wants_rework=False, summary=str(error))


def _was_cut_off(context: PhaseContext, number: int) -> bool:
    """Say whether nobody has looked at the attempt *number*: a person who starts another one has."""
    attempts = [one for record in context.document.phases if record.name == context.phase for one in record.attempts]
    ends = {one.number: one.status for one in attempts}

    return ends.get(number) in {"interrupted", "suspended"}


def _is_work(place: SharedPlace, context: PhaseContext, old: str, new: str) -> bool:
    """Say whether a branch went on as people move it: forward, and not to what this very attempt made."""
    if not place.is_ancestor(old, new):
        return False
    branch = f"refs/heads/{context.document.branch_name}"

    return not place.is_ancestor(new, branch) or place.is_ancestor(new, context.base)
