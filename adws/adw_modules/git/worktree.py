"""
A worktree as a place to work in: what changed there, commits, patches, rebases.

It refuses to work anywhere but in a linked worktree, so the person's main checkout cannot be committed to by mistake.
Files that adw itself puts into a worktree are no part of the work and are never committed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules.errors import FilterNotRun, GitError, SetupFailed
from adws.adw_modules.git import git
from adws.adw_modules.git.change_policy import CommitText
from adws.adw_modules.git.git import CHECKOUT_SECONDS, LOCAL_SECONDS, Answer, GitCommands
from adws.adw_modules.interfaces import Clock

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
#: Two letters and a space stand before each path that `git status` names.
_MARKS = 3
#: Files named to one git at a time: a command line has an end.
_AT_ONCE = 500
#: An index beside the worktree's own, into which all files are read after a restart.
_FRESH_INDEX = "adw-fresh-index"
#: Directories that git has in a worktree's git directory for as long as a rebase is not finished.
_OF_REBASE = ("rebase-merge", "rebase-apply")


class GitWorkplace:
    """What is done with git inside a worktree."""

    def __init__(self, commands: GitCommands) -> None:
        self._commands = commands

    def status(self, path: Path) -> tuple[str, ...]:
        """Return the paths with changes that are not committed."""
        self.git_dir(path)
        said = self._git(path, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", _SUBMODULES)
        names = (part[_MARKS:] for part in said.parts)

        return tuple(name for name in names if name != PORTS_FILE and not name.startswith(_AIDER_CACHE))

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything and return the commit, None when there was nothing to commit."""
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        self._add_all(path, {})
        if self._git(path, "diff", "--cached", "--quiet", "--no-ext-diff", ok=(0, 1)).status == 0:
            return None
        self._refuse_filters(path)
        self._git(path, "commit", "--quiet", "--no-verify", "--cleanup=whitespace", f"--message={message}")

        return self._head(path)

    def diff(self, path: Path, base: str) -> str:
        """Return the patch from *base* to the head."""
        return self._difference(path, base, "--binary").text

    def changed_files(self, path: Path, base: str) -> tuple[str, ...]:
        """Return the files that differ from *base*."""
        return self._difference(path, base, "--name-only", "-z", "--no-renames").parts

    def commit_texts(self, path: Path, base: str) -> tuple[CommitText, ...]:
        """Return the commits that the head has and *base* has not; a merge with what it changes for each parent."""
        form = "--format=%x00%H%x00%an <%ae> %cn <%ce>%x00%B%x00"
        reach = f"{self._known(path, base)}..HEAD"
        said = self._git(
            path, "log", form, "--patch", "-m", "--no-ext-diff", "--no-textconv", "--no-color", reach, "--"
        )
        parts = said.text.split("\0")[1:]
        fours = zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True)

        return tuple(CommitText(sha=sha, person=who, message=text, patch=patch) for sha, who, text, patch in fours)

    def patch_of_changes(self, path: Path) -> bytes:
        """Return what is not committed, untracked files included, as a patch."""
        return self._patch(path, "HEAD", ())

    def patch_of_paths(self, path: Path, base: str, names: Sequence[str]) -> bytes:
        """Return what was done to the files *names* since *base*, committed or not, as a patch."""
        return self._patch(path, self._known(path, base), names) if names else b""

    def read_again(self, path: Path, commit: str) -> tuple[str, ...]:
        """
        Read every file of the worktree into an index of its own, and return the paths that differ from *commit*.

        The worktree's index is not asked: it believes a file of the same size and time to be unchanged, and a power
        cut may have damaged it too.
        """
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        fresh = git_dir / _FRESH_INDEX
        for left in (fresh, fresh.with_name(f"{fresh.name}.lock")):
            left.unlink(missing_ok=True)
        env, known = {"GIT_INDEX_FILE": str(fresh)}, self._known(path, commit)
        self._ask(path, env, "read-tree", known)
        self._add_all(path, env)
        options = ("--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")

        return self._ask(path, env, "diff", *options, known, "--").parts

    def commit_of_files(self, path: Path, commit: str, message: str) -> str:
        """
        Return a commit of what `read_again` read, on top of the head, or of *commit* when that cannot be read.

        It is on no branch, and the same one when the same files are read again.
        """
        env = {"GIT_INDEX_FILE": str(self.git_dir(path) / _FRESH_INDEX)}
        asked = self._git(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1, 128))
        parent = asked.text.strip() or self._known(path, commit)
        tree = self._ask(path, env, "write-tree").text.strip()
        date = self._git(path, "show", "--no-patch", "--format=%ct +0000", parent).text.strip()
        dated = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}

        return self._ask(path, dated, "commit-tree", tree, "-p", parent, "-m", message).text.strip()

    def restore(self, path: Path, commit: str) -> None:
        """Make branch, index and files those of *commit*, after `read_again`: only what differs is written."""
        git_dir = self.git_dir(path)
        fresh = git_dir / _FRESH_INDEX
        self._ask(path, {"GIT_INDEX_FILE": str(fresh)}, "reset", "--quiet", "--hard", self._known(path, commit))
        fresh.replace(git_dir / "index")

    def _add_all(self, path: Path, env: Mapping[str, str]) -> None:
        """Take everything into the index; of a repository inside, its commit alone, for which git is not run in it."""
        entries = self._ask(path, env, "ls-files", "--stage", "-z").parts
        inside = [entry.partition("\t")[2] for entry in entries if entry.startswith(_GITLINK)]
        without = [f":(top,exclude,literal){name}" for name in inside]
        self._ask(path, env, "add", "--all", "--", *_ALL_BUT_OURS, *without)
        for names in _portions(inside):
            self._ask(path, env, "update-index", "--add", "--remove", "--", *names)

    def _refuse_filters(self, path: Path) -> None:
        """Raise FilterNotRun when a file is about to be committed as it is that a filter was meant to change."""
        if not self._commands.filters_not_run:
            return
        options = ("--cached", "--name-only", "-z", "--no-renames", "--diff-filter=d")
        for some in _portions(self._git(path, "diff", *options).parts):
            said = self._git(path, "check-attr", "-z", "filter", "--", *some).parts
            for name, driver in zip(said[::3], said[2::3], strict=True):
                if driver in self._commands.filters_not_run:
                    raise FilterNotRun(name, driver)

    def _patch(self, path: Path, base: str, names: Sequence[str]) -> bytes:
        """Return the patch from *base* to what is in the worktree, of all files when none is named."""
        git_dir = self.git_dir(path)
        # In an index of its own: the worktree's is left as it is, and may be locked by a git that was killed.
        spare = git_dir / "adw-patch-index"
        _remove_index(spare)
        try:
            if (git_dir / "index").is_file():
                # With its moment: by it git knows which files it has to read again, because they changed just then.
                shutil.copy2(git_dir / "index", spare)
            env = {"GIT_INDEX_FILE": str(spare)}
            self._add_all(path, env)
            options = ("--cached", "--binary", "--no-ext-diff", "--no-textconv", "--no-renames", base, "--")
            return b"".join(self._ask(path, env, "diff", *options, *some).out for some in _literally(names) or [[]])
        finally:
            _remove_index(spare)

    def commit_of_directory(self, path: Path, *, git_dir: Path, base: str) -> str | None:
        """
        Return a commit of the files in *path* on top of *base*, on no branch; None when they are those of *base*.

        For a directory that is no worktree any more, of the repository at *git_dir*. The same files give the same
        commit.
        """
        index = git_dir / f"adw-files-{path.name}"
        env = {"GIT_INDEX_FILE": str(index)}
        _remove_index(index)
        try:
            self._ask_beside(path, env, "read-tree", base)
            self._ask_beside(path, env, "add", "--all", "--", *_ALL_BUT_OURS)
            tree = self._ask_beside(path, env, "write-tree").text.strip()
            if tree == self._ask_beside(path, env, "rev-parse", f"{base}^{{tree}}").text.strip():
                return None
            date = self._ask_beside(path, env, "show", "--no-patch", "--format=%ct +0000", base).text.strip()
            dated = {**env, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
            message = f"Files of the damaged worktree {path.name}"
            return self._ask_beside(path, dated, "commit-tree", tree, "-p", base, "-m", message).text.strip()
        finally:
            _remove_index(index)

    def put_back(self, path: Path, base: str, names: Sequence[str]) -> tuple[str, ...]:
        """
        Make the files *names* what they were at *base*, and return those that could not be.

        A commit since *base* that has one of them is taken back, and what else it had is left as a change. A repository
        of its own is left where it is: nothing here could bring its history back.
        """
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        commit = self._known(path, base)
        if set(names).intersection(self.changed_files(path, commit)):
            self._git(path, "reset", "--quiet", "--soft", commit)
        known = [
            self._git(path, "ls-tree", "-r", "-z", "--name-only", commit, "--", *some) for some in _literally(names)
        ]
        before = {name for said in known for name in said.parts}
        for some in _literally([name for name in names if name not in before]):
            self._git(path, "rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *some)
        left = tuple(name for name in names if name not in before and not _remove_file(path, name))
        for some in _literally([name for name in names if name in before]):
            self._git(path, "restore", f"--source={commit}", "--staged", "--worktree", "--", *some)

        return left

    def discard(self, path: Path, commit: str) -> None:
        """Make branch and files what they were at *commit*; what git ignores stays."""
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        self._stop_rebase(path, git_dir)
        self._ask(path, {}, "reset", "--quiet", "--hard", self._known(path, commit))
        kept = (f"--exclude=/{PORTS_FILE}", f"--exclude=/{_AIDER_CACHE}*")
        # Twice forced: a repository that a gate made here is no work either.
        self._ask(path, {}, "clean", "--quiet", "-d", "--force", "--force", *kept)

    def show_as(self, path: Path, commit: str, names: Sequence[str]) -> None:
        """Have the files *names* as *commit* has them, in the worktree alone: index and commits stay."""
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        known = self._known(path, commit)
        listed = [
            self._git(path, "ls-tree", "-r", "-z", "--full-tree", "--name-only", known, "--", *some)
            for some in _portions(names)
        ]
        there = {name for said in listed for name in said.parts}
        for name in sorted(names, reverse=True):  # what is in a directory before what it stands in the place of
            if name not in there and not _remove_file(path, name):
                raise GitError(f"{path / name} cannot be taken away: it is no file of the worktree")
        for some in _literally([name for name in names if name in there]):
            self._git(path, "restore", f"--source={known}", "--worktree", "--", *some)

    def same_as(self, path: Path, commit: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the files *names* that are in the worktree as *commit* has them, also those it has not."""
        self.git_dir(path)
        known = self._known(path, commit)
        result = []
        for name in names:
            there = self._git(path, "rev-parse", "--verify", "--quiet", f"{known}:{name}", ok=(0, 1, 128)).text.strip()
            file = path / name
            if file.is_symlink():
                is_same = bool(there) and self._git(path, "cat-file", "blob", there).out == os.fsencode(file.readlink())
            elif file.is_file():
                is_same = self._git(path, "hash-object", "--", name).text.strip() == there
            else:
                is_same = not there and not file.exists()
            if is_same:
                result.append(name)

        return tuple(result)

    def rebase(self, path: Path, onto: str) -> tuple[str, ...]:
        """Rebase onto a commit; return the files in conflict, and then nothing is changed."""
        git_dir = self.git_dir(path)
        git.clear(git_dir, path)
        self._stop_rebase(path, git_dir)
        tip = self._known(path, onto)
        done = self._commands.ask(
            *("rebase", "--quiet", "--merge", "--no-verify", "--no-stat", tip), tree=path, seconds=CHECKOUT_SECONDS
        )
        if done.status == 0:
            return ()
        conflicts = self._git(path, "diff", "--name-only", "--diff-filter=U", "-z").parts
        self._stop_rebase(path, git_dir)
        if not conflicts:
            raise GitError(f"git rebase failed in {path}: {done.reason}")

        return tuple(dict.fromkeys(conflicts))

    def git_dir(self, path: Path) -> Path:
        """Return the private git directory of the worktree *path*; raise GitError when it is not a linked one."""
        return self._commands.tree_dir(path)

    def branch(self, path: Path) -> str:
        """Return the branch the worktree is on, "" when it is on none."""
        return self._git(path, "symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text.strip()

    def ignored(self, path: Path, names: tuple[str, ...]) -> frozenset[str]:
        """Return those of *names*, relative to *path*, that git ignores there."""
        if not names:
            return frozenset()

        said = self._git(path, "check-ignore", "--", *names, ok=(0, 1))

        return frozenset(os.fsdecode(said.out).splitlines())

    def _difference(self, path: Path, base: str, *options: str) -> Answer:
        self.git_dir(path)

        return self._git(
            path, "diff", "--no-ext-diff", "--no-textconv", *options, self._known(path, base), "HEAD", "--"
        )

    def _known(self, path: Path, ref: str) -> str:
        """Return the commit of *ref*: what a caller names could be read as an option, a commit cannot."""
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        result = self._git(path, *asked, ok=(0, 1, 128)).text.strip()
        if not result:
            raise GitError(f"{ref} names no commit")

        return result

    def _head(self, path: Path) -> str:
        return self._known(path, "HEAD")

    def end_rebase(self, path: Path, branch: str) -> None:
        """Give up a rebase that is not finished, whatever a power cut left of its files, and be on *branch* again."""
        git_dir = self.git_dir(path)
        started = [git_dir / name for name in _OF_REBASE if (git_dir / name).is_dir()]
        if not started:
            return
        git.clear(git_dir, path)
        self._git(path, "symbolic-ref", "HEAD", f"refs/heads/{git.check_branch(branch)}")
        self._git(path, "reset", "--quiet", "--hard", "HEAD")
        for place in started:  # last: until then it is seen that this is not done yet
            shutil.rmtree(place)

    def _stop_rebase(self, path: Path, git_dir: Path) -> None:
        """Undo a rebase that is not finished: ours that met a conflict, or one that was killed."""
        if any((git_dir / name).is_dir() for name in _OF_REBASE):
            git.clear(git_dir, path)
            self._git(path, "rebase", "--abort")

    def _ask(self, path: Path, env: Mapping[str, str], *args: str) -> Answer:
        answer = self._commands.ask(*args, tree=path, env=env, seconds=CHECKOUT_SECONDS)
        if answer.status != 0:
            raise GitError(f"git {args[0]} failed: {answer.reason}")

        return answer

    def _ask_beside(self, path: Path, env: Mapping[str, str], *args: str) -> Answer:
        """Do the same for a directory that is no worktree: with the repository itself."""
        answer = self._commands.ask(*args, cwd=path, env=env, seconds=CHECKOUT_SECONDS)
        if answer.status != 0:
            raise GitError(f"git {args[0]} failed: {answer.reason}")

        return answer

    def _git(self, path: Path, *args: str, ok: tuple[int, ...] = (0,), seconds: float = LOCAL_SECONDS) -> Answer:
        return self._commands.run(*args, tree=path, ok=ok, seconds=seconds)


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
    root = tree.resolve()
    if root not in (target.parent.resolve() / target.name).parents or (target.is_dir() and not target.is_symlink()):
        return False
    target.unlink(missing_ok=True)
    with suppress(OSError):  # the first one that has something else in it
        for place in target.parents:
            if place == tree:
                break
            place.rmdir()

    return True


# What is put into a new worktree that git does not have: files of the person, its ports, what set-up commands make.
#
# Nothing is put into a worktree that git would commit: of the person's own files only those that git ignores are
# copied, and no link is followed, neither where a file is read nor where it is written.


class Worktrees:
    """Fills the worktrees of workflows."""

    def __init__(
        self,
        repository: Repository,
        workplace: GitWorkplace,
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
        self, path: Path, *, ports: PortPair | None = None, run: Callable[[Sequence[str], int], str] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """
        Put into a worktree what git does not have, and set it up with *run*; return what was copied, and notices.

        *run* gets a set-up command and its number, and returns "" when it went well, else why not.
        Raises SetupFailed when a command fails: the worktree stays, and filling it again runs all of them again.
        """
        copied, notices = self._copy_included(path)
        if ports is not None:
            notices += self.write_ports(path, ports)
        if run is not None:
            for number, command in enumerate(self._setup, start=1):
                if why := run(command, number):
                    raise SetupFailed(command, why)

        return copied, notices

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


# What branches change, in few numbers, for people.
#
# The diff of two commits never changes, so it is cached. Which commit a branch is at is asked again after a moment, and
# git is never waited for long: a view does not wait for a repository that is busy.


#: Seconds that git gets.
SECONDS = 3.0
#: Seconds for which the commits of a branch are not asked for again.
FRESH_SECONDS = 5.0
#: Counts and branches that are kept.
_KEPT = 200
_Kept = TypeVar("_Kept")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """Where a branch was when it was asked for."""

    at: float  #: by the monotonic clock
    mark: int
    commits: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """What a branch does to one file."""

    name: str
    added: int | None  #: lines; None: it is no text
    deleted: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffStat:
    """What a branch changes, committed work only."""

    base: str  #: commit
    head: str  #: commit
    files: tuple[FileChange, ...]

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(file.added or 0 for file in self.files)

    @property
    def deleted(self) -> int:
        """Lines that are gone."""
        return sum(file.deleted or 0 for file in self.files)


class DiffStats:
    """Counts what branches change."""

    def __init__(self, commands: GitCommands, *, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self._lock = Lock()
        self._counted: OrderedDict[tuple[str, str], DiffStat] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def of_branch(self, branch: str, *, base: str, mark: int = 0) -> DiffStat | None:
        """
        Return what *branch* changes since it left *base*, None when one of them is not here; raise GitError.

        With another *mark*, such as the revision of the workflow, git is asked at once where the branch is.
        """
        commits = self._commits(base, branch, mark)
        if commits is None:
            return None
        with self._lock:
            result = self._counted.get(commits)
        if result is None:
            result = self._count(*commits)
            with self._lock:
                self._counted[commits] = result
                _shorten(self._counted)

        return result

    def _commits(self, base: str, branch: str, mark: int) -> tuple[str, str] | None:
        now = self._clock.monotonic()
        with self._lock:
            known = self._known.get((base, branch))
        if known is not None and known.mark == mark and now - known.at < FRESH_SECONDS:
            return known.commits
        result = [self._commit_of(ref) for ref in (base, f"refs/heads/{branch}")]
        commits = (result[0], result[1]) if all(result) else None
        with self._lock:
            self._known[base, branch] = _Known(at=now, mark=mark, commits=commits)
            _shorten(self._known)

        return commits

    def _commit_of(self, ref: str) -> str:
        if not ref or "\0" in ref:
            return ""
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")

        return self._commands.run(*asked, ok=(0, 1, 128), seconds=SECONDS).text.strip()

    def _count(self, base: str, head: str) -> DiffStat:
        options = ("--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
        said = self._commands.run("diff", *options, f"{base}...{head}", "--", seconds=SECONDS)

        return DiffStat(base=base, head=head, files=tuple(map(_change, said.parts)))


def _change(part: str) -> FileChange:
    """Return what one entry of --numstat says; a file that is no text has no lines."""
    numbers = part.split("\t", 2)
    if len(numbers) != 3:
        raise GitError(f"git diff --numstat said {part[:100]!r}, which is not understood")
    added, deleted, name = numbers

    return FileChange(name=name, added=_count(added), deleted=_count(deleted))


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _shorten(kept: OrderedDict[tuple[str, str], _Kept]) -> None:
    while len(kept) > _KEPT:
        kept.popitem(last=False)
