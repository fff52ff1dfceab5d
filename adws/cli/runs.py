"""
`adw runs`: what waits for a worker, what is with one, and how it ended.

Only looks. Starts without pydantic, SQLAlchemy and the like, because people look at the queue when something is stuck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.errors import UsageError
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import Run, RunState
from adws.cli import main, output, run_text, runner_text

if TYPE_CHECKING:
    from adws.app import App


@click.command()
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    callback=lambda _ctx, _param, values: tuple(map(_known_state, values)),
    help="Only those in this state; may be given several times.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Runs to show.")
@click.option("--before", type=click.IntRange(min=1), metavar="RUN", help="Only those that are older than this one.")
@output.json_option
def runs(*, states: tuple[RunState, ...], limit: int, before: int | None, as_json: bool) -> None:
    """Show the runs of workflows, newest first: waiting, with a worker, ended."""
    with main.open_home() as app:
        found = app.runs.page(states=states, limit=limit + 1, before=before) if app.has_database() else ()
        now = app.clock.now()
        held = runner_text.why_waiting(app, found[:limit]) if found else {}
        rows = [
            run_text.run_data(run, verdict=_verdict(app, run), now=now, held=held.get(run.run_id, ""))
            for run in found[:limit]
        ]
        next_page = found[limit - 1].run_id if len(found) > limit else None
        lines = run_text.run_lines(rows, next_page=next_page)

        output.emit({"runs": list(rows), "next_before": next_page}, lines, as_json=as_json)


def _verdict(app: App, run: Run) -> Verdict:
    return app.processes.verdict(OwnerRecord.from_text(run.owner))


def _known_state(text: str) -> RunState:
    """Return the state that is meant, in any case; raise UsageError with the list of those there are."""
    try:
        return RunState(text.lower())
    except ValueError as exc:
        known = ", ".join(state.value for state in RunState)
        raise UsageError(f"{text!r} is not a state of a run; use one of {known}") from exc
