"""
The bytes of a delivery as JSON, or why they are none.

Pure. What two readers could take for two things is refused: the same key twice, numbers that are none, text that is no
UTF-8. Depth is limited, so that nobody who walks the payload runs out of stack.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from urllib.parse import parse_qsl

from adws.adw_modules.json_value import JsonObject, JsonValue

#: How deep objects and lists may stand in each other; real payloads stay below ten.
MAX_DEPTH = 64
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

_CONTAINERS = (dict, list)
_TOO_DEEP = f"the payload is nested deeper than {MAX_DEPTH} levels"


class Malformed(ValueError):
    """The payload cannot be read."""


def parse(content_type: str, body: bytes) -> JsonObject:
    """Return the payload; raise Malformed with one sentence when there is none."""
    text = _decoded(body)
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM_TYPE:
        text = _field(text)
    elif kind not in {JSON_TYPE, ""}:
        raise Malformed(f"the content type is {kind[:80]!r}: set the hook to {JSON_TYPE}")
    payload = _loaded(text)
    if not isinstance(payload, dict):
        raise Malformed("the payload is no JSON object")

    return payload


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise Malformed(f"the payload is not UTF-8: byte {exc.start} cannot be read") from exc


def _field(text: str) -> str:
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=16, errors="strict")
    except ValueError as exc:
        raise Malformed("the form cannot be read") from exc
    found = [value for name, value in fields if name == "payload"]
    if len(found) != 1:
        raise Malformed(f"the form has {len(found)} fields named payload, not one")

    return found[0]


def _loaded(text: str) -> JsonValue:
    try:
        loaded: JsonValue = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except Malformed:
        raise
    except json.JSONDecodeError as exc:
        raise Malformed(f"the payload is no JSON: {exc.msg} at character {exc.pos}") from exc
    except ValueError as exc:  # a number of more digits than Python takes
        raise Malformed("the payload has a number that is too long") from exc
    except RecursionError as exc:
        raise Malformed(_TOO_DEEP) from exc
    # With fewer brackets than levels it cannot be, and then it need not be walked through.
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_too_deep(loaded):
        raise Malformed(_TOO_DEEP)

    return loaded


def _is_too_deep(value: JsonValue) -> bool:
    level = _inside([value])
    for _ in range(MAX_DEPTH):
        level = _inside(inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        if not level:
            return False

    return True


def _inside(values: Iterable[JsonValue]) -> list[JsonObject | list[JsonValue]]:
    return [value for value in values if isinstance(value, _CONTAINERS)]


def _object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(name for name, _ in pairs)
    twice = next(name for name, count in counts.items() if count > 1)

    raise Malformed(f"the payload has the key {twice[:80]!r} twice in one object")


def _no_number(name: str) -> JsonValue:
    raise Malformed(f"the payload has {name}, which is no number")
