"""
What a tool gives back, and how it is read: plain JSON of a bounded size.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from adws.adw_modules.errors import RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.json_value import JsonObject, JsonValue

#: Most bytes of a result, as JSON.
MAX_RESULT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a call of a tool came to."""

    value: JsonValue = None
    facts: JsonObject = field(default_factory=dict)  #: besides: exit code, status, cost
    ordered: str = ""  #: the kind of the order that ended it; then there is no value


def parse(payload: bytes, what: str) -> JsonValue:
    """Return the JSON in *payload*; raise RunFailed when it is none."""
    try:
        found: JsonValue = json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise bad(f"{what} is not JSON: {exc}") from exc

    return found


def text_of(payload: bytes) -> str:
    """Return bytes as text; what is no UTF-8 is replaced."""
    return payload.decode("utf-8", "replace")


def checked(value: object, *, max_bytes: int) -> JsonValue:
    """Return what a tool gave back when it is plain JSON of at most *max_bytes*; raise RunFailed."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise bad(f"the result cannot be written as JSON: {exc}") from exc
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise too_long(size, max_bytes)
    if not _is_plain(value):
        raise bad("the result would not come back from JSON as it is: use text keys, and lists, not tuples")

    return value  # type: ignore[return-value]  # it was looked at


def too_long(size: int, max_bytes: int) -> RunFailed:
    """Return the error for a result of more bytes than are kept."""
    text = (
        f"the result has {size} bytes, and the limit is {max_bytes} (steps.max_result_bytes): let the call give back"
        " less, or in pages"
    )

    return RunFailed(FailedRun(subtype="invalid", text=text), text)


def bad(text: str) -> RunFailed:
    """Return the error for a result that cannot be used."""
    return RunFailed(FailedRun(subtype="bad_output", text=text), text)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))

    return value is None or type(value) in {bool, int, float, str}


def texts(value: object, what: str) -> Mapping[str, str]:
    """Return a table of texts and numbers as texts; raise RunFailed for anything else."""
    if not isinstance(value, Mapping):
        raise wrong_input(f"{what} must be a table, and is {json.dumps(value)[:80]}")

    return {str(name): as_text(one, f"{what}.{name}") for name, one in value.items()}


def as_text(value: object, what: str) -> str:
    """Return a text, a number or a truth as text; raise RunFailed for a list, a table or nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise wrong_input(f"{what} must be a text, and is {json.dumps(value)[:80]}: use |tojson or |string")


def wrong_input(text: str) -> RunFailed:
    """Return the error for an input that came out as something a tool cannot use."""
    return RunFailed(FailedRun(subtype="config", text=text), text)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")
