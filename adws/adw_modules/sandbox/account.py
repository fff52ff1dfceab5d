"""
The unprivileged user as whom sandboxed commands run when adw itself is root (`sandbox.user`).

Before a command starts, the user becomes owner of what it may write: the worktree, its administrative directory and the
sandbox's own directory. In the git directory shared by all worktrees, only directories are opened, by group: existing
objects stay root's.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.process.run import Account


def find(name: str) -> Account | None:
    """Return the account of *name*, or None if adw already runs as that user; raise ConfigError if it is unusable."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"sandbox.user is {name}, and this machine has no such user: useradd -m {name}") from None
    if entry.pw_uid == 0:
        raise ConfigError(f"sandbox.user is {name}, which is root: name an unprivileged user")
    if os.geteuid() == entry.pw_uid:
        return None
    if os.geteuid() != 0:
        raise ConfigError(
            f"sandbox.user is {name}, but only root can run commands as another user: "
            "start adw as root, or leave sandbox.user out"
        )

    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, home=Path(entry.pw_dir))


def give(path: Path, account: Account) -> None:
    """
    Make *account* the owner of *path* and everything below it, without following symbolic links.

    A file with several hard links keeps its owner: another link may be somebody else's file.
    """
    _give(path.lstat(), account, path)
    if path.is_symlink() or not path.is_dir():
        return
    for _top, folders, files, fd in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            _give(found, account, name, directory=fd)


def _give(found: os.stat_result, account: Account, path: Path | str, *, directory: int | None = None) -> None:
    is_alone = stat.S_ISDIR(found.st_mode) or found.st_nlink == 1
    if is_alone and (found.st_uid, found.st_gid) != (account.uid, account.gid):
        os.chown(path, account.uid, account.gid, dir_fd=directory, follow_symlinks=False)


def open_directories(path: Path, account: Account) -> None:
    """Let the group of *account* create and replace files in *path* and all directories below it."""
    if not path.is_dir():
        return
    for _top, _folders, _files, fd in os.fwalk(path, follow_symlinks=False):
        found = os.fstat(fd)
        wanted = stat.S_IMODE(found.st_mode) | stat.S_ISGID | stat.S_IRWXG
        if found.st_uid != account.uid and found.st_gid != account.gid:
            os.chown(fd, -1, account.gid)
        if stat.S_IMODE(found.st_mode) != wanted:
            os.fchmod(fd, wanted)


def let_read(paths: Iterable[Path], account: Account) -> None:
    """Let the group of *account* read files that adw wrote for a command."""
    for path in paths:
        if path.is_file() and not path.is_symlink():
            os.chown(path, -1, account.gid)
            path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRGRP)


def let_pass(path: Path, below: Iterable[Path]) -> None:
    """Let everybody enter, but not list, the parents of *path* that are a directory in *below* or inside one."""
    places = [place.resolve() for place in below]
    for parent in path.resolve().parents:
        if any(parent == place or parent.is_relative_to(place) for place in places):
            mode = stat.S_IMODE(parent.stat().st_mode)
            if mode & 0o011 != 0o011:
                parent.chmod(mode | 0o011)


def why_unreachable(path: Path, account: Account) -> str:
    """Return which directory *account* may not enter on the way to *path*, or "" if it can reach it."""
    for parent in reversed(path.resolve().parents):
        found = parent.stat()
        if found.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif found.st_gid == account.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not found.st_mode & bit:
            return f"the user {account.name} (sandbox.user) may not enter {parent}"

    return ""
