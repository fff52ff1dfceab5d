"""
The workspace of a workflow: its quota, its worktree and branch, its ports, and the commit after each phase.

Everything outside goes through the ledger: intended first, looked up, then made. Ports and the quota reservation are
released whenever the work rests. The main checkout is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.effects import OPEN_OUTCOMES, WORKTREE, Effect, Ledger
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    GitError,
    NotOurs,
    OwnershipError,
    PortsExhausted,
    StateError,
    WorkElsewhere,
)
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git import repository
from adws.adw_modules.git.git import branch_name
from adws.adw_modules.phase import PhaseContext, RunReport
from adws.adw_modules.resources.model import PortPair, Worktree
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.workflow.model import Gate, PhaseSpec
from adws.adw_modules.workspace import change_audit
from adws.adw_modules.workspace.change_audit import AgentConfig, DisallowedChanges, RefWatch

if TYPE_CHECKING:
    from adws.adw_modules.document import Draft, WorkflowDocument
    from adws.adw_modules.git.repository import Repository
    from adws.adw_modules.git.worktree import GitWorkplace
    from adws.adw_modules.identifiers import JsonObject
    from adws.adw_modules.resources.ports import Ports
    from adws.app import Home


# The ports of a workflow while it is worked on: reserved through the ledger, handed over to its processes, given back.
#
# Which ports they are is known only after they are reserved: what is meant first is "ports of this workflow", which is
# enough to find and free them.


#: The ledger's key until the numbers are known.
PORTS = "ports"


class HeldPorts:
    """Takes the ports of workflows and gives them back."""

    def __init__(self, ports: Ports | None, *, host: str) -> None:
        """Without *ports* a workflow has none."""
        self._ports = ports
        self._host = host

    def take(self, session: WorkSession) -> None:
        """Reserve, bind and hold a pair, the one it had when that is free; raise PortsExhausted."""
        if self._ports is None:
            return
        adw_id, held = session.document.adw_id, held_by(session.document, host=self._host)
        if held is None:
            meant = Effect(key=PORTS, kind="port", host=self._host, undo={"adw_id": adw_id})
            session.change(lambda draft: effects.intend(draft, meant))
        try:
            # Also when the ledger has them: the sockets of a process that is gone are not held any more.
            pair = self._ports.take(adw_id, preferred=held or _last(session.document))
        except PortsExhausted as exc:
            why = str(exc)
            session.change(lambda draft: effects.settle(draft, PORTS, "failed", {"error": why}))
            raise
        if pair != held:
            session.change(partial(_taken, pair, self._host))

    @contextmanager
    def handed_over(self, document: WorkflowDocument) -> Iterator[Mapping[str, str]]:
        """Let a process bind the ports inside the block; yields the variables that name them."""
        pair = held_by(document)
        if self._ports is None or pair is None:
            yield {}
            return
        with self._ports.handed_over(document.adw_id):
            yield variables(pair)

    def free(self, session: WorkSession) -> None:
        """Give the ports back, if the workflow has any."""
        is_open = any(item.kind == "port" for item in effects.open_effects(session.document))
        if self._ports is None or not is_open:
            return
        self._ports.free(session.document.adw_id)
        session.change(_freed)


def variables(pair: PortPair) -> Mapping[str, str]:
    """Return the environment variables that tell a process its ports."""
    backend, frontend = str(pair.backend), str(pair.frontend)

    return {"ADW_BACKEND_PORT": backend, "ADW_FRONTEND_PORT": frontend, "PORT": backend}


def held_by(document: WorkflowDocument, *, host: str = "") -> PortPair | None:
    """Return the ports that the ledger says a workflow holds; with *host* those of that machine alone."""
    return _pair(
        item
        for item in effects.effects(document)
        if item.outcome in effects.MADE and (not host or item.host in {"", host})
    )


def _last(document: WorkflowDocument) -> PortPair | None:
    """Return the ports that a workflow had last."""
    return _pair(item for item in effects.effects(document) if item.outcome == "undone")


def _pair(found: Iterable[Effect]) -> PortPair | None:
    numbers = {str(one.undo.get("purpose")): one.undo.get("port") for one in found if one.kind == "port"}
    backend, frontend = numbers.get("backend"), numbers.get("frontend")
    if not isinstance(backend, int) or not isinstance(frontend, int):
        return None

    return PortPair(backend=backend, frontend=frontend)


def _taken(pair: PortPair, host: str, draft: Draft) -> None:
    """Write down which ports they are; what the ledger had before is not ours any more."""
    for item in effects.open_effects(draft.document):
        if item.kind == "port" and item.key != PORTS:
            effects.settle(draft, item.key, "gone")
    numbers = {"backend": pair.backend, "frontend": pair.frontend}
    made = [
        Effect(key=f"port:{port}", kind="port", outcome="made", host=host, undo={"port": port, "purpose": purpose})
        for purpose, port in numbers.items()
    ]
    effects.become(draft, PORTS, *made)
    draft.document.assign(backend_port=pair.backend, frontend_port=pair.frontend)


def _freed(draft: Draft) -> None:
    for item in effects.open_effects(draft.document):
        if item.kind == "port":
            effects.settle(draft, item.key, "undone")
    draft.document.assign(backend_port=None, frontend_port=None)


#: The patch of what was not committed in a worktree that was removed, in the workflow's directory.
RELEASED_PATCH = "released-worktree.patch"


class Workspace:
    """Makes, checks, secures and gives back the place of a workflow."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._host = home.host
        #: Both are None where work is done in place.
        self._git: Repository | None = home.git if home.has_worktrees else None
        self._workplace: GitWorkplace | None = home.workplace if home.has_worktrees else None
        #: Whether other machines work on the same workflows.
        self._is_shared = home.has_worktrees and home.settings.is_shared
        self._ports = HeldPorts(home.ports if home.has_worktrees else None, host=home.host)
        self._watch: RefWatch | None = None
        self._agent_config: AgentConfig | None = None
        if self._git is not None and self._workplace is not None:
            remote = home.settings.git_remote
            self._watch = RefWatch(self._git, remote=remote, host=home.host)
            self._agent_config = AgentConfig(self._git, self._workplace, remote=remote)

    def workplace_of(self, document: WorkflowDocument) -> Path:
        """Return where the phases of a workflow work: what the home is in the repository, in the worktree."""
        home = self._home.settings.home
        if not document.worktree_path:
            return home
        if self._git is None or not home.is_relative_to(self._git.root):
            return Path(document.worktree_path)

        return Path(document.worktree_path) / home.relative_to(self._git.root)

    def ledger(self, session: WorkSession) -> Ledger:
        """Return the ledger of the workflow that *session* works on."""
        return Ledger(session, host=self._host)

    # --- before ------------------------------------------------------------------------------------------------

    def admit(self, session: WorkSession) -> None:
        """Take a place in the quotas before the first attempt of a run; raise QuotaExceeded or WorkElsewhere."""
        document = session.document
        if WorkflowState(document.current_state) not in ACTIVE_STATES:
            return
        only = effects.bound_to(document, host=self._host) if self._is_shared else ""
        if only:
            raise WorkElsewhere(document.adw_id, only)
        self._home.quotas.admit(document.adw_id, spent=document.cost.total_usd, cap=document.max_cost_usd)

    def prepare(self, session: WorkSession) -> None:
        """Have worktree and ports ready for an attempt; what it raises is a failed attempt."""
        git, watch = self._git, self._watch
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
        """Release the ports to the processes of a phase inside the block; yields the variables that name them."""
        with self._ports.handed_over(document) as env:
            yield env

    # --- the worktree ------------------------------------------------------------------------------------------

    def _stand(self, git: Repository, session: WorkSession) -> None:
        self._come_here(session)
        ledger = self.ledger(session)
        if ledger.facts(WORKTREE) is not None and not self._is_there(git, session.document):
            ledger.undone(WORKTREE, "gone")
        facts = ledger.facts(WORKTREE) or self._make(git, session, ledger)
        if not facts.get("is_filled"):
            self._fill(session, Path(str(facts["path"])))
            ledger.note(WORKTREE, {"is_filled": True})
        pair = held_by(session.document, host=self._host)
        if pair is not None:
            self._home.worktrees.write_ports(Path(str(facts["path"])), pair)

    def _fill(self, session: WorkSession, path: Path) -> None:
        """Put into a new worktree what git does not have, and run the commands that set it up."""
        phase, context = session.running()

        def run(command: Sequence[str], number: int) -> str:
            """Run a set-up command as a process of the attempt; return why it failed, "" when it did not."""
            gate = Gate(kind="command", command=tuple(command))
            end = self._home.commands.run_beside(phase, gate, replace(context, cwd=path), f"setup-{number}")
            if end.exit_code == 0 and end.timed_out is None and not end.ordered:
                return ""
            return f"it ended with exit code {end.exit_code}; adw logs {context.document.adw_id} has its output"

        _, notices = self._home.worktrees.fill(path, ports=held_by(session.document), run=run)
        for notice in notices:
            context.say(notice)

    def _come_here(self, session: WorkSession) -> None:
        """Leave what is on another machine to that one, and take away what an earlier stay left on this one."""
        if not self._is_shared:
            return
        left_behind = self._home.left_behind
        if left_behind is not None:
            left_behind.tidy(session)
        former = effects.host_of_work(session.document)
        if former in {"", self._host}:
            return
        session.change(lambda draft: effects.move(draft, here=self._host))
        _, context = session.running()
        context.say(f"the work moves from {former} to {self._host}: what was not committed there stays there")

    def _make(self, git: Repository, session: WorkSession, ledger: Ledger) -> JsonObject:
        document = session.document
        path = (self._home.settings.trees_dir / document.adw_id).resolve()
        branch = document.branch_name or _branch_of(document)
        reason = git_module.lock_reason(document.adw_id)
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

    def _branch_facts(self, git: Repository, document: WorkflowDocument, branch: str) -> JsonObject:
        """
        Return what the branch starts from: as it was meant before, else the default branch as it is now.

        Only new work needs the remote: what goes on stands on its own branch, whatever the network does.
        """
        known = effects.effect(document, f"branch:{branch}")
        if known is not None and known.outcome in OPEN_OUTCOMES:
            is_made = known.outcome in effects.MADE
            return {name: fact for name, fact in known.undo.items() if not is_made or name != "is_fetched"}
        left = effects.branch_of_work(document)
        publisher = self._home.publisher
        if left is not None and publisher is not None and effects.has_commits(left):
            facts = {name: left.undo.get(name) for name in ("base", "start")}
            return {"branch": branch, **facts, "sha": publisher.fetch(document), "is_fetched": True}
        own = git.commit_of(f"refs/heads/{branch}") if document.branch_name else None
        if own is not None:  # an older tool made it: where it began is not known
            return {"branch": branch, "base": git.default_branch(), "start": "", "sha": own}
        base, start = git.fetch_default()

        return {"branch": branch, "base": base, "start": start, "sha": start}

    def _start(self, git: Repository, document: WorkflowDocument, meant: JsonObject, branch: str) -> str:
        """Return the commit to stand on: the branch's own when it is there, else the last one that is known."""
        if meant.get("is_fetched"):
            # A branch of that name here is of an earlier workflow that this one goes on with, and behind.
            old = git.commit_of(f"refs/heads/{branch}")
            if old not in {None, meant["sha"]}:
                repository.keep_commits(git, document.adw_id, str(old))
                git.delete_branch(branch, expected=str(old))
            return str(meant["sha"])
        start = git.commit_of(f"refs/heads/{branch}") or git.commit_of(str(meant["sha"]))
        if start is None:
            raise GitError(
                f"branch {branch} and its last commit {str(meant['sha'])[:12]} are gone: "
                "bring the branch back, or give the workflow up with adw abandon"
            )

        return start

    def _find(self, git: Repository, path: Path, branch: str, reason: str) -> JsonObject | None:
        """Return the worktree that a crash kept from being written down; one that is only half there is removed."""
        result = _entry(git, path)
        if result is not None and _is_whole(result, branch, reason) and self._is_clean(path):
            return {"sha": result.head}
        # Nothing ran in what is half there: no work is lost. What is somebody else's raises.
        git.remove_worktree(path, reason=reason)

        return None

    def _is_clean(self, path: Path) -> bool:
        try:
            return self._workplace is not None and not self._workplace.status(path)
        except GitError:
            return False  # git was stopped before it was a worktree

    def _is_there(self, git: Repository, document: WorkflowDocument) -> bool:
        """Say whether the worktree is there as it was recorded; raise when it is something else now."""
        path, adw_id = Path(document.worktree_path or ""), document.adw_id
        result = _entry(git, path)
        if result is None:
            return False
        if result.lock_reason != git_module.lock_reason(adw_id):
            raise NotOurs(f"the worktree {path} belongs to {result.lock_reason or 'nobody'}, not to {adw_id}")
        if result.is_prunable:
            git.remove_worktree(path, reason=result.lock_reason)
            return False
        self._check_branch(git, document, result)

        return True

    def _check_branch(self, git: Repository, document: WorkflowDocument, found: Worktree) -> None:
        if found.branch != document.branch_name:
            raise NotOurs(
                f"the worktree {found.path} is on {found.branch or 'no branch'}, not on {document.branch_name}: "
                f"git -C {found.path} switch {document.branch_name}, then: adw retry ID"
            )
        known = effects.effect(document, f"branch:{document.branch_name}")
        head = str(known.undo.get("sha") or "") if known else ""
        if head and git.commit_of(head) is None:
            raise GitError(
                f"commit {head[:12]} of branch {document.branch_name} is gone: bring it back, or start again"
            )

    # --- after -------------------------------------------------------------------------------------------------

    def conclude(self, session: WorkSession, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> RunReport:
        """Commit what a phase did, and record the refs that appeared; raise PathsNotAllowed for what it may not do."""
        git, workplace, document, watch = self._git, self._workplace, session.document, self._watch
        if git is None or workplace is None or watch is None or self.ledger(session).facts(WORKTREE) is None:
            return report
        if not self._is_there(git, document):
            raise GitError(f"the worktree of {document.adw_id} was removed while {phase.name} worked in it")
        path, key = Path(document.worktree_path or ""), f"branch:{document.branch_name}"
        head = self._head(session)
        if self._agent_config is not None:
            self._agent_config.put_back(document, phase)
        DisallowedChanges(workplace).refuse(path, head, phase, context)
        commit = workplace.commit_all(path, git_module.commit_message(document, phase.name))
        now = git.commit_of(f"refs/heads/{document.branch_name}") or head
        # Before it is written down: what the document has is on the remote, or said to be here only.
        self._publish(session, path, now, context)
        appeared = watch.appeared(document)
        if now != head or appeared:
            session.change(lambda draft: _secured(draft, key, now, commit, appeared))
        watch.forget(document.adw_id)

        return report

    def _publish(self, session: WorkSession, path: Path, head: str, context: PhaseContext) -> None:
        branch = effects.branch_of_work(session.document)
        publisher = self._home.publisher
        if publisher is None or branch is None or head == branch.undo.get("start"):
            return
        why = publisher.publish(session, path, head)
        if why:
            data: JsonObject = {"host": self._host, "head": head, "why": why}
            session.change(lambda draft: draft.add_event("work_not_published", data=data))
            context.say(f"only {self._host} can go on with this work: {why}")

    def _head(self, session: WorkSession) -> str:
        """Return the commit that the phase began from: the last one that was written down."""
        return str((self.ledger(session).facts(f"branch:{session.document.branch_name}") or {}).get("sha") or "HEAD")

    def _put_strays_back(self, session: WorkSession) -> None:
        """Put back what an attempt left that failed or was cut off before anybody looked at its files."""
        phase, context = session.running()
        workplace, path = self._workplace, Path(session.document.worktree_path or "")
        if workplace is None or context.attempt_number == 1:
            return
        head, disallowed_changes = self._head(session), DisallowedChanges(workplace)
        names = disallowed_changes.found(path, head, phase)
        if names:
            done = disallowed_changes.put_back(path, head, names, context)
            context.say(f"an earlier attempt changed files outside allowed_paths: {', '.join(names)}; {done}")

    def observe(self, session: WorkSession) -> None:
        """Record the refs that an attempt made which failed or was cut off."""
        is_here = effects.host_of_work(session.document) in {"", self._host}
        if self._watch is not None and self.ledger(session).facts(WORKTREE) is not None and is_here:
            self._watch.settle(session)

    def release(self, session: WorkSession) -> None:
        """Release ports and the quota reservation, and in the end the ref."""
        self.observe(session)
        self._ports.free(session)
        is_over = session.document.current_state == WorkflowState.COMPLETED.value
        publisher = self._home.publisher
        if publisher is not None and is_over:
            publisher.withdraw(session)
        if is_over and self._home.settings.worktree_release:
            self._release_worktree(session)
        self._home.quotas.release(session.document.adw_id)

    def _release_worktree(self, session: WorkSession) -> None:
        """
        Remove the worktree of a completed workflow whose branch is pushed; the branch stays.

        May be repeated: a crash before the removal is recorded leaves a run that recovery ends, and with it this. What
        is not committed is kept as a patch first. Trouble is noted as an event, and the worktree stays.
        """
        document, git, workplace = session.document, self._git, self._workplace
        made = effects.effect(document, WORKTREE)
        if git is None or workplace is None or made is None or made.outcome not in effects.MADE:
            return
        if made.host not in {None, "", self._host} or not effects.is_pushed(document):
            return
        path, kept = Path(str(made.undo["path"])), ""
        try:
            payload = workplace.patch_of_changes(path) if self._is_there(git, document) else b""
            if payload:
                kept = str(repository.write_patch(self._home.folder_of(document.adw_id), RELEASED_PATCH, payload))
            was_there = git.remove_worktree(path, reason=str(made.undo["reason"]))
        except (OwnershipError, StateError, DatabaseError):
            raise
        except (AdwError, OSError) as exc:
            why: JsonObject = {"path": str(path), "why": str(exc)}
            session.change(lambda draft: draft.add_event("worktree_kept", data=why))
            return

        def released(draft: Draft) -> None:
            effects.settle(draft, WORKTREE, "undone" if was_there else "gone")
            draft.document.assign(worktree_path=None)
            draft.add_event("worktree_released", data={"path": str(path), "uncommitted": kept})

        session.change(released)


def _branch_of(document: WorkflowDocument) -> str:
    return branch_name(
        document.adw_id,
        issue_number=document.issue_number,
        title=document.issue.title if document.issue else "",
        issue_class=git_module.issue_class(document),
    )


def _entry(git: Repository, path: Path) -> Worktree | None:
    wanted = path.resolve()

    return next((item for item in git.worktrees() if item.path.resolve() == wanted), None)


def _is_whole(found: Worktree, branch: str, reason: str) -> bool:
    return (found.branch, found.lock_reason) == (branch, reason) and not found.is_prunable


def _secured(draft: Draft, key: str, head: str, commit: str | None, appeared: tuple[Effect, ...]) -> None:
    effects.note(draft, key, {"sha": head})
    draft.add_event("work_committed", data={"head": head, "commit": commit})
    change_audit.observe(draft, appeared)
