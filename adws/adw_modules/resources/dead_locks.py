"""
Lock files of git whose process is gone.

git names a lock after the file it protects and writes nobody's name into it, so a killed git leaves one that nobody
frees. It is removed only when the death is proven: no git of this machine works in that worktree, and nobody has the
file open. Where that cannot be seen, the file stays.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Locks in the private git directory of a worktree.
_NAMES = ("index.lock", "HEAD.lock")
_PROC = Path("/proc")


def clear(git_dir: Path, worktree: Path, *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Remove the locks in *git_dir*, that of *worktree*, which no process can be using; return those removed."""
    dead = find(git_dir, worktree, proc=proc)
    for path in dead:
        path.unlink(missing_ok=True)

    return dead


def find(git_dir: Path, worktree: Path, *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Return the locks in *git_dir*, that of *worktree*, which no process can be using."""
    found = [path for path in (git_dir / name for name in _NAMES) if path.is_file() and not path.is_symlink()]

    return tuple(path for path in found if _is_dead(path, (git_dir, worktree), proc))


def _is_dead(lock: Path, places: tuple[Path, ...], proc: Path) -> bool:
    try:
        uid = lock.stat().st_uid
        pids = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return False
    if uid != os.geteuid() or proc / str(os.getpid()) not in pids:
        return False  # somebody else's lock, no /proc, or one that shows the processes of others

    return not any(_may_use(process, lock, places, uid) for process in pids)


def _may_use(process: Path, lock: Path, places: tuple[Path, ...], uid: int) -> bool:
    """Say whether *process* may be the one that took *lock*: a git that works there, or whoever has it open."""
    try:
        if process.stat().st_uid != uid:
            return False  # it could not have made this lock
        is_git = (process / "comm").read_text(errors="replace").startswith("git")
        works_there = is_git and _is_below((process / "cwd").readlink(), places)
        return works_there or any(_target(entry) == str(lock) for entry in (process / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended meanwhile
    except OSError:
        return True  # of the same person, and it cannot be seen what it does


def _is_below(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path == place or place in path.parents for place in places)


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # closed meanwhile
