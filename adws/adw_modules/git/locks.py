"""
Repository locks: adw's own lock around worktrees and branches, and locks left by a killed git.

git locks single files and fails if another git holds one; two concurrent `worktree add` commands do collide there. So
adw's processes queue at a flock in the common git directory, which all worktrees share.

git names a lock after the file it protects and does not record its owner, so nobody frees the lock of a killed git. adw
removes such a lock only when its owner is proven dead: no git process of this machine that existed when the lock was
made works in that place, and no process has the file open. Where that cannot be checked, the file stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from adws.adw_modules.errors import GitError, LockUnavailable
from adws.adw_modules.interfaces import Clock

#: Name of our lock file in the common git directory.
LOCK_NAME = "adw-worktrees.lock"
#: Longer than a checkout may take (git.LOCAL_SECONDS), times a few processes ahead in the queue.
PATIENCE_SECONDS = 3600.0
_POLL_SECONDS = 0.02
#: Locks in the private git directory of a worktree.
_WORKTREE_LOCKS = ("index.lock", "HEAD.lock")
_PROC = Path("/proc")
#: Tolerance between the start of a process and the time of a file it made.
_SLACK_SECONDS = 5.0


@contextmanager
def holding(common_dir: Path, *, clock: Clock, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[int]:
    """
    Hold the lock of the repository inside the block; raise GitError after *patience_seconds*.

    Yields the lock's descriptor. A process that inherits it holds the lock too, so nobody gets in while the git of a
    killed adw still works. The file is never unlinked: two processes could then hold "the" lock on two different files.
    """
    path = common_dir / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise LockUnavailable(str(path), exc) from exc
    try:
        deadline = clock.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as exc:
                raise LockUnavailable(str(path), exc) from exc
            if clock.monotonic() >= deadline:
                raise GitError(
                    f"another adw has held {path} for {patience_seconds:.0f} s: "
                    "check whether it is stuck (fuser shows who), then retry"
                )
            clock.sleep(_POLL_SECONDS * (0.5 + clock.random()))
        try:
            yield fd
        finally:
            # A child forked in the meantime has the descriptor too: closing only ours would leave the lock held by it.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def clear(git_dir: Path, worktree: Path, *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Remove the locks in the git directory of *worktree* that no process can be using; return those removed."""
    locks = dead([git_dir / name for name in _WORKTREE_LOCKS], (git_dir, worktree), proc=proc)
    for path in locks:
        path.unlink(missing_ok=True)

    return locks


def dead(locks: Sequence[Path], places: tuple[Path, ...], *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Return those of *locks* that no process can be using: none has them open, and no git works in one of *places*."""
    result = []
    for lock in locks:
        if not lock.is_file() or lock.is_symlink():
            continue
        try:
            made = lock.stat()
            processes = [entry for entry in proc.iterdir() if entry.name.isdigit()]
        except OSError:
            continue
        # Another user's lock, no /proc, or one that does not show this process.
        if made.st_uid != os.geteuid() or proc / str(os.getpid()) not in processes:
            continue
        if not any(_may_use(process, lock, places, made) for process in processes):
            result.append(lock)

    return tuple(result)


def boot_time() -> float:
    """Return when this machine booted, in seconds since 1970."""
    return float(psutil.boot_time())


def _may_use(process: Path, lock: Path, places: tuple[Path, ...], made: os.stat_result) -> bool:
    """Return whether *process* may hold *lock*: it is a git that works there, or has the file open."""
    try:
        if process.stat().st_uid != made.st_uid:
            return False  # it could not have made this lock
        if (process / "comm").read_text(errors="replace").startswith("git"):
            cwd = (process / "cwd").readlink()
            works_there = any(place in (cwd, *cwd.parents) for place in places)
            started = float("-inf")  # unknown counts as long ago
            with suppress(FileNotFoundError, IndexError, ValueError):
                fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                started = boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
            if works_there and started <= made.st_mtime + _SLACK_SECONDS:
                return True
        for entry in (process / "fd").iterdir():
            with suppress(OSError):  # closed in the meantime
                if str(entry.readlink()) == str(lock):
                    return True
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended in the meantime
    except OSError:
        return True  # a process of the same user that cannot be inspected

    return False
