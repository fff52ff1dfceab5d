"""
What a setting is: a name, where it may be given, what it means.

Nouns only; the table of settings is made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """One thing a user may set."""

    name: str  #: attribute of Settings
    default: str  #: as a user would write it; "" means not set
    parse: Callable[[str, Path], object]  #: text and home -> value; ValueError says what it must be
    help: str
    key: str = ""  #: dotted key in adw.toml; "": cannot be set there
    aliases: tuple[str, ...] = ()  #: other variables that users of such tools know
    values: str = ""  #: what may be given, for the documentation
    secret: bool = False

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return f"ADW_{self.name.upper()}"


class Section(NamedTuple):
    """A table of `adw.toml` that is no list of settings: whoever it belongs to reads it, by `Settings.section`."""

    name: str  #: key in adw.toml, with dots
    help: str
