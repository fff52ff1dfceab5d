"""
`adw retries`: what is tried again later, phases and calls of steps in one list, and giving one up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from adws.cli import main, output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from adws.adw_modules.retry_rules import WaitingRetry

_ERROR_WIDTH = 60


@click.group(invoke_without_command=True)
@click.option("--workflow", "adw_id", metavar="ID", default="", help="Only those of this workflow.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Retries to show.")
@output.json_option
@click.pass_context
def retries(context: click.Context, *, adw_id: str, limit: int, as_json: bool) -> None:
    """Show what is tried again later, the next one first, and cancel it."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        found = app.retries.all(adw_id=adw_id, limit=limit) if app.has_database() else ()

        output.emit({"retries": [retry.to_json() for retry in found]}, _lines(found, app.clock.now()), as_json=as_json)


@retries.command()
@click.argument("retry_id", metavar="ID")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="Of an execution: only this iteration.")
@click.option("-m", "--message", default="", help="Why, for the history.")
@output.json_option
def cancel(*, retry_id: str, index: int | None, message: str, as_json: bool) -> None:
    """Give up what waits under ID: the calls of an execution, or the next attempt of a workflow's phase."""
    answers = importlib.import_module("adws.cli.answers")
    with main.open_home() as app:
        done = app.retries.cancel(retry_id, by=answers.who(), index=index, reason=message)

        output.emit({"id": retry_id, "index": index, "message": done}, done, as_json=as_json)


def _lines(found: Sequence[WaitingRetry], now: datetime) -> list[str]:
    if not found:
        return ["Nothing waits to be tried again."]
    rows = [
        (
            retry.retry_id,
            "" if retry.index is None else str(retry.index),
            retry.phase,
            retry.step,
            str(retry.attempt_number),
            output.moment(retry.next_at, now),
            retry.why,
            output.shorten(retry.error, _ERROR_WIDTH),
        )
        for retry in found
    ]

    return output.table(("ID", "INDEX", "PHASE", "STEP", "TRIED", "NEXT TRY", "WHY", "LAST ERROR"), rows)
