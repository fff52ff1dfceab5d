"""
The phases of a workflow as the status shows them: counters, times, failures, and what people said.

Pure, and made from plain JSON: it takes nothing for granted about a field but its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from adws.adw_modules import time_words
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.cli import output

_AS_THEY_ARE = (
    "name",
    "state",
    "status",
    "round",
    "attempts_used",
    "last_attempt_timestamp",
    "last_failure_reason",
    "terminal_reason",
    "retry_at",
    "wait_reason",
    "parks",
)
_OF_AN_ATTEMPT = ("number", "round", "status", "started_at", "ended_at", "duration", "model")
_OF_THE_DOCTOR = ("attempt", "by", "decision", "reason", "model", "problem", "asked_at", "decided_at")
#: Columns for a reason in the table; --json has it whole, and the newest one stands above the table.
_REASON_WIDTH = 60


def phase_data(phase: JsonObject) -> JsonObject:
    """Return what is known about one phase, with the totals of all its rounds."""
    data: JsonObject = {name: phase.get(name) for name in _AS_THEY_ARE}
    attempts = _objects(phase.get("attempts"))
    times = [float(time) for attempt in attempts if isinstance(time := attempt.get("duration"), float | int)]
    data["max_attempts"] = _number(phase.get("max_attempts")) + _number(phase.get("granted"))
    data["total_attempts"] = len(attempts)
    data["suspended_attempts"] = _ended(attempts, "suspended")
    data["parked_attempts"] = _ended(attempts, "parked")
    data["total_seconds"] = round(sum(times), 3)
    data["average_seconds"] = round(sum(times) / len(times), 3) if times else None
    data["attempts"] = [_attempt(attempt) for attempt in attempts]
    data["doctor"] = [
        {name: call.get(name) for name in _OF_THE_DOCTOR if name in call} for call in _objects(phase.get("doctor"))
    ]

    return data


def _ended(attempts: list[JsonObject], status: str) -> int:
    return sum(1 for attempt in attempts if attempt.get("status") == status)


def _attempt(attempt: JsonObject) -> JsonObject:
    error = attempt.get("error")
    known = error if isinstance(error, dict) else {}
    data: JsonObject = {name: attempt.get(name) for name in _OF_AN_ATTEMPT}
    data["error"] = known.get("message")
    data["category"] = known.get("category")

    return data


def hint_data(hint: JsonObject) -> JsonObject:
    """Return what a person said to do differently."""
    return {name: hint.get(name) for name in ("text", "by", "at", "phase")}


def failed_phase(phases: list[JsonObject]) -> JsonObject:
    """Return the phase a failed workflow failed in, {} when none did; those before it were not required."""
    return next((phase for phase in reversed(phases) if phase.get("status") == "failed"), {})


def newest_failure(phases: list[JsonObject]) -> str:
    """Return why the newest attempt that failed did so, with its phase; "" when none did, or it was made good."""
    troubled = [
        phase
        for phase in phases
        if phase.get("last_failure_reason") and phase.get("status") not in ("complete", "skipped")
    ]
    if not troubled:
        return ""
    newest = max(troubled, key=lambda phase: str(phase.get("last_attempt_timestamp") or ""))

    return f"{newest.get('name')}: {newest.get('last_failure_reason')}"


def phase_lines(phases: list[JsonObject], now: datetime) -> list[str]:
    """Return the phases as a table, [] when there are none."""
    if not phases:
        return []
    headers = ("PHASE", "STATUS", "ATTEMPTS", "IN ALL", "TIME", "AVERAGE", "NEXT TRY", "LAST FAILURE")

    return ["", *output.table(headers, [_row(phase, now) for phase in phases])]


def _row(phase: JsonObject, now: datetime) -> tuple[str, ...]:
    retry_at = phase["retry_at"]

    return (
        _said(phase["name"]),
        _said(phase["status"]),
        f"{_said(phase['attempts_used'])}/{_said(phase['max_attempts'])}",
        _in_all(phase),
        time_words.span(seconds) if isinstance(seconds := phase["total_seconds"], float | int) and seconds else "-",
        time_words.span(average) if isinstance(average := phase["average_seconds"], float | int) else "-",
        output.moment(retry_at, now) if isinstance(retry_at, str) and retry_at else "-",
        output.shorten(_said(phase["last_failure_reason"] or phase["terminal_reason"]), _REASON_WIDTH) or "-",
    )


def _in_all(phase: JsonObject) -> str:
    kinds = (("suspended", phase["suspended_attempts"]), ("parked", phase["parked_attempts"]))
    uncounted = ", ".join(f"{count} {kind}" for kind, count in kinds if count)

    return f"{phase['total_attempts']}{f' ({uncounted})' if uncounted else ''}"


def wait_lines(phases: list[JsonObject], now: datetime) -> list[str]:
    """Return what a phase waits for that is no failed attempt of its own: a quota, a party, work that others do."""
    return [
        _wait_line(phase, now)
        for phase in phases
        if phase.get("wait_reason") and (phase.get("retry_at") or phase.get("status") == "retry_wait")
    ]


def _wait_line(phase: JsonObject, now: datetime) -> str:
    at = phase.get("retry_at")
    until = f" until {output.moment(at, now)}" if isinstance(at, str) and at else ""

    return f"waiting: {_said(phase['name'])}{until}: {_said(phase['wait_reason'])}"


def execution_lines(executions: list[JsonObject], now: datetime) -> list[str]:
    """Return how far the steps are that a phase waits for."""
    return [f"step {_said(one['step'])}: {_progress(one, now)} ({_said(one['execution_id'])})" for one in executions]


def _progress(execution: JsonObject, now: datetime) -> str:
    at, total = execution["next_retry"], execution["total"]
    said = [
        f"{_said(execution['done'])} of {'?' if total is None else total} done",
        f"{_said(execution['failed'])} failed",
        f"{_said(execution['running'])} in flight",
        f"{_said(execution['waiting'])} wait for another call" if execution["waiting"] else "",
        f"next retry {output.moment(at, now)}" if isinstance(at, str) else "",
    ]

    return ", ".join(filter(None, said))


def doctor_lines(phases: list[JsonObject]) -> list[str]:
    """Return what the doctor decided, one line each, [] when it was never asked."""
    lines = [f"doctor: {_decision(phase, call)}" for phase in phases for call in _objects(phase.get("doctor"))]

    return ["", *lines] if lines else []


def _decision(phase: JsonObject, call: JsonObject) -> str:
    about = f"{_said(phase.get('name'))}, attempt {_said(call.get('attempt'))}"
    decision = _said(call.get("decision")) or "was asked and gave no answer"
    model = f" {call['model']}" if call.get("model") else ""
    reason = f": {call['reason']}" if call.get("reason") else ""
    problem = f" ({call['problem']})" if call.get("problem") else ""

    return f"{about}: {decision}{model}{reason}{problem} [by {_said(call.get('by'))}]"


def hint_lines(hints: list[JsonObject], now: datetime) -> list[str]:
    """Return what people said to do differently, one line each."""
    return ["", *(f"hint: {_hint(hint, now)}" for hint in hints)] if hints else []


def _hint(hint: Mapping[str, JsonValue], now: datetime) -> str:
    at = hint.get("at")
    facts = [
        f"for {hint['phase']}" if hint.get("phase") else "",
        f"by {hint['by']}" if hint.get("by") else "",
        output.moment(at, now) if isinstance(at, str) and at else "",
    ]
    about = ", ".join(fact for fact in facts if fact)

    return f"{_said(hint.get('text'))}{f' [{about}]' if about else ''}"


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def _said(value: JsonValue) -> str:
    return "" if value is None else str(value)
