"""
Files that a phase changed outside its `allowed_paths`: kept as a patch with the attempt, then put back.

They are put back to where the phase began, so that the next attempt is not judged by what an earlier one did. The patch
is durable before anything is removed. What the phase was allowed to do stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from adws.adw_modules import leftovers, path_patterns
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.errors import GitError, PathsNotAllowed
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.interfaces_resources import GitWorkplace
from adws.adw_modules.workflow import PhaseSpec

#: The attempt's file that has what was put back.
PATCH = "put-back.patch"

#: Keeps a patch with the attempt of a context, durably, and returns its name as a person finds it.
Keep: TypeAlias = Callable[[PhaseContext, bytes], str]


def keep_patch(context: PhaseContext, patch: bytes) -> str:
    """Write *patch* beside the other files of the attempt; return its name in the workflow's directory."""
    files = AttemptFiles(context.folder, context.phase, context.attempt_number)
    files.make_folder()
    path = files.path(PATCH)
    leftovers.write_patch(path.parent, path.name, patch)

    return files.relative(path)


class Strays:
    """Finds and puts back what phases may not change in their worktrees."""

    def __init__(self, workplace: GitWorkplace, *, keep: Keep = keep_patch) -> None:
        self._workplace = workplace
        self._keep = keep

    def found(self, path: Path, base: str, phase: PhaseSpec) -> tuple[str, ...]:
        """Return the files in the worktree *path* that differ from *base* and that *phase* may not change."""
        if not phase.allowed_paths:
            return ()
        changed = sorted({*self._workplace.status(path), *self._workplace.changed_files(path, base)})

        return path_patterns.outside(changed, phase.allowed_paths)

    def refuse(self, path: Path, base: str, phase: PhaseSpec, context: PhaseContext) -> None:
        """Put back what *phase* may not change and raise PathsNotAllowed, which says so; nothing when there is none."""
        wrong = self.found(path, base, phase)
        if not wrong:
            return
        try:
            done = self.put_back(path, base, wrong, context)
        except (GitError, OSError) as exc:
            raise PathsNotAllowed(phase.name, wrong, f"they could not be put back ({exc}): undo it") from exc

        raise PathsNotAllowed(phase.name, wrong, done)

    def put_back(self, path: Path, base: str, names: Sequence[str], context: PhaseContext) -> str:
        """Keep what was done to *names* since *base*, put them back, and return a sentence about both."""
        kept = self._keep(context, self._workplace.patch_of_paths(path, base, names))
        left = self._workplace.put_back(path, base, names)
        but = f", but for {', '.join(left)}, which adw does not remove" if left else ""

        return f"they are as they were before{but}, and {kept} has what was changed: keep off them"
