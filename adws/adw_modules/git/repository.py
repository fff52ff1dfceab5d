"""
The repository of a home: its refs, its worktrees, its remote.

The person's main checkout is never changed: neither its HEAD nor its index nor its files. Whatever the caller did not
make, or what has changed since, is left alone with NotOurs: a worktree is identified by its lock reason, a branch by
its commit.
"""

from __future__ import annotations

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
from typing import TypeVar

from adws.adw_modules import durable_file
from adws.adw_modules.errors import GitError, GitUnreachable, NotOurs, RollbackBlocked
from adws.adw_modules.git import change_policy, damage, locks
from adws.adw_modules.git.change_policy import HEADS, TAGS, Marks
from adws.adw_modules.git.git import (
    NETWORK_SECONDS,
    Answer,
    GitCommands,
    check_branch,
    salvage_ref,
)
from adws.adw_modules.interfaces import Clock

logger = logging.getLogger("adw.git")

#: Where git keeps locks, `packed-refs.new` included: git does not replace an existing one.
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
#: Prefix of adw's refs that are not branches.
OUR_REFS = "refs/adw/"
#: Most salvaged commits of one workflow.
MAX_SALVAGED = 99
#: The branch name of a dry-run push.
_NEVER_PUSHED = "adw-preflight"
_NO_COMMIT = re.compile("0+")
#: The hash of an empty file, with SHA-1 and with SHA-256.
_EMPTY_FILES = frozenset(
    {
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
        "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
    }
)
#: Exit codes that are answers: yes, no, or an object that git does not have.
_YES_OR_NO = (0, 1, 128)
_Seen = TypeVar("_Seen")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    """A linked worktree of the repository."""

    path: Path
    branch: str  #: "" when its head is detached
    head: str  #: commit, "" without one
    lock_reason: str = ""  #: names its owner, as `git worktree lock --reason` recorded it
    is_prunable: bool = False  #: its directory is gone


