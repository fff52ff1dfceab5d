"""
The repository a home is in: its refs, its worktrees, its remote.

The person's main checkout is never changed: not its HEAD, not its index, not its files. What the caller did not make,
or what was changed since, is left alone with NotOurs: a worktree is known by the reason it was locked with, a branch by
the commit it is at.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules import durable_file
from adws.adw_modules.errors import (
    GitError,
    GitUnreachable,
    LockUnavailable,
    NotOurs,
    RollbackBlocked,
)
from adws.adw_modules.git import damage
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git.git import CHECKOUT_SECONDS, Answer, GitCommands, check_branch
from adws.adw_modules.interfaces import Clock

if TYPE_CHECKING:
    from adws.adw_modules.git.worktree import GitWorkplace

logger = logging.getLogger("adw.git")

# One adw at a time changes the worktrees and branches of a repository.
#
# git locks single files and fails when another git has one; two `worktree add` at once do meet there. So they queue at
# a flock of ours in the common git directory, which all worktrees share. The file is never unlinked: two processes
# could then hold "the" lock on two different files.


#: Name of the lock file in the common git directory.
LOCK_NAME = "adw-worktrees.lock"
#: Longer than a checkout may take (git.CHECKOUT_SECONDS), times a few processes that wait before us.
PATIENCE_SECONDS = 3600.0
_LOOK_SECONDS = 0.02


@contextmanager
def holding(common_dir: Path, *, clock: Clock, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[int]:
    """
    Hold the lock of the repository inside the block; raise GitError after waiting long enough.

    Yields its descriptor. A process that is given it holds the lock too: so nobody gets in while a git is at work whose
    adw was killed.
    """
    path = common_dir / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise LockUnavailable(str(path), exc) from exc
    try:
        _wait(fd, path, clock, patience_seconds)
        try:
            yield fd
        finally:
            # A child forked meanwhile has the descriptor too: closing ours alone would leave the lock with it.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _wait(fd: int, path: Path, clock: Clock, patience_seconds: float) -> None:
    deadline = clock.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                raise GitError(
                    f"another adw has held {path} for {patience_seconds:.0f} s: "
                    "look whether it is stuck (fuser shows who), then try again"
                ) from None
        except OSError as exc:
            raise LockUnavailable(str(path), exc) from exc
        else:
            return
        clock.sleep(_LOOK_SECONDS * (0.5 + clock.random()))


#: Where git has locks. `packed-refs.new` is one too: git does not replace one that is there.
_LOCKS = (
    "*.lock",
    "packed-refs.new",
    "refs/**/*.lock",
    "logs/**/*.lock",
    "worktrees/*/*.lock",
    "objects/*.lock",
    "objects/info/**/*.lock",
)
#: Locks of the file `packed-refs`, which git takes to delete a ref.
_PACKED_LOCKS = ("packed-refs.lock", "packed-refs.new")
#: Where refs of ours live that are no branches.
OUR_REFS = "refs/adw/"
#: The branch of a push that is only tried.
_NEVER_PUSHED = "adw-preflight"
_NO_COMMIT = re.compile("0+")
#: An empty file, as repositories with SHA-1 and with SHA-256 name it.
_EMPTY_FILES = frozenset(
    {
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
        "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
    }
)
#: Where `git ls-tree` names the content of a file: after its mode and type.
_BLOB = 2
_Seen = TypeVar("_Seen")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    """A linked worktree of the repository."""

    path: Path
    branch: str  #: "" when its head is detached
    head: str  #: commit, "" when there is none
    lock_reason: str = ""  #: whose it is, as `git worktree lock --reason` says
    is_prunable: bool = False  #: its directory is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PushResult:
    """The result of a push."""

    pushed: bool
    reason: str = ""  #: why not: stale | rejected


class Repository:
    """The git repository that a home is in."""

    def __init__(self, commands: GitCommands, *, trees: Path, clock: Clock, remote: str = "origin") -> None:
        """Work on the repository that the home of *commands* is in; worktrees are made and removed below *trees*."""
        self._commands = commands
        self._trees = trees
        self._clock = clock
        self._remote = remote

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def common_dir(self) -> Path:
        """The git directory that all worktrees share; raises GitError when there is no repository."""
        return self._commands.common_dir

    @cached_property
    def root(self) -> Path:
        """The main checkout."""
        return self._main().path

    def default_branch(self) -> str:
        """Return the remote's default branch, as last known when it is silent; without a remote the main checkout's."""
        with suppress(GitUnreachable):
            return self._default_now()

        return self.default_branch_known()

    def default_branch_known(self) -> str:
        """Return the default branch as far as it is known without asking the remote."""
        known = self._git("symbolic-ref", "--quiet", f"refs/remotes/{self._remote}/HEAD", ok=(0, 1, 128)).text.strip()

        return known.removeprefix(f"refs/remotes/{self._remote}/") or self._branch_of_main_checkout()

    def remotes(self) -> Mapping[str, str]:
        """Return every remote and its address."""
        names = self._plain("remote").text.split()

        return {name: self._plain("remote", "get-url", "--end-of-options", name).text.strip() for name in names}

    def record_remote(self) -> None:
        """Take the remote's address for the right one, as the repository has it now."""
        self._commands.record_remote()

    def remote_problem(self, *, seconds: float) -> str | None:
        """Return why the remote does not answer within *seconds*, "" when it does; None when there is none."""
        try:
            url = self._url()
            if url is None:
                return None
            self._commands.ask_remote(
                "ls-remote", "--end-of-options", url, "HEAD", url=url, seconds=seconds, records=False
            )
        except GitError as exc:
            return str(exc)

        return ""

    def push_problem(self, *, seconds: float) -> str:
        """Return why the remote would not take a push of ours within *seconds*, "" when it would; pushes nothing."""
        try:
            url = (self._commands.remote_urls() or ("", ""))[1]
            self._commands.ask_remote(
                *("push", "--dry-run", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"),
                *("--end-of-options", url),
                f"{self._commit('HEAD', 'the repository has no commit')}:refs/heads/{_NEVER_PUSHED}",
                url=url,
                seconds=seconds,
                records=False,
            )
        except GitError as exc:
            return str(exc)

        return ""

    def remote_address(self) -> str | None:
        """Return where pushes go, as it is configured; None without a remote."""
        return (self._commands.remote_urls() or (None, None))[1]

    def dead_locks(self) -> tuple[Path, ...]:
        """Return all locks in the git directory that no process uses, not only those of workflows."""
        common = self.common_dir
        locks = {lock for pattern in _LOCKS for lock in common.glob(pattern)} - {common / LOCK_NAME}

        return self._dead(sorted(locks))

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether the commit *old* is part of the history of *new*."""
        return self._git("merge-base", "--is-ancestor", old, new, ok=(0, 1, 128)).status == 0

    def is_ignored(self, name: str) -> bool:
        """Say whether git ignores the path *name*, relative to the main checkout, whether it is there or not."""
        return self._commands.ask("check-ignore", "--quiet", "--no-index", "--", name, cwd=self.root).status == 0

    def fetch_default(self) -> tuple[str, str]:
        """Fetch the default branch as the remote names it now, never as remembered; return its name and commit."""
        branch = self._default_now()

        return branch, self.fetch(branch)

    def _default_now(self) -> str:
        """Ask the remote for its default branch; raise GitUnreachable. One that names none is guessed at."""
        url = self._url()
        if url is None:
            return self._branch_of_main_checkout()
        said = self._ask_remote("ls-remote", "--symref", "--end-of-options", url, "HEAD", url=url)
        match = re.search(r"^ref: refs/heads/(\S+)\tHEAD$", said.text, re.MULTILINE)

        return match[1] if match else self.default_branch_known()

    def fetch(self, branch: str) -> str:
        """Fetch *branch* from the remote and return its commit; the local one when there is no remote."""
        check_branch(branch)
        url = self._url()
        if url is None:
            return self._commit(f"refs/heads/{branch}", f"there is no branch {branch} here, and no {self._remote}")
        there = self.remote_commit(branch)
        if there is None:
            raise GitError(f"the remote {self._remote} has no branch {branch}")
        kept = f"refs/remotes/{self._remote}/{branch}"
        if self.commit_of(kept) != there:
            self._free_ref(kept)
            self._undisturbed(lambda: self._fetch(branch, kept, url))
        commit = self._commit(kept, f"{branch} was fetched from {self._remote}, but is not there")
        self._commands.bring_missing(commit)

        return commit

    def commit_of(self, ref: str) -> str | None:
        """Return the commit *ref* names, None when it names none."""
        if not ref or "\0" in ref:
            return None
        result = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", ok=(0, 1, 128))

        return result.text.strip() or None

    def missing_from(self, branch: str, commits: Sequence[str]) -> tuple[str, ...]:
        """Return those of *commits* that are no part of the history of *branch*, which is there."""
        if not commits:
            return ()
        said = self._git("rev-list", *commits, "--not", f"refs/heads/{check_branch(branch)}", "--", ok=(0, 128))
        if said.status == 0:
            outside = set(said.text.split())
            return tuple(sha for sha in commits if sha in outside)
        if len(commits) == 1:  # git no longer has it
            return tuple(commits)

        return tuple(sha for one in commits for sha in self.missing_from(branch, (one,)))

    def has_all(self, old: str, new: str) -> bool:
        """Say whether *new* has *old* in its history, and git everything that came in between."""
        if self._git("merge-base", "--is-ancestor", old, new, ok=(0, 1, 128)).status != 0:
            return False

        return self._git("rev-list", "--objects", "--quiet", new, f"^{old}", "--", ok=(0, 1, 128)).status == 0

    def emptied_by(self, branch: str, *, start: str, mark: str) -> Mapping[str, Sequence[str]]:
        """
        Return by commit the files that are empty on *branch* and whose content that commit took away.

        Only commits since *start* count ("": all) whose message has the line *mark*.
        """
        tip = f"refs/heads/{check_branch(branch)}"
        since = self.commit_of(start)
        form = ("--format=%x00%H", "--raw", "-z", "--no-abbrev", "--no-renames", "--diff-filter=M", "--fixed-strings")
        said = self._git("log", *form, f"--grep={mark}", tip, *([f"^{since}"] if since else []), "--")
        result: dict[str, list[str]] = {}
        commit = ""
        parts = iter(os.fsdecode(said.out).split("\0"))
        for part in parts:
            if part.lstrip("\n").startswith(":"):
                (old, new), name = part.split(" ")[2:4], next(parts)
                if new in _EMPTY_FILES and old not in _EMPTY_FILES and self._is_empty(tip, name):
                    result.setdefault(commit, []).append(name)
            elif part:
                commit = part

        return result

    def _is_empty(self, tip: str, name: str) -> bool:
        said = self._git("ls-tree", "-z", tip, "--", f":(top,literal){name}").text.split()

        return len(said) > _BLOB and said[_BLOB] in _EMPTY_FILES

    def refs(self) -> Mapping[str, str]:
        """Return every ref and its commit: before and after a phase they show what appeared."""
        form = "--format=%(refname)%00%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)"
        lines = os.fsdecode(self._git("for-each-ref", form).out).splitlines()

        return dict(line.split("\0", 1) for line in lines)

    def worktrees(self) -> tuple[Worktree, ...]:
        """Return the linked worktrees, the main one left out."""
        return self._undisturbed(self._linked)

    # --- worktrees ---------------------------------------------------------------------------------------------

    def add_worktree(self, path: Path, *, branch: str, start: str, reason: str) -> Worktree:
        """
        Make branch and worktree from *start*, locked with *reason*; raise GitError, and then nothing is left.

        One that is there already with this reason and branch is returned as it is: the caller was stopped after it.
        """
        check_branch(branch)
        commit = self._commit(start, f"{start} names no commit")
        path = self._checked_place(path)
        with self._locked() as lock:
            present = self._at(path)
            if present is not None and (present.branch, present.lock_reason) == (branch, reason) and path.is_dir():
                self._check_out(path, lock)
                return present
            if present is not None or path.exists():
                raise GitError(f"{path} is there already{_whose(present)}: roll its workflow back, or move it away")
            self._free_ref(f"refs/heads/{branch}")
            damage.remove_broken_ref(self._common, f"refs/heads/{branch}")
            had_branch = self._refuse_other_branch(branch, commit)
            try:
                return self._add(path, branch, commit, reason, has_branch=had_branch, lock=lock)
            except BaseException:
                self._undo_add(path, branch, commit, had_branch=had_branch)
                raise

    def _refuse_other_branch(self, branch: str, commit: str) -> bool:
        """Say whether the branch is there, at *commit*; raise GitError when it is anywhere else."""
        at = self.commit_of(f"refs/heads/{branch}")
        if at not in {None, commit}:
            raise GitError(f"the branch {branch} is there already, at another commit: delete it, or name another")

        return at is not None

    def _add(self, path: Path, branch: str, commit: str, reason: str, *, has_branch: bool, lock: int) -> Worktree:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = () if has_branch else ("--no-track", "-b", branch)
        start = branch if has_branch else commit
        options = ("--quiet", "--no-checkout", "--lock", "--reason", reason)
        self._plain("worktree", "add", *options, *new, "--end-of-options", str(path), start, keep=(lock,))
        self._check_out(path, lock)
        made = self._at(path)
        if made is None:
            raise GitError(f"git made the worktree {path}, but does not know it")

        return made

    def _check_out(self, path: Path, lock: int) -> None:
        """Write the files of a worktree that has none yet, by our own configuration: its index comes last."""
        if not (self._commands.tree_dir(path) / "index").exists():
            self._commands.bring_missing(self._commands.run("rev-parse", "HEAD", tree=path).text.strip())
            self._commands.run("reset", "--quiet", "--hard", tree=path, seconds=CHECKOUT_SECONDS, keep=(lock,))

    def _undo_add(self, path: Path, branch: str, commit: str, *, had_branch: bool) -> None:
        """Remove what a failed add left: there was no such directory before, and we hold the lock."""
        _remove_tree(path)
        self._forget(path)
        if not had_branch:
            self._git("update-ref", "-d", f"refs/heads/{branch}", commit, ok=(0, 1, 128))

    def remove_worktree(self, path: Path, *, reason: str, is_recorded: bool = False) -> bool:
        """
        Remove the worktree that was locked with *reason*; False when there is none. Raises NotOurs for another's.

        A damaged one is removed when its files say that it was one of ours, or when the ledger does (*is_recorded*).
        """
        path = self._checked_place(path)
        with self._locked():
            present = self._at(path)
            if (path / ".git").is_dir():
                raise NotOurs(f"{path} is a repository of its own now: it is left alone, move it away")
            is_damaged = (
                bool(damage.faults(self._common, path)) if is_recorded else damage.is_evident(self._common, path)
            )
            if is_damaged and path.exists() and any(path.iterdir()):
                self._refuse_other_lock(path, reason)
                _remove_tree(path)
                self._forget_damaged(path)
                return True
            if present is None:
                return self._remove_unknown(path)
            if present.lock_reason != reason:
                raise NotOurs(f"the worktree {path} is left alone{_whose(present)}, not {reason!r}")
            # The directory first: while git knows the worktree, a removal that was stopped can be told to be ours.
            _remove_tree(path)
            self._forget(path)

        return True

    def why_damaged(self, path: Path, *, reason: str) -> str:
        """
        Return how the worktree that adw made at *path* is damaged, or that git forgot it; "" when it is whole or gone.

        Raises NotOurs when it is something else now: a worktree of another owner, a repository, a link. Of one that
        older tools made elsewhere nothing is said: it could not be made again there.
        """
        if path.parent.resolve() != self._trees.resolve():
            return ""
        path = self._checked_place(path)
        if (path / ".git").is_dir():
            raise NotOurs(f"{path} is a repository of its own now: it is left alone, move it away")
        found = damage.faults(self._common, path)
        if found:
            self._refuse_other_lock(path, reason)

        return "; ".join(found)

    def damaged_worktrees(self) -> Mapping[Path, str]:
        """Return the directories below our trees that are, by their files, damaged worktrees, and what is wrong."""
        places = sorted(self._trees.resolve().glob("*"))

        return {
            path: "; ".join(damage.faults(self._common, path))
            for path in places
            if not path.is_symlink() and damage.is_evident(self._common, path)
        }

    def _refuse_other_lock(self, path: Path, reason: str) -> None:
        other = [said for said in damage.lock_reasons(self._common, path) if said != reason]
        if other:
            raise NotOurs(f"the worktree {path} is left alone: it is locked with {other[0]!r}, not {reason!r}")

    def _forget_damaged(self, path: Path) -> None:
        """Make git forget a worktree that it may not be able to read, without asking it."""
        for admin in damage.admin_dirs(self._common, path):
            shutil.rmtree(admin)

    @property
    def _common(self) -> Path:
        return self.common_dir.resolve()

    def add_checkout(self, path: Path, commit: str) -> None:
        """Check *commit* out at *path*, on no branch, for something to be tried there; `remove_checkout` removes it."""
        known = self._commit(commit, f"{commit} names no commit")
        with self._locked() as lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            options = ("--quiet", "--no-checkout", "--detach", "--force", "--end-of-options")
            self._plain("worktree", "add", *options, str(path), known, keep=(lock,))
            self._check_out(path, lock)

    def remove_checkout(self, path: Path) -> None:
        """Remove what `add_checkout` made, or what is left of it; nothing happens when there is none."""
        if path.is_symlink():
            raise NotOurs(f"{path} is a symbolic link: it is left alone, adw does not follow links")
        with self._locked():
            known = self._at(path.resolve())
            if known is None and not path.exists():
                return
            if known is not None and (known.branch or known.lock_reason):
                raise NotOurs(f"the worktree {path} is left alone{_whose(known)}")
            _remove_tree(path)
            self._forget(path.resolve())

    def lock_worktree(self, path: Path, *, reason: str) -> None:
        """Lock a worktree that nobody has locked; raise NotOurs for one that somebody else has."""
        path = self._checked_place(path)
        with self._locked():
            present = self._at(path)
            if present is None:
                raise NotOurs(f"{path} is no worktree of this repository")
            if present.lock_reason not in {"", reason}:
                raise NotOurs(f"the worktree {path} is left alone{_whose(present)}")
            if not present.lock_reason:
                self._plain("worktree", "lock", "--reason", reason, "--end-of-options", str(path))

    def _remove_unknown(self, path: Path) -> bool:
        """Remove what an add left that was killed at its very start; anything else git does not know is not ours."""
        if path.exists() and any(path.iterdir()):
            raise NotOurs(f"{path} is no worktree of this repository: it is left alone, move it away")
        was_there = path.exists()
        if was_there:
            path.rmdir()

        return self._forget(path) or was_there

    def _forget(self, path: Path) -> bool:
        """Make git forget the worktree whose directory is gone; only this one, unlike `git worktree prune`."""
        known = self._at(path) is not None
        if known:
            self._plain("worktree", "remove", "--force", "--force", "--end-of-options", str(path))
        # Killed before git could write whose it is: git itself would prune it.
        left = [admin for admin in damage.admin_dirs(self._common, path) if damage.has_no_owner(admin)]
        for admin in left:
            shutil.rmtree(admin)

        return known or bool(left)

    def _checked_place(self, path: Path) -> Path:
        """Return *path* without links above it; raise NotOurs unless it is, as itself, directly below our trees."""
        place = self._trees.resolve() / path.name
        if not path.is_absolute() or path.parent.resolve() / path.name != place or path.name in {"", ".", ".."}:
            raise NotOurs(f"{path} is not below {self._trees}: adw makes and removes worktrees there only")
        if place.is_symlink():
            raise NotOurs(f"{path} is a symbolic link: it is left alone, adw does not follow links")
        if place == self.root:
            raise NotOurs(f"{path} is the main checkout: it is left alone")

        return place

    # --- refs --------------------------------------------------------------------------------------------------

    def delete_branch(self, branch: str, *, expected: str) -> bool:
        """Delete a local branch that is at *expected*; False when it is gone. Raises NotOurs when it moved."""
        ref = f"refs/heads/{check_branch(branch)}"
        with self._locked():
            if self.commit_of(ref) is None:
                return False
            used = next((entry.path for entry in self._entries() if entry.branch == branch), None)
            if used is not None:
                raise NotOurs(f"the branch {branch} is checked out in {used}: it is left alone")
            self._free_ref(ref)
            done = self._git("update-ref", "-d", ref, expected, ok=(0, 1, 128))
            now = self.commit_of(ref)
        if now is not None and now != expected:
            raise NotOurs(f"the branch {branch} moved from {expected[:12]} to {now[:12]}: it is left alone")
        if now is not None:
            raise GitError(f"the branch {branch} could not be deleted: {done.reason}")

        return True

    def save_ref(self, ref: str, commit: str) -> None:
        """Make *ref* name *commit*: a salvage that nothing collects."""
        if not ref.startswith(OUR_REFS):
            raise GitError(f"{ref!r} is not below {OUR_REFS}: adw keeps its own refs there")
        check_branch(ref)
        self._free_ref(ref)
        self._git("update-ref", "--end-of-options", ref, self._commit(commit, f"{commit} names no commit"))

    def restore_branch(self, branch: str, commit: str) -> None:
        """Make *branch*, which no worktree has, name *commit* again, also when its ref cannot be read."""
        ref = f"refs/heads/{check_branch(branch)}"
        with self._locked():
            self._free_ref(ref)
            damage.remove_broken_ref(self._common, ref)
            self._git("update-ref", "--end-of-options", ref, self._commit(commit, f"{commit} names no commit"))

    # --- locks -------------------------------------------------------------------------------------------------

    def remove_stale_locks(self, path: Path, branch: str, *, before: float) -> tuple[str, ...]:
        """
        Remove the locks of the worktree *path* and of *branch* that no process uses; return their names.

        Only those that were made before the moment *before*, in seconds since 1970, or before the machine started.
        """
        common = self.common_dir
        locks = [common / f"refs/heads/{branch}.lock", *(common / name for name in _PACKED_LOCKS)]
        locks += [lock for admin in damage.admin_dirs(self._common, path) for lock in sorted(admin.glob("*.lock"))]
        limit = max(before, git_module.boot_time())
        old = [lock for lock in locks if lock.is_file() and lock.stat().st_mtime < limit]

        return self._remove_dead(old)

    def _free_ref(self, ref: str) -> None:
        """Remove the locks of *ref* that a dead git left: adw is about to change it."""
        self._remove_dead([self.common_dir / f"{ref}.lock", *(self.common_dir / name for name in _PACKED_LOCKS)])

    def _remove_dead(self, locks: Iterable[Path]) -> tuple[str, ...]:
        removed = []
        for lock in self._dead(locks):
            lock.unlink(missing_ok=True)
            removed.append(str(lock.relative_to(self.common_dir)))
            said = {"action": "stale_lock_removed", "lock": str(lock)}
            logger.warning("Removed a lock that a dead git left", extra=said)

        return tuple(removed)

    def _dead(self, locks: Iterable[Path]) -> tuple[Path, ...]:
        """Return those of *locks* that no process can be using: no git that works anywhere in this repository."""
        there = [lock for lock in locks if lock.is_file() and not lock.is_symlink()]
        if not there:
            return ()
        try:
            places = tuple(entry.path for entry in self._entries())
        except GitError:
            return ()  # where a git may be at work cannot be said

        return git_module.dead(there, (self.common_dir, self._commands.home, *places))

    # --- the remote --------------------------------------------------------------------------------------------

    def push(self, worktree: Path, branch: str, *, expected: str | None) -> PushResult:
        """Push with lease: the remote branch must be at *expected*, None: must not exist. Raises GitUnreachable."""
        ref = f"refs/heads/{check_branch(branch)}"
        if self._url() is None:
            raise GitError(f"there is no remote {self._remote}: add it with git remote add, or set git.remote")
        if self.commit_of(ref) is None:
            raise GitError(f"there is no branch {branch} to push")
        place = self._undisturbed(lambda: self._at(worktree))
        if place is None or place.branch != branch:
            raise GitError(f"{worktree} is not on the branch {branch}: what was made there would not be pushed")
        said = self._push(f"--force-with-lease={ref}:{expected or ''}", f"{ref}:{ref}")
        if said.status == 0:
            return PushResult(pushed=True)

        return PushResult(pushed=False, reason="stale" if "(stale info)" in said.text else "rejected")

    def delete_remote_branch(self, branch: str, *, expected: str) -> bool:
        """Delete the remote branch that is at *expected*; False when it is gone. Raises NotOurs when it moved."""
        ref = f"refs/heads/{check_branch(branch)}"
        if self._url() is None or self.remote_commit(branch) is None:
            return False
        if branch == self.default_branch():
            raise NotOurs(f"{branch} is the default branch of {self._remote}: it is left alone")
        said = self._push(f"--force-with-lease={ref}:{expected}", f":{ref}")
        if said.status == 0:
            return True
        now = self.remote_commit(branch)
        if now is None:
            return False
        if now != expected:
            raise NotOurs(f"the branch {branch} of {self._remote} moved to {now[:12]}: it is left alone")

        raise GitError(f"{self._remote} refused to delete the branch {branch}: {said.reason}")

    def remote_commit(self, branch: str) -> str | None:
        """Ask the remote for the commit of *branch*, None when there is no such branch."""
        ref = f"refs/heads/{check_branch(branch)}"
        url = self._url()
        if url is None:
            return None
        said = self._ask_remote("ls-remote", "--end-of-options", url, ref, url=url)
        rows = (line.split("\t", 1) for line in os.fsdecode(said.out).splitlines())

        return next((row[0] for row in rows if row[-1] == ref), None)

    def newest(self, branch: str, *, seconds: float) -> str | None:
        """Return the commit of *branch* as the remote has it, or as it is known here when that does not answer."""
        kept, ref = f"refs/remotes/{self._remote}/{check_branch(branch)}", f"refs/heads/{branch}"
        with suppress(GitError):
            url = self._url()
            if url is None:
                return self.commit_of(ref)
            said = self._commands.ask_remote("ls-remote", "--end-of-options", url, ref, url=url, seconds=seconds)
            if said.text.partition("\t")[0] != self.commit_of(kept):
                return self.fetch(branch)

        return self.commit_of(kept)

    def changed_between(self, old: str, new: str) -> tuple[str, ...]:
        """Return the files that differ between two commits."""
        options = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")

        return self._git("diff", *options, "--end-of-options", old, new, "--").parts

    def remote_branches(self) -> Mapping[str, str]:
        """Ask the remote for all its branches and their commits; none without a remote. Raises GitUnreachable."""
        url = self._url()
        if url is None:
            return {}
        said = self._ask_remote("ls-remote", "--heads", "--end-of-options", url, url=url)
        rows = (line.split("\t", 1) for line in os.fsdecode(said.out).splitlines())

        return {ref.removeprefix("refs/heads/"): sha for sha, ref in rows}

    # --- how ---------------------------------------------------------------------------------------------------

    def _fetch(self, branch: str, kept: str, url: str) -> None:
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--end-of-options")
        self._ask_remote("fetch", *options, url, f"+refs/heads/{branch}:{kept}", url=url)

    def _push(self, lease: str, refspec: str) -> Answer:
        """Push one ref and nothing that belongs to it: no tags, no submodules, no hooks."""
        options = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", lease)
        url = (self._commands.remote_urls() or ("", ""))[1]

        return self._ask_remote("push", *options, "--end-of-options", url, refspec, url=url, ok=(0, 1))

    def _ask_remote(self, *args: str, url: str, ok: tuple[int, ...] = (0,)) -> Answer:
        return self._commands.ask_remote(*args, url=url, ok=ok)

    def _git(self, *args: str, ok: tuple[int, ...] = (0,)) -> Answer:
        return self._commands.run(*args, ok=ok, seconds=CHECKOUT_SECONDS)

    def _plain(self, *args: str, ok: tuple[int, ...] = (0,), keep: tuple[int, ...] = ()) -> Answer:
        """Run a command about worktrees on the repository itself, whatever lies in the way of finding it."""
        return self._commands.plain(f"--git-dir={self.common_dir}", *args, ok=ok, seconds=CHECKOUT_SECONDS, keep=keep)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock inside the block: no adw makes a worktree then, so an empty file there is damaged."""
        with holding(self.common_dir, clock=self._clock) as lock:
            try:
                restored = damage.restore_common_dirs(self._common, self._trees)
            except OSError as exc:
                raise GitError(f"a file that git stops at cannot be written again: {exc}; check the disk") from exc
            for path in restored:
                said = {"action": "worktree_file_restored", "file": str(path)}
                logger.warning("Restored an empty file that git stops at", extra=said)
            yield lock

    def _url(self) -> str | None:
        """Return where fetches go, None without a remote."""
        urls = self._commands.remote_urls()

        return urls[0] if urls else None

    def _branch_of_main_checkout(self) -> str:
        branch = self._main().branch
        if not branch:
            raise GitError(f"{self.root} is on no branch, and {self._remote} names no default one: check one out")

        return branch

    def _commit(self, ref: str, otherwise: str) -> str:
        commit = self.commit_of(ref)
        if commit is None:
            raise GitError(otherwise)

        return commit

    def _at(self, path: Path) -> Worktree | None:
        return next((entry for entry in self._linked() if entry.path == path), None)

    def _main(self) -> Worktree:
        return self._undisturbed(lambda: next(self._entries()))

    def _undisturbed(self, look: Callable[[], _Seen]) -> _Seen:
        """
        Return what *look* returns; not to be called by the holder of the lock.

        Reading all worktrees fails while one is being made, which has no head yet or does not say whose it is: then it
        is retried under the lock, when nobody makes one.
        """
        try:
            return look()
        except GitUnreachable:
            raise
        except GitError:
            with self._locked():
                return look()

    def _linked(self) -> tuple[Worktree, ...]:
        return tuple(self._entries())[1:]

    def _entries(self) -> Iterator[Worktree]:
        """Yield every worktree, the main one first."""
        listing = ("worktree", "list", "--porcelain", "-z")
        try:
            said = os.fsdecode(self._plain(*listing).out)
        except GitError as exc:
            if empty := damage.empty_common_dirs(self._common):
                raise GitError(
                    f"git cannot read its worktrees, because {empty[0]} is empty: write it again with "
                    f"echo ../.. > {shlex.quote(str(empty[0]))}"
                ) from exc
            raise
        for block in said.split("\0\0"):
            pairs = (line.partition(" ") for line in block.split("\0") if line)
            facts = {name: value for name, _, value in pairs}
            if "worktree" in facts:
                yield _worktree(facts)


def _worktree(facts: Mapping[str, str]) -> Worktree:
    path, head = Path(facts["worktree"]), facts.get("HEAD", "")

    return Worktree(
        path=path,
        branch=facts.get("branch", "").removeprefix("refs/heads/"),
        head="" if _NO_COMMIT.fullmatch(head) else head,
        lock_reason=facts.get("locked", ""),
        is_prunable="prunable" in facts or not path.exists(),
    )


def _whose(found: Worktree | None) -> str:
    if found is None:
        return ""

    return f": it is locked with {found.lock_reason!r}" if found.lock_reason else ": it is not locked"


def _remove_tree(path: Path) -> None:
    """Remove a directory with everything in it, following no link; what was made read-only is made writable."""
    try:
        try:
            shutil.rmtree(path)
        except PermissionError:
            for _, _, _, fd in os.fwalk(path, follow_symlinks=False):
                with suppress(OSError):
                    os.fchmod(fd, 0o700)
            shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        raise GitError(f"{path} cannot be removed: {exc.strerror or exc}{where}; remove it by hand") from exc


# Refs of adw's own on the remote: work that is not shipped yet, for other machines to go on with.
#
# Nothing but refs below `refs/adw/` is ever pushed or deleted here, each with a lease on the commit it is known to be
# at.


class RemoteRefs:
    """Refs of adw's own on the remote of the repository that a home is in."""

    def __init__(self, commands: GitCommands, repository: Repository, *, remote: str = "origin") -> None:
        self._commands = commands
        self._repository = repository
        self._remote = remote

    def has_remote(self) -> bool:
        """Say whether there is a remote."""
        return self._url() is not None

    def commit_of(self, ref: str) -> str | None:
        """Ask the remote for the commit of *ref*, None when it has no such ref. Raises GitUnreachable."""
        return self.all(ref).get(ref)

    def all(self, pattern: str) -> Mapping[str, str]:
        """Ask the remote for the refs that match *pattern*, and their commits; none without a remote."""
        url = self._url()
        if url is None:
            return {}
        said = self._ask_remote("ls-remote", "--end-of-options", url, pattern, url=url)
        rows = (line.split("\t", 1) for line in os.fsdecode(said.out).splitlines())

        return {ref: sha for sha, ref in rows}

    def fetch(self, ref: str, *, expected: str) -> None:
        """Have the commit *expected* of *ref* here; raise GitError when the remote has another by now."""
        check_branch(ref)
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--end-of-options")
        url = self._known_urls()[0]
        self._ask_remote("fetch", *options, url, ref, url=url)
        result = self._commands.ask("cat-file", "-e", f"{expected}^{{commit}}")
        if result.status != 0:
            raise GitError(f"{ref} of {self._remote} moved while it was fetched: {expected[:12]} did not come with it")

    def push(self, commit: str, ref: str, *, expected: str | None) -> PushResult:
        """
        Make *ref* of the remote name *commit*; it must be at *expected*, None: must not exist.

        Raises GitUnreachable.
        """
        _check_own(ref)
        said = self._push(f"--force-with-lease={ref}:{expected or ''}", f"{commit}:{ref}")
        if said.status == 0:
            return PushResult(pushed=True)

        return PushResult(pushed=False, reason="stale" if "(stale info)" in said.text else "rejected")

    def delete(self, ref: str, *, expected: str) -> bool:
        """Delete *ref* of the remote, which is at *expected*; False when it is gone. Raises NotOurs when it moved."""
        _check_own(ref)
        if self.commit_of(ref) is None:
            return False
        said = self._push(f"--force-with-lease={ref}:{expected}", f":{ref}")
        if said.status == 0:
            return True
        now = self.commit_of(ref)
        if now is None:
            return False
        if now != expected:
            raise NotOurs(f"{ref} of {self._remote} moved to {now[:12]}: it is left alone")

        raise GitError(f"{self._remote} refused to delete {ref}: {said.reason}")

    # --- how ---------------------------------------------------------------------------------------------------

    def _push(self, lease: str, refspec: str) -> Answer:
        options = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", lease)
        url = self._known_urls()[1]

        return self._ask_remote("push", *options, "--end-of-options", url, refspec, url=url, ok=(0, 1))

    def _ask_remote(self, *args: str, url: str, ok: tuple[int, ...] = (0,)) -> Answer:
        return self._commands.ask_remote(*args, url=url, ok=ok)

    def _known_urls(self) -> tuple[str, str]:
        urls = self._commands.remote_urls()
        if urls is None:
            raise GitError(f"there is no remote {self._remote}: add it with git remote add, or set git.remote")

        return urls

    def _url(self) -> str | None:
        urls = self._commands.remote_urls()

        return urls[0] if urls else None


def _check_own(ref: str) -> None:
    if not ref.startswith(OUR_REFS):
        raise GitError(f"{ref!r} is not below {OUR_REFS}: adw pushes work that is not shipped there only")
    check_branch(ref)


# Keeping commits that would otherwise be lost, under refs of ours that nothing collects.


#: How many there may be of one workflow.
MOST = 99


def keep_commits(git: Repository, adw_id: str, sha: str) -> str:
    """Keep *sha* under the first ref of the workflow that is free, or has it already; return that ref."""
    refs = (git_module.salvage_ref(adw_id, number) for number in range(1, MOST + 1))
    ref = next((ref for ref in refs if git.commit_of(ref) in {None, sha}), "")
    if not ref:
        raise RollbackBlocked("there are too many salvaged commits of this workflow: delete some refs/adw/salvage")
    git.save_ref(ref, sha)

    return ref


def keep_files(git: Repository, workplace: GitWorkplace, adw_id: str, path: Path, base: str) -> str:
    """
    Keep the files of a damaged worktree under a ref of ours, as a commit on top of *base*; return that ref.

    Returns "" when they are those of *base*. Ignored files are no part of the work, as in every worktree.
    """
    commit = workplace.commit_of_directory(path, git_dir=git.common_dir, base=base)

    return keep_commits(git, adw_id, commit) if commit else ""


# What workflows leave beside git: directories of their own, and patches of salvaged work.
#
# A directory is removed only below the root it belongs to, as itself: a symbolic link, or a way out of the root, is
# refused with NotOurs. A patch is durable before this returns, and readable by its owner alone.


_PRIVATE = 0o600


def remove_directory(path: Path, *, root: Path) -> bool:
    """Remove the directory *path*, which lies directly in *root*; False when it is not there."""
    place = root.resolve() / path.name
    if path.name in {"", ".", ".."} or path.parent.resolve() != root.resolve():
        raise NotOurs(f"{path} does not lie in {root}: it is left alone")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise NotOurs(f"{path} is not a directory of its own: it is left alone")
    if not place.exists():
        return False
    shutil.rmtree(place)  # follows no link, whatever is swapped in meanwhile

    return not place.exists()


def write_patch(folder: Path, name: str, payload: bytes) -> Path:
    """Write *payload* as *folder*/*name*, durably, and return where; an older one of that name is replaced."""
    path, temp = folder / name, folder / f".{name}.tmp"
    durable_file.make_directory(str(folder))
    temp.unlink(missing_ok=True)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    with os.fdopen(fd, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)
    durable_file.sync_directory_at(str(folder))

    return path
