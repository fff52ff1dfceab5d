"""`adw explain`: why a workflow is not moving, what will happen next, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.coordination.situation import Desks, situation_of
from adws.adw_modules.explanation import Situation
from adws.adw_modules.explanation import explain as explained
from adws.adw_modules.recovery_facts import Claim
from adws.cli import arguments, looking, main, output

if TYPE_CHECKING:
    from adws.adw_modules.json_value import JsonObject
    from adws.app import App


@click.command()
@arguments.adw_id_argument
@output.json_option
def explain(*, adw_id: str, as_json: bool) -> None:
    """Say why a workflow is not moving, what will happen next, and what to type."""
    with main.open_home() as app:
        answer = explained(_situation(app, adw_id, looking.peek(app, adw_id).data))
        data = {"adw_id": adw_id, "why": answer.why, "then": answer.then, "commands": list(answer.commands)}

        output.emit(data, answer.paragraph(), as_json=as_json)


def _situation(app: App, adw_id: str, data: JsonObject) -> Situation:
    if not app.has_database():
        return Situation(data=data, lease=Claim())

    desks = Desks(leases=app.leases, runs=app.runs, requests=app.requests, processes=app.processes)

    return situation_of(desks, adw_id, data, now=app.clock.now())