class Repository:
    """The git repository that contains a home."""

    def __init__(self, commands: GitCommands, *, trees: Path, clock: Clock) -> None:
        """Work on the repository that contains the home of *commands*; worktrees are made and removed below *trees*."""
        self.commands = commands
        self._git = commands.run
        self._trees = trees
        self._clock = clock
        self._remote = commands.remote

    @property
    def common_dir(self) -> Path:
        """The resolved git directory that all worktrees share; raises GitError if there is no repository."""
        return self.commands.common_dir.resolve()

    @cached_property
    def root(self) -> Path:
        """The main checkout."""
        return self._main().path

    # --- refs and commits --------------------------------------------------------------------------------------

    def commit_of(self, ref: str) -> str | None:
        """Return the commit that *ref* names, or None."""
        return self.commands.commit_of(ref)

    def refs(self) -> Mapping[str, str]:
        """Return every ref and its commit, to compare before and after a phase."""
        form = "--format=%(refname)%00%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)"
        lines = os.fsdecode(self._git("for-each-ref", form).out).splitlines()

        return dict(line.split("\0", 1) for line in lines)

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether the commit *old* is in the history of *new*."""
        return self._git("merge-base", "--is-ancestor", old, new, ok=_YES_OR_NO).status == 0

    def has_all(self, old: str, new: str) -> bool:
        """Say whether *new* has *old* in its history, and git has all objects in between."""
        if not self.is_ancestor(old, new):
            return False

        return self._git("rev-list", "--objects", "--quiet", new, f"^{old}", "--", ok=_YES_OR_NO).status == 0

    def missing_from(self, branch: str, commits: Sequence[str]) -> tuple[str, ...]:
        """Return those of *commits* that are not in the history of the existing branch *branch*."""
        if not commits:
            return ()
        said = self._git("rev-list", *commits, "--not", f"refs/heads/{check_branch(branch)}", "--", ok=(0, 128))
        if said.status == 0:
            outside = set(said.text.split())
            return tuple(sha for sha in commits if sha in outside)
        if len(commits) == 1:  # git no longer has it
            return tuple(commits)

        return tuple(sha for one in commits for sha in self.missing_from(branch, (one,)))

    def changed_between(self, old: str, new: str) -> tuple[str, ...]:
        """Return the files that differ between two commits."""
        options = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")

        return self._git("diff", *options, "--end-of-options", old, new, "--").parts

    def emptied_by(self, branch: str, *, start: str, mark: str) -> Mapping[str, Sequence[str]]:
        """
        Return, by commit, the files that are empty on *branch* and whose content that commit removed.

        Only commits since *start* count ("": all) whose message contains the line *mark*.
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
                if new in _EMPTY_FILES and old not in _EMPTY_FILES:
                    entry = self._git("ls-tree", "-z", tip, "--", f":(top,literal){name}").text.split()
                    if entry[2:3] and entry[2] in _EMPTY_FILES:  # after the mode and the type
                        result.setdefault(commit, []).append(name)
            elif part:
                commit = part

        return result

    def is_ignored(self, name: str) -> bool:
        """Say whether git ignores the path *name*, relative to the main checkout, even if it does not exist."""
        return self._git("check-ignore", "--quiet", "--no-index", "--", name, cwd=self.root, ok=None).status == 0

    def delete_branch(self, branch: str, *, expected: str) -> bool:
        """Delete a local branch that is at *expected*; False if it is gone. Raises NotOurs if it moved."""
        ref = f"refs/heads/{check_branch(branch)}"
        with self._locked():
            if self.commit_of(ref) is None:
                return False
            used = next((entry.path for entry in self._entries() if entry.branch == branch), None)
            if used is not None:
                raise NotOurs(f"the branch {branch} is checked out in {used}: it is left alone")
            self._free_ref(ref)
            done = self._git("update-ref", "-d", ref, expected, ok=_YES_OR_NO)
            now = self.commit_of(ref)
        if now is not None and now != expected:
            raise NotOurs(f"the branch {branch} moved from {expected[:12]} to {now[:12]}: it is left alone")
        if now is not None:
            raise GitError(f"the branch {branch} could not be deleted: {done.reason}")

        return True

    def restore_branch(self, branch: str, commit: str) -> None:
        """Point *branch*, which no worktree uses, to *commit* again, even if its ref is unreadable."""
        ref = f"refs/heads/{check_branch(branch)}"
        with self._locked():
            self._free_ref(ref)
            damage.remove_broken_ref(self.common_dir, ref)
            self._git("update-ref", "--end-of-options", ref, self._commit(commit, f"{commit} names no commit"))

    def save_ref(self, ref: str, commit: str) -> None:
        """Point *ref*, one of adw's own, to *commit*, so that git does not collect the commit."""
        _check_own(ref, "adw keeps its own refs there")
        self._free_ref(ref)
        self._git("update-ref", "--end-of-options", ref, self._commit(commit, f"{commit} names no commit"))

    def keep_commits(self, adw_id: str, sha: str) -> str:
        """Keep *sha* under the first salvage ref of the workflow that is free or already names it; return that ref."""
        refs = (salvage_ref(adw_id, number) for number in range(1, MAX_SALVAGED + 1))
        ref = next((ref for ref in refs if self.commit_of(ref) in {None, sha}), "")
        if not ref:
            raise RollbackBlocked("there are too many salvaged commits of this workflow: delete some refs/adw/salvage")
        self.save_ref(ref, sha)

        return ref

    # --- worktrees ---------------------------------------------------------------------------------------------

    def worktrees(self) -> tuple[Worktree, ...]:
        """Return the linked worktrees, without the main one."""
        return self._undisturbed(lambda: tuple(self._entries())[1:])

    def is_as_made(self, path: Path, *, branch: str, reason: str) -> bool:
        """
        Say whether the worktree *path* is on *branch* and locked with *reason*, according to git's files.

        False is no proof, since refs may be stored in another format: ask `worktrees` then.
        """
        try:
            admin = self.commands.tree_dir(path)
        except GitError:
            return False
        known = (_read(admin / "HEAD").strip(), _read(admin / "locked").strip())

        return known == (f"ref: {HEADS}{branch}".encode(), reason.encode())

    def add_worktree(self, path: Path, *, branch: str, start: str, reason: str) -> Worktree:
        """
        Make branch and worktree from *start*, locked with *reason*; raise GitError and leave nothing behind.

        An existing one with this reason and branch is returned: the caller was interrupted after making it.
        """
        check_branch(branch)
        commit = self._commit(start, f"{start} names no commit")
        path = self._checked_place(path)
        with self._locked() as lock:
            present = self._at(path)
            if present is not None and (present.branch, present.lock_reason) == (branch, reason) and path.is_dir():
                self._check_out(path, lock, present.head)
                return present
            if present is not None or path.exists():
                raise GitError(f"{path} is there already{_whose(present)}: roll its workflow back, or move it away")
            self._free_ref(f"refs/heads/{branch}")
            damage.remove_broken_ref(self.common_dir, f"refs/heads/{branch}")
            at = self.commit_of(f"refs/heads/{branch}")
            if at not in {None, commit}:
                raise GitError(f"the branch {branch} is there already, at another commit: delete it, or name another")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                options = ("--quiet", "--no-checkout", "--lock", "--reason", reason)
                new = (*("--no-track", "-b", branch), "--end-of-options", str(path), commit)
                used = ("--end-of-options", str(path), branch)
                self._plain("worktree", "add", *options, *(new if at is None else used), keep=(lock,))
                self._check_out(path, lock, commit)
            except BaseException:
                # The directory did not exist before, and we hold the lock: everything in it is ours.
                _remove_tree(path)
                self._forget(path, is_known=self._at(path) is not None)
                if at is None:
                    self._git("update-ref", "-d", f"refs/heads/{branch}", commit, ok=_YES_OR_NO)
                raise

        return Worktree(path=path, branch=branch, head=commit, lock_reason=reason)

    def _check_out(self, path: Path, lock: int, commit: str) -> None:
        """Write the files of a worktree that has none yet, at *commit* with adw's configuration: the index last."""
        if not (self.commands.tree_dir(path) / "index").exists():
            self.commands.fetch_missing(commit)
            self._git("reset", "--quiet", "--hard", tree=path, keep=(lock,))

    def remove_worktree(self, path: Path, *, reason: str, is_recorded: bool = False) -> bool:
        """
        Remove the worktree locked with *reason*; False if it is gone. Raises NotOurs for another owner's.

        A damaged one is removed if its files show that it was one of ours, or if the ledger does (*is_recorded*).
        """
        path = self._checked_place(path)
        with self._locked():
            present = self._at(path)
            if (path / ".git").is_dir():
                raise NotOurs(f"{path} is a repository of its own now: it is left alone, move it away")
            check = damage.faults if is_recorded else damage.is_evident
            if check(self.common_dir, path) and _has_files(path):
                self._refuse_other_lock(path, reason)
                _remove_tree(path)
                for admin in damage.admin_dirs(self.common_dir, path):  # git may be unable to read it
                    shutil.rmtree(admin)
                return True
            if present is None and _has_files(path):
                raise NotOurs(f"{path} is no worktree of this repository: it is left alone, move it away")
            if present is None:  # remains of an add that was killed at its very start
                was_there = path.exists()
                if was_there:
                    path.rmdir()
                return self._forget(path, is_known=False) or was_there
            if present.lock_reason != reason:
                raise NotOurs(f"the worktree {path} is left alone{_whose(present)}, not {reason!r}")
            # The directory first: while git knows the worktree, an interrupted removal is still recognised as ours.
            _remove_tree(path)
            self._forget(path, is_known=True)

        return True

    def why_damaged(self, path: Path, *, reason: str) -> str:
        """
        Return how the worktree that adw made at *path* is damaged, or that git forgot it; "" if it is intact or gone.

        Raises NotOurs if something else is there now: a worktree of another owner, a repository, a link. Always "" for
        a worktree that older tools made elsewhere: it could not be made again there.
        """
        if path.parent.resolve() != self._trees.resolve():
            return ""
        path = self._checked_place(path)
        if (path / ".git").is_dir():
            raise NotOurs(f"{path} is a repository of its own now: it is left alone, move it away")
        found = damage.faults(self.common_dir, path)
        if found:
            self._refuse_other_lock(path, reason)

        return "; ".join(found)

    def damaged_worktrees(self) -> Mapping[Path, str]:
        """Return the directories below our trees whose files are those of a damaged worktree, and their faults."""
        return {
            path: "; ".join(damage.faults(self.common_dir, path))
            for path in sorted(self._trees.resolve().glob("*"))
            if not path.is_symlink() and damage.is_evident(self.common_dir, path)
        }

    def _refuse_other_lock(self, path: Path, reason: str) -> None:
        other = [said for said in damage.lock_reasons(self.common_dir, path) if said != reason]
        if other:
            raise NotOurs(f"the worktree {path} is left alone: it is locked with {other[0]!r}, not {reason!r}")

    def add_checkout(self, path: Path, commit: str) -> None:
        """Check *commit* out at *path* without a branch, for a trial; `remove_checkout` removes it."""
        known = self._commit(commit, f"{commit} names no commit")
        with self._locked() as lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            options = ("--quiet", "--no-checkout", "--detach", "--force", "--end-of-options")
            self._plain("worktree", "add", *options, str(path), known, keep=(lock,))
            self._check_out(path, lock, known)

    def remove_checkout(self, path: Path) -> None:
        """Remove what `add_checkout` made, or the rest of it, if there is any."""
        if path.is_symlink():
            raise NotOurs(f"{path} is a symbolic link: it is left alone, adw does not follow links")
        with self._locked():
            known = self._at(path.resolve())
            if known is None and not path.exists():
                return
            if known is not None and (known.branch or known.lock_reason):
                raise NotOurs(f"the worktree {path} is left alone{_whose(known)}")
            _remove_tree(path)
            self._forget(path.resolve(), is_known=known is not None)

    def lock_worktree(self, path: Path, *, reason: str) -> None:
        """Lock a worktree that nobody has locked; raise NotOurs if somebody else has."""
        path = self._checked_place(path)
        with self._locked():
            present = self._at(path)
            if present is None:
                raise NotOurs(f"{path} is no worktree of this repository")
            if present.lock_reason not in {"", reason}:
                raise NotOurs(f"the worktree {path} is left alone{_whose(present)}")
            if not present.lock_reason:
                self._plain("worktree", "lock", "--reason", reason, "--end-of-options", str(path))

    def _forget(self, path: Path, *, is_known: bool) -> bool:
        """Make git forget the worktree whose directory is gone, and only this one, unlike `git worktree prune`."""
        if is_known:
            self._plain("worktree", "remove", "--force", "--force", "--end-of-options", str(path))
        # An add killed before git recorded the owner: git itself would prune it.
        left = [admin for admin in damage.admin_dirs(self.common_dir, path) if damage.has_no_owner(admin)]
        for admin in left:
            shutil.rmtree(admin)

        return is_known or bool(left)

    def _checked_place(self, path: Path) -> Path:
        """Return *path* with resolved parents; raise NotOurs unless it is directly below our trees and not a link."""
        place = self._trees.resolve() / path.name
        if not path.is_absolute() or path.parent.resolve() / path.name != place or path.name in {"", ".", ".."}:
            raise NotOurs(f"{path} is not below {self._trees}: adw makes and removes worktrees there only")
        if place.is_symlink():
            raise NotOurs(f"{path} is a symbolic link: it is left alone, adw does not follow links")
        if place == self.root:
            raise NotOurs(f"{path} is the main checkout: it is left alone")

        return place

    # --- locks -------------------------------------------------------------------------------------------------

    def dead_locks(self) -> tuple[Path, ...]:
        """Return all locks in the git directory that no process uses, including those unrelated to workflows."""
        common = self.common_dir
        present = {lock for pattern in _LOCKS for lock in common.glob(pattern)} - {common / locks.LOCK_NAME}

        return self._dead(sorted(present))

    def remove_stale_locks(self, path: Path, branch: str, *, before: float) -> tuple[str, ...]:
        """
        Remove the locks of the worktree *path* and of *branch* that no process uses; return their names.

        Only locks made before *before*, in seconds since 1970, or before the machine booted.
        """
        common = self.common_dir
        present = [common / f"refs/heads/{branch}.lock", *(common / name for name in _PACKED_LOCKS)]
        present += [lock for admin in damage.admin_dirs(self.common_dir, path) for lock in sorted(admin.glob("*.lock"))]
        limit = max(before, locks.boot_time())

        return self._remove_dead([lock for lock in present if lock.is_file() and lock.stat().st_mtime < limit])

    def _free_ref(self, ref: str) -> None:
        """Remove locks of *ref* left by a dead git, before adw changes the ref."""
        self._remove_dead([self.common_dir / f"{ref}.lock", *(self.common_dir / name for name in _PACKED_LOCKS)])

    def _remove_dead(self, present: Iterable[Path]) -> tuple[str, ...]:
        removed = []
        for lock in self._dead(present):
            lock.unlink(missing_ok=True)
            removed.append(str(lock.relative_to(self.common_dir)))
            said = {"action": "stale_lock_removed", "lock": str(lock)}
            logger.warning("Removed a lock that a dead git left", extra=said)

        return tuple(removed)

    def _dead(self, present: Iterable[Path]) -> tuple[Path, ...]:
        """Return those of *present* that no process can be using: no git works anywhere in this repository."""
        there = [lock for lock in present if lock.is_file() and not lock.is_symlink()]
        if not there:
            return ()
        try:
            places = tuple(entry.path for entry in self._entries())
        except GitError:
            return ()  # cannot tell where a git may be at work

        return locks.dead(there, (self.common_dir, self.commands.home, *places))

    # --- the remote --------------------------------------------------------------------------------------------

    def has_remote(self) -> bool:
        """Say whether there is a remote."""
        return self.commands.remote_urls() is not None

    def remote_address(self) -> str | None:
        """Return the configured address for pushes, or None without a remote."""
        return (self.commands.remote_urls() or (None, None))[1]

    def remotes(self) -> Mapping[str, str]:
        """Return every remote and its address."""
        names = self._plain("remote").text.split()

        return {name: self._plain("remote", "get-url", "--end-of-options", name).text.strip() for name in names}

    def remote_problem(self, *, seconds: float) -> str | None:
        """Return why the remote does not answer within *seconds*, "" if it does; None without a remote."""
        try:
            url = self._url()
            if url is None:
                return None
            asked = ("ls-remote", "--end-of-options", url, "HEAD")
            self.commands.ask_remote(*asked, url=url, seconds=seconds, records=False)
        except GitError as exc:
            return str(exc)

        return ""

    def push_problem(self, *, seconds: float) -> str:
        """Return why the remote would not take our push within *seconds*, "" if it would. Pushes nothing."""
        try:
            refspec = f"{self._commit('HEAD', 'the repository has no commit')}:refs/heads/{_NEVER_PUSHED}"
            self._push(refspec, "--dry-run", ok=(0,), seconds=seconds, records=False)
        except GitError as exc:
            return str(exc)

        return ""

    def default_branch(self) -> str:
        """Return the remote's default branch (last known if it is silent), or the main checkout's without a remote."""
        with suppress(GitUnreachable):
            return self._default_now()[0]

        return self.default_branch_known()

    def default_branch_known(self) -> str:
        """Return the default branch as known locally, without asking the remote."""
        known = self._git("symbolic-ref", "--quiet", f"refs/remotes/{self._remote}/HEAD", ok=_YES_OR_NO).text.strip()

        return known.removeprefix(f"refs/remotes/{self._remote}/") or self._branch_of_main_checkout()

    def _default_now(self) -> tuple[str, str]:
        """
        Ask the remote for its default branch and its commit, "" if it does not say; raise GitUnreachable.

        For a remote that names no default branch, the locally known one is returned.
        """
        url = self._url()
        if url is None:
            return self._branch_of_main_checkout(), ""
        said = self.commands.ask_remote("ls-remote", "--symref", "--end-of-options", url, "HEAD", url=url)
        match = re.search(r"^ref: refs/heads/(\S+)\tHEAD$\n^([0-9a-f]{40,64})\tHEAD$", said.text, re.MULTILINE)

        return (match[1], match[2]) if match else (self.default_branch_known(), "")

    def _branch_of_main_checkout(self) -> str:
        branch = self._main().branch
        if not branch:
            raise GitError(f"{self.root} is on no branch, and {self._remote} names no default one: check one out")

        return branch

    def fetch_default(self) -> tuple[str, str]:
        """Fetch the default branch that the remote names now, never a remembered one; return its name and commit."""
        branch, there = self._default_now()

        return branch, self.fetch(branch, there=there)

    def fetch(self, branch: str, *, there: str | None = "") -> str:
        """
        Fetch *branch* from the remote and return its commit; without a remote return the local one.

        *there* is the commit that the remote has just reported, "" to ask it.
        """
        check_branch(branch)
        url = self._url()
        if url is None:
            return self._commit(f"refs/heads/{branch}", f"there is no branch {branch} here, and no {self._remote}")
        there = there or self.remote_commit(branch)
        if there is None:
            raise GitError(f"the remote {self._remote} has no branch {branch}")
        kept = f"refs/remotes/{self._remote}/{branch}"
        commit = self.commit_of(kept)
        if commit != there:
            self._free_ref(kept)
            self._undisturbed(lambda: self.commands.fetch(url, f"+refs/heads/{branch}:{kept}"))
            commit = self._commit(kept, f"{branch} was fetched from {self._remote}, but is not there")
        self.commands.fetch_missing(commit)

        return commit

    def newest(self, branch: str, *, seconds: float) -> str | None:
        """Return the remote's commit of *branch*, or the locally known one if the remote does not answer."""
        with suppress(GitError):
            return self.fetch(
                branch, there=self.remote_refs(f"{HEADS}{branch}", seconds=seconds).get(f"{HEADS}{branch}")
            )

        return self.commit_of(f"refs/remotes/{self._remote}/{check_branch(branch)}")

    def fetch_ref(self, ref: str, *, expected: str) -> None:
        """Fetch the commit *expected* of the remote's *ref*; raise GitError if the remote has another by now."""
        check_branch(ref)
        self.commands.fetch(self._known_urls()[0], ref)
        if self.commit_of(expected) is None:
            raise GitError(f"{ref} of {self._remote} moved while it was fetched: {expected[:12]} did not come with it")

    def remote_refs(self, pattern: str, *, seconds: float = NETWORK_SECONDS) -> Mapping[str, str]:
        """Ask the remote for the refs that match *pattern* and their commits; empty without a remote."""
        url = self._url()
        if url is None:
            return {}
        said = self.commands.ask_remote("ls-remote", "--end-of-options", url, pattern, url=url, seconds=seconds)
        rows = (line.split("\t", 1) for line in os.fsdecode(said.out).splitlines())

        return {ref: sha for sha, ref in rows}

    def remote_ref(self, ref: str) -> str | None:
        """Ask the remote for the commit of *ref*, or None if it has no such ref. Raises GitUnreachable."""
        return self.remote_refs(ref).get(ref)

    def remote_commit(self, branch: str) -> str | None:
        """Ask the remote for the commit of *branch*, or None if it has no such branch."""
        return self.remote_ref(f"refs/heads/{check_branch(branch)}")

    def remote_branches(self) -> Mapping[str, str]:
        """Ask the remote for all its branches and their commits; empty without a remote. Raises GitUnreachable."""
        heads = self.remote_refs("refs/heads/*").items()

        return {ref.removeprefix(HEADS): sha for ref, sha in heads if ref.startswith(HEADS)}

    def push(self, worktree: Path, branch: str, *, expected: str | None) -> str:
        """
        Push with lease: the remote branch must be at *expected*, or, for None, must not exist.

        Returns "" after a push, otherwise why it was refused: "stale" or "rejected". Raises GitUnreachable.
        """
        ref = f"refs/heads/{check_branch(branch)}"
        self._known_urls()
        place = self._undisturbed(lambda: self._at(worktree))
        if place is None or place.branch != branch or not place.head:
            if self.commit_of(ref) is None:
                raise GitError(f"there is no branch {branch} to push")
            raise GitError(f"{worktree} is not on the branch {branch}: what was made there would not be pushed")

        return self._push_with_lease(ref, ref, expected)

    def push_ref(self, commit: str, ref: str, *, expected: str | None) -> str:
        """Push *commit* as the remote's *ref*, one of adw's own that is at *expected*; returns as `push` does."""
        _check_own(ref, "adw pushes work that is not shipped there only")

        return self._push_with_lease(commit, ref, expected)

    def delete_remote_branch(self, branch: str, *, expected: str) -> bool:
        """Delete the remote branch that is at *expected*; False if it is gone. Raises NotOurs if it moved."""
        check_branch(branch)
        if self.remote_commit(branch) is None:
            return False
        if branch == self.default_branch():
            raise NotOurs(f"{branch} is the default branch of {self._remote}: it is left alone")

        return self._delete_remotely(f"{HEADS}{branch}", expected, name=f"the branch {branch}")

    def delete_remote_ref(self, ref: str, *, expected: str) -> bool:
        """Delete the remote's *ref*, one of adw's own, that is at *expected*; False if it is gone. Raises NotOurs."""
        _check_own(ref, "adw pushes work that is not shipped there only")

        return self.remote_ref(ref) is not None and self._delete_remotely(ref, expected, name=ref)

    def _delete_remotely(self, ref: str, expected: str, *, name: str) -> bool:
        said = self._push(f":{ref}", f"--force-with-lease={ref}:{expected}")
        if said.status == 0:
            return True
        now = self.remote_ref(ref)
        if now is None:
            return False
        if now != expected:
            raise NotOurs(f"{name} of {self._remote} moved to {now[:12]}: it is left alone")

        raise GitError(f"{self._remote} refused to delete {name}: {said.reason}")

    def _push_with_lease(self, source: str, ref: str, expected: str | None) -> str:
        said = self._push(f"{source}:{ref}", f"--force-with-lease={ref}:{expected or ''}")
        if said.status == 0:
            return ""

        return "stale" if "(stale info)" in said.text else "rejected"

    def _push(
        self,
        refspec: str,
        option: str,
        *,
        ok: Sequence[int] = (0, 1),
        seconds: float = NETWORK_SECONDS,
        records: bool = True,
    ) -> Answer:
        """Push one ref alone: no tags, no submodules, no hooks."""
        options = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", option)
        url = self._known_urls()[1]

        return self.commands.ask_remote(
            "push", *options, "--end-of-options", url, refspec, url=url, ok=ok, seconds=seconds, records=records
        )

    # --- what all worktrees share ------------------------------------------------------------------------------

    def marks(self) -> Marks:
        """
        Return the marks of what all worktrees share: configuration, hooks, attributes, default branch, tags.

        They are read from files, so that planted configuration is seen before git acts on it. Links are not followed:
        the content of a link is its target.
        """
        common = self.common_dir
        result = change_policy.marks_of_config(_read(common / "config").decode("utf-8", "surrogateescape"))
        for path in (common / "config.worktree", *sorted(common.glob("worktrees/*/config.worktree"))):
            if os.path.lexists(path):
                text = _read(path).decode("utf-8", "surrogateescape")
                result |= change_policy.marks_of_config(text, where=str(path.relative_to(common)))
        for place in (common / name for name in _WATCHED):
            inside = sorted(place.rglob("*")) if place.is_dir() and not place.is_symlink() else [place]
            for path in inside:
                if (path.is_symlink() or path.is_file()) and not path.name.endswith(".sample"):
                    result[str(path.relative_to(common))] = change_policy.mark(_read(path))

        if (common / "reftable").is_dir():
            said = self._git("for-each-ref", "--format=%(refname)%00%(objectname)")
            refs = dict(line.split("\0", 1) for line in os.fsdecode(said.out).splitlines())
        else:
            refs = {}  # from files, because they are read before and after every phase
            packed = common / "packed-refs"
            with suppress(FileNotFoundError), packed.open(encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    sha, _, ref = line.rstrip("\n").partition(" ")
                    if ref.startswith((TAGS, _REPLACED, HEADS)) and not line.startswith("#"):
                        refs[ref] = sha
            for name in (TAGS, _REPLACED, HEADS):
                for path in sorted((common / name).rglob("*")):
                    if (path.is_symlink() or path.is_file()) and not path.name.endswith(".lock"):
                        refs[str(path.relative_to(common))] = _read(path).decode("utf-8", "replace").strip()
        known = _read(common / "refs" / "remotes" / self._remote / "HEAD").decode("utf-8", "replace").strip()
        named = known.removeprefix(f"ref: refs/remotes/{self._remote}/")
        default = named if named != known else "main" if f"{HEADS}main" in refs else "master"
        watched = (TAGS, _REPLACED)
        result |= {ref: sha for ref, sha in refs.items() if ref == HEADS + default or ref.startswith(watched)}

        return result

    # --- internals ---------------------------------------------------------------------------------------------

    def _plain(self, *args: str, keep: Sequence[int] = ()) -> Answer:
        """Run a worktree command with the repository named explicitly, so that git need not search for it."""
        return self.commands.plain(f"--git-dir={self.common_dir}", *args, keep=keep)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock inside the block: no adw adds a worktree meanwhile, so an empty file there is damaged."""
        with locks.holding(self.common_dir, clock=self._clock) as lock:
            try:
                restored = damage.restore_common_dirs(self.common_dir, self._trees)
            except OSError as exc:
                raise GitError(f"a file that git stops at cannot be written again: {exc}; check the disk") from exc
            for path in restored:
                said = {"action": "worktree_file_restored", "file": str(path)}
                logger.warning("Restored an empty file that git stops at", extra=said)
            yield lock

    def _undisturbed(self, look: Callable[[], _Seen]) -> _Seen:
        """
        Return the result of *look*; must not be called by the holder of the lock.

        Reading all worktrees fails while one is being added, which has no head or owner yet: then *look* is retried
        under the lock, when no adw adds one.
        """
        try:
            return look()
        except GitUnreachable:
            raise
        except GitError:
            with self._locked():
                return look()

    def _url(self) -> str | None:
        """Return the address for fetches, or None without a remote."""
        return (self.commands.remote_urls() or (None, None))[0]

    def _known_urls(self) -> tuple[str, str]:
        urls = self.commands.remote_urls()
        if urls is None:
            raise GitError(f"there is no remote {self._remote}: add it with git remote add, or set git.remote")

        return urls

    def _commit(self, ref: str, otherwise: str) -> str:
        commit = self.commit_of(ref)
        if commit is None:
            raise GitError(otherwise)

        return commit

    def _main(self) -> Worktree:
        return self._undisturbed(lambda: next(self._entries()))

    def _at(self, path: Path) -> Worktree | None:
        """Return the linked worktree at *path*, or None; the main checkout, listed first, does not count."""
        return next((entry for entry in tuple(self._entries())[1:] if entry.path == path), None)

    def _entries(self) -> Iterator[Worktree]:
        """Yield every worktree, the main one first."""
        try:
            said = os.fsdecode(self._plain("worktree", "list", "--porcelain", "-z").out)
        except GitError as exc:
            if empty := damage.empty_common_dirs(self.common_dir):
                raise GitError(
                    f"git cannot read its worktrees, because {empty[0]} is empty: write it again with "
                    f"echo ../.. > {shlex.quote(str(empty[0]))}"
                ) from exc
            raise
        for block in said.split("\0\0"):
            pairs = (line.partition(" ") for line in block.split("\0") if line)
            facts = {name: value for name, _, value in pairs}
            if "worktree" in facts:
                path, head = Path(facts["worktree"]), facts.get("HEAD", "")
                yield Worktree(
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


def _has_files(path: Path) -> bool:
    return path.exists() and any(path.iterdir())


def _check_own(ref: str, why: str) -> None:
    if not ref.startswith(OUR_REFS):
        raise GitError(f"{ref!r} is not below {OUR_REFS}: {why}")
    check_branch(ref)


# --- files of the git directory --------------------------------------------------------------------------------

#: Files below the common directory that make git run programs or see other content; directories include their files.
_WATCHED = ("hooks", "info", "objects/info/alternates")
_REPLACED = "refs/replace/"
#: Most bytes read of one file.
_MAX_BYTES = 1 << 20


def _read(path: Path) -> bytes:
    """Return the content of a file, the target of a link, or nothing if it is missing."""
    try:
        if path.is_symlink():
            return b"link to " + os.fsencode(path.readlink())
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as exc:
        return f"cannot be read: {exc.strerror}".encode()


# --- files of workflows outside git: their directories, and patches of salvaged work -------------------------------


def _remove_tree(path: Path) -> None:
    """Remove a directory and its content without following links; read-only directories are made writable."""
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


def remove_directory(path: Path, *, root: Path) -> bool:
    """
    Remove the directory *path*, which is directly in *root*; False if it does not exist.

    Raises NotOurs for a symbolic link, and for a path elsewhere.
    """
    place = root.resolve() / path.name
    if path.name in {"", ".", ".."} or path.parent.resolve() != root.resolve():
        raise NotOurs(f"{path} does not lie in {root}: it is left alone")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise NotOurs(f"{path} is not a directory of its own: it is left alone")
    if not place.exists():
        return False
    shutil.rmtree(place)  # follows no link, whatever is swapped in during the removal

    return not place.exists()


def write_patch(folder: Path, name: str, payload: bytes) -> Path:
    """Write *payload* durably to *folder*/*name*, for its owner alone; return the path. Replaces an older file."""
    path, temp = folder / name, folder / f".{name}.tmp"
    durable_file.make_directory(str(folder))
    temp.unlink(missing_ok=True)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)
    durable_file.sync_directory_at(str(folder))

    return path
