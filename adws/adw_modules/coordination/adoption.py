"""
Taking an orphaned worktree back into a workflow.

The worktree is written into the ledger of its workflow as adopted, so that resuming finds it and a rollback undoes it.
Where the document is gone, one is made: paused, with nothing but what git can tell, until a person says what to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import effect_rules, timestamps, work_names
from adws.adw_modules.coordination.survey import workflow_of
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.errors import NotOurs, UsageError
from adws.adw_modules.ids import FOREIGN, check_adw_id
from adws.adw_modules.interfaces import Clock, Ownership, StateStore
from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES, Effect, Worktree
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import TERMINAL_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonObject

_ISSUE = re.compile(r"(?:^|-)issue-([1-9][0-9]{0,17})-")


class Repository(Protocol):
    """What adopting asks of git (`RepositoryGit`)."""

    def worktrees(self) -> tuple[Worktree, ...]:
        """Return the linked worktrees."""

    def lock_worktree(self, path: Path, *, reason: str) -> None:
        """Lock one that nobody has locked; raise NotOurs for one that somebody else has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """A worktree and the workflow that has it now."""

    adw_id: str
    path: str
    branch: str
    is_new: bool  #: the workflow was made for it
    state: str

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {name: getattr(self, name) for name in self.__slots__}


class Adoption:
    """Gives worktrees to workflows."""

    def __init__(
        self,
        *,
        git: Repository,
        store: StateStore,
        ownership: Ownership,
        clock: Clock,
        host: str,
        trees_dir: Path,
        repository: str = "",
    ) -> None:
        self._git = git
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._host = host
        self._trees_dir = trees_dir
        self._repository = repository

    def adopt(self, what: str) -> Adopted:
        """
        Take the worktree of workflow *what*, or at path *what*, into its workflow.

        Raises UsageError when there is no such worktree, NotOurs when it is somebody else's, WorkflowBusy when somebody
        works on the workflow.
        """
        tree = self._find(what)
        adw_id = self._owner_of(tree, what)
        if not tree.branch:
            raise UsageError(f"the worktree {tree.path} is on no branch: check one out there, then adopt it")
        adopted = self._into(adw_id, tree) if self._store.exists(adw_id) else self._anew(adw_id, tree)
        # Last: the ledger has it by now, and a lock that a crash kept away is made by adopting again.
        self._git.lock_worktree(tree.path, reason=work_names.lock_reason(adw_id))

        return adopted

    def _find(self, what: str) -> Worktree:
        trees = self._git.worktrees()
        wanted = {Path(what).resolve()}
        if FOREIGN.fullmatch(what):
            wanted.add((self._trees_dir / what).resolve())
        found = next((tree for tree in trees if tree.path.resolve() in wanted), None)
        found = found or next((tree for tree in trees if work_names.owner_of_lock(tree.lock_reason) == what), None)
        if found is None:
            raise UsageError(f"there is no worktree for {what}: git worktree list shows those there are")
        if found.is_prunable:
            raise UsageError(f"the directory {found.path} is gone: there is nothing to adopt")

        return found

    def _owner_of(self, tree: Worktree, what: str) -> str:
        locked_for = work_names.owner_of_lock(tree.lock_reason)
        if tree.lock_reason and not locked_for:
            raise NotOurs(f"the worktree {tree.path} is locked with {tree.lock_reason!r}: it is left alone")
        named = what if self._store_has(what) else ""

        return check_adw_id(locked_for or named or workflow_of(tree.branch, {}) or tree.path.name)

    def _store_has(self, what: str) -> bool:
        return FOREIGN.fullmatch(what) is not None and self._store.exists(what)

    def _into(self, adw_id: str, tree: Worktree) -> Adopted:
        with self._ownership.own(adw_id) as owned:
            state = WorkflowState(owned.document.current_state)
            if state in TERMINAL_STATES or owned.document.rollback is not None:
                raise UsageError(
                    f"workflow {adw_id} is {state.value}, and takes nothing back: adw gc --execute removes the worktree"
                )
            draft = self._draft(owned.document)
            self._write(draft, tree)
            owned.save(draft.finished(), events=draft.events)

        return self._adopted(adw_id, tree, state.value, is_new=False)

    def _anew(self, adw_id: str, tree: Worktree) -> Adopted:
        from adws.adw_modules.document import WorkflowDocument  # noqa: PLC0415 - only this makes a new document

        moment = timestamps.to_text(self._clock.now())
        number = _ISSUE.search(tree.branch)
        document = WorkflowDocument(
            adw_id=adw_id,
            issue_number=int(number[1]) if number else None,
            repository=self._repository,
            created_at=moment,
            updated_at=moment,
        )
        with self._ownership.create(document) as owned:
            draft = self._draft(owned.document)
            self._write(draft, tree)
            why = f"adopted: adw resume {adw_id} --workflow NAME says what to run"
            draft.document.pause_reason = why
            draft.move(WorkflowState.PAUSED, {"reason": why})
            owned.save(draft.finished(), events=draft.events)

        return self._adopted(adw_id, tree, WorkflowState.PAUSED.value, is_new=True)

    def _write(self, draft: Draft, tree: Worktree) -> None:
        reason = work_names.lock_reason(draft.document.adw_id)
        undo: JsonObject = {"path": str(tree.path), "branch": tree.branch, "reason": reason, "is_filled": True}
        branch: JsonObject = {"branch": tree.branch, "sha": tree.head}
        for effect in (
            Effect(key="worktree", kind="worktree", host=self._host, undo=undo),
            Effect(key=f"branch:{tree.branch}", kind="branch", host=self._host, undo=branch),
        ):
            known = effect_rules.effect(draft.document, effect.key)
            if known is None or known.outcome not in OPEN_OUTCOMES:
                effect_rules.intend(draft, effect)
            effect_rules.settle(draft, effect.key, "adopted", effect.undo)
        draft.document.assign(worktree_path=str(tree.path), branch_name=tree.branch)

    def _draft(self, document: WorkflowDocument) -> Draft:
        return Draft(document, WorkflowStateMachine.of(document, now=self._clock.now), now=self._clock.now)

    def _adopted(self, adw_id: str, tree: Worktree, state: str, *, is_new: bool) -> Adopted:
        return Adopted(adw_id=adw_id, path=str(tree.path), branch=tree.branch, is_new=is_new, state=state)
