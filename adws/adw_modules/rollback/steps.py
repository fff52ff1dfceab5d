"""
Undoing one thing each: what a step of a rollback does outside adw.

Every step checks first and may be repeated: what is gone is done. What is not ours, or not any more, raises NotOurs and
is left. Nothing here writes the plan; `rollback.run` does that before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.effects import (
    MADE,
    WIP_KIND,
    Effect,
    Ledger,
    branch_of,
    commit_of,
    effects,
    number_of,
    path_of,
    published,
)
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import AdwError, ForgeNotFound, GitError, NotOurs, PullRequestMerged, RollbackBlocked
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import Comment, Forge, PullRequest
from adws.adw_modules.forge.text import Marker
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git import repository
from adws.adw_modules.git.repository import Worktree
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.resources.ports import is_free
from adws.adw_modules.rollback import plan as rollback_plan
from adws.adw_modules.rollback.plan import RollbackOptions, Step

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.git.repository import Repository
    from adws.app import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of a step."""

    status: str  #: done | gone | kept | left
    detail: str = ""
    facts: JsonObject | None = None  #: learnt, for later steps


# What a rollback does on a forge: close the pull request, take labels off, tell what became of the workflow.
#
# Every comment is found by its marker before one is written, so that a rollback that is run again says nothing twice.


#: What a rollback's own comments stand for in their markers.
CLOSING, SUMMARY = "rollback_closing", "rollback_summary"


