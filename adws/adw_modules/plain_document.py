"""
Reading a document as plain JSON, for views.

Pure. A document of another tool may hold anything: what has not the right form is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from adws.adw_modules.identifiers import JsonObject, JsonValue


def read(text: str) -> JsonObject:
    """Return the document in a text; an empty one for what is none."""
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}  # `adw db check` names it

    return data if isinstance(data, dict) else {}


def objects(value: object) -> Iterator[JsonObject]:
    """Yield the objects in a list."""
    yield from (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def text_in(data: Mapping[str, JsonValue], key: str) -> str:
    """Return a text, "" when there is none."""
    value = data.get(key)

    return value if isinstance(value, str) else ""


def number_in(data: Mapping[str, JsonValue], key: str) -> int:
    """Return a whole number, 0 when there is none."""
    value = data.get(key)

    return value if isinstance(value, int) else 0


def phase_in(data: Mapping[str, JsonValue], status: str) -> JsonObject | None:
    """Return the first phase with that status, None when there is none."""
    return next((phase for phase in objects(data.get("phases")) if phase.get("status") == status), None)


def last_attempt(phase: Mapping[str, JsonValue]) -> JsonObject:
    """Return the newest attempt at a phase, nothing when there is none."""
    attempts = phase.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None

    return last if isinstance(last, dict) else {}


def error_of(attempt: Mapping[str, JsonValue]) -> JsonObject:
    """Return how an attempt failed, nothing when it did not."""
    error = attempt.get("error")

    return error if isinstance(error, dict) else {}


def definition_in(data: Mapping[str, JsonValue], phase: str) -> JsonObject:
    """Return the frozen definition of a phase, nothing when there is none."""
    workflow = data.get("workflow")
    defined = workflow.get("phases") if isinstance(workflow, dict) else None

    return next((entry for entry in objects(defined) if entry.get("name") == phase), {})
