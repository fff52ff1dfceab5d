# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
Tasks that are done outside of adw, in the database: one row for each, changed under its lock.

The end of a task, its event and the wake-up of the run that waits for it are one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from adws.adw_modules import external_rules, timestamps
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.external_tasks import OPEN, ExternalReport, ExternalTask, TaskEvent, TaskNotFound
from adws.adw_modules.interfaces import Clock

TASK_COLUMNS = (
    "task_id",
    "adw_id",
    "phase",
    "round",
    "attempt_number",
    "catalog_id",
    "state",
    "claims",
    "worker",
    "claim_seconds",
    "claim_until",
    "created_at",
    "deadline",
    "ended_at",
    "report_id",
    "is_ok",
    "summary",
    "error",
    "result",
)
_NAMES = ", ".join(TASK_COLUMNS)
_SHOWN = f"SELECT {_NAMES} FROM external_tasks"
TASK_ADD = f"""
INSERT INTO external_tasks ({_NAMES}) VALUES ({", ".join(f":{name}" for name in TASK_COLUMNS)})
ON CONFLICT (task_id) DO NOTHING
"""
TASK_PUT = f"""
UPDATE external_tasks SET {", ".join(f"{name} = :{name}" for name in TASK_COLUMNS[1:])} WHERE task_id = :task_id
"""
TASK_GET = f"{_SHOWN} WHERE task_id = :task_id"
TASK_LOCK = f"{TASK_GET} {{row_lock}}"
TASK_LATEST = (
    f"{_SHOWN} WHERE adw_id = :adw_id AND phase = :phase ORDER BY created_at DESC, attempt_number DESC LIMIT 1"
)
TASK_EXPIRE = """
UPDATE external_tasks SET state = 'expired', ended_at = :moment, claim_until = ''
WHERE task_id = :task_id AND state = 'open'
"""
TASKS_ALL = f"{_SHOWN} ORDER BY created_at DESC, task_id DESC LIMIT :limit"
TASKS_OPEN = f"{_SHOWN} WHERE state = 'open' ORDER BY created_at DESC, task_id DESC LIMIT :limit"
TASKS_OF_WORKFLOW = f"{_SHOWN} WHERE adw_id = :adw_id ORDER BY created_at DESC, task_id DESC LIMIT :limit"
#: Events of a workflow are numbered one transaction after the other.
WORKFLOW_LOCK = "SELECT 1 FROM workflow_states WHERE adw_id = :adw_id {row_lock}"


