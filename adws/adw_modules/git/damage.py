"""
Detect worktrees damaged by a power cut: files that link a worktree and its repository are empty or missing.

`git worktree add` does not sync these files, so they can exist but be empty. This module reads them without git: some
of them make git fail for the whole repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: Content of the file `commondir` of every linked worktree.
_COMMON = b"../..\n"
#: Marker file: the `commondir` beside it was empty.
_MARK = "adw-commondir-was-empty"
#: File -> how intact content begins; "": any content that is not empty.
_BEGINS = {"gitdir": b"", "commondir": b"", "HEAD": b"", "index": b"DIRC"}
_SYMBOLIC = b"gitdir: "
_LOCK_FAULT = "the lock "
_COMMIT = re.compile(rb"[0-9a-f]{40,64}")


def faults(common: Path, path: Path) -> tuple[str, ...]:
    """Return the faults in the files of the worktree *path*, one sentence each; empty if it does not exist."""
    link = path / ".git"
    if not path.is_dir() or path.is_symlink() or link.is_dir():
        return ()
    result = []
    if not link.is_file():
        result.append(f"{link} is gone")
    elif not _read(link).startswith(_SYMBOLIC):
        result.append(f"{link} is empty or cannot be read")
    elif not _is_of(common, _admin_named_by(link)):
        return ()  # it is a worktree of another repository
    admins = admin_dirs(common, path)
    if not admins:
        result.append("git does not know it any more")
    for admin in admins:
        for name, begin in _BEGINS.items():
            content = _read(admin / name)
            if not (admin / name).is_file():
                result.append(f"{admin / name} is gone")
            elif not content or not content.startswith(begin):
                result.append(f"{admin / name} is empty or cannot be read")
        if (admin / _MARK).exists():
            result.append(f"{admin / 'commondir'} was empty")
        if link.is_file() and _admin_named_by(link) not in {None, admin}:
            result.append(f"{link} leads elsewhere")
        lock = admin / "locked"
        if lock.is_file() and not _read(lock):
            result.append(f"{_LOCK_FAULT}{lock} is empty")

    return tuple(result)


def is_evident(common: Path, path: Path) -> bool:
    """Say whether the files at *path* are evidently those of a damaged worktree of this repository."""
    found = faults(common, path)
    is_linked = (path / ".git").is_file()

    return any(not fault.startswith(_LOCK_FAULT) for fault in found) and (is_linked or bool(admin_dirs(common, path)))


def admin_dirs(common: Path, path: Path) -> tuple[Path, ...]:
    """Return git's administrative directories for *path*, including one of the same name that names no owner."""
    link = path / ".git"
    named = {common / "worktrees" / path.name}
    if link.is_file() and not link.is_symlink():
        named |= {admin for admin in (_admin_named_by(link),) if admin is not None and _is_of(common, admin)}
    result = []
    for admin in sorted((common / "worktrees").glob("*")):
        if admin.is_dir() and not admin.is_symlink():
            owner = _read(admin / "gitdir").decode(errors="surrogateescape")
            is_its_own = bool(owner) and (admin / owner).parent.resolve() == path.resolve()
            if is_its_own or (not owner and admin in named):
                result.append(admin)

    return tuple(result)


def has_no_owner(admin: Path) -> bool:
    """Say whether git's administrative directory *admin* does not name its worktree."""
    return not _read(admin / "gitdir")


def lock_reasons(common: Path, path: Path) -> tuple[str, ...]:
    """Return the lock reasons of the worktree *path*, as far as they can be read."""
    said = (_read(admin / "locked").decode(errors="replace") for admin in admin_dirs(common, path))

    return tuple(filter(None, said))


def restore_common_dirs(common: Path, trees: Path) -> tuple[Path, ...]:
    """
    Rewrite the empty `commondir` files of worktrees below *trees*; return those files.

    One such file keeps git from listing, adding or removing any worktree; its content is always the same. The worktree
    stays marked as damaged, because other files may have been emptied too.
    """
    restored = []
    for file in empty_common_dirs(common):
        link = file.parent / _read(file.with_name("gitdir")).decode(errors="surrogateescape")
        if link.parent.parent.resolve() != trees.resolve():
            continue
        file.with_name(_MARK).touch()
        with file.open("wb") as opened:
            opened.write(_COMMON)
            opened.flush()
            os.fsync(opened.fileno())
        restored.append(file)

    return tuple(restored)


def empty_common_dirs(common: Path) -> tuple[Path, ...]:
    """Return the empty `commondir` files that keep git from listing worktrees, including those of other owners."""
    files = [admin / "commondir" for admin in sorted((common / "worktrees").glob("*")) if not admin.is_symlink()]

    return tuple(file for file in files if file.is_file() and not file.is_symlink() and not _read(file))


def remove_broken_ref(common: Path, ref: str) -> bool:
    """Remove the file of *ref* if it names neither a commit nor another ref: git refuses to replace such a ref."""
    path = common / ref
    if path.is_symlink() or not path.is_file():
        return False
    content = _read(path)
    if _COMMIT.fullmatch(content) or content.startswith(b"ref: "):
        return False
    path.unlink()

    return True


def _admin_named_by(link: Path) -> Path | None:
    content = _read(link)
    if not content.startswith(_SYMBOLIC):
        return None

    return (link.parent / content.removeprefix(_SYMBOLIC).decode(errors="surrogateescape")).resolve()


def _is_of(common: Path, admin: Path | None) -> bool:
    return admin is not None and admin.parent == (common / "worktrees").resolve()


def _read(path: Path) -> bytes:
    """Return the content of a small file, stripped of the null bytes a power cut leaves; empty if it is missing."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).strip(b"\0 \n")
    except OSError:
        return b""
