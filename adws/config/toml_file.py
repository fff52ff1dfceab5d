"""
`adw.toml`: its settings, its other tables, the line of each key, and how values are written.

A file that is not usable as a whole is refused: not a regular file, not UTF-8, not TOML.
"""

from __future__ import annotations

import json
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.identifiers import meant

#: The path to a value: names of keys, and indexes of array elements.
KeyPath: TypeAlias = tuple[str | int, ...]

_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)"
_SENSITIVE = r"(?i)token|secret|password|_pat\b"


class SettingsFile:
    """A home's `adw.toml`; a missing file counts as empty."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        self._text = text
        self._tables = _parse(path, text) if text else {}

    @classmethod
    def read(cls, path: Path) -> SettingsFile:
        """Return the file at *path*; raise ConfigError if it exists and cannot be read."""
        try:
            # Opening a pipe could block for ever, and a device may never end.
            if not stat.S_ISREG(path.stat().st_mode):
                raise ConfigError(f"{path} is not a regular file: put the settings in one, or remove it")
            # utf-8-sig drops the byte order mark that some editors write.
            return cls(path, path.read_bytes().decode("utf-8-sig"))
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as exc:
            line = exc.object[: exc.start].count(b"\n") + 1
            raise ConfigError(f"{path}:{line}: this is not UTF-8 text") from exc
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    def value(self, *keys: str) -> object:
        """Return the value at *keys*, or None."""
        value: object = self._tables
        for name in keys:
            value = value.get(name) if isinstance(value, dict) else None

        return value

    def table(self, name: str) -> Mapping[str, object]:
        """Return the table with the dotted name *name*, or an empty one."""
        value = self.value(*name.split("."))

        return value if isinstance(value, dict) else {}

    def text(self, key: str) -> str:
        """Return the value of *key* as a user would write it in a variable, or "" if that is impossible."""
        value = self.value(*key.split("."))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return ", ".join(value)

        return str(value) if isinstance(value, str | int | float) else ""

    def line_of(self, *keys: str | int) -> int | None:
        """Return the line of the value at *keys*, or of the innermost existing table around it, or None."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self._lines:
                return self._lines[keys[:end]]

        return None

    def where(self, key: str) -> str:
        """Return the place of *key* as `PATH:LINE`, with the file's whole path."""
        return f"{self.path}:{self.line_of(*key.split('.'))}"

    def unknown(self, settings: Collection[str], sections: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each key that is neither one of *settings* nor in one of *sections*."""
        tables = {key.rpartition(".")[0] for key in settings}
        for path in _leaves(self._tables):
            # Written as in the file: a name that is not a bare key is quoted.
            key = ".".join(name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name) for name in path)
            if key in settings or (key in tables and self.value(*path) == {}):
                continue
            section = next((name for name in sections if name.split(".") == [*path[: name.count(".") + 1]]), "")
            if section and isinstance(self.value(*section.split(".")), dict):
                continue
            place = f"{self.path}:{self.line_of(*path)}"
            if section:
                yield f"{place}: {section} must be a table, such as [{section}{'' if '.' in section else '.NAME'}]"
            elif re.search(_SENSITIVE, key):
                why = ": secrets are given by environment variables only, so that they are never committed"
                yield f"{place}: {key} is not a setting of adw{why}"
            else:
                why = meant(key, {*settings, *sections}) or "; docs/settings.md lists them all"
                yield f"{place}: {key} is not a setting of adw{why}"

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        return lines_of(self._text)


class ConfigSection:
    """
    A table of `adw.toml` that does not consist of settings, such as `[workflows.NAME]`.

    The keys given to `line_of` and `where` are relative to *data*: the line of
    `section.data["mine"]["phases"][2]["runner"]` is `section.line_of("mine", "phases", 2, "runner")`.
    """

    def __init__(self, name: str, file: SettingsFile) -> None:
        self.name = name
        self._file = file

    @property
    def data(self) -> Mapping[str, object]:
        """The parsed content: dicts, lists, texts, numbers, dates; empty if the file has no such table."""
        return self._file.table(self.name)

    @property
    def path(self) -> Path | None:
        """The file that has this table, or None."""
        return self._file.path if isinstance(self._file.value(*self.name.split(".")), dict) else None

    def line_of(self, *keys: str | int) -> int | None:
        """
        Return the line of the value at *keys*; for a multi-line value it is the line of its key.

        For a missing value it is the line of the innermost table around it, so that an error about a missing key has a
        place too. None if the file has no such table at all.
        """
        return self._file.line_of(*self.name.split("."), *keys)

    def where(self, *keys: str | int) -> str:
        """Return the place of *keys* as `PATH:LINE`, for the beginning of an error."""
        return f"{self._file.path}:{self.line_of(*keys)}" if self.path else str(self._file.path)


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as exc:
        raise ConfigError(f"{path}: arrays or tables are nested too deeply in it") from exc
    except tomllib.TOMLDecodeError as exc:
        place = re.search(_PLACE, str(exc))
        line = place[1] if place and place[1] else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: this is not TOML: {re.sub(_PLACE, '', str(exc))}") from exc


def _leaves(table: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every value in *table* that is not a table, and of every empty table."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


# --- the line of each key in a TOML text -----------------------------------------------------------------------
#
# The parser of the standard library keeps no positions. This reader runs only when a line is wanted, on texts which
# that parser accepted, so it has to find where keys and values begin and end but not what they mean.


_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: The long forms come first. A long text may end in quotes of its own: the last three in a row close it.
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
#: A number, a date or a word; a date and its time may be separated by a space.
_PLAIN = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> Mapping[KeyPath, int]:
    """Return the line of every key and element of *text*, which must be TOML; for a table, of its first mention."""
    return _Reader(text).read()


class _Reader:
    """Reads the text once, from key to key."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted_to = 1, 0
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}  #: array of tables -> number of its elements so far

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
        """Return the table at *path*, or the last element if it is an array of tables."""
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
        parts: list[str] = []
        while True:
            self._skip_blank()
            if self._text[self._at] in "\"'":
                # The parser of the standard library resolves the escapes.
                parts += tomllib.loads(f"{self._take(_TEXT)} = 0")
            else:
                parts.append(self._take(_BARE_KEY))
            self._skip_blank()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += len(".")

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first not in "[{":
            self._take(_TEXT if first in "\"'" else _PLAIN)
            return
        self._at += 1
        index = 0
        while self._text[self._skip_blank()] not in "]}":
            if first == "{":
                self._entry(path)
                continue
            self._note((*path, index))
            self._value((*path, index))
            index += 1
        self._at += 1

    def _skip_blank(self) -> int:
        """Skip space, commas and comments, and return the new position."""
        self._take(_BLANK)

        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"line {self._line} of the text is not TOML")
        self._at = match.end()

        return match[0]

    def _note(self, path: KeyPath) -> None:
        """Record the current line for *path*, unless it was mentioned before."""
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self._lines.setdefault(path, self._line)


# --- writing values --------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return *text* as a TOML string."""
    # JSON escapes what TOML requires, except DEL; a lone surrogate cannot be written and is replaced.
    whole = text.encode("utf-8", "replace").decode()

    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(texts: Iterable[str]) -> str:
    """Return *texts* as a TOML array in one line."""
    return f"[{', '.join(quoted(text) for text in texts)}]"
