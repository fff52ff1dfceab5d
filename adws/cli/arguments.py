"""Arguments that several commands share."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click

from adws.adw_modules import ids, timestamps
from adws.adw_modules.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., object])

#: What people put in front of an id, as in branch names.
PREFIX = "adw-"
_SPAN = r"([0-9]{1,9})(s|m|h|d|w)"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class NumberRange(click.FloatRange):
    """A number within bounds: neither `nan`, which no bound holds back, nor `inf`."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that *value* is; fail as click does."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number that can be counted with.", param, ctx)

        return found


def workflow_id(text: str) -> str:
    """Return the id a person means: ours may be typed with `adw-` in front; raise InvalidAdwId."""
    bare = text.removeprefix(PREFIX)

    return bare if ids.is_ours(bare) else ids.check_adw_id(text)


def adw_id_argument(command: _Command) -> _Command:
    """Give a command the argument ID, as *adw_id*."""
    return click.argument(
        "adw_id", metavar="ID", callback=lambda _ctx, _param, value: workflow_id(value), shell_complete=_offer("ids")
    )(command)


def _offer(what: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what offers *what* to a shell; loaded when a shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: list[CompletionItem] = getattr(importlib.import_module("adws.cli.completing"), what)(
            ctx, param, incomplete
        )
        return found

    return complete


#: For options and arguments that name a workflow to run, or a state.
offer_names, offer_states = _offer("names"), _offer("states")


def parse_span(text: str) -> timedelta:
    """Return a time as people write it; raise UsageError."""
    found = re.fullmatch(_SPAN, text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no span of time: use a number and s, m, h, d or w, such as 7d")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError as exc:
        raise UsageError(f"{text!r} is longer than any workflow: use something shorter, such as 52w") from exc


def parse_since(text: str, now: datetime) -> str:
    """Return the moment meant by a day, a moment or a span before *now*, as documents have it; raise UsageError."""
    try:
        return timestamps.to_text(timestamps.parse(text))
    except (ValueError, OverflowError):
        if re.fullmatch(_SPAN, text.strip()) is None:
            wrong = f"{text!r} is neither a day nor a span of time: use such as 2026-01-31, 2026-01-31T09:00 or 7d"
            raise UsageError(wrong) from None
    try:
        return timestamps.to_text(now - parse_span(text))
    except OverflowError as exc:
        raise UsageError(f"{text!r} ago was before all time: use something shorter, such as 52w") from exc
