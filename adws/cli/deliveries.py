"""
`adw webhook deliveries`, `adw webhook replay`: show deliveries and their results, and replay one.

Showing changes nothing and creates no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules import identifiers
from adws.adw_modules.deliveries.commands import Delivery
from adws.adw_modules.deliveries.store import VERDICTS
from adws.adw_modules.errors import DeliveryNotFound, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from datetime import datetime

    from adws.app import Home

_HEADERS = ("RECEIVED", "GUID", "EVENT", "FROM", "ABOUT", "VERDICT", "STATUS", "RESULT")
_WIDEST = 60


@click.command()
@click.option(
    "--verdict",
    "verdicts",
    type=click.Choice(VERDICTS),
    multiple=True,
    help="Only those with this verdict; may be given several times.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1000), default=50, show_default=True, help="Deliveries to show."
)
@click.option("--before", metavar="GUID", default="", help="Only those that came before this one.")
@output.json_option
def deliveries(*, verdicts: tuple[str, ...], limit: int, before: str, as_json: bool) -> None:
    """List webhook deliveries and their results, newest first."""
    with main.open_home() as app:
        if not app.has_database():
            output.emit({"deliveries": [], "next_before": None}, "there are no deliveries", as_json=as_json)
            return
        if before and app.deliveries.get(before) is None:
            raise DeliveryNotFound(before)
        page = app.deliveries.page(limit=limit + 1, before=before, verdicts=verdicts)
        shown, more = page[:limit], len(page) > limit
        data: JsonObject = {
            "deliveries": [_row_data(row) for row in shown],
            "next_before": shown[-1].guid if more else None,
        }
        lines = output.table(_HEADERS, [_cells(row, app.clock.now()) for row in shown])
        if more:
            lines.append(f"more: adw webhook deliveries --before {shown[-1].guid}")
        output.emit(data, lines if shown else "there are no deliveries", as_json=as_json)


@click.command()
@click.argument("guid", metavar="GUID")
@output.json_option
def replay(*, guid: str, as_json: bool) -> None:
    """
    Process a delivery again, whatever its result was.

    An ignored delivery is read again with the current settings. Its sender needs the permission now, too,
    and a workflow that it has started is not started twice.
    """
    with main.open_home() as app:
        row = app.deliveries.get(guid) if app.has_database() else None
        if row is None:
            raise DeliveryNotFound(guid)
        run = app.deliveries.again(
            guid,
            asked_by=cli_common.who(),
            instead=_read_again(app, row) if row.verdict == "ignored" else None,
            adw_id=app.clock.token()[:8],
        )
        lines = [
            f"delivery {guid} waits for a worker as run {run.run_id}",
            "next: adw worker, then adw webhook deliveries",
        ]
        output.emit({"guid": guid, "run_id": run.run_id}, lines, as_json=as_json)


def _read_again(app: Home, row: Delivery) -> Delivery:
    """Return an ignored delivery judged by the current settings; raise UsageError if it still requests nothing."""
    # Imported only here: the parsers load modules that only a server needs.
    from adws.adw_triggers import delivery
    from adws.adw_triggers.github_events import rules_of

    body = app.deliveries.body_of(row.guid)
    if body is None:
        raise UsageError(f"delivery {row.guid} was ignored and its text is not kept: redeliver it at the forge")
    try:
        again = delivery.read_again(row, body, rules_of(app.settings, workflows=app.workflows.names()))
    except delivery.Malformed as exc:
        raise UsageError(f"delivery {row.guid} cannot be read again: {exc}") from exc
    if again.verdict == "ignored":
        raise UsageError(f"delivery {row.guid} asks for nothing: {again.reason}")

    return again


def _row_data(row: Delivery) -> JsonObject:
    data = row.to_json()
    data["times"] = data.pop("deliveries")

    return data


def _cells(row: Delivery, now: datetime) -> tuple[str, ...]:
    return (
        output.moment(row.received_at, now),
        row.guid,
        f"{row.event}.{row.action}" if row.action else row.event,
        row.sender,
        f"{row.repository}#{row.number}" if row.number is not None else row.repository,
        row.verdict,
        row.status,
        identifiers.shortened(row.outcome or row.reason, _WIDEST),
    )
