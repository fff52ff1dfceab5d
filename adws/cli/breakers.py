"""
`adw breakers`: which outside parties nobody asks for now, and letting work through again.

Looking changes nothing and makes no database; `reset` closes a breaker for every process of the home.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.json_value import JsonObject
from adws.cli import main, output

if TYPE_CHECKING:
    from datetime import datetime

    from adws.adw_modules.interfaces_durability import BreakerRow
    from adws.app import App

_WORDS = {"closed": "closed", "open": "OPEN", "half_open": "half open"}


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def breakers(context: click.Context, *, as_json: bool) -> None:
    """Show which outside parties are held off, and let work through again."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows = _rows(app)

        output.emit({"breakers": [_data(row) for row in rows]}, _lines(rows, app.clock.now()), as_json=as_json)


@breakers.command()
@click.argument("name", metavar="NAME", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every breaker.")
@output.json_option
def reset(*, name: str | None, is_all: bool, as_json: bool) -> None:
    """Close a breaker, so that its party is asked again at once."""
    if (name is None) is not is_all:
        raise UsageError("name one breaker, or all of them with --all: adw breakers shows them")
    with main.open_home() as app:
        rows = _rows(app)
        chosen = rows if is_all else [_named(rows, name or "")]
        for row in chosen:
            app.breakers.get(row.name).reset()
        closed = [row.name for row in chosen if row.state != "closed"]

        output.emit({"reset": [row.name for row in chosen], "closed": list(closed)}, _said(closed), as_json=as_json)


def _rows(app: App) -> list[BreakerRow]:
    """Return the breakers as they stand now, without making a database and without writing to it."""
    if not app.has_database():
        return []
    seen = importlib.import_module("adws.adw_modules.breaker_rules").seen
    now = app.clock.now()

    return [seen(row, now) for row in app.breakers.stored()]


def _named(rows: Sequence[BreakerRow], name: str) -> BreakerRow:
    found = next((row for row in rows if row.name == name), None)
    if found is not None:
        return found
    known = ", ".join(row.name for row in rows)

    raise AdwError(f"there is no breaker {name}: {f'there are {known}' if known else 'nothing ever failed here'}")


def _data(row: BreakerRow) -> JsonObject:
    return {
        "name": row.name,
        "state": row.state,
        "failures": row.failures,
        "generation": row.generation,
        "opened_at": row.opened_at,
        "reopens_at": row.reopens_at,
        "reason": row.reason,
        "trials": len(row.permits),
        "settings": dict(row.settings),
        "changed_at": row.changed_at,
    }


def _lines(rows: Sequence[BreakerRow], now: datetime) -> list[str]:
    if not rows:
        return ["no outside party has failed"]
    cells = [
        (
            row.name,
            _WORDS.get(row.state, row.state),
            str(row.failures),
            output.moment(row.reopens_at, now) if row.reopens_at and row.state == "open" else "-",
            output.shorten(row.reason, 60) or "-",
        )
        for row in rows
    ]
    hint = ["", "adw breakers reset NAME closes one"] if any(row.state == "open" for row in rows) else []

    return [*output.table(("PARTY", "BREAKER", "FAILURES", "UNTIL", "WHY"), cells), *hint]


def _said(closed: Sequence[str]) -> str:
    if not closed:
        return "nothing was open; failures are counted from 0 again"

    return f"closed {', '.join(closed)}; what waits for that goes on at its time, or at once with adw resume ID"
