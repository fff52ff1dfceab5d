"""
Undoing one thing each: what a step of a rollback does to the world.

Every step looks first and may be made again: what is gone is done. What is not ours, or not any more, raises NotOurs
and is left. Nothing here writes the plan; `rollback` does that before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import leftovers, rollback_rules, work_names
from adws.adw_modules.effect_facts import branch_of, commit_of, path_of
from adws.adw_modules.effect_rules import effects
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import GitError, NotOurs, RollbackBlocked
from adws.adw_modules.interfaces_resources import Worktree
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.moving_rules import WIP_KIND, published
from adws.adw_modules.rollback_forge import ForgeUndoing
from adws.adw_modules.rollback_hands import Done, Hands, Repository
from adws.adw_modules.rollback_rules import Step, Wishes
from adws.adw_modules.salvage import keep_commits

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: File of a workflow's directory that keeps its uncommitted work.
PATCH_NAME = "salvage.patch"


class Undoing:
    """Makes the steps of one workflow's rollback."""

    def __init__(self, hands: Hands, session: WorkSession, wishes: Wishes) -> None:
        self._hands = hands
        self._session = session
        self._wishes = wishes
        self._forge = ForgeUndoing(hands, session, wishes)
        self._doers: dict[str, Callable[[Step], Done]] = {
            "process": self._end_processes,
            "salvage": self._salvage,
            "pull_request": self._forge.close_pull_request,
            "remote_branch": self._delete_remote_branch,
            WIP_KIND: self._delete_wip,
            "worktree": self._remove_worktree,
            "branch": self._delete_branch,
            "other": self._leave,
            "port": self._free_ports,
            "directory": self._remove_directory,
            "label": self._forge.remove_label,
            "comment": self._forge.comment,
        }

    def make(self, step: Step) -> Done:
        """Undo what *step* names; raise NotOurs, PullRequestMerged, or what went wrong."""
        if not self._is_here(step.host):
            raise RollbackBlocked(self._why_elsewhere(step.host))

        return self._doers[step.kind](step)

    def _why_elsewhere(self, host: str) -> str:
        adw_id = self._document.adw_id
        if self._hands.is_shared:
            return f"it is on {host}: a worker there does it; if {host} is gone for good: --forget-host {host}"

        return f"it is on {host}: run adw rollback {adw_id} there, or set worker.host when this machine was called so"

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    def _is_here(self, host: str) -> bool:
        return host in {"", self._hands.host}

    # --- processes and work ------------------------------------------------------------------------------------

    def _end_processes(self, step: Step) -> Done:
        attempts = [attempt for record in self._document.phases for attempt in record.attempts if attempt.process]
        # A token names all that came of one start. An attempt that ended in good order has ended its processes. Those
        # of another machine have a step of their own, and are never signalled from here.
        found = {
            str((a.process or {}).get("token")): (a.process or {}, a.status in rollback_rules.DOUBTFUL)
            for a in attempts
            if not step.host or rollback_rules.process_host(a.process or {}) in {"", step.host}
        }
        for effect in effects(self._document):
            if effect.key in step.effects:
                found[str(effect.undo.get("token"))] = (effect.undo, True)
        said = [self._end(record, is_doubtful=is_doubtful) for record, is_doubtful in found.values()]

        return Done(status="done" if said else "gone", detail=said[-1] if said else "it started none")

    def _end(self, record: Mapping[str, object], *, is_doubtful: bool) -> str:
        ending = self._hands.end_process(record)
        if ending.left:
            raise RollbackBlocked(f"processes that cannot be ended: {', '.join(ending.left)}")
        if is_doubtful and not ending.is_certain and not self._wishes.force:
            raise RollbackBlocked(f"{ending.evidence}; --force goes on without that proof")

        return ending.evidence

    def _salvage(self, _step: Step) -> Done:
        git = self._hands.git
        heads: dict[str, str] = {}
        said: list[str] = []
        held = [tree.branch for tree in self._own_worktrees()]
        for number, (branch, start) in enumerate(self._branches().items(), 1):
            head = git.commit_of(f"refs/heads/{branch}") if git else None
            if git is None or head is None:
                continue
            heads[branch] = head
            if head != start:
                ref = rollback_rules.salvage_ref(self._document.adw_id, number)
                git.save_ref(ref, head)
                said.append(f"the commits of {branch} are kept as {ref}")
        said += self._save_patches()

        facts: JsonObject = {"heads": dict(heads), "held": list(held)}

        return Done(status="done" if said else "gone", detail="; ".join(said), facts=facts)

    def _branches(self) -> dict[str, str]:
        """Return the branches of the workflow and where each began."""
        found = [one for one in effects(self._document) if one.kind == "branch" and self._is_here(one.host)]
        known = {branch_of(effect.undo): str(effect.undo.get("start") or "") for effect in found}
        if self._document.branch_name:
            known.setdefault(self._document.branch_name, "")

        return {name: start for name, start in known.items() if name}

    def _save_patches(self) -> list[str]:
        said: list[str] = []
        for effect in effects(self._document):
            path = path_of(effect.undo)
            if effect.kind != "worktree" or not path or not self._is_here(effect.host):
                continue
            payload = self._patch(Path(path), is_made=effect.outcome != "intended")
            if payload:
                kept = leftovers.write_patch(self._hands.folder_of(self._document.adw_id), PATCH_NAME, payload)
                said.append(f"uncommitted work is kept in {kept}")

        return said

    def _patch(self, path: Path, *, is_made: bool) -> bytes:
        if self._hands.workplace is None or self._known_worktree(path) is None or not path.exists():
            return b""
        try:
            return self._hands.workplace.patch_of_changes(path)
        except GitError:
            if is_made:
                raise
            return b""  # the add was cut off: nobody has worked there yet

    # --- git ---------------------------------------------------------------------------------------------------

    def _delete_remote_branch(self, step: Step) -> Done:
        git, branch = self._git(), branch_of(step.facts)
        self._refuse_default(branch)
        there = git.remote_commit(branch)
        if there is None:
            return Done(status="gone", detail="it is not there")
        # Without a record of a push it was cut off: then only what is here too can have come from here.
        ours = self._forge.pushed(branch) or {self._head(branch)}
        if there not in ours:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")

        return _said(git.delete_remote_branch(branch, expected=there))

    def _delete_wip(self, step: Step) -> Done:
        """Delete the ref that other machines could go on from; its commits are kept here unless they are already."""
        refs, ref = self._hands.refs, str(step.facts.get("ref") or "")
        if refs is None:
            raise RollbackBlocked("this home is in no git repository")
        there = refs.commit_of(ref)
        if there is None:
            return Done(status="gone", detail="it is not there")
        if there not in {sha for one in published(self._document) if one.ref == ref for sha in one.commits}:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")
        said = self._kept(ref, there)

        return replace(_said(refs.delete(ref, expected=there)), detail=said)

    def _kept(self, ref: str, sha: str) -> str:
        heads = self._salvaged("heads")
        if isinstance(heads, dict) and sha in heads.values():
            return ""
        if self._hands.refs is not None:
            self._hands.refs.fetch(ref, expected=sha)

        return f"its commits are kept as {keep_commits(self._git(), self._document.adw_id, sha)}"

    def _remove_worktree(self, step: Step) -> Done:
        git, path = self._git(), Path(path_of(step.facts))
        known = self._known_worktree(path)
        # Older tools did not lock theirs; whoever locked it with another reason has it now.
        is_unlocked = known is not None and not known.lock_reason and not step.facts.get("reason")
        reason = "" if is_unlocked else str(step.facts.get("reason") or work_names.lock_reason(self._document.adw_id))

        return _said(git.remove_worktree(path, reason=reason))

    def _delete_branch(self, step: Step) -> Done:
        git, branch = self._git(), branch_of(step.facts)
        self._refuse_default(branch)
        if step.facts.get("outcome") == "observed" and self._document.adw_id not in branch:
            raise NotOurs("it appeared during a phase, and nothing says who made it: delete it by hand if you want to")
        if git.commit_of(f"refs/heads/{branch}") is None:
            return Done(status="gone", detail="it is not there")
        salvaged = self._head(branch)
        if not salvaged:
            raise NotOurs("it was not there when the work was salvaged: somebody else made it")
        # What was committed in our own worktree is ours; without one only the commits that adw saw are.
        is_seen = commit_of(step.facts) in {"", salvaged} or step.facts.get("start") == salvaged
        if not is_seen and branch not in self._salvaged("held"):
            raise NotOurs(f"it has commits that adw did not make ({salvaged[:12]}): delete it by hand")

        return _said(git.delete_branch(branch, expected=salvaged))

    def _leave(self, step: Step) -> Done:
        del step
        raise NotOurs("it appeared during a phase, and nothing says who made it: remove it by hand if you want to")

    def _head(self, branch: str) -> str:
        """Return the commit that *branch* was at when the work was salvaged, "" when it was not there."""
        heads = self._salvaged("heads")
        found = heads.get(branch) if isinstance(heads, dict) else None

        return found if isinstance(found, str) else ""

    def _salvaged(self, fact: str) -> JsonObject | list[JsonValue]:
        steps = rollback_rules.recorded_steps(self._document)
        mine = (step for step in steps if step.kind == "salvage" and self._is_here(step.host))
        found = next((step.facts[fact] for step in mine if fact in step.facts), None)

        return found if isinstance(found, dict | list) else []

    def _own_worktrees(self) -> list[Worktree]:
        """Return the worktrees that are locked for this workflow, or that the ledger has from older tools."""
        ours = {path_of(effect.undo) for effect in effects(self._document) if effect.kind == "worktree"}
        reason = work_names.lock_reason(self._document.adw_id)
        found = self._hands.git.worktrees() if self._hands.git else ()

        return [tree for tree in found if tree.lock_reason == reason or str(tree.path) in ours]

    def _refuse_default(self, branch: str) -> None:
        if not branch or branch in {"main", "master"} or branch == self._git().default_branch():
            raise NotOurs("it is the branch that everything starts from, or has no name: it is left alone")

    def _known_worktree(self, path: Path) -> Worktree | None:
        found = self._hands.git.worktrees() if self._hands.git else ()

        return next((tree for tree in found if tree.path == path or tree.path == path.resolve()), None)

    def _git(self) -> Repository:
        if self._hands.git is None:
            raise RollbackBlocked("this home is in no git repository")

        return self._hands.git

    # --- ports and directories ---------------------------------------------------------------------------------

    def _free_ports(self, step: Step) -> Done:
        freed = self._hands.ports.free(self._document.adw_id) if self._hands.ports else ()
        named = step.facts.get("ports")
        known = [port for port in named if isinstance(port, int)] if isinstance(named, list) else []
        # Our own processes are gone by now: whoever still listens is somebody else, and nobody is ended for a port.
        foreign = [port for port in known if port not in freed and self._hands.is_listened_on(port)]
        said = [f"{port} is used by somebody else, who is left alone" for port in foreign]
        said += [f"freed {', '.join(map(str, freed))}"] if freed else []

        return Done(status="done" if freed else "gone", detail="; ".join(said))

    def _remove_directory(self, step: Step) -> Done:
        path = Path(path_of(step.facts))
        root = self._hands.git.root if self._hands.git else path.parent

        return _said(leftovers.remove_directory(root / path, root=root))


def _said(was_there: bool) -> Done:
    return Done(status="done") if was_there else Done(status="gone", detail="it is not there")
