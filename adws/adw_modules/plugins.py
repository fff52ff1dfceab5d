"""
Runners, sinks and forges from other packages.

Listing plugins imports none of them. Loading one runs foreign code, which may raise anything; that becomes a
ConfigError with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.forge.model import Forge
from adws.adw_modules.identifiers import JsonObject, JsonValue

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.phase import Runner
    from adws.adw_modules.workflow.model import PhaseSpec
    from adws.app import Home


# A plugin is a runner, a sink or a forge, named by an entry point of another package.
#
# The entry point names a class or a function. It is called with a `PluginContext` when the plugin is first used, and
# returns a `Runner`, a `RowSink` or a `Forge`, which is used from then on.


#: The groups of entry points, one per kind of plugin.
RUNNERS, SINKS, FORGES = GROUPS = ("adw.runners", "adw.sinks", "adw.forges")
#: group -> the kind of its plugins
KIND_OF_GROUP: Mapping[str, str] = {RUNNERS: "runner", SINKS: "sink", FORGES: "forge"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginContext:
    """The argument with which a plugin is created."""

    name: str  #: the name of its entry point
    home: Path  #: the directory of adw.toml
    clock: Clock
    redact: Callable[[str], str]  #: removes the secrets that adw knows from a text
    built_in_forge: Callable[[str], Forge]  #: opens the forge `github` or `local` of this home
    options: Mapping[str, JsonValue] = field(default_factory=dict)  #: the table `[plugins.NAME]` of adw.toml
    env: Mapping[str, str] = field(default_factory=dict)  #: the environment; credentials belong there


class RowSink(Protocol):
    """Saves the results of steps' calls. A `close()` method, if there is one, is called after the last save."""

    def save(self, rows: Sequence[JsonObject], *, sink_key: str, options: Mapping[str, JsonValue]) -> None:
        """
        Save *rows*; return once they are safely stored, and raise otherwise.

        After a crash it is called again with the same *sink_key*: a sink that stores the key saves each part once.
        """


class ForgeAround:
    """A forge that delegates to another one everything that a subclass does not define."""

    def __init__(self, inner: Forge) -> None:
        self.inner = inner

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return the attribute of the inner forge."""
            return getattr(self.inner, name)


#: group -> attributes that its plugins must have
_NEEDED: Mapping[str, tuple[str, ...]] = {
    RUNNERS: ("check", "run"),
    SINKS: ("save",),
    FORGES: tuple(name for name in vars(Forge) if not name.startswith("_")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPlugin:
    """An installed plugin."""

    group: str
    name: str
    value: str  #: `package.module:object`
    package: str  #: the distribution that provides it, or "" if unknown
    version: str


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of *group* in all installed packages."""
    from importlib import metadata  # noqa: PLC0415 - takes a tenth of a start, and few homes have a plugin

    return tuple(metadata.entry_points(group=group))


def names(group: str) -> tuple[str, ...]:
    """Return the names of the plugins of *group*, sorted."""
    return tuple(sorted({point.name for point in entry_points(group)}))


def installed() -> tuple[InstalledPlugin, ...]:
    """Return every installed plugin, sorted by kind and name."""
    points = [(group, point) for group in KIND_OF_GROUP for point in entry_points(group)]
    plugins = [
        InstalledPlugin(
            group=group,
            name=point.name,
            value=point.value,
            package=getattr(point.dist, "name", ""),
            version=getattr(point.dist, "version", ""),
        )
        for group, point in points
    ]

    return tuple(sorted(plugins, key=lambda found: (GROUPS.index(found.group), found.name, found.value)))


class KnownNames(Collection[str]):
    """The built-in names and those of plugins, which are looked up only when the built-in ones do not suffice."""

    def __init__(self, built_in: Sequence[str], group: str) -> None:
        self._built_in = tuple(built_in)
        self._group = group

    def __contains__(self, name: object) -> bool:
        """Return whether *name* is built in or the name of a plugin."""
        return name in self._built_in or name in names(self._group)

    def __iter__(self) -> Iterator[str]:
        """Yield every name, the built-in ones first."""
        yield from self._built_in
        yield from (name for name in names(self._group) if name not in self._built_in)

    def __len__(self) -> int:
        """Return the number of names."""
        return sum(1 for _ in self)


class Plugins:
    """The plugins of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._runners: dict[str, Runner] = {}

    def has(self, group: str, name: str) -> bool:
        """Return whether an installed package provides the plugin."""
        return name in names(group)

    def runner(self, name: str) -> Runner:
        """Return the runner *name*, always the same object; raise ConfigError if it cannot be used."""
        if name not in self._runners:
            self._runners[name] = cast("Runner", self._make(RUNNERS, name))

        return self._runners[name]

    def new_sink(self, name: str) -> RowSink:
        """Return a new sink *name*, for one thread; raise ConfigError if it cannot be used."""
        return cast("RowSink", self._make(SINKS, name))

    def new_forge(self, name: str) -> Forge:
        """Return a new forge *name*; raise ConfigError if it cannot be used."""
        return cast("Forge", self._make(FORGES, name))

    def why_idle(self, phase: PhaseSpec) -> str:
        """Return why the plugin's runner cannot run *phase* here, or ""."""
        try:
            return self.runner(phase.runner).check(phase)
        except ConfigError as exc:
            return str(exc)

    def try_out(self, found: InstalledPlugin) -> str:
        """Create a plugin, and return why it cannot be used, or ""."""
        try:
            self._make(found.group, found.name)
        except ConfigError as exc:
            return str(exc)

        return ""

    def _make(self, group: str, name: str) -> object:
        kind = KIND_OF_GROUP[group]
        points = {point.value: point for point in entry_points(group) if point.name == name}
        if not points:
            raise ConfigError(f"there is no {kind} {name}: install the package that brings it")
        if len(points) > 1:
            both = " and ".join(sorted(points))
            raise ConfigError(f"{both} both bring the {kind} {name}: remove one of the packages")
        [point] = points.values()
        try:
            factory = point.load()
            made = factory(self._context(name)) if callable(factory) else None
        except (Exception, SystemExit) as exc:
            why = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise ConfigError(f"the {kind} {name} ({point.value}) cannot be used: {why}; fix or remove it") from exc
        missing = [needed for needed in _NEEDED[group] if not hasattr(made, needed)]
        if missing:
            raise ConfigError(
                f"the {kind} {name} ({point.value}) cannot be used: it has no {missing[0]}, see docs/plugins.md"
            )

        return made

    def _context(self, name: str) -> PluginContext:
        home = self._home
        options = home.settings.section("plugins").data.get(name, {})
        if not isinstance(options, Mapping):
            raise ConfigError(f"plugins.{name} in adw.toml must be a table: write [plugins.{name}]")

        return PluginContext(
            name=name,
            home=home.settings.home,
            clock=home.clock,
            redact=home.redactor.redact_text,
            built_in_forge=home.built_in_forge,
            options=cast("Mapping[str, JsonValue]", options),
            env=home.env,
        )
