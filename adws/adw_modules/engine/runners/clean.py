"""
Cleaning up after work: the worktree goes, branch and pull request stay.

Through the ledger, so that it can be cut off anywhere and run again: what is gone is done.
"""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules import effect_rules
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.interfaces_resources import GitRepository
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.workflow import PhaseSpec

_WORKTREE = "worktree"


class CleanRunner:
    """Removes the worktree of a workflow; implements `Runner`."""

    def __init__(self, git: GitRepository | None, *, host: str = "") -> None:
        """
        Without *git* work is done in place, and nothing is removed.

        *host* is this machine where others share the work: a worktree on another is left to the workers there.
        """
        self._git = git
        self._host = host

    def check(self, phase: PhaseSpec) -> str:
        """Return "": every phase can be a clean-up."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Remove the worktree; raise NotOurs when it is somebody else's now."""
        if context.effects is None:
            raise UsageError(f"phase {phase.name} cleans up, and needs the ledger of effects to know what")
        facts = context.effects.facts(_WORKTREE)
        if self._git is None or facts is None:
            return RunReport(ok=True, summary="there is no worktree to remove", result={"success": True, "removed": []})
        where = self._elsewhere(context)
        if where:
            said = f"the worktree is on {where}: a worker there removes it"
            return RunReport(ok=True, summary=said, result={"success": True, "removed": []})
        path = str(facts["path"])
        was_there = self._git.remove_worktree(Path(path), reason=str(facts["reason"]))
        context.effects.undone(_WORKTREE, "undone" if was_there else "gone")
        context.effects.set_fields(worktree_path=None)
        said = f"removed the worktree {path}" if was_there else f"the worktree {path} was gone already"

        return RunReport(ok=True, summary=said, result={"success": True, "removed": [path] if was_there else []})

    def _elsewhere(self, context: PhaseContext) -> str:
        """Return the other machine that the worktree is on, "" when it is on this one."""
        found = effect_rules.effect(context.document, _WORKTREE)
        where = found.host if found is not None else ""

        return where if self._host and where != self._host else ""
