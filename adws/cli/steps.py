"""Steps that loop or retry, for `adw status`; `adw queue retries`, `adw queue external`."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

import click

from adws.adw_modules import identifiers
from adws.adw_modules.errors import TaskNotFound, UsageError
from adws.adw_modules.external_tasks import PATH, ExternalTask
from adws.cli import main, output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from adws.adw_modules.identifiers import JsonObject, JsonValue
    from adws.adw_modules.steps.model import WaitingRetry
    from adws.adw_modules.steps.views import ExecutionLine, IterationDetail, IterationLine
    from adws.app import Home


_WIDTH = 50
#: Characters printed of a whole element or result as text.
_LONGEST = 2000


def show_step(name: str, *, only_failed: bool, index: int | None, after: int, limit: int, as_json: bool) -> None:
    """Show the iterations of a step's execution *name*, or with *index* one iteration with its calls."""
    with main.open_home() as app:
        if not app.has_database():
            raise app.no_workflow(name)
        now = app.clock.now()
        if index is not None:
            detail = app.execution_views.iteration(name, index)
            output.emit(detail.to_json(), _detail_lines(detail, now), as_json=as_json)
            return
        execution = app.execution_views.get(name)
        states = ("failed",) if only_failed else ()
        rows = app.execution_views.iterations(name, states=states, after=after, limit=limit + 1)
        shown, more = rows[:limit], rows[limit - 1].index if len(rows) > limit else None
        data: JsonObject = {
            "execution": execution.to_json(),
            "iterations": [row.to_json() for row in shown],
            "next_after": more,
        }
        output.emit(data, [*_lines([execution], now), "", *_iteration_lines(shown, now, more)], as_json=as_json)


def _lines(found: Sequence[ExecutionLine], now: datetime) -> list[str]:
    rows = [
        (
            one.execution_id,
            one.step,
            one.state,
            f"{one.done}/{'?' if one.total is None else one.total}",
            str(one.failed),
            str(one.running),
            str(one.waiting),
            output.moment(one.next_retry, now) if one.next_retry else "-",
            identifiers.shortened(one.reason, _WIDTH) or "-",
        )
        for one in found
    ]
    headers = ("EXECUTION", "STEP", "STATE", "DONE", "FAILED", "IN FLIGHT", "WAITING", "NEXT RETRY", "REASON")

    return output.table(headers, rows)


def _iteration_lines(rows: Sequence[IterationLine], now: datetime, more: int | None) -> list[str]:
    if not rows:
        return ["No iteration is to be shown."]
    lines = output.table(
        ("INDEX", "STATE", "CALLS", "PAGE", "NEXT CALL", "ELEMENT", "RESULT", "ERROR"),
        [
            (
                str(row.index),
                f"{row.state} (cut)" if row.is_cut else row.state,
                str(row.attempts),
                str(row.page),
                output.moment(row.next_at, now) if row.next_at else "-",
                identifiers.shortened(row.element, _WIDTH),
                identifiers.shortened(row.result, _WIDTH) or "-",
                identifiers.shortened(row.error, _WIDTH) or "-",
            )
            for row in rows
        ],
    )

    return lines if more is None else [*lines, "", f"more: --after {more}"]


def _detail_lines(detail: IterationDetail, now: datetime) -> list[str]:
    line = detail.line
    facts = output.facts(
        [
            ("iteration", str(line.index)),
            ("state", f"{line.state} (cut at max_attempts: there are more pages)" if line.is_cut else line.state),
            ("calls", str(line.attempts)),
            ("pages kept", ", ".join(f"{size} characters" for size in detail.pages)),
            ("next call", output.moment(line.next_at, now) if line.next_at else ""),
            ("error", line.error),
            ("element", _shown(detail.element)),
            ("asked for", _shown(detail.call) if detail.call else ""),
            ("result", _shown(detail.result) if detail.result is not None else ""),
        ]
    )
    calls = [
        (
            str(call.get("attempt_number") or ""),
            str(call.get("event_type") or ""),
            output.moment(str(call.get("created_at") or ""), now),
            identifiers.span(seconds) if isinstance(seconds := call.get("duration"), int | float) else "-",
            identifiers.shortened(_why(call), _WIDTH) or "-",
        )
        for call in detail.calls
    ]

    return [*facts, "", *output.table(("CALL", "EVENT", "WHEN", "TIME", "WHY"), calls)] if calls else facts


