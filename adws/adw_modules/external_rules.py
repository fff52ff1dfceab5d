"""
Whose task it is, and what is made of what was reported on it.

Pure. A task belongs to the attempt that waits for it. When that is cut off, by a crash of adw or on order, the next
attempt of the round goes on with the same task: whoever works on it outside did nothing wrong.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.events import Event, new_event
from adws.adw_modules.external_tasks import (
    EXPIRED,
    REPORTED,
    ClaimHeld,
    ClaimLost,
    ExternalReport,
    ExternalTask,
    TaskEvent,
)
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.outcome import RunReport
from adws.adw_modules.phase_choice import WAITING
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument

#: How attempts end whose task another attempt goes on with.
_CUT_OFF = frozenset({"interrupted", "suspended"})


# --- whose it is -----------------------------------------------------------------------------------------------


def is_wanted(task: ExternalTask, document: WorkflowDocument) -> bool:
    """Say whether an attempt of *document* waits for *task*, is about to, or will when its workflow goes on."""
    state = WorkflowState(document.current_state)
    if document.rollback is not None or not (state in ACTIVE_STATES or state is WorkflowState.PAUSED):
        return False
    record = next((one for one in document.phases if one.name == task.phase), None)
    if record is None or record.round != task.round or not record.attempts:
        return False
    last = record.attempts[-1]

    return last.number == task.attempt_number and last.status in {"running", WAITING, *_CUT_OFF}


def is_for(task: ExternalTask, record: PhaseRecord) -> bool:
    """Say whether the last attempt of *record* goes on with *task*."""
    if task.round != record.round:
        return False
    if task.attempt_number == record.attempts[-1].number:
        return True
    before = next((one for one in record.attempts if one.number == task.attempt_number), None)

    return task.state != EXPIRED and before is not None and before.status in _CUT_OFF


# --- claims ----------------------------------------------------------------------------------------------------


def claimed(task: ExternalTask, *, worker: str, seconds: float, now: datetime) -> ExternalTask:
    """Return *task* with a new claim; raise ClaimHeld while another is live, ClaimLost when there is nothing to do."""
    _refuse_over(task, now)
    if task.is_held(now) and not (worker and worker == task.worker):
        raise ClaimHeld(task)  # whoever claims under the same name lost the answer, or was started again

    return replace(task, claims=task.claims + 1, worker=worker, claim_seconds=seconds, claim_until=_until(now, seconds))


def renewed(task: ExternalTask, claim: int, *, now: datetime) -> ExternalTask:
    """Return *task* with a sign of life; raise ClaimLost when it is not that of the last claim."""
    _refuse_over(task, now)
    _refuse_foreign(task, claim)

    return replace(task, claim_until=_until(now, task.claim_seconds))


def reported(task: ExternalTask, claim: int, report: ExternalReport, *, now: datetime) -> ExternalTask | None:
    """Return *task* with its end, None when it has just this one already; raise ClaimLost."""
    if task.state == REPORTED and task.claims == claim and task.report == report:
        return None
    _refuse_over(task, now)
    _refuse_foreign(task, claim)

    return replace(task, state=REPORTED, report=report, claim_until="", ended_at=timestamps.to_text(now))


def event_of(task: ExternalTask, told: TaskEvent, *, now: datetime) -> Event:
    """Return what is told as an event of the workflow; what it is about is what adw knows, not what is said."""
    return new_event(
        told.event_type,
        adw_id=task.adw_id,
        event_id=f"{task.task_id}.{told.event_id}",
        created_at=timestamps.to_text(now),
        status=told.status,
        execution_id=task.task_id,
        parent_execution_id=task.adw_id,
        attempt_number=task.attempt_number,
        node_id=task.phase,
        node_name=task.phase,
        node_type="external",
        catalog_id=task.catalog_id or None,
        duration=told.duration,
        result=told.result,
        context=told.context,
        data=told.data,
        meta={**told.meta, "queue": {"queue_id": task.task_id, "worker_id": task.worker, "claim": task.claims}},
    )


def _refuse_over(task: ExternalTask, now: datetime) -> None:
    if task.state == REPORTED:
        raise ClaimLost(task.task_id, "its end was reported already")
    if task.state == EXPIRED or task.is_late(now):
        raise ClaimLost(task.task_id, f"its deadline {task.deadline} is over")


def _refuse_foreign(task: ExternalTask, claim: int) -> None:
    if not 0 < claim == task.claims:
        who = f"{task.worker or 'somebody'} has claim {task.claims}" if task.claims else "nobody has claimed it"
        raise ClaimLost(task.task_id, f"claim {claim} is not the last one, {who}")


def _until(now: datetime, seconds: float) -> str:
    return timestamps.to_text(now + timedelta(seconds=seconds))


# --- the end ---------------------------------------------------------------------------------------------------


def report_of(task: ExternalTask, report: ExternalReport) -> RunReport:
    """Return what the runner says about an attempt whose task was reported on."""
    if report.is_ok:
        return RunReport(ok=True, summary=report.summary, result=report.result)
    error = report.error
    said = str(error.get("message") or report.summary or "no reason was given")
    run = FailedRun(
        text=said,
        subtype=str(error.get("category") or ""),
        exit_code=_whole(error.get("exit_code")),
        http_status=_whole(error.get("status")),
    )
    failed = RunFailed(run, f"{task.worker or 'whoever did it'} reports that it failed: {said}")

    return RunReport(ok=False, error=failed, summary=report.summary, result=report.result, exit_code=run.exit_code)


def _whole(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
