"""
What the events of an execution say of it: its settings, what came of a call, how it ended.

Pure. The names are those of seed 001 (`data`, and in `meta` the keys retry, execution, queue and error), so that the
log alone explains why a call was made again, or not.
"""

from __future__ import annotations

from adws.adw_modules.call_rules import Judgement
from adws.adw_modules.execution_state import Lane
from adws.adw_modules.executions import CallReport, Execution
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.step_json import step_to_json
from adws.adw_modules.steps import ON_ERROR, ON_SUCCESS, THRESHOLD, LoopSpec, StepSpec

#: Characters of JSON of a value in an event. Of a larger one the event says how large it is; the rows have it.
MAX_VALUE = 10_000
#: Characters of a message in an event.
MAX_MESSAGE = 500
#: The key of a table that stands for the results of an execution.
REFERENCE = "_execution"


def truncated(size: int) -> JsonObject:
    """Return what stands for a value of so many characters."""
    return {"_truncated": True, "_size": size}


def started(step: StepSpec, total: int) -> JsonObject:
    """Return what is told when the calls of *step* can begin."""
    written = step_to_json(step)
    data: JsonObject = {
        "tool": step.tool,
        "collection_size": total,
        **(_of_loop(step.loop) if step.loop is not None else {}),
    }
    if step.retry:
        data["retry_config"] = written["retry"]
    if step.sink is not None:
        data["sink"] = written["sink"]

    return data


def _of_loop(loop: LoopSpec) -> JsonObject:
    found: JsonObject = {
        "iterator_name": loop.element,
        "mode": loop.mode,
        "concurrency": loop.concurrency,
        "chunk_size": loop.chunk_size,
        "on_failure": loop.on_failure,
    }
    if loop.on_failure == THRESHOLD:
        found["threshold"] = loop.threshold
    for name in ("where", "order_by", "limit"):
        if value := getattr(loop, name):
            found[name] = value

    return found


def ended(done: Execution, reason: str) -> JsonObject:
    """Return what is told when everything is over."""
    return {
        "total_iterations": done.total or 0,
        "successful": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "success_rate": _success_rate(done),
        **({"reason": reason} if reason else {}),
    }


def end_meta(done: Execution, moment: str) -> JsonObject:
    """Return what the end of an execution has in `meta`."""
    return {
        "total_iterations": done.total or 0,
        "completed_iterations": done.succeeded,
        "success_rate": _success_rate(done),
        "completed_at": moment,
    }


def _success_rate(done: Execution) -> float:
    return round(done.succeeded / done.total, 6) if done.total else 1.0


def usual_meta(step: StepSpec, lane: Lane | None) -> JsonObject:
    """Return what every event has in `meta`: whether there are rules, and who works on it."""
    meta: JsonObject = {"retry": {"has_config": bool(step.retry)}}
    if lane is not None:
        meta["queue"] = {"queue_id": lane.run_id, "worker_id": lane.worker_id}

    return meta


def retry_meta(step: StepSpec, found: Judgement, *, attempts: int, is_well: bool) -> JsonObject:
    """Return which rule decided about a call, and whether another one follows."""
    facts = found.facts
    kind = ON_SUCCESS if is_well else ON_ERROR
    usual = next((rule for rule in step.retry if rule.kind == kind), step.retry[0])

    return {
        "has_config": True,
        "attempt_number": attempts,
        "max_attempts": facts.get("max_attempts") or usual.max_attempts,
        "retry_type": str(facts.get("rule") or usual.kind),
        "will_retry": facts.get("again") is True,
    }


def error_meta(error: JsonObject, message: str, moment: str) -> JsonObject:
    """Return what `meta` says of a failure."""
    return {
        "message": message,
        "has_stack_trace": bool(error.get("has_stack_trace") or error.get("traceback")),
        "failed_at": error.get("failed_at") or moment,
    }


def said(error: JsonObject) -> JsonObject:
    """Return of an error what an event tells; traces stay with whoever made the call."""
    told: JsonObject = {key: value for key, value in error.items() if key not in ("traceback", "message")}
    told["message"] = str(error.get("message") or "")[:MAX_MESSAGE]

    return told


def failure_of(iteration: JsonObject, call: JsonObject) -> JsonObject:
    """Return why an iteration failed, of the `data` of its end and of its last call, {} when that went well."""
    error = call.get("error")
    found: JsonObject = dict(error) if isinstance(error, dict) else {}

    return {**found, "message": iteration.get("reason") or found.get("message") or ""}


def not_json(report: CallReport, why: Exception) -> CallReport:
    """Return *report* as that of a failed call: what it gave back cannot be stored."""
    error: JsonObject = {
        "type": type(why).__name__,
        "category": "fatal",
        "message": f"what the call gave back is not JSON: {why}",
        "has_stack_trace": False,
    }

    return CallReport(
        index=report.index,
        attempt_number=report.attempt_number,
        ok=False,
        error=error,
        fingerprint="not_json",
        duration=report.duration,
        context=report.context,
        meta=report.meta,
    )