class DatabaseExternalTasks:
    """An `ExternalTasks` in the table external_tasks."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._runs = DatabaseRunQueue(database, clock=clock)
        self._lock, self._lock_workflow = map(database.spell, (TASK_LOCK, WORKFLOW_LOCK))

    # --- the workflow's side -----------------------------------------------------------------------------------

    def open(self, task: ExternalTask) -> ExternalTask:
        """Store a task, or return the one that is there under its id."""
        new = replace(task, created_at=timestamps.to_text(self._clock.now()))

        def work(session: Session) -> ExternalTask:
            session.run(TASK_ADD, _params(new))
            return self._locked(session, task.task_id)

        return self._database.transact(work)

    def get(self, task_id: str) -> ExternalTask | None:
        """Return a task."""
        return self._one(TASK_GET, {"task_id": rows.plain(task_id)})

    def latest(self, adw_id: str, phase: str) -> ExternalTask | None:
        """Return the newest task of a phase."""
        return self._one(TASK_LATEST, {"adw_id": adw_id, "phase": phase})

    def page(self, *, adw_id: str = "", only_open: bool = False, limit: int = 100) -> tuple[ExternalTask, ...]:
        """Return tasks, the newest first."""
        sql = TASKS_OF_WORKFLOW if adw_id else TASKS_OPEN if only_open else TASKS_ALL
        with self._database.read() as session:
            found = map(_to_task, session.all(sql, {"adw_id": adw_id, "limit": limit} if adw_id else {"limit": limit}))

            return tuple(task for task in found if task.state == OPEN or not only_open)

    def adopt(self, task: ExternalTask, *, attempt_number: int) -> ExternalTask:
        """Let another attempt wait for a task whose own was cut off."""
        if task.attempt_number == attempt_number:
            return task

        return self._change(task.task_id, lambda found: replace(found, attempt_number=attempt_number))

    def expire(self, task_id: str) -> bool:
        """Give a task up that nobody reported on; False when somebody did."""
        params = {"task_id": task_id, "moment": timestamps.to_text(self._clock.now())}

        return self._database.transact(lambda session: session.run(TASK_EXPIRE, params)) == 1

    # --- the other side ----------------------------------------------------------------------------------------

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give the task to whoever asks, and tell of it; raise TaskNotFound, ClaimHeld or ClaimLost."""

        def work(session: Session) -> ExternalTask:
            now = self._clock.now()
            found = self._locked(session, task_id)
            taken = external_rules.claimed(found, worker=rows.plain(worker), seconds=seconds, now=now)
            session.run(TASK_PUT, _params(taken))
            told = TaskEvent(event_type="action_started", event_id=f"claim-{taken.claims}", status="STARTED")
            self._tell(session, taken, told)

            return taken

        return self._database.transact(work)

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Push the end of a claim out; raise TaskNotFound or ClaimLost."""
        return self._change(task_id, lambda found: external_rules.renewed(found, claim, now=self._clock.now()))

    def tell(self, task_id: str, claim: int, event: TaskEvent) -> bool:
        """Store what is told, and push the end of the claim out; False when that event was told before."""

        def work(session: Session) -> bool:
            found = self._locked(session, task_id)
            renewed = external_rules.renewed(found, claim, now=self._clock.now())
            session.run(TASK_PUT, _params(renewed))

            return self._tell(session, renewed, event)

        return self._database.transact(work)

    def report(self, task_id: str, claim: int, report: ExternalReport, event: TaskEvent) -> bool:
        """End the task, tell of it, and wake the run that waits for it; False when the same was reported before."""

        def work(session: Session) -> bool:
            found = self._locked(session, task_id)
            ended = external_rules.reported(found, claim, report, now=self._clock.now())
            if ended is None:
                return False
            session.run(TASK_PUT, _params(ended))
            self._tell(session, ended, event)
            self._runs.wake_in(session, ended.adw_id)

            return True

        return self._database.transact(work)

    # --- how -----------------------------------------------------------------------------------------------------

    def _locked(self, session: Session, task_id: str) -> ExternalTask:
        row = session.one(self._lock, {"task_id": rows.plain(task_id)})
        if row is None:
            raise TaskNotFound(task_id)

        return _to_task(row)

    def _change(self, task_id: str, rule: Callable[[ExternalTask], ExternalTask]) -> ExternalTask:
        def work(session: Session) -> ExternalTask:
            changed = rule(self._locked(session, task_id))
            session.run(TASK_PUT, _params(changed))

            return changed

        return self._database.transact(work)

    def _tell(self, session: Session, task: ExternalTask, told: TaskEvent) -> bool:
        """Store an event, under the lock that numbers those of its workflow; False when it is there already."""
        session.one(self._lock_workflow, {"adw_id": task.adw_id})
        event = external_rules.event_of(task, told, now=self._clock.now())

        return session.run(statements.EVENT_INSERT, rows.event_params(event)) == 1

    def _one(self, sql: str, params: dict[str, object]) -> ExternalTask | None:
        with self._database.read() as session:
            row = session.one(sql, params)

        return None if row is None else _to_task(row)


def _params(task: ExternalTask) -> dict[str, object]:
    report = task.report

    return {
        **{name: getattr(task, name) for name in TASK_COLUMNS[:14]},
        "report_id": "" if report is None else report.report_id,
        "is_ok": None if report is None else int(report.is_ok),
        "summary": "" if report is None else rows.plain(report.summary),
        "error": "" if report is None else rows.json_text(report.error, f"the error of task {task.task_id}"),
        "result": "" if report is None else rows.json_text(report.result, f"the result of task {task.task_id}"),
    }


def _to_task(row: Row) -> ExternalTask:
    values = dict(zip(TASK_COLUMNS, row, strict=True))
    report_id, is_ok, summary, error, result = (values.pop(name) for name in TASK_COLUMNS[14:])
    report = None
    if is_ok is not None:
        report = ExternalReport(
            report_id=report_id,
            is_ok=bool(is_ok),
            summary=summary,
            error=json.loads(error),
            result=json.loads(result),
        )

    return ExternalTask(**values, report=report)
