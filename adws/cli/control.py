"""`adw pause`, `stop`, `abandon`, `approve`, `reject`: what people do to a workflow from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.coordination.control import Applied, Asked
from adws.cli import arguments, main, output
from adws.cli.work import who

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import Request
    from adws.app import App

#: Seconds between two looks for an answer.
_LOOK_SECONDS = 0.2
_MESSAGE = click.option("-m", "--message", default="", help="Why, for the history.")
_WAIT = click.option(
    "--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for its owner."
)
EXIT_UNCONFIRMED = 1


@click.command()
@arguments.adw_id_argument
@_MESSAGE
@_WAIT
@output.json_option
def pause(*, adw_id: str, message: str, wait: float, as_json: bool) -> int:
    """Park a workflow; an attempt under way is suspended and does not count."""
    with main.open_home() as app:
        return _tell(app, app.work.control.pause(adw_id, by=who(), reason=message), adw_id, wait, as_json=as_json)


@click.command()
@arguments.adw_id_argument
@_MESSAGE
@_WAIT
@click.option("--now", "is_urgent", is_flag=True, help="Kill its processes without asking them to end first.")
@output.json_option
def stop(*, adw_id: str, message: str, wait: float, is_urgent: bool, as_json: bool) -> int:
    """Stop the work on a workflow: its processes are asked to end, then killed; the workflow is paused."""
    with main.open_home() as app:
        done = app.work.control.stop(adw_id, by=who(), reason=message, is_urgent=is_urgent)

        return _tell(app, done, adw_id, wait, as_json=as_json)


@click.command()
@arguments.adw_id_argument
@_MESSAGE
@_WAIT
@output.json_option
def abandon(*, adw_id: str, message: str, wait: float, as_json: bool) -> int:
    """Give a workflow up and free its issue; what it made is kept."""
    with main.open_home() as app:
        return _tell(app, app.work.control.abandon(adw_id, by=who(), reason=message), adw_id, wait, as_json=as_json)


@click.command()
@arguments.adw_id_argument
@_MESSAGE
@output.json_option
def approve(*, adw_id: str, message: str, as_json: bool) -> int:
    """Let the phase that waits for a person pass; a worker goes on with the workflow."""
    with main.open_home() as app:
        return _tell(app, app.work.control.approve(adw_id, by=who(), text=message), adw_id, 0.0, as_json=as_json)


@click.command()
@arguments.adw_id_argument
@_MESSAGE
@output.json_option
def reject(*, adw_id: str, message: str, as_json: bool) -> int:
    """Send the phase that waits for a person back to work, with the message as a hint."""
    with main.open_home() as app:
        return _tell(app, app.work.control.reject(adw_id, by=who(), text=message), adw_id, 0.0, as_json=as_json)


def _tell(app: App, done: Asked | Applied, adw_id: str, wait: float, *, as_json: bool) -> int:
    if isinstance(done, Applied):
        run_id = done.run.run_id if done.run else None
        output.emit({"adw_id": adw_id, "state": done.state, "run_id": run_id}, done.message, as_json=as_json)
        return 0
    request = _answer(app, done.request, wait)
    if request is not None and request.handled_at is not None:
        state = str(app.store.peek(adw_id).data.get("current_state"))
        output.emit(
            {"adw_id": adw_id, "state": state, "answer": request.outcome},
            f"workflow {adw_id}: {request.outcome}",
            as_json=as_json,
        )
        return 0
    text = f"asked {done.owner}, who has not answered yet: the {done.request.kind} is kept; adw status {adw_id}"
    output.emit({"adw_id": adw_id, "asked": done.owner, "request_id": done.request.request_id}, text, as_json=as_json)

    return EXIT_UNCONFIRMED


def _answer(app: App, request: Request, wait: float) -> Request | None:
    """Wait until the owner has answered; None when it did not."""
    until = app.clock.monotonic() + wait
    while True:
        found = app.requests.get(request.request_id)
        if found is None or found.handled_at is not None or app.clock.monotonic() >= until:
            return found
        app.clock.sleep(_LOOK_SECONDS)
