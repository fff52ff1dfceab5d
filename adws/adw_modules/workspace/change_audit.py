"""
Changes of a phase beyond its work: files outside its `allowed_paths`, refs, and the configuration of agents.

Refs that a phase's tools make by themselves are recorded as observed effects, so that a rollback finds them. The refs
before an attempt are known only to the process that runs it: storing all of them before every attempt would not be
worth it. After a crash, the refs that count are those that name the workflow and are not in the ledger, and our branch
on the remote. A rollback may delete no others anyway, and after a crash nobody knows who made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.document import Resource
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import GitError, PathsNotAllowed
from adws.adw_modules.git import change_policy, git, repository
from adws.adw_modules.phase import PhaseContext
from adws.adw_modules.workflow.model import AGENT, AGENTS, PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import Draft, WorkflowDocument
    from adws.adw_modules.git.worktree import GitWorkplace
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home

# --- files outside `allowed_paths`: kept as a patch with the attempt, then put back --------------------------------
#
# They are restored to their state before the phase, so that the next attempt is not blamed for changes of an earlier
# one. The patch is durable before anything is removed. Allowed changes stay.

#: The attempt's file with the changes that were put back.
PATCH = "put-back.patch"


def keep_patch(context: PhaseContext, patch: bytes, *, name: str = PATCH) -> str:
    """Write *patch* to the attempt's files; return its path relative to the workflow's directory."""
    files = AttemptFiles(context.folder, context.phase, context.attempt_number)
    files.make_folder()
    path = files.path(name)
    repository.write_patch(path.parent, path.name, patch)

    return files.relative(path)


def disallowed_changes(workplace: GitWorkplace, path: Path, base: str, phase: PhaseSpec) -> tuple[str, ...]:
    """Return the files in the worktree *path* that differ from *base* and that *phase* may not change."""
    if not phase.allowed_paths:
        return ()
    changed = sorted({*workplace.status(path), *workplace.changed_files(path, base)})

    return change_policy.outside(changed, phase.allowed_paths)


def put_back(workplace: GitWorkplace, path: Path, base: str, names: Sequence[str], context: PhaseContext) -> str:
    """Save the changes of *names* since *base* as a patch, put the files back, and return a sentence about both."""
    kept = keep_patch(context, workplace.patch_of_paths(path, base, names))
    left = workplace.put_back(path, base, names)
    but = f", but for {', '.join(left)}, which adw does not remove" if left else ""

    return f"they are as they were before{but}, and {kept} has what was changed: keep off them"


def refuse_disallowed(workplace: GitWorkplace, path: Path, base: str, phase: PhaseSpec, context: PhaseContext) -> None:
    """If *phase* changed files it may not change, put them back and raise PathsNotAllowed."""
    wrong = disallowed_changes(workplace, path, base, phase)
    if not wrong:
        return
    try:
        done = put_back(workplace, path, base, wrong, context)
    except (GitError, OSError) as exc:
        raise PathsNotAllowed(phase.name, wrong, f"they could not be put back ({exc}): undo it") from exc

    raise PathsNotAllowed(phase.name, wrong, done)


# --- refs ------------------------------------------------------------------------------------------------------

#: Refs that come and go by themselves, or that adw itself makes.
_NOT_OBSERVED = ("refs/remotes/", "refs/adw/", "refs/stash")


class RefWatch:
    """Compares the refs before and after the attempts that this process runs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._before: dict[str, tuple[str, Mapping[str, str]]] = {}  #: workflow -> phase and refs before its attempt

    def begin(self, session: WorkSession, phase: str) -> None:
        """Record the refs that an unsuccessful earlier attempt made, then remember the refs before this one."""
        refs = self._home.git.refs()
        self.record(session, refs)
        self._before[session.document.adw_id] = (phase, refs)

    def forget(self, adw_id: str) -> None:
        """Forget the refs before an attempt, once the refs it made are recorded."""
        self._before.pop(adw_id, None)

    def record(self, session: WorkSession, refs: Mapping[str, str] | None = None) -> None:
        """Record the refs that the last attempt made, which failed or was cut off."""
        seen = self.appeared(session.document, refs)
        if seen:
            session.change(lambda draft: observe(draft, seen))
        self.forget(session.document.adw_id)

    def appeared(self, document: WorkflowDocument, refs: Mapping[str, str] | None = None) -> tuple[Resource, ...]:
        """Return the refs that the ending attempt made; the caller stores them, then calls `forget`."""
        phase, before = self._before.get(document.adw_id, ("", None))
        phase = phase or cut_off_phase(document)
        if not phase:  # no attempt of ours can have made any: a branch with our name is somebody else's
            return ()
        refs = self._home.git.refs() if refs is None else refs
        result: list[Resource] = []
        pushed, remote = document.branch_name, self._home.settings.git_remote
        for ref, sha in refs.items():
            if pushed and ref == f"refs/remotes/{remote}/{pushed}" and (before is None or before.get(ref) != sha):
                undo: JsonObject = {"branch": pushed, "sha": sha, "remote": remote}
                key, kind = f"remote_branch:{pushed}", "remote_branch"
                result.append(Resource(key=key, kind=kind, outcome="observed", undo=undo))
            is_new = document.adw_id in ref if before is None else ref not in before
            if not is_new or ref.startswith(_NOT_OBSERVED) or git.is_of_another(ref, document.adw_id):
                continue
            undo = {"ref": ref, "sha": sha, "phase": phase}
            key, kind = f"ref:{ref}", "ref"
            if ref.startswith(change_policy.HEADS):
                undo["branch"] = ref.removeprefix(change_policy.HEADS)
                key, kind = f"branch:{undo['branch']}", "branch"
            result.append(Resource(key=key, kind=kind, outcome="observed", host=self._home.host, undo=undo))

        return tuple(seen for seen in result if effects.effect(document, seen.key) is None)


