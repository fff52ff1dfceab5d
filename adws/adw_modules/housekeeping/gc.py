"""
Finding resources left by workflows that ended or no longer exist, and removing them on request.

Each orphan is listed with its reason, and checked again right before it is removed. Work is salvaged first; processes
are ended by their identity; what is not ours any more is left and reported. Other homes may share the remote: a branch
there is ours only if its workflow is known here, or its commit is kept here under a ref of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects, timestamps
from adws.adw_modules.document import Draft, Resource
from adws.adw_modules.effects import OPEN_OUTCOMES
from adws.adw_modules.errors import AdwError, GitError, NotOurs, RollbackBlocked, UsageError
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.git import git, repository
from adws.adw_modules.git.git import workflow_of
from adws.adw_modules.git.repository import Worktree
from adws.adw_modules.housekeeping import inventory
from adws.adw_modules.housekeeping.inventory import InventorySnapshot, Orphan
from adws.adw_modules.identifiers import FOREIGN, JsonObject, check_adw_id
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.state_machine import TERMINAL_STATES, WorkflowState, WorkflowStateMachine
from adws.adw_modules.store.files import TEMP_PREFIX, FileStateStore

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.git.repository import Repository
    from adws.app import Home


#: Directory in the state directory for the patches of worktrees without a workflow.
SALVAGE_DIR = ".salvage"
#: Seconds after which a half-written file is an orphan: a write takes milliseconds.
TEMP_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The result of removing one orphan."""

    orphan: Orphan
    is_gone: bool
    detail: str = ""

    def to_json(self) -> JsonObject:
        """Return the result for programs."""
        return {**self.orphan.to_json(), "removed": self.is_gone, "detail": self.detail}


