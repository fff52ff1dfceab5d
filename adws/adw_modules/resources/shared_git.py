"""
The git directory that all worktrees of a repository share, read without running anything that stands in it.

Files are read as files, so that a configuration that somebody planted is seen before git acts on it. No link is
followed: where one leads is its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from adws.adw_modules import tampering
from adws.adw_modules.resources.git import GitCommands
from adws.adw_modules.tampering import HEADS, TAGS, Marks

#: Files below the common directory that make git run something, or see something else; directories count as a whole.
_PLACES = ("hooks", "info", "objects/info/alternates")
#: Most bytes of one file that are read.
_MAX_BYTES = 1 << 20
_NOT_OURS = (".sample",)
_USUAL_NAMES = ("main", "master")


class SharedGit:
    """Looks at what is shared; *common_dir* says where that is, and raises GitError where there is no repository."""

    def __init__(self, commands: GitCommands, common_dir: Callable[[], Path], *, remote: str = "origin") -> None:
        self._commands = commands
        self._common_dir = common_dir
        self._remote = remote

    def marks(self) -> Marks:
        """Return the marks of everything that is watched."""
        common = self._common_dir()

        return {**self._configs(common), **dict(_files(common)), **self._refs(common)}

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether the commit *old* is part of the history of *new*."""
        return self._commands.ask("merge-base", "--is-ancestor", old, new).status == 0

    def _configs(self, common: Path) -> dict[str, str]:
        found = tampering.marks_of_config(_read(common / "config").decode("utf-8", "surrogateescape"))
        for path in (common / "config.worktree", *sorted(common.glob("worktrees/*/config.worktree"))):
            if os.path.lexists(path):
                text = _read(path).decode("utf-8", "surrogateescape")
                found |= tampering.marks_of_config(text, where=str(path.relative_to(common)))

        return found

    def _refs(self, common: Path) -> dict[str, str]:
        watched = (f"{HEADS}{self._default(common)}", TAGS.rstrip("/"), "refs/replace")
        said = self._commands.run("for-each-ref", "--format=%(refname)%00%(objectname)", *watched)

        return dict(line.split("\0", 1) for line in os.fsdecode(said.out).splitlines())

    def _default(self, common: Path) -> str:
        """Return the default branch as far as it is known without asking the remote."""
        known = _read(common / "refs" / "remotes" / self._remote / "HEAD").decode("utf-8", "replace").strip()
        begin = f"ref: refs/remotes/{self._remote}/"
        if known.startswith(begin):
            return known.removeprefix(begin)
        said = self._commands.run("for-each-ref", "--format=%(refname:lstrip=2)", *(HEADS + n for n in _USUAL_NAMES))

        return next(iter(said.text.split()), _USUAL_NAMES[0])


def _files(common: Path) -> Iterator[tuple[str, str]]:
    for name in _PLACES:
        place = common / name
        inside = sorted(place.rglob("*")) if place.is_dir() and not place.is_symlink() else [place]
        for path in inside:
            is_file = path.is_symlink() or path.is_file()
            if is_file and not path.name.endswith(_NOT_OURS):
                yield str(path.relative_to(common)), tampering.mark(_read(path))


def _read(path: Path) -> bytes:
    """Return the content of a file, where it leads to for a link, nothing when it is not there."""
    try:
        if path.is_symlink():
            return b"link to " + os.fsencode(path.readlink())
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as exc:
        return f"cannot be read: {exc.strerror}".encode()
