"""
Run a phase by somebody outside of adw: leave a task, let the attempt wait, and take what was reported on it.

Nothing is done here while it waits. The report wakes the workflow's run, and so does the deadline: whoever claims the
run then finds the one or the other. A report that comes while the task is given up is one or the other too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from adws.adw_modules import external_rules, timestamps
from adws.adw_modules.external_tasks import (
    DEFAULT_DEADLINE_SECONDS,
    PATH,
    ExternalTask,
    ExternalTasks,
    Overdue,
    task_id_of,
)
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.outcome import Forked, RunReport
from adws.adw_modules.workflow import PhaseSpec


class ExternalRunner:
    """Has phases done outside; implements `Runner`."""

    def __init__(self, tasks: Callable[[], ExternalTasks], *, clock: Clock) -> None:
        """*tasks* is asked when a phase runs: building the runners must not open a database."""
        self._tasks = tasks
        self._clock = clock

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner: nothing."""
        del phase
        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Forked:
        """Take what was reported, or wait for it until the deadline."""
        tasks = self._tasks()
        task = self._task(tasks, phase, context)
        if task.report is None and task.is_late(self._clock.now()):
            tasks.expire(task.task_id)
            task = tasks.get(task.task_id) or task  # somebody may have reported before it was given up
            if task.report is None:
                return RunReport(ok=False, error=Overdue(task))
        if task.report is not None:
            return external_rules.report_of(task, task.report)

        return Forked(
            reason=f"waits until {task.deadline} for task {task.task_id}, which is done outside of adw",
            until=timestamps.parse(task.deadline),
            facts={"task_id": task.task_id, "path": f"{PATH}/{task.task_id}", "deadline": task.deadline},
        )

    def _task(self, tasks: ExternalTasks, phase: PhaseSpec, context: PhaseContext) -> ExternalTask:
        """Return the task of the attempt: its own, one that an attempt before was cut off from, or a new one."""
        document = context.document
        record = next(one for one in document.phases if one.name == context.phase)
        known = tasks.latest(document.adw_id, context.phase)
        if known is not None and external_rules.is_for(known, record):
            return tasks.adopt(known, attempt_number=context.attempt_number)
        seconds = phase.deadline_seconds or DEFAULT_DEADLINE_SECONDS

        return tasks.open(
            ExternalTask(
                task_id=task_id_of(document.adw_id, context.phase, context.attempt_number),
                adw_id=document.adw_id,
                phase=context.phase,
                round=context.round,
                attempt_number=context.attempt_number,
                catalog_id=f"{document.workflow.name}@{document.workflow.version}" if document.workflow else "",
                deadline=timestamps.to_text(self._clock.now() + timedelta(seconds=seconds)),
            )
        )
