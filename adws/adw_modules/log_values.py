"""
Turn whatever a caller wants to log into plain JSON.

Pure, and never raises: a log line must not be the reason why a workflow fails. Sizes are bounded, so a value that holds
half the memory makes a short line with a note in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from enum import Enum
from pathlib import PurePath

from adws.adw_modules import timestamps
from adws.adw_modules.json_value import JsonValue

#: Characters of one text, items of one value in all, and levels that are kept.
MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 65_536, 5_000, 32
#: Larger numbers are named by their size: Python refuses to write them out.
MAX_BITS = 2_048


def to_plain(value: object) -> JsonValue:
    """Return *value* as JSON that can always be written; what has no form of its own becomes text."""
    return _Converter().convert(value, inside=())


def fields_to_plain(fields: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return named values as JSON, each of them as `to_plain` returns it."""
    convert = _Converter().convert

    return {cut(name) if type(name) is str else say(name): convert(value, inside=()) for name, value in fields.items()}


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return *text*, or its beginning and a note of how much is missing."""
    if len(text) <= limit:
        return text

    return f"{text[:limit]}... [{len(text) - limit} characters cut]"


def say(value: object) -> str:
    """Return *value* as text, also when it does not want to be one."""
    try:
        return cut(str(value))
    except Exception as exc:  # noqa: BLE001 - a stranger's __str__ may raise anything, and logging never does
        return f"<{type(value).__name__}: no text, {type(exc).__name__}>"


class _Converter:
    """One conversion, which counts the items it has seen."""

    def __init__(self) -> None:
        self._items_left = MAX_ITEMS

    def convert(self, value: object, *, inside: tuple[int, ...]) -> JsonValue:
        """Return *value* as JSON; *inside* has the containers around it."""
        if value is None or isinstance(value, bool):
            return value
        if type(value) is str:  # most values are plain texts and numbers: those are asked nothing else
            return cut(value)
        if type(value) is int:
            return _number(value)
        if isinstance(value, Enum):
            return self.convert(value.value, inside=inside)
        if isinstance(value, str):
            return cut(str(value))
        if isinstance(value, int | float):
            return _number(value)

        try:
            return self._convert_object(value, inside)
        except Exception:  # noqa: BLE001 - a stranger's properties and iterators may raise anything
            return say(value)

    def _convert_object(self, value: object, inside: tuple[int, ...]) -> JsonValue:
        text = None if type(value) is dict else _text_of(value)
        if text is not None:
            return text
        if id(value) in inside:
            return "[cycle]"
        if len(inside) >= MAX_DEPTH:
            return "[too deep]"

        inside = (*inside, id(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return self._convert_mapping(value, inside)
        if isinstance(value, AbstractSet):
            return self._convert_items(sorted(value, key=say), inside)
        if isinstance(value, list | tuple):
            return self._convert_items(list(value), inside)
        return say(value)

    def _convert_mapping(self, value: Mapping[object, object], inside: tuple[int, ...]) -> JsonValue:
        result: dict[str, JsonValue] = {}
        for key, item in value.items():
            if not self._may_take():
                result["[cut]"] = f"{len(value) - len(result)} more"
                break
            name = cut(key) if type(key) is str else say(key.value if isinstance(key, Enum) else key)
            while name in result:  # 1 and "1" are two keys here and one in JSON
                name += "'"
            result[name] = self.convert(item, inside=inside)

        return result

    def _convert_items(self, value: list[object], inside: tuple[int, ...]) -> JsonValue:
        result: list[JsonValue] = []
        for item in value:
            if not self._may_take():
                result.append(f"[cut: {len(value) - len(result)} more]")
                break
            result.append(self.convert(item, inside=inside))

        return result

    def _may_take(self) -> bool:
        self._items_left -= 1

        return self._items_left >= 0


def _number(value: float) -> JsonValue:
    """Return a number JSON knows; NaN, infinity and giant numbers become words."""
    if isinstance(value, int):
        return int(value) if value.bit_length() <= MAX_BITS else f"[number of {value.bit_length()} bits]"

    return float(value) if math.isfinite(value) else str(float(value))


def _text_of(value: object) -> str | None:
    """Return the text of values that have one obvious spelling, None for all others."""
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else timestamps.to_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return cut(bytes(value[:MAX_TEXT]).decode("utf-8", "backslashreplace"))
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {say(value)}"

    return None
