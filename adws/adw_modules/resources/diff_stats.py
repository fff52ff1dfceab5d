"""
What branches change, in few numbers, for people who look.

Two commits never change: what was counted once is kept. Which commit a branch is at is asked again after a moment, and
git is never waited for long: whoever looks does not wait for a repository that is busy.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from adws.adw_modules.errors import GitError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import DiffStat, FileChange
from adws.adw_modules.resources.git import GitCommands

#: Seconds that git gets.
SECONDS = 3.0
#: Seconds for which the commits of a branch are not asked for again.
FRESH_SECONDS = 5.0
#: Counts and branches that are kept.
_KEPT = 200
_Kept = TypeVar("_Kept")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """Where a branch was when it was asked for."""

    at: float  #: by the monotonic clock
    mark: int
    commits: tuple[str, str] | None


class DiffStats:
    """Counts what branches change."""

    def __init__(self, commands: GitCommands, *, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self._lock = Lock()
        self._counted: OrderedDict[tuple[str, str], DiffStat] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def of_branch(self, branch: str, *, base: str, mark: int = 0) -> DiffStat | None:
        """
        Return what *branch* changes since it left *base*, None when one of them is not here; raise GitError.

        With another *mark*, such as the revision of the workflow, git is asked at once where the branch is.
        """
        commits = self._commits(base, branch, mark)
        if commits is None:
            return None
        with self._lock:
            found = self._counted.get(commits)
        if found is None:
            found = self._count(*commits)
            with self._lock:
                self._counted[commits] = found
                _shorten(self._counted)

        return found

    def _commits(self, base: str, branch: str, mark: int) -> tuple[str, str] | None:
        now = self._clock.monotonic()
        with self._lock:
            known = self._known.get((base, branch))
        if known is not None and known.mark == mark and now - known.at < FRESH_SECONDS:
            return known.commits
        found = [self._commit_of(ref) for ref in (base, f"refs/heads/{branch}")]
        commits = (found[0], found[1]) if all(found) else None
        with self._lock:
            self._known[base, branch] = _Known(at=now, mark=mark, commits=commits)
            _shorten(self._known)

        return commits

    def _commit_of(self, ref: str) -> str:
        if not ref or "\0" in ref:
            return ""
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")

        return self._commands.run(*asked, ok=(0, 1, 128), seconds=SECONDS).text.strip()

    def _count(self, base: str, head: str) -> DiffStat:
        options = ("--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
        said = self._commands.run("diff", *options, f"{base}...{head}", "--", seconds=SECONDS)

        return DiffStat(base=base, head=head, files=tuple(map(_change, said.parts)))


def _change(part: str) -> FileChange:
    """Return what one entry of --numstat says; a file that is no text has no lines."""
    numbers = part.split("\t", 2)
    if len(numbers) != 3:
        raise GitError(f"git diff --numstat said {part[:100]!r}, which is not understood")
    added, deleted, name = numbers

    return FileChange(name=name, added=_count(added), deleted=_count(deleted))


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _shorten(kept: OrderedDict[tuple[str, str], _Kept]) -> None:
    while len(kept) > _KEPT:
        kept.popitem(last=False)
