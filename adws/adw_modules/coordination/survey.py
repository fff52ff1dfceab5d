"""
A look at all of ours that is there: documents, worktrees, branches, ports, processes, locks, places, checkpoints.

Looking changes nothing. What belongs to which workflow is told by its lock, its name or its variables; a process is
ours only when it carries a token and works for the state directory of this home.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from adws.adw_modules import gc_rules, work_names
from adws.adw_modules.errors import AdwError, DatabaseError
from adws.adw_modules.gc_rules import Known
from adws.adw_modules.ids import FOREIGN
from adws.adw_modules.interfaces import IssueLock, IssueLocks, LeaseBook, StateStore
from adws.adw_modules.interfaces_resources import GitRepository, PortRow, Ports, Worktree
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.process import ProcessStat
from adws.adw_modules.process_tree import TOKEN_VARIABLE

#: The variables that say which workflow and which home a process works for.
ID_VARIABLE, FILE_VARIABLE = "ADW_ID", "ADW_RESULT_FILE"
_BRANCH = re.compile(r"(?:^|-)adw-([0-9a-f]{8,32})(?:-|$)")


class MachineProcesses(Protocol):
    """The processes of this machine (`SystemProcesses`)."""

    def all(self) -> dict[int, ProcessStat]: ...
    def variables(self, pid: int) -> dict[str, str]: ...
    def verdict(self, record: OwnerRecord | None) -> Verdict: ...
    def me(self, role: str) -> OwnerRecord: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyParts:
    """Where to look."""

    store: StateStore
    leases: LeaseBook
    locks: IssueLocks
    processes: MachineProcesses
    state_dir: Path
    trees_dir: Path
    git: GitRepository | None = None
    host: str = ""  #: this machine, where others share the database; "": all that is known is of this one
    ports: Ports | None = None
    places: Callable[[], tuple[str, ...]] = tuple  #: workflows that have a place in the quotas
    checkpoints: Callable[[], tuple[str, ...]] = tuple  #: workflows whose phases have checkpoints
    copies: Callable[[], Mapping[str, int]] = dict  #: workflow -> revision of its copy in the database


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnProcess:
    """A process that adw started from this home."""

    adw_id: str
    token: str
    stat: ProcessStat


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A local branch that is named for a workflow."""

    adw_id: str
    name: str
    sha: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Everything that was found."""

    workflows: Mapping[str, Known]
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> why
    worktrees: tuple[tuple[str, Worktree], ...] = ()  #: with the workflow each is for
    branches: tuple[Branch, ...] = ()
    ports: tuple[PortRow, ...] = ()
    processes: tuple[OwnProcess, ...] = ()
    locks: tuple[IssueLock, ...] = ()
    places: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    def known(self, adw_id: str) -> Known | None:
        """Return what is known about a workflow, None when there is none of that id."""
        return self.workflows.get(adw_id)


class Survey:
    """Looks at a home."""

    def __init__(self, parts: SurveyParts) -> None:
        self._parts = parts

    def look(self) -> Seen:
        """Return everything of ours that is there."""
        parts = self._parts
        # The world first: what is made after that look has its document before it, and is then known.
        worktrees, branches = self._worktrees(), self._branch_refs()
        ports = tuple(row for row in parts.ports.all() if parts.host in {"", row.host}) if parts.ports else ()
        locks, places, processes = parts.locks.all(), parts.places(), self._processes()
        checkpoints = parts.checkpoints()
        workflows, unreadable = self._workflows()

        return Seen(
            workflows=workflows,
            unreadable=unreadable,
            worktrees=worktrees,
            branches=tuple(
                Branch(adw_id=owner, name=name, sha=sha)
                for name, sha in branches.items()
                if (owner := workflow_of(name, workflows))
            ),
            ports=ports,
            processes=processes,
            locks=locks,
            places=places,
            checkpoints=checkpoints,
        )

    def is_live(self, adw_id: str) -> bool:
        """Say whether somebody works on a workflow."""
        row = self._parts.leases.read(adw_id)
        if row is None or row.owner is None or row.seconds_left <= 0.0:
            return False

        return self._parts.processes.verdict(row.owner) is not Verdict.DEAD

    def _workflows(self) -> tuple[dict[str, Known], dict[str, str]]:
        found: dict[str, Known] = {}
        unreadable: dict[str, str] = {}
        for adw_id in sorted(self._parts.store.ids()):
            is_live = self.is_live(adw_id)
            try:
                data = self._parts.store.peek(adw_id).data
                found[adw_id] = gc_rules.known_from(data, is_live=is_live, host=self._parts.host)
            except DatabaseError:
                raise
            except AdwError as exc:
                found[adw_id] = Known(adw_id=adw_id, is_live=is_live)
                unreadable[adw_id] = str(exc)
        for adw_id, revision in self._parts.copies().items():
            if revision and adw_id not in found and not self._parts.store.exists(adw_id):
                # Not gone for good: what it made is not up for removal.
                found[adw_id] = Known(adw_id=adw_id, is_live=self.is_live(adw_id))
                unreadable[adw_id] = (
                    f"its document is gone, and the database has a copy of revision {revision}: bring the document "
                    "back from a backup with adw restore"
                )

        return found, unreadable

    def _worktrees(self) -> tuple[tuple[str, Worktree], ...]:
        if self._parts.git is None:
            return ()
        trees = self._parts.trees_dir.resolve()
        found = []
        for tree in self._parts.git.worktrees():
            owner = work_names.owner_of_lock(tree.lock_reason)
            if not owner and tree.path.parent == trees and not tree.lock_reason and FOREIGN.fullmatch(tree.path.name):
                owner = tree.path.name  # older tools did not lock theirs
            if owner:
                found.append((owner, tree))

        return tuple(found)

    def _branch_refs(self) -> dict[str, str]:
        refs = self._parts.git.refs() if self._parts.git else {}

        return {ref.removeprefix("refs/heads/"): sha for ref, sha in refs.items() if ref.startswith("refs/heads/")}

    def _processes(self) -> tuple[OwnProcess, ...]:
        found = []
        state_dir = self._parts.state_dir.resolve()
        for pid, stat in self._parts.processes.all().items():
            env = self._parts.processes.variables(pid)
            token, adw_id, file = (env.get(name, "") for name in (TOKEN_VARIABLE, ID_VARIABLE, FILE_VARIABLE))
            is_of_home = bool(file) and Path(file).resolve().is_relative_to(state_dir)
            if token and FOREIGN.fullmatch(adw_id) and is_of_home and not stat.is_zombie:
                found.append(OwnProcess(adw_id=adw_id, token=token, stat=stat))

        return tuple(found)


def workflow_of(branch: str, known: Mapping[str, object]) -> str:
    """Return the workflow that a branch is named for, "" when it is named for none."""
    by_name = next((adw_id for adw_id in known if f"adw-{adw_id}-" in f"{branch}-"), "")
    found = _BRANCH.search(branch)

    return by_name or (found[1] if found else "")
