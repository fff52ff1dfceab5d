"""
`adw quota`: every limit and how much of it is used; the exit code is 1 when one is exceeded.

Only looks: nobody's place is taken or given back.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from adws.adw_modules.json_value import JsonObject
from adws.cli import arguments, main, output

if TYPE_CHECKING:
    from adws.adw_modules.interfaces_resources import QuotaStatus
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.app import App

#: What the command exits with when a limit is exceeded.
EXCEEDED = 1


@click.command()
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=arguments.offer_names,
    help="Workflow to estimate the cost of, from past ones of its name.",
)
@output.json_option
def quota(*, workflow: str | None, as_json: bool) -> int:
    """Show every limit and how much of it is used; exits with 1 when one is exceeded."""
    with main.open_home() as app:
        name = workflow or app.settings.default_workflow
        quotas = app.quotas if app.has_database() else _unused(app)
        found = quotas.status(estimated_cost=quotas.estimate(name))
        is_exceeded = any(status.is_exceeded for status in found)
        rows: list[JsonObject] = [asdict(status) for status in found]

        output.emit(
            {"quotas": rows, "workflow": name, "is_exceeded": is_exceeded}, _lines(found, name), as_json=as_json
        )

    return EXCEEDED if is_exceeded else main.EXIT_OK


def _unused(app: App) -> MachineQuotas:
    """Return the limits of a home where nobody worked yet, without making its database."""
    opened: MachineQuotas = importlib.import_module("adws.app_resources").open_quotas(
        app.settings, None, clock=app.clock, host=""
    )

    return opened


def _lines(found: Sequence[QuotaStatus], workflow: str) -> list[str]:
    cells = [
        (
            status.name,
            f"{status.used:g}" if status.is_known else "unknown",
            f"{status.limit:g}",
            status.unit,
            _word(status),
        )
        for status in found
    ]
    notes = [f"{status.name}: {status.detail}" for status in found if status.is_exceeded or not status.is_known]
    estimate = f"cost is that of a workflow {workflow}, from those that came to their end"

    return [*output.table(("QUOTA", "NOW", "LIMIT", "UNIT", ""), cells), "", estimate, *notes]


def _word(status: QuotaStatus) -> str:
    if not status.is_known:
        return "not known"

    return "EXCEEDED" if status.is_exceeded else "ok"
