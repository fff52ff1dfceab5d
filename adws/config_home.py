"""
Find the home: the directory that holds `adw.toml`, `state/` and `trees/`.

It is the main checkout of the repository, also when adw is called from inside one of its worktrees. Git's own files
are read directly: starting a git process would double the start-up time of every command.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from adws.adw_modules.errors import ConfigError

#: What to do about a home that cannot be found, at the end of every message about it.
HINT = "set ADW_HOME, or use adw --home PATH"


class Found(NamedTuple):
    """A home, and how it was found."""

    path: Path
    origin: str


def find_home(cwd: Path) -> Found:
    """Return the main checkout of the repository *cwd* is in, else *cwd* itself."""
    dot_git = _dot_git_of(cwd)
    if dot_git is None:
        return Found(cwd, "the current directory, which is in no git repository")
    if dot_git.is_file():
        return Found(_main_checkout(dot_git), "the main checkout of the repository you are in")

    return Found(dot_git.parent, "the repository you are in")


def is_in_repository(directory: Path) -> bool:
    """Say whether *directory* is in a checkout."""
    return _dot_git_of(directory) is not None


def _dot_git_of(directory: Path) -> Path | None:
    """Return what the checkout that *directory* is in has at `.git`: its git directory, or a file that leads to it."""
    found = (place / ".git" for place in (directory, *directory.parents))

    return next((dot_git for dot_git in found if dot_git.is_file() or _is_git_directory(dot_git)), None)


def _is_git_directory(dot_git: Path) -> bool:
    """Say whether git would take it for one; sandboxes of agents leave empty directories of this name about."""
    head = dot_git / "HEAD"

    return head.is_file() or head.is_symlink()


def _main_checkout(dot_git: Path) -> Path:
    """Return the main checkout that the worktree or submodule with this `.git` file belongs to."""
    git_dir = dot_git.parent / _pointer(dot_git, prefix="gitdir:")
    if not (git_dir / "commondir").is_file():
        return dot_git.parent  # a submodule, or a checkout whose git directory stands elsewhere
    common = (git_dir / _pointer(git_dir / "commondir")).resolve()
    if common.name != ".git":
        raise ConfigError(f"{dot_git.parent} is a worktree of {common}, which has no main checkout: {HINT}")

    return common.parent


def _pointer(path: Path, prefix: str = "") -> str:
    """Return the path written in one of git's one-line files."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path} to find the home: {HINT}") from exc
    target = text.removeprefix(prefix).strip()
    if not text.startswith(prefix) or not target:
        raise ConfigError(f"{path} does not say where its git directory is: {HINT}")

    return target
