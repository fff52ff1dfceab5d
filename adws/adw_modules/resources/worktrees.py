"""
The worktree of a workflow: where it is, from what it starts, what is put into it, and whether it still is what it was.

Nothing is put into a worktree that git would commit: of the person's own files only those that git ignores are copied,
and no link is followed, neither where a file is read nor where it is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from adws.adw_modules.errors import GitError, GitUnreachable, SetupFailed
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces_resources import PortPair, Worktree
from adws.adw_modules.resources.git_names import branch_name
from adws.adw_modules.resources.repository import RepositoryGit
from adws.adw_modules.resources.workplace import PORTS_FILE, WorkplaceGit
from adws.adw_modules.work_names import lock_reason


@dataclass(frozen=True, kw_only=True, slots=True)
class WorktreePlan:
    """All that is needed to make a worktree, and to find it again: it can be written down before anything is made."""

    adw_id: str
    path: Path
    branch: str
    base: str  #: the branch it starts from
    start: str  #: the commit it starts from
    notices: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """What the worktree is locked with."""
        return lock_reason(self.adw_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A worktree that is ready to be worked in."""

    worktree: Worktree
    copied: tuple[str, ...]  #: ignored files of the main checkout that it has too
    notices: tuple[str, ...]


class SetupRunner(Protocol):
    """What runs the set-up commands of a worktree."""

    def __call__(self, argv: Sequence[str], *, cwd: Path, number: int) -> str:
        """Run one to its end, keep its output, and return "" when it went well, else why not and where that is."""


