"""`adw explain`: why a workflow is not moving, what will happen next, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.explanation import Situation
from adws.adw_modules.explanation import explain as explained
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.recovery_facts import Claim
from adws.adw_modules.timestamps import to_text
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
    row = app.leases.read(adw_id)
    run = next(iter(app.runs.of_workflow(adw_id, limit=1)), None)

    return Situation(
        data=data,
        lease=_claim(app, row.owner, row.seconds_left) if row else Claim(),
        run_state=run.state if run else None,
        run_reason=run.reason if run else "",
        not_before=run.not_before if run else "",
        is_due=run is None or run.not_before <= to_text(app.clock.now()),
        asked=tuple(request.kind for request in app.requests.open_for(adw_id)),
    )


def _claim(app: App, owner: OwnerRecord | None, seconds_left: float) -> Claim:
    if owner is None:
        return Claim()

    return Claim(owner=owner.describe(), verdict=app.processes.verdict(owner), seconds_left=seconds_left)