def _why(call: JsonObject) -> str:
    data = call.get("data")
    error = data.get("error") if isinstance(data, dict) else None

    return str(error.get("message") or "") if isinstance(error, dict) else ""


def _shown(value: JsonValue) -> str:
    return identifiers.shortened(json.dumps(value, ensure_ascii=False), _LONGEST)


# --- `adw queue retries`: list the scheduled retries of phases and calls of steps, and cancel one --------------


_ERROR_WIDTH = 60


@click.group(invoke_without_command=True)
@click.option("--workflow", "adw_id", metavar="ID", default="", help="Only those of this workflow.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Retries to show."
)
@output.json_option
@click.pass_context
def retries(context: click.Context, *, adw_id: str, limit: int, as_json: bool) -> None:
    """List scheduled retries, the next one first; cancel one."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows = app.pending_retries.all(adw_id=adw_id, limit=limit) if app.has_database() else ()

        output.emit(
            {"retries": [retry.to_json() for retry in rows]}, _lines_retries(rows, app.clock.now()), as_json=as_json
        )


@retries.command()
@click.argument("retry_id", metavar="ID")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="Of an execution: only this iteration.")
@click.option("-m", "--message", default="", help="Why, for the history.")
@output.json_option
def cancel(*, retry_id: str, index: int | None, message: str, as_json: bool) -> None:
    """Cancel the retries of ID: the calls of an execution, or the next attempt of a workflow's phase."""
    answers = importlib.import_module("adws.cli.common")
    with main.open_home() as app:
        done = app.pending_retries.cancel(retry_id, by=answers.who(), index=index, reason=message)

        output.emit({"id": retry_id, "index": index, "message": done}, done, as_json=as_json)


def _lines_retries(found: Sequence[WaitingRetry], now: datetime) -> list[str]:
    if not found:
        return ["No retries are scheduled."]
    rows = [
        (
            retry.retry_id,
            "" if retry.index is None else str(retry.index),
            retry.phase,
            retry.step,
            str(retry.attempt_number),
            output.moment(retry.next_at, now),
            retry.why,
            identifiers.shortened(retry.error, _ERROR_WIDTH),
        )
        for retry in found
    ]

    return output.table(("ID", "INDEX", "PHASE", "STEP", "TRIED", "NEXT TRY", "WHY", "LAST ERROR"), rows)


# --- `adw queue external`: external tasks, their workers, and their tokens -------------------------------------
#
# Read-only. A token is printed only if it is asked for.


@click.group(invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="Also those that are over.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1000), default=100, show_default=True, help="Tasks to show."
)
@output.json_option
@click.pass_context
def external(context: click.Context, *, is_all: bool, limit: int, as_json: bool) -> None:
    """List external tasks, and show the token of one."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        tasks = app.external_tasks.page(only_open=not is_all, limit=limit) if app.has_database() else ()
        now = app.clock.now()

        output.emit({"tasks": [task.to_json() for task in tasks]}, _lines_external(tasks, now), as_json=as_json)


@external.command()
@click.argument("name", metavar="TASK")
@click.option("--token", "with_token", is_flag=True, help="Print its token, too: with it anybody may report.")
@output.json_option
def show(*, name: str, with_token: bool, as_json: bool) -> None:
    """Show one task; TASK may be the id of a workflow, too: then it is the one that it waits for."""
    with main.open_home() as app:
        task = _found(app, name)
        data = task.to_json()
        if with_token:
            data["token"] = app.external.token_of(task.task_id)
        shown = _facts(task, app.clock.now(), str(data.get("token", "")))

        output.emit(data, shown, as_json=as_json)


def _found(app: Home, name: str) -> ExternalTask:
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


def _lines_external(tasks: Sequence[ExternalTask], now: datetime) -> list[str]:
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
