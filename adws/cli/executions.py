"""
`adw executions`: the steps of a workflow that loop or retry, their iterations, and the calls of one of these.

Only looks, and starts without pydantic and SQLAlchemy.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from adws.adw_modules import time_words
from adws.adw_modules.errors import StateNotFound
from adws.cli import main, output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from adws.adw_modules.execution_views import ExecutionLine, IterationDetail, IterationLine
    from adws.adw_modules.json_value import JsonObject, JsonValue
    from adws.app import App

_WIDTH = 50
#: Characters of a whole element or result that are printed as text.
_LONGEST = 2000


@click.command()
@click.argument("name", metavar="ID")
@click.option("--step", default="", help="Only those of this step.")
@click.option("--failed", "only_failed", is_flag=True, help="Only iterations that failed.")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="Open one iteration: its calls and pages.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="N", help="Only iterations after this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Lines to show.")
@output.json_option
def executions(
    *, name: str, step: str, only_failed: bool, index: int | None, after: int, limit: int, as_json: bool
) -> None:
    """Show the executions of workflow ID; with the id of an execution its iterations, and with --index one of them."""
    with main.open_home() as app:
        if not app.has_database():
            raise StateNotFound(name)
        now = app.clock.now()
        if "." not in name and index is None:
            found = _of_workflow(app, name, step, limit, only_failed=only_failed)
            output.emit({"executions": [one.to_json() for one in found]}, _lines(found, now), as_json=as_json)
            return
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


def _of_workflow(app: App, adw_id: str, step: str, limit: int, *, only_failed: bool) -> Sequence[ExecutionLine]:
    found = app.execution_views.of_workflow(adw_id, step=step, limit=limit)
    if not found and not app.store.exists(adw_id):
        raise StateNotFound(adw_id)

    return [one for one in found if one.failed or not only_failed]


def _lines(found: Sequence[ExecutionLine], now: datetime) -> list[str]:
    if not found:
        return ["No step of it loops or retries."]
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
            output.shorten(one.reason, _WIDTH) or "-",
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
                row.state,
                str(row.attempts),
                str(row.page),
                output.moment(row.next_at, now) if row.next_at else "-",
                output.shorten(row.element, _WIDTH),
                output.shorten(row.result, _WIDTH) or "-",
                output.shorten(row.error, _WIDTH) or "-",
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
            ("state", line.state),
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
            time_words.span(seconds) if isinstance(seconds := call.get("duration"), int | float) else "-",
            output.shorten(_why(call), _WIDTH) or "-",
        )
        for call in detail.calls
    ]

    return [*facts, "", *output.table(("CALL", "EVENT", "WHEN", "TIME", "WHY"), calls)] if calls else facts


def _why(call: JsonObject) -> str:
    data = call.get("data")
    error = data.get("error") if isinstance(data, dict) else None

    return str(error.get("message") or "") if isinstance(error, dict) else ""


def _shown(value: JsonValue) -> str:
    return output.shorten(json.dumps(value, ensure_ascii=False), _LONGEST)
