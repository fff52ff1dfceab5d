"""
Undoing single effects: what each kind of rollback step does outside of adw.

Every function checks first and may be repeated: what is gone counts as done. What is not ours, or no longer, raises
NotOurs and is left. Nothing here stores the plan; `rollback.run` does that before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.effects import (
    MADE,
    WIP_KIND,
    Ledger,
    branch_of,
    commit_of,
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
from adws.adw_modules.rollback.plan import DOUBTFUL, RollbackOptions, Step, process_host, recorded_steps, summary_text

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.git.repository import Repository
    from adws.app import Home


#: The operations named in the markers of a rollback's own comments.
CLOSING, SUMMARY = "rollback_closing", "rollback_summary"
#: File in a workflow's directory that keeps its uncommitted work.
PATCH_NAME = "salvage.patch"
_NOT_THERE = "it is not there"


def refuse_merged(document: WorkflowDocument, forge: Forge | None) -> None:
    """Raise PullRequestMerged if a pull request of the workflow is merged; a forge that does not answer is ignored."""
    if document.pr_merged:
        raise PullRequestMerged(document.pr_number)
    for effect in document.resources:
        number = number_of(effect.undo) if effect.kind == "pull_request" else None
        if forge is None or not number:
            continue
        try:
            is_merged = forge.pull_request(number).is_merged
        except AdwError:
            continue  # its own step asks again, and nothing at the remote is touched before that is answered
        if is_merged:
            raise PullRequestMerged(number)


class Undo:
    """Undoes the steps of one workflow's rollback."""

    def __init__(self, home: Home, session: WorkSession, options: RollbackOptions) -> None:
        self._home = home
        self._session = session
        self._options = options

    def undo(self, step: Step) -> Step:
        """Undo *step* and return its result; raise NotOurs, PullRequestMerged, RollbackBlocked, or what went wrong."""
        if self._is_here(step.host):
            return UNDO[step.kind](self, step)
        where = f"it is on {step.host}"
        if self._home.settings.is_shared:
            hint = f"a worker there does it; if {step.host} is gone for good: --forget-host {step.host}"
        else:
            hint = f"run adw rollback {self._document.adw_id} there, or set worker.host when this machine was called so"
        raise RollbackBlocked(f"{where}: {hint}")

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    def _is_here(self, host: str) -> bool:
        return host in {"", self._home.host}

    @property
    def _git(self) -> Repository:
        if self._home.git_if_any is None:
            raise RollbackBlocked("this home is in no git repository")

        return self._home.git_if_any

    @property
    def _forge(self) -> Forge:
        if self._home.forge_if_any is None:
            raise RollbackBlocked("no forge is configured to ask")

        return self._home.forge_if_any

    # --- processes and work ------------------------------------------------------------------------------------

    def end_processes(self, step: Step) -> Step:
        """End the processes that the workflow started on this machine; other machines have steps of their own."""
        # A token names all processes that descend from one start. An attempt that ended in order has ended its
        # processes; for the others the end has to be certain.
        started: dict[str, tuple[Mapping[str, JsonValue], bool]] = {}
        for attempt in (attempt for record in self._document.phases for attempt in record.attempts):
            process = attempt.process
            if process and (not step.host or process_host(process) in {"", step.host}):
                started[str(process.get("token"))] = (process, attempt.status in DOUBTFUL)
        for effect in self._document.resources:
            if effect.key in step.effects:
                started[str(effect.undo.get("token"))] = (effect.undo, True)
        evidence = "it started none"
        for recorded, is_doubtful in started.values():
            ending = self._home.end_process(recorded)
            if ending.left:
                raise RollbackBlocked(f"processes that cannot be ended: {', '.join(ending.left)}")
            if is_doubtful and not ending.is_certain and not self._options.force:
                raise RollbackBlocked(f"{ending.evidence}; --force goes on without that proof")
            evidence = ending.evidence

        return step.ended("done" if started else "gone", evidence)

    def salvage(self, step: Step) -> Step:
        """Keep commits under a ref and uncommitted changes as a patch, before a branch or a worktree is removed."""
        git = self._home.git_if_any
        if git is None:
            return step.ended("gone", heads={}, held=[])
        kept: list[str] = []
        heads: JsonObject = {}
        here = [effect for effect in self._document.resources if self._is_here(effect.place)]
        starts = {branch_of(one.undo): str(one.undo.get("start") or "") for one in here if one.kind == "branch"}
        starts.setdefault(self._document.branch_name or "", "")
        for branch, start in starts.items():
            head = git.commit_of(f"refs/heads/{branch}") if branch else None
            if head is None:
                continue
            heads[branch] = head
            if head != start:
                ref = git.keep_commits(self._document.adw_id, head)
                kept.append(f"the commits of {branch} are kept as {ref}")

        worktrees = [effect for effect in here if effect.kind == "worktree" and path_of(effect.undo)]
        ours = {self._place(effect.undo) for effect in worktrees}
        lock = git_module.lock_reason(self._document.adw_id)
        held = [tree.branch for tree in git.worktrees() if tree.lock_reason == lock or tree.path in ours]
        for effect in worktrees:
            if self._is_damaged(effect.undo):
                held.append(branch_of(effect.undo))  # its files are kept when it is removed
                continue
            place, patch = self._place(effect.undo), b""
            if _known(git, place) is not None and place.exists():
                try:
                    patch = self._home.workplace.patch_of_changes(place)
                except GitError:  # if adding it was interrupted, nothing was done in it yet
                    if effect.outcome != "intended":
                        raise
            if patch:
                path = repository.write_patch(self._home.folder_of(self._document.adw_id), PATCH_NAME, patch)
                kept.append(f"uncommitted work is kept in {path}")

        return step.ended("done" if kept else "gone", "; ".join(kept), heads=heads, held=list(held))

    def _place(self, facts: Mapping[str, JsonValue]) -> Path:
        """Return the path of a worktree in the ledger; older tools stored it relative to the repository."""
        return self._git.root / path_of(facts)

    def _lock_reason(self, facts: Mapping[str, JsonValue]) -> str:
        return str(facts.get("reason") or git_module.lock_reason(self._document.adw_id))

    def _is_damaged(self, facts: Mapping[str, JsonValue]) -> bool:
        """Return whether a worktree in the ledger is ours and damaged."""
        try:
            return bool(self._git.why_damaged(self._place(facts), reason=self._lock_reason(facts)))
        except NotOurs:
            return False

    def _salvaged(self, fact: str) -> JsonObject | list[JsonValue]:
        """Return *fact* as recorded by the step that salvaged the work on this machine."""
        steps = [step for step in recorded_steps(self._document) if step.kind == "salvage" and self._is_here(step.host)]
        value = next((step.facts[fact] for step in steps if fact in step.facts), None)

        return value if isinstance(value, dict | list) else []

    def _salvaged_head(self, branch: str) -> str:
        """Return the commit of *branch* when the work was salvaged, or "" if it did not exist."""
        heads = self._salvaged("heads")

        return str(heads.get(branch) or "") if isinstance(heads, dict) else ""

    # --- git ---------------------------------------------------------------------------------------------------

    def delete_remote_branch(self, step: Step) -> Step:
        """Delete the remote branch, unless it has commits that adw did not push."""
        git, branch = self._git, branch_of(step.facts)
        self._refuse_default(branch)
        there = git.remote_commit(branch)
        if there is None:
            return step.ended("gone", _NOT_THERE)
        # Without a record the push was interrupted: then only a commit that is also here can have come from here.
        if there not in (_pushed(self._document, branch) or {self._salvaged_head(branch)}):
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")

        return _removed(step, git.delete_remote_branch(branch, expected=there))

    def _refuse_default(self, branch: str) -> None:
        if not branch or branch in {"main", "master"} or branch == self._git.default_branch():
            raise NotOurs("it is the branch that everything starts from, or has no name: it is left alone")

    def delete_wip_ref(self, step: Step) -> Step:
        """Delete the ref from which other machines could continue; keep its commits here if they are not kept yet."""
        git, ref = self._git, str(step.facts.get("ref") or "")
        there = git.remote_ref(ref)
        if there is None:
            return step.ended("gone", _NOT_THERE)
        if there not in {sha for one in published(self._document) if one.ref == ref for sha in one.commits}:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")
        heads, detail = self._salvaged("heads"), ""
        if not (isinstance(heads, dict) and there in heads.values()):
            git.fetch_ref(ref, expected=there)
            detail = f"its commits are kept as {git.keep_commits(self._document.adw_id, there)}"

        return replace(_removed(step, git.delete_remote_ref(ref, expected=there)), detail=detail)

    def remove_worktree(self, step: Step) -> Step:
        """Remove the worktree if it is locked for this workflow; the files of a damaged one are kept."""
        git, path = self._git, self._place(step.facts)
        known = _known(git, path)
        # Older tools did not lock theirs; a lock with another reason means that it has another owner now.
        is_unlocked = known is not None and not known.lock_reason and not step.facts.get("reason")
        reason = "" if is_unlocked else self._lock_reason(step.facts)
        is_recorded = step.facts.get("outcome") in MADE
        detail = self._keep_files(git, path, step.facts) if is_recorded and self._is_damaged(step.facts) else ""
        try:
            removed = _removed(step, git.remove_worktree(path, reason=reason, is_recorded=is_recorded))
        except NotOurs:
            if known is not None or path.is_symlink() or path.exists():
                raise
            return step.ended("gone", _NOT_THERE)

        return replace(removed, detail=detail) if detail else removed

    def _keep_files(self, git: Repository, path: Path, facts: Mapping[str, JsonValue]) -> str:
        """Keep the files of a damaged worktree; raise RollbackBlocked if that fails and force is not set."""
        branch = branch_of(facts)
        recorded = next((one for one in self._document.resources if one.key == f"branch:{branch}"), None)
        known = (f"refs/heads/{branch}", commit_of(recorded.undo) if recorded else "", "HEAD")
        base = next((commit for ref in known if (commit := git.commit_of(ref))), "")
        try:
            ref = self._home.workplace.keep_files(self._document.adw_id, path, base)
        except (GitError, OSError) as exc:
            if self._options.force:
                return f"it was damaged, and its files could not be kept: {exc}"
            raise RollbackBlocked(f"its files cannot be kept: {exc}; --force goes on without them") from exc

        return f"it was damaged; its files are kept as {ref}" if ref else "it was damaged"

    def delete_branch(self, step: Step) -> Step:
        """Delete the local branch at the salvaged commit, unless others made it or added commits."""
        git, branch = self._git, branch_of(step.facts)
        self._refuse_default(branch)
        if step.facts.get("outcome") == "observed" and self._document.adw_id not in branch:
            raise NotOurs("it appeared during a phase, and nothing says who made it: delete it by hand if you want to")
        if git.commit_of(f"refs/heads/{branch}") is None:
            return step.ended("gone", _NOT_THERE)
        salvaged = self._salvaged_head(branch)
        if not salvaged:
            raise NotOurs("it was not there when the work was salvaged: somebody else made it")
        # Commits made in our own worktree are ours; without one, only commits that adw saw are.
        is_seen = commit_of(step.facts) in {"", salvaged} or step.facts.get("start") == salvaged
        if not is_seen and branch not in self._salvaged("held"):
            raise NotOurs(f"it has commits that adw did not make ({salvaged[:12]}): delete it by hand")

        return _removed(step, git.delete_branch(branch, expected=salvaged))

    def leave(self, _step: Step) -> Step:
        """Refuse to undo an effect that no kind of step undoes."""
        raise NotOurs("it appeared during a phase, and nothing says who made it: remove it by hand if you want to")

    # --- ports and directories ---------------------------------------------------------------------------------

    def free_ports(self, step: Step) -> Step:
        """Free the ports; a process on one of them is not ended: ours are gone by now."""
        freed = self._home.ports.free(self._document.adw_id)
        ports = step.facts.get("ports")
        known = [port for port in ports if isinstance(port, int)] if isinstance(ports, list) else []
        foreign = [port for port in known if port not in freed and not is_free(port)]
        lines = [f"{port} is used by somebody else, who is left alone" for port in foreign]
        if freed:
            lines.append(f"freed {', '.join(map(str, freed))}")

        return step.ended("done" if freed else "gone", "; ".join(lines))

    def remove_directory(self, step: Step) -> Step:
        """Remove a directory that an older tool made beside the repository's files."""
        path, git = Path(path_of(step.facts)), self._home.git_if_any
        root = git.root if git is not None else path.parent

        return _removed(step, repository.remove_directory(root / path, root=root))

    # --- the forge ---------------------------------------------------------------------------------------------

    def close_pull_request(self, step: Step) -> Step:
        """Close the pull request with the reason, unless others work on it; raise PullRequestMerged."""
        forge = self._forge
        pull = self._pull_request(forge, step)
        if pull is None:
            return step.ended("gone", "there is none")
        if pull.is_merged:
            raise PullRequestMerged(pull.number)
        if pull.state != "open":
            return step.ended("gone", "it is closed already")
        pushed = _pushed(self._document, pull.head)
        if pushed and pull.head_sha and pull.head_sha not in pushed:
            raise NotOurs(f"it has commits of others ({pull.head_sha[:12]}): close it by hand")
        reason = forge_text.quiet(self._options.reason)
        text = f"Closed because workflow {self._document.adw_id} was rolled back: {reason}"
        self._comment_once(forge, pull.number, CLOSING, "comment:rollback-closes-pull-request", text)
        forge.close_pull_request(pull.number)

        return step.ended("done", pull.url)

    def _pull_request(self, forge: Forge, step: Step) -> PullRequest | None:
        """Return the pull request of a step: by number, or by our marker if creating it was interrupted."""
        number = number_of(step.facts)
        if number is not None:
            with suppress(ForgeNotFound):
                return forge.pull_request(number)
            return None
        branch = branch_of(step.facts) or self._document.branch_name or ""
        pulls = forge.pull_requests_of(branch) if branch else ()

        return next((pull for pull in pulls if self._is_marked(forge, pull, forge_text.PULL_REQUEST)), None)

    def remove_label(self, step: Step) -> Step:
        """Remove the label."""
        number, label = number_of(step.facts) or self._document.issue_number, step.facts.get("label")
        if number is None or not isinstance(label, str):
            return step.ended("left", "the ledger does not say what it is on")
        self._forge.remove_label(number, label)

        return step.ended("done")

    def comment(self, step: Step) -> Step:
        """Update the status comment, and post what was undone and what is left."""
        forge, number, document = self._forge, self._document.issue_number, self._document
        if number is None:
            return step.ended("done", "what was said on its pull request stays")
        reason = (document.rollback.reason if document.rollback else "") or self._options.reason
        status = self._find_comment(forge, number, forge_text.STICKY)
        if status is not None:
            now = self._home.clock.now()
            text = forge_text.sticky_text(document, now=now, state="rolled_back", detail=reason)
            forge.edit_comment(status.comment_id, self._marked(forge, text, forge_text.STICKY))
        summary = summary_text(document.adw_id, forge_text.quiet(reason), recorded_steps(document))
        try:
            summary = forge_text.without_local_paths(summary)
            self._comment_once(forge, number, SUMMARY, "comment:rollback-summary", summary)
        except ForgeNotFound:
            return step.ended("gone", "the forge has no such issue")

        return step.ended("done", "its comments stay, and say so")

    def _comment_once(self, forge: Forge, number: int, op: str, key: str, text: str) -> None:
        """Create a comment of ours once, found by its marker after a crash; it stays when the rollback is finished."""
        body = self._marked(forge, forge_text.bot_comment(text), op)
        ledger = Ledger(self._session, host=self._home.host)

        def find() -> JsonObject | None:
            comment = self._find_comment(forge, number, op)
            return {"comment_id": comment.comment_id} if comment else None

        ledger.make(
            key,
            "comment",
            undo={"number": number, "op": op},
            find=find,
            act=lambda: {"comment_id": forge.create_comment(number, body).comment_id},
        )
        ledger.undone(key, "kept", {"reason": "it says how the workflow ended"})

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
        """Return whether *found* was made by this workflow: a copied marker has another author."""
        marker = forge_text.read_marker(found.body, key=self._home.forge_key, repository=forge.repository)

        return marker == Marker(adw_id=self._document.adw_id, op=op) and found.author == forge.login()


