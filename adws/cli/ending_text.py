"""
How a command that worked on a workflow ends: what it tells programs, what it tells people, and its exit code.

Pure. Reads the plain JSON of a document, so that it says the same whoever did the work: this command or a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from adws.adw_modules.explanation import advice_of
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.cli import output
from adws.cli.looking import waiting_phase

EXIT_DONE, EXIT_STOPPED, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 130, 143


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How it stands when the command ends."""

    data: JsonObject  #: the document
    message: str = ""  #: what was said about the run, for a workflow that is not over
    has_worker: bool = False  #: somebody else works on it
    signal_exit: int | None = None  #: exit code of the signal that ended this command

    @property
    def state(self) -> str:
        """The state of the workflow."""
        return _text(self.data, "current_state")


def exit_code(end: Ending) -> int:
    """Return 0 when it is completed or waits for approval; else the signal's code, or 1."""
    if end.state == "completed" or waiting_phase(end.data):
        return EXIT_DONE
    if end.signal_exit is not None and end.state not in ("failed", "abandoned", "rolled_back"):
        return end.signal_exit

    return EXIT_STOPPED


def told(end: Ending) -> dict[str, output.Printable]:
    """Return the ending for programs; every key is always there."""
    phase = _failed_phase(end.data)

    return {
        "adw_id": _text(end.data, "adw_id"),
        "state": end.state,
        "phase": waiting_phase(end.data) or _text(phase, "name") or None,
        "reason": _reason(end) or None,
        "message": _text(phase, "last_failure_reason") or end.message or None,
        "advice": advice_of(phase, _text(end.data, "adw_id")) or None,
        "warnings": _warnings(end.data),
        "next": list(_next(end)),
    }


def lines(end: Ending) -> list[str]:
    """Return the ending for people."""
    phase = _failed_phase(end.data)
    more = [advice_of(phase, _text(end.data, "adw_id"))] if phase else []
    more += [f"warning: {warning}" for warning in _warnings(end.data)]
    following = _next(end)
    if following:
        more.append(f"next: {', or '.join(following)}")

    return [_first(end, phase), *(line for line in more if line)]


def _first(end: Ending, phase: JsonObject) -> str:
    name = f"workflow {_text(end.data, 'adw_id')}"
    if waiting := waiting_phase(end.data):
        return f"{name} waits for approval of {waiting}"
    if end.state == "failed":
        message = _text(phase, "last_failure_reason")
        return (
            f"{name} failed in {_text(phase, 'name') or _text(end.data, 'failed_phase') or 'a phase'}"
            f"{f' ({reason})' if (reason := _reason(end)) else ''}{f': {message}' if message else ''}"
        )
    if end.state in ("completed", "abandoned", "rolled_back"):
        return f"{name} is {end.state.replace('_', ' ')}"
    if end.state == "paused":
        return f"{name} is paused{f': {reason}' if (reason := _reason(end)) else ''}"
    if end.has_worker:
        return f"{name} is {end.state}, and a worker goes on with it"
    said = f" ({end.message})" if end.message else ""

    return f"{name} is {end.state} and waits for a worker{said}"


def _next(end: Ending) -> tuple[str, ...]:
    adw_id = _text(end.data, "adw_id")
    if waiting_phase(end.data):
        return f"adw approve {adw_id}", f"adw reject {adw_id} -m TEXT"
    if end.state == "failed":
        return f"adw logs {adw_id}", f"adw explain {adw_id}"
    if end.state == "paused":
        return (f"adw resume {adw_id}",)
    if end.state in ("completed", "abandoned", "rolled_back"):
        return ()

    return (f"adw status {adw_id}", f"adw pause {adw_id}") if end.has_worker else (f"adw resume {adw_id}", "adw worker")


def _reason(end: Ending) -> str:
    if end.state == "paused":
        return _text(end.data, "pause_reason")

    return _text(end.data, "terminal_reason") if end.state == "failed" else ""


# --- plain JSON, taken as it comes ------------------------------------------------------------------------------


def _failed_phase(data: JsonObject) -> JsonObject:
    """Return the phase that the workflow failed in: the first required one, as the work does not go past it."""
    if data.get("current_state") != "failed":
        return {}
    failed = [phase for phase in _phases(data) if phase.get("status") == "failed"]
    # A phase that is not required may have failed before, and the workflow went on.
    return failed[-1] if failed else {}


def _phases(data: JsonObject) -> list[JsonObject]:
    phases = data.get("phases")

    return [phase for phase in phases if isinstance(phase, dict)] if isinstance(phases, list) else []


def _warnings(data: JsonObject) -> list[str]:
    warnings = data.get("warnings")

    return [str(warning) for warning in warnings] if isinstance(warnings, list) else []


def _text(data: JsonObject, key: str) -> str:
    value: JsonValue = data.get(key)

    return value if isinstance(value, str) else ""
