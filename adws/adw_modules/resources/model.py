"""
Data types of the resources outside adw: git, worktrees, ports, quotas.

Every effect can be looked up by its entry in the ledger, and undone by that; what others made is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adws.adw_modules.identifiers import JsonObject, size_text

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
    """The result of a push."""

    pushed: bool
    reason: str = ""  #: why not: stale | rejected


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


# --- quotas ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaStatus:
    """One limit and how much of it is used."""

    name: str  #: disk | memory | worktrees | worktree_size | cost | cost_per_day | runs
    used: float
    limit: float
    unit: str
    is_exceeded: bool  #: it is reached: new work waits
    detail: str = ""  #: in a sentence, with what to do
    is_known: bool = True  #: False: it cannot be told here, and says why
    reserved: float = 0.0  #: the part of *used* that workflows with a place are expected to need, and do not use yet
    expected: float = 0.0  #: the part of *used* that one more workflow is expected to need

    def shown(self, value: float) -> str:
        """Return an amount of this limit for people: a size with its unit, anything else as a number."""
        return size_text(value * 2**30) if self.unit.startswith("GB") else f"{value:g}"


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
    estimate_of_asker: float | None = None  #: US dollars that it will cost in all, None when nobody can tell
    spent_today_by_provider: Mapping[str, float] = field(default_factory=dict)  #: the same as spent_today


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """Something that nobody needs any more."""

    kind: str  #: one of ORDER
    name: str
    adw_id: str
    why: str
    since: str = ""  #: since when, "" when nobody knows
    facts: JsonObject | None = None  #: what is needed to remove it

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {"kind": self.kind, "name": self.name, "adw_id": self.adw_id, "why": self.why, "since": self.since}