class ForgeUndoing:
    """Makes the steps of a rollback that are made on a forge."""

    def __init__(self, home: Home, session: WorkSession, wishes: RollbackOptions) -> None:
        self._home = home
        self._session = session
        self._wishes = wishes

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    def close_pull_request(self, step: Step) -> StepResult:
        """Close it with the reason, unless others work on it; raise PullRequestMerged."""
        forge = self._forge()
        pull = self._pull_request(forge, step)
        if pull is None:
            return StepResult(status="gone", detail="there is none")
        if pull.is_merged:
            raise PullRequestMerged(pull.number)
        if pull.state != "open":
            return StepResult(status="gone", detail="it is closed already")
        ours = self.pushed(pull.head)
        if ours and pull.head_sha and pull.head_sha not in ours:
            raise NotOurs(f"it has commits of others ({pull.head_sha[:12]}): close it by hand")
        text = rollback_plan.closing_text(self._document.adw_id, forge_text.quiet(self._wishes.reason))
        self._note(forge, pull.number, CLOSING, rollback_plan.CLOSING_COMMENT, text)
        forge.close_pull_request(pull.number)

        return StepResult(status="done", detail=pull.url)

    def _pull_request(self, forge: Forge, step: Step) -> PullRequest | None:
        number = number_of(step.facts)
        if number is not None:
            with suppress(ForgeNotFound):
                return forge.pull_request(number)
            return None
        branch = branch_of(step.facts) or self._document.branch_name or ""
        if not branch:
            return None
        pull_requests = forge.pull_requests_of(branch)

        return next((one for one in pull_requests if self._is_marked(forge, one, forge_text.PULL_REQUEST)), None)

    def pushed(self, branch: str) -> set[str]:
        """Return the commits that adw put on the remote branch, or meant to."""
        result: set[str] = set()
        for effect in effects(self._document):
            if effect.kind != "remote_branch" or branch_of(effect.undo) != branch:
                continue
            intended = effect.undo.get("intended")
            result |= {commit_of(effect.undo), commit_of(intended) if isinstance(intended, dict) else ""}

        return result - {""}

    def remove_label(self, step: Step) -> StepResult:
        """Take a label off."""
        number = number_of(step.facts) or self._document.issue_number
        label = step.facts.get("label")
        if number is None or not isinstance(label, str):
            return StepResult(status="left", detail="the ledger does not say what it is on")
        self._forge().remove_label(number, label)

        return StepResult(status="done")

    def comment(self, _step: Step) -> StepResult:
        """Bring the sticky comment up, and post what was undone and what is left."""
        forge, number = self._forge(), self._document.issue_number
        if number is None:
            return StepResult(status="done", detail="what was said on its pull request stays")
        record = self._document.rollback
        steps = rollback_plan.recorded_steps(self._document)
        reason = (record.reason if record else "") or self._wishes.reason
        sticky = self._find_comment(forge, number, forge_text.STICKY)
        if sticky is not None:
            now = self._home.clock.now()
            text = forge_text.sticky_text(self._document, now=now, state="rolled_back", detail=reason)
            forge.edit_comment(sticky.comment_id, self._marked(forge, text, forge_text.STICKY))
        said = forge_text.without_local_paths(
            rollback_plan.summary_text(self._document.adw_id, forge_text.quiet(reason), steps)
        )
        try:
            self._note(forge, number, SUMMARY, rollback_plan.SUMMARY_COMMENT, said)
        except ForgeNotFound:
            return StepResult(status="gone", detail="the forge has no such issue")

        return StepResult(status="done", detail="its comments stay, and say so")

    def _note(self, forge: Forge, number: int, op: str, key: str, text: str) -> None:
        """Write a comment of ours once, found by its marker after a crash; it stays when the rollback is over."""
        body = self._marked(forge, forge_text.bot_comment(text), op)
        ledger = Ledger(self._session, host=self._home.host)

        def found() -> JsonObject | None:
            comment = self._find_comment(forge, number, op)
            return {"comment_id": comment.comment_id} if comment else None

        ledger.make(
            key,
            "comment",
            undo={"number": number, "op": op},
            find=found,
            act=lambda: {"comment_id": forge.create_comment(number, body).comment_id},
        )
        ledger.undone(key, "kept", {"reason": "it tells what became of the workflow"})

    def _find_comment(self, forge: Forge, number: int, op: str) -> Comment | None:
        try:
            comments = forge.comments(number)
        except ForgeNotFound:
            return None

        return next((comment for comment in comments if self._is_marked(forge, comment, op)), None)

    def _marked(self, forge: Forge, text: str, op: str) -> str:
        marker = Marker(adw_id=self._document.adw_id, op=op)
        made = forge_text.make_marker(marker, key=self._home.forge_key, repository=forge.repository)

        return forge_text.outgoing_body(forge_text.with_marker(text, made), self._home.redactor.redact_text)

    def _is_marked(self, forge: Forge, found: PullRequest | Comment, op: str) -> bool:
        """Return whether this workflow made it: a copied marker still has another author."""
        marker = forge_text.read_marker(found.body, key=self._home.forge_key, repository=forge.repository)

        return marker == Marker(adw_id=self._document.adw_id, op=op) and found.author == forge.login()

    def _forge(self) -> Forge:
        forge = self._home.forge_if_any
        if forge is None:
            raise RollbackBlocked("no forge is configured to ask")

        return forge


def refuse_merged(document: WorkflowDocument, forge: Forge | None) -> None:
    """Raise PullRequestMerged when a pull request of the workflow is; one that nobody can ask for is no reason."""
    if document.pr_merged:
        raise PullRequestMerged(document.pr_number)
    known = (number_of(effect.undo) for effect in effects(document) if effect.kind == "pull_request")
    for number in filter(None, known):
        if forge is not None and _is_merged(forge, number):
            raise PullRequestMerged(number)


def _is_merged(forge: Forge, number: int) -> bool:
    try:
        return forge.pull_request(number).is_merged
    except AdwError:
        return False  # its own step asks again, and nothing at the remote is touched before that was answered


#: File of a workflow's directory that keeps its uncommitted work.
PATCH_NAME = "salvage.patch"


