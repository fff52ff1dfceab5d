"""
Runners, sinks and forges of other packages.

Looking for names imports no plugin. Loading does: a stranger's code, which may raise anything; what it raises becomes
one sentence.
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


# What another package may bring to adw: a runner, a sink or a forge, each named by an entry point.
#
# An entry point names a class or a function. It is called with a `PluginContext` when the plugin is first used, and
# returns what is used from then on: a `Runner`, a `RowSink` or a `Forge`. `plugins` finds and loads them.


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

        After a crash it is called again with the same *sink_key*: a sink that stores the key saves each part once.
        """


class ForgeAround:
    """A forge that does what another one does, but for what a subclass does itself."""

    def __init__(self, inner: Forge) -> None:
        self.inner = inner

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return what the inner forge has by that name."""
            return getattr(self.inner, name)


#: group -> what everything of it must have
_NEEDED: Mapping[str, tuple[str, ...]] = {
    RUNNERS: ("check", "run"),
    SINKS: ("save",),
    FORGES: tuple(name for name in vars(Forge) if not name.startswith("_")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPlugin:
    """A plugin that is installed."""

    group: str
    name: str
    value: str  #: `package.module:object`
    package: str  #: the distribution that brings it, "" when that is not known
    version: str


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of *group*, of everything that is installed."""
    from importlib import metadata  # noqa: PLC0415 - a tenth of a start; few homes have a plugin

    return tuple(metadata.entry_points(group=group))


def names(group: str) -> tuple[str, ...]:
    """Return the names of the plugins of *group*, in their order."""
    return tuple(sorted({point.name for point in entry_points(group)}))


def installed() -> tuple[InstalledPlugin, ...]:
    """Return every plugin there is, by kind and name."""
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
    """The names that come with adw, and those of plugins, which are looked for only when the others do not do."""

    def __init__(self, built_in: Sequence[str], group: str) -> None:
        self._built_in = tuple(built_in)
        self._group = group

    def __contains__(self, name: object) -> bool:
        """Say whether there is such a thing."""
        return name in self._built_in or name in names(self._group)

    def __iter__(self) -> Iterator[str]:
        """Yield every name, those that come with adw first."""
        yield from self._built_in
        yield from (name for name in names(self._group) if name not in self._built_in)

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(1 for _ in self)


class Plugins:
    """The plugins of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._runners: dict[str, Runner] = {}

    def has(self, group: str, name: str) -> bool:
        """Say whether a package brings it."""
        return name in names(group)

    def runner(self, name: str) -> Runner:
        """Return the runner of that name, always the same one; raise ConfigError when it cannot be used."""
        if name not in self._runners:
            self._runners[name] = cast("Runner", self._make(RUNNERS, name))

        return self._runners[name]

    def new_sink(self, name: str) -> RowSink:
        """Return a new sink of that name, for one thread; raise ConfigError when it cannot be used."""
        return cast("RowSink", self._make(SINKS, name))

    def new_forge(self, name: str) -> Forge:
        """Return the forge of that name; raise ConfigError when it cannot be used."""
        return cast("Forge", self._make(FORGES, name))

    def why_idle(self, phase: PhaseSpec) -> str:
        """Return why the runner of *phase*, one of a plugin, cannot run it here, "" when it can."""
        try:
            return self.runner(phase.runner).check(phase)
        except ConfigError as exc:
            return str(exc)

    def try_out(self, found: InstalledPlugin) -> str:
        """Return why a plugin cannot be used, "" when it can; makes it."""
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
