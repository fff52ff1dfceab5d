"""
`adw runners`: the workers there are, what they offer, and when they were last heard of.

Only looks, and starts without pydantic, SQLAlchemy and the like.
"""

from __future__ import annotations

import click

from adws.cli import main, output, runner_text


@click.command()
@output.json_option
def runners(*, as_json: bool) -> None:
    """Show the workers there are, on every machine: online, draining, silent or gone."""
    with main.open_home() as app:
        found = app.runners.all() if app.has_database() else ()
        now = app.clock.now()
        rows = [runner_text.runner_data(runner, state=runner_text.state(app, runner), now=now) for runner in found]

        output.emit({"runners": list(rows)}, runner_text.runner_lines(rows), as_json=as_json)
