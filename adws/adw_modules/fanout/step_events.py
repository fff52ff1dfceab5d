"""The events of the steps of a phase: of their beginning and end, and of the calls that the phase's own run makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adws.adw_modules import timestamps
from adws.adw_modules.events import new_event
from adws.adw_modules.execution_telling import MAX_MESSAGE, error_meta
from adws.adw_modules.executions import CallReport, Executions
from adws.adw_modules.fanout.contexts import limited, shown_context
from adws.adw_modules.fanout.step_progress import Progress
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.steps import StepSpec

_STATUSES = {
    "step_started": "running",
    "step_completed": "completed",
    "step_failed": "failed",
    "step_skipped": "skipped",
    "action_started": "running",
}
_ENDS = frozenset({"step_completed", "step_failed"})


@dataclass(frozen=True, kw_only=True, slots=True)
class EventParts:
    """What events of steps are made of."""

    executions: Executions
    clock: Clock
    redact: Callable[[JsonValue], JsonValue]
    known: Callable[[], JsonObject]  #: what templates of the phase know
    catalog_id: str


class StepEvents:
    """Tells of the steps of one attempt; each event is numbered by the progress, so telling twice changes nothing."""

    def __init__(self, parts: EventParts, context: PhaseContext, progress: Progress) -> None:
        self._parts = parts
        self._context = context
        self._progress = progress
        self._execution_id = f"{context.document.adw_id}.{context.phase}.{context.attempt_number}"
        self._call: str | None = None  #: the event that began the call

    def tell(self, event_type: str, step: StepSpec, **fields: Any) -> None:
        """Store one event of *step*."""
        progress = self._progress
        progress.told += 1
        moment = timestamps.to_text(self._parts.clock.now())
        if event_type == "step_started":
            progress.began_at = moment
        event_id = f"{self._execution_id}.s{progress.told}"
        if event_type == "action_started":
            self._call = event_id
        event = new_event(
            event_type,
            adw_id=self._context.document.adw_id,
            event_id=event_id,
            created_at=moment,
            execution_id=self._execution_id,
            parent_execution_id=self._context.document.adw_id,
            parent_event_id=progress.last_event or None,
            retry_sequence_id=self._call if event_type.startswith("action") else None,
            attempt_number=self._context.attempt_number,
            node_id=f"{self._context.phase}.{step.name}",
            node_name=step.name,
            node_type="step",
            catalog_id=self._parts.catalog_id,
            **{
                "status": _STATUSES.get(event_type, ""),
                "duration": self._since_beginning() if event_type in _ENDS else None,
                "context": self._shown(),
                "meta": self._meta(),
                **fields,
            },
        )
        self._parts.executions.tell([event])
        progress.last_event = event_id

    def tell_success(self, step: StepSpec, report: CallReport, stored: JsonValue) -> None:
        """Store that a single call ended well; *stored* is what is kept of its result."""
        result = self._parts.redact(limited(stored))
        meta = self._call_meta(report, timestamps.to_text(self._parts.clock.now()))
        self.tell("action_completed", step, status="completed", duration=report.duration, result=result, meta=meta)

    def tell_failure(self, step: StepSpec, report: CallReport) -> None:
        """Store that a single call failed."""
        moment = timestamps.to_text(self._parts.clock.now())
        error = report.error or {}
        message = str(self._parts.redact(str(error.get("message") or "")[:MAX_MESSAGE]))
        meta = {**self._call_meta(report, moment), "error": error_meta(error, message, moment)}
        told: JsonObject = {key: error[key] for key in ("type", "category", "klass", "status") if error.get(key)}
        data: JsonObject = {"error": {**told, "message": message}}
        self.tell("action_failed", step, status="failed", duration=report.duration, data=data, meta=meta)

    def _since_beginning(self) -> float | None:
        began = self._progress.began_at
        if not began:
            return None

        return max(0.0, (self._parts.clock.now() - timestamps.parse(began)).total_seconds())

    def _call_meta(self, report: CallReport, moment: str) -> JsonObject:
        return {
            **report.meta,
            **self._meta(),
            "retry": {"has_config": False, "will_retry": False},
            "execution": {"duration_seconds": report.duration, "completed_at": moment},
        }

    def _meta(self) -> JsonObject:
        return {"queue": dict(self._context.queue)} if self._context.queue else {}

    def _shown(self) -> JsonObject:
        ids: JsonObject = {
            "execution_id": self._execution_id,
            "parent_execution_id": self._context.document.adw_id,
            "catalog_id": self._parts.catalog_id,
        }

        return shown_context(ids, self._parts.known(), self._parts.redact, self._progress.statuses)