def observe(draft: Draft, seen: tuple[Resource, ...]) -> None:
    """Record the effects of tools."""
    for one in seen:
        effects.observe(draft, one)


def cut_off_phase(document: WorkflowDocument) -> str:
    """Return the phase of the most recent ended attempt if it was interrupted, else ""."""
    ends = [
        (attempt.started_at, attempt.number, attempt.status, phase.name)
        for phase in document.phases
        for attempt in phase.attempts
        if attempt.status != "running"
    ]
    _started, _number, status, phase = max(ends, default=("", 0, "", ""))

    return phase if status == "interrupted" else ""


# --- agent rules and configuration from the base branch, while an agent works --------------------------------------
#
# On somebody else's branch, the base branch's whole configuration is put in place before every attempt, and the
# branch's own is put back before the work is committed, so that it is neither obeyed nor changed. This fails closed:
# without a base branch no agent starts there. On our own branch, only the files that changed on the base branch since
# the work began are put in place, so that agents follow the project's current rules; files that the work itself
# changes are left alone.

#: Seconds for the remote to report its current rules; after that the rules known here apply.
RULES_SECONDS = 20.0
#: Fact of a branch: the commit of the base branch whose rules were put in place.
RULES = "rules"


def is_foreign(document: WorkflowDocument) -> bool:
    """
    Return whether the branch of a workflow was begun by somebody else, or its start is unknown.

    The author of a pull request wrote its files, including those that instruct agents and grant them permissions.
    """
    if not document.branch_name:
        return False
    branch = effects.effect(document, f"branch:{document.branch_name}")

    return branch is None or branch.outcome == "adopted" or not branch.undo.get("start")


def is_guarded(document: WorkflowDocument, phase: PhaseSpec) -> bool:
    """Return whether an agent that works on *phase* gets the configuration of the base branch."""
    return phase.runner in (AGENT, *AGENTS) and is_foreign(document)


def configuration(files: Iterable[str]) -> tuple[str, ...]:
    """Return the *files* that configure or instruct agents."""
    return change_policy.matching(sorted(set(files)), change_policy.AGENT_FILES)


class AgentConfig:
    """Puts the base branch's agent configuration into the worktree, and the branch's own back."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def put_in_place(self, session: WorkSession) -> None:
        """Put the base branch's configuration into the worktree; raise GitError if there is no base branch."""
        phase, context = session.running()
        document, git, workplace = session.document, self._home.git, self._home.workplace
        if phase.runner not in (AGENT, *AGENTS):
            return
        if not is_foreign(document):
            self._renew(session)
            return
        branch = git.default_branch()
        known = (f"refs/remotes/{self._home.settings.git_remote}/{branch}", f"refs/heads/{branch}")
        base = next((commit for ref in known if (commit := git.commit_of(ref))), None)
        if base is None:
            raise GitError(f"there is no {branch} here to take the configuration of agents from: git fetch brings it")
        path = Path(document.worktree_path or "")
        names = configuration({*workplace.changed_files(path, base), *workplace.status(path)})
        if names:
            workplace.show_as(path, base, names)
            context.say(f"as the base branch has them while the agent works: {', '.join(names)}")

    def _renew(self, session: WorkSession) -> None:
        """Put the rules into the worktree that changed on the base branch since the work began."""
        git, workplace = self._home.git, self._home.workplace
        document, (_, context) = session.document, session.running()
        branch = effects.effect(document, f"branch:{document.branch_name}")
        is_first = not any(attempt.agent for record in document.phases for attempt in record.attempts)
        if branch is None or is_first:  # the first agent starts with the rules just fetched
            return
        path, start = Path(document.worktree_path or ""), str(branch.undo.get("start"))
        base = str(branch.undo.get("base") or git.default_branch_known())
        now = git.newest(base, seconds=RULES_SECONDS)
        if now in {None, start}:
            return
        names = configuration(git.changed_between(start, str(now)))
        if not names:
            return
        own = {*workplace.changed_files(path, start), *workplace.status(path)}
        own -= {*self.renewed(document)}  # left by an interrupted attempt
        names = tuple(name for name in names if name not in own)
        if not names:
            return
        session.change(lambda draft: effects.note(draft, branch.key, {RULES: now}))
        workplace.show_as(path, str(now), names)
        context.say(f"as {base} has them now, while the agent works: {', '.join(names)}")

    def renewed(self, document: WorkflowDocument) -> tuple[str, ...]:
        """Return the worktree files that were replaced by the base branch's version and still match it."""
        branch = effects.effect(document, f"branch:{document.branch_name}")
        shown = str(branch.undo.get(RULES) or "") if branch is not None else ""
        path = Path(document.worktree_path or "")
        names = configuration(self._home.workplace.status(path)) if shown else ()

        return self._home.workplace.same_as(path, shown, names) if names else ()

    def put_back(self, document: WorkflowDocument, phase: PhaseSpec) -> None:
        """
        Put the branch's own configuration back into the worktree.

        On somebody else's branch this undoes the agent's changes to it; on our own, those are work and stay.
        """
        if phase.runner not in (AGENT, *AGENTS):
            return
        path = Path(document.worktree_path or "")
        names = configuration(self._home.workplace.status(path)) if is_foreign(document) else self.renewed(document)
        if names:
            self._home.workplace.show_as(path, "HEAD", names)
