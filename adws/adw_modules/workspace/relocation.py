"""
Work that moves between machines: published before its result is recorded, and cleaned up on the old machine.

The commits of a phase are pushed to a ref of the workflow's own that is not a branch: no CI runs on it, and shipping
keeps its gates. The ref is an effect in the ledger and is deleted when the workflow completes. Likely secrets do not
leave this machine. Each machine removes what a workflow left there before it moved, because no other machine can.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.document import Resource
from adws.adw_modules.effects import OPEN_OUTCOMES, WIP, WIP_KIND, Ledger
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    GitError,
    NotOurs,
    RollbackBlocked,
    ShippingRefused,
    StateNotFound,
    WorkflowBusy,
)
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git import repository
from adws.adw_modules.git.change_policy import DiffRules
from adws.adw_modules.git.git import workflow_of
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.state_machine import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home


logger = logging.getLogger("adw.relocation")

#: Rules for a ref that nobody reviews or runs: anything but secrets.
_ONLY_SECRETS = DiffRules(guards_files=False, max_files=2**31, max_lines=2**31)


class Publisher:
    """Publishes work to the remote, fetches it from there, and withdraws it when the workflow completes."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._git = home.git
        self._remote = home.settings.git_remote

    # --- publish -----------------------------------------------------------------------------------------------

    def publish(self, session: WorkSession, path: Path, head: str) -> str:
        """
        Ensure that the remote has the commit *head* of the worktree *path*; return why it has not, or "".

        Work that cannot be pushed can be resumed only on this machine.
        """
        if any(head == one.sha for one in effects.published(session.document)):
            return ""
        try:
            self._push(session, path, head)
        except (GitError, NotOurs, ShippingRefused) as exc:
            return str(exc)

        return ""

    def _push(self, session: WorkSession, path: Path, head: str) -> None:
        document = session.document
        if not self._git.has_remote():
            raise GitError(f"there is no remote {self._remote}")
        # Only commits that the remote does not have yet are checked for secrets.
        branch = effects.branch_of_work(document)
        start = str(branch.undo.get("start") or "") if branch is not None else ""
        base = next((one.sha for one in effects.published(document) if one.sha), start)
        if not base:
            raise ShippingRefused(f"where the work began is not known, so {head[:12]} cannot be looked through")
        rules = replace(_ONLY_SECRETS, allowed_paths=self._home.settings.ship_allow_paths or ())
        self._home.workplace.refuse_unfit(path, base, rules, has_secret=self._home.redactor.has_secret)
        ref, ledger = effects.wip_ref(document.adw_id), Ledger(session, host="")  # a ref of the remote has no host
        there = self._git.remote_ref(ref)
        if there is not None and there not in {head, *_ours(document)}:
            raise NotOurs(f"{ref} of {self._remote} is at {there[:12]}, which this workflow did not put there")

        def act() -> None:
            if refused := self._git.push_ref(head, ref, expected=there):
                raise GitError(f"the remote {self._remote} refused the push of {ref} ({refused})")

        ledger.push(WIP, WIP_KIND, undo={"ref": ref, "remote": self._remote}, head=head, there=there, act=act)

    # --- fetch -------------------------------------------------------------------------------------------------

    def fetch(self, document: WorkflowDocument) -> str:
        """Fetch and return the last commit that the workflow published; raise GitError if the remote has none."""
        branch = effects.branch_of_work(document)
        for item in effects.published(document):
            there = self._git.remote_ref(item.ref)
            if there is not None and there in item.commits:
                self._git.fetch_ref(item.ref, expected=there)
                return there
        sha = str(branch.undo.get("sha") or "") if branch is not None else ""
        where = (branch.place if branch is not None else "") or "another machine"

        raise GitError(
            f"the work of {document.adw_id} is on {where}, and its last commit {sha[:12]} is not on the remote "
            f"{self._remote}: start a worker on {where}, or abandon the workflow with adw rollback "
            f"{document.adw_id} --forget-host {where}"
        )

    # --- withdraw ----------------------------------------------------------------------------------------------

    def withdraw(self, session: WorkSession) -> None:
        """Delete the remote ref of a completed workflow; on an error it is left to adw admin gc."""
        known = effects.effect(session.document, WIP)
        if known is None or known.outcome not in OPEN_OUTCOMES:
            return
        ledger, ref = Ledger(session, host=""), effects.wip_ref(session.document.adw_id)
        try:
            there = self._git.remote_ref(ref)
            is_ours = there is not None and there in _ours(session.document)
            was_there = is_ours and there is not None and self._git.delete_remote_ref(ref, expected=there)
        except (GitError, NotOurs) as exc:
            said = {"action": "wip_ref_left", "workflow": session.document.adw_id, "why": str(exc)}
            logger.warning("A ref of the remote is left", extra=said)
            return
        if there is not None and not is_ours:
            ledger.undone(WIP, "kept", {"reason": f"it is at {there[:12]}, which this workflow did not put there"})
            return
        ledger.undone(WIP, "undone" if was_there else "gone")


def _ours(document: WorkflowDocument) -> set[str]:
    """Return the commits that the workflow pushed or intended to push to its ref."""
    ref = effects.wip_ref(document.adw_id)

    return {sha for one in effects.published(document) if one.ref == ref for sha in one.commits}


# --- clean-up after a workflow moved to another machine ------------------------------------------------------------
#
# A worker does this with every recovery, and before it resumes a workflow that returns. Work is salvaged first;
# resources that are no longer ours are kept, as the ledger records. A workflow in use is left for the next time.