def _known(git: Repository, path: Path) -> Worktree | None:
    return next((tree for tree in git.worktrees() if tree.path in {path, path.resolve()}), None)


def _pushed(document: WorkflowDocument, branch: str) -> set[str]:
    """Return the commits that adw pushed to the remote branch, or intended to."""
    commits: set[str] = set()
    for effect in document.resources:
        if effect.kind == "remote_branch" and branch_of(effect.undo) == branch:
            intended = effect.undo.get("intended")
            commits |= {commit_of(effect.undo), commit_of(intended) if isinstance(intended, dict) else ""}

    return commits - {""}


def _removed(step: Step, was_there: bool) -> Step:
    return step.ended("done") if was_there else step.ended("gone", _NOT_THERE)


#: Kind of a step -> the method that undoes it.
UNDO: Mapping[str, Callable[[Undo, Step], Step]] = {
    "process": Undo.end_processes,
    "salvage": Undo.salvage,
    "pull_request": Undo.close_pull_request,
    "remote_branch": Undo.delete_remote_branch,
    WIP_KIND: Undo.delete_wip_ref,
    "worktree": Undo.remove_worktree,
    "branch": Undo.delete_branch,
    "other": Undo.leave,
    "port": Undo.free_ports,
    "directory": Undo.remove_directory,
    "label": Undo.remove_label,
    "comment": Undo.comment,
}
