"""
One adw at a time changes the worktrees and branches of a repository.

git locks single files and fails when another git has one; two `worktree add` at once do meet there. So they queue at a
flock of ours in the common git directory, which all worktrees share. The file is never unlinked: two processes could
then hold "the" lock on two different files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adws.adw_modules.errors import GitError, LockUnavailable
from adws.adw_modules.interfaces import Clock

#: Name of the lock file in the common git directory.
LOCK_NAME = "adw-worktrees.lock"
#: Longer than a checkout may take (git.CHECKOUT_SECONDS), times a few who wait before us.
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
