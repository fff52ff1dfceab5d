"""
Undoing one thing each: what a step of a rollback does to the world.

Every step looks first and may be made again: what is gone is done. What is not ours, or not any more, raises NotOurs
and is left. Nothing here writes the plan; `rollback` does that before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import forge_texts, leftovers, rollback_rules, work_names
from adws.adw_modules.effect_rules import effects
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.errors import (
    AdwError,
    ForgeNotFound,
    GitError,
    NotOurs,
    PullRequestMerged,
    RollbackBlocked,
)
from adws.adw_modules.forge import Comment, Forge, PullRequest
from adws.adw_modules.forge_texts import Marker
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import Ports, Worktree
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.rollback_rules import Step, Wishes, branch_of, commit_of, number_of, path_of

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: What a rollback's own comments stand for in their markers.
CLOSING, SUMMARY = "rollback_closing", "rollback_summary"
#: File of a workflow's directory that keeps its uncommitted work.
PATCH_NAME = "salvage.patch"


class Repository(Protocol):
    """What a rollback asks of git (`GitRepository`, a part of it)."""

    @property
    def root(self) -> Path: ...
    def default_branch(self) -> str: ...
    def commit_of(self, ref: str) -> str | None: ...
    def worktrees(self) -> tuple[Worktree, ...]: ...
    def remove_worktree(self, path: Path, *, reason: str) -> bool: ...
    def delete_branch(self, branch: str, *, expected: str) -> bool: ...
    def save_ref(self, ref: str, commit: str) -> None: ...
    def delete_remote_branch(self, branch: str, *, expected: str) -> bool: ...
    def remote_commit(self, branch: str) -> str | None: ...


class Workplace(Protocol):
    """What a rollback asks of a worktree (`GitWorkplace`, a part of it)."""

    def patch_of_changes(self, path: Path) -> bytes: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Hands:
    """What a rollback undoes things with."""

    clock: Clock
    host: str  #: the name of this machine, as effects carry it
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what is left of a recorded process
    git: Repository | None = None  #: None: the home is in no repository
    workplace: Workplace | None = None
    ports: Ports | None = None
    forge: Forge | None = None
    forge_key: bytes = b""  #: of the markers
    scrub: Callable[[str], str] = str  #: takes secrets out of what goes to a forge
    release: Callable[[str], object] = lambda _adw_id: None  #: gives its place among the running workflows back
    is_listened_on: Callable[[int], bool] = lambda _port: False  #: whether anybody holds a port of this machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What came of a step."""

    status: str  #: done | gone | kept | left
    detail: str = ""
    facts: JsonObject | None = None  #: learnt, for later steps