class GarbageCollector:
    """Finds and removes orphans."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._retention = home.retention
        self._doers: dict[str, Callable[[Orphan], str]] = {
            "workflow": self._roll_back,
            "process": self._end_process,
            "pull_request": self._close_pull_request,
            "remote_branch": self._delete_remote_branch,
            "wip_ref": self._delete_wip_ref,
            "worktree": self._remove_worktree,
            "branch": self._delete_branch,
            **dict.fromkeys(("port", "quota", "lock", "checkpoint", "temp"), self._release),
            **dict.fromkeys(inventory.OLD_KINDS, self._retention.forget),
        }
        self.problems: list[str] = []  #: what could not be checked or decided, for the person

    def find(self, *, older_than: timedelta | None = None) -> tuple[Orphan, ...]:
        """Return the orphans; changes nothing."""
        self.problems.clear()
        git = self._home.git_if_any
        # Before the inventory of this home: whatever was pushed by now has its document, so its workflow is known.
        branches = self._asked("branches", git.remote_branches) if git is not None else {}
        wip_refs: Mapping[str, str] = {}
        if git is not None and self._home.settings.is_shared:
            wip_refs = self._asked("refs", lambda: git.remote_refs(effects.wip_ref("*")))
        seen = self._home.inventory.look()
        self.problems += filter(None, map(inventory.why_not_here, seen.workflows.values()))
        result = [
            *filter(None, self._orphans_here(seen)),
            *filter(None, self._orphans_at_remote(seen, branches, wip_refs)),
            *self._temps(seen),
            *self._retention.find(),
        ]

        return inventory.chosen(result, older_than=older_than, now=self._home.clock.now())

    def remove(self, orphans: tuple[Orphan, ...]) -> tuple[Removal, ...]:
        """Remove *orphans* and return the result of each; a failure does not stop the others."""
        result = []
        for orphan in orphans:
            try:
                if orphan.adw_id and self._home.inventory.is_live(orphan.adw_id):
                    removal = Removal(orphan=orphan, is_gone=False, detail="somebody works on its workflow now")
                else:
                    removal = Removal(orphan=orphan, is_gone=True, detail=self._doers[orphan.kind](orphan))
            except (AdwError, OSError) as exc:
                removal = Removal(orphan=orphan, is_gone=False, detail=str(exc))
            result.append(removal)

        return tuple(result)

    # --- finding -----------------------------------------------------------------------------------------------

    def _asked(self, what: str, ask: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        try:
            return ask()
        except GitError as exc:
            self.problems.append(f"the {what} of the remote could not be asked for: {exc}")
            return {}

    def _orphans_here(self, seen: InventorySnapshot) -> Iterator[Orphan | None]:
        for known in seen.workflows.values():
            why = inventory.why_left_over(known)
            if why:
                yield Orphan(kind="workflow", name=known.adw_id, adw_id=known.adw_id, why=why, since=known.updated_at)
        for process in seen.processes:
            stat = process.stat
            facts: JsonObject = {"token": process.token, "pid": stat.pid, "ticks": stat.start_ticks}
            yield _orphan(seen, "process", process.adw_id, f"{stat.pid} ({stat.command})", facts)
        for row in seen.ports:
            yield _orphan(seen, "port", row.adw_id, str(row.port))
        for adw_id in seen.places:
            yield _orphan(seen, "quota", adw_id, adw_id)
        for lock in seen.locks:
            yield _orphan(seen, "lock", lock.adw_id, _issue(lock.repository, lock.issue_number))
        for adw_id in seen.checkpoints:
            yield _orphan(seen, "checkpoint", adw_id, adw_id)
        for adw_id, tree in seen.worktrees:
            facts = {"reason": tree.lock_reason, "head": tree.head}
            yield _orphan(seen, "worktree", adw_id, str(tree.path), facts, since=_modified(tree.path))
        for branch in seen.branches:
            orphan = _orphan(seen, "branch", branch.adw_id, branch.name, {"sha": branch.sha})
            yield orphan
            if orphan is not None:
                yield from self._pull_requests(orphan)

    def _orphans_at_remote(
        self, seen: InventorySnapshot, branches: Mapping[str, str], wip_refs: Mapping[str, str]
    ) -> Iterator[Orphan | None]:
        local = {branch.name for branch in seen.branches}
        refs = self._repository().refs() if branches else {}
        for name, sha in branches.items():
            adw_id = workflow_of(name, seen.workflows)
            if not adw_id:
                continue
            if seen.known(adw_id) is None and not _is_kept_here(adw_id, name, sha, refs):
                self.problems.append(
                    f"branch {name} of the remote is named for a workflow that this home does not know, and may be "
                    "another home's: it is left alone; delete it by hand if it is nobody's"
                )
                continue
            orphan = _orphan(seen, "remote_branch", adw_id, name, {"sha": sha})
            yield orphan
            if orphan is not None and name not in local:  # else its pull requests were listed with the local one
                yield from self._pull_requests(orphan)
        for ref, sha in wip_refs.items():  # others are of workflows not known here, and left alone
            adw_id = ref.removeprefix(effects.wip_ref(""))
            if seen.known(adw_id) is not None:
                yield _orphan(seen, "wip_ref", adw_id, ref, {"sha": sha})

    def _pull_requests(self, orphan: Orphan) -> Iterator[Orphan]:
        """Yield our open pull requests of an orphaned branch."""
        forge = self._home.forge_if_any
        if forge is None:
            return
        try:
            pulls = [pull for pull in forge.pull_requests_of(orphan.name, state="open") if pull.author == forge.login()]
        except AdwError as exc:
            self.problems.append(f"the pull requests of {orphan.name} could not be asked for: {exc}")
            return
        for pull in pulls:
            marker = forge_text.read_marker(pull.body, key=self._home.forge_key, repository=forge.repository)
            if marker is not None and marker.adw_id == orphan.adw_id:
                yield replace(orphan, kind="pull_request", name=f"#{pull.number}", facts={"number": pull.number})

    def _temps(self, seen: InventorySnapshot) -> Iterator[Orphan]:
        now = self._home.clock.now().timestamp()
        for path in sorted(self._home.settings.state_dir.glob(f"*/{TEMP_PREFIX}.*")):
            adw_id = path.parent.name
            known = seen.known(adw_id)
            if (known is not None and known.is_live) or not path.is_file() or path.is_symlink():
                continue
            if now - path.stat().st_mtime >= TEMP_SECONDS:
                why = "a write was cut off, and nobody works on its workflow"
                yield Orphan(kind="temp", name=str(path), adw_id=adw_id, why=why, since=_modified(path))

    # --- removing ----------------------------------------------------------------------------------------------

    def _roll_back(self, orphan: Orphan) -> str:
        wishes = RollbackOptions(reason=f"gc: {orphan.why}", by="adw admin gc")
        report = self._home.rollbacks.rollback(orphan.adw_id, wishes)
        if not report.is_complete:
            raise RollbackBlocked(f"blocked by: {'; '.join(report.blocked_by)}")

        return "; ".join(["rolled back", *report.kept])

    def _end_process(self, orphan: Orphan) -> str:
        facts = orphan.facts or {}
        me = self._home.processes.me("cli")
        pid, ticks = facts.get("pid"), facts.get("ticks")
        record = ProcessRecord(
            token=str(facts.get("token")),
            identity=replace(me, pid=int(str(pid)), start_ticks=int(str(ticks))),
            argv=(),
            started_at="",
        )
        ending = self._home.end_process(record.to_json())
        if ending.left or not ending.is_certain:
            raise RollbackBlocked(f"it could not be ended: {ending.evidence}")

        return ending.evidence

    def _close_pull_request(self, orphan: Orphan) -> str:
        forge = self._home.forge_if_any
        if forge is None:
            raise RollbackBlocked("no forge is configured")
        number = int(str((orphan.facts or {}).get("number")))
        if forge.pull_request(number).is_merged:
            raise NotOurs("it is merged")

        return forge.close_pull_request(number).url

    def _delete_remote_branch(self, orphan: Orphan) -> str:
        git, sha = self._repository(), str((orphan.facts or {}).get("sha"))
        if not _is_kept_here(orphan.adw_id, orphan.name, sha, git.refs()):
            raise NotOurs(f"it is at {sha[:12]}, which is not kept here: somebody else pushed it; delete it by hand")
        said = self._salvage(orphan.adw_id, sha)
        git.delete_remote_branch(orphan.name, expected=sha)

        return said

    def _delete_wip_ref(self, orphan: Orphan) -> str:
        git, sha = self._repository(), str((orphan.facts or {}).get("sha"))
        git.fetch_ref(orphan.name, expected=sha)
        detail = self._salvage(orphan.adw_id, sha)
        git.delete_remote_ref(orphan.name, expected=sha)

        return detail

    def _remove_worktree(self, orphan: Orphan) -> str:
        git, path, facts = self._repository(), Path(orphan.name), orphan.facts or {}
        said = [self._salvage(orphan.adw_id, str(facts.get("head") or ""))]
        if path in git.damaged_worktrees():
            base = str(facts.get("head") or "") or git.commit_of("HEAD") or ""
            ref = self._home.workplace.keep_files(orphan.adw_id, path, base)
            said.append(f"it was damaged; its files are kept as {ref}" if ref else "it was damaged")
        elif path.exists() and (payload := self._home.workplace.patch_of_changes(path)):
            moment = f"{self._home.clock.now():%Y%m%dT%H%M%S}"
            folder = self._home.settings.state_dir / SALVAGE_DIR
            kept = repository.write_patch(folder, f"{orphan.adw_id}-{moment}.patch", payload)
            said.append(f"uncommitted work is kept in {kept}")
        git.remove_worktree(path, reason=str(facts.get("reason") or ""))

        return "; ".join(filter(None, said))

    def _delete_branch(self, orphan: Orphan) -> str:
        sha = str((orphan.facts or {}).get("sha"))
        if orphan.name == self._repository().default_branch():
            raise NotOurs("it is the branch that everything starts from")
        said = self._salvage(orphan.adw_id, sha)
        self._repository().delete_branch(orphan.name, expected=sha)

        return said

    def _salvage(self, adw_id: str, sha: str) -> str:
        """Keep *sha* under a ref of ours that is free or has it already; skip the default branch's commit."""
        git = self._repository()
        if not sha or sha == git.commit_of(f"refs/heads/{git.default_branch()}"):
            return ""

        return f"its commits are kept as {git.keep_commits(adw_id, sha)}"

    def _release(self, orphan: Orphan) -> str:
        """Release what the database or the state directory has for a workflow."""
        home, adw_id = self._home, orphan.adw_id
        if orphan.kind == "port":
            freed = home.ports.free(adw_id)
            return f"freed {', '.join(map(str, freed))}" if freed else "it was free already"
        if orphan.kind == "checkpoint":
            return f"{home.checkpoints.forget(adw_id)} deleted"
        if orphan.kind == "quota":
            home.quotas.release(adw_id)
        elif orphan.kind == "lock":
            home.ownership.release_finished_locks()
            if any(_issue(lock.repository, lock.issue_number) == orphan.name for lock in home.locks.all()):
                raise RollbackBlocked("it is still held")
        # Half-written files: only the holder of the file lock knows that nobody is writing.
        elif isinstance(home.store, FileStateStore) and home.local_lock.try_hold(adw_id):
            try:
                home.store.sweep(adw_id)
            finally:
                home.local_lock.let_go(adw_id)

        return ""

    def _repository(self) -> Repository:
        repository = self._home.git_if_any
        if repository is None:
            raise RollbackBlocked("this home is in no git repository")

        return repository


