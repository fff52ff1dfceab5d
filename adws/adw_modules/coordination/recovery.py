"""
Finding work whose worker is gone, and making it ready to go on.

Evidence is gathered from documents, leases and runs; `recovery_rules` makes the plan; each step is then applied under
the workflow's own lease, so that a worker that came back meanwhile is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from adws.adw_modules.coordination.control import NoOrders
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import AdwError, WorkflowBusy
from adws.adw_modules.interfaces import Catalogue, LeaseBook, Ownership, PageQuery, Processes, StateStore
from adws.adw_modules.interfaces_engine import RunQueue
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.recovery_rules import Action, Claim, Evidence, RecoveryStep, plan_recovery
from adws.adw_modules.runs import LIVE_RUNS, NewRun, Run, RunState
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.state_table import ACTIVE_STATES

logger = logging.getLogger("adw.recovery")

_UNFINISHED = (RunState.PENDING, *LIVE_RUNS)
_PAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryParts:
    """What recovery looks at and works with."""

    store: StateStore
    catalogue: Catalogue
    leases: LeaseBook
    runs: RunQueue
    processes: Processes
    ownership: Ownership
    engine: EngineParts
    bring_up: Callable[[str], None] | None = None  #: brings the database copy of a document up; None: there is none


class Recovery:
    """Plans and applies recovery."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._doers: dict[Action, Callable[[RecoveryStep], bool]] = {
            Action.REPORT: self._report,
            Action.PROJECT: self._project,
            Action.INTERRUPT: self._interrupt,
            Action.REQUEUE: self._requeue,
            Action.ENQUEUE: self._enqueue,
            Action.END_RUN: self._end_run,
        }

    def plan(self, *, every_document: bool = False) -> tuple[RecoveryStep, ...]:
        """Return what would be done; *every_document* also compares each document with its copy."""
        return plan_recovery(self.evidence(every_document=every_document))

    def recover(self, *, every_document: bool = False) -> tuple[RecoveryStep, ...]:
        """Do what the plan says and return the steps that were done."""
        steps = [step for step in self.plan(every_document=every_document) if step.action is not Action.LEAVE]

        return tuple(step for step in steps if self._apply(step))

    # --- evidence ----------------------------------------------------------------------------------------------

    def evidence(self, *, every_document: bool = False) -> Iterator[Evidence]:
        """Yield what is known about every workflow that may need something."""
        runs = {run.adw_id: run for run in self._unfinished_runs()}
        copied = {row.adw_id: row.revision for state in sorted(ACTIVE_STATES, key=str) for row in self._rows(state)}
        ids = dict.fromkeys([*copied, *runs])
        if every_document:
            everything = {row.adw_id: row.revision for row in self._rows(None)}
            copied = everything
            ids.update(dict.fromkeys(self._parts.store.ids()))
        for adw_id in ids:
            yield self._evidence_of(adw_id, runs.get(adw_id), copied.get(adw_id, 0))

    def _unfinished_runs(self) -> Iterator[Run]:
        before: int | None = None
        while True:
            page = self._parts.runs.page(states=_UNFINISHED, limit=_PAGE, before=before)
            yield from page
            if len(page) < _PAGE:
                return
            before = page[-1].run_id

    def _rows(self, state: WorkflowState | None) -> Iterable[_Row]:
        cursor: str | None = None
        while True:
            page = self._parts.catalogue.page(
                PageQuery(limit=_PAGE, cursor=cursor, state=state.value if state else None)
            )
            for row in page.rows:
                yield _Row(adw_id=row.adw_id, revision=row.revision)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _evidence_of(self, adw_id: str, run: Run | None, copied_revision: int) -> Evidence:
        try:
            data = self._parts.store.peek(adw_id).data
        except AdwError as exc:
            return Evidence(adw_id=adw_id, problem=str(exc))
        lease = self._parts.leases.read(adw_id)
        revision = data.get("revision")

        return Evidence(
            adw_id=adw_id,
            state=str(data.get("current_state") or ""),
            is_rolling_back=data.get("rollback") is not None,
            open_attempt=_open_attempt(data),
            revision=revision if isinstance(revision, int) else 0,
            copied_revision=copied_revision if self._parts.bring_up is not None else None,
            lease=self._claim(lease.owner, lease.seconds_left) if lease else Claim(),
            run_id=run.run_id if run else None,
            run_state=run.state if run else None,
            run_claim=self._claim(OwnerRecord.from_text(run.owner), run.seconds_left) if run else Claim(),
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
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": step.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return False
        if is_done:
            said = {"action": "recovered", "workflow": step.adw_id, "step": step.action.value, "why": step.why}
            logger.warning("Recovered", extra=said)

        return is_done

    def _report(self, step: RecoveryStep) -> bool:
        logger.error("Needs a person", extra={"action": "recovery_report", "workflow": step.adw_id, "why": step.why})
        return False

    def _project(self, step: RecoveryStep) -> bool:
        if self._parts.bring_up is None:
            return False
        self._parts.bring_up(step.adw_id)

        return True

    def _interrupt(self, step: RecoveryStep) -> bool:
        with self._parts.ownership.own(step.adw_id) as owned, self._parts.engine.log_of(step.adw_id):
            session = WorkSession(self._parts.engine, owned, NoOrders())
            before = owned.document.revision
            session.settle()
            session.change(lambda draft: draft.tell("recovered", data={"why": step.why}))

            return owned.document.revision > before

    def _requeue(self, step: RecoveryStep) -> bool:
        run = self._parts.runs.get(step.run_id) if step.run_id is not None else None
        if run is None or run.state not in LIVE_RUNS:
            return False

        return self._parts.runs.take_back(run, reason=step.why) is not None

    def _enqueue(self, step: RecoveryStep) -> bool:
        self._parts.runs.enqueue(NewRun(adw_id=step.adw_id, kind="resume", asked_by="recovery"))

        return True

    def _end_run(self, step: RecoveryStep) -> bool:
        if step.run_id is None:
            return False
        self._requeue(step)
        self._parts.runs.ask_to_stop(step.run_id, reason=step.why)

        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    adw_id: str
    revision: int


def _open_attempt(data: JsonObject) -> str:
    """Return the phase whose last attempt has no end, read off plain JSON."""
    phases = data.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        attempts = phase.get("attempts") if isinstance(phase, dict) else None
        last = attempts[-1] if isinstance(attempts, list) and attempts else None
        if isinstance(phase, dict) and isinstance(last, dict) and last.get("status") == "running":
            return str(phase.get("name") or "")

    return ""
