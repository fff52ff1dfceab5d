"""
What is done outside of adw reports here: claims, signs of life, events, the end.

Nobody is believed about anything but their own task, and only while the workflow waits for it and the claim is theirs.
What they send is cut to size and cleaned of secrets before it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import external_rules
from adws.adw_modules.errors import StateNotFound, UsageError
from adws.adw_modules.execution_telling import MAX_VALUE, truncated
from adws.adw_modules.external_tasks import (
    ENDS,
    TOLD,
    ClaimLost,
    ExternalReport,
    ExternalTask,
    ExternalTasks,
    TaskEvent,
    TaskNotFound,
    token_of,
)
from adws.adw_modules.json_value import JsonObject, JsonValue

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: Most bytes of a result as JSON: it becomes a part of the workflow's document.
MAX_RESULT_BYTES = 256 * 1024
#: What may stand in a context besides names without an underscore.
_KEPT = "_step_results"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskParts:
    """What the desk works with."""

    tasks: ExternalTasks
    load: Callable[[str], WorkflowDocument]
    redact: Callable[[JsonValue], JsonValue]
    key: Callable[[], bytes]


class ExternalDesk:
    """Takes what is said about tasks."""

    def __init__(self, parts: DeskParts) -> None:
        self._parts = parts

    def token_of(self, task_id: str) -> str:
        """Return the token of a task."""
        return token_of(task_id, self._parts.key())

    # --- what is said ------------------------------------------------------------------------------------------

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give a task to whoever asks."""
        self._wanted(task_id)

        return self._parts.tasks.claim(task_id, worker=self._text(worker), seconds=seconds)

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Take a sign of life."""
        self._wanted(task_id)

        return self._parts.tasks.heartbeat(task_id, claim)

    def emit(self, task_id: str, claim: int, event: TaskEvent, *, summary: str = "") -> bool:
        """Take an event; one that ends the task is its report. False when it was told before."""
        if event.event_type not in TOLD:
            raise UsageError(f"{event.event_type!r} is nothing that is told of a task; use one of {', '.join(TOLD)}")
        if event.event_type in ENDS:
            return self._end(task_id, claim, event, summary)
        self._wanted(task_id)
        told = TaskEvent(
            event_type=event.event_type,
            event_id=f"told-{event.event_id}",
            status=self._text(event.status),
            duration=event.duration,
            result=self._short(event.result),
            context=self._context(event.context),
            data=self._each_short(event.data),
            meta=self._each_short(event.meta),
        )

        return self._parts.tasks.tell(task_id, claim, told)

    def _end(self, task_id: str, claim: int, event: TaskEvent, summary: str) -> bool:
        is_ok = ENDS[event.event_type]
        task = self._known(task_id)
        if task.report is None:  # what was reported already is looked at again: its answer may have been lost
            self._wanted(task_id)
        error = event.data.get("error")
        report = ExternalReport(
            is_ok=is_ok,
            report_id=event.event_id,
            summary=self._text(summary),
            result=self._result(event.result),
            error={} if is_ok else self._error(error),
        )
        told = TaskEvent(
            event_type=event.event_type,
            event_id="end",
            status=self._text(event.status) or ("COMPLETED" if is_ok else "FAILED"),
            duration=event.duration,
            result=self._short(report.result),
            context=self._context(event.context),
            data={**self._each_short(event.data), "claim": claim, "summary": report.summary},
            meta=self._each_short(event.meta),
        )

        return self._parts.tasks.report(task_id, claim, report, told)

    def _known(self, task_id: str) -> ExternalTask:
        task = self._parts.tasks.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)

        return task

    def _wanted(self, task_id: str) -> None:
        task = self._known(task_id)
        try:
            document = self._parts.load(task.adw_id)
        except StateNotFound as exc:
            raise TaskNotFound(task_id) from exc
        if not external_rules.is_wanted(task, document):
            raise ClaimLost(task_id, f"workflow {task.adw_id} does not wait for it any more")

    # --- what is kept of it ------------------------------------------------------------------------------------

    def _result(self, value: JsonValue) -> JsonObject:
        result: JsonValue = {} if value is None else value
        if not isinstance(result, dict):
            raise UsageError("result must be an object, such as {}: a phase gives named values")
        if (size := _size(result)) > MAX_RESULT_BYTES:
            raise UsageError(
                f"result has {size} bytes and may have {MAX_RESULT_BYTES}: keep what is large elsewhere, and name it"
            )

        return self._object(result)

    def _error(self, value: JsonValue) -> JsonObject:
        error: JsonObject = value if isinstance(value, dict) else {"message": value} if value else {}

        return self._each_short(error)

    def _context(self, context: JsonObject) -> JsonObject:
        return self._each_short({name: value for name, value in context.items() if name[:1] != "_" or name == _KEPT})

    def _each_short(self, values: JsonObject) -> JsonObject:
        return self._object({name[:200]: _cut(value) for name, value in list(values.items())[:100]})

    def _short(self, value: JsonValue) -> JsonValue:
        return self._parts.redact(_cut(value))

    def _object(self, value: JsonObject) -> JsonObject:
        clean = self._parts.redact(value)

        return clean if isinstance(clean, dict) else {}

    def _text(self, text: str) -> str:
        return str(self._parts.redact(" ".join(text.split())))


def _cut(value: JsonValue) -> JsonValue:
    size = _size(value)

    return value if size <= MAX_VALUE else truncated(size)


def _size(value: JsonValue) -> int:
    return len(json.dumps(value).encode())