def _orphan(
    seen: InventorySnapshot, kind: str, adw_id: str, name: str, facts: JsonObject | None = None, *, since: str = ""
) -> Orphan | None:
    known = seen.known(adw_id)
    # If the whole workflow is rolled back, its effects go with it.
    why = "" if known is not None and inventory.why_left_over(known) else inventory.why_orphan(kind, name, known)
    if not why:
        return None

    return Orphan(kind=kind, name=name, adw_id=adw_id, why=why, since=known.updated_at if known else since, facts=facts)


def _is_kept_here(adw_id: str, branch: str, sha: str, refs: Mapping[str, str]) -> bool:
    """Return whether the commit of a remote branch is that of our own branch, or was salvaged."""
    salvaged = git.salvage_ref(adw_id)
    kept = {commit for ref, commit in refs.items() if ref == salvaged or ref.startswith(f"{salvaged}.")}

    return sha in {refs.get(f"refs/heads/{branch}"), *kept}


def _issue(repository: str, number: int) -> str:
    return f"{repository}#{number}" if repository else f"#{number}"


def _modified(path: Path) -> str:
    try:
        return timestamps.to_text(datetime.fromtimestamp(path.stat().st_mtime, tz=UTC))
    except OSError:
        return ""


# Adopting an orphaned worktree.
#
# The worktree is written into its workflow's ledger as adopted, so that a resume finds it and a rollback undoes it. If
# the document is gone, a new one is made: paused, with only what git can tell, until a person says what to run.


