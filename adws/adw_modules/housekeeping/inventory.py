"""
The inventory of all that is ours: documents, worktrees, branches, ports, processes, locks, quotas, checkpoints.

Read-only. Things are assigned to workflows by their lock, name or variables; a process is ours only if it carries a
token and works for the state directory of this home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.effects import OPEN_OUTCOMES
from adws.adw_modules.errors import AdwError, DatabaseError
from adws.adw_modules.git import git
from adws.adw_modules.git.git import workflow_of
from adws.adw_modules.git.repository import Worktree
from adws.adw_modules.identifiers import FOREIGN, JsonObject
from adws.adw_modules.interfaces import IssueLock
from adws.adw_modules.process.identity import ProcessStat
from adws.adw_modules.process.tree import TOKEN_VARIABLE
from adws.adw_modules.recovery.explain import claim_of
from adws.adw_modules.resources.ports import PortRow
from adws.adw_modules.state_machine import PARKED_STATES, TERMINAL_STATES, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


# Orphans: what is ours but not needed by any workflow, and why.
#
# Pure. The table of states and resources says what may exist in which state. Anything that is kept on request, is in
# use by a live owner, or cannot be read is never an orphan. Age makes nothing an orphan: it only narrows the list.


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A resource that no workflow needs any more."""

    kind: str  #: one of ORDER
    name: str
    adw_id: str
    why: str
    since: str = ""  #: "" if unknown
    facts: JsonObject | None = None  #: input for removing it

    def to_json(self) -> JsonObject:
        """Return the orphan for programs."""
        return {"kind": self.kind, "name": self.name, "adw_id": self.adw_id, "why": self.why, "since": self.since}


_PARKED = frozenset(state.value for state in PARKED_STATES)
_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)
_COMPLETED, _ROLLED_BACK, _ABANDONED = (
    state.value for state in (WorkflowState.COMPLETED, WorkflowState.ROLLED_BACK, WorkflowState.ABANDONED)
)

#: kind -> states of a workflow in which no resource of that kind may remain.
NOT_IN: dict[str, frozenset[str]] = {
    "process": _PARKED | _TERMINAL,
    "pull_request": frozenset({_ROLLED_BACK}),
    "worktree": frozenset({_COMPLETED, _ROLLED_BACK}),
    "branch": frozenset({_ROLLED_BACK}),
    "remote_branch": frozenset({_ROLLED_BACK}),
    "wip_ref": frozenset({_COMPLETED, _ROLLED_BACK}),
    "port": _PARKED | _TERMINAL,
    "quota": _PARKED | _TERMINAL,
    "lock": _TERMINAL,
    "checkpoint": _TERMINAL,
}
#: Kinds of data older than the settings allow; see `housekeeping.retention`.
OLD_KINDS = ("workflow_old", "events_old", "logs_old", "deliveries_old")
#: The order of removal: a workflow as a whole first, then whatever would hold on to the next.
ORDER = (
    "workflow",
    "process",
    "pull_request",
    "remote_branch",
    "wip_ref",
    "worktree",
    "branch",
    "port",
    "quota",
    "lock",
    "checkpoint",
    "temp",
    *OLD_KINDS,
)


#: Keys of a path or a branch in a ledger entry.
_NAMES = ("path", "branch", "branch_name")


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWorkflow:
    """What is known about a workflow."""

    adw_id: str
    state: str = ""  #: "" if its document is unreadable
    updated_at: str = ""
    is_live: bool = False  #: whether it has a live owner
    is_rolling_back: bool = False  #: whether a rollback was begun
    has_open_effects: bool = False
    kept: frozenset[str] = frozenset()  #: paths and branches kept on request or because they are not ours
    elsewhere: frozenset[str] = frozenset()  #: other machines that have a worktree or branch of it


