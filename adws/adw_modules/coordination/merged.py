"""
Cleaning up after a pull request was merged: the worktree goes, the branch stays, the issue becomes free.

Through the ledger, so that it can be cut off anywhere and run again. Work that is not committed is never thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import attempt_rules, command_rules, effect_rules
from adws.adw_modules.command_rules import Mark
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.interfaces import Owned, Ownership
from adws.adw_modules.interfaces_engine import NoOrders
from adws.adw_modules.interfaces_resources import GitRepository, GitWorkplace
from adws.adw_modules.state_table import PARKED_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

_WORKTREE = "worktree"


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanUpParts:
    """What cleaning up is done with."""

    ownership: Ownership
    engine: EngineParts
    keep: Callable[[Owned], AbstractContextManager[object]]  #: renews the lease inside the block
    host: str  #: this machine, as the ledger names it
    git: GitRepository | None = None  #: None: work is done in place
    workplace: GitWorkplace | None = None


class CleanUp:
    """Cleans up after workflows that are over, or that a merge has overtaken."""

    def __init__(self, parts: CleanUpParts) -> None:
        self._parts = parts

    def after_merge(self, adw_id: str, mark: Mark) -> str:
        """Write the merge down, give up what waits, remove the worktree; say what was done. Raises WorkflowBusy."""
        parts = self._parts
        with parts.ownership.own(adw_id) as owned, parts.keep(owned), parts.engine.log_of(adw_id):
            session = WorkSession(parts.engine, owned, NoOrders())
            session.settle()
            session.change(lambda draft: _note_merge(draft, mark))
            left = self._remove_worktree(session)
            session.rest()

            return f"the pull request of workflow {adw_id} is merged: {left}"

    def worktree(self, adw_id: str) -> str:
        """Remove the worktree of a workflow that is over, and keep its branch; say what was done."""
        parts = self._parts
        with parts.ownership.own(adw_id) as owned, parts.keep(owned), parts.engine.log_of(adw_id):
            return self._remove_worktree(WorkSession(parts.engine, owned, NoOrders()))

    def _remove_worktree(self, session: WorkSession) -> str:
        why = self._why_left(session.document)
        ledger = Ledger(session, host=self._parts.host)
        facts, git = ledger.facts(_WORKTREE), self._parts.git
        if why or facts is None or git is None:
            return why or "there is no worktree to remove"
        was_there = git.remove_worktree(Path(str(facts["path"])), reason=str(facts["reason"]))
        ledger.undone(_WORKTREE, "undone" if was_there else "gone")
        ledger.set_fields(worktree_path=None)

        return "its worktree is removed, its branch kept" if was_there else "its worktree was gone already"

    def _why_left(self, document: WorkflowDocument) -> str:
        found = effect_rules.effect(document, _WORKTREE)
        if found is None or found.outcome not in effect_rules.MADE:
            return ""
        if found.host and found.host != self._parts.host:
            return f"its worktree is on {found.host}, and is left to adw gc there"
        path = Path(str(found.undo.get("path") or ""))
        if self._parts.workplace is not None and path.is_dir() and self._parts.workplace.status(path):
            return "its worktree has changes that are not committed, so it is left where it is"

        return ""


def _note_merge(draft: Draft, mark: Mark) -> None:
    draft.machine.mark_merged()
    command_rules.mark(draft, mark)
    if draft.machine.current_state in PARKED_STATES:
        attempt_rules.abandon(draft, "its pull request was merged")