_ISSUE = re.compile(r"(?:^|-)issue-([1-9][0-9]{0,17})-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """A worktree and the workflow that has it now."""

    adw_id: str
    path: str
    branch: str
    is_new: bool  #: whether the workflow was created for it
    state: str

    def to_json(self) -> JsonObject:
        """Return the result for programs."""
        return {name: getattr(self, name) for name in self.__slots__}


class Adoption:
    """Adds worktrees to workflows."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def adopt(self, what: str) -> Adopted:
        """
        Add the worktree of workflow *what*, or at path *what*, to its workflow.

        Raises UsageError if there is no such worktree, NotOurs if it is somebody else's, WorkflowBusy if the workflow
        has a live owner, GitError if the home is in no repository.
        """
        _ = self._home.git.root  # raises GitError without a repository
        tree = self._find(what)
        locked_for = git.owner_of_lock(tree.lock_reason)
        if tree.lock_reason and not locked_for:
            raise NotOurs(f"the worktree {tree.path} is locked with {tree.lock_reason!r}: it is left alone")
        named = what if self._store_has(what) else ""
        adw_id = check_adw_id(locked_for or named or workflow_of(tree.branch, {}) or tree.path.name)
        if not tree.branch:
            raise UsageError(f"the worktree {tree.path} is on no branch: check one out there, then adopt it")
        is_new = not self._home.store.exists(adw_id)
        state = self._anew(adw_id, tree) if is_new else self._into(adw_id, tree)
        # Last, when the ledger has it: if a crash prevents the lock, adopting again sets it.
        self._home.git.lock_worktree(tree.path, reason=git.lock_reason(adw_id))

        return Adopted(adw_id=adw_id, path=str(tree.path), branch=tree.branch, is_new=is_new, state=state)

    def _find(self, what: str) -> Worktree:
        trees = self._home.git.worktrees()
        wanted = {Path(what).resolve()}
        if FOREIGN.fullmatch(what):
            wanted.add((self._home.settings.trees_dir / what).resolve())
        first = next((tree for tree in trees if tree.path.resolve() in wanted), None)
        first = first or next((tree for tree in trees if git.owner_of_lock(tree.lock_reason) == what), None)
        damaged = self._home.git.damaged_worktrees()
        broken = next((path for path in ({first.path} if first else wanted) if path in damaged), None)
        if broken is not None:
            adw_id, way_out = broken.name, "adw admin gc --execute keeps its files and removes it"
            if self._store_has(adw_id):
                again = f"adw retry {adw_id} or adw resume {adw_id} makes it again"
                way_out = f"{again}, adw rollback {adw_id} removes it"
            raise UsageError(f"the worktree {broken} is damaged: {damaged[broken]}; {way_out}")
        if first is None:
            raise UsageError(f"there is no worktree for {what}: git worktree list shows those there are")
        if first.is_prunable:
            raise UsageError(f"the directory {first.path} is gone: there is nothing to adopt")

        return first

    def _store_has(self, what: str) -> bool:
        return FOREIGN.fullmatch(what) is not None and self._home.store.exists(what)

    def _into(self, adw_id: str, tree: Worktree) -> str:
        """Add the worktree to the ledger of its workflow, and return the workflow's state."""
        with self._home.ownership.own(adw_id) as owned:
            state = WorkflowState(owned.document.current_state)
            if state in TERMINAL_STATES or owned.document.rollback is not None:
                raise UsageError(
                    f"workflow {adw_id} is {state.value}, and takes nothing back: "
                    "adw admin gc --execute removes the worktree"
                )
            draft = self._adopting(owned.document, tree)
            owned.save(draft.finished(), events=draft.events)

        return state.value

    def _anew(self, adw_id: str, tree: Worktree) -> str:
        """Create a paused workflow for the worktree, and return its state."""
        from adws.adw_modules.document import WorkflowDocument  # noqa: PLC0415 - only this makes a new document

        moment = timestamps.to_text(self._home.clock.now())
        number = _ISSUE.search(tree.branch)
        document = WorkflowDocument(
            adw_id=adw_id,
            issue_number=int(number[1]) if number else None,
            repository=self._home.settings.repository or "",
            created_at=moment,
            updated_at=moment,
        )
        with self._home.ownership.create(document) as owned:
            draft = self._adopting(owned.document, tree)
            why = f"adopted: adw resume {adw_id} --workflow NAME says what to run"
            draft.document.pause_reason = why
            draft.move(WorkflowState.PAUSED, {"reason": why})
            owned.save(draft.finished(), events=draft.events)

        return WorkflowState.PAUSED.value

    def _adopting(self, document: WorkflowDocument, tree: Worktree) -> Draft:
        """Return a draft of *document* with the worktree in its ledger."""
        now = self._home.clock.now
        draft = Draft(document, WorkflowStateMachine.of(document, now=now), now=now)
        reason = git.lock_reason(draft.document.adw_id)
        undo: JsonObject = {"path": str(tree.path), "branch": tree.branch, "reason": reason, "is_filled": True}
        branch: JsonObject = {"branch": tree.branch, "sha": tree.head}
        for effect in (
            Resource(key="worktree", kind="worktree", host=self._home.host, undo=undo),
            Resource(key=f"branch:{tree.branch}", kind="branch", host=self._home.host, undo=branch),
        ):
            known = effects.effect(draft.document, effect.key)
            if known is None or known.outcome not in OPEN_OUTCOMES:
                effects.intend(draft, effect)
            effects.settle(draft, effect.key, "adopted", effect.undo)
        draft.document.assign(worktree_path=str(tree.path), branch_name=tree.branch)

        return draft
