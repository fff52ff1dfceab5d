"""
What a workflow left on this machine when it moved to another: taken away here, for nobody else can.

A worker looks for it with every recovery, and before it goes on with a workflow that comes back. Work is salvaged
first; what is not ours any more is left, and the ledger says so. A workflow that somebody works on waits for another
time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effect_facts, effect_rules, leftovers, moving_rules, salvage, work_names
from adws.adw_modules.coordination.survey import workflow_of
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import AdwError, DatabaseError, NotOurs, RollbackBlocked, StateNotFound, WorkflowBusy
from adws.adw_modules.interfaces import Owned, Ownership
from adws.adw_modules.interfaces_engine import NoOrders
from adws.adw_modules.interfaces_resources import Effect, GitRepository
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.rollback_hands import Workplace
from adws.adw_modules.state_table import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonObject

logger = logging.getLogger("adw.left_behind")

_HEADS = "refs/heads/"
#: Worktrees first: a branch that is checked out cannot be deleted.
_ORDER = ("worktree", "branch", "ref", "directory")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftBehindParts:
    """What is left behind is found and taken away with."""

    host: str  #: this machine, as the ledger names it
    git: GitRepository
    workplace: Workplace
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what is left of a recorded process


class LeftBehind:
    """Takes away what workflows left on this machine."""

    def __init__(self, parts: LeftBehindParts) -> None:
        self._parts = parts

    def candidates(self) -> tuple[str, ...]:
        """Return the workflows that worktrees and branches here are of; two calls of git, whatever there is."""
        git = self._parts.git
        owners = [work_names.owner_of_lock(tree.lock_reason) for tree in git.worktrees()]
        owners += [workflow_of(ref.removeprefix(_HEADS), {}) for ref in git.refs() if ref.startswith(_HEADS)]

        return tuple(dict.fromkeys(filter(None, owners)))

    def is_due(self, document: WorkflowDocument) -> bool:
        """Say whether something of the workflow is to be taken away here; a rollback under way does that itself."""
        is_rolling_back = document.rollback is not None
        if is_rolling_back and document.current_state != WorkflowState.ROLLED_BACK.value:
            return False

        return bool(moving_rules.left_on(document, self._parts.host))

    def tidy(self, session: WorkSession) -> None:
        """Take away what the workflow left here; raise RollbackBlocked or GitError for what cannot be, yet."""
        found = moving_rules.left_on(session.document, self._parts.host)
        if not found:
            return
        self._end_processes(session.document)
        for effect in sorted(found, key=lambda one: _ORDER.index(one.kind)):
            self._settle(session, effect)

    # --- how ---------------------------------------------------------------------------------------------------

    def _end_processes(self, document: WorkflowDocument) -> None:
        for record in _cut_off(document):
            ending = self._parts.end_process(record)
            if ending.left:
                raise RollbackBlocked(f"processes of {document.adw_id} that cannot be ended: {', '.join(ending.left)}")

    def _settle(self, session: WorkSession, effect: Effect) -> None:
        try:
            outcome, said = self._removed(session.document, effect)
        except NotOurs as exc:
            outcome, said = "kept", str(exc)
        facts: JsonObject | None = {"detail": said} if said else None
        session.change(lambda draft: effect_rules.settle(draft, effect.key, outcome, facts))
        what = {"action": "left_behind", "workflow": session.document.adw_id, "effect": effect.key, "outcome": outcome}
        logger.info("Looked after what a workflow left here", extra={**what, "detail": said})

    def _removed(self, document: WorkflowDocument, effect: Effect) -> tuple[str, str]:
        maker = effect.undo.get("made_by")
        if effect.kind == "worktree":
            return self._without_worktree(document, effect)
        if effect.kind == "branch" and effect.outcome != "observed" and not maker:
            return self._without_branch(document, effect)

        raise NotOurs(f"workflow {maker} made it" if maker else "nothing says who made it")

    def _without_worktree(self, document: WorkflowDocument, effect: Effect) -> tuple[str, str]:
        path, said = Path(effect_facts.path_of(effect.undo)), ""
        is_known = any(
            tree.path in {path, path.resolve()} and not tree.is_prunable for tree in self._parts.git.worktrees()
        )
        payload = self._parts.workplace.patch_of_changes(path) if is_known else b""
        if payload:
            name = f"left-on-{self._parts.host}.patch".replace(":", "-")
            kept = leftovers.write_patch(self._parts.folder_of(document.adw_id), name, payload)
            said = f"uncommitted work is kept in {kept}"
        reason = str(effect.undo.get("reason") or work_names.lock_reason(document.adw_id))
        was_there = self._parts.git.remove_worktree(path, reason=reason)

        return "undone" if was_there else "gone", said

    def _without_branch(self, document: WorkflowDocument, effect: Effect) -> tuple[str, str]:
        git, branch = self._parts.git, effect_facts.branch_of(effect.undo)
        head = git.commit_of(f"{_HEADS}{branch}")
        if head is None:
            return "gone", ""
        said = ""
        if head not in {effect.undo.get("sha"), effect.undo.get("start")}:
            said = f"its commits are kept as {salvage.keep_commits(git, document.adw_id, head)}"
        git.delete_branch(branch, expected=head)

        return "undone", said


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepParts:
    """What a sweep of this machine is made with."""

    left: LeftBehind
    load: Callable[[str], WorkflowDocument]
    ownership: Ownership
    engine: EngineParts
    keep: Callable[[Owned], AbstractContextManager[object]]  #: renews the lease inside the block


def sweep(parts: SweepParts) -> int:
    """Take away what workflows left on this machine and nobody works on now; return of how many workflows."""
    return sum(1 for adw_id in parts.left.candidates() if _swept(parts, adw_id))


def _swept(parts: SweepParts, adw_id: str) -> bool:
    try:
        if not parts.left.is_due(parts.load(adw_id)):
            return False
        with parts.ownership.own(adw_id) as owned, parts.keep(owned), parts.engine.log_of(adw_id):
            session = WorkSession(parts.engine, owned, NoOrders())
            if parts.left.is_due(session.document):
                parts.left.tidy(session)
    except (WorkflowBusy, StateNotFound):
        return False  # another time, or adw gc
    except DatabaseError:
        raise
    except (AdwError, OSError) as exc:
        said = {"action": "left_behind_failed", "workflow": adw_id}
        logger.warning("Could not take away what a workflow left here", extra=said, exc_info=exc)
        return False

    return True


def _cut_off(document: WorkflowDocument) -> Iterator[Mapping[str, object]]:
    """Yield the recorded processes of attempts that were cut off: those of all others were ended with them."""
    for phase in document.phases:
        for attempt in phase.attempts:
            if attempt.status == "interrupted" and attempt.process:
                yield attempt.process
