"""
What a phase gives back, as its runner found it: checked, and turned into a report.

Pure. It fails closed: what cannot be read as one JSON object is a failed attempt, never an empty result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from adws.adw_modules.errors import RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.outcome import RunReport

#: Most bytes of a result.
MAX_RESULT_BYTES = 1 << 20


def parse_result(payload: bytes) -> JsonObject:
    """Return the JSON object in *payload*; raise RunFailed that says what is wrong with it."""
    if len(payload) > MAX_RESULT_BYTES:
        raise bad_result(f"it has {len(payload)} bytes, the limit is {MAX_RESULT_BYTES}")
    try:
        found = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise bad_result(f"it is not JSON ({exc})") from exc
    if not isinstance(found, dict):
        raise bad_result(f"it must be a JSON object, such as {{}}, and is {_kind(found)}")

    return found


def check_result(value: object) -> JsonObject:
    """Return what a Python function gave back when it is one JSON object; raise RunFailed when it is not."""
    if not isinstance(value, dict):
        raise bad_result(f"it must be a dict, a RunReport, a Suspended or None, and is {type(value).__name__}")
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise bad_result(f"it cannot be written as JSON ({exc})") from exc
    found = parse_result(text.encode())
    if found != value:
        raise bad_result("it would not come back from JSON as it is: use text keys, and lists, not tuples")

    return found


def report_of(result: JsonObject, *, summary: str = "", exit_code: int | None = None) -> RunReport:
    """Return the report of a success with *result*; its `rework`, `summary` and `cost_usd` are taken over."""
    said = _get(result, "summary", str, "a text")
    rework = _get(result, "rework", bool, "true or false")

    return RunReport(
        ok=True,
        summary=(said.strip().splitlines() or [summary])[0] if isinstance(said, str) else summary,
        result=result,
        wants_rework=rework is True,
        exit_code=exit_code,
        cost_usd=cost_of(result),
    )


def cost_of(result: Mapping[str, object]) -> float | None:
    """Return what a result says that it cost, None when it does not say; raise RunFailed when that is no amount."""
    cost = result.get("cost_usd")
    if cost is None:
        return None
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf:
        raise bad_result(f"cost_usd must be a number from 0 up, and is {str(cost)[:60]!r}")

    return float(cost)


def bad_result(why: str) -> RunFailed:
    """Return the error for a result that cannot be used."""
    message = f"the result of the phase cannot be used: {why}"

    return RunFailed(FailedRun(subtype="bad_output", text=message), message)


def _get(result: Mapping[str, object], name: str, kind: type, rule: str) -> object:
    value = result.get(name)
    if value is not None and not isinstance(value, kind):
        raise bad_result(f"{name} must be {rule}, and is {_kind(value)}")

    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

    return names.get(type(value), "a number")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
