"""
Finding work whose worker is gone, and making it ready to go on.

Evidence is gathered from documents, leases and runs; `recovery_rules` makes the plan; each step is then applied under
the workflow's own lease, so that a worker that came back meanwhile is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.coordination.keeper import Keeper
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import AdwError, DatabaseError, StateNotFound, WorkflowBusy
from adws.adw_modules.interfaces import (
    Catalogue,
    IssueLocks,
    LeaseBook,
    Ownership,
    PageQuery,
    Processes,
    StateStore,
    WorkflowSummary,
)
from adws.adw_modules.interfaces_engine import NoOrders, RunQueue
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.recovery_rules import Action, Claim, Evidence, RecoveryStep, plan_recovery
from adws.adw_modules.runs import FINAL_RUNS, LIVE_RUNS, ROLLBACK, WITHOUT_WORKFLOW, NewRun, Run, RunState
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.state_table import ACTIVE_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

logger = logging.getLogger("adw.recovery")

_UNFINISHED = (RunState.PENDING, *LIVE_RUNS)
_PAGE = 200


class Left(Protocol):
    """Taking away what crashes leave of workflows that are over, or never came to be (`WorkflowOwnership`)."""

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of a workflow that has ended, and say whether it still had one."""

    def forget_unwritten(self, adw_id: str) -> bool:
        """Take a workflow away whose creator died before its first write; raise WorkflowBusy while he may live."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryParts:
    """What recovery looks at and works with."""

    store: StateStore
    catalogue: Catalogue
    leases: LeaseBook
    locks: IssueLocks
    runs: RunQueue
    processes: Processes
    ownership: Ownership
    left: Left
    engine: EngineParts
    keeper: Keeper  #: ending the processes of a dead worker may take longer than a lease
    bring_up: Callable[[str], None] | None = None  #: brings the database copy of a document up; None: there is none
    free_left_behind: Callable[[], object] = lambda: None  #: frees ports and places of workflows nobody works on


class Recovery:
    """Plans and applies recovery."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._reported: set[RecoveryStep] = set()
        self._doers: dict[Action, Callable[[RecoveryStep], bool]] = {
            Action.REPORT: self._report,
            Action.PROJECT: self._project,
            Action.INTERRUPT: self._interrupt,
            Action.REQUEUE: self._requeue,
            Action.ENQUEUE: self._enqueue,
            Action.END_RUN: self._end_run,
            Action.FREE_ISSUE: lambda step: parts.left.release_if_finished(step.adw_id),
            Action.FORGET: lambda step: parts.left.forget_unwritten(step.adw_id),
        }

    def plan(self, *, every_document: bool = False) -> tuple[RecoveryStep, ...]:
        """Return what would be done; *every_document* also compares each document with its copy."""
        return plan_recovery(self.evidence(every_document=every_document))

    def recover(self, *, every_document: bool = False) -> tuple[RecoveryStep, ...]:
        """Do what the plan says and return the steps that were done, and those that need a person."""
        steps = [step for step in self.plan(every_document=every_document) if step.action is not Action.LEAVE]
        done = tuple(step for step in steps if self._apply(step))
        self._parts.free_left_behind()  # last: what was cut off is closed by now

        return done

    # --- evidence ----------------------------------------------------------------------------------------------

    def evidence(self, *, every_document: bool = False) -> Iterator[Evidence]:
        """Yield what is known about every workflow that may need something."""
        runs = {run.adw_id: run for run in self._unfinished_runs()}
        states = (None,) if every_document else sorted(ACTIVE_STATES, key=str)
        copied = {row.adw_id: row.revision for state in states for row in self._rows(state)}
        holders = {lock.adw_id for lock in self._parts.locks.all()}
        ids = dict.fromkeys([*copied, *runs, *holders])
        if every_document:
            ids.update(dict.fromkeys(self._parts.store.ids()))
        for adw_id in ids:
            revision = copied.get(adw_id, 0 if every_document else None)
            yield self._evidence_of(adw_id, runs.get(adw_id), revision, has_issue=adw_id in holders)

    def _unfinished_runs(self) -> Iterator[Run]:
        before: int | None = None
        while True:
            page = self._parts.runs.page(states=_UNFINISHED, limit=_PAGE, before=before)
            yield from page
            if len(page) < _PAGE:
                return
            before = page[-1].run_id

    def _rows(self, state: WorkflowState | None) -> Iterable[WorkflowSummary]:
        cursor: str | None = None
        while True:
            page = self._parts.catalogue.page(
                PageQuery(limit=_PAGE, cursor=cursor, state=state.value if state else None)
            )
            yield from page.rows
            cursor = page.next_cursor
            if cursor is None:
                return

    def _evidence_of(self, adw_id: str, run: Run | None, copied_revision: int | None, *, has_issue: bool) -> Evidence:
        if run is not None and run.kind in WITHOUT_WORKFLOW:
            claim = self._claim(OwnerRecord.from_text(run.owner), run.seconds_left)
            return Evidence(adw_id=adw_id, is_errand=True, run_id=run.run_id, run_state=run.state, run_claim=claim)
        row = self._parts.leases.read(adw_id)
        lease = self._claim(row.owner, row.seconds_left) if row else Claim()
        seen = Evidence(
            adw_id=adw_id,
            has_issue=has_issue,
            lease=lease,
            run_id=run.run_id if run else None,
            run_state=run.state if run else None,
            run_claim=self._claim(OwnerRecord.from_text(run.owner), run.seconds_left) if run else Claim(),
        )
        try:
            data = self._parts.store.peek(adw_id).data
        except DatabaseError:
            raise  # says nothing about the document
        except AdwError as exc:
            is_known = row is not None or has_issue
            return replace(seen, problem=str(exc), is_unwritten=is_known and isinstance(exc, StateNotFound))
        revision = data.get("revision")
        # The copy of a workflow that is worked on is behind most of the time; its owner brings it up.
        is_compared = self._parts.bring_up is not None and not lease.is_live

        return replace(
            seen,
            state=str(data.get("current_state") or ""),
            is_rolling_back=data.get("rollback") is not None or (run is not None and run.kind == ROLLBACK),
            open_attempt=_open_attempt(data),
            revision=revision if isinstance(revision, int) else 0,
            copied_revision=copied_revision if is_compared else None,
        )

    def _claim(self, owner: OwnerRecord | None, seconds_left: float) -> Claim:
        if owner is None:
            return Claim()

        return Claim(owner=owner.describe(), verdict=self._parts.processes.verdict(owner), seconds_left=seconds_left)

    # --- doing it ----------------------------------------------------------------------------------------------

    def _apply(self, step: RecoveryStep) -> bool:
        """Do one step; False when it was not needed any more, or could not be done now."""
        try:
            is_done = self._doers[step.action](step)
        except WorkflowBusy:
            return False  # its worker came back, or another recovery is at it
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": step.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return False
        if is_done and step.action is not Action.REPORT:
            said = {"action": "recovered", "workflow": step.adw_id, "step": step.action.value, "why": step.why}
            logger.warning("Recovered", extra=said)

        return is_done

    def _report(self, step: RecoveryStep) -> bool:
        if step not in self._reported:  # recovery comes every minute, a person does not
            self._reported.add(step)
            said = {"action": "recovery_report", "workflow": step.adw_id, "why": step.why}
            logger.error("Needs a person", extra=said)

        return True

    def _project(self, step: RecoveryStep) -> bool:
        if self._parts.bring_up is None:
            return False
        self._parts.bring_up(step.adw_id)

        return True

    @contextmanager
    def _session(self, adw_id: str) -> Iterator[WorkSession]:
        parts = self._parts
        with parts.ownership.own(adw_id) as owned, parts.engine.log_of(adw_id), parts.keeper.charge(owned):
            yield WorkSession(parts.engine, owned, NoOrders())

    def _interrupt(self, step: RecoveryStep) -> bool:
        with self._session(step.adw_id) as session:
            before = session.document.revision
            session.settle()
            if session.document.revision == before:
                return False  # somebody else was here between the plan and now
            session.change(lambda draft: draft.tell("recovered", data={"why": step.why}))

            return True

    def _requeue(self, step: RecoveryStep) -> bool:
        """Take a run back from a worker that is gone; the look and the change are one compare-and-set."""
        run = self._parts.runs.get(step.run_id) if step.run_id is not None else None
        if run is None or run.state not in LIVE_RUNS:
            return False
        if self._claim(OwnerRecord.from_text(run.owner), run.seconds_left).is_live:
            return False

        return self._parts.runs.take_back(run, reason=step.why) is not None

    def _enqueue(self, step: RecoveryStep) -> bool:
        # Under its lease: who resumes, pauses or ends it meanwhile is done with its run, too, before we look.
        with self._session(step.adw_id) as session:
            if not _is_active(session.document) or self._unfinished_run(step.adw_id) is not None:
                return False
            self._parts.runs.enqueue(NewRun(adw_id=step.adw_id, kind="resume", asked_by="recovery"))

            return True

    def _end_run(self, step: RecoveryStep) -> bool:
        with self._session(step.adw_id) as session:
            if _is_active(session.document):
                return False
            session.rest()  # whoever ended the work did not come to it
            is_taken_back = self._requeue(step)
            run = self._parts.runs.get(step.run_id) if step.run_id is not None else None
            if run is None or run.state is not RunState.PENDING:
                return is_taken_back
            self._parts.runs.ask_to_stop(run.run_id, reason=step.why)

            return True

    def _unfinished_run(self, adw_id: str) -> Run | None:
        newest = self._parts.runs.of_workflow(adw_id, limit=1)

        return next((run for run in newest if run.state not in FINAL_RUNS), None)


def _is_active(document: WorkflowDocument) -> bool:
    return WorkflowState(document.current_state) in ACTIVE_STATES


def _open_attempt(data: JsonObject) -> str:
    """Return the phase whose last attempt has no end, read off plain JSON."""
    phases = data.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        attempts = phase.get("attempts") if isinstance(phase, dict) else None
        last = attempts[-1] if isinstance(attempts, list) and attempts else None
        if isinstance(phase, dict) and isinstance(last, dict) and last.get("status") == "running":
            return str(phase.get("name") or "")

    return ""