def known_from(document: WorkflowDocument, *, is_live: bool, host: str = "") -> KnownWorkflow:
    """Return what a document says about its workflow; with *host*, about its resources on that machine."""
    mine = [entry for entry in document.resources if not host or entry.place in {"", host}]
    others = [entry for entry in document.resources if entry not in mine and entry.kind in {"worktree", "branch"}]
    kept = [entry.undo.get(key) for entry in mine if entry.outcome == "kept" for key in _NAMES]

    return KnownWorkflow(
        adw_id=document.adw_id,
        state=document.current_state,
        updated_at=document.updated_at,
        is_live=is_live,
        is_rolling_back=document.rollback is not None,
        has_open_effects=any(entry.outcome in OPEN_OUTCOMES for entry in document.resources),
        kept=frozenset(name for name in kept if isinstance(name, str)),
        elsewhere=frozenset(entry.place for entry in others if entry.outcome in OPEN_OUTCOMES),
    )


def why_orphan(kind: str, name: str, known: KnownWorkflow | None) -> str:
    """Return why a resource is an orphan, or "" if it is not; *known* is None if its workflow does not exist."""
    if known is None:
        return "there is no such workflow"
    if known.is_live or not known.state or name in known.kept:
        return ""
    if known.state not in NOT_IN[kind]:
        return ""

    return f"its workflow is {known.state.replace('_', ' ')}"


def why_not_here(known: KnownWorkflow) -> str:
    """Return a sentence about resources that an ended workflow has on other machines, or ""."""
    if known.is_live or known.state not in {_COMPLETED, _ABANDONED} or not known.elsewhere:
        return ""
    hosts = ", ".join(sorted(known.elsewhere))
    how = "a worker there" if known.state == _COMPLETED else "adw admin gc there"

    return f"workflow {known.adw_id} is {known.state} and has something on {hosts}: only {how} can look after it"


def why_left_over(known: KnownWorkflow) -> str:
    """Return why a workflow as a whole is an orphan, or "" if it is not."""
    if known.is_live or known.state == _ROLLED_BACK:
        return ""
    if known.is_rolling_back:
        return "its rollback is not finished"
    if known.state == _ABANDONED and known.has_open_effects:
        return "it is abandoned, and what it made is still there"

    return ""


def chosen(orphans: Iterable[Orphan], *, older_than: timedelta | None, now: datetime) -> tuple[Orphan, ...]:
    """Return the orphans in the order of removal; with *older_than* only those known to be that old."""

    def age(orphan: Orphan) -> timedelta:
        try:
            return now - timestamps.parse(orphan.since)
        except ValueError:
            return timedelta.min

    old_enough = [orphan for orphan in orphans if older_than is None or age(orphan) >= older_than]

    return tuple(sorted(old_enough, key=lambda orphan: (ORDER.index(orphan.kind), orphan.name)))


#: The variables that name the workflow and the home that a process works for.
ID_VARIABLE, FILE_VARIABLE = "ADW_ID", "ADW_RESULT_FILE"


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
class InventorySnapshot:
    """Everything that was found."""

    workflows: Mapping[str, KnownWorkflow]
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> why
    worktrees: tuple[tuple[str, Worktree], ...] = ()  #: each with its workflow
    branches: tuple[Branch, ...] = ()
    ports: tuple[PortRow, ...] = ()
    processes: tuple[OwnProcess, ...] = ()
    locks: tuple[IssueLock, ...] = ()
    places: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    def known(self, adw_id: str) -> KnownWorkflow | None:
        """Return what is known about a workflow, or None if it does not exist."""
        return self.workflows.get(adw_id)


