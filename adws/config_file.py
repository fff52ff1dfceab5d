"""
Read `adw.toml`, and say on which line something stands.

The standard library's parser keeps no line numbers, so a key's line is found when it is needed: it is the end of the
first part of the file that parses and has the key.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from adws.adw_modules.errors import ConfigError
from adws.config_values import nearest

_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)"
_SENSITIVE = r"(?i)token|secret|password|_pat\b"


class SettingsFile:
    """The settings a home's `adw.toml` gives; an absent file gives none."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        self._text = text
        self._values = dict(_leaves(_parse(path, text))) if text else {}

    @classmethod
    def read(cls, path: Path) -> SettingsFile:
        """Return the file at *path*; raise ConfigError when it is there and cannot be read."""
        try:
            return cls(path, path.read_bytes().decode())
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as exc:
            line = exc.object[: exc.start].count(b"\n") + 1
            raise ConfigError(f"{path}:{line}: this is not UTF-8 text") from exc
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    def has(self, key: str) -> bool:
        """Say whether the file sets *key*."""
        return key in self._values

    def text(self, key: str) -> str:
        """Return the value of *key* as a user would write it in a variable; it is one word, text or number."""
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ConfigError(f"{self.where(key)}: {key} must be a text or a number")

        return str(value)

    def where(self, key: str) -> str:
        """Return the place of *key* as `adw.toml:LINE`, with the file's whole path in front."""
        return f"{self.path}:{self._line(key)}"

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise ConfigError for the first key that is not *known*."""
        for key in self._values:
            if key not in known:
                raise ConfigError(f"{self.where(key)}: {key} is not a setting of adw{_advice(key, known)}")

    def _line(self, key: str) -> int:
        lines = self._text.split("\n")
        leaf = key.rpartition(".")[2]
        likely = [number for number, line in enumerate(lines, 1) if leaf in line]
        for number in likely + list(range(1, len(lines) + 1)):
            if key in _keys_so_far("\n".join(lines[:number])):
                return number

        return len(lines)


def _advice(key: str, known: Collection[str]) -> str:
    if re.search(_SENSITIVE, key):
        return ": secrets are given by environment variables only, so that they are never committed"

    return nearest(key, known) or "; docs/settings.md lists them all"


def _keys_so_far(text: str) -> Collection[str]:
    """Return the keys of the beginning of a file; none when it ends inside a value."""
    import tomllib  # noqa: PLC0415 - only homes with an adw.toml pay for the parser

    try:
        return dict(_leaves(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return ()


def _parse(path: Path, text: str) -> Mapping[str, object]:
    import tomllib  # noqa: PLC0415 - as above

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        place = re.search(_PLACE, str(exc))
        line = place[1] if place and place[1] else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: this is not TOML: {re.sub(_PLACE, '', str(exc))}") from exc


def _leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and value of everything in *table*; an empty table is a leaf too."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
