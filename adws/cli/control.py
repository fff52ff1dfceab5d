"""`adw pause`, `stop`, `abandon`, `approve`, `reject`: what people do to a workflow from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from adws.adw_modules import views
from adws.adw_modules.errors import UsageError
from adws.adw_modules.worker.control import Applied, Asked
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.worker.control import Control

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

    def ask(control: Control) -> Asked | Applied:
        if is_urgent:
            return control.stop(adw_id, by=cli_common.who(), reason=message, is_urgent=True)
        return control.pause(adw_id, by=cli_common.who(), reason=message)

    return _do(adw_id, ask, wait, as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@_MESSAGE
@_WAIT
@output.json_option
def abandon(*, adw_id: str, message: str, wait: float, as_json: bool) -> int:
    """Abandon a workflow and release its issue lock; what it made is kept."""
    return _do(adw_id, lambda it: it.abandon(adw_id, by=cli_common.who(), reason=message), wait, as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@click.option("-m", "--message", default="", help="What you think of it, for the history.")
@output.json_option
def approve(*, adw_id: str, message: str, as_json: bool) -> int:
    """Approve the phase that waits for a person; a worker, or adw resume, continues the workflow."""
    return _judge(adw_id, lambda it: it.approve(adw_id, by=cli_common.who(), text=message), "approved", as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@click.option("-m", "--message", default="", help="What to do differently: the next attempt gets it as a hint.")
@output.json_option
def reject(*, adw_id: str, message: str, as_json: bool) -> int:
    """Send the phase that waits for a person back to work, with the message as a hint."""
    return _judge(adw_id, lambda it: it.reject(adw_id, by=cli_common.who(), text=message), "rejected", as_json=as_json)


def _do(adw_id: str, ask: Callable[[Control], Asked | Applied], wait: float, *, as_json: bool) -> int:
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        cli_common.load(app, adw_id)  # a wrong id makes no database

        return cli_common.tell(app, ask(app.control), adw_id, wait, as_json=as_json)


def _judge(adw_id: str, decide: Callable[[Control], Applied], verdict: str, *, as_json: bool) -> int:
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        before = cli_common.load(app, adw_id)
        phase = views.workflow(before.document).waiting_phase
        if not phase:
            raise UsageError(f"workflow {adw_id} does not wait for approval: it is {before.document.current_state}")
        applied = decide(app.control)
        data: dict[str, output.Printable] = {
            "adw_id": adw_id,
            "state": applied.state,
            "phase": phase,
            "verdict": verdict,
            "queued": applied.run is not None,
        }
        output.emit(data, _lines(adw_id, phase, verdict, applied), as_json=as_json)

    return 0


def _lines(adw_id: str, phase: str, verdict: str, applied: Applied) -> list[str]:
    """Return the result of a decision, and who continues the workflow."""
    if applied.run is None:
        return [f"{phase} is {verdict}; workflow {adw_id} is {applied.state}"]

    return [f"{phase} is {verdict}; workflow {adw_id} waits for a worker", f"next: adw resume {adw_id}, or adw worker"]