class Inventory:
    """Takes the inventory of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def host(self) -> str:
        """This machine, if others share the database; "" if everything is on this one."""
        return self._home.host if self._home.settings.is_shared else ""

    def look(self) -> InventorySnapshot:
        """Return everything of ours that exists."""
        home = self._home
        # Resources before documents: a document is older than its resources, so each resource's workflow is known.
        worktrees, refs = self._worktrees(), home.git_if_any.refs() if home.git_if_any is not None else {}
        ports = tuple(row for row in home.ports.all() if self.host in {"", row.host})
        locks, places, processes = home.locks.all(), home.quotas.workflows(), self._processes()
        checkpoints = home.checkpoints.workflows()
        workflows, unreadable = self._workflows()

        return InventorySnapshot(
            workflows=workflows,
            unreadable=unreadable,
            worktrees=worktrees,
            branches=tuple(
                Branch(adw_id=owner, name=name, sha=sha)
                for ref, sha in refs.items()
                if (name := ref.removeprefix("refs/heads/")) != ref and (owner := workflow_of(name, workflows))
            ),
            ports=ports,
            processes=processes,
            locks=locks,
            places=places,
            checkpoints=checkpoints,
        )

    def is_live(self, adw_id: str) -> bool:
        """Return whether a workflow has a live owner."""
        return claim_of(self._home.leases.read(adw_id), self._home.processes).is_live

    def copies(self) -> Mapping[str, int]:
        """Return the revisions of the documents' copies in the database, by workflow."""
        return self._home.catalogue.revisions() if self._home.settings.store == "files" else {}

    def _workflows(self) -> tuple[dict[str, KnownWorkflow], dict[str, str]]:
        store = self._home.store
        workflows: dict[str, KnownWorkflow] = {}
        unreadable: dict[str, str] = {}
        for adw_id in sorted(store.ids()):
            is_live = self.is_live(adw_id)
            try:
                document = store.load(adw_id).document
                workflows[adw_id] = known_from(document, is_live=is_live, host=self.host)
            except DatabaseError:
                raise
            except AdwError as exc:
                workflows[adw_id] = KnownWorkflow(adw_id=adw_id, is_live=is_live)
                unreadable[adw_id] = str(exc)
        for adw_id, revision in self.copies().items():
            if revision and adw_id not in workflows and not store.exists(adw_id):
                # It may come back, so what it made is no orphan.
                workflows[adw_id] = KnownWorkflow(adw_id=adw_id, is_live=self.is_live(adw_id))
                unreadable[adw_id] = (
                    f"its document is gone, and the database has a copy of revision {revision}: bring the document "
                    "back from a backup with adw db restore"
                )

        return workflows, unreadable

    def _worktrees(self) -> tuple[tuple[str, Worktree], ...]:
        repository = self._home.git_if_any
        if repository is None:
            return ()
        trees = self._home.settings.trees_dir.resolve()
        ours = []
        for tree in repository.worktrees():
            owner = git.owner_of_lock(tree.lock_reason)
            if not owner and tree.path.parent == trees and not tree.lock_reason and FOREIGN.fullmatch(tree.path.name):
                owner = tree.path.name  # older tools did not lock theirs
            if owner:
                ours.append((owner, tree))
        known = {tree.path for _, tree in ours}
        for path in repository.damaged_worktrees():
            if path not in known and FOREIGN.fullmatch(path.name):  # git has forgotten it
                reason = git.lock_reason(path.name)
                ours.append((path.name, Worktree(path=path, branch="", head="", lock_reason=reason)))

        return tuple(ours)

    def _processes(self) -> tuple[OwnProcess, ...]:
        ours = []
        state_dir = self._home.settings.state_dir.resolve()
        for pid, stat in self._home.processes.all().items():
            env = self._home.processes.variables(pid)
            token, adw_id, file = (env.get(name, "") for name in (TOKEN_VARIABLE, ID_VARIABLE, FILE_VARIABLE))
            is_of_home = bool(file) and Path(file).resolve().is_relative_to(state_dir)
            if token and FOREIGN.fullmatch(adw_id) and is_of_home and not stat.is_zombie:
                ours.append(OwnProcess(adw_id=adw_id, token=token, stat=stat))

        return tuple(ours)
