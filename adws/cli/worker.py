"""`adw worker`: execute queued runs; `adw admin recover`: recover runs of dead workers."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from adws.adw_modules.errors import UsageError
from adws.adw_modules.queue.model import RunResult
from adws.adw_modules.recovery.plan import Mode, RecoveryAction, RecoveryResult, mode_of
from adws.adw_modules.worker.run_executor import describe
from adws.adw_modules.worker.worker import Worker, WorkerOptions
from adws.adw_modules.workflow.requirements import checked_tags
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home


EXIT_FAILED = 1


@click.command()
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1, 64), default=1, show_default=True, help="Workflows at a time."
)
@click.option("--once", is_flag=True, help="Stop when nothing is due.")
@click.option("--max-runs", type=click.IntRange(min=1), metavar="N", help="Stop after N runs.")
@click.option("--stop-on-first-failure", is_flag=True, help="Stop when a workflow has failed, with exit code 1.")
@click.option(
    "--poll-interval",
    type=cli_common.NumberRange(min=0.001),
    default=0.03,
    show_default=True,
    metavar="S",
    help="Seconds between two polls of the queue.",
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
    """Execute queued runs until SIGTERM or Ctrl-C; running attempts are suspended then, and queued again."""
    with main.open_home(role="worker") as app:
        settings, terms = app.settings, app.claim_policy
        if settings.log_format != "json":  # with json everything belongs in the log
            cli_common.install_for_people(settings, least=logging.WARNING)
            lines = output.PlainLines(app.redactor.redact_text, with_ids=True)
            app.say, app.tell = lines.say, lines.tell
        if terms.offer is not None and tags:
            terms = replace(terms, offer=replace(terms.offer, tags=terms.offer.tags | checked_tags(tags)))
        asked: list[int] = []
        tick = None
        if settings.database_file is None and not once and max_runs is None:
            # With a database server workers run the schedule beside their work; with SQLite adw cron does.
            from adws.cli import serve

            tick = serve.tick_of(app, lambda: asked)
        made = app.worker(
            WorkerOptions(
                concurrency=concurrency,
                once=once,
                max_runs=max_runs,
                stop_on_first_failure=stop_on_first_failure,
                poll_seconds=poll_interval,
                recover_seconds=settings.recover_seconds,
                ttl_seconds=settings.lease_ttl_seconds,
                terms=terms,
            ),
            on_end=lambda end: _say_end(app, end),
            tick=tick,
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


def _listen(made: Worker, asked: list[int]) -> None:
    """Drain on the first signal, urgently on the second; append the signals to *asked*."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        made.drain(f"asked to end by {signal.Signals(number).name}", is_urgent=len(asked) > 1)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _say_end(app: Home, end: RunResult) -> None:
    app.notify_thread.poke()
    said = describe(end.outcome) if end.outcome is not None else end.message
    line = f"{end.run.adw_id} {said}" if end.run is not None else f"a run was lost: {said}"
    output.say(app.redactor.redact_text(line))


# --- a command run by another one: a worker of `adw serve`, the server of `adw demo` ---------------------------
#
# The parent holds the write end of its standard input. When that closes, however the parent died, it shuts down.


def start() -> NoReturn:
    """Run the command until told to end, or until the parent process is gone."""
    threading.Thread(target=_end_with_the_starter, name="adw-parent", daemon=True).start()
    main.main()  # takes the secrets out of the environment first


def _end_with_the_starter() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


# --- `adw admin recover`: find the runs of dead workers and requeue them ---------------------------------------


@click.command()
@click.option(
    "--mode",
    metavar="none|stale|all",
    help="Instead of recovery.mode: none only reports, stale recovers proven cases, all also unproven ones.",
)
@click.option(
    "--threshold",
    type=cli_common.NumberRange(min=0.0),
    metavar="S",
    help="Seconds without a change after which mode stale recovers runs that nothing is proven about.",
)
@click.option("--force", is_flag=True, help="With --mode all: take work also from owners that live.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option("--all", "show_all", is_flag=True, help="Also list the workflows that are not recovered, and why.")
@output.json_option
def recover(
    *, mode: str | None, threshold: float | None, force: bool, dry_run: bool, show_all: bool, as_json: bool
) -> int:
    """Recover the runs of dead workers: queue them again, or end them; executes nothing itself."""
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        the_mode = mode_of(mode or app.settings.recovery_mode)
        if force and the_mode is not Mode.ALL:
            raise UsageError("--force takes work from owners that live: use it with --mode all, or leave it out")
        result, kept = RecoveryResult(mode=the_mode, is_dry_run=dry_run), []
        if app.has_database():
            recovery = app.recovery
            policy = replace(recovery.policy, is_forced=force)
            if threshold is not None:
                policy = replace(policy, threshold_seconds=threshold)
            if show_all:
                plan = recovery.plan(every_document=True, mode=the_mode, policy=policy)
                kept = [step for step in plan if step.action is RecoveryAction.LEAVE]
            result = recovery.recover(every_document=True, mode=the_mode, policy=policy, is_dry_run=dry_run)
        result = replace(result, steps=(*result.steps, *kept))
        output.emit(result.to_json(), _lines(result), as_json=as_json)

    return 0


def _lines(result: RecoveryResult) -> list[str]:
    if not result.steps:
        return ["there is nothing to recover"]
    steps = [(step.adw_id, step.action.value, step.why) for step in result.steps]
    lines = output.table(("WORKFLOW", "ACTION", "WHY"), steps)
    if result.is_dry_run or result.mode is Mode.NONE:
        return [*lines, "nothing was changed" + ("" if result.is_dry_run else ": recovery is off (mode none)")]
    told = f"{result.reset_to_pending} reset to pending, {result.marked_failed} failed, {result.marked_stopped} stopped"

    return [*lines, told]


if __name__ == "__main__":
    start()