class Worktrees:
    """Makes and checks the worktrees of workflows."""

    def __init__(
        self,
        repository: RepositoryGit,
        workplace: WorkplaceGit,
        *,
        trees: Path,
        include: Sequence[str] = (),
        setup: Sequence[Sequence[str]] = (),
    ) -> None:
        """Make worktrees below *trees*, with the ignored files *include*, and run the commands *setup* in new ones."""
        self._repository = repository
        self._workplace = workplace
        self._trees = trees
        self._include = tuple(include)
        self._setup = tuple(tuple(command) for command in setup)

    def path_of(self, adw_id: str) -> Path:
        """Return where the worktree of a workflow is, or would be."""
        return self._trees.resolve() / check_adw_id(adw_id)

    def plan(
        self, adw_id: str, *, title: str, issue_number: int | None = None, issue_class: str | None = None
    ) -> WorktreePlan:
        """Return where and from what; the default branch is fetched, or taken as last known when nobody answers."""
        base = self._repository.default_branch()
        start, notices = self._start_of(base)

        return WorktreePlan(
            adw_id=check_adw_id(adw_id),
            path=self.path_of(adw_id),
            branch=branch_name(adw_id, issue_number=issue_number, title=title, issue_class=issue_class),
            base=base,
            start=start,
            notices=notices,
        )

    def _start_of(self, base: str) -> tuple[str, tuple[str, ...]]:
        try:
            return self._repository.fetch(base), ()
        except GitUnreachable as exc:
            known = self._repository.last_known(base)
            if known is None:
                raise
            return known, (f"{exc}; the worktree starts from {base} as it was last known, {known[:12]}",)

    def prepare(self, plan: WorktreePlan, *, ports: PortPair | None = None, run: SetupRunner | None = None) -> Prepared:
        """Make what *plan* says, or find it made, and fill it."""
        worktree = self._repository.add_worktree(plan.path, branch=plan.branch, start=plan.start, reason=plan.reason)
        copied, notices = self.fill(plan.path, ports=ports, run=run)

        return Prepared(worktree=worktree, copied=copied, notices=(*plan.notices, *notices))

    def fill(
        self, path: Path, *, ports: PortPair | None = None, run: SetupRunner | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """
        Put into a worktree what git does not have, and set it up with *run*; return what was copied, and notices.

        Raises SetupFailed when a command fails: the worktree stays, and filling it again runs all of them again.
        """
        copied, notices = self._copy_included(path)
        if ports is not None:
            notices += self.write_ports(path, ports)
        if run is not None:
            self._set_up(path, run)

        return copied, notices

    def _set_up(self, path: Path, run: SetupRunner) -> None:
        for number, command in enumerate(self._setup, start=1):
            if why := run(command, cwd=path, number=number):
                raise SetupFailed(command, why)

    def write_ports(self, path: Path, ports: PortPair) -> tuple[str, ...]:
        """Write `.ports.env` into a worktree; return what a person should know about it."""
        lines = [f"{name}={value}\n" for name, value in ports_file(ports)]
        _write_inside(path, PORTS_FILE, "".join(lines).encode(), mode=0o644)
        if PORTS_FILE in self._workplace.ignored(path, (PORTS_FILE,)):
            return ()

        return (f"{PORTS_FILE} is not ignored by git: add it to .gitignore, or an agent may commit it",)

    def check(self, adw_id: str, *, branch: str, commits: Sequence[str] = ()) -> Worktree:
        """
        Return the worktree of a workflow that goes on; raise GitError when it is not what was recorded.

        It must be a linked worktree of its own, locked for this workflow, on *branch*, and *commits* must exist.
        """
        path = self.path_of(adw_id)
        found = next((entry for entry in self._repository.worktrees() if entry.path == path), None)
        if found is None or found.is_prunable:
            raise GitError(f"the worktree {path} is gone: go on from an earlier phase, or roll the workflow back")
        self._workplace.git_dir(path)
        if found.lock_reason != lock_reason(adw_id):
            raise GitError(f"the worktree {path} is locked with {found.lock_reason!r}: it is not that of {adw_id}")
        if found.branch != branch:
            raise GitError(f"the worktree {path} is on {found.branch or 'no branch'}, not on {branch}: check that out")
        if lost := [commit for commit in commits if not self._workplace.has_commit(path, commit)]:
            raise GitError(f"the commit {lost[0]} of workflow {adw_id} is lost: go on from an earlier phase")

        return found

    def _copy_included(self, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what was copied from the main checkout, and a sentence for each file that could not be."""
        root = self._repository.root
        present = [name for name in self._include if os.path.lexists(root / name)]
        # git refuses to say anything about what lies behind a link.
        ignored = self._workplace.ignored(path, tuple(name for name in present if _is_inside(path / name, path)))
        problems = {name: _copy(root, path, name, is_ignored=name in ignored) for name in present}

        return (
            tuple(name for name, problem in problems.items() if not problem),
            tuple(f"{name} is not copied into the worktree: {why}" for name, why in problems.items() if why),
        )


def ports_file(ports: PortPair) -> Iterator[tuple[str, str]]:
    """Yield the lines of `.ports.env`, by the names that ADW set-ups use."""
    yield "BACKEND_PORT", str(ports.backend)
    yield "FRONTEND_PORT", str(ports.frontend)
    yield "VITE_BACKEND_URL", f"http://localhost:{ports.backend}"


def _copy(root: Path, tree: Path, name: str, *, is_ignored: bool) -> str:
    """Copy one file; return why not, "" when it was."""
    source = root / name
    if not _is_inside(tree / name, tree):
        return "a link in the worktree leads out of it"
    if not is_ignored:
        return "git does not ignore it and could commit it"
    if source.is_symlink() or not source.is_file() or not _is_inside(source, root):
        return "it is not a regular file of the main checkout"
    try:
        _write_inside(tree, name, source.read_bytes(), mode=stat.S_IMODE(source.stat().st_mode) & 0o700)
    except (GitError, OSError) as exc:
        return str(exc)

    return ""


def _write_inside(tree: Path, name: str, content: bytes, *, mode: int) -> None:
    """Put a whole file at *name* in *tree*; raise GitError when a link would lead it elsewhere."""
    target = tree / PurePosixPath(name)
    if not _is_inside(target, tree) or target.is_symlink():
        raise GitError(f"{target} leads out of the worktree: adw does not follow links")
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = target.with_name(f"{target.name}.adw-new")
    temp.unlink(missing_ok=True)
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(content)
            os.fchmod(fd, mode)
        temp.replace(target)
    finally:
        temp.unlink(missing_ok=True)


def _is_inside(path: Path, root: Path) -> bool:
    return root.resolve() in (path.parent.resolve() / path.name).parents
