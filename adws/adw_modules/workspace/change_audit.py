"""
What a phase changes beyond its work: files outside its `allowed_paths`, refs, and the configuration of agents.

Refs that tools of a phase make by themselves are observed effects, so that a rollback finds them. The refs before an
attempt are known only to the process that runs it: storing all of them before every attempt would cost more than it
tells. After a crash a ref counts that names the workflow and that the ledger does not have, and our branch on the
remote. That is all that a rollback may delete anyway; of other refs nobody can say after a crash who made them, so they
are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.effects import Effect
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
# They are put back to where the phase began, so that the next attempt is not judged by what an earlier one did. The
# patch is durable before anything is removed. What the phase was allowed to do stays as it is.

#: The attempt's file that has what was put back.
PATCH = "put-back.patch"


def keep_patch(context: PhaseContext, patch: bytes, *, name: str = PATCH) -> str:
    """Write *patch* beside the other files of the attempt; return its name in the workflow's directory."""
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
    """Keep what was done to *names* since *base*, put them back, and return a sentence about both."""
    kept = keep_patch(context, workplace.patch_of_paths(path, base, names))
    left = workplace.put_back(path, base, names)
    but = f", but for {', '.join(left)}, which adw does not remove" if left else ""

    return f"they are as they were before{but}, and {kept} has what was changed: keep off them"


def refuse_disallowed(workplace: GitWorkplace, path: Path, base: str, phase: PhaseSpec, context: PhaseContext) -> None:
    """Put back what *phase* may not change and raise PathsNotAllowed, which says so; nothing when there is none."""
    wrong = disallowed_changes(workplace, path, base, phase)
    if not wrong:
        return
    try:
        done = put_back(workplace, path, base, wrong, context)
    except (GitError, OSError) as exc:
        raise PathsNotAllowed(phase.name, wrong, f"they could not be put back ({exc}): undo it") from exc

    raise PathsNotAllowed(phase.name, wrong, done)


# --- refs ------------------------------------------------------------------------------------------------------

#: Refs that come and go by themselves, or that adw makes elsewhere.
_NOT_OBSERVED = ("refs/remotes/", "refs/adw/", "refs/stash")


