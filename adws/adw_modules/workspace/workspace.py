"""
The workspace of a workflow: its quota, its worktree and branch, its ports, and the commit after each phase.

Everything outside goes through the ledger: intended first, looked up, then made. Ports and the quota reservation are
released whenever the work rests. The main checkout is never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules import effects, timestamps
from adws.adw_modules.effects import OPEN_OUTCOMES, WORKTREE, Effect, Ledger
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.transitions import WAITING
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
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
from adws.adw_modules.git.repository import Worktree
from adws.adw_modules.phase import PhaseContext, RunReport
from adws.adw_modules.resources.ports import PortPair
from adws.adw_modules.resources.quotas import size_of
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.workflow.model import Gate, PhaseSpec
from adws.adw_modules.workspace import change_audit, power_loss
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


#: Names of discarded files that an event has.
MAX_NAMES = 50
#: The attempt's file that has what an interrupted one left in the worktree beside its work.
DISCARDED = "discarded.patch"

#: The ledger's key until the numbers are known.
PORTS = "ports"
#: Files that the event of a restored worktree names; the ref has all of them.
MAX_NAMED = 100


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


logger = logging.getLogger("adw.workspace")

#: The patch of what was not committed in a worktree that was removed, in the workflow's directory.
RELEASED_PATCH = "released-worktree.patch"
#: What processes are told of their ports where there are none.
_NO_VARIABLES: AbstractContextManager[Mapping[str, str]] = nullcontext(MappingProxyType({}))
#: Most seconds that a worktree is measured between two phases; what takes longer is left to cron.
MEASURE_SECONDS = 10.0


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

    def renewed_rules(self, document: WorkflowDocument) -> tuple[str, ...]:
        """Return the files of the worktree that adw put there from the base branch for the attempt that runs."""
        return () if self._agent_config is None else self._agent_config.renewed(document)

    def workplace_of(self, document: WorkflowDocument) -> Path:
        """Return where the phases of a workflow work: what the home is in the repository, in the worktree."""
        home = self._home.settings.home
        if not document.worktree_path:
            return home
        if self._git is None or not home.is_relative_to(self._git.root):
            return Path(document.worktree_path)

        return Path(document.worktree_path) / home.relative_to(self._git.root)

    # --- before ------------------------------------------------------------------------------------------------

    def admit(self, session: WorkSession, *, has_quota: bool = False) -> None:
        """
        Take a place in the quotas before the first attempt of a run, unless the claim of the run took one.

        Raises QuotaExceeded, or WorkElsewhere, and then no place is kept.
        """
        document = session.document
        if WorkflowState(document.current_state) not in ACTIVE_STATES:
            return
        only = effects.bound_to(document, host=self._host) if self._is_shared else ""
        if only:
            if has_quota:
                self._home.quotas.release(document.adw_id)
            raise WorkElsewhere(document.adw_id, only)
        if has_quota:
            return
        self._home.quotas.admit(document.adw_id, spent=document.cost.total_usd, cap=document.max_cost_usd)

    def why_too_large(self, adw_id: str, path: Path) -> str:
        """Return why a workflow has to pause before its next phase, "" while its worktree is below its limit."""
        quotas, clock = self._home.quotas, self._home.clock
        if not quotas.limits.max_worktree_size:
            return ""
        until = clock.monotonic() + MEASURE_SECONDS
        size = size_of(path, may_go_on=lambda: clock.monotonic() < until)
        reason = quotas.too_large({adw_id: size}).get(adw_id, "")
        if not reason and clock.monotonic() >= until:
            facts = {"action": "worktree_not_measured", "workflow": adw_id, "seconds": MEASURE_SECONDS}
            logger.warning("The worktree has too many files to be measured between two phases", extra=facts)

        return reason

    def prepare(self, session: WorkSession) -> None:
        """Have worktree and ports ready for an attempt; what it raises is a failed attempt."""
        git, watch = self._git, self._watch
        if git is None or watch is None or session.document.current_state == WorkflowState.CLEANING.value:
            return
        self._ports.take(session)
        self._remove_stale_locks(git, session)
        self._stand(git, session)
        self._discard_interrupted(git, session)
        self._renew_base(git, session)
        self._put_strays_back(session)
        self._secure_before_check(git, session)
        if self._agent_config is not None:
            self._agent_config.put_in_place(session)
        watch.begin(session, session.running()[0].name)

    def around(self, document: WorkflowDocument) -> AbstractContextManager[Mapping[str, str]]:
        """Release the ports to the processes of a phase inside the block; yields the variables that name them."""
        return _NO_VARIABLES if self._git is None else self._ports.handed_over(document)

    # --- the worktree ------------------------------------------------------------------------------------------

    def _stand(self, git: Repository, session: WorkSession) -> None:
        self._come_here(session)
        ledger = session.ledger
        if ledger.facts(WORKTREE) is not None:
            self._discard_damaged(git, session)
            self._end_rebase(git, session.document)
            if not self._is_there(git, session.document):
                ledger.undone(WORKTREE, "gone")
        facts = ledger.facts(WORKTREE) or self._make(git, session, ledger)
        self._restore_after_restart(git, session)
        if not facts.get("is_filled"):
            self._fill(session, Path(str(facts["path"])))
            self._sync(git, Path(str(facts["path"])))
            ledger.note(WORKTREE, {"is_filled": True})
        pair = held_by(session.document, host=self._host)
        if pair is not None:
            self._home.workplace.write_ports(Path(str(facts["path"])), pair)

    def _remove_stale_locks(self, git: Repository, session: WorkSession) -> None:
        """Remove the locks of the workflow's own worktree and branch that were there before this attempt began."""
        document = session.document
        if not document.worktree_path or not document.branch_name:
            return
        phase, context = session.running()
        record = next(record for record in document.phases if record.name == phase.name)
        began = timestamps.parse(record.attempts[-1].started_at).timestamp()
        locks = git.remove_stale_locks(Path(document.worktree_path), document.branch_name, before=began)
        if locks:
            data: JsonObject = {"locks": list(locks)}
            session.change(lambda draft: draft.add_event("stale_locks_removed", data=data))
            context.say(f"removed locks that a dead git left: {', '.join(locks)}")

    def _discard_damaged(self, git: Repository, session: WorkSession) -> None:
        """
        Remove a worktree that git does not know any more or that is damaged, so that it is made again.

        Its files are kept first. The branch is what it was when the last phase was recorded, with what came after it.
        """
        document, ledger = session.document, session.ledger
        facts, adw_id = ledger.facts(WORKTREE) or {}, document.adw_id
        path, reason = Path(str(facts["path"])), str(facts.get("reason") or git_module.lock_reason(adw_id))
        head, recorded = git.commit_of(f"refs/heads/{document.branch_name}"), effects.secured_head(document)
        why = git.why_damaged(path, reason=reason)
        if not why and head is None and recorded and path.exists():
            why = f"its branch {document.branch_name} is gone or cannot be read"
        if not why or self._workplace is None:
            return
        if recorded and git.commit_of(recorded) is None:
            raise GitError(
                f"the worktree {path} is damaged ({why}), and commit {recorded[:12]} of its branch is gone: "
                f"bring the commit back, or give the workflow up with adw rollback {adw_id} --force"
            )
        base = head or recorded or git.commit_of("HEAD") or ""
        try:
            salvaged = self._workplace.keep_files(adw_id, path, base)
        except (GitError, OSError) as exc:
            raise GitError(
                f"the worktree {path} is damaged ({why}), and its files cannot be kept ({exc}): "
                f"move them away, or remove them with adw rollback {adw_id} --force"
            ) from exc
        is_behind = bool(recorded) and (head is None or not git.is_ancestor(recorded, head))
        if is_behind and head is not None:
            git.keep_commits(adw_id, head)
        data: JsonObject = {
            "path": str(path),
            "why": why,
            "salvaged": salvaged,
            "commit": recorded if is_behind else base,
        }
        session.change(lambda draft: draft.add_event("worktree_damaged", data=data))
        git.remove_worktree(path, reason=reason, is_recorded=True)
        if is_behind:
            git.restore_branch(str(document.branch_name), recorded)
        _, context = session.running()
        kept = f"; its files are kept as {salvaged}" if salvaged else ""
        context.say(f"the worktree {path} is made again, because it was damaged: {why}{kept}")

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

        _, notices = self._home.workplace.fill(path, ports=held_by(session.document), run=run)
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
        if "sha" not in (ledger.facts(f"branch:{branch}") or meant):
            ledger.note(f"branch:{branch}", meant)  # an older tool made it, and recorded its name alone
        undo: JsonObject = {"path": str(path), "branch": branch, "reason": reason}

        def act() -> JsonObject:
            start = self._start(git, document, meant, branch)
            made = git.add_worktree(path, branch=branch, start=start, reason=reason)
            self._sync(git, path)
            return {"sha": made.head, **self._whole(path)}

        return ledger.make(
            WORKTREE,
            "worktree",
            undo=undo,
            find=lambda: self._find(git, document, path, branch, reason),
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
        if known is not None and known.outcome in OPEN_OUTCOMES and "sha" in known.undo:
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
        if known is not None and any(record.status == "complete" for record in document.phases):
            raise ConfigError(
                f"branch {branch}, on which an older tool worked, is not in this repository: "
                f"git fetch {self._home.settings.git_remote} {branch}:{branch} brings it back from the remote, "
                f"else give the workflow up with adw abandon {document.adw_id}"
            )
        base, start = git.fetch_default()

        return {"branch": branch, "base": base, "start": start, "sha": start}

    def _start(self, git: Repository, document: WorkflowDocument, meant: JsonObject, branch: str) -> str:
        """Return the commit to stand on: the branch's own when it is there, else the last one that is known."""
        if meant.get("is_fetched"):
            # A branch of that name here is of an earlier workflow that this one goes on with, and behind.
            old = git.commit_of(f"refs/heads/{branch}")
            if old not in {None, meant["sha"]}:
                git.keep_commits(document.adw_id, str(old))
                git.delete_branch(branch, expected=str(old))
            return str(meant["sha"])
        start = git.commit_of(f"refs/heads/{branch}") or git.commit_of(str(meant["sha"]))
        if start is None:
            raise GitError(
                f"branch {branch} and its last commit {str(meant['sha'])[:12]} are gone: "
                "bring the branch back, or give the workflow up with adw abandon"
            )

        return start

    def _find(
        self, git: Repository, document: WorkflowDocument, path: Path, branch: str, reason: str
    ) -> JsonObject | None:
        """
        Return the worktree that a crash kept from being written down; one that is only half there is removed.

        One that an older tool made is the workflow's own, with what is not committed in it; it was not locked.
        """
        result = _entry(git, path)
        ours = {git.root / effects.path_of(one.undo) for one in effects.effects(document) if one.outcome == "adopted"}
        if result is not None and path in ours and result.branch == branch and result.lock_reason in {"", reason}:
            git.lock_worktree(path, reason=reason)
            self._sync(git, path)
            return {"sha": result.head, **self._whole(path)}
        if result is not None and _is_whole(result, branch, reason) and self._is_clean(path):
            self._sync(git, path)
            return {"sha": result.head, **self._whole(path)}
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

    def _end_rebase(self, git: Repository, document: WorkflowDocument) -> None:
        """Go back to the branch when a kill or a power cut came in the middle of a rebase; git does not switch then."""
        path, branch = Path(document.worktree_path or ""), document.branch_name or ""
        found = _entry(git, path)
        if self._workplace is None or found is None or found.branch or found.is_prunable:
            return
        if found.lock_reason == git_module.lock_reason(document.adw_id) and git.commit_of(f"refs/heads/{branch}"):
            self._workplace.end_rebase(path, branch)

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

    # --- power cuts --------------------------------------------------------------------------------------------

    def sync(self, document: WorkflowDocument) -> None:
        """Make what a phase wrote durable before its result is recorded; raise OSError when that failed."""
        worktree = effects.effect(document, WORKTREE) if self._git is not None else None
        if self._git is not None and worktree is not None and worktree.outcome in effects.MADE:
            self._sync(self._git, Path(document.worktree_path or ""))

    def _sync(self, git: Repository, path: Path) -> None:
        if self._home.is_synced:
            power_loss.sync_file_systems((path, git.common_dir))

    def _whole(self, path: Path) -> JsonObject:
        """Return by what a later attempt sees whether the machine, or the file system, went down in between."""
        return {power_loss.BOOT: self._home.processes.boot_id, power_loss.MOUNT: power_loss.mount_of(path)}

    def _restore_after_restart(self, git: Repository, session: WorkSession) -> None:
        """
        Compare the worktree with the last recorded commit when it may have been cut off, and make it that again.

        What differs is kept first, under a ref that an event names. Commits beyond the recorded one stay only when no
        attempt was cut off: those of one that was may be half of its work.
        """
        document, workplace, ledger = session.document, self._workplace, session.ledger
        path, facts = Path(document.worktree_path or ""), ledger.facts(WORKTREE) or {}
        now, commit = self._whole(path), effects.secured_head(document)
        why = power_loss.why_unclean(document, facts, now)
        if why and commit and workplace is not None:
            head = git.commit_of(f"refs/heads/{document.branch_name}")
            if head is not None and not change_audit.cut_off_phase(document) and git.has_all(commit, head):
                commit = head
            names = workplace.read_again(path, commit)
            if names or head != commit:
                message = f"Files of {document.adw_id} before they were restored to {commit[:12]}: {why}"
                kept = workplace.commit_of_files(path, commit, message)
                ref = git.keep_commits(document.adw_id, kept)
                data: JsonObject = {"ref": ref, "commit": commit, "why": why, "count": len(names)}
                data["files"] = [*names[:MAX_NAMED]]
                session.change(partial(_salvaged, data, session.running()[1]))
            workplace.restore(path, commit)
            self._sync(git, path)
        if any(facts.get(name) != fact for name, fact in now.items()):
            ledger.note(WORKTREE, now)

    # --- after -------------------------------------------------------------------------------------------------

    def conclude(self, session: WorkSession, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> RunReport:
        """
        Commit what a phase did, and record the refs that appeared; raise PathsNotAllowed for what it may not do.

        From here on everything that gates leave in the worktree is to be discarded: that is recorded before they run.
        """
        git, workplace, watch = self._git, self._workplace, self._watch
        if git is None or workplace is None or watch is None or session.ledger.facts(WORKTREE) is None:
            return report
        document = session.document
        if not self._is_there(git, document):
            raise GitError(f"the worktree of {document.adw_id} was removed while {phase.name} worked in it")
        path = Path(document.worktree_path or "")
        head = self._head(session)
        if self._agent_config is not None:
            self._agent_config.put_back(document, phase)
        DisallowedChanges(workplace).refuse(path, head, phase, context)
        commit, now = None, head
        if phase.commits_work:
            commit = workplace.commit_all(path, git_module.commit_message(document, phase.name))
            now = git.commit_of(f"refs/heads/{document.branch_name}") or head
        # Before it is written down: what the document has is on the remote, or said to be here only.
        self._publish(session, path, now, context)
        appeared = watch.appeared(document)
        has_gates = phase.commits_work and any(gate.kind == "command" for gate in phase.gates)
        facts: JsonObject = {"sha": now}
        known = effects.secured_head(document)
        if now != head and known and git.missing_from(document.branch_name or "", (known,)):
            facts |= effects.replaced_commits(document)  # the phase rewrote the history

        def record(draft: Draft) -> None:
            if now != head or appeared:
                _secured(draft, phase.name, facts, commit, appeared)
            if has_gates:
                _mark_leftovers(draft, context.phase, is_left=True)

        if now != head or appeared or has_gates:
            session.change(record)
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
        return str((session.ledger.facts(f"branch:{session.document.branch_name}") or {}).get("sha") or "HEAD")

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

    # --- what gates and checks leave ---------------------------------------------------------------------------

    def discard(self, session: WorkSession, index: int) -> JsonObject | None:
        """
        Discard what the newest attempt of the phase *index* left in the worktree beside its work.

        Returns what that was, for the event; None when there was nothing.
        """
        git = self._git
        if git is None:
            return None
        record = session.document.phases[index]
        if not record.attempts or not record.attempts[-1].leftovers:
            return None
        if session.ledger.facts(WORKTREE) is None or not self._is_there(git, session.document):
            return None

        return self._discard(git, session, {"phase": record.name, "attempt": record.attempts[-1].number})

    def _discard(
        self, git: Repository, session: WorkSession, data: JsonObject, *, keep_in: PhaseContext | None = None
    ) -> JsonObject | None:
        """Put branch and files back to the last recorded commit; commits that are taken back are kept under a ref."""
        workplace, document = self._workplace, session.document
        if workplace is None:
            return None
        path, head = Path(document.worktree_path or ""), self._head(session)
        tip = git.commit_of(f"refs/heads/{document.branch_name}")
        names, has_commits = workplace.status(path), head not in {tip, "HEAD"}
        if not names and not has_commits:
            return None
        data |= {"files": list(names[:MAX_NAMES]), "count": len(names)}
        if has_commits and tip is not None:
            data["commits"] = git.keep_commits(document.adw_id, tip)
        if keep_in is not None:
            data["patch"] = change_audit.keep_patch(keep_in, workplace.patch_of_changes(path), name=DISCARDED)
        workplace.discard(path, head)

        return data

    def _discard_interrupted(self, git: Repository, session: WorkSession) -> None:
        """
        Discard what gates and checks left whose attempt a crash cut off before that could be done.

        Somebody may have changed files since: what is discarded is kept as a patch with the attempt that begins.
        """
        _, context = session.running()
        left = [
            (index, attempt)
            for index, record in enumerate(session.document.phases)
            for attempt in record.attempts
            if attempt.leftovers and attempt.status not in {"running", WAITING}
        ]
        if not left:
            return
        index, attempt = left[-1]
        data: JsonObject = {"phase": session.document.phases[index].name, "attempt": attempt.number}
        discarded = self._discard(git, session, data, keep_in=context)

        def record(draft: Draft) -> None:
            for place, one in left:
                attempts = [
                    other.changed(leftovers=False) if other.number == one.number else other
                    for other in draft.phase(place).attempts
                ]
                draft.change_phase(place, attempts=attempts)
            if discarded is not None:
                draft.add_event("work_discarded", data=discarded)

        session.change(record)

    def _renew_base(self, git: Repository, session: WorkSession) -> None:
        """Start from the default branch as it is now, when the commit was refused that the work started from."""
        phase, context = session.running()
        document, workplace = session.document, self._workplace
        attempts = next(one.attempts for one in document.phases if one.name == phase.name)
        branch, key = effects.branch_of_work(document), f"branch:{document.branch_name}"
        was_refused = len(attempts) > 1 and (attempts[-2].error or {}).get("klass") == "base"
        if not was_refused or workplace is None or branch is None or effects.has_commits(branch):
            return
        path = Path(document.worktree_path or "")
        base, start = git.fetch_default()
        if start == branch.undo.get("start") or branch.outcome != "made" or workplace.status(path):
            return
        # A crash between the two leaves a branch that is further than its record: the next attempt starts here again.
        workplace.discard(path, start)
        session.change(lambda draft: effects.note(draft, key, {"base": base, "start": start, "sha": start}))
        context.say(f"the work starts from {base} as it is now: {start[:12]}")

    def _secure_before_check(self, git: Repository, session: WorkSession) -> None:
        """Commit what is in the worktree before a phase works there whose own changes are discarded."""
        phase, context = session.running()
        document, workplace = session.document, self._workplace
        record = next(one for one in document.phases if one.name == phase.name)
        if phase.commits_work or workplace is None or record.attempts[-1].leftovers:
            return
        path, head = Path(document.worktree_path or ""), self._head(session)
        if self._agent_config is not None:
            self._agent_config.put_back(document, phase)
        commit = workplace.commit_all(path, git_module.commit_message(document, phase.name))
        now = git.commit_of(f"refs/heads/{document.branch_name}") or head
        if commit is not None:
            context.say(f"changes that were in the worktree before {phase.name} are committed: {now[:12]}")

        def store(draft: Draft) -> None:
            if now != head:
                _secured(draft, phase.name, {"sha": now}, commit, ())
            _mark_leftovers(draft, phase.name, is_left=True)

        session.change(store)

    def observe(self, session: WorkSession) -> None:
        """Record the refs that an attempt made which failed or was cut off."""
        is_here = effects.host_of_work(session.document) in {"", self._host}
        if self._watch is not None and session.ledger.facts(WORKTREE) is not None and is_here:
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


def _mark_leftovers(draft: Draft, phase: str, *, is_left: bool) -> None:
    index = next(index for index, record in enumerate(draft.document.phases) if record.name == phase)
    draft.mark_attempt(index, leftovers=is_left)


def _secured(draft: Draft, phase: str, facts: JsonObject, commit: str | None, appeared: tuple[Effect, ...]) -> None:
    if facts["sha"] != effects.secured_head(draft.document):
        index = next(number for number, record in enumerate(draft.document.phases) if record.name == phase)
        draft.mark_attempt(index, commit=facts["sha"])
    effects.note(draft, f"branch:{draft.document.branch_name}", facts)
    draft.add_event("work_committed", data={"head": facts["sha"], "commit": commit})
    change_audit.observe(draft, appeared)


def _salvaged(data: JsonObject, context: PhaseContext, draft: Draft) -> None:
    draft.add_event("work_salvaged", data=data)
    if context.attempt_number == 1:
        return
    # An agent that goes on with its conversation believes that its files are there.
    text = f"{data['why']}: files that were not recorded are gone from here, and {data['ref']} has them; do it again"
    hint: JsonObject = {"text": text, "by": "adw", "at": draft.text, "phase": context.phase}
    draft.document.hints = [*draft.document.hints, hint]
