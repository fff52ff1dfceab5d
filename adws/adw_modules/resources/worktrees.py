"""
What is put into a new worktree that git does not have: files of the person, its ports, what set-up commands make.

Nothing is put into a worktree that git would commit: of the person's own files only those that git ignores are copied,
and no link is followed, neither where a file is read nor where it is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from adws.adw_modules.errors import GitError, SetupFailed
from adws.adw_modules.interfaces_resources import PortPair
from adws.adw_modules.resources.repository import RepositoryGit
from adws.adw_modules.resources.workplace import PORTS_FILE, WorkplaceGit


class SetupRunner(Protocol):
    """What runs the set-up commands of a worktree."""

    def __call__(self, argv: Sequence[str], *, cwd: Path, number: int) -> str:
        """Run one to its end, keep its output, and return "" when it went well, else why not and where that is."""


class Worktrees:
    """Fills the worktrees of workflows."""

    def __init__(
        self,
        repository: RepositoryGit,
        workplace: WorkplaceGit,
        *,
        include: Sequence[str] = (),
        setup: Sequence[Sequence[str]] = (),
    ) -> None:
        """Give new worktrees the ignored files *include* of the main checkout, and run the commands *setup* in them."""
        self._repository = repository
        self._workplace = workplace
        self._include = tuple(include)
        self._setup = tuple(tuple(command) for command in setup)

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
