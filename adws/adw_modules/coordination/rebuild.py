"""
Making the database again from the documents: copy, events, locks, and tokens above everything seen.

The documents are the truth and are not changed. What only the database had is kept as far as it can be read, and what
is lost is said. The contents are planned first and written in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from adws.adw_modules.coordination.rebuild_plan import LockConflict, RebuildPlan, StoredDocument, plan_rebuild
from adws.adw_modules.errors import AdwError, OwnershipError, StateNotFound, UsageError
from adws.adw_modules.interfaces import IssueLock, LocalLock, Processes, StateStore
from adws.adw_modules.interfaces_rebuild import KnownWorkflow, Reconstruction, Salvage
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.run_making import RunMaker


class Fences(Protocol):
    """Knows the fences that left a trace on the disk."""

    def highest_fence(self, adw_id: str) -> int:
        """Return the highest fence of any writer's left-over, 0 when there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport:
    """What was made again, and what could not be."""

    workflows: int
    locks: int
    freed: tuple[IssueLock, ...]  #: locks whose workflow has ended or is gone
    conflicts: tuple[LockConflict, ...]
    events_kept: int  #: that the database had
    events_made: int  #: that came from the documents
    requests: int  #: open ones that were kept
    runs_made: tuple[str, ...]  #: workflows that were to go on and had no run
    only_in_database: tuple[str, ...]  #: workflows whose document is missing; their copy stays
    forgotten: tuple[str, ...]  #: workflows that were registered and never written
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> what is wrong with its document
    problems: tuple[str, ...] = ()  #: what was wrong with the old database
    was_missing: bool = False
    set_aside: str | None = None  #: where the old database is now, or what was left of it

    @property
    def lost(self) -> tuple[str, ...]:
        """Return what only a backup may still have, in words."""
        if not self.was_missing and not self.problems:
            return ()

        return (
            "events that were in no document any more (moves between states were made again from the histories)",
            "requests that could not be read from the old database",
            "runs that had ended, and starts that had no document yet",
            "checkpoints that could not be read from the old database (their phases begin at the beginning)",
            "breakers that could not be read from the old database (who fails again opens them again)",
            "deliveries that could not be read from the old database (one that is sent again counts as new)",
            "entries of the schedule, notifications and counters that could not be read from the old database",
            "sums of reports about workflows that were forgotten before, where those could not be read",
        )

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "workflows": self.workflows,
            "locks": self.locks,
            "freed_locks": [
                {"repository": lock.repository, "issue_number": lock.issue_number, "adw_id": lock.adw_id}
                for lock in self.freed
            ],
            "lock_conflicts": [conflict.to_json() for conflict in self.conflicts],
            "events_kept": self.events_kept,
            "events_made": self.events_made,
            "requests": self.requests,
            "runs_made": list(self.runs_made),
            "only_in_database": list(self.only_in_database),
            "forgotten": list(self.forgotten),
            "unreadable": dict(self.unreadable),
            "problems": list(self.problems),
            "was_missing": self.was_missing,
            "set_aside": self.set_aside,
            "lost": list(self.lost),
        }


def rebuild(
    *,
    store: StateStore,
    fences: Fences,
    reconstruction: Reconstruction,
    local_lock: LocalLock,
    processes: Processes,
    repository: str = "",
    maker: RunMaker | None = None,
    force: bool = False,
    replace_rows: bool = False,
) -> RebuildReport:
    """
    Make the database again from the documents in *store*; refused while live owners work, unless *force*.

    *repository* is that of the home, which documents that name none belong to; *maker* knows the labels of runs.
    Documents whose home is the database itself are not replaced by files, unless *replace_rows*.
    """
    salvage = reconstruction.salvage()
    if not replace_rows:
        _refuse_rows(salvage.workflows)
    ids = sorted(store.ids())
    if not force:
        refuse_while_owners_live(ids, salvage.workflows, local_lock=local_lock, processes=processes)
    documents, unreadable = _read(ids, store, fences)
    plan = plan_rebuild(documents, salvage, unreadable=tuple(unreadable), repository=repository, maker=maker)
    # Only now: up to here the documents may have needed the copies in the old database.
    aside = set_old_aside(reconstruction, salvage)
    stored = reconstruction.put(plan.contents)
    found = _report(plan, salvage, workflows=len(documents), events_stored=stored)

    return replace(found, unreadable=unreadable, set_aside=aside)


def _refuse_rows(known: Iterable[KnownWorkflow]) -> None:
    if any(workflow.home == "database" for workflow in known):
        raise UsageError(
            "documents live in this database itself, so there is nothing to make it again from: "
            "bring a backup back with adw restore"
        )


def _report(plan: RebuildPlan, salvage: Salvage, *, workflows: int, events_stored: int) -> RebuildReport:
    return RebuildReport(
        workflows=workflows,
        locks=len(plan.contents.locks or ()),
        freed=plan.freed,
        conflicts=plan.conflicts,
        events_kept=_events_kept(salvage),
        events_made=events_stored - len(salvage.events),
        requests=len(salvage.requests),
        runs_made=plan.runs_made,
        only_in_database=plan.only_in_database,
        forgotten=plan.contents.forget,
        problems=salvage.problems,
        was_missing=salvage.is_missing,
    )


def set_old_aside(reconstruction: Reconstruction, salvage: Salvage) -> str | None:
    """Keep what cannot be used any more, a damaged database or what a lost one left, and return where it is now."""
    if salvage.problems:
        return reconstruction.set_aside()
    # One that was there and whole stays: its rows are written over. One that came since we looked stays too.
    return reconstruction.set_aside_left_overs() if salvage.is_missing else None


def refuse_while_owners_live(
    ids: Iterable[str],
    known: Iterable[KnownWorkflow],
    *,
    local_lock: LocalLock,
    processes: Processes,
    hint: str = "stop them first, or add --force",
) -> None:
    """Raise OwnershipError naming whoever works on a workflow: by its lease, or by the file lock it holds."""
    working = {
        workflow.adw_id: workflow.owner.describe() if workflow.owner else "an owner whose record cannot be read"
        for workflow in known
        if workflow.seconds_left > 0.0 and processes.verdict(workflow.owner) is not Verdict.DEAD
    }
    for adw_id in ids:
        if adw_id not in working and local_lock.is_held(adw_id):
            working[adw_id] = "a process that holds its file lock"
    if not working:
        return
    names = ", ".join(f"{adw_id} ({owner})" for adw_id, owner in sorted(working.items())[:5])
    more = f" and {len(working) - 5} more" if len(working) > 5 else ""

    raise OwnershipError(f"workflows are being worked on: {names}{more}; {hint}")


def _read(ids: Iterable[str], store: StateStore, fences: Fences) -> tuple[list[StoredDocument], dict[str, str]]:
    documents: list[StoredDocument] = []
    unreadable: dict[str, str] = {}
    for adw_id in ids:
        try:
            data = store.peek(adw_id).data
        except StateNotFound:
            continue  # removed since the list was made
        except AdwError as exc:
            unreadable[adw_id] = str(exc)
            continue
        written_under = data.get("fence")
        fence = written_under if isinstance(written_under, int) else 0
        documents.append(StoredDocument(data=data, highest_fence=max(fence, fences.highest_fence(adw_id))))

    return documents, unreadable


def _events_kept(salvage: Salvage) -> int:
    return len(salvage.events) if salvage.problems else sum(workflow.events for workflow in salvage.workflows)
