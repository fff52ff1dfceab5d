"""
The configuration of agents in work on a branch of somebody else: as the base branch has it, while an agent works.

It is put in place before every attempt of an agent, and the branch's own is put back before the work is committed, so
that it is neither obeyed nor changed. Fails closed: without a base branch no agent is started on such a branch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import foreign_work
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import GitError
from adws.adw_modules.interfaces_resources import GitRepository, GitWorkplace

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.workflow import PhaseSpec


class AgentConfig:
    """Puts the configuration of agents in place, and back."""

    def __init__(self, git: GitRepository, workplace: GitWorkplace, *, remote: str) -> None:
        self._git = git
        self._workplace = workplace
        self._remote = remote

    def put_in_place(self, session: WorkSession) -> None:
        """Have the configuration of the base branch in the worktree; raise GitError when there is no base branch."""
        phase, context = session.running()
        document = session.document
        if not foreign_work.is_guarded(document, phase):
            return
        path, base = Path(document.worktree_path or ""), self._base()
        changed = {*self._workplace.changed_files(path, base), *self._workplace.status(path)}
        names = foreign_work.configuration(changed)
        if names:
            self._workplace.show_as(path, base, names)
            context.say(f"as the base branch has them while the agent works: {', '.join(names)}")

    def put_back(self, document: WorkflowDocument, phase: PhaseSpec) -> None:
        """Have the branch's own configuration in the worktree again; what the agent did to it is gone."""
        if not foreign_work.is_guarded(document, phase):
            return
        path = Path(document.worktree_path or "")
        names = foreign_work.configuration(self._workplace.status(path))
        if names:
            self._workplace.show_as(path, "HEAD", names)

    def _base(self) -> str:
        branch = self._git.default_branch()
        found = self._git.commit_of(f"refs/remotes/{self._remote}/{branch}")
        found = found or self._git.commit_of(f"refs/heads/{branch}")
        if found is None:
            raise GitError(f"there is no {branch} here to take the configuration of agents from: git fetch brings it")

        return found
