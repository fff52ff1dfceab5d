"""
Find what other packages bring, by their entry points, and load it when it is used.

Looking for names imports no plugin. Loading does: a stranger's code, which may raise anything; what it raises becomes
one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.forge import Forge
from adws.adw_modules.plugin import FORGES, KIND_OF_GROUP, RUNNERS, SINKS, PluginContext, RowSink

if TYPE_CHECKING:
    from adws.adw_modules.interfaces_engine import Runner
    from adws.adw_modules.workflow import PhaseSpec

#: group -> what everything of it must have
_NEEDED: Mapping[str, tuple[str, ...]] = {
    RUNNERS: ("check", "run"),
    SINKS: ("save",),
    FORGES: tuple(name for name in vars(Forge) if not name.startswith("_")),
}


class EntryPoint(Protocol):
    """What `importlib.metadata` says about a plugin."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    def load(self) -> object:
        """Import it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A plugin that is installed."""

    group: str
    name: str
    value: str  #: `package.module:object`
    package: str  #: the distribution that brings it, "" when that is not known
    version: str


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of *group*, of everything that is installed."""
    from importlib import metadata  # noqa: PLC0415 - a tenth of a start; few homes have a plugin

    return cast("Sequence[EntryPoint]", tuple(metadata.entry_points(group=group)))


def names(group: str) -> tuple[str, ...]:
    """Return the names of the plugins of *group*, in their order."""
    return tuple(sorted({point.name for point in entry_points(group)}))


def installed() -> tuple[Found, ...]:
    """Return every plugin there is, by kind and name."""
    return tuple(
        _found(group, point)
        for group in KIND_OF_GROUP
        for point in sorted(entry_points(group), key=lambda point: (point.name, point.value))
    )


def _found(group: str, point: EntryPoint) -> Found:
    made_by = getattr(point, "dist", None)

    return Found(
        group=group,
        name=point.name,
        value=point.value,
        package=getattr(made_by, "name", ""),
        version=getattr(made_by, "version", ""),
    )


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
    """The plugins of a home, each made once."""

    def __init__(self, context_of: Callable[[str], PluginContext]) -> None:
        """*context_of* gives what the plugin of that name is made with."""
        self._context_of = context_of
        self._made: dict[tuple[str, str], object] = {}

    def has(self, group: str, name: str) -> bool:
        """Say whether a package brings it."""
        return name in names(group)

    def runner(self, name: str) -> Runner:
        """Return the runner of that name; raise ConfigError when it cannot be used."""
        return cast("Runner", self._once(RUNNERS, name))

    def new_sink(self, name: str) -> RowSink:
        """Return a new sink of that name, for one thread; raise ConfigError when it cannot be used."""
        return cast("RowSink", self._make(SINKS, name))

    def new_forge(self, name: str) -> Forge:
        """Return the forge of that name; raise ConfigError when it cannot be used."""
        return cast("Forge", self._make(FORGES, name))

    def with_runners(self, built_in: Mapping[str, Runner]) -> Mapping[str, Runner]:
        """Return *built_in* together with the runners of plugins."""
        return _AllRunners(built_in, self)

    def why_idle(self, phase: PhaseSpec) -> str:
        """Return why the runner of *phase*, one of a plugin, cannot run it here, "" when it can."""
        try:
            return self.runner(phase.runner).check(phase)
        except ConfigError as exc:
            return str(exc)

    def try_out(self, found: Found) -> str:
        """Return why a plugin cannot be used, "" when it can; makes it."""
        try:
            self._make(found.group, found.name)
        except ConfigError as exc:
            return str(exc)

        return ""

    def _once(self, group: str, name: str) -> object:
        key = (group, name)
        if key not in self._made:
            self._made[key] = self._make(group, name)

        return self._made[key]

    def _make(self, group: str, name: str) -> object:
        kind = KIND_OF_GROUP[group]
        point = _only_one(group, name)
        try:
            factory = point.load()
            made = factory(self._context_of(name)) if callable(factory) else None
        except (Exception, SystemExit) as exc:
            why = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise ConfigError(f"the {kind} {name} ({point.value}) cannot be used: {why}; mend or remove it") from exc
        missing = [needed for needed in _NEEDED[group] if not hasattr(made, needed)]
        if missing:
            raise ConfigError(f"the {kind} {name} ({point.value}) is none: it has no {missing[0]}, see docs/plugins.md")

        return made


def _only_one(group: str, name: str) -> EntryPoint:
    kind = KIND_OF_GROUP[group]
    found = {point.value: point for point in entry_points(group) if point.name == name}
    if not found:
        raise ConfigError(f"there is no {kind} {name}: install the package that brings it")
    if len(found) > 1:
        both = " and ".join(sorted(found))
        raise ConfigError(f"{both} both bring the {kind} {name}: remove one of the packages")

    return next(iter(found.values()))


class _AllRunners(Mapping[str, "Runner"]):
    """Runners that come with adw and, behind them, those of plugins."""

    def __init__(self, built_in: Mapping[str, Runner], plugins: Plugins) -> None:
        self._built_in = built_in
        self._plugins = plugins

    def __getitem__(self, name: str) -> Runner:
        """Return a runner; what comes with adw cannot be replaced."""
        if name in self._built_in:
            return self._built_in[name]
        if not self._plugins.has(RUNNERS, name):
            raise KeyError(name)

        return self._plugins.runner(name)

    def __iter__(self) -> Iterator[str]:
        """Yield every name."""
        return iter(KnownNames(tuple(self._built_in), RUNNERS))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(KnownNames(tuple(self._built_in), RUNNERS))
