"""
Tasks in memory, for tests of what waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from adws.adw_modules import external_rules, timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.external_tasks import EXPIRED, OPEN, ExternalReport, ExternalTask, TaskEvent, TaskNotFound
from adws.adw_modules.interfaces import Clock


class MemoryExternalTasks:
    """An `ExternalTasks` that nobody else sees."""

    def __init__(self, *, clock: Clock, wake: Callable[[str], object] = lambda _adw_id: None) -> None:
        """*wake* makes the run of a workflow due."""
        self._clock = clock
        self._wake = wake
        self._tasks: dict[str, ExternalTask] = {}
        self._guard = threading.RLock()
        self.events: dict[str, Event] = {}  #: event_id -> what was told

    def open(self, task: ExternalTask) -> ExternalTask:
        """Store a task, or return the one that is there under its id."""
        with self._guard:
            new = replace(task, created_at=timestamps.to_text(self._clock.now()))
            return self._tasks.setdefault(task.task_id, new)

    def get(self, task_id: str) -> ExternalTask | None:
        """Return a task."""
        return self._tasks.get(task_id)

    def latest(self, adw_id: str, phase: str) -> ExternalTask | None:
        """Return the newest task of a phase."""
        return next((task for task in self._newest_first() if (task.adw_id, task.phase) == (adw_id, phase)), None)

    def page(self, *, adw_id: str = "", only_open: bool = False, limit: int = 100) -> tuple[ExternalTask, ...]:
        """Return tasks, the newest first."""
        found = [
            task
            for task in self._newest_first()
            if adw_id in {"", task.adw_id} and (task.state == OPEN or not only_open)
        ]

        return tuple(found[:limit])

    def adopt(self, task: ExternalTask, *, attempt_number: int) -> ExternalTask:
        """Let another attempt wait for a task whose own was cut off."""
        with self._guard:
            return self._put(replace(self._found(task.task_id), attempt_number=attempt_number))

    def expire(self, task_id: str) -> bool:
        """Give a task up that nobody reported on; False when somebody did."""
        with self._guard:
            found = self._tasks.get(task_id)
            if found is None or found.state != OPEN:
                return False
            self._put(replace(found, state=EXPIRED, claim_until="", ended_at=timestamps.to_text(self._clock.now())))
            return True

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give the task to whoever asks, and tell of it; raise TaskNotFound, ClaimHeld or ClaimLost."""
        with self._guard:
            now = self._clock.now()
            taken = external_rules.claimed(self._found(task_id), worker=worker, seconds=seconds, now=now)
            told = TaskEvent(event_type="action_started", event_id=f"claim-{taken.claims}", status="STARTED")
            self._tell(taken, told)
            return self._put(taken)

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Push the end of a claim out; raise TaskNotFound or ClaimLost."""
        with self._guard:
            return self._put(external_rules.renewed(self._found(task_id), claim, now=self._clock.now()))

    def tell(self, task_id: str, claim: int, event: TaskEvent) -> bool:
        """Store what is told, and push the end of the claim out; False when that event was told before."""
        with self._guard:
            return self._tell(self.heartbeat(task_id, claim), event)

    def report(self, task_id: str, claim: int, report: ExternalReport, event: TaskEvent) -> bool:
        """End the task, tell of it, and wake the run that waits for it; False when the same was reported before."""
        with self._guard:
            ended = external_rules.reported(self._found(task_id), claim, report, now=self._clock.now())
            if ended is None:
                return False
            self._put(ended)
            self._tell(ended, event)
            self._wake(ended.adw_id)
            return True

    def _tell(self, task: ExternalTask, told: TaskEvent) -> bool:
        event = external_rules.event_of(task, told, now=self._clock.now())
        is_new = event.event_id not in self.events
        self.events.setdefault(event.event_id, event)

        return is_new

    def _found(self, task_id: str) -> ExternalTask:
        if task_id not in self._tasks:
            raise TaskNotFound(task_id)

        return self._tasks[task_id]

    def _put(self, task: ExternalTask) -> ExternalTask:
        self._tasks[task.task_id] = task

        return task

    def _newest_first(self) -> list[ExternalTask]:
        return list(reversed(self._tasks.values()))
