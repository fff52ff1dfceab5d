"""
Guard what all worktrees share: compared before and after a phase or a gate runs code of others.

Any change there fails the attempt, is named key by key and needs a person. adw's own git ignores such changes in any
case (`git.private_dir`); people's own git would not. The marks are stored before the phase starts, so that a crash
hides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.errors import RepositoryTampered
from adws.adw_modules.git import change_policy
from adws.adw_modules.git.change_policy import BEFORE, CHANGED, Marks
from adws.adw_modules.phase import PhaseContext, Runner, RunReport, Suspended, WaitingForChildren
from adws.adw_modules.workflow.model import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.git.repository import Repository


class Guard:
    """Remembers the marks from before the currently running phases and gates."""

    def __init__(self, shared: Repository | None) -> None:
        """*shared* is None where work is not done in worktrees."""
        self._shared = shared
        self._before: dict[Path, Marks] = {}

    def begin(self, context: PhaseContext) -> None:
        """Record the marks; raise RepositoryTampered for changes that an interrupted attempt left."""
        if self._shared is None:
            return
        now = self._shared.marks()
        _, attempt, before = change_policy.unsettled(context.document) or ("", 0, {})
        changed = change_policy.still(before, now) if _was_cut_off(context, attempt) else {}
        if changed:
            context.record_shared({BEFORE: dict(now), CHANGED: dict(changed)})
            raise RepositoryTampered(context.phase, change_policy.described(changed, now))
        context.record_shared({BEFORE: dict(now)})
        self._before[context.cwd] = now

    def look(self, context: PhaseContext) -> None:
        """Remember the marks before the gates; the attempt has those from before its runner."""
        if self._shared is not None:
            self._before[context.cwd] = self._shared.marks()

    def end(self, context: PhaseContext) -> RepositoryTampered | None:
        """Return the changes since `begin` as an error, and record them with the attempt; None without changes."""
        shared = self._shared
        before = self._before.pop(context.cwd, None) if shared is not None else None
        if shared is None or before is None:
            return None
        after = shared.marks()
        changed = change_policy.differences(
            before, after, is_forward=lambda old, new: _is_work(shared, context, old, new)
        )
        if not changed:
            return None
        context.record_shared({CHANGED: dict(changed)})

        return RepositoryTampered(context.phase, change_policy.described(changed, after))


class GuardedRunner:
    """A guarded runner of code of others; implements `Runner`."""

    def __init__(self, runner: Runner, guard: Guard) -> None:
        self._runner = runner
        self._guard = guard

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, or ""; starts nothing."""
        return self._runner.check(phase)

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Run *phase* once; an attempt that changed what worktrees share has failed, whatever it reports."""
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
        if isinstance(report, WaitingForChildren):
            raise error

        return replace(report, ok=False, error=error, wants_rework=False, summary=str(error))


def _was_cut_off(context: PhaseContext, number: int) -> bool:
    """Say whether the attempt *number* was interrupted, so that its changes were not judged yet."""
    attempts = [one for record in context.document.phases if record.name == context.phase for one in record.attempts]
    ends = {one.number: one.status for one in attempts}

    return ends.get(number) in {"interrupted", "suspended"}


def _is_work(shared: Repository, context: PhaseContext, old: str, new: str) -> bool:
    """Say whether a branch moved as in ordinary work: forward, and not to commits of this very attempt."""
    if not shared.is_ancestor(old, new):
        return False
    branch = f"refs/heads/{context.document.branch_name}"

    return not shared.is_ancestor(new, branch) or shared.is_ancestor(new, context.base)