_HEADS = "refs/heads/"
#: Worktrees first: a checked-out branch cannot be deleted.
_ORDER = ("worktree", "branch", "ref", "directory")


class RelocationCleanup:
    """Removes what workflows left on this machine before they moved to another."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._host = home.host
        self._git = home.git
        self._swept_at = float("-inf")  #: when `sweep` last ran

    def candidates(self) -> tuple[str, ...]:
        """Return the workflows that own worktrees or branches here, with two git calls regardless of their number."""
        git = self._git
        owners = [git_module.owner_of_lock(tree.lock_reason) for tree in git.worktrees()]
        owners += [workflow_of(ref.removeprefix(_HEADS), {}) for ref in git.refs() if ref.startswith(_HEADS)]

        return tuple(dict.fromkeys(filter(None, owners)))

    def is_due(self, document: WorkflowDocument) -> bool:
        """Return whether resources of the workflow are to be removed here; a running rollback removes its own."""
        is_rolling_back = document.rollback is not None
        if is_rolling_back and document.current_state != WorkflowState.ROLLED_BACK.value:
            return False

        return bool(effects.left_on(document, self._host))

    def tidy(self, session: WorkSession) -> None:
        """Remove what the workflow left here; raise RollbackBlocked or GitError if that is not possible yet."""
        result = effects.left_on(session.document, self._host)
        if not result:
            return
        # Only interrupted attempts may have left processes: those of all others ended with the attempt.
        for attempt in (one for phase in session.document.phases for one in phase.attempts):
            if attempt.status != "interrupted" or not attempt.process:
                continue
            if left := self._home.end_process(attempt.process).left:
                raise RollbackBlocked(f"processes of {session.document.adw_id} that cannot be ended: {', '.join(left)}")
        for effect in sorted(result, key=lambda one: _ORDER.index(one.kind)):
            self._settle(session, effect)

    def sweep_when_due(self) -> None:
        """Sweep at most every `recover_seconds`: extra recoveries in between, which somebody waits for, skip it."""
        now = self._home.clock.monotonic()
        if now - self._swept_at >= self._home.settings.recover_seconds:
            self._swept_at = now
            self.sweep()

    def sweep(self) -> int:
        """Remove what idle workflows left on this machine; return the number of workflows cleaned up."""
        return sum(1 for adw_id in self.candidates() if self._sweep_one(adw_id))

    def _sweep_one(self, adw_id: str) -> bool:
        home = self._home
        try:
            if not self.is_due(home.load(adw_id)):
                return False
            with home.ownership.own(adw_id) as owned, home.lease_renewer.charge(owned), home.log_of(adw_id):
                session = WorkSession(home, owned, NoOrders())
                if self.is_due(session.document):
                    self.tidy(session)
        except (WorkflowBusy, StateNotFound):
            return False  # left for the next sweep, or adw admin gc
        except DatabaseError:
            raise
        except (AdwError, OSError) as exc:
            said = {"action": "left_behind_failed", "workflow": adw_id}
            logger.warning("Could not take away what a workflow left here", extra=said, exc_info=exc)
            return False

        return True

    def _settle(self, session: WorkSession, effect: Resource) -> None:
        """Salvage the work of one effect, remove it, and record the result."""
        git, document, said = self._git, session.document, ""
        try:
            maker = effect.undo.get("made_by")
            if effect.kind == "worktree":
                path = Path(effects.path_of(effect.undo))
                reason = str(effect.undo.get("reason") or git_module.lock_reason(document.adw_id))
                payload = b""
                if git.why_damaged(path, reason=reason):
                    base = git.commit_of(f"{_HEADS}{effects.branch_of(effect.undo)}") or git.commit_of("HEAD") or ""
                    ref = self._home.workplace.keep_files(document.adw_id, path, base)
                    said = f"it was damaged, and its files are kept as {ref}" if ref else ""
                elif any(tree.path in {path, path.resolve()} and not tree.is_prunable for tree in git.worktrees()):
                    payload = self._home.workplace.patch_of_changes(path)
                if payload:
                    name = f"left-on-{self._host}.patch".replace(":", "-")
                    kept = repository.write_patch(self._home.folder_of(document.adw_id), name, payload)
                    said = f"uncommitted work is kept in {kept}"
                was_there = git.remove_worktree(path, reason=reason, is_recorded=effect.outcome in effects.MADE)
            elif effect.kind == "branch" and effect.outcome != "observed" and not maker:
                branch = effects.branch_of(effect.undo)
                head = git.commit_of(f"{_HEADS}{branch}")
                was_there = head is not None
                if head is not None:
                    if head not in {effect.undo.get("sha"), effect.undo.get("start")}:
                        said = f"its commits are kept as {git.keep_commits(document.adw_id, head)}"
                    git.delete_branch(branch, expected=head)
            else:
                raise NotOurs(f"workflow {maker} made it" if maker else "nothing says who made it")  # noqa: TRY301 - handled like a NotOurs of git
            outcome = "undone" if was_there else "gone"
        except NotOurs as exc:
            outcome, said = "kept", str(exc)
        facts: JsonObject | None = {"detail": said} if said else None
        session.change(lambda draft: effects.settle(draft, effect.key, outcome, facts))
        what = {"action": "left_behind", "workflow": document.adw_id, "effect": effect.key, "outcome": outcome}
        logger.info("Looked after what a workflow left here", extra={**what, "detail": said})
