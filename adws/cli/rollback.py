"""`adw rollback`: undo everything a workflow made; a plan first, on request only that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules import rollback_texts
from adws.adw_modules.rollback import RollbackReport
from adws.adw_modules.rollback_rules import Wishes
from adws.cli import arguments, log, looking, main, output
from adws.cli.answers import who

if TYPE_CHECKING:
    from adws.app import App

EXIT_BLOCKED = 1


@click.command()
@arguments.adw_id_argument
@click.option("--reason", default="", help="Why, for the pull request, the issue and the history.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--force", is_flag=True, help="Go on although work cannot be salvaged, or a process not be confirmed dead."
)
@click.option("--keep-branch", is_flag=True, help="Keep the branch, here and at the remote.")
@click.option(
    "--forget-host",
    "forget_hosts",
    multiple=True,
    metavar="HOST",
    help="Give up what is on a machine that is gone for good; it is listed as left there. May be repeated.",
)
@click.option(
    "--wait", type=arguments.NumberRange(min=0), default=30.0, show_default=True, help="Seconds to wait for its owner."
)
@click.option("--detach", is_flag=True, help="Leave the rollback to a worker (adw worker).")
@output.json_option
def rollback(
    *,
    adw_id: str,
    reason: str,
    dry_run: bool,
    force: bool,
    keep_branch: bool,
    forget_hosts: tuple[str, ...],
    wait: float,
    detach: bool,
    as_json: bool,
) -> int:
    """
    Undo everything a workflow made, in a safe order.

    Commits are kept as refs/adw/salvage/ID and uncommitted work as a patch. What cannot be undone now stays on the
    workflow's list; the same command goes on with it. A merged pull request is not undone. What is on another machine
    is left to a worker there, and the workflow is rolled back when that has done its part.
    """
    wishes = Wishes(
        reason=reason or f"rolled back by {who()}",
        keep_branch=keep_branch,
        force=force,
        forget_hosts=tuple(dict.fromkeys(forget_hosts)),
        by=who(),
    )
    with main.open_home() as app:
        log.install_for_people(app.settings)
        if detach and not dry_run:
            return _leave_to_worker(app, adw_id, wishes, wait_seconds=wait, as_json=as_json)
        if dry_run:
            report = app.tidy.rollbacks.plan(adw_id, wishes)
        else:
            say = (lambda _line: None) if as_json else output.say
            report = app.tidy.rolling_back.roll_back(adw_id, wishes, by=who(), wait_seconds=wait, say=say)
        output.emit(report.to_json(), _lines(report), as_json=as_json)

    return 0 if dry_run or report.is_complete else EXIT_BLOCKED


def _leave_to_worker(app: App, adw_id: str, wishes: Wishes, *, wait_seconds: float, as_json: bool) -> int:
    looking.peek(app, adw_id)  # a wrong id queues nothing
    queued = app.tidy.rollback_runs.queue(adw_id, wishes, by=who(), wait_seconds=wait_seconds)
    text = f"workflow {adw_id} waits for a worker that rolls it back"
    output.emit({"adw_id": adw_id, "run_id": queued.run_id}, [text, "next: adw worker"], as_json=as_json)

    return 0


def _left(line: str) -> str:
    return line if line.startswith("left on ") else f"left: {line}"


def _lines(report: RollbackReport) -> list[str]:
    lines = rollback_texts.plan_lines(report.steps)
    if report.is_dry_run:
        return [f"workflow {report.adw_id} is {report.state}; a rollback would:", *lines]
    if report.is_complete:
        return [*lines, f"workflow {report.adw_id} is rolled back", *map(_left, report.kept)]

    again = f"adw rollback {report.adw_id} goes on with it"
    if report.waits_for:
        hosts = ", ".join(report.waits_for)
        again = (
            f"it waits for a worker on {hosts}; if that is gone for good: "
            f"adw rollback {report.adw_id} --forget-host {report.waits_for[0]}"
        )

    return [*lines, f"workflow {report.adw_id} is not rolled back yet: {len(report.blocked_by)} left; {again}"]
