"""
`adw report`, `adw stuck` and `adw attempts`: what was done, what does not move, how many attempts phases need.

They only look. The last two start without pydantic, SQLAlchemy and the like; a report looks for left-overs, which takes
more than that.
"""

from __future__ import annotations

from pathlib import Path

import click

from adws.adw_modules import report_rules, timestamps
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.interfaces_reports import Window
from adws.adw_modules.report_rules import Report
from adws.app import App
from adws.cli import arguments, looking, main, output, reporting_text

#: Goes where text goes.
STDOUT = "-"
_SINCE = "Only from that day on, as UTC has days: 2026-01-31, 7d, 4w."

workflow_option = click.option(
    "--workflow", metavar="NAME", default="", help="Only workflows of that definition, such as sdlc."
)
optional_id = click.argument(
    "adw_id",
    metavar="[ID]",
    required=False,
    callback=lambda _ctx, _param, value: None if value is None else arguments.workflow_id(value),
)


@click.command()
@click.option("--since", metavar="WHEN", default="30d", show_default=True, help=_SINCE)
@workflow_option
@click.option("--no-orphans", is_flag=True, help="Do not look for left-overs: that takes longest, and asks the forge.")
@click.option(
    "--html",
    metavar="[FILE]",
    is_flag=False,
    flag_value=STDOUT,
    default=None,
    help="Write a page with pictures to FILE, or print it; it needs nothing else.",
)
@output.json_option
def report(*, since: str, workflow: str, no_orphans: bool, html: str | None, as_json: bool) -> None:
    """
    Show how work went: success rate, attempts, costs, frequent failures; and what is stuck and left over now.

    Days are whole days of UTC. What is forgotten because of its age (adw gc) still counts.
    """
    if html is not None and as_json:
        raise UsageError("--html and --json exclude each other: leave one of them out")
    with main.open_home() as app:
        window = Window(since=arguments.parse_since(since, app.clock.now()), workflow=workflow)
        found = _report(app, window, with_orphans=not no_orphans)
        if html is None:
            output.emit(found.to_json(), reporting_text.report_lines(found, app.clock.now()), as_json=as_json)
            return
        from adws.web import report_page  # noqa: PLC0415 - only a page needs it

        _deliver(report_page.page(found, redact=app.redactor.redact_text, settings=app.settings), html)


def _report(app: App, window: Window, *, with_orphans: bool) -> Report:
    if app.has_database():
        return app.reporting.report(window, with_orphans=with_orphans)

    return Report(
        made_at=timestamps.to_text(app.clock.now()),
        since=window.first_day,
        workflow=window.workflow,
        orphans=() if with_orphans else None,
    )


def _deliver(page: str, place: str) -> None:
    """Print the page, or write it to a file."""
    if place == STDOUT:
        output.emit_page(page)
        return
    try:
        Path(place).write_text(page, encoding="utf-8")
    except OSError as exc:
        raise AdwError(f"could not write {place}: {exc.strerror or exc}; name a file that can be written") from exc
    output.say(f"wrote {place}")


@click.command()
@optional_id
@output.json_option
def stuck(*, adw_id: str | None, as_json: bool) -> None:
    """
    Show what does not move as it should, why, and what to type.

    A worker that is silent, work that nobody has, an attempt that takes longer than its own history says, and what is
    due while no worker is there. What waits for a moment or a person is not stuck: adw explain says what it waits for.
    """
    with main.open_home() as app:
        found = app.reporting.stuck() if app.has_database() else ()
        if adw_id is not None:
            looking.peek(app, adw_id)  # there must be such a workflow
            found = tuple(one for one in found if one.subject.adw_id == adw_id)
        data: output.Printable = {"stuck": [report_rules.stuck_json(one) for one in found]}
        output.emit(data, reporting_text.stuck_lines(found, app.clock.now()), as_json=as_json)


@click.command()
@optional_id
@click.option("--since", metavar="WHEN", default="", help=_SINCE)
@workflow_option
@output.json_option
def attempts(*, adw_id: str | None, since: str, workflow: str, as_json: bool) -> None:
    """
    Show how many attempts phases need until they succeed, of all workflows; of one: how many each phase has used.
    """
    with main.open_home() as app:
        if adw_id is not None:
            if since or workflow:
                raise UsageError("--since and --workflow are for all workflows: leave them out, or the ID")
            used = reporting_text.used_attempts(looking.peek(app, adw_id).data)
            output.emit({"adw_id": adw_id, "phases": used}, reporting_text.used_lines(used, adw_id), as_json=as_json)
            return
        window = Window(since=arguments.parse_since(since, app.clock.now()) if since else "", workflow=workflow)
        found = app.reports.attempts(window) if app.has_database() else ()
        data: output.Printable = {
            "since": window.first_day or None,
            "workflow": workflow or None,
            "phases": [report_rules.attempts_json(phase) for phase in found],
        }
        output.emit(data, reporting_text.attempt_lines(found), as_json=as_json)