class RefWatch:
    """Compares the refs before and after the attempts that this process runs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._before: dict[str, tuple[str, Mapping[str, str]]] = {}  #: workflow -> phase and refs before its attempt

    def begin(self, session: WorkSession, phase: str) -> None:
        """Remember the refs before an attempt; what an earlier attempt made that did not end well is recorded."""
        refs = self._home.git.refs()
        self.record(session, refs)
        self._before[session.document.adw_id] = (phase, refs)

    def forget(self, adw_id: str) -> None:
        """Forget the refs before an attempt: what it made is recorded."""
        self._before.pop(adw_id, None)

    def record(self, session: WorkSession, refs: Mapping[str, str] | None = None) -> None:
        """Record what the last attempt made, which failed or was cut off."""
        seen = self.appeared(session.document, refs)
        if seen:
            session.change(lambda draft: observe(draft, seen))
        self.forget(session.document.adw_id)

    def appeared(self, document: WorkflowDocument, refs: Mapping[str, str] | None = None) -> tuple[Effect, ...]:
        """Return what the attempt that ends now made; the caller stores it and then calls `forget`."""
        phase, before = self._before.get(document.adw_id, ("", None))
        phase = phase or cut_off_phase(document)
        if not phase:  # nothing of ours can have made them: a branch of our name is somebody else's then
            return ()
        refs = self._home.git.refs() if refs is None else refs
        result: list[Effect] = []
        pushed, remote = document.branch_name, self._home.settings.git_remote
        for ref, sha in refs.items():
            if pushed and ref == f"refs/remotes/{remote}/{pushed}" and (before is None or before.get(ref) != sha):
                undo: JsonObject = {"branch": pushed, "sha": sha, "remote": remote}
                key, kind = f"remote_branch:{pushed}", "remote_branch"
                result.append(Effect(key=key, kind=kind, outcome="observed", undo=undo))
            is_new = document.adw_id in ref if before is None else ref not in before
            if not is_new or ref.startswith(_NOT_OBSERVED) or git.is_of_another(ref, document.adw_id):
                continue
            undo = {"ref": ref, "sha": sha, "phase": phase}
            key, kind = f"ref:{ref}", "ref"
            if ref.startswith(change_policy.HEADS):
                undo["branch"] = ref.removeprefix(change_policy.HEADS)
                key, kind = f"branch:{undo['branch']}", "branch"
            result.append(Effect(key=key, kind=kind, outcome="observed", host=self._home.host, undo=undo))

        return tuple(seen for seen in result if effects.effect(document, seen.key) is None)


def observe(draft: Draft, seen: tuple[Effect, ...]) -> None:
    """Record effects that tools made."""
    for one in seen:
        effects.observe(draft, one)


def cut_off_phase(document: WorkflowDocument) -> str:
    """Return the phase of the attempt that was the last to end, if it was cut off; "" when it was not."""
    ends = [
        (attempt.started_at, attempt.number, attempt.status, phase.name)
        for phase in document.phases
        for attempt in phase.attempts
        if attempt.status != "running"
    ]
    _started, _number, status, phase = max(ends, default=("", 0, "", ""))

    return phase if status == "interrupted" else ""


# --- the rules and the configuration of agents, as the base branch has them while an agent works -------------------
#
# On a branch of somebody else all of it is put in place before every attempt, and the branch's own is put back before
# the work is committed, so that it is neither obeyed nor changed. Fails closed: without a base branch no agent is
# started there. On a branch of our own it is what changed on the base branch since the work began, so that an attempt
# works by the rules of the project as they are now; what the work itself changed, before or now, is left alone.

#: Seconds in which the remote has to answer whether its rules are still the same; else those that are known here hold.
RULES_SECONDS = 20.0
#: Fact of a branch: the commit of the base branch whose rules were put in place.
RULES = "rules"


def is_foreign(document: WorkflowDocument) -> bool:
    """
    Say whether the branch of a workflow was begun by somebody else, or where it began is not known.

    The author of a pull request wrote its files, including those that tell agents what to do and what they may.
    """
    if not document.branch_name:
        return False
    branch = effects.effect(document, f"branch:{document.branch_name}")

    return branch is None or branch.outcome == "adopted" or not branch.undo.get("start")


def is_guarded(document: WorkflowDocument, phase: PhaseSpec) -> bool:
    """Say whether an agent that works on *phase* gets the configuration of the base branch."""
    return phase.runner in (AGENT, *AGENTS) and is_foreign(document)


def configuration(files: Iterable[str]) -> tuple[str, ...]:
    """Return those of *files* that tell agents what to do."""
    return change_policy.matching(sorted(set(files)), change_policy.AGENT_FILES)


class AgentConfig:
    """Puts the configuration of agents in place, and back."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def put_in_place(self, session: WorkSession) -> None:
        """Have the configuration of the base branch in the worktree; raise GitError when there is no base branch."""
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
        """Have the rules in the worktree that changed on the base branch since the work began."""
        git, workplace = self._home.git, self._home.workplace
        document, (_, context) = session.document, session.running()
        branch = effects.effect(document, f"branch:{document.branch_name}")
        is_first = not any(attempt.agent for record in document.phases for attempt in record.attempts)
        if branch is None or is_first:  # what the work begins with is what was fetched for it
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
        own -= {*self.renewed(document)}  # an attempt that was cut off left them
        names = tuple(name for name in names if name not in own)
        if not names:
            return
        session.change(lambda draft: effects.note(draft, branch.key, {RULES: now}))
        workplace.show_as(path, str(now), names)
        context.say(f"as {base} has them now, while the agent works: {', '.join(names)}")

    def renewed(self, document: WorkflowDocument) -> tuple[str, ...]:
        """Return the files of the worktree that are as the base branch has them, and not as the branch does."""
        branch = effects.effect(document, f"branch:{document.branch_name}")
        shown = str(branch.undo.get(RULES) or "") if branch is not None else ""
        path = Path(document.worktree_path or "")
        names = configuration(self._home.workplace.status(path)) if shown else ()

        return self._home.workplace.same_as(path, shown, names) if names else ()

    def put_back(self, document: WorkflowDocument, phase: PhaseSpec) -> None:
        """
        Have the branch's own configuration in the worktree again.

        On a branch of somebody else what the agent did to it is gone; on one of our own that is work, and stays.
        """
        if phase.runner not in (AGENT, *AGENTS):
            return
        path = Path(document.worktree_path or "")
        names = configuration(self._home.workplace.status(path)) if is_foreign(document) else self.renewed(document)
        if names:
            self._home.workplace.show_as(path, "HEAD", names)
