"""`adw pause`, `stop`, `abandon`, `approve`, `reject`: orders of people about a workflow."""

from __future__ import annotations

import click

from adws.adw_modules import views
from adws.adw_modules.errors import UsageError
from adws.cli import common as cli_common
from adws.cli import main, output

_MESSAGE = click.option("-m", "--message", default="", help="Why, for the history.")
_WAIT = click.option(
    "--wait", type=cli_common.NumberRange(min=0), default=30.0, show_default=True, help="Seconds to wait for its owner."
)


@click.command()
@cli_common.adw_id_argument
@_MESSAGE
@_WAIT
@click.option("--now", "is_urgent", is_flag=True, help="Kill its processes at once, without asking them to end first.")
@output.json_option
def pause(*, adw_id: str, message: str, wait: float, is_urgent: bool, as_json: bool) -> int:
    """Pause a workflow: its processes are asked to end, and the attempt under way does not count."""
    kind, options = ("stop", {"is_urgent": True}) if is_urgent else ("pause", {})

    return _do(adw_id, kind, message, wait, as_json=as_json, **options)


@click.command()
@cli_common.adw_id_argument
@_MESSAGE
@_WAIT
@output.json_option
def abandon(*, adw_id: str, message: str, wait: float, as_json: bool) -> int:
    """Abandon a workflow and release its issue lock; what it made is kept."""
    return _do(adw_id, "abandon", message, wait, as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@click.option("-m", "--message", default="", help="What you think of it, for the history.")
@output.json_option
def approve(*, adw_id: str, message: str, as_json: bool) -> int:
    """Approve the phase that waits for a person; a worker, or adw resume, continues the workflow."""
    return _judge(adw_id, message, "approved", as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@click.option("-m", "--message", default="", help="What to do differently: the next attempt gets it as a hint.")
@output.json_option
def reject(*, adw_id: str, message: str, as_json: bool) -> int:
    """Send the phase that waits for a person back to work, with the message as a hint."""
    return _judge(adw_id, message, "rejected", as_json=as_json)


def _do(adw_id: str, kind: str, message: str, wait: float, *, as_json: bool, **options: bool) -> int:
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        cli_common.load(app, adw_id)  # a wrong id creates no database
        done = app.control.order(adw_id, kind, by=cli_common.who(), text=message, **options)

        return cli_common.tell(app, done, adw_id, wait, as_json=as_json)


def _judge(adw_id: str, message: str, verdict: str, *, as_json: bool) -> int:
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        before = cli_common.load(app, adw_id)
        phase = views.workflow(before.document).waiting_phase
        if not phase:
            raise UsageError(f"workflow {adw_id} does not wait for approval: it is {before.document.current_state}")
        decide = app.control.approve if verdict == "approved" else app.control.reject
        applied = decide(adw_id, by=cli_common.who(), text=message)
        is_queued = applied.run is not None
        lines = [f"{phase} is {verdict}; workflow {adw_id} is {applied.state}"]
        if is_queued:
            lines = [
                f"{phase} is {verdict}; workflow {adw_id} waits for a worker",
                f"next: adw resume {adw_id}, or adw worker",
            ]
        data: dict[str, output.Printable] = {"adw_id": adw_id, "state": applied.state, "phase": phase}
        output.emit({**data, "verdict": verdict, "queued": is_queued}, lines, as_json=as_json)

    return 0
