"""
The bytes of a delivery as JSON, or why they are none.

Pure. What two readers could take for two things is refused: the same key twice, numbers that are none, text that is no
UTF-8. Depth is limited, so that nobody who walks the payload runs out of stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl

from adws.adw_modules.json_value import JsonObject, JsonValue

#: How deep objects and lists may stand in each other; real payloads stay below ten.
MAX_DEPTH = 64
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS = re.compile(r"[^\[\]{}]+")


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
    if _is_too_deep(text):
        raise Malformed(f"the payload is nested deeper than {MAX_DEPTH} levels")
    try:
        loaded: JsonValue = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except Malformed:
        raise
    except json.JSONDecodeError as exc:
        raise Malformed(f"the payload is no JSON: {exc.msg} at character {exc.pos}") from exc
    except ValueError as exc:  # a number of more digits than Python takes
        raise Malformed("the payload has a number that is too long") from exc

    return loaded


def _is_too_deep(text: str) -> bool:
    # An upper bound first: nearly every payload has few brackets that open, and those are counted fast.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKETS.sub("", _TEXT.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return True

    return False


def _object(pairs: Iterable[tuple[str, JsonValue]]) -> JsonObject:
    found: JsonObject = {}
    for name, value in pairs:
        if name in found:
            raise Malformed(f"the payload has the key {name[:80]!r} twice in one object")
        found[name] = value

    return found


def _no_number(name: str) -> JsonValue:
    raise Malformed(f"the payload has {name}, which is no number")
