"""
What another package may bring to adw: a runner, a sink or a forge, each named by an entry point.

An entry point names a class or a function. It is called with a `PluginContext` when the plugin is first used, and gives
back what is used from then on: a `Runner`, a `RowSink` or a `Forge`. `plugins` finds and loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.json_value import JsonObject, JsonValue

if TYPE_CHECKING:
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces import Clock

#: The groups of entry points, one for each kind of plugin.
RUNNERS, SINKS, FORGES = GROUPS = ("adw.runners", "adw.sinks", "adw.forges")
#: group -> what a plugin of it is called
KIND_OF_GROUP: Mapping[str, str] = {RUNNERS: "runner", SINKS: "sink", FORGES: "forge"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginContext:
    """What a plugin is made with."""

    name: str  #: the name of its entry point
    home: Path  #: the directory of adw.toml
    clock: Clock
    redact: Callable[[str], str]  #: takes secrets that adw knows out of a text
    built_in_forge: Callable[[str], Forge]  #: opens the forge `github` or `local` of this home
    options: Mapping[str, JsonValue] = field(default_factory=dict)  #: the table `[plugins.NAME]` of adw.toml
    env: Mapping[str, str] = field(default_factory=dict)  #: the environment; credentials belong there


class RowSink(Protocol):
    """Saves what calls of steps gave back. May have `close()`, which is called when no more comes."""

    def save(self, rows: Sequence[JsonObject], *, sink_key: str, options: Mapping[str, JsonValue]) -> None:
        """
        Save *rows*; return when they are safe, raise when they are not.

        After a crash it is called again with the same *sink_key*: whoever keeps the key saves each part once.
        """


class ForgeAround:
    """A forge that does what another one does, but for what a subclass does itself."""

    def __init__(self, inner: Forge) -> None:
        self.inner = inner

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return what the inner forge has by that name."""
            return getattr(self.inner, name)
