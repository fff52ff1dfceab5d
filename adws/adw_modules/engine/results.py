"""
What a phase gives back, as its runner found it: checked, and turned into a report.

Pure. It fails closed: what cannot be read as one JSON object is a failed attempt, never an empty result.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.errors import FailedRun, RunFailed, UnsafePath
from adws.adw_modules.identifiers import OWN_SECRETS, JsonObject
from adws.adw_modules.phase import PhaseContext, RunReport
from adws.adw_modules.redaction.redactor import Redactor

#: Most bytes of a result.
MAX_RESULT_BYTES = 1 << 20


def parse_result(payload: bytes) -> JsonObject:
    """Return the JSON object in *payload*; raise RunFailed that says what is wrong with it."""
    if len(payload) > MAX_RESULT_BYTES:
        raise bad_result(f"it has {len(payload)} bytes, the limit is {MAX_RESULT_BYTES}")
    try:
        result = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise bad_result(f"it is not JSON ({exc})") from exc
    if not isinstance(result, dict):
        raise bad_result(f"it must be a JSON object, such as {{}}, and is {_kind(result)}")

    return result


def check_result(value: object) -> JsonObject:
    """Return what a Python function gave back when it is one JSON object; raise RunFailed when it is not."""
    if not isinstance(value, dict):
        raise bad_result(f"it must be a dict, a RunReport, a Suspended or None, and is {type(value).__name__}")
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise bad_result(f"it cannot be written as JSON ({exc})") from exc
    result = parse_result(text.encode())
    if result != value:
        raise bad_result("it would not come back from JSON as it is: use text keys, and lists, not tuples")

    return result


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


# What a phase's process is told in files and variables, and the result it writes: the same for commands and agents.
#
# The process gets few variables: those every program needs, those that are named for it, and what adw tells it. adw's
# own tokens are never among them, whoever names them.


#: Variables that a process gets when they are set, besides all that begin with LC_.
ALLOWED_VARIABLES = ("PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TMPDIR")


def environment(
    env: Mapping[str, str], names: Iterable[str], context: PhaseContext, *, own_secrets: frozenset[str] = OWN_SECRETS
) -> dict[str, str]:
    """Return the variables of *env* that a process may have, those of *names* among them, and those of the attempt."""
    wanted = {*ALLOWED_VARIABLES, *names}
    given = {name: value for name, value in env.items() if name in wanted or name.startswith("LC_")}
    allowed = {name: value for name, value in (given | dict(context.env)).items() if name not in own_secrets}

    return {**allowed, "PWD": str(context.cwd)}


def told(context: PhaseContext, files: AttemptFiles, *, redactor: Redactor) -> dict[str, str]:
    """Write down for a process what it works on, and return the variables that say where."""
    document = context.document
    issue: JsonObject = document.issue.model_dump(mode="json") if document.issue else {}
    about: JsonObject = {**issue, "number": document.issue_number, "repository": document.repository}

    return {
        "ADW_ID": document.adw_id,
        "ADW_ISSUE_NUMBER": "" if document.issue_number is None else str(document.issue_number),
        "ADW_PHASE": context.phase,
        "ADW_ATTEMPT": str(context.attempt_number),
        "ADW_RESULT_FILE": str(files.result),
        "ADW_ISSUE_FILE": str(files.write("issue.json", _clean(about, redactor))),
        "ADW_HINTS_FILE": str(files.write("hints.json", _clean(list(context.hints), redactor))),
    }


def read_result(files: AttemptFiles, *, redactor: Redactor) -> JsonObject:
    """Return what a process wrote to its result file, {} when it wrote none; raise RunFailed."""
    try:
        raw = files.read("result.json", max_bytes=MAX_RESULT_BYTES)
    except (TooLarge, UnsafePath, OSError) as exc:
        with contextlib.suppress(OSError):  # nobody reads it, and secrets may stand in it
            files.discard("result.json")
        raise bad_result(str(exc)) from exc
    if raw is None:
        return {}

    clean = redactor.scrub_bytes(raw)
    if clean != raw:
        files.write("result.json", clean)
    return parse_result(clean)


def clean_result(files: AttemptFiles, *, redactor: Redactor) -> None:
    """Take secrets out of the result of a process that was ended: nobody asks for it, and it stays on the disk."""
    with contextlib.suppress(RunFailed):
        read_result(files, redactor=redactor)


def _clean(value: object, redactor: Redactor) -> bytes:
    return redactor.scrub_bytes(json.dumps(value, ensure_ascii=False, indent=1).encode())
