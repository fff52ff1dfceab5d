"""
`adw config`: the settings in force and where each comes from.

A secret is shown as `set`, never as a value. What is not set is `not set` in text, and null in JSON.
"""

from __future__ import annotations

import click

from adws.cli import main, output
from adws.config import SETTINGS


@click.command()
@output.json_option
def config(*, as_json: bool) -> None:
    """
    Show the settings in force and where each comes from.

    The command line wins over the environment, that over adw.toml in the home, that over the default.
    """
    settings = main.load_settings()
    rows = [(setting.name, settings.shown(setting.name), settings.origin(setting.name)) for setting in SETTINGS]
    data: dict[str, output.Printable] = {name: {"origin": origin, "value": value} for name, value, origin in rows}
    shown = [(name, "not set" if value is None else str(value), origin) for name, value, origin in rows]
    limits = settings.run_limits.scopes
    if limits:
        data["limits"] = {scope: dict(names) for scope, names in limits.items()}
        shown += [
            (f"limits.{scope}", f"{name}: {most}", settings.section(f"limits.{scope}").where())
            for scope, names in limits.items()
            for name, most in names.items()
        ]
    if settings.ignored:
        data["ignored"] = settings.ignored
        shown += [(name, "ignored", "set, and without a meaning in this version") for name in settings.ignored]

    output.emit(data, output.table(("SETTING", "VALUE", "ORIGIN"), shown), as_json=as_json)
