"""
Say on which line each key of a TOML text stands.

The standard library's parser keeps no positions. This reads only texts which that parser has accepted, so it needs to
know where keys and values begin and end, and nothing about what they mean. It runs when somebody asks for a line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TypeAlias

#: The way to a value: names of keys, and the index of an element of an array.
KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: The long forms first. A long text may end in quotes of its own: the last three of a row close it.
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
#: A number, a date or a word; a date and its time may be separated by a space.
_PLAIN = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> Mapping[KeyPath, int]:
    """Return the line of every key and element of *text*, which must be TOML; a table has that of its first mention."""
    return _Reader(text).read()


class _Reader:
    """Goes through the text once, from key to key."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted_to = 1, 0
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}  #: array of tables -> how many it has so far

    def read(self) -> Mapping[KeyPath, int]:
        """Return the line of each path."""
        table: KeyPath = ()
        while self._skip_blank() < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._entry(table)

        return self._lines

    def _header(self) -> KeyPath:
        """Read `[table]` or `[[array of tables]]` and return the table that begins there."""
        width = 2 if self._text.startswith("[[", self._at) else 1
        self._at += width
        keys = self._key()
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._inside((*path, key))
        path = (*path, keys[-1])
        self._note(path)
        self._at += width
        if width == 1:
            return path
        self._elements[path] = self._elements.get(path, 0) + 1

        return self._inside(path)

    def _inside(self, path: KeyPath) -> KeyPath:
        """Return the table that *path* stands for: of an array of tables, its last element."""
        self._note(path)
        if path in self._elements:
            path = (*path, self._elements[path] - 1)
            self._note(path)

        return path

    def _entry(self, table: KeyPath) -> None:
        """Read `key = value`."""
        path = table
        for key in self._key():
            path = (*path, key)
            self._note(path)
        self._at += len("=")
        self._skip_blank()
        self._value(path)

    def _key(self) -> list[str]:
        """Read a dotted key and return its parts."""
        parts = []
        while True:
            self._skip_blank()
            parts.append(self._key_part())
            self._skip_blank()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += len(".")

    def _key_part(self) -> str:
        if self._text[self._at] not in "\"'":
            return self._take(_BARE_KEY)
        written = self._take(_TEXT)

        # The parser of the standard library knows the escapes.
        return next(iter(tomllib.loads(f"{written} = 0")))

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._take(_TEXT if first in "\"'" else _PLAIN)

    def _array(self, path: KeyPath) -> None:
        self._at += len("[")
        index = 0
        while self._text[self._skip_blank()] != "]":
            element = (*path, index)
            self._note(element)
            self._value(element)
            index += 1
        self._at += len("]")

    def _inline_table(self, path: KeyPath) -> None:
        self._at += len("{")
        while self._text[self._skip_blank()] != "}":
            self._entry(path)
        self._at += len("}")

    def _skip_blank(self) -> int:
        """Go on to what is not space, comma or comment, and return where that is."""
        self._take(_BLANK)

        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"line {self._line} of the text is not TOML")
        self._at = found.end()

        return found[0]

    def _note(self, path: KeyPath) -> None:
        """Write down that *path* stands here, unless it was mentioned before."""
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self._lines.setdefault(path, self._line)
