"""
The wiring of plugins: what each is made with.

Apart from `app` because few homes have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from adws import config
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.plugin import PluginContext
from adws.adw_modules.plugins import Plugins

if TYPE_CHECKING:
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.json_value import JsonValue

#: The forges that a plugin may build on.
BUILT_IN_FORGES = ("github", "local")


def open_plugins(
    settings: config.Settings, *, clock: Clock, redact: Callable[[str], str], open_forge: Callable[[str], Forge]
) -> Plugins:
    """Return the plugins of a home."""

    def built_in_forge(kind: str) -> Forge:
        if kind not in BUILT_IN_FORGES:
            raise ConfigError(f"{kind!r} is no forge that comes with adw: name one of {', '.join(BUILT_IN_FORGES)}")

        return open_forge(kind)

    def context_of(name: str) -> PluginContext:
        return PluginContext(
            name=name,
            home=settings.home,
            clock=clock,
            redact=redact,
            built_in_forge=built_in_forge,
            options=_options_of(settings, name),
            env=config.process_environment(),
        )

    return Plugins(context_of)


def _options_of(settings: config.Settings, name: str) -> Mapping[str, JsonValue]:
    """Return the table of the plugin *name*; raise ConfigError when what stands there is none."""
    found = settings.section("plugins").data.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"plugins.{name} in adw.toml must be a table: write [plugins.{name}]")

    return cast("Mapping[str, JsonValue]", found)
