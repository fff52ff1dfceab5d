"""
Refs of adw's own on the remote: work that is not shipped yet, for other machines to go on with.

Nothing but refs below `refs/adw/` is ever pushed or deleted here, each with a lease on the commit it is known to be at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from adws.adw_modules.errors import GitError, GitUnreachable, NotOurs
from adws.adw_modules.interfaces_resources import PushResult
from adws.adw_modules.resources.git import LOCAL_SECONDS, Answer, GitCommands
from adws.adw_modules.resources.git_names import check_branch
from adws.adw_modules.resources.repository import OUR_REFS


class OwnRemoteRefs:
    """A `RemoteRefs` of the repository that a home is in."""

    def __init__(self, commands: GitCommands, common_dir: Callable[[], Path], *, remote: str = "origin") -> None:
        """*common_dir* says where the git directory is that all worktrees share."""
        self._commands = commands
        self._common_dir = common_dir
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
        said = self._ask_remote("ls-remote", "--end-of-options", self._remote, pattern, url=url)
        rows = (line.split("\t", 1) for line in os.fsdecode(said.out).splitlines())

        return {ref: sha for sha, ref in rows}

    def fetch(self, ref: str, *, expected: str) -> None:
        """Have the commit *expected* of *ref* here; raise GitError when the remote has another by now."""
        check_branch(ref)
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--end-of-options")
        self._ask_remote("fetch", *options, self._remote, ref, url=self._known_url())
        found = self._git("cat-file", "-e", f"{expected}^{{commit}}", ok=(0, 1, 128))
        if found.status != 0:
            raise GitError(f"{ref} of {self._remote} moved while it was fetched: {expected[:12]} did not come with it")

    def push(self, commit: str, ref: str, *, expected: str | None) -> PushResult:
        """Make *ref* of the remote name *commit*; it must be at *expected*, None: must not exist."""
        _check_own(ref)
        try:
            said = self._push(f"--force-with-lease={ref}:{expected or ''}", f"{commit}:{ref}")
        except GitUnreachable:
            return PushResult(pushed=False, reason="unreachable")
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
        url = self._known_url()

        return self._ask_remote("push", *options, "--end-of-options", self._remote, refspec, url=url, ok=(0, 1))

    def _ask_remote(self, *args: str, url: str, ok: tuple[int, ...] = (0,)) -> Answer:
        return self._commands.ask_remote(f"--git-dir={self._common_dir()}", *args, url=url, ok=ok)

    def _git(self, *args: str, ok: tuple[int, ...]) -> Answer:
        return self._commands.run(f"--git-dir={self._common_dir()}", *args, ok=ok, seconds=LOCAL_SECONDS)

    def _known_url(self) -> str:
        url = self._url()
        if url is None:
            raise GitError(f"there is no remote {self._remote}: add it with git remote add, or set git.remote")

        return url

    def _url(self) -> str | None:
        found = self._git("remote", "get-url", "--end-of-options", self._remote, ok=(0, 2, 128))

        return found.text.strip() or None


def _check_own(ref: str) -> None:
    if not ref.startswith(OUR_REFS):
        raise GitError(f"{ref!r} is not below {OUR_REFS}: adw pushes work that is not shipped there only")
    check_branch(ref)
