r"""
A log record as people read it on a terminal.

Pure. Nothing that a value holds can move the cursor, change colours, turn the direction of writing or fake another
line: such characters are taken out, and a line break inside a value is shown as `\n`.
"""

from __future__ import annotations

import json
import re

from adws.adw_modules.json_value import JsonObject, JsonValue

_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_CODES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]{0,512}+(?:\x07|\x1b\\)|[@-Z\\-_])")
#: C0, C1, direction marks, invisible characters, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_BARE = re.compile(r"[^\s\"'=]+")


def printable(text: str) -> str:
    """Return *text* on one line, without what a terminal would obey."""
    plain = _CODES.sub("", text).replace("\r\n", "\\n").replace("\n", "\\n").replace("\t", " ")

    return _UNSAFE.sub("", plain)


def to_text(entry: JsonObject, *, colour: bool) -> str:
    """Return the entry of a record as a line, with the traceback, if there is one, indented below."""
    fields = dict(entry)
    moment, adw_id, phase, level, message = (
        printable(str(fields.pop(name))) for name in ("timestamp", "adw_id", "phase", "level", "message")
    )
    exception = fields.pop("exception", None)
    shown_level = f"{level:<8}"
    if colour and level in _COLOURS:
        shown_level = f"\x1b[{_COLOURS[level]}m{shown_level}\x1b[0m"
    parts = [moment, shown_level, adw_id or "-", phase or "-", message]
    parts += [f"{printable(name)}={_value(value)}" for name, value in fields.items()]
    lines = [" ".join(parts)]
    if isinstance(exception, dict):
        lines += [f"    {printable(line)}" for line in str(exception.get("traceback", "")).split("\n")]

    return "\n".join(lines)


def _value(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text)
    if isinstance(value, str) and _BARE.fullmatch(text) is None:
        return json.dumps(text, ensure_ascii=False)

    return text
