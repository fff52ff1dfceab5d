"""
What the conductors ask of the hands that hold on to the outside world: git, worktrees, ports, quotas.

Every effect can be looked up by what the ledger says of it, and undone by that; what was made by somebody else is
never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from adws.adw_modules.json_value import JsonObject

# --- git -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    """A linked worktree of the repository."""

    path: Path
    branch: str  #: "" when its head is detached
    head: str  #: commit, "" when there is none
    lock_reason: str = ""  #: whose it is, as `git worktree lock --reason` says
    is_prunable: bool = False  #: its directory is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PushResult:
    """What came of a push."""

    pushed: bool
    reason: str = ""  #: why not: stale | rejected | unreachable


class GitRepository(Protocol):
    """The repository a home is in. The user's main checkout is never changed."""

    @property
    def root(self) -> Path:
        """The main checkout."""

    def default_branch(self) -> str:
        """Return the remote's default branch, or the main checkout's when there is no remote."""

    def fetch_default(self) -> tuple[str, str]:
        """Fetch the default branch as the remote names it now, never as remembered; return its name and commit."""

    def fetch(self, branch: str) -> str:
        """Fetch *branch* from the remote and return its commit; the local one when there is no remote."""

    def commit_of(self, ref: str) -> str | None:
        """Return the commit *ref* names, None when it names none."""

    def refs(self) -> Mapping[str, str]:
        """Return every ref and its commit: before and after a phase they show what appeared."""

    def worktrees(self) -> tuple[Worktree, ...]:
        """Return the linked worktrees, the main one left out."""

    def add_worktree(self, path: Path, *, branch: str, start: str, reason: str) -> Worktree:
        """Make branch and worktree from *start*, locked with *reason*; raise GitError, and then nothing is left."""

    def remove_worktree(self, path: Path, *, reason: str) -> bool:
        """Remove the worktree that was locked with *reason*; False when there is none. Raises NotOurs for another's."""

    def delete_branch(self, branch: str, *, expected: str) -> bool:
        """Delete a local branch that is at *expected*; False when it is gone. Raises NotOurs when it moved."""

    def save_ref(self, ref: str, commit: str) -> None:
        """Make *ref* name *commit*: a salvage that nothing collects."""

    def push(self, worktree: Path, branch: str, *, expected: str | None) -> PushResult:
        """Push with lease: the remote branch must be at *expected*, None: must not exist."""

    def delete_remote_branch(self, branch: str, *, expected: str) -> bool:
        """Delete the remote branch that is at *expected*; False when it is gone. Raises NotOurs when it moved."""

    def remote_commit(self, branch: str) -> str | None:
        """Ask the remote for the commit of *branch*, None when there is no such branch."""


class RemoteRefs(Protocol):
    """Refs of adw's own on the remote: work that is not shipped yet."""

    def has_remote(self) -> bool:
        """Say whether there is a remote."""

    def commit_of(self, ref: str) -> str | None:
        """Ask the remote for the commit of *ref*, None when it has no such ref. Raises GitUnreachable."""

    def all(self, pattern: str) -> Mapping[str, str]:
        """Ask the remote for the refs that match *pattern*, and their commits; none without a remote."""

    def fetch(self, ref: str, *, expected: str) -> None:
        """Have the commit *expected* of *ref* here; raise GitError when the remote has another by now."""

    def push(self, commit: str, ref: str, *, expected: str | None) -> PushResult:
        """Make *ref* of the remote name *commit*; it must be at *expected*, None: must not exist."""

    def delete(self, ref: str, *, expected: str) -> bool:
        """Delete *ref* of the remote, which is at *expected*; False when it is gone. Raises NotOurs when it moved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitText:
    """All of a commit that others get to read."""

    sha: str
    person: str  #: who wrote it and who committed it
    message: str
    patch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """What a branch does to one file."""

    name: str
    added: int | None  #: lines; None: it is no text
    deleted: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffStat:
    """What a branch changes, committed work only."""

    base: str  #: commit
    head: str  #: commit
    files: tuple[FileChange, ...]

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(file.added or 0 for file in self.files)

    @property
    def deleted(self) -> int:
        """Lines that are gone."""
        return sum(file.deleted or 0 for file in self.files)


class GitWorkplace(Protocol):
    """A worktree as a place to work in."""

    def status(self, path: Path) -> tuple[str, ...]:
        """Return the paths with changes that are not committed."""

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything and return the commit, None when there was nothing to commit."""

    def diff(self, path: Path, base: str) -> str:
        """Return the patch from *base* to the head."""

    def changed_files(self, path: Path, base: str) -> tuple[str, ...]:
        """Return the files that differ from *base*."""

    def commit_texts(self, path: Path, base: str) -> tuple[CommitText, ...]:
        """Return the commits that the head has and *base* has not."""

    def patch_of_changes(self, path: Path) -> bytes:
        """Return what is not committed, untracked files included, as a patch."""

    def patch_of_paths(self, path: Path, base: str, names: Sequence[str]) -> bytes:
        """Return what was done to the files *names* since *base*, committed or not, as a patch."""

    def put_back(self, path: Path, base: str, names: Sequence[str]) -> tuple[str, ...]:
        """Make the files *names* what they were at *base*; return those that had to be left as they are."""

    def show_as(self, path: Path, commit: str, names: Sequence[str]) -> None:
        """Have the files *names* as *commit* has them, in the worktree alone: index and commits stay."""

    def rebase(self, path: Path, onto: str) -> tuple[str, ...]:
        """Rebase onto a commit; return the files in conflict, and then nothing is changed."""


