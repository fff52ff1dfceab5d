"""
A worktree as a place to work in: what changed there, commits, patches, rebases, and what is put into a new one.

It refuses to work anywhere but in a linked worktree, so the person's main checkout cannot be committed to by mistake.
Files that adw itself puts into a worktree are no part of the work and are never committed.
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

#: What adw writes into every worktree: which ports are its own.
PORTS_FILE = ".ports.env"
#: With a wildcard: git takes a plain name that is ignored for a mistake, even where it is left out.
_ALL_BUT_OURS = (
    ".",
    f":(top,exclude,glob){PORTS_FILE[:-1]}[{PORTS_FILE[-1]}]",
    ":(top,exclude,glob).aider.tags.cache.*/**",
)
#: Where aider keeps what it knows of a repository: in the worktree, and no part of the work.
_AIDER_CACHE = ".aider.tags.cache."
#: A repository inside the worktree has its own configuration, which anybody may have written: git is not run in it.
_SUBMODULES = "--ignore-submodules=dirty"
#: The mode of a commit of another repository.
_GITLINK = "160000 "
#: Kind of a line of `git status` -> fields before its path, and the line that names the commit of the head.
_FIELDS_BEFORE_PATH = {"1": 8, "u": 10, "?": 1}
_HEAD_LINE = "# branch.oid "
#: Files named to one git at a time: a command line has an end.
_AT_ONCE = 500
#: An index beside the worktree's own, into which all files are read after a restart.
_FRESH_INDEX = "adw-fresh-index"
_SHA = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
#: Directories that git has in a worktree's git directory for as long as a rebase is not finished.
_OF_REBASE = ("rebase-merge", "rebase-apply")


class GitWorkplace:
    """What is done inside the worktrees of a repository."""

    def __init__(
        self, repository: Repository, *, include: Sequence[str] = (), setup: Sequence[Sequence[str]] = ()
    ) -> None:
        """Give new worktrees the ignored files *include* of the main checkout, and run the commands *setup* in them."""
        self._repository = repository
        self._commands = repository.commands
        self._include = include
        self._setup = setup

    # --- what changed ------------------------------------------------------------------------------------------

    def status(self, path: Path) -> tuple[str, ...]:
        """Return the paths with changes that are not committed."""
        return self.head_and_status(path)[1]

    def head_and_status(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """Return the commit of the head, "" when there is none, and the paths with changes that are not committed."""
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
        """Return the commits that the head has and *base* has not; a merge with what it changes for each parent."""
        form = "--format=%x00%H%x00%an <%ae> %cn <%ce>%x00%B%x00"
        options = ("--patch", "-m", "--no-ext-diff", "--no-textconv", "--no-color")
        said = self._git(path, "log", form, *options, f"{self._commit(path, base)}..HEAD", "--")
        parts = said.text.split("\0")[1:]
        fours = zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True)

        return tuple(CommitText(sha=sha, person=who, message=text, patch=patch) for sha, who, text, patch in fours)

    def refuse_unfit(self, path: Path, base: str, rules: DiffRules, *, has_secret: Callable[[str], bool]) -> None:
        """Raise ShippingRefused when what was committed since *base* may not leave this machine."""
        diff, files = self.diff(path, base), self.changed_files(path, base)
        problems = change_policy.check_diff(diff, files, rules, has_secret=has_secret)
        if not problems:
            problems = change_policy.check_commits(self.commit_texts(path, base), rules, has_secret=has_secret)
        if problems:
            raise ShippingRefused(f"what is committed may not leave this machine: {'; '.join(problems)}")

    def patch_of_changes(self, path: Path) -> bytes:
        """Return what is not committed, untracked files included, as a patch."""
        return self._changes(path, "HEAD", (), "--binary") if self.status(path) else b""

    def patch_of_paths(self, path: Path, base: str, names: Sequence[str]) -> bytes:
        """Return what was done to the files *names* since *base*, committed or not, as a patch."""
        return self._changes(path, self._commit(path, base), names, "--binary") if names else b""

    def same_as(self, path: Path, commit: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the files *names* that are in the worktree as *commit* has them, also those it has not."""
        differs = os.fsdecode(self._changes(path, self._commit(path, commit), names, "--name-only", "-z")).split("\0")

        return tuple(name for name in names if name not in differs)

    def _changes(self, path: Path, base: str, names: Sequence[str], *options: str) -> bytes:
        """Return the diff from *base* to what is in the worktree, of all files when none is named."""
        git_dir = self.git_dir(path)
        # In an index of its own: the worktree's is left as it is, and may be locked by a git that was killed.
        with _index(git_dir / "adw-patch-index") as (spare, env):
            if (git_dir / "index").is_file():
                # With its moment: by it git knows which files it has to read again, because they changed just then.
                shutil.copy2(git_dir / "index", spare)
            self._add_all(path, env)
            fixed = ("--cached", "--no-ext-diff", "--no-textconv", "--no-renames", *options, base, "--")
            some = _literally(names) or [[]]
            return b"".join(self._git(path, "diff", *fixed, *portion, env=env).out for portion in some)

    def branch(self, path: Path) -> str:
        """Return the branch the worktree is on, "" when it is on none."""
        return self._git(path, "symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text.strip()

    def ignored(self, path: Path, names: Sequence[str]) -> frozenset[str]:
        """Return those of *names*, relative to *path*, that git ignores there."""
        if not names:
            return frozenset()

        return frozenset(os.fsdecode(self._git(path, "check-ignore", "--", *names, ok=(0, 1)).out).splitlines())

    # --- commits -----------------------------------------------------------------------------------------------

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything and return the commit, None when there was nothing to commit."""
        self._clear_locks(path)
        self._add_all(path)
        if unused := self._commands.filters_not_run:
            staged = self._git(path, "diff", "--cached", "--name-only", "-z", "--no-renames", "--diff-filter=d").parts
            for some in _portions(staged):
                said = self._git(path, "check-attr", "-z", "filter", "--", *some).parts
                for name, driver in zip(said[::3], said[2::3], strict=True):
                    if driver in unused:  # the file would be committed as it is, which a filter was meant to change
                        raise FilterNotRun(name, driver)
        options = ("--quiet", "--no-verify", "--cleanup=whitespace", f"--message={message}")
        done = self._git(path, "commit", *options, ok=(0, 1))
        if done.status == 0:
            return self._commit(path, "HEAD")
        if self._git(path, "diff", "--cached", "--quiet", "--no-ext-diff", ok=(0, 1)).status != 0:
            raise GitError(f"git commit failed: {done.reason}")

        return None

    def _add_all(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        """Take everything into the index; of a repository inside, its commit alone, for which git is not run in it."""
        entries = self._git(path, "ls-files", "--stage", "-z", env=env).parts
        inside = [entry.partition("\t")[2] for entry in entries if entry.startswith(_GITLINK)]
        without = [f":(top,exclude,literal){name}" for name in inside]
        self._git(path, "add", "--all", "--", *_ALL_BUT_OURS, *without, env=env)
        for names in _portions(inside):
            self._git(path, "update-index", "--add", "--remove", "--", *names, env=env)

    def read_again(self, path: Path, commit: str) -> tuple[str, ...]:
        """
        Read every file of the worktree into an index of its own, and return the paths that differ from *commit*.

        The worktree's index is not asked: it believes a file of the same size and time to be unchanged, and a power
        cut may have damaged it too.
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
        Return a commit of what `read_again` read, on top of the head, or of *commit* when that cannot be read.

        It is on no branch, and the same one when the same files are read again.
        """
        env = {"GIT_INDEX_FILE": str(self.git_dir(path) / _FRESH_INDEX)}
        parent = self._commands.commit_of("HEAD", tree=path) or self._commit(path, commit)
        tree = self._git(path, "write-tree", env=env).text.strip()

        return self._dated_commit(tree, parent, message)

    def restore(self, path: Path, commit: str) -> None:
        """Make branch, index and files those of *commit*, after `read_again`: only what differs is written."""
        git_dir = self.git_dir(path)
        fresh = git_dir / _FRESH_INDEX
        known = self._commit(path, commit)
        self._git(path, "reset", "--quiet", "--hard", known, env={"GIT_INDEX_FILE": str(fresh)})
        fresh.replace(git_dir / "index")

    def keep_files(self, adw_id: str, path: Path, base: str) -> str:
        """
        Keep the files of the damaged worktree *path* under a salvage ref, as a commit on top of *base*; return the ref.

        Returns "" when they are those of *base*. Ignored files are no part of the work, as in every worktree. The same
        files give the same commit.
        """
        with _index(self._repository.common_dir / f"adw-files-{path.name}") as (_, env):
            # With the repository itself: the directory is no worktree any more.
            self._commands.run("read-tree", base, cwd=path, env=env)
            self._commands.run("add", "--all", "--", *_ALL_BUT_OURS, cwd=path, env=env)
            tree = self._commands.run("write-tree", cwd=path, env=env).text.strip()
        if tree == self._commands.run("rev-parse", f"{base}^{{tree}}").text.strip():
            return ""
        commit = self._dated_commit(tree, base, f"Files of the damaged worktree {path.name}")

        return self._repository.keep_commits(adw_id, commit)

    def _dated_commit(self, tree: str, parent: str, message: str) -> str:
        """Return a commit on no branch with the date of its parent, so that the same tree gives the same commit."""
        run = self._commands.run
        date = run("show", "--no-patch", "--format=%ct +0000", parent).text.strip()
        dated = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}

        return run("commit-tree", tree, "-p", parent, "-m", message, env=dated).text.strip()

    # --- undoing -----------------------------------------------------------------------------------------------

    def put_back(self, path: Path, base: str, names: Sequence[str]) -> tuple[str, ...]:
        """
        Make the files *names* what they were at *base*, and return those that could not be.

        A commit since *base* that has one of them is undone, and what else it had is left as a change. A repository
        of its own is left where it is: nothing here could bring its history back.
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
        """Have the files *names* as *commit* has them, in the worktree alone: index and commits stay."""
        self._clear_locks(path)
        known = self._commit(path, commit)
        there = self._files_at(path, known, _portions(names), "--full-tree")
        for name in sorted(names, reverse=True):  # what is in a directory before what it stands in the place of
            if name not in there and not _remove_file(path, name):
                raise GitError(f"{path / name} cannot be taken away: it is no file of the worktree")
        for some in _literally([name for name in names if name in there]):
            self._git(path, "restore", f"--source={known}", "--worktree", "--", *some)

    def _files_at(self, path: Path, commit: str, portions: Sequence[Sequence[str]], *options: str) -> set[str]:
        """Return which of the named files *commit* has."""
        asked = ("ls-tree", "-r", "-z", *options, "--name-only", commit, "--")

        return {name for some in portions for name in self._git(path, *asked, *some).parts}

    def discard(self, path: Path, commit: str) -> None:
        """Make branch and files what they were at *commit*; what git ignores stays."""
        self._stop_rebase(path)
        self._git(path, "reset", "--quiet", "--hard", self._commit(path, commit))
        kept = (f"--exclude=/{PORTS_FILE}", f"--exclude=/{_AIDER_CACHE}*")
        # Twice forced: a repository that a gate made here is no work either.
        self._git(path, "clean", "--quiet", "-d", "--force", "--force", *kept)

    def rebase(self, path: Path, onto: str) -> tuple[str, ...]:
        """Rebase onto a commit; return the files in conflict, and then nothing is changed."""
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
        Take the file *without* ("": none), unless *onto* has it, out of what the branch adds to *onto*.

        With *is_squashed* all of it becomes one commit with *message*, else the removal is a commit of its own. The
        branch moves in one step, and nothing is changed a second time.
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
            return  # there is nothing but the file: it is the work
        text = message if is_squashed else f"Remove {without}"
        parent = base if is_squashed else head
        made = self._git(path, "commit-tree", tree, "-p", parent, "-m", text).text.strip()
        self._git(path, "reset", "--quiet", "--keep", made)

    def _stop_rebase(self, path: Path) -> None:
        """Undo a rebase that is not finished: ours that met a conflict, or one that was killed."""
        git_dir = self._clear_locks(path)
        if any((git_dir / name).is_dir() for name in _OF_REBASE):
            self._git(path, "rebase", "--abort")

    def end_rebase(self, path: Path, branch: str) -> None:
        """Abort a rebase that is not finished, whatever a power cut left of its files, and be on *branch* again."""
        git_dir = self.git_dir(path)
        started = [git_dir / name for name in _OF_REBASE if (git_dir / name).is_dir()]
        if not started:
            return
        self._clear_locks(path)
        self._git(path, "symbolic-ref", "HEAD", f"refs/heads/{check_branch(branch)}")
        self._git(path, "reset", "--quiet", "--hard", "HEAD")
        for place in started:  # last: until then it is seen that this is not done yet
            shutil.rmtree(place)

    # --- filling -----------------------------------------------------------------------------------------------

    def fill(
        self, path: Path, *, ports: PortPair | None = None, run: Callable[[Sequence[str], int], str] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """
        Put into a worktree what git does not have, and set it up with *run*; return what was copied, and notices.

        Of the person's own files only those that git ignores are copied, so that none is committed; no link is
        followed. *run* gets a set-up command and its number, and returns "" when it went well, else why not. Raises
        SetupFailed when a command fails: the worktree stays, and filling it again runs all of them again.
        """
        root, copied, notices = self._repository.root, [], []
        present = [name for name in self._include if os.path.lexists(root / name)]
        # git refuses to say anything about what lies behind a link.
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
        """Write `.ports.env`, by the names that ADW set-ups use."""
        text = (
            f"BACKEND_PORT={ports.backend}\n"
            f"FRONTEND_PORT={ports.frontend}\n"
            f"VITE_BACKEND_URL=http://localhost:{ports.backend}\n"
        )
        _write_inside(path, PORTS_FILE, text.encode(), mode=0o644)

    # --- how ---------------------------------------------------------------------------------------------------

    def git_dir(self, path: Path) -> Path:
        """Return the private git directory of the worktree *path*; raise GitError when it is not a linked one."""
        return self._commands.tree_dir(path)

    def _clear_locks(self, path: Path) -> Path:
        """Remove the locks that a dead git left in the worktree *path*; return its git directory."""
        git_dir = self.git_dir(path)
        locks.clear(git_dir, path)

        return git_dir

    def _commit(self, path: Path, ref: str) -> str:
        """Return the commit of *ref*: what a caller names could be read as an option, a commit cannot."""
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
    """Yield *index*, an index of ours that is there inside the block alone, and the variable by which git uses it."""
    _remove_index(index)
    try:
        yield index, {"GIT_INDEX_FILE": str(index)}
    finally:
        _remove_index(index)


def _remove_index(index: Path) -> None:
    """Remove an index of ours, and the lock of a git that died with it."""
    for left in (index, index.with_name(f"{index.name}.lock")):
        left.unlink(missing_ok=True)


def _literally(names: Sequence[str]) -> list[list[str]]:
    """Return *names* in portions, as git takes them for files of that very name."""
    return [[f":(top,literal){name}" for name in some] for some in _portions(names)]


def _portions(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]


def _remove_file(tree: Path, name: str) -> bool:
    """Remove one file and the directories it leaves empty; say whether it is gone."""
    target = tree / name
    if not _is_inside(target, tree) or (target.is_dir() and not target.is_symlink()):
        return False
    target.unlink(missing_ok=True)
    with suppress(OSError):  # the first one that has something else in it
        for place in target.parents:
            if place == tree:
                break
            place.rmdir()

    return True


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
