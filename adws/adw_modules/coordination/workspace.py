"""
The place a workflow works in: its quota, its worktree and branch, its ports, and the commit after each phase.

Everything outside goes through the ledger: meant first, looked for, then made. What only work at hand may hold, ports
and a place in the quotas, is given back whenever the work rests. The main checkout is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effect_rules, moving_rules, salvage, work_names
from adws.adw_modules.coordination import ref_watch
from adws.adw_modules.coordination.agent_config import AgentConfig
from adws.adw_modules.coordination.held_ports import HeldPorts, held_by
from adws.adw_modules.coordination.left_behind import LeftBehind
from adws.adw_modules.coordination.publishing import Publisher
from adws.adw_modules.coordination.ref_watch import RefWatch
from adws.adw_modules.coordination.strays import Keep, Strays, keep_patch
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.errors import GitError, NotOurs, WorkElsewhere
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.interfaces_resources import (
    OPEN_OUTCOMES,
    Effect,
    GitRepository,
    GitWorkplace,
    PortPair,
    Ports,
    Quotas,
    Worktree,
)
from adws.adw_modules.moving_rules import WORKTREE
from adws.adw_modules.outcome import RunReport
from adws.adw_modules.resources.git_names import branch_name
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkspaceParts:
    """What a place to work in is made of."""

    host: str  #: this machine, as the ledger names it
    git: GitRepository | None = None  #: None: work is done in place
    workplace: GitWorkplace | None = None
    ports: Ports | None = None
    quotas: Quotas | None = None
    trees_dir: Path = Path("trees")
    remote: str = "origin"
    #: Puts into a new worktree what git does not have, and runs what sets it up.
    fill: Callable[[WorkSession, Path], None] = lambda _session, _path: None
    write_ports: Callable[[Path, PortPair], object] = lambda _path, _pair: None  #: tells a worktree its ports
    keep_patch: Keep = keep_patch  #: keeps what is taken out of a worktree
    is_shared: bool = False  #: other machines work on the same workflows
    publisher: Publisher | None = None  #: None: nothing leaves this machine before it is shipped
    left_behind: LeftBehind | None = None  #: takes away what workflows left here that moved


class Workspace:
    """Makes, checks, secures and gives back the place of a workflow."""

    def __init__(self, parts: WorkspaceParts) -> None:
        self._parts = parts
        self._ports = HeldPorts(parts.ports, host=parts.host)
        self._watch = RefWatch(parts.git, remote=parts.remote, host=parts.host) if parts.git is not None else None
        self._agent_config = _agent_config(parts)

    def ledger(self, session: WorkSession) -> Ledger:
        """Return the ledger of the workflow that *session* works on."""
        return Ledger(session, host=self._parts.host)

    # --- before ------------------------------------------------------------------------------------------------

    def admit(self, session: WorkSession) -> None:
        """Take a place in the quotas before the first attempt of a run; raise QuotaExceeded or WorkElsewhere."""
        document = session.document
        if WorkflowState(document.current_state) not in ACTIVE_STATES:
            return
        only = moving_rules.bound_to(document, host=self._parts.host) if self._parts.is_shared else ""
        if only:
            raise WorkElsewhere(document.adw_id, only)
        if self._parts.quotas is None:
            return
        self._parts.quotas.admit(document.adw_id, spent=document.cost.total_usd, cap=document.max_cost_usd)

    def prepare(self, session: WorkSession) -> None:
        """Have worktree and ports ready for an attempt; what it raises is a failed attempt."""
        git, watch = self._parts.git, self._watch
        if git is None or watch is None or session.document.current_state == WorkflowState.CLEANING.value:
            return
        self._ports.take(session)
        self._stand(git, session)
        self._put_strays_back(session)
        if self._agent_config is not None:
            self._agent_config.put_in_place(session)
        watch.begin(session, session.running()[0].name)

    @contextmanager
    def around(self, document: WorkflowDocument) -> Iterator[Mapping[str, str]]:
        """Hand the ports over to the processes of a phase inside the block; yields the variables that name them."""
        with self._ports.handed_over(document) as env:
            yield env

    # --- the worktree ------------------------------------------------------------------------------------------

    def _stand(self, git: GitRepository, session: WorkSession) -> None:
        self._come_here(session)
        ledger = self.ledger(session)
        if ledger.facts(WORKTREE) is not None and not self._is_there(git, session.document):
            ledger.undone(WORKTREE, "gone")
        facts = ledger.facts(WORKTREE) or self._make(git, session, ledger)
        if not facts.get("is_filled"):
            self._parts.fill(session, Path(str(facts["path"])))
            ledger.note(WORKTREE, {"is_filled": True})
        pair = held_by(session.document, host=self._parts.host)
        if pair is not None:
            self._parts.write_ports(Path(str(facts["path"])), pair)

    def _come_here(self, session: WorkSession) -> None:
        """Leave what is on another machine to that one, and take away what an earlier stay left on this one."""
        if not self._parts.is_shared:
            return
        if self._parts.left_behind is not None:
            self._parts.left_behind.tidy(session)
        former = moving_rules.host_of_work(session.document)
        if former in {"", self._parts.host}:
            return
        session.change(lambda draft: moving_rules.move(draft, here=self._parts.host))
        _, context = session.running()
        context.say(f"the work moves from {former} to {self._parts.host}: what was not committed there stays there")

    def _make(self, git: GitRepository, session: WorkSession, ledger: Ledger) -> JsonObject:
        document = session.document
        path = (self._parts.trees_dir / document.adw_id).resolve()
        branch = document.branch_name or _branch_of(document)
        reason = work_names.lock_reason(document.adw_id)
        meant = self._branch_facts(git, document, branch)
        undo: JsonObject = {"path": str(path), "branch": branch, "reason": reason}

        def act() -> JsonObject:
            start = self._start(git, document, meant, branch)
            made = git.add_worktree(path, branch=branch, start=start, reason=reason)
            return {"sha": made.head}

        return ledger.make(
            WORKTREE,
            "worktree",
            undo=undo,
            find=lambda: self._find(git, path, branch, reason),
            act=act,
            fields=lambda _facts: {"worktree_path": str(path), "branch_name": branch},
            also=[Effect(key=f"branch:{branch}", kind="branch", undo=meant)],
        )

    def _branch_facts(self, git: GitRepository, document: WorkflowDocument, branch: str) -> JsonObject:
        """
        Return what the branch starts from: as it was meant before, else the default branch as it is now.

        Only new work needs the remote: what goes on stands on its own branch, whatever the network does.
        """
        known = effect_rules.effect(document, f"branch:{branch}")
        if known is not None and known.outcome in OPEN_OUTCOMES:
            is_made = known.outcome in effect_rules.MADE
            return {name: fact for name, fact in known.undo.items() if not is_made or name != "is_fetched"}
        left = moving_rules.branch_of_work(document)
        if left is not None and self._parts.publisher is not None and moving_rules.has_commits(left):
            facts = {name: left.undo.get(name) for name in ("base", "start")}
            return {"branch": branch, **facts, "sha": self._parts.publisher.fetch(document), "is_fetched": True}
        own = git.commit_of(f"refs/heads/{branch}") if document.branch_name else None
        if own is not None:  # an older tool made it: where it began is not known
            return {"branch": branch, "base": git.default_branch(), "start": "", "sha": own}
        base, start = git.fetch_default()

        return {"branch": branch, "base": base, "start": start, "sha": start}

    def _start(self, git: GitRepository, document: WorkflowDocument, meant: JsonObject, branch: str) -> str:
        """Return the commit to stand on: the branch's own when it is there, else the last one that is known."""
        if meant.get("is_fetched"):
            # A branch of that name here is of an earlier workflow that this one goes on with, and behind.
            old = git.commit_of(f"refs/heads/{branch}")
            if old not in {None, meant["sha"]}:
                salvage.keep_commits(git, document.adw_id, str(old))
                git.delete_branch(branch, expected=str(old))
            return str(meant["sha"])
        start = git.commit_of(f"refs/heads/{branch}") or git.commit_of(str(meant["sha"]))
        if start is None:
            raise GitError(
                f"branch {branch} and its last commit {str(meant['sha'])[:12]} are gone: "
                "bring the branch back, or give the workflow up with adw abandon"
            )

        return start

    def _find(self, git: GitRepository, path: Path, branch: str, reason: str) -> JsonObject | None:
        """Return the worktree that a crash kept from being written down; one that is only half there is removed."""
        found = _entry(git, path)
        if found is not None and _is_whole(found, branch, reason) and self._is_clean(path):
            return {"sha": found.head}
        # Nothing ran in what is half there: no work is lost. What is somebody else's raises.
        git.remove_worktree(path, reason=reason)

        return None

    def _is_clean(self, path: Path) -> bool:
        try:
            return self._parts.workplace is not None and not self._parts.workplace.status(path)
        except GitError:
            return False  # git was stopped before it was a worktree

    def _is_there(self, git: GitRepository, document: WorkflowDocument) -> bool:
        """Say whether the worktree is there as it was recorded; raise when it is something else now."""
        path, adw_id = Path(document.worktree_path or ""), document.adw_id
        found = _entry(git, path)
        if found is None:
            return False
        if found.lock_reason != work_names.lock_reason(adw_id):
            raise NotOurs(f"the worktree {path} belongs to {found.lock_reason or 'nobody'}, not to {adw_id}")
        if found.is_prunable:
            git.remove_worktree(path, reason=found.lock_reason)
            return False
        self._check_branch(git, document, found)

        return True

    def _check_branch(self, git: GitRepository, document: WorkflowDocument, found: Worktree) -> None:
        if found.branch != document.branch_name:
            raise NotOurs(
                f"the worktree {found.path} is on {found.branch or 'no branch'}, not on {document.branch_name}: "
                f"git -C {found.path} switch {document.branch_name}, then: adw retry ID"
            )
        known = effect_rules.effect(document, f"branch:{document.branch_name}")
        head = str(known.undo.get("sha") or "") if known else ""
        if head and git.commit_of(head) is None:
            raise GitError(
                f"commit {head[:12]} of branch {document.branch_name} is gone: bring it back, or start again"
            )

    # --- after -------------------------------------------------------------------------------------------------

    def conclude(self, session: WorkSession, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> RunReport:
        """Commit what a phase did, and record the refs that appeared; raise PathsNotAllowed for what it may not do."""
        git, workplace, document, watch = self._parts.git, self._parts.workplace, session.document, self._watch
        if git is None or workplace is None or watch is None or self.ledger(session).facts(WORKTREE) is None:
            return report
        if not self._is_there(git, document):
            raise GitError(f"the worktree of {document.adw_id} was removed while {phase.name} worked in it")
        path, key = Path(document.worktree_path or ""), f"branch:{document.branch_name}"
        head = self._head(session)
        if self._agent_config is not None:
            self._agent_config.put_back(document, phase)
        Strays(workplace, keep=self._parts.keep_patch).refuse(path, head, phase, context)
        commit = workplace.commit_all(path, work_names.commit_message(document, phase.name))
        now = git.commit_of(f"refs/heads/{document.branch_name}") or head
        # Before it is written down: what the document has is on the remote, or said to be here only.
        self._publish(session, path, now, context)
        appeared = watch.appeared(document)
        if now != head or appeared:
            session.change(lambda draft: _secured(draft, key, now, commit, appeared))
        watch.forget(document.adw_id)

        return report

    def _publish(self, session: WorkSession, path: Path, head: str, context: PhaseContext) -> None:
        branch = moving_rules.branch_of_work(session.document)
        if self._parts.publisher is None or branch is None or head == branch.undo.get("start"):
            return
        why = self._parts.publisher.publish(session, path, head)
        if why:
            data: JsonObject = {"host": self._parts.host, "head": head, "why": why}
            session.change(lambda draft: draft.tell("work_not_published", data=data))
            context.say(f"only {self._parts.host} can go on with this work: {why}")

    def _head(self, session: WorkSession) -> str:
        """Return the commit that the phase began from: the last one that was written down."""
        return str((self.ledger(session).facts(f"branch:{session.document.branch_name}") or {}).get("sha") or "HEAD")

    def _put_strays_back(self, session: WorkSession) -> None:
        """Put back what an attempt left that failed or was cut off before anybody looked at its files."""
        phase, context = session.running()
        workplace, path = self._parts.workplace, Path(session.document.worktree_path or "")
        if workplace is None or context.attempt_number == 1:
            return
        head, strays = self._head(session), Strays(workplace, keep=self._parts.keep_patch)
        names = strays.found(path, head, phase)
        if names:
            done = strays.put_back(path, head, names, context)
            context.say(f"an earlier attempt changed files outside allowed_paths: {', '.join(names)}; {done}")

    def observe(self, session: WorkSession) -> None:
        """Record the refs that an attempt made which failed or was cut off."""
        is_here = moving_rules.host_of_work(session.document) in {"", self._parts.host}
        if self._watch is not None and self.ledger(session).facts(WORKTREE) is not None and is_here:
            self._watch.settle(session)

    def release(self, session: WorkSession) -> None:
        """Give back what only work at hand may hold: ports, the place in the quotas, and in the end the ref."""
        self.observe(session)
        self._ports.free(session)
        is_over = session.document.current_state == WorkflowState.COMPLETED.value
        if self._parts.publisher is not None and is_over:
            self._parts.publisher.withdraw(session)
        if self._parts.quotas is not None:
            self._parts.quotas.release(session.document.adw_id)


def _agent_config(parts: WorkspaceParts) -> AgentConfig | None:
    if parts.git is None or parts.workplace is None:
        return None

    return AgentConfig(parts.git, parts.workplace, remote=parts.remote)


def _branch_of(document: WorkflowDocument) -> str:
    return branch_name(
        document.adw_id,
        issue_number=document.issue_number,
        title=document.issue.title if document.issue else "",
        issue_class=work_names.issue_class(document),
    )


def _entry(git: GitRepository, path: Path) -> Worktree | None:
    wanted = path.resolve()

    return next((found for found in git.worktrees() if found.path.resolve() == wanted), None)


def _is_whole(found: Worktree, branch: str, reason: str) -> bool:
    return (found.branch, found.lock_reason) == (branch, reason) and not found.is_prunable


def _secured(draft: Draft, key: str, head: str, commit: str | None, appeared: tuple[Effect, ...]) -> None:
    effect_rules.note(draft, key, {"sha": head})
    draft.tell("work_committed", data={"head": head, "commit": commit})
    ref_watch.observe(draft, appeared)