class Undoing:
    """Makes the steps of one workflow's rollback."""

    def __init__(self, hands: Hands, session: WorkSession, wishes: Wishes) -> None:
        self._hands = hands
        self._session = session
        self._wishes = wishes
        self._doers: dict[str, Callable[[Step], Done]] = {
            "process": self._end_processes,
            "salvage": self._salvage,
            "pull_request": self._close_pull_request,
            "remote_branch": self._delete_remote_branch,
            "worktree": self._remove_worktree,
            "branch": self._delete_branch,
            "other": self._leave,
            "port": self._free_ports,
            "directory": self._remove_directory,
            "label": self._remove_label,
            "comment": self._comment,
        }

    def make(self, step: Step) -> Done:
        """Undo what *step* names; raise NotOurs, PullRequestMerged, or what went wrong."""
        if step.host and step.host != self._hands.host:
            raise RollbackBlocked(f"it is on {step.host}: run adw rollback {self._document.adw_id} there")

        return self._doers[step.kind](step)

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    # --- processes and work ------------------------------------------------------------------------------------

    def _end_processes(self, step: Step) -> Done:
        attempts = [attempt for record in self._document.phases for attempt in record.attempts if attempt.process]
        # A token names all that came of one start. An attempt that ended in good order has ended its processes.
        doubtful = {"running", "interrupted"}
        found = {str((a.process or {}).get("token")): (a.process or {}, a.status in doubtful) for a in attempts}
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
        found = [effect for effect in effects(self._document) if effect.kind == "branch"]
        known = {branch_of(effect.undo): str(effect.undo.get("start") or "") for effect in found}
        if self._document.branch_name:
            known.setdefault(self._document.branch_name, "")

        return {name: start for name, start in known.items() if name}

    def _save_patches(self) -> list[str]:
        said: list[str] = []
        for effect in effects(self._document):
            path = path_of(effect.undo)
            if effect.kind != "worktree" or not path or effect.host not in {"", self._hands.host}:
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

    # --- the forge ---------------------------------------------------------------------------------------------

    def _close_pull_request(self, step: Step) -> Done:
        forge = self._forge()
        found = self._pull_request(forge, step)
        if found is None:
            return Done(status="gone", detail="there is none")
        if found.is_merged:
            raise PullRequestMerged(found.number)
        if found.state != "open":
            return Done(status="gone", detail="it is closed already")
        ours = self._pushed(found.head)
        if ours and found.head_sha and found.head_sha not in ours:
            raise NotOurs(f"it has commits of others ({found.head_sha[:12]}): close it by hand")
        text = rollback_rules.closing_text(self._document.adw_id, forge_texts.quiet(self._wishes.reason))
        self._note(forge, found.number, CLOSING, rollback_rules.CLOSING_COMMENT, text)
        forge.close_pull_request(found.number)

        return Done(status="done", detail=found.url)

    def _pull_request(self, forge: Forge, step: Step) -> PullRequest | None:
        number = number_of(step.facts)
        if number is not None:
            with suppress(ForgeNotFound):
                return forge.pull_request(number)
            return None
        branch = branch_of(step.facts) or self._document.branch_name or ""
        if not branch:
            return None
        ours = [found for found in forge.pull_requests_of(branch) if found.author == forge.login()]

        return next((found for found in ours if self._is_marked(forge, found.body)), None)

    def _pushed(self, branch: str) -> set[str]:
        """Return the commits that adw put on the remote branch, or meant to."""
        found: set[str] = set()
        for effect in effects(self._document):
            if effect.kind != "remote_branch" or branch_of(effect.undo) != branch:
                continue
            intended = effect.undo.get("intended")
            found |= {commit_of(effect.undo), commit_of(intended) if isinstance(intended, dict) else ""}

        return found - {""}

    def _remove_label(self, step: Step) -> Done:
        number = number_of(step.facts) or self._document.issue_number
        label = step.facts.get("label")
        if number is None or not isinstance(label, str):
            return Done(status="left", detail="the ledger does not say what it is on")
        self._forge().remove_label(number, label)

        return Done(status="done")

    def _comment(self, _step: Step) -> Done:
        forge, number = self._forge(), self._document.issue_number
        if number is None:
            return Done(status="done", detail="what was said on its pull request stays")
        record = self._document.rollback
        steps = rollback_rules.recorded_steps(self._document)
        reason = (record.reason if record else "") or self._wishes.reason
        sticky = self._find_comment(forge, number, forge_texts.STICKY)
        if sticky is not None:
            facts = forge_texts.sticky_facts(self._document, now=self._hands.clock.now())
            text = forge_texts.sticky_text(replace(facts, state="rolled_back", detail=reason))
            forge.edit_comment(sticky.comment_id, self._marked(forge, text, forge_texts.STICKY))
        said = forge_texts.without_local_paths(
            rollback_rules.summary_text(self._document.adw_id, forge_texts.quiet(reason), steps)
        )
        try:
            self._note(forge, number, SUMMARY, rollback_rules.SUMMARY_COMMENT, said)
        except ForgeNotFound:
            return Done(status="gone", detail="the forge has no such issue")

        return Done(status="done", detail="its comments stay, and say so")

    def _note(self, forge: Forge, number: int, op: str, key: str, text: str) -> None:
        """Write a comment of ours once, found by its marker after a crash; it stays when the rollback is over."""
        body = self._marked(forge, forge_texts.bot_comment(text), op)
        ledger = Ledger(self._session, host=self._hands.host)

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

        # Whoever copies a marker still writes under another name.
        ours = [comment for comment in comments if comment.author == forge.login()]

        return next((comment for comment in ours if self._is_marked(forge, comment.body, op)), None)

    def _marked(self, forge: Forge, text: str, op: str) -> str:
        marker = Marker(adw_id=self._document.adw_id, op=op)
        made = forge_texts.make_marker(marker, key=self._hands.forge_key, repository=forge.repository)

        return forge_texts.outgoing_body(forge_texts.with_marker(text, made), self._hands.scrub)

    def _is_marked(self, forge: Forge, text: str, op: str = forge_texts.PULL_REQUEST) -> bool:
        found = forge_texts.read_marker(text, key=self._hands.forge_key, repository=forge.repository)

        return found == Marker(adw_id=self._document.adw_id, op=op)

    def _forge(self) -> Forge:
        if self._hands.forge is None:
            raise RollbackBlocked("no forge is configured to ask")

        return self._hands.forge

    # --- git ---------------------------------------------------------------------------------------------------

    def _delete_remote_branch(self, step: Step) -> Done:
        git, branch = self._git(), branch_of(step.facts)
        self._refuse_default(branch)
        there = git.remote_commit(branch)
        if there is None:
            return Done(status="gone", detail="it is not there")
        # Without a record of a push it was cut off: then only what is here too can have come from here.
        ours = self._pushed(branch) or {self._head(branch)}
        if there not in ours:
            raise NotOurs(f"it is at {there[:12]}, which adw did not push: delete it by hand")

        return _said(git.delete_remote_branch(branch, expected=there))

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
        found = next((step.facts.get(fact) for step in steps if step.kind == "salvage"), None)

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
