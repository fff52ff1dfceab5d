"""The events of the steps of a phase: of their beginning and end, and of the calls that the phase's own run makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adws.adw_modules import timestamps
from adws.adw_modules.events import new_event
from adws.adw_modules.executions import CallReport, Executions
from adws.adw_modules.fanout.contexts import limited, result_facts
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


class StepEvents:
    """Tells of the steps of one attempt; each event is numbered by the progress, so telling twice changes nothing."""

    def __init__(
        self, executions: Executions, context: PhaseContext, progress: Progress, *, catalog_id: str, clock: Clock
    ) -> None:
        self._executions = executions
        self._context = context
        self._progress = progress
        self._catalog_id = catalog_id
        self._clock = clock
        self._execution_id = f"{context.document.adw_id}.{context.phase}.{context.attempt_number}"
        self._last: str | None = None

    def tell(self, event_type: str, step: StepSpec, **fields: Any) -> None:
        """Store one event of *step*."""
        self._progress.told += 1
        event = new_event(
            event_type,
            adw_id=self._context.document.adw_id,
            event_id=f"{self._execution_id}.s{self._progress.told}",
            created_at=timestamps.to_text(self._clock.now()),
            execution_id=self._execution_id,
            parent_execution_id=self._context.document.adw_id,
            parent_event_id=self._last,
            attempt_number=self._context.attempt_number,
            node_id=f"{self._context.phase}.{step.name}",
            node_name=step.name,
            node_type="step",
            catalog_id=self._catalog_id,
            **{"status": _STATUSES.get(event_type, ""), "context": self._shown(), **fields},
        )
        self._executions.tell([event])
        self._last = event.event_id

    def tell_call(self, step: StepSpec, report: CallReport, redact: Callable[[JsonValue], JsonValue]) -> None:
        """Store what came of a single call."""
        moment = timestamps.to_text(self._clock.now())
        meta: JsonObject = {
            **report.meta,
            "retry": {"has_config": False},
            "execution": {"duration_seconds": report.duration, "completed_at": moment},
        }
        if report.ok:
            shown = redact(limited(report.result))
            self.tell("action_completed", step, status="completed", duration=report.duration, result=shown, meta=meta)
            return
        error = report.error or {}
        message = redact(str(error.get("message") or "")[:500])
        meta["error"] = {
            "message": message,
            "has_stack_trace": bool(error.get("has_stack_trace")),
            "failed_at": error.get("failed_at") or moment,
        }
        told: JsonObject = {key: error[key] for key in ("type", "category", "klass", "status") if error.get(key)}
        data: JsonObject = {"error": {**told, "message": message}}
        self.tell("action_failed", step, status="failed", duration=report.duration, data=data, meta=meta)

    def _shown(self) -> JsonObject:
        facts: JsonObject = {name: result_facts(value) for name, value in self._progress.steps.items()}

        return {"execution_id": self._execution_id, "catalog_id": self._catalog_id, "_step_results": facts}
