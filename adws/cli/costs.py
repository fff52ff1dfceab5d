"""
`adw cost`: what was spent, by phase, attempt, day, provider or workflow.

Says which figures were reckoned and which nobody knows. Only looks, and starts without pydantic, SQLAlchemy and the
like.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from adws.adw_modules import cost_entries
from adws.adw_modules.cost_entries import CostEntry, CostLine
from adws.adw_modules.json_value import JsonObject
from adws.cli import arguments, cost_text, looking, main, output

WAYS = ("phase", "attempt", "day", "provider", "workflow")


@click.command()
@click.argument(
    "adw_id",
    metavar="[ID]",
    required=False,
    callback=lambda _ctx, _param, value: None if value is None else arguments.workflow_id(value),
)
@click.option("--since", metavar="WHEN", default="", help="Only attempts that ended since: 2026-01-31, 12h, 7d, 4w.")
@click.option(
    "--by", type=click.Choice(WAYS), help="What a line is for; of one workflow its phases, else each workflow."
)
@output.json_option
def cost(*, adw_id: str | None, since: str, by: str | None, as_json: bool) -> None:
    """
    Show what was spent, of one workflow or of all.

    Amounts are US dollars. A figure that was reckoned from tokens is marked, one that nobody knows is not counted as 0.
    """
    with main.open_home() as app:
        start = arguments.parse_since(since, app.clock.now()) if since else ""
        if adw_id is None:
            found = list(app.costs.entries(start)) if app.has_database() else []
            report = _report(found, by or "workflow", start)
        else:
            document = looking.peek(app, adw_id).data
            account = _account(adw_id, document, max_cost=app.settings.quota_max_cost)
            report = _report(_entries(adw_id, document, start), by or "phase", start, account)

        output.emit(cost_text.data(report), cost_text.lines(report), as_json=as_json)


def _entries(adw_id: str, document: JsonObject, since: str) -> list[CostEntry]:
    reference = document.get("workflow")
    name = str(reference.get("name") or "") if isinstance(reference, dict) else ""

    return [one for one in cost_entries.entries_of(adw_id, name, document.get("phases")) if one.ended_at >= since]


def _account(adw_id: str, document: JsonObject, *, max_cost: float) -> cost_text.Account:
    sums, cap = document.get("cost"), cost_entries.money(document.get("max_cost_usd"))
    total = cost_entries.money(sums.get("total_usd")) if isinstance(sums, dict) else None

    return cost_text.Account(adw_id=adw_id, total_usd=total or 0.0, cap_usd=max_cost if cap is None else cap)


def _report(
    found: Sequence[CostEntry], by: str, since: str, account: cost_text.Account | None = None
) -> cost_text.Report:
    lines, total = cost_entries.grouped(found, "phase" if by == "attempt" else by)
    entries = sorted(found, key=lambda entry: (entry.ended_at, entry.adw_id)) if by == "attempt" else ()

    return cost_text.Report(
        by=by,
        since=since,
        entries=entries,
        lines=_in_order(lines, by, is_one=account is not None),
        total=total,
        names={entry.adw_id: entry.workflow for entry in found},
        workflow=account,
    )


def _in_order(lines: Sequence[CostLine], by: str, *, is_one: bool) -> list[CostLine]:
    """Return days in their order, the phases of one workflow in theirs, and anything else by what it cost."""
    if by == "phase" and is_one:
        return list(lines)

    return sorted(
        lines, key=(lambda line: (0.0, line.key)) if by == "day" else (lambda line: (-line.cost_usd, line.key))
    )