# --- ports -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PortPair:
    """The ports of one workflow."""

    backend: int
    frontend: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PortRow:
    """A reserved port."""

    port: int
    adw_id: str
    purpose: str  #: backend | frontend
    host: str
    reserved_at: str


class Ports(Protocol):
    """Ports, reserved in the database and held by a bound socket until whoever uses them starts."""

    def take(self, adw_id: str, *, preferred: PortPair | None = None) -> PortPair:
        """Reserve a pair, bind and hold it; raise PortsExhausted. The pair it has when it has one."""

    def handed_over(self, adw_id: str) -> AbstractContextManager[None]:
        """Let go of the sockets inside the block, so that a process can bind them; hold them again after it."""

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free what the workflow has and return it; nothing when it has none. Never ends a process."""

    def all(self) -> tuple[PortRow, ...]:
        """Return every reservation."""


# --- quotas ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaStatus:
    """One limit and how much of it is used."""

    name: str  #: disk | memory | worktrees | worktree_size | cost | cost_per_day | runs
    used: float
    limit: float
    unit: str
    is_exceeded: bool
    detail: str = ""  #: in a sentence, with what to do
    is_known: bool = True  #: False: it cannot be told here, and says why


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """The place of a workflow."""

    adw_id: str
    host: str
    estimated_cost: float | None = None  #: US dollars, None when nobody could tell
    spent: float = 0.0  #: US dollars so far


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """What is taken and spent at one moment."""

    places: tuple[Reservation, ...] = ()
    spent_today: float = 0.0  #: US dollars since midnight UTC, by all workflows
    spent_by_asker: float = 0.0  #: US dollars of the workflow that asks, in all
    cap_of_asker: float | None = None  #: what a person allowed it to cost; None: the limit of the settings holds
    spent_today_by_provider: Mapping[str, float] = field(default_factory=dict)  #: the same as spent_today


class Quotas(Protocol):
    """Limits that stop work before the disk or the budget does."""

    def status(self, *, estimated_cost: float | None = None) -> tuple[QuotaStatus, ...]:
        """Return every limit."""

    def admit(
        self,
        adw_id: str,
        *,
        estimated_cost: float | None = None,
        spent: float | None = None,
        cap: float | None = None,
    ) -> None:
        """
        Reserve a place for a workflow, atomically; raise QuotaExceeded naming the limit and what to do.

        *spent* is what the workflow has cost and *cap* what a person allowed it, as its document says: a copy of that
        in the database may be older. Without *spent* the copy is asked.
        """

    def release(self, adw_id: str) -> None:
        """Give the place back."""


# --- the ledger ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """An effect on the outside world, as the ledger has it."""

    key: str  #: unique in the workflow, such as worktree, branch:<name>, pull_request, port:9100
    #: worktree | branch | remote_branch | wip_ref | pull_request | comment | label | port | process | directory
    kind: str
    outcome: str = "intended"  #: intended | made | adopted | observed | failed | undone | kept | gone | forgotten
    host: str = ""
    undo: JsonObject = field(default_factory=dict)  #: what is needed to find and undo it


#: Outcomes of effects that are there, or may be.
OPEN_OUTCOMES: Sequence[str] = ("intended", "made", "adopted", "observed")
