"""
`adw external`: what is done outside of adw, who has it, and the token that opens it.

Only looks. The token is printed when it is asked for, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.errors import UsageError
from adws.adw_modules.external_tasks import PATH, ExternalTask, TaskNotFound
from adws.cli import main, output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from adws.app import App
    from adws.cli.output import Printable


@click.group(invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="Also those that are over.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Tasks to show.")
@output.json_option
@click.pass_context
def external(context: click.Context, *, is_all: bool, limit: int, as_json: bool) -> None:
    """Show the tasks that are done outside of adw, and the token of one."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        tasks = app.external_tasks.page(only_open=not is_all, limit=limit) if app.has_database() else ()
        now = app.clock.now()

        output.emit({"tasks": [task_data(task) for task in tasks]}, _lines(tasks, now), as_json=as_json)


@external.command()
@click.argument("name", metavar="TASK")
@click.option("--token", "with_token", is_flag=True, help="Print its token, too: whoever has it may report.")
@output.json_option
def show(*, name: str, with_token: bool, as_json: bool) -> None:
    """Show one task; TASK may be the id of a workflow, too: then it is the one that it waits for."""
    with main.open_home() as app:
        task = _found(app, name)
        data = task_data(task)
        if with_token:
            data["token"] = app.external.token_of(task.task_id)
        shown = _facts(task, app.clock.now(), str(data.get("token", "")))

        output.emit(data, shown, as_json=as_json)


def task_data(task: ExternalTask) -> dict[str, Printable]:
    """Return a task for programs, without its token."""
    report = task.report

    return {
        "task_id": task.task_id,
        "adw_id": task.adw_id,
        "phase": task.phase,
        "attempt_number": task.attempt_number,
        "state": task.state,
        "path": f"{PATH}/{task.task_id}",
        "deadline": task.deadline,
        "created_at": task.created_at,
        "ended_at": task.ended_at,
        "claim": task.claims,
        "worker": task.worker,
        "claim_until": task.claim_until or None,
        "is_ok": None if report is None else report.is_ok,
        "summary": "" if report is None else report.summary,
        "error": {} if report is None else report.error,
    }


def _found(app: App, name: str) -> ExternalTask:
    if not app.has_database():
        raise TaskNotFound(name)
    task = app.external_tasks.get(name)
    if task is not None:
        return task
    of_workflow = app.external_tasks.page(adw_id=name, limit=1)
    if not of_workflow:
        raise TaskNotFound(name)
    if of_workflow[0].state != "open":
        raise UsageError(f"workflow {name} waits for no task; its last one was {of_workflow[0].task_id}")

    return of_workflow[0]


def _lines(tasks: Sequence[ExternalTask], now: datetime) -> list[str]:
    if not tasks:
        return ["Nothing is waited for that is done outside of adw."]
    rows = [
        (task.task_id, task.state, _holder(task, now), output.moment(task.deadline, now), _summary(task))
        for task in tasks
    ]

    return output.table(("TASK", "STATE", "WITH", "DEADLINE", "SUMMARY"), rows)


def _facts(task: ExternalTask, now: datetime, token: str) -> list[str]:
    return output.facts(
        [
            ("task", task.task_id),
            ("workflow", task.adw_id),
            ("phase", f"{task.phase}, attempt {task.attempt_number}"),
            ("state", task.state),
            ("path", f"{PATH}/{task.task_id}"),
            ("deadline", output.moment(task.deadline, now)),
            ("with", _holder(task, now)),
            ("summary", _summary(task)),
            ("token", token),
        ]
    )


def _holder(task: ExternalTask, now: datetime) -> str:
    if not task.claims:
        return "nobody"
    who = f"{task.worker or 'somebody'} (claim {task.claims}"
    if not task.claim_until:
        return f"{who})"

    return f"{who}, {'until' if task.is_held(now) else 'silent since'} {output.moment(task.claim_until, now)})"


def _summary(task: ExternalTask) -> str:
    if task.report is None:
        return ""

    return task.report.summary or str(task.report.error.get("message") or "")
