"""
Work inside a worktree: its changes, commits, patches, rebases, and the files put into a new one.

adw works in linked worktrees only, so the person's main checkout cannot be committed to by mistake. Files that adw
itself puts into a worktree are not part of the work and are never committed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from adws.adw_modules.errors import FilterNotRun, GitError, SetupFailed, ShippingRefused
from adws.adw_modules.git import change_policy, locks
from adws.adw_modules.git.change_policy import CommitText, DiffRules
from adws.adw_modules.git.git import Answer, check_branch

if TYPE_CHECKING:
    from adws.adw_modules.git.repository import Repository
    from adws.adw_modules.resources.ports import PortPair

#: adw writes this file with the worktree's ports into every worktree.
PORTS_FILE = ".ports.env"
#: With a wildcard: git reports an error for a plain name that is ignored, even if it is excluded.
_ALL_BUT_OURS = (
    ".",
    f":(top,exclude,glob){PORTS_FILE[:-1]}[{PORTS_FILE[-1]}]",
    ":(top,exclude,glob).aider.tags.cache.*/**",
)
#: aider's cache of a repository: in the worktree, but not part of the work.
_AIDER_CACHE = ".aider.tags.cache."
#: A repository inside the worktree has its own configuration, which anybody may have written: git does not run there.
_SUBMODULES = "--ignore-submodules=dirty"
#: The mode of a submodule entry: a commit of another repository.
_GITLINK = "160000 "
#: Kind of a line of `git status` -> fields before its path; and the prefix of the line with the commit of the head.
_FIELDS_BEFORE_PATH = {"1": 8, "u": 10, "?": 1}
_HEAD_LINE = "# branch.oid "
#: Files per command: a command line has a limited length.
_AT_ONCE = 500
#: A second index into which all files are read after a restart.
_FRESH_INDEX = "adw-fresh-index"
_SHA = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
#: Directories in a worktree's git directory that exist while a rebase is unfinished.
_OF_REBASE = ("rebase-merge", "rebase-apply")


class GitWorkplace:
    """Operations inside the worktrees of a repository."""

    def __init__(
        self, repository: Repository, *, include: Sequence[str] = (), setup: Sequence[Sequence[str]] = ()
    ) -> None:
        """Copy the ignored files *include* of the main checkout into new worktrees; run the commands *setup* there."""
        self._repository = repository
        self._commands = repository.commands
        self._include = include
        self._setup = setup

    # --- what changed ------------------------------------------------------------------------------------------

    def status(self, path: Path) -> tuple[str, ...]:
        """Return the paths with uncommitted changes."""
        return self.head_and_status(path)[1]

    def head_and_status(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """Return the commit of the head, or "" without one, and the paths with uncommitted changes."""
        options = ("--porcelain=v2", "--branch", "--no-ahead-behind", "-z", "--untracked-files=all", "--no-renames")
        head, names = "", []
        for part in self._git(path, "status", *options, _SUBMODULES).parts:
            kind = part[0]
            if kind == "#":
                head = part.removeprefix(_HEAD_LINE) if part.startswith(_HEAD_LINE) else head
            else:
                names.append(part.split(" ", _FIELDS_BEFORE_PATH[kind])[-1])

        return head if head != "(initial)" else "", tuple(
            name for name in names if name != PORTS_FILE and not name.startswith(_AIDER_CACHE)
        )

    def diff(self, path: Path, base: str) -> str:
        """Return the patch from *base* to the head."""
        return self._difference(path, base, "--binary").text

    def changed_files(self, path: Path, base: str) -> tuple[str, ...]:
        """Return the files that differ from *base*."""
        return self._difference(path, base, "--name-only", "-z", "--no-renames").parts

    def _difference(self, path: Path, base: str, *options: str) -> Answer:
        commit = self._commit(path, base)

        return self._git(path, "diff", "--no-ext-diff", "--no-textconv", *options, commit, "HEAD", "--")

    def commit_texts(self, path: Path, base: str) -> tuple[CommitText, ...]:
        """Return the commits of the head that *base* lacks; a merge with its changes against each parent."""
        form = "--format=%x00%H%x00%an <%ae> %cn <%ce>%x00%B%x00"
        options = ("--patch", "-m", "--no-ext-diff", "--no-textconv", "--no-color")
        said = self._git(path, "log", form, *options, f"{self._commit(path, base)}..HEAD", "--")
        parts = said.text.split("\0")[1:]
        fours = zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True)

        return tuple(CommitText(sha=sha, person=who, message=text, patch=patch) for sha, who, text, patch in fours)

    def refuse_unfit(self, path: Path, base: str, rules: DiffRules, *, has_secret: Callable[[str], bool]) -> None:
        """Raise ShippingRefused if the commits since *base* may not leave this machine."""
        diff, files = self.diff(path, base), self.changed_files(path, base)
        problems = change_policy.check_diff(diff, files, rules, has_secret=has_secret)
        if not problems:
            problems = change_policy.check_commits(self.commit_texts(path, base), rules, has_secret=has_secret)
        if problems:
            raise ShippingRefused(f"what is committed may not leave this machine: {'; '.join(problems)}")

    def patch_of_changes(self, path: Path) -> bytes:
        """Return the uncommitted changes, untracked files included, as a patch."""
        return self._changes(path, "HEAD", (), "--binary") if self.status(path) else b""

    def patch_of_paths(self, path: Path, base: str, names: Sequence[str]) -> bytes:
        """Return the changes of the files *names* since *base*, committed or not, as a patch."""
        return self._changes(path, self._commit(path, base), names, "--binary") if names else b""

    def same_as(self, path: Path, commit: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of *names* that are in the worktree as in *commit*, including files missing in both."""
        differs = os.fsdecode(self._changes(path, self._commit(path, commit), names, "--name-only", "-z")).split("\0")

        return tuple(name for name in names if name not in differs)

    def _changes(self, path: Path, base: str, names: Sequence[str], *options: str) -> bytes:
        """Return the diff from *base* to the content of the worktree, of all files if *names* is empty."""
        git_dir = self.git_dir(path)
        # In a temporary index: the worktree's own stays as it is, and may be locked by a git that was killed.
        with _index(git_dir / "adw-patch-index") as (spare, env):
            if (git_dir / "index").is_file():
                # With its modification time: git uses it to tell which files it has to read again.
                shutil.copy2(git_dir / "index", spare)
            self._add_all(path, env)
            fixed = ("--cached", "--no-ext-diff", "--no-textconv", "--no-renames", *options, base, "--")
            some = _literally(names) or [[]]
            return b"".join(self._git(path, "diff", *fixed, *portion, env=env).out for portion in some)

    def branch(self, path: Path) -> str:
        """Return the branch of the worktree, or "" if its head is detached."""
        return self._git(path, "symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text.strip()

    def ignored(self, path: Path, names: Sequence[str]) -> frozenset[str]:
        """Return those of *names*, relative to *path*, that git ignores there."""
        if not names:
            return frozenset()

        return frozenset(os.fsdecode(self._git(path, "check-ignore", "--", *names, ok=(0, 1)).out).splitlines())

    # --- commits -----------------------------------------------------------------------------------------------

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything and return the commit, or None if there was nothing to commit."""
        self._clear_locks(path)
        self._add_all(path)
        if unused := self._commands.filters_not_run:
            staged = self._git(path, "diff", "--cached", "--name-only", "-z", "--no-renames", "--diff-filter=d").parts
            for some in _portions(staged):
                said = self._git(path, "check-attr", "-z", "filter", "--", *some).parts
                for name, driver in zip(said[::3], said[2::3], strict=True):
                    if driver in unused:  # the file would be committed without the filter that should change it
                        raise FilterNotRun(name, driver)
        options = ("--quiet", "--no-verify", "--cleanup=whitespace", f"--message={message}")
        done = self._git(path, "commit", *options, ok=(0, 1))
        if done.status == 0:
            return self._commit(path, "HEAD")
        if self._git(path, "diff", "--cached", "--quiet", "--no-ext-diff", ok=(0, 1)).status != 0:
            raise GitError(f"git commit failed: {done.reason}")

        return None

    def _add_all(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        """Add everything to the index; a nested repository only by its commit, which needs no git run in it."""
        entries = self._git(path, "ls-files", "--stage", "-z", env=env).parts
        inside = [entry.partition("\t")[2] for entry in entries if entry.startswith(_GITLINK)]
        without = [f":(top,exclude,literal){name}" for name in inside]
        self._git(path, "add", "--all", "--", *_ALL_BUT_OURS, *without, env=env)
        for names in _portions(inside):
            self._git(path, "update-index", "--add", "--remove", "--", *names, env=env)

    def read_again(self, path: Path, commit: str) -> tuple[str, ...]:
        """
        Read every file of the worktree into a fresh index, and return the paths that differ from *commit*.

        The worktree's own index is not used: it takes a file of the same size and time for unchanged, and a power cut
        may have damaged it too.
        """
        fresh = self._clear_locks(path) / _FRESH_INDEX
        _remove_index(fresh)
        env, known = {"GIT_INDEX_FILE": str(fresh)}, self._commit(path, commit)
        self._git(path, "read-tree", known, env=env)
        self._add_all(path, env)
        options = ("--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")

        return self._git(path, "diff", *options, known, "--", env=env).parts

    def commit_of_files(self, path: Path, commit: str, message: str) -> str:
        """
        Return a commit of the files that `read_again` read; its parent is the head, or *commit* if that is unreadable.

        It is on no branch; the same files give the same commit.
        """
        env = {"GIT_INDEX_FILE": str(self.git_dir(path) / _FRESH_INDEX)}
        parent = self._commands.commit_of("HEAD", tree=path) or self._commit(path, commit)
        tree = self._git(path, "write-tree", env=env).text.strip()

        return self._dated_commit(tree, parent, message)

    def restore(self, path: Path, commit: str) -> None:
        """Reset branch, index and files to *commit* after `read_again`; only files that differ are written."""
        git_dir = self.git_dir(path)
        fresh = git_dir / _FRESH_INDEX
        known = self._commit(path, commit)
        self._git(path, "reset", "--quiet", "--hard", known, env={"GIT_INDEX_FILE": str(fresh)})
        fresh.replace(git_dir / "index")

    def keep_files(self, adw_id: str, path: Path, base: str) -> str:
        """
        Keep the files of the damaged worktree *path* under a salvage ref, as a commit on top of *base*; return the ref.

        Returns "" if they equal those of *base*. Ignored files are left out, as in every worktree. The same files give
        the same commit.
        """
        with _index(self._repository.common_dir / f"adw-files-{path.name}") as (_, env):
            # Run on the repository itself: the directory is no longer a worktree.
            self._commands.run("read-tree", base, cwd=path, env=env)
            self._commands.run("add", "--all", "--", *_ALL_BUT_OURS, cwd=path, env=env)
            tree = self._commands.run("write-tree", cwd=path, env=env).text.strip()
        if tree == self._commands.run("rev-parse", f"{base}^{{tree}}").text.strip():
            return ""
        commit = self._dated_commit(tree, base, f"Files of the damaged worktree {path.name}")

        return self._repository.keep_commits(adw_id, commit)

    def _dated_commit(self, tree: str, parent: str, message: str) -> str:
        """Return a commit on no branch, dated like its parent, so that the same tree gives the same commit."""
        run = self._commands.run
        date = run("show", "--no-patch", "--format=%ct +0000", parent).text.strip()
        dated = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}

        return run("commit-tree", tree, "-p", parent, "-m", message, env=dated).text.strip()

    # --- undoing -----------------------------------------------------------------------------------------------

    def put_back(self, path: Path, base: str, names: Sequence[str]) -> tuple[str, ...]:
        """
        Restore the files *names* to *base*, and return those that could not be restored.

        If a commit since *base* changed one of them, the commits since are undone and their other changes stay as
        uncommitted ones. A nested repository is left where it is: its history could not be restored.
        """
        self._clear_locks(path)
        commit = self._commit(path, base)
        if set(names).intersection(self.changed_files(path, commit)):
            self._git(path, "reset", "--quiet", "--soft", commit)
        before = self._files_at(path, commit, _literally(names))
        for some in _literally([name for name in names if name not in before]):
            self._git(path, "rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *some)
        left = tuple(name for name in names if name not in before and not _remove_file(path, name))
        for some in _literally([name for name in names if name in before]):
            self._git(path, "restore", f"--source={commit}", "--staged", "--worktree", "--", *some)

        return left

    def show_as(self, path: Path, commit: str, names: Sequence[str]) -> None:
        """Give the files *names* their content of *commit* in the worktree only: index and commits stay."""
        self._clear_locks(path)
        known = self._commit(path, commit)
        there = self._files_at(path, known, _portions(names), "--full-tree")
        for name in sorted(names, reverse=True):  # the content of a directory before the file that it replaced
            if name not in there and not _remove_file(path, name):
                raise GitError(f"{path / name} cannot be taken away: it is no file of the worktree")
        for some in _literally([name for name in names if name in there]):
            self._git(path, "restore", f"--source={known}", "--worktree", "--", *some)

    def _files_at(self, path: Path, commit: str, portions: Sequence[Sequence[str]], *options: str) -> set[str]:
        """Return those of the named files that *commit* has."""
        asked = ("ls-tree", "-r", "-z", *options, "--name-only", commit, "--")

        return {name for some in portions for name in self._git(path, *asked, *some).parts}

    def discard(self, path: Path, commit: str) -> None:
        """Reset branch and files to *commit*; ignored files stay."""
        self._stop_rebase(path)
        self._git(path, "reset", "--quiet", "--hard", self._commit(path, commit))
        kept = (f"--exclude=/{PORTS_FILE}", f"--exclude=/{_AIDER_CACHE}*")
        # Forced twice: a repository that a gate made here is not work either.
        self._git(path, "clean", "--quiet", "-d", "--force", "--force", *kept)

    def rebase(self, path: Path, onto: str) -> tuple[str, ...]:
        """Rebase onto a commit; return the conflicting files, after undoing the rebase."""
        self._stop_rebase(path)
        options = ("--quiet", "--merge", "--no-verify", "--no-stat")
        done = self._git(path, "rebase", *options, self._commit(path, onto), ok=None)
        if done.status == 0:
            return ()
        conflicts = self._git(path, "diff", "--name-only", "--diff-filter=U", "-z").parts
        self._stop_rebase(path)
        if not conflicts:
            raise GitError(f"git rebase failed in {path}: {done.reason}")

        return tuple(dict.fromkeys(conflicts))

    def trim(self, path: Path, onto: str, *, without: str, message: str, is_squashed: bool) -> None:
        """
        Remove the file *without* (unless it is "" or *onto* has it) from what the branch adds to *onto*.

        With *is_squashed* the branch becomes one commit with *message*, otherwise the removal is a commit of its own.
        The branch moves in one step; a second call changes nothing.
        """
        base, head = self._commit(path, onto), self._commit(path, "HEAD")
        named = _literally([without]) if without else []
        added = self._files_at(path, head, named) - self._files_at(path, base, named)
        commits = len(self._git(path, "rev-list", f"{base}..{head}").text.split())
        if not added and (commits <= 1 or not is_squashed):
            return
        with _index(self._clear_locks(path) / "adw-trim-index") as (_, env):
            self._git(path, "read-tree", head, env=env)
            for some in _literally(sorted(added)):
                self._git(path, "rm", "--quiet", "--cached", "--", *some, env=env)
            tree = self._git(path, "write-tree", env=env).text.strip()
        if tree == self._git(path, "rev-parse", f"{base}^{{tree}}").text.strip():
            return  # the branch adds nothing but this file: it is the work
        text = message if is_squashed else f"Remove {without}"
        parent = base if is_squashed else head
        made = self._git(path, "commit-tree", tree, "-p", parent, "-m", text).text.strip()
        self._git(path, "reset", "--quiet", "--keep", made)

    def _stop_rebase(self, path: Path) -> None:
        """Undo an unfinished rebase: one of ours with conflicts, or one that was killed."""
        git_dir = self._clear_locks(path)
        if any((git_dir / name).is_dir() for name in _OF_REBASE):
            self._git(path, "rebase", "--abort")

    def end_rebase(self, path: Path, branch: str) -> None:
        """Abort an unfinished rebase, whatever a power cut left of its files, and return to *branch*."""
        git_dir = self.git_dir(path)
        started = [git_dir / name for name in _OF_REBASE if (git_dir / name).is_dir()]
        if not started:
            return
        self._clear_locks(path)
        self._git(path, "symbolic-ref", "HEAD", f"refs/heads/{check_branch(branch)}")
        self._git(path, "reset", "--quiet", "--hard", "HEAD")
        for place in started:  # last: these directories show that the cleanup is unfinished
            shutil.rmtree(place)

    # --- filling -----------------------------------------------------------------------------------------------

    def fill(
        self, path: Path, *, ports: PortPair | None = None, run: Callable[[Sequence[str], int], str] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """
        Put into a worktree what git does not have, and set it up with *run*; return the copied files and notices.

        Only files of the person that git ignores are copied, so that none is committed; links are not followed. *run*
        gets a set-up command and its number, and returns "" or why it failed. Raises SetupFailed if a command fails:
        the worktree stays, and the next call runs all commands again.
        """
        root, copied, notices = self._repository.root, [], []
        present = [name for name in self._include if os.path.lexists(root / name)]
        # git rejects paths behind a link.
        ignored = self.ignored(path, [name for name in present if _is_inside(path / name, path)])
        for name in present:
            source, why = root / name, ""
            if not _is_inside(path / name, path):
                why = "a link in the worktree leads out of it"
            elif name not in ignored:
                why = "git does not ignore it and could commit it"
            elif source.is_symlink() or not source.is_file() or not _is_inside(source, root):
                why = "it is not a regular file of the main checkout"
            else:
                try:
                    mode = stat.S_IMODE(source.stat().st_mode) & 0o700
                    _write_inside(path, name, source.read_bytes(), mode=mode)
                    copied.append(name)
                except (GitError, OSError) as exc:
                    why = str(exc)
            if why:
                notices.append(f"{name} is not copied into the worktree: {why}")
        if ports is not None:
            self.write_ports(path, ports)
            if PORTS_FILE not in self.ignored(path, (PORTS_FILE,)):
                notices.append(f"{PORTS_FILE} is not ignored by git: add it to .gitignore, or an agent may commit it")
        for number, command in enumerate(self._setup if run is not None else (), start=1):
            if run is not None and (why := run(command, number)):
                raise SetupFailed(command, why)

        return tuple(copied), tuple(notices)

    def write_ports(self, path: Path, ports: PortPair) -> None:
        """Write `.ports.env` with the variable names that ADW set-ups use."""
        text = (
            f"BACKEND_PORT={ports.backend}\n"
            f"FRONTEND_PORT={ports.frontend}\n"
            f"VITE_BACKEND_URL=http://localhost:{ports.backend}\n"
        )
        _write_inside(path, PORTS_FILE, text.encode(), mode=0o644)

    # --- internals ---------------------------------------------------------------------------------------------

    def git_dir(self, path: Path) -> Path:
        """Return the private git directory of the worktree *path*; raise GitError if it is not a linked one."""
        return self._commands.tree_dir(path)

    def _clear_locks(self, path: Path) -> Path:
        """Remove the locks of a dead git in the worktree *path*; return its git directory."""
        git_dir = self.git_dir(path)
        locks.clear(git_dir, path)

        return git_dir

    def _commit(self, path: Path, ref: str) -> str:
        """Return the commit of *ref*: a ref could be read as an option, a commit cannot."""
        if _SHA.fullmatch(ref):
            return ref
        if (commit := self._commands.commit_of(ref, tree=path)) is None:
            raise GitError(f"{ref} names no commit")

        return commit

    def _git(
        self, path: Path, *args: str, env: Mapping[str, str] | None = None, ok: Sequence[int] | None = (0,)
    ) -> Answer:
        return self._commands.run(*args, tree=path, env=env, ok=ok)


@contextmanager
def _index(index: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Yield *index*, a temporary index that exists inside the block only, and the variable that makes git use it."""
    _remove_index(index)
    try:
        yield index, {"GIT_INDEX_FILE": str(index)}
    finally:
        _remove_index(index)


def _remove_index(index: Path) -> None:
    """Remove a temporary index and its lock, which a killed git may have left."""
    for left in (index, index.with_name(f"{index.name}.lock")):
        left.unlink(missing_ok=True)


def _literally(names: Sequence[str]) -> list[list[str]]:
    """Return *names* in portions, as pathspecs that match exactly these files."""
    return [[f":(top,literal){name}" for name in some] for some in _portions(names)]


def _portions(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]


def _remove_file(tree: Path, name: str) -> bool:
    """Remove one file and the directories it leaves empty; say whether it was removed."""
    target = tree / name
    if not _is_inside(target, tree) or (target.is_dir() and not target.is_symlink()):
        return False
    target.unlink(missing_ok=True)
    with suppress(OSError):  # stop at the first directory that is not empty
        for place in target.parents:
            if place == tree:
                break
            place.rmdir()

    return True


def _write_inside(tree: Path, name: str, content: bytes, *, mode: int) -> None:
    """Write a whole file at *name* in *tree*; raise GitError if a link leads out of the tree."""
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
