"""
The workspace of a workflow: its quota, its worktree and branch, its ports, and the commit after each phase.

Every external resource goes through the ledger: its intent is recorded, then it is looked up, then made. Ports and the
quota reservation are released whenever the workflow stops running. The main checkout is never touched. If the home is
not in a repository, work is done in place, without worktrees and ports.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects, timestamps
from adws.adw_modules.document import Resource
from adws.adw_modules.effects import OPEN_OUTCOMES, WORKTREE
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
from adws.adw_modules.workspace.change_audit import AgentConfig, RefWatch

if TYPE_CHECKING:
    from adws.adw_modules.document import Draft, WorkflowDocument
    from adws.adw_modules.git.repository import Repository
    from adws.adw_modules.git.worktree import GitWorkplace
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home

logger = logging.getLogger("adw.workspace")

#: Maximum discarded files named in an event.
MAX_NAMES = 50
#: Maximum restored files named in an event; the ref contains all of them.
MAX_NAMED = 100
#: The attempt's file with the discarded changes of an interrupted attempt.
DISCARDED = "discarded.patch"
#: The patch of uncommitted changes in a removed worktree, in the workflow's directory.
RELEASED_PATCH = "released-worktree.patch"
#: Key of the ports in the ledger until their numbers are known.
PORTS = "ports"
#: Time limit for measuring a worktree between two phases; larger ones are left to cron.
MEASURE_SECONDS = 10.0


class Workspace:
    """Makes, checks, secures and releases the workspace of a workflow."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._host = home.host
        self._has_worktrees = home.has_worktrees
        #: Whether other machines work on the same set of workflows.
        self._is_shared = home.has_worktrees and home.settings.is_shared
        self._watch = RefWatch(home)
        self._agent_config = AgentConfig(home)

    @property
    def _git(self) -> Repository:
        return self._home.git

    @property
    def _workplace(self) -> GitWorkplace:
        return self._home.workplace

    def renewed_rules(self, document: WorkflowDocument) -> tuple[str, ...]:
        """Return the worktree files that adw took from the base branch for the running attempt."""
        return self._agent_config.renewed(document) if self._has_worktrees else ()

    def workplace_of(self, document: WorkflowDocument) -> Path:
        """Return the directory in which phases work: the worktree's counterpart of the home directory."""
        home = self._home.settings.home
        if not document.worktree_path:
            return home
        if not self._has_worktrees or not home.is_relative_to(self._git.root):
            return Path(document.worktree_path)

        return Path(document.worktree_path) / home.relative_to(self._git.root)

    # --- before an attempt -------------------------------------------------------------------------------------

    def admit(self, session: WorkSession, *, has_quota: bool = False) -> None:
        """
        Reserve a quota slot before the first attempt of a run, unless the claim of the run already did.

        Raises QuotaExceeded or WorkElsewhere, in which case no slot is held.
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
        """Return why the worktree exceeds its size limit before the next phase, or "" if it does not."""
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
        """Make worktree and ports ready for an attempt; an exception counts as a failed attempt."""
        if not self._has_worktrees or session.document.current_state == WorkflowState.CLEANING.value:
            return
        self._take_ports(session)
        self._remove_stale_locks(session)
        self._have_worktree(session)
        self._discard_interrupted(session)
        self._renew_base(session)
        self._put_disallowed_back(session)
        self._secure_before_check(session)
        self._agent_config.put_in_place(session)
        self._watch.begin(session, session.running()[0].name)

    # --- ports -------------------------------------------------------------------------------------------------
    #
    # The numbers are known only after the reservation, so the intent in the ledger is "ports of this workflow", which
    # is enough to find and free them.

    def _take_ports(self, session: WorkSession) -> None:
        """Reserve, bind and hold a port pair, the previous one if it is free; raise PortsExhausted."""
        adw_id, held = session.document.adw_id, held_by(session.document, host=self._host)
        if held is None:
            intended = Resource(key=PORTS, kind="port", host=self._host, undo={"adw_id": adw_id})
            session.change(lambda draft: effects.intend(draft, intended))
        try:
            # Also if the ledger has them: the process that held their sockets may be gone.
            last = _pair(item for item in session.document.resources if item.outcome == "undone")
            pair = self._home.ports.take(adw_id, preferred=held or last)
        except PortsExhausted as exc:
            why = str(exc)
            session.change(lambda draft: effects.settle(draft, PORTS, "failed", {"error": why}))
            raise

        def taken(draft: Draft) -> None:
            for item in effects.open_effects(draft.document):
                if item.kind == "port" and item.key != PORTS:
                    effects.settle(draft, item.key, "gone")
            made = [
                Resource(
                    key=f"port:{port}",
                    kind="port",
                    outcome="made",
                    host=self._host,
                    undo={"port": port, "purpose": purpose},
                )
                for purpose, port in (("backend", pair.backend), ("frontend", pair.frontend))
            ]
            effects.become(draft, PORTS, *made)
            draft.document.assign(backend_port=pair.backend, frontend_port=pair.frontend)

        if pair != held:
            session.change(taken)

    @contextmanager
    def around(self, document: WorkflowDocument) -> Iterator[Mapping[str, str]]:
        """Hand the ports over to the processes of a phase inside the block; yield the variables that name them."""
        pair = held_by(document) if self._has_worktrees else None
        if pair is None:
            yield {}
            return
        backend, frontend = str(pair.backend), str(pair.frontend)
        with self._home.ports.handed_over(document.adw_id):
            yield {"ADW_BACKEND_PORT": backend, "ADW_FRONTEND_PORT": frontend, "PORT": backend}

    # --- the worktree ------------------------------------------------------------------------------------------

    def _have_worktree(self, session: WorkSession) -> None:
        """Make sure that the worktree exists here, intact and filled: found, restored, or recreated."""
        former, ledger = effects.host_of_work(session.document), session.ledger
        if self._is_shared and self._home.left_behind is not None:
            self._home.left_behind.tidy(session)  # left here before the workflow moved away
        if self._is_shared and former not in {"", self._host}:
            session.change(lambda draft: effects.move(draft, here=self._host))
            _, context = session.running()
            context.say(f"the work moves from {former} to {self._host}: what was not committed there stays there")
        if ledger.facts(WORKTREE) is not None:
            head = self._discard_damaged(session)
            if not self._is_there(session.document, known_commit=head):
                ledger.undone(WORKTREE, "gone")
        facts = ledger.facts(WORKTREE) or self._make(session)
        self._restore_after_restart(session)
        path = Path(str(facts["path"]))
        if not facts.get("is_filled"):
            self._fill(session, path)
            self._sync(path)
            ledger.note(WORKTREE, {"is_filled": True})
        pair = held_by(session.document, host=self._host)
        if pair is not None:
            self._workplace.write_ports(path, pair)

    def _remove_stale_locks(self, session: WorkSession) -> None:
        """Remove git locks of the workflow's own worktree and branch that are older than this attempt."""
        document = session.document
        if not document.worktree_path or not document.branch_name:
            return
        phase, context = session.running()
        record = next(record for record in document.phases if record.name == phase.name)
        began = timestamps.parse(record.attempts[-1].started_at).timestamp()
        locks = self._git.remove_stale_locks(Path(document.worktree_path), document.branch_name, before=began)
        if locks:
            data: JsonObject = {"locks": list(locks)}
            session.change(lambda draft: draft.add_event("stale_locks_removed", data=data))
            context.say(f"removed locks that a dead git left: {', '.join(locks)}")

    def _discard_damaged(self, session: WorkSession) -> str | None:
        """
        Remove a worktree that is damaged or no longer known to git, so that it is recreated.

        Returns the commit of its branch, or None if there is no branch or the worktree was damaged. Its files are
        salvaged first. The branch is left at or after the commit recorded with the last phase.
        """
        git, document = self._git, session.document
        facts, adw_id = session.ledger.facts(WORKTREE) or {}, document.adw_id
        path, reason = Path(str(facts["path"])), str(facts.get("reason") or git_module.lock_reason(adw_id))
        head, recorded = git.commit_of(f"refs/heads/{document.branch_name}"), effects.secured_head(document)
        why = git.why_damaged(path, reason=reason)
        if not why and head is None and recorded and path.exists():
            why = f"its branch {document.branch_name} is gone or cannot be read"
        if not why:
            return head
        if recorded and git.commit_of(recorded) is None:
            raise GitError(
                f"the worktree {path} is damaged ({why}), and commit {recorded[:12]} of its branch is gone: "
                f"restore the commit, or abandon the workflow with adw rollback {adw_id} --force"
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
        commit = recorded if is_behind else base
        data: JsonObject = {"path": str(path), "why": why, "salvaged": salvaged, "commit": commit}
        session.change(lambda draft: draft.add_event("worktree_damaged", data=data))
        git.remove_worktree(path, reason=reason, is_recorded=True)
        if is_behind:
            git.restore_branch(str(document.branch_name), recorded)
        _, context = session.running()
        kept = f"; its files are kept as {salvaged}" if salvaged else ""
        context.say(f"the worktree {path} is made again, because it was damaged: {why}{kept}")

        return None

    def _is_there(self, document: WorkflowDocument, *, known_commit: str | None = None) -> bool:
        """
        Return whether the worktree exists as recorded; raise if it belongs to something else now.

        git is not called if its administrative files confirm the worktree, and *known_commit*, if given, is the
        recorded commit. Otherwise the recorded commit is looked up unless it is *known_commit* or, without that, the
        head.
        """
        git, path, branch = self._git, Path(document.worktree_path or ""), document.branch_name or ""
        head, is_beginning = effects.secured_head(document), known_commit is not None
        reason = git_module.lock_reason(document.adw_id)
        is_known = not is_beginning or head in {"", known_commit}
        if is_known and git.is_as_made(path, branch=branch, reason=reason):
            return True
        result = self._known_worktree(path)
        if result is None:
            return False
        if result.lock_reason != reason:
            owner = result.lock_reason or "nobody"
            raise NotOurs(f"the worktree {path} belongs to {owner}, not to {document.adw_id}")
        if result.is_prunable:
            git.remove_worktree(path, reason=result.lock_reason)
            return False
        if is_beginning and not result.branch:
            # A kill or a power cut interrupted a rebase; until it is ended, git refuses to switch branches.
            self._workplace.end_rebase(path, branch)
            result = self._known_worktree(path) or result
        if result.branch != branch:
            raise NotOurs(
                f"the worktree {result.path} is on {result.branch or 'no branch'}, not on {document.branch_name}: "
                f"git -C {result.path} switch {document.branch_name}, then: adw retry ID"
            )
        if head and head != (known_commit if is_beginning else result.head) and git.commit_of(head) is None:
            raise GitError(f"commit {head[:12]} of branch {branch} is gone: bring it back, or start again")

        return True

    def _known_worktree(self, path: Path) -> Worktree | None:
        wanted = path.resolve()

        return next((item for item in self._git.worktrees() if item.path.resolve() == wanted), None)

    def _make(self, session: WorkSession) -> JsonObject:
        git, document, ledger = self._git, session.document, session.ledger
        path = (self._home.settings.trees_dir / document.adw_id).resolve()
        branch = document.branch_name or branch_name(
            document.adw_id,
            issue_number=document.issue_number,
            title=document.issue.title if document.issue else "",
            issue_class=git_module.issue_class(document),
        )
        reason = git_module.lock_reason(document.adw_id)
        intended = self._branch_facts(document, branch)
        if "sha" not in (ledger.facts(f"branch:{branch}") or intended):
            ledger.note(f"branch:{branch}", intended)  # made by an older tool, which recorded only its name
        undo: JsonObject = {"path": str(path), "branch": branch, "reason": reason}

        def made(worktree: Worktree) -> JsonObject:
            self._sync(path)
            return {"sha": worktree.head, **self._boot_and_mount(path)}

        def find() -> JsonObject | None:
            """
            Return a worktree that was made but not recorded because of a crash; remove an incomplete one.

            One made by an older tool belongs to the workflow, with its uncommitted changes; it was not locked.
            """
            there = self._known_worktree(path)
            adopted = {git.root / effects.path_of(one.undo) for one in document.resources if one.outcome == "adopted"}
            if there is not None and there.branch == branch:
                if path in adopted and there.lock_reason in {"", reason}:
                    git.lock_worktree(path, reason=reason)
                    return made(there)
                if there.lock_reason == reason and not there.is_prunable:
                    is_clean = False
                    with suppress(GitError):  # git was stopped before the worktree was complete
                        is_clean = not self._workplace.status(path)
                    if is_clean:
                        return made(there)
            # Nothing ran in an incomplete worktree, so no work is lost. Somebody else's worktree raises.
            git.remove_worktree(path, reason=reason)
            return None

        def act() -> JsonObject:
            start = self._start(document, intended, branch)
            return made(git.add_worktree(path, branch=branch, start=start, reason=reason))

        return ledger.make(
            WORKTREE,
            "worktree",
            undo=undo,
            find=find,
            act=act,
            fields=lambda _facts: {"worktree_path": str(path), "branch_name": branch},
            also=[Resource(key=f"branch:{branch}", kind="branch", undo=intended)],
        )

    def _branch_facts(self, document: WorkflowDocument, branch: str) -> JsonObject:
        """
        Return the start of the branch: as intended before, else the current default branch.

        Only new work needs the remote: resumed work is on its own branch, so a network failure does not stop it.
        """
        git = self._git
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
        if own is not None:  # made by an older tool: its start is unknown
            return {"branch": branch, "base": git.default_branch(), "start": "", "sha": own}
        if known is not None and any(record.status == "complete" for record in document.phases):
            raise ConfigError(
                f"branch {branch}, on which an older tool worked, is not in this repository: "
                f"git fetch {self._home.settings.git_remote} {branch}:{branch} brings it back from the remote, "
                f"else abandon the workflow with adw abandon {document.adw_id}"
            )
        base, start = git.fetch_default()

        return {"branch": branch, "base": base, "start": start, "sha": start}

    def _start(self, document: WorkflowDocument, intended: JsonObject, branch: str) -> str:
        """Return the commit to start from: the branch's own if it exists, else the last known one."""
        git, sha = self._git, str(intended["sha"])
        own = git.commit_of(f"refs/heads/{branch}")
        if intended.get("is_fetched"):
            # A local branch of that name belongs to an earlier workflow that this one continues, and is outdated.
            if own not in {None, sha}:
                git.keep_commits(document.adw_id, str(own))
                git.delete_branch(branch, expected=str(own))
            return sha
        start = own or git.commit_of(sha)
        if start is None:
            raise GitError(
                f"branch {branch} and its last commit {sha[:12]} are gone: "
                "restore the branch, or abandon the workflow with adw abandon"
            )

        return start

    def _fill(self, session: WorkSession, path: Path) -> None:
        """Add what git does not track to a new worktree, and run its set-up commands."""
        phase, context = session.running()
        self._home.commands.forget_set_up(context)

        def run(command: Sequence[str], number: int) -> str:
            """Run a set-up command as a process of the attempt; return why it failed, or ""."""
            gate = Gate(kind="command", command=tuple(command))
            end = self._home.commands.run_beside(phase, gate, replace(context, cwd=path), f"setup-{number}")
            if end.exit_code == 0 and end.timed_out is None and not end.ordered:
                return ""
            return f"it ended with exit code {end.exit_code}; adw logs {context.document.adw_id} has its output"

        _, notices = self._workplace.fill(path, ports=held_by(session.document), run=run)
        for notice in notices:
            context.say(notice)

    # --- power cuts --------------------------------------------------------------------------------------------

    def sync(self, document: WorkflowDocument) -> None:
        """Make the writes of a phase durable before its result is recorded; raise OSError on failure."""
        worktree = effects.effect(document, WORKTREE) if self._has_worktrees else None
        if worktree is not None and worktree.outcome in effects.MADE:
            self._sync(Path(document.worktree_path or ""))

    def _sync(self, path: Path) -> None:
        if self._home.is_synced:
            power_loss.sync_file_systems((path, self._git.common_dir))

    def _boot_and_mount(self, path: Path) -> JsonObject:
        """Return the facts by which a later attempt detects a restart or a remount."""
        return {power_loss.BOOT: self._home.processes.boot_id, power_loss.MOUNT: power_loss.mount_of(path)}

    def _restore_after_restart(self, session: WorkSession) -> None:
        """
        If the worktree may have lost writes, compare it with the last recorded commit and restore that.

        Differing files are kept first, under a ref that an event names. Commits after the recorded one stay only if no
        attempt was interrupted: commits of an interrupted attempt may be half of its work.
        """
        git, workplace = self._git, self._workplace
        document, ledger = session.document, session.ledger
        path, facts = Path(document.worktree_path or ""), ledger.facts(WORKTREE) or {}
        now, commit = self._boot_and_mount(path), effects.secured_head(document)
        why = power_loss.why_unclean(document, facts, now)
        if why and commit:
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
                _, context = session.running()

                def salvaged(draft: Draft) -> None:
                    draft.add_event("work_salvaged", data=data)
                    if context.attempt_number > 1:
                        # An agent that resumes its conversation assumes that its files still exist.
                        gone = f"{why}: files that were not recorded are gone from here, and {ref} has them"
                        hint: JsonObject = {"text": f"{gone}; do it again", "by": "adw", "at": draft.text}
                        draft.document.hints = [*draft.document.hints, {**hint, "phase": context.phase}]

                session.change(salvaged)
            workplace.restore(path, commit)
            self._sync(path)
        if any(facts.get(name) != fact for name, fact in now.items()):
            ledger.note(WORKTREE, now)

    # --- after an attempt --------------------------------------------------------------------------------------

    def conclude(self, session: WorkSession, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> RunReport:
        """
        Commit the work of a phase and record the refs that appeared; raise PathsNotAllowed for disallowed changes.

        Whatever gates then leave in the worktree is to be discarded, which is recorded before they run.
        """
        if not self._has_worktrees or session.ledger.facts(WORKTREE) is None:
            return report
        git, workplace, document = self._git, self._workplace, session.document
        if not self._is_there(document):
            raise GitError(f"the worktree of {document.adw_id} was removed while {phase.name} worked in it")
        path = Path(document.worktree_path or "")
        head = self._head(session)
        self._agent_config.put_back(document, phase)
        change_audit.refuse_disallowed(workplace, path, head, phase, context)
        commit, tip, now = None, head, head
        if phase.commits_work:
            commit, tip = self._commit_all(document, path, phase.name)
            now = commit or tip or head
        # Before it is recorded: work in the document is on the remote, or an event says that it is only here.
        branch, publisher = effects.branch_of_work(document), self._home.publisher
        if publisher is not None and branch is not None and now != branch.undo.get("start"):
            why = publisher.publish(session, path, now)
            if why:
                unpublished: JsonObject = {"host": self._host, "head": now, "why": why}
                session.change(lambda draft: draft.add_event("work_not_published", data=unpublished))
                context.say(f"only {self._host} can resume this work: {why}")
        appeared = self._watch.appeared(document)
        has_gates = phase.commits_work and any(gate.kind == "command" for gate in phase.gates)
        facts: JsonObject = {"sha": now}
        known = effects.secured_head(document)
        if now != head and known not in {"", tip} and git.missing_from(document.branch_name or "", (known,)):
            facts |= effects.replaced_commits(document)  # the phase rewrote the history

        def record(draft: Draft) -> None:
            if now != head or appeared:
                _record_commit(draft, phase.name, facts, commit)
                change_audit.observe(draft, appeared)
            if has_gates:
                draft.mark_attempt(_index(draft, context.phase), leftovers=True)

        if now != head or appeared or has_gates:
            session.change(record)
        self._watch.forget(document.adw_id)

        return report

    def _commit_all(self, document: WorkflowDocument, path: Path, phase: str) -> tuple[str | None, str]:
        """Commit all changes in the worktree; return the commit (None: no changes) and the previous head."""
        tip, changed = self._workplace.head_and_status(path)
        message = git_module.commit_message(document, phase, self._home.settings.git_commit_message)

        return self._workplace.commit_all(path, message) if changed else None, tip

    def _head(self, session: WorkSession) -> str:
        """Return the commit that the phase began from: the last recorded one."""
        return str((session.ledger.facts(f"branch:{session.document.branch_name}") or {}).get("sha") or "HEAD")

    def _put_disallowed_back(self, session: WorkSession) -> None:
        """Put back disallowed changes of an earlier attempt that failed or was cut off before they were checked."""
        phase, context = session.running()
        if context.attempt_number == 1:
            return
        path, head = Path(session.document.worktree_path or ""), self._head(session)
        names = change_audit.disallowed_changes(self._workplace, path, head, phase)
        if names:
            done = change_audit.put_back(self._workplace, path, head, names, context)
            context.say(f"an earlier attempt changed files outside allowed_paths: {', '.join(names)}; {done}")

    # --- leftovers of gates and checks -------------------------------------------------------------------------

    def discard(self, session: WorkSession, index: int) -> JsonObject | None:
        """
        Discard leftovers in the worktree after the newest attempt of the phase *index*.

        Returns what was discarded, for the event, or None if there was nothing.
        """
        record = session.document.phases[index]
        if not self._has_worktrees or not record.attempts or not record.attempts[-1].leftovers:
            return None
        if session.ledger.facts(WORKTREE) is None or not self._is_there(session.document):
            return None

        return self._discard(session, {"phase": record.name, "attempt": record.attempts[-1].number})

    def _discard(
        self, session: WorkSession, data: JsonObject, *, keep_in: PhaseContext | None = None
    ) -> JsonObject | None:
        """Reset branch and files to the last recorded commit; removed commits are kept under a ref."""
        workplace, document = self._workplace, session.document
        path, head = Path(document.worktree_path or ""), self._head(session)
        tip, names = workplace.head_and_status(path)
        has_commits = head not in {tip, "HEAD"}
        if not names and not has_commits:
            return None
        data |= {"files": list(names[:MAX_NAMES]), "count": len(names)}
        if has_commits and tip:
            data["commits"] = self._git.keep_commits(document.adw_id, tip)
        if keep_in is not None:
            data["patch"] = change_audit.keep_patch(keep_in, workplace.patch_of_changes(path), name=DISCARDED)
        workplace.discard(path, head)

        return data

    def _discard_interrupted(self, session: WorkSession) -> None:
        """
        Discard leftovers of gates and checks that a crash kept an earlier attempt from discarding.

        Somebody may have changed files since, so the discarded changes are kept as a patch with the new attempt.
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
        discarded = self._discard(session, data, keep_in=context)

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

    def _renew_base(self, session: WorkSession) -> None:
        """Restart from the current default branch if the previous attempt failed because of its base commit."""
        phase, context = session.running()
        document = session.document
        attempts = next(one.attempts for one in document.phases if one.name == phase.name)
        branch, key = effects.branch_of_work(document), f"branch:{document.branch_name}"
        was_refused = len(attempts) > 1 and (attempts[-2].error or {}).get("klass") == "base"
        if not was_refused or branch is None or effects.has_commits(branch):
            return
        path = Path(document.worktree_path or "")
        base, start = self._git.fetch_default()
        if start == branch.undo.get("start") or branch.outcome != "made" or self._workplace.status(path):
            return
        # A crash between the two leaves a branch ahead of its record: the next attempt repeats this.
        self._workplace.discard(path, start)
        session.change(lambda draft: effects.note(draft, key, {"base": base, "start": start, "sha": start}))
        context.say(f"the work starts from {base} as it is now: {start[:12]}")

    def _secure_before_check(self, session: WorkSession) -> None:
        """Commit the worktree's changes before a phase whose own changes are discarded."""
        phase, context = session.running()
        document = session.document
        record = next(one for one in document.phases if one.name == phase.name)
        if phase.commits_work or record.attempts[-1].leftovers:
            return
        path, head = Path(document.worktree_path or ""), self._head(session)
        self._agent_config.put_back(document, phase)
        commit, tip = self._commit_all(document, path, phase.name)
        now = commit or tip or head
        if commit is not None:
            context.say(f"changes that were in the worktree before {phase.name} are committed: {now[:12]}")

        def store(draft: Draft) -> None:
            if now != head:
                _record_commit(draft, phase.name, {"sha": now}, commit)
            draft.mark_attempt(_index(draft, phase.name), leftovers=True)

        session.change(store)

    # --- release -----------------------------------------------------------------------------------------------

    def observe(self, session: WorkSession) -> None:
        """Record the refs that a failed or interrupted attempt made."""
        is_here = effects.host_of_work(session.document) in {"", self._host}
        if self._has_worktrees and session.ledger.facts(WORKTREE) is not None and is_here:
            self._watch.record(session)

    def release(self, session: WorkSession) -> None:
        """Release ports and quota; of a completed workflow also the remote ref and the worktree."""
        self.observe(session)
        document = session.document

        def freed(draft: Draft) -> None:
            for item in effects.open_effects(draft.document):
                if item.kind == "port":
                    effects.settle(draft, item.key, "undone")
            draft.document.assign(backend_port=None, frontend_port=None)

        if self._has_worktrees and any(item.kind == "port" for item in effects.open_effects(document)):
            self._home.ports.free(document.adw_id)
            session.change(freed)
        is_over = document.current_state == WorkflowState.COMPLETED.value
        publisher = self._home.publisher
        if publisher is not None and is_over:
            publisher.withdraw(session)
        if is_over and self._has_worktrees:
            self._release_worktree(session)
        self._home.quotas.release(document.adw_id)

    def _release_worktree(self, session: WorkSession) -> None:
        """
        Remove the worktree of a completed workflow whose branch is pushed; the branch stays.

        May be repeated: if a crash comes before the removal is recorded, recovery ends the run and repeats it.
        Uncommitted changes are kept as a patch first. On an error an event is recorded and the worktree stays.
        """
        document = session.document
        made = effects.effect(document, WORKTREE)
        if made is None or made.outcome not in effects.MADE:
            return
        if made.host not in {"", self._host} or not effects.is_pushed(document):
            return
        path, kept = Path(str(made.undo["path"])), ""
        try:
            payload = self._workplace.patch_of_changes(path) if self._is_there(document) else b""
            if payload:
                kept = str(repository.write_patch(self._home.folder_of(document.adw_id), RELEASED_PATCH, payload))
            was_there = self._git.remove_worktree(path, reason=str(made.undo["reason"]))
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


def held_by(document: WorkflowDocument, *, host: str = "") -> PortPair | None:
    """Return the ports that a workflow holds by its ledger; with *host*, only those on that machine."""
    return _pair(
        item for item in document.resources if item.outcome in effects.MADE and (not host or item.place in {"", host})
    )


def _pair(found: Iterator[Resource]) -> PortPair | None:
    numbers = {str(one.undo.get("purpose")): one.undo.get("port") for one in found if one.kind == "port"}
    backend, frontend = numbers.get("backend"), numbers.get("frontend")
    if not isinstance(backend, int) or not isinstance(frontend, int):
        return None

    return PortPair(backend=backend, frontend=frontend)


def _index(draft: Draft, phase: str) -> int:
    return next(index for index, record in enumerate(draft.document.phases) if record.name == phase)


def _record_commit(draft: Draft, phase: str, facts: JsonObject, commit: str | None) -> None:
    """Record the new head of the branch with the branch and the attempt."""
    if facts["sha"] != effects.secured_head(draft.document):
        draft.mark_attempt(_index(draft, phase), commit=facts["sha"])
    effects.note(draft, f"branch:{draft.document.branch_name}", facts)
    draft.add_event("work_committed", data={"head": facts["sha"], "commit": commit})
