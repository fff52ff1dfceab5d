"""
The only place that prints: text for people, one JSON document for programs.

Text shown on a terminal never carries control or bidirectional characters from a document, so an issue title cannot
move the cursor, recolour the screen or turn a line around. Plain aligned text, no library: views must start fast.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias, TypeVar, Union

import click

from adws.adw_modules import time_words, timestamps
from adws.adw_modules.errors import AdwError

#: What can be printed as JSON. Wider than JsonValue: what is only read may be any mapping or sequence.
Printable: TypeAlias = Union[bool, int, float, str, Sequence["Printable"], Mapping[str, "Printable"], None]  # noqa: UP007 - a quoted name cannot stand in `X | Y` at run time
_Command = TypeVar("_Command", bound=Callable[..., object])

#: What is said when a full disk or the like is behind the output.
NOT_WRITTEN = "could not write the output: {}"

#: Marks, embeddings, overrides and isolates that change the direction of text; they draw nothing themselves.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Line and paragraph separator: a terminal may break the line there.
_BREAKS = frozenset("\u2028\u2029")
#: Characters that may stand in JSON as they are, but not on a terminal or in UTF-8 (half of a surrogate pair).
_TO_ESCAPE = r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def json_option(command: _Command) -> _Command:
    """Give a command the `--json` switch, as its argument *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(command)


def emit(data: Printable, text: str | Iterable[str], *, as_json: bool) -> None:
    """Print *data* as JSON, or *text* (a text or its lines) cleaned for a terminal."""
    if as_json:
        text = json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True)
        _write(re.sub(_TO_ESCAPE, lambda found: f"\\u{ord(found[0]):04x}", text))
        return
    lines = text.split("\n") if isinstance(text, str) else text

    _write("\n".join(clean(line) for line in lines))


def emit_line(data: Printable, text: str, *, as_json: bool) -> None:
    """Print one of many as they come: JSON in one line, or *text*; each reaches the reader at once."""
    _write(json.dumps(data, sort_keys=True) if as_json else clean(text))


def emit_script(text: str) -> None:
    """Print a text that a program reads, as it is."""
    _write(text)


def emit_page(page: str) -> None:
    """Print a page for a browser, as it is."""
    _write(page)


def say(message: str) -> None:
    """Tell the person something on stderr, where it does not mix with the output."""
    click.echo(clean(message), err=True)


def fail(message: str) -> None:
    """Print why the command failed, as one line on stderr."""
    say(f"adw: {' '.join(message.split())}")


def clean(text: str) -> str:
    """Return *text* without control (C0, C1) and bidirectional characters; tabs and line ends become spaces."""
    if text.isascii() and text.isprintable():
        return text

    return "".join(_shown(char) for char in text)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are aligned with spaces."""
    cells = [[clean(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(headers))]

    return ["  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return one aligned line for each name and value; pairs without a value are left out."""
    known = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in known), default=0)

    return [f"{name:<{width}}  {value}" for name, value in known]


def moment(text: str, now: datetime) -> str:
    """
    Return a timestamp of a document as UTC and its age, such as `2026-01-31 09:00:00 UTC (5 min ago)`.

    The one that stands for an unknown moment is `unknown`.
    """
    if text == timestamps.UNKNOWN_MOMENT:
        return "unknown"
    try:
        then = timestamps.parse(text)
    except ValueError:
        return text  # written by another tool: show what it says

    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({time_words.age((now - then).total_seconds())})"


def shorten(text: str, width: int) -> str:
    """Return *text* cut to *width* characters, the cut shown as three dots."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def silence() -> None:
    """Send what is still buffered nowhere: the reader is gone, and the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _write(text: str) -> None:
    """Print *text*; a full disk behind a redirection is an expected failure, a closed pipe is left to `main`."""
    try:
        click.echo(text.encode())
    except BrokenPipeError:
        raise
    except OSError as exc:
        silence()
        raise AdwError(NOT_WRITTEN.format(exc.strerror or exc)) from exc


def _shown(char: str) -> str:
    """Return what stands on the screen for *char*."""
    if char in "\t\n\r" or char in _BREAKS:
        return " "
    if char in _BIDI or unicodedata.category(char) in {"Cc", "Cs"}:
        return ""

    return char


def _width(text: str) -> int:
    """Return how many columns *text* takes on a terminal."""
    if text.isascii():
        return len(text)

    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0

    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
