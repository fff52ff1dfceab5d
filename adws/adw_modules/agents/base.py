"""
Parse the output of an agent that writes one JSON object per line.

Nothing here raises, whatever the line: unreadable lines and unknown events are skipped, and a field of the wrong type
counts as missing. Texts are cleaned so that they can be stored and shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules.agent import AgentReading
from adws.adw_modules.errors import ConfigError, FailedRun, UsageError
from adws.adw_modules.identifiers import JsonValue, hint

if TYPE_CHECKING:
    from adws.adw_modules.agent import AgentProfile
    from adws.adw_modules.process.run import ProcessEnd


# The agents that adw can run: one module each, imported when its agent is used.
#
# A profile is pure: the agent's command line, the meaning of its output, the cause of its failure. Profiles are
# independent of each other.


#: The provider whose service each agent calls, the best supported agent first.
PROVIDERS: Mapping[str, str] = MappingProxyType(
    {"claude": "anthropic", "codex": "openai", "gemini": "google", "opencode": "opencode", "aider": "aider"}
)


def names() -> tuple[str, ...]:
    """Return the names of all agents, the best supported first."""
    return tuple(PROVIDERS)


def profile(name: str) -> AgentProfile:
    """Return the agent called *name*; raise ConfigError for one that does not exist."""
    if name not in PROVIDERS:
        raise ConfigError(f"there is no agent {name!r}{hint(name, names())}")
    value: AgentProfile = import_module(f"adws.adw_modules.agents.{name}").PROFILE

    return value


#: Longer lines are skipped, in characters: the event that ends an agent's work is far shorter.
MAX_LINE = 1_000_000
#: Characters kept of an agent's final text, and shown of one event.
MAX_TEXT, MAX_SHOWN = 64_000, 200
#: Most denied tools that are named.
MAX_DENIALS = 50
#: Larger numbers are not counts: no work uses as many tokens or dollars.
MAX_COUNT, MAX_AMOUNT = 10**15, 1e9

#: A valid conversation id. One with a leading dash would be read as an option.
_SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_NOT_STORABLE = re.compile(r"[\x00\ud800-\udfff]")
_NOT_SHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

#: Keys of a tool's input: the first one present describes the call.
_ABOUT = ("file_path", "filePath", "command", "pattern", "path", "url", "query", "description", "prompt")

Event = Mapping[str, JsonValue]


class JsonLines:
    """Parses a stream of JSON lines: an event of type `a.b` goes to the method `on_a_b`, if it exists."""

    def __init__(self) -> None:
        self._reading = AgentReading()

    @property
    def reading(self) -> AgentReading:
        """The result of the lines so far."""
        return self._reading

    def line(self, text: str) -> str:
        """Process a line; return the text to show."""
        event = parse(text)
        if event is None:
            return ""
        take: Callable[[Event], str] | None = getattr(self, f"on_{text_at(event, 'type').replace('.', '_')}", None)

        return "" if take is None else shown(take(event))

    def note(self, **changes: object) -> None:
        """Update the reading."""
        self._reading = replace(self._reading, **changes)  # type: ignore[arg-type]  # the caller names fields of AgentReading

    def refuse(self, tool: str) -> str:
        """Record that *tool* was denied; return the text to show."""
        name = tool or "a tool without a name"
        self.note(denials=(*self._reading.denials, name)[:MAX_DENIALS])

        return f"not allowed: {name}"


def parse(text: str) -> Event | None:
    """Return the JSON object in *text*, or None if it is anything else, or too long."""
    if len(text) > MAX_LINE:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None

    return value if isinstance(value, dict) else None


def value_at(event: JsonValue | Event, *path: str) -> JsonValue:
    """Return the value at *path*, or None if it is missing."""
    result: object = event
    for key in path:
        result = result.get(key) if isinstance(result, Mapping) else None

    return result  # type: ignore[return-value]  # a value inside a JsonValue is a JsonValue


def text_at(event: JsonValue | Event, *path: str) -> str:
    """Return the text at *path*, or ""."""
    result = value_at(event, *path)

    return storable(result) if isinstance(result, str) else ""


def object_at(event: JsonValue | Event, *path: str) -> Event:
    """Return the object at *path*, or an empty one."""
    result = value_at(event, *path)

    return result if isinstance(result, dict) else {}


def list_at(event: JsonValue | Event, *path: str) -> Sequence[JsonValue]:
    """Return the list at *path*, or an empty one."""
    result = value_at(event, *path)

    return result if isinstance(result, list) else ()


def count_at(event: JsonValue | Event, *path: str) -> int:
    """Return the count at *path*, or 0."""
    return int(amount_at(event, *path) or 0)


def amount_at(event: JsonValue | Event, *path: str, most: float = MAX_COUNT) -> float | None:
    """Return the number from 0 to *most* at *path*, or None."""
    result = value_at(event, *path)
    # An int of any size can be compared with a float, but not always converted to one.
    if isinstance(result, bool) or not isinstance(result, int | float) or not 0 <= result <= most:
        return None

    return float(result)


def money_at(event: JsonValue | Event, *path: str) -> float | None:
    """Return the dollars at *path*, or None."""
    return amount_at(event, *path, most=MAX_AMOUNT)


def status_at(event: JsonValue | Event, *path: str) -> int | None:
    """Return the HTTP status at *path*, or None."""
    result = count_at(event, *path)

    return result if 100 <= result <= 599 else None


def subject_of(given: JsonValue | Event) -> str:
    """Return the subject of a tool call with the input *given*: the file, the command or the search pattern."""
    return next((text for key in _ABOUT if (text := text_at(given, key))), "")


def session_at(event: JsonValue | Event, *path: str) -> str:
    """Return the conversation id at *path*, or "" if it is missing or invalid."""
    result = text_at(event, *path)

    return result if is_session(result) else ""


def is_session(text: str) -> bool:
    """Say whether *text* is a valid conversation id, which no argument parser can mistake for something else."""
    return _SESSION_ID.fullmatch(text) is not None


def storable(text: str) -> str:
    """Return *text* in a form that files and databases accept, cut to the kept length."""
    return _NOT_STORABLE.sub("\ufffd", text[:MAX_TEXT])


def shown(text: str) -> str:
    """Return *text* as one short line without control characters."""
    line = _NOT_SHOWABLE.sub(" ", storable(text)).strip()

    return line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 3]}..."


# Decide from an agent's output and its exit whether it failed.
#
# No single sign is trusted: an agent that failed may exit with 0, and one that reports "success" may also report an
# error. The agent's own failure report is used first, then its exit code, and its text last.


#: Messages of agents that did nothing because of invalid arguments.
_BAD_CALL = re.compile(
    r"\b(?:unknown (?:option|argument|flag)s?|unrecognized arguments?|unexpected argument|invalid value"
    r"|not inside a trusted directory)\b",
    re.IGNORECASE,
)
#: The text for an agent that a person or a program interrupted: adw never sends SIGINT.
INTERRUPTED = "it was interrupted from outside (SIGINT)"
_SIGINT = 2

#: Characters kept of an agent's own name for its failure.
MAX_SUBTYPE = 100
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

#: Messages of agents about a conversation that they do not know (any more).
_UNKNOWN_SESSION = re.compile(
    r"\b(?:no (?:conversation|session|rollout|thread)s?(?: was)? found"
    r"|(?:session|conversation|thread)(?: [\w-]+)? (?:was )?not found"
    r"|(?:could not|cannot|failed to) (?:find|load|resume) (?:the )?(?:session|conversation|thread)"
    r"|error resuming session|(?:invalid|unknown) session (?:id|identifier)|session [\w-]+ does not exist)\b",
    re.IGNORECASE,
)


def failure(reading: AgentReading, end: ProcessEnd, *, tool: str) -> FailedRun | None:
    """
    Return why the agent failed, or None without a sign of failure.

    A denied tool is reported as `denied`; the caller checks whether the work was done anyway. An agent that reported
    its result but did not exit has not failed.
    """
    is_good = end.exit_code == 0 and end.signal is None and end.timed_out is None
    if reading.is_error or reading.subtype:
        return _failed(reading, end, tool, subtype=reading.subtype, text=reading.text)
    if not reading.has_result:
        subtype, said = "bad_output" if is_good else "", said_last(end)
        if not is_good and not reading.turns:
            # It failed before any work: its arguments may be invalid.
            is_invalid = _BAD_CALL.search(said) is not None
            subtype = "unknown_session" if is_unknown_session(said) else "invalid" if is_invalid else ""
        return _failed(reading, end, tool, subtype=subtype)
    if end.timed_out != "after_result" and not is_good:
        return _failed(reading, end, tool)
    if reading.denials:
        names = ", ".join(dict.fromkeys(reading.denials))
        return _failed(reading, end, tool, subtype="denied", text=f"it was not allowed to use: {names}")

    return None


def said_last(end: ProcessEnd) -> str:
    """Return the lines of the tail that are not events: events contain many words that are not about a failure."""
    lines = [line.strip() for line in _COLOURS.sub("", end.tail).splitlines()]
    # The tail may begin in the middle of an event.
    first = [line for line in lines[:1] if line.count("}") <= line.count("{")]

    return "\n".join(line for line in (*first, *lines[1:]) if line and not line.startswith("{"))


def is_unknown_session(text: str) -> bool:
    """Say whether *text* reports that the agent does not have the conversation it was to resume."""
    return _UNKNOWN_SESSION.search(text) is not None


def checked_session(session_id: str) -> str:
    """Return *session_id*; raise UsageError if it could be read as an option or as several arguments."""
    if not is_session(session_id):
        raise UsageError(f"{session_id!r} cannot be the id of an agent's conversation; use letters, digits, - and _")

    return session_id


def _failed(reading: AgentReading, end: ProcessEnd, tool: str, *, subtype: str = "", text: str = "") -> FailedRun:
    # An agent's answer is not a failure message: it may mention rate limits because it works on some.
    said = "it did not say that it was done" if not reading.has_result else "it did not end well after it was done"
    # The last output of an interrupted program, such as a traceback, is not about a failure.
    is_interrupted = end.signal == _SIGINT or end.exit_code == 128 + _SIGINT

    return FailedRun(
        exit_code=end.exit_code,
        signal=end.signal,
        timed_out=end.timed_out,
        text=text or (INTERRUPTED if is_interrupted else said_last(end) or said),
        subtype=subtype[:MAX_SUBTYPE],
        http_status=reading.http_status,
        retry_after_seconds=reading.retry_after_seconds,
        resets_at=reading.resets_at,
        tool=tool,
    )
