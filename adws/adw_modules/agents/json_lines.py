"""
Read what an agent writes when every line is one JSON object.

Nothing here raises, whatever the line: what cannot be read is counted, an event nobody knows is passed over, and a
field of the wrong type was not said. Texts come out as something that can be stored and shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from adws.adw_modules.agent import AgentReading, TokenUsage
from adws.adw_modules.json_value import JsonValue

#: A longer line is not read, in characters: what ends an agent's work says it in far fewer.
MAX_LINE = 1_000_000
#: Characters kept of what an agent says at its end, and shown of one event.
MAX_TEXT, MAX_SHOWN = 64_000, 200
#: Tools that are named of those an agent did not get.
MAX_DENIALS = 50
#: More tokens, or more dollars, than any work uses: a number beyond is no count.
MAX_COUNT, MAX_AMOUNT = 10**15, 1e9

#: What can be a conversation's id. One that starts with a dash would be read as an option.
_SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_NOT_STORABLE = re.compile(r"[\x00\ud800-\udfff]")
_NOT_SHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

Event = Mapping[str, JsonValue]


class JsonLines:
    """The reading of a stream of JSON lines; *events* has what to do with each type."""

    def __init__(self, events: Mapping[str, Callable[[Event], str]]) -> None:
        self._events = events
        self._reading = AgentReading()

    @property
    def reading(self) -> AgentReading:
        """What the lines so far say."""
        return self._reading

    def line(self, text: str) -> str:
        """Take in a line; return what to show of it."""
        if not text.strip():
            return ""
        event = parse(text)
        if event is None:
            self.note(bad_lines=self._reading.bad_lines + 1)
            return ""
        known = self._events.get(text_at(event, "type"))

        return "" if known is None else shown(known(event))

    def note(self, **changes: object) -> None:
        """Change what was read so far."""
        self._reading = replace(self._reading, **changes)  # type: ignore[arg-type]  # the caller names fields of AgentReading

    def refuse(self, tool: str) -> str:
        """Note that *tool* was not allowed; return what to show of it."""
        name = tool or "a tool without a name"
        self.note(denials=(*self._reading.denials, name)[:MAX_DENIALS])

        return f"not allowed: {name}"


def parse(text: str) -> Event | None:
    """Return the JSON object in *text*, None when there is none or it is too long to be read."""
    if len(text) > MAX_LINE:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None

    return value if isinstance(value, dict) else None


def value_at(event: JsonValue | Event, *path: str) -> JsonValue:
    """Return what stands at *path*, None when there is nothing."""
    found: object = event
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None

    return found  # type: ignore[return-value]  # what is inside a JsonValue is one


def text_at(event: JsonValue | Event, *path: str) -> str:
    """Return the text at *path*, "" when there is none."""
    found = value_at(event, *path)

    return storable(found) if isinstance(found, str) else ""


def object_at(event: JsonValue | Event, *path: str) -> Event:
    """Return the object at *path*, an empty one when there is none."""
    found = value_at(event, *path)

    return found if isinstance(found, dict) else {}


def list_at(event: JsonValue | Event, *path: str) -> Sequence[JsonValue]:
    """Return the list at *path*, an empty one when there is none."""
    found = value_at(event, *path)

    return found if isinstance(found, list) else ()


def count_at(event: JsonValue | Event, *path: str) -> int:
    """Return the count at *path*, 0 when there is none."""
    found = amount_at(event, *path)

    return 0 if found is None or found > MAX_COUNT else int(found)


def amount_at(event: JsonValue | Event, *path: str) -> float | None:
    """Return the number from 0 up at *path*, None when there is none."""
    found = value_at(event, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    # An int of any length compares with a float, but does not always become one.
    if not 0 <= found <= MAX_COUNT or not math.isfinite(found):
        return None

    return float(found)


def money_at(event: JsonValue | Event, *path: str) -> float | None:
    """Return the dollars at *path*, None when there are none."""
    found = amount_at(event, *path)

    return None if found is None or found > MAX_AMOUNT else found


def status_at(event: JsonValue | Event, *path: str) -> int | None:
    """Return the HTTP status at *path*, None when there is none."""
    found = count_at(event, *path)

    return found if 100 <= found <= 599 else None


def session_at(event: JsonValue | Event, *path: str) -> str:
    """Return the conversation's id at *path*, "" when there is none that can be used."""
    found = text_at(event, *path)

    return found if is_session(found) else ""


def is_session(text: str) -> bool:
    """Say whether *text* can be the id of a conversation: nothing that an argument could be mistaken for."""
    return _SESSION_ID.fullmatch(text) is not None


def added(parts: Sequence[TokenUsage]) -> TokenUsage:
    """Return the sum of *parts*."""
    return TokenUsage(
        input=sum(part.input for part in parts),
        output=sum(part.output for part in parts),
        cache_read=sum(part.cache_read for part in parts),
        cache_write=sum(part.cache_write for part in parts),
    )


def storable(text: str) -> str:
    """Return *text* so that a file and a database take it, cut to what is kept."""
    return _NOT_STORABLE.sub("\ufffd", text[:MAX_TEXT])


def shown(text: str, limit: int = MAX_SHOWN) -> str:
    """Return *text* as one short line that moves no cursor."""
    line = _NOT_SHOWABLE.sub(" ", storable(text)).strip()

    return line if len(line) <= limit else f"{line[: limit - 3]}..."
