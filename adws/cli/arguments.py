"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from adws.adw_modules import ids

_Command = TypeVar("_Command", bound=Callable[..., object])

#: What people put in front of an id, as in branch names.
PREFIX = "adw-"


def workflow_id(text: str) -> str:
    """Return the id a person means: ours may be typed with `adw-` in front; raise InvalidAdwId."""
    bare = text.removeprefix(PREFIX)

    return bare if ids.is_ours(bare) else ids.check_adw_id(text)


def adw_id_argument(command: _Command) -> _Command:
    """Give a command the argument ID, as *adw_id*."""
    return click.argument("adw_id", metavar="ID", callback=lambda _ctx, _param, value: workflow_id(value))(command)