class Undoing:
    """Makes the steps of one workflow's rollback."""

    def __init__(self, home: Home, session: WorkSession, wishes: RollbackOptions) -> None:
        self._home = home
        self._session = session
        self._wishes = wishes
        self._forge = ForgeUndoing(home, session, wishes)
        self._doers: dict[str, Callable[[Step], StepResult]] = {
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

    def make(self, step: Step) -> StepResult:
        """Undo what *step* names; raise NotOurs, PullRequestMerged, or what went wrong."""
        if not self._is_here(step.host):
            raise RollbackBlocked(self._why_elsewhere(step.host))

        return self._doers[step.kind](step)

    def _why_elsewhere(self, host: str) -> str:
        adw_id = self._document.adw_id
        if self._home.settings.is_shared:
            return f"it is on {host}: a worker there does it; if {host} is gone for good: --forget-host {host}"

        return f"it is on {host}: run adw rollback {adw_id} there, or set worker.host when this machine was called so"

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    def _is_here(self, host: str) -> bool:
        return host in {"", self._home.host}

    # --- processes and work ------------------------------------------------------------------------------------

    def _end_processes(self, step: Step) -> StepResult:
        attempts = [attempt for record in self._document.phases for attempt in record.attempts if attempt.process]
        # A token names all processes that descend from one start. An attempt that ended in good order has ended its
        # processes. Those of another machine have a step of their own, and are never signalled from here.
        result = {
            str((a.process or {}).get("token")): (a.process or {}, a.status in rollback_plan.DOUBTFUL)
            for a in attempts
            if not step.host or rollback_plan.process_host(a.process or {}) in {"", step.host}
        }
        for effect in effects(self._document):
            if effect.key in step.effects:
                result[str(effect.undo.get("token"))] = (effect.undo, True)
        said = [self._end(record, is_doubtful=is_doubtful) for record, is_doubtful in result.values()]

        return StepResult(status="done" if said else "gone", detail=said[-1] if said else "it started none")

    def _end(self, record: Mapping[str, object], *, is_doubtful: bool) -> str:
        ending = self._home.end_process(record)
        if ending.left:
            raise RollbackBlocked(f"processes that cannot be ended: {', '.join(ending.left)}")
        if is_doubtful and not ending.is_certain and not self._wishes.force:
            raise RollbackBlocked(f"{ending.evidence}; --force goes on without that proof")

        return ending.evidence

    def _salvage(self, _step: Step) -> StepResult:
        git = self._home.git_if_any
        heads: dict[str, str] = {}
        said: list[str] = []
        held = [tree.branch for tree in self._own_worktrees()]
        held += [branch_of(effect.undo) for effect in self._worktree_effects() if self._why_damaged(effect.undo)]
        for branch, start in self._branches().items():
            head = git.commit_of(f"refs/heads/{branch}") if git else None
            if git is None or head is None:
                continue
            heads[branch] = head
            if head != start:
                ref = git.keep_commits(self._document.adw_id, head)
                said.append(f"the commits of {branch} are kept as {ref}")
        said += self._save_patches()

        facts: JsonObject = {"heads": dict(heads), "held": list(held)}

        return StepResult(status="done" if said else "gone", detail="; ".join(said), facts=facts)

    def _branches(self) -> dict[str, str]:
        """Return the branches of the workflow and where each began."""
        result = [one for one in effects(self._document) if one.kind == "branch" and self._is_here(one.host)]
        known = {branch_of(effect.undo): str(effect.undo.get("start") or "") for effect in result}
        if self._document.branch_name:
            known.setdefault(self._document.branch_name, "")

        return {name: start for name, start in known.items() if name}

    def _save_patches(self) -> list[str]:
        said: list[str] = []
        for effect in self._worktree_effects():
            if self._why_damaged(effect.undo):
                continue  # its files are kept when it is removed
            payload = self._patch(self._place(effect.undo), is_made=effect.outcome != "intended")
            if payload:
                kept = repository.write_patch(self._home.folder_of(self._document.adw_id), PATCH_NAME, payload)
                said.append(f"uncommitted work is kept in {kept}")

        return said

    def _worktree_effects(self) -> list[Effect]:
        """Return the worktrees of the workflow on this machine, as the ledger has them."""
        result = (one for one in effects(self._document) if one.kind == "worktree" and self._is_here(one.host))

        return [one for one in result if path_of(one.undo)]

    def _place(self, facts: Mapping[str, JsonValue]) -> Path:
        """Return where a worktree of the ledger is; older tools wrote its path relative to the repository."""
        git = self._home.git_if_any

        return Path(path_of(facts)) if git is None else git.root / path_of(facts)

    def _why_damaged(self, facts: Mapping[str, JsonValue]) -> str:
        """Return how a worktree is damaged that the ledger has with *facts*; "" when it is not, or is not ours."""
        git = self._home.git_if_any
        try:
            return git.why_damaged(self._place(facts), reason=self._reason(facts)) if git is not None else ""
        except NotOurs:
            return ""

    def _reason(self, facts: Mapping[str, JsonValue]) -> str:
        return str(facts.get("reason") or git_module.lock_reason(self._document.adw_id))

    def _patch(self, path: Path, *, is_made: bool) -> bytes:
        if self._known_worktree(path) is None or not path.exists():
            return b""
        try:
            return self._home.workplace.patch_of_changes(path)
        except GitError:
            if is_made:
                raise
            return b""  # the add was cut off: nobody has worked there yet

    # --- git ---------------------------------------------------------------------------------------------------

    def _delete_remote_branch(self, step: Step) -> StepResult:
        git, branch = self._git(), branch_of(step.facts)
        self._refuse_default(branch)
        there = git.remote_commit(branch)
        if there is None:
            return StepResult(status="gone", detail="it is not there")
        # Without a record of a push it was cut off: then only what is here too can have come from here.
        ours = self._forge.pushed(branch) or {self._head(branch)}
        if there not in ours:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")

        return _said(git.delete_remote_branch(branch, expected=there))

    def _delete_wip(self, step: Step) -> StepResult:
        """Delete the ref that other machines could go on from; its commits are kept here unless they are already."""
        git, ref = self._git(), str(step.facts.get("ref") or "")
        there = git.remote_ref(ref)
        if there is None:
            return StepResult(status="gone", detail="it is not there")
        if there not in {sha for one in published(self._document) if one.ref == ref for sha in one.commits}:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")
        said = self._kept(ref, there)

        return replace(_said(git.delete_remote_ref(ref, expected=there)), detail=said)

    def _kept(self, ref: str, sha: str) -> str:
        heads = self._salvaged("heads")
        if isinstance(heads, dict) and sha in heads.values():
            return ""
        git = self._git()
        git.fetch_ref(ref, expected=sha)

        return f"its commits are kept as {git.keep_commits(self._document.adw_id, sha)}"

    def _remove_worktree(self, step: Step) -> StepResult:
        git, path = self._git(), self._place(step.facts)
        known = self._known_worktree(path)
        # Older tools did not lock theirs; a lock with another reason means that somebody else has it now.
        is_unlocked = known is not None and not known.lock_reason and not step.facts.get("reason")
        reason = "" if is_unlocked else self._reason(step.facts)
        is_recorded = step.facts.get("outcome") in MADE
        said = self._keep_files(git, path, step.facts) if is_recorded and self._why_damaged(step.facts) else ""
        try:
            result = _said(git.remove_worktree(path, reason=reason, is_recorded=is_recorded))
        except NotOurs:
            if known is not None or path.is_symlink() or path.exists():
                raise
            return StepResult(status="gone", detail="it is not there")

        return replace(result, detail=said) if said else result

    def _keep_files(self, git: Repository, path: Path, facts: Mapping[str, JsonValue]) -> str:
        """Keep the files of a damaged worktree; raise RollbackBlocked when that fails, unless they may be lost."""
        branch = branch_of(facts)
        recorded = next((one for one in effects(self._document) if one.key == f"branch:{branch}"), None)
        known = (f"refs/heads/{branch}", commit_of(recorded.undo) if recorded else "", "HEAD")
        base = next((commit for ref in known if (commit := git.commit_of(ref))), "")
        try:
            ref = self._home.workplace.keep_files(self._document.adw_id, path, base)
        except (GitError, OSError) as exc:
            if self._wishes.force:
                return f"it was damaged, and its files could not be kept: {exc}"
            raise RollbackBlocked(f"its files cannot be kept: {exc}; --force goes on without them") from exc

        return f"it was damaged; its files are kept as {ref}" if ref else "it was damaged"

    def _delete_branch(self, step: Step) -> StepResult:
        git, branch = self._git(), branch_of(step.facts)
        self._refuse_default(branch)
        if step.facts.get("outcome") == "observed" and self._document.adw_id not in branch:
            raise NotOurs("it appeared during a phase, and nothing says who made it: delete it by hand if you want to")
        if git.commit_of(f"refs/heads/{branch}") is None:
            return StepResult(status="gone", detail="it is not there")
        salvaged = self._head(branch)
        if not salvaged:
            raise NotOurs("it was not there when the work was salvaged: somebody else made it")
        # What was committed in our own worktree is ours; without one only the commits that adw saw are.
        is_seen = commit_of(step.facts) in {"", salvaged} or step.facts.get("start") == salvaged
        if not is_seen and branch not in self._salvaged("held"):
            raise NotOurs(f"it has commits that adw did not make ({salvaged[:12]}): delete it by hand")

        return _said(git.delete_branch(branch, expected=salvaged))

    def _leave(self, step: Step) -> StepResult:
        del step
        raise NotOurs("it appeared during a phase, and nothing says who made it: remove it by hand if you want to")

    def _head(self, branch: str) -> str:
        """Return the commit that *branch* was at when the work was salvaged, "" when it was not there."""
        heads = self._salvaged("heads")
        result = heads.get(branch) if isinstance(heads, dict) else None

        return result if isinstance(result, str) else ""

    def _salvaged(self, fact: str) -> JsonObject | list[JsonValue]:
        steps = rollback_plan.recorded_steps(self._document)
        mine = (step for step in steps if step.kind == "salvage" and self._is_here(step.host))
        first = next((step.facts[fact] for step in mine if fact in step.facts), None)

        return first if isinstance(first, dict | list) else []

    def _own_worktrees(self) -> list[Worktree]:
        """Return the worktrees that are locked for this workflow, or that the ledger has from older tools."""
        ours = {self._place(effect.undo) for effect in effects(self._document) if effect.kind == "worktree"}
        reason = git_module.lock_reason(self._document.adw_id)
        trees = self._worktrees()

        return [tree for tree in trees if tree.lock_reason == reason or tree.path in ours]

    def _refuse_default(self, branch: str) -> None:
        if not branch or branch in {"main", "master"} or branch == self._git().default_branch():
            raise NotOurs("it is the branch that everything starts from, or has no name: it is left alone")

    def _known_worktree(self, path: Path) -> Worktree | None:
        trees = self._worktrees()

        return next((tree for tree in trees if tree.path == path or tree.path == path.resolve()), None)

    def _worktrees(self) -> tuple[Worktree, ...]:
        git = self._home.git_if_any

        return git.worktrees() if git is not None else ()

    def _git(self) -> Repository:
        git = self._home.git_if_any
        if git is None:
            raise RollbackBlocked("this home is in no git repository")

        return git

    # --- ports and directories ---------------------------------------------------------------------------------

    def _free_ports(self, step: Step) -> StepResult:
        freed = self._home.ports.free(self._document.adw_id)
        named = step.facts.get("ports")
        known = [port for port in named if isinstance(port, int)] if isinstance(named, list) else []
        # Our own processes are gone by now: what still listens is not ours, and no process is ended for a port.
        foreign = [port for port in known if port not in freed and not is_free(port)]
        said = [f"{port} is used by somebody else, who is left alone" for port in foreign]
        said += [f"freed {', '.join(map(str, freed))}"] if freed else []

        return StepResult(status="done" if freed else "gone", detail="; ".join(said))

    def _remove_directory(self, step: Step) -> StepResult:
        path = Path(path_of(step.facts))
        git = self._home.git_if_any
        root = git.root if git is not None else path.parent

        return _said(repository.remove_directory(root / path, root=root))


def _said(was_there: bool) -> StepResult:
    return StepResult(status="done") if was_there else StepResult(status="gone", detail="it is not there")
