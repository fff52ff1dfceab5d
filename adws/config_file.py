"""
Read `adw.toml`: the settings in it, its other tables, and the line on which each thing stands.

A file that cannot be used whole is refused whole: not a regular file, not UTF-8, not TOML.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.spelling import meant

if TYPE_CHECKING:
    from adws.config_lines import KeyPath

_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)"
_SENSITIVE = r"(?i)token|secret|password|_pat\b"


class SettingsFile:
    """A home's `adw.toml`; an absent file is like an empty one."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        self._text = text
        self._tables = _parse(path, text) if text else {}

    @classmethod
    def read(cls, path: Path) -> SettingsFile:
        """Return the file at *path*; raise ConfigError when it is there and cannot be read."""
        try:
            # Some editors put a byte order mark in front; it is no part of the text.
            return cls(path, _content(path).decode("utf-8-sig"))
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as exc:
            line = exc.object[: exc.start].count(b"\n") + 1
            raise ConfigError(f"{path}:{line}: this is not UTF-8 text") from exc
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    def has(self, key: str) -> bool:
        """Say whether the file sets *key*, written with dots."""
        return self._at(key.split(".")) is not None

    def text(self, key: str) -> str:
        """Return the value of *key* as a user would write it in a variable; empty if it has no such spelling."""
        value = self._at(key.split("."))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return ", ".join(value)

        return str(value) if isinstance(value, str | int | float) else ""

    def where(self, key: str) -> str:
        """Return the place of *key* as `adw.toml:LINE`, with the file's whole path in front."""
        return f"{self.path}:{self.line_of(*key.split('.'))}"

    def unknown(self, settings: Collection[str], sections: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each key that is neither one of *settings* nor in one of *sections*."""
        tables = {key.rpartition(".")[0] for key in settings}
        for path in _leaves(self._tables):
            key = _written(path)
            if key in settings or (key in tables and self._at(path) == {}):
                continue
            section = next((name for name in sections if _begins(path, name)), "")
            if section and self.table(section) is not None:
                continue
            place = f"{self.path}:{self.line_of(*path)}"
            if section:
                yield f"{place}: {section} must be a table, such as [{section}{'' if '.' in section else '.NAME'}]"
            else:
                yield f"{place}: {key} is not a setting of adw{_advice(key, {*settings, *sections})}"

    def section(self, name: str) -> ConfigSection:
        """Return the table *name*, as it is."""
        return ConfigSection(name, self)

    def table(self, name: str) -> Mapping[str, object] | None:
        """Return the table *name*, written with dots, None when the file has none."""
        value = self._at(name.split("."))

        return value if isinstance(value, dict) else None

    def line_of(self, *keys: str | int) -> int | None:
        """Return the line of the value with this path, or of the innermost table around it that is there."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self._lines:
                return self._lines[keys[:end]]

        return None

    def _at(self, path: Sequence[str]) -> object:
        found: object = self._tables
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None

        return found

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        from adws.config_lines import lines_of  # noqa: PLC0415 - few starts of adw need a line

        return lines_of(self._text)


class ConfigSection:
    """
    A table of `adw.toml` whose content belongs to somebody else than the settings, such as `[workflows.NAME]`.

    The keys given to `line_of` and `where` are those that lead into *data*: the line of
    `section.data["mine"]["phases"][2]["runner"]` is `section.line_of("mine", "phases", 2, "runner")`.
    """

    def __init__(self, name: str, file: SettingsFile) -> None:
        self.name = name
        self._file = file

    @property
    def data(self) -> Mapping[str, object]:
        """The content as it was parsed: dicts, lists, texts, numbers, dates; empty when the file has no such table."""
        return self._file.table(self.name) or {}

    @property
    def path(self) -> Path | None:
        """The file that has this table, None when there is none."""
        return None if self._file.table(self.name) is None else self._file.path

    def line_of(self, *keys: str | int) -> int | None:
        """
        Return the line on which *keys* lead to something; of a multi-line value it is the one with its key.

        What is not there has the line of the innermost table around it, so that an error about a missing key can name
        a place too. None when the file has no such table at all.
        """
        return self._file.line_of(*self.name.split("."), *keys)

    def where(self, *keys: str | int) -> str:
        """Return the place of *keys* for the beginning of an error, as `PATH:LINE`."""
        return f"{self._file.path}:{self.line_of(*keys)}" if self.path else str(self._file.path)


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file; opening a pipe could block for ever, and a device may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is not a regular file: put the settings in one, or remove it")

    return path.read_bytes()


def _advice(key: str, known: Collection[str]) -> str:
    if re.search(_SENSITIVE, key):
        return ": secrets are given by environment variables only, so that they are never committed"

    return meant(key, known) or "; docs/settings.md lists them all"


def _parse(path: Path, text: str) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - only homes with an adw.toml pay for the parser

    try:
        return tomllib.loads(text)
    except RecursionError as exc:
        raise ConfigError(f"{path}: arrays or tables are nested too deeply in it") from exc
    except tomllib.TOMLDecodeError as exc:
        place = re.search(_PLACE, str(exc))
        line = place[1] if place and place[1] else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: this is not TOML: {re.sub(_PLACE, '', str(exc))}") from exc


def _written(path: Sequence[str]) -> str:
    """Return *path* as it stands in the file: a name that is no bare key in quotes."""
    return ".".join(name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name) for name in path)


def _begins(path: Sequence[str], name: str) -> bool:
    """Say whether *path* leads to the table *name*, written with dots, or into it."""
    names = name.split(".")

    return list(path[: len(names)]) == names


def _leaves(table: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of everything in *table* that is no table; an empty table is a leaf too."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)
