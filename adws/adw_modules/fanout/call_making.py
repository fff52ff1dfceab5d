"""
Make one call of a step: fill in its inputs, call the tool, save the result, and say what came of it.

Implements `CallMaker`. Whatever a tool or a sink raises is a failed call, classified once; a call that was ended on
order is suspended and does not count. What was called is told to nobody but the tool: a report has the result as it
came, and facts without credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import call_rules, doctor_rules, error_handler, timestamps
from adws.adw_modules.errors import Fenced, LeaseLost, RunLost
from adws.adw_modules.executions import Assignment, CallReport
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.results import MAX_RESULT_BYTES, ToolResult, checked
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.redaction import Redactor
from adws.adw_modules.steps import StepSpec

if TYPE_CHECKING:
    from adws.adw_modules.fanout.sinks.saving import Sinks

#: Characters of a message in a report.
MAX_MESSAGE = 500


class Tool(Protocol):
    """Something that steps call."""

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make one call; what this raises is a failed call."""


class ToolCalls:
    """Makes calls of steps; implements `CallMaker`."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        sinks: Sinks,
        *,
        clock: Clock,
        redactor: Redactor,
        max_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        """*tools* are those of `steps.TOOLS` by name; a result has at most *max_bytes*."""
        self._tools = tools
        self._sinks = sinks
        self._clock = clock
        self._redactor = redactor
        self._max_bytes = max_bytes

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """Make one call and say what came of it; only what says that the run is not ours any more is raised."""
        began = self._clock.monotonic()
        facts: JsonObject = {}
        try:
            inputs = call_rules.inputs_of(step, assignment, context.values)
            found = self._tools[step.tool].call(inputs, context, timeout_seconds=step.timeout_seconds)
            facts = found.facts
            if found.ordered:
                return self._suspended(assignment, found, began)
            result = checked(found.value, max_bytes=self._max_bytes)
            if step.sink is not None:
                facts = {**facts, "rows": self._save(step, assignment, context, result)}
        except (Fenced, LeaseLost, RunLost):
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool or a function of the user raises is a failed call
            return self._failed(step, assignment, exc, facts, began)

        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=True,
            result=result,
            duration=self._clock.monotonic() - began,
            meta={"call": facts} if facts else {},
        )

    def close(self) -> None:
        """Let go of connections and files."""
        self._sinks.close()

    def _save(self, step: StepSpec, assignment: Assignment, context: CallContext, result: JsonValue) -> int:
        if step.sink is None:
            return 0

        return self._sinks.save(
            step.sink, result, values=context.values, root=context.cwd, sink_key=assignment.sink_key
        )

    def _suspended(self, assignment: Assignment, found: ToolResult, began: float) -> CallReport:
        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=False,
            is_suspended=True,
            duration=self._clock.monotonic() - began,
            meta={"call": {**found.facts, "ordered": found.ordered}},
        )

    def _failed(
        self, step: StepSpec, assignment: Assignment, exc: Exception, facts: JsonObject, began: float
    ) -> CallReport:
        found = error_handler.describe(exc, step.name)
        message = self._redactor.redact_text(found.message)[:MAX_MESSAGE]
        more = getattr(exc, "facts", None)
        error: JsonObject = {
            **found.to_json(),
            "type": getattr(exc, "type_name", "") or found.error_type,
            "message": message,
            "traceback": "",
            "has_stack_trace": bool(found.traceback),
            "status": found.metadata.get("http_status"),
            "exit_code": found.metadata.get("exit_code"),
            "failed_at": timestamps.to_text(self._clock.now()),
        }
        known = {**facts, **(more if isinstance(more, dict) else {})}

        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=False,
            error=error,
            fingerprint=doctor_rules.fingerprint(f"{error['type']}:{found.klass}", message),
            duration=self._clock.monotonic() - began,
            meta={"call": known} if known else {},
        )
