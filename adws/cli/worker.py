"""`adw worker`: carrying out what waits."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import click

from adws.adw_modules.coordination.worker import Worker, WorkerOptions
from adws.adw_modules.coordination.workflow_work import WorkEnd, describe
from adws.adw_modules.demands import checked_tags
from adws.cli import arguments, log, main, output, progress

if TYPE_CHECKING:
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.runs import Terms
    from adws.app import App

EXIT_FAILED = 1


@click.command()
@click.option("--concurrency", type=click.IntRange(1, 64), default=1, show_default=True, help="Workflows at a time.")
@click.option("--once", is_flag=True, help="Stop when nothing is due.")
@click.option("--max-runs", type=click.IntRange(min=1), metavar="N", help="Stop after N runs.")
@click.option("--stop-on-first-failure", is_flag=True, help="Stop when a workflow has failed, with exit code 1.")
@click.option(
    "--poll-interval",
    type=arguments.NumberRange(min=0.001),
    default=0.03,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at the queue.",
)
@click.option(
    "--tag",
    "tags",
    metavar="TAG",
    multiple=True,
    help="What it offers besides worker.tags, for runs that demand it; may be given several times.",
)
@output.json_option
def worker(
    *,
    concurrency: int,
    once: bool,
    max_runs: int | None,
    stop_on_first_failure: bool,
    poll_interval: float,
    tags: tuple[str, ...],
    as_json: bool,
) -> int:
    """Work on runs as they come, until SIGTERM or Ctrl-C: then what is under way is suspended and goes back."""
    with main.open_home(role="worker") as app:
        _show_work(app)
        asked: list[int] = []
        made = app.work.worker(
            WorkerOptions(
                concurrency=concurrency,
                once=once,
                max_runs=max_runs,
                stop_on_first_failure=stop_on_first_failure,
                poll_seconds=poll_interval,
                recover_seconds=app.settings.recover_seconds,
                ttl_seconds=app.settings.lease_ttl_seconds,
                terms=_offering(app.terms, tags),
            ),
            on_end=lambda end: _say_end(app, end),
            tick=_tick_of(app, asked) if not once and max_runs is None else None,
        )
        _listen(made, asked)
        if not once:
            output.say("worker is ready; Ctrl-C suspends what is under way and ends it")
        totals = made.run()
        data: JsonObject = {name: getattr(totals, name) for name in totals.__slots__}
        output.emit(data, ", ".join(f"{name} {count}" for name, count in data.items()), as_json=as_json)
    if signal.SIGINT in asked:
        return main.EXIT_INTERRUPTED

    return EXIT_FAILED if stop_on_first_failure and totals.failed else 0


def _offering(terms: Terms, tags: tuple[str, ...]) -> Terms:
    """Return *terms* that offer *tags*, too."""
    if terms.offer is None or not tags:
        return terms

    return replace(terms, offer=replace(terms.offer, tags=terms.offer.tags | checked_tags(tags)))


def _show_work(app: App) -> None:
    """Show what happens as plain lines, or leave that to the log where it is to be JSON."""
    if app.settings.log_format == "json":
        return
    log.install_for_people(app.settings, least=logging.WARNING)
    lines = progress.PlainLines(app.redactor.redact_text, with_ids=True)
    app.say, app.tell = lines.say, lines.tell


def _tick_of(app: App, asked: list[int]) -> Callable[[], None] | None:
    """Return what keeps the schedule beside the work, for workers on a server; on one machine adw cron does."""
    if app.settings.database_file is not None:
        return None
    from adws.cli import home_schedule  # noqa: PLC0415 - only workers on a server need it

    return home_schedule.tick_of(app, lambda: asked)


def _listen(made: Worker, asked: list[int]) -> None:
    """Drain on a signal, and without mercy on a second one; signals are noted in *asked*."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        made.drain(f"asked to end by {signal.Signals(number).name}", is_urgent=len(asked) > 1)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _say_end(app: App, end: WorkEnd) -> None:
    app.cron.poke()
    said = describe(end.outcome) if end.outcome is not None else end.message
    line = f"{end.run.adw_id} {said}" if end.run is not None else f"a run was lost: {said}"
    output.say(app.redactor.redact_text(line))
