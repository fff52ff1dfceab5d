"""
The phases of a workflow as the status shows them: counters, times, failures, and what people said.

Pure, and made from plain JSON: it takes nothing for granted about a field but its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

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
)
_OF_AN_ATTEMPT = ("number", "round", "status", "started_at", "ended_at", "duration")
#: Columns for a reason in the table; --json has it whole, and the newest one stands above the table.
_REASON_WIDTH = 60


def phase_data(phase: JsonObject) -> JsonObject:
    """Return what is known about one phase, with the totals of all its rounds."""
    data: JsonObject = {name: phase.get(name) for name in _AS_THEY_ARE}
    attempts = _objects(phase.get("attempts"))
    times = [float(time) for attempt in attempts if isinstance(time := attempt.get("duration"), float | int)]
    data["max_attempts"] = _number(phase.get("max_attempts")) + _number(phase.get("granted"))
    data["total_attempts"] = len(attempts)
    data["suspended_attempts"] = sum(1 for attempt in attempts if attempt.get("status") == "suspended")
    data["total_seconds"] = round(sum(times), 3)
    data["average_seconds"] = round(sum(times) / len(times), 3) if times else None
    data["attempts"] = [_attempt(attempt) for attempt in attempts]

    return data


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
        output.span(seconds) if isinstance(seconds := phase["total_seconds"], float | int) and seconds else "-",
        output.span(average) if isinstance(average := phase["average_seconds"], float | int) else "-",
        output.moment(retry_at, now) if isinstance(retry_at, str) and retry_at else "-",
        output.shorten(_said(phase["last_failure_reason"] or phase["terminal_reason"]), _REASON_WIDTH) or "-",
    )


def _in_all(phase: JsonObject) -> str:
    suspended = phase["suspended_attempts"]

    return f"{phase['total_attempts']}{f' ({suspended} suspended)' if suspended else ''}"


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
