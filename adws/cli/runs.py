"""
`adw queue runs`, `adw queue workers`: the runs and how they ended, and the workers.

Read-only. Starts without SQLAlchemy and the like, because people look at the queue when something is stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from adws.adw_modules import identifiers, timestamps, views
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.queue.model import Run, RunState
from adws.adw_modules.queue.workers import Patience, RunnerState, plan_unmatched
from adws.adw_modules.recovery.explain import why_held, worker_state
from adws.adw_modules.workflow.requirements import Requirements
from adws.cli import main, output

# --- runs as plain data for `--json`, and as lines made from that data (pure) ----------------------------------


#: Fields of a run that are shown as stored.
_OF_RUN = (
    *("run_id", "adw_id", "kind", "priority", "attempts", "reason", "losses", "slot", "parent_run_id", "payload"),
    *("asked_by", "created_at", "updated_at", "started_at", "finished_at"),
)
#: Longer reasons are truncated in the table, but not with --json.
REASON_WIDTH = 60


def run_data(run: Run, *, verdict: Verdict, now: datetime, held: str = "") -> JsonObject:
    """Return a run with its age, the liveness of its worker, and why it waits although it is due."""
    owner = (views.owner_name(run.owner) or "a worker whose record cannot be read") if run.owner else None

    return {
        **{name: getattr(run, name) for name in _OF_RUN},
        "state": run.state.value,
        "not_before": run.not_before or None,
        "is_due": run.state is RunState.PENDING and run.not_before <= timestamps.to_text(now),
        "owner": owner,
        "liveness": verdict.value if run.owner else "none",
        "claim_seconds_left": round(run.seconds_left, 1) if run.owner else None,
        "demands": run.demands.to_json(),
        "labels": sorted(run.labels),
        "held_by": held or None,
        "age_seconds": round((now - timestamps.parse(run.created_at)).total_seconds(), 1),
    }


def run_lines(rows: Sequence[JsonObject], *, next_page: int | None) -> list[str]:
    """Return the runs as a table, and the command for the next page."""
    if not rows:
        return ["no runs"]
    cells = [
        (
            str(row["run_id"]),
            str(row["adw_id"]),
            str(row["kind"]),
            str(row["state"]),
            identifiers.age(_seconds(row["age_seconds"])),
            _worker(row),
            _due(row),
            identifiers.shortened(_why(row), REASON_WIDTH),
        )
        for row in rows
    ]
    lines = output.table(("RUN", "WORKFLOW", "KIND", "STATE", "ASKED", "WORKER", "DUE", "REASON"), cells)
    lines += _advice(rows)
    if next_page is not None:
        lines.append(f"older ones: adw queue runs --before {next_page}")

    return lines


def _why(row: JsonObject) -> str:
    """Return why a run is in its state: what holds it, or else its reason and its demands."""
    demands = Requirements.from_json(row["demands"])
    said = str(row["held_by"] or row["reason"])
    wanted = f"demands {demands.describe()}" if demands.to_text() and not row["held_by"] else ""

    return "; ".join(filter(None, [said, wanted]))


def _advice(rows: Sequence[JsonObject]) -> list[str]:
    """Return what to do about dead runs that no newer run replaced; *rows* begins with the newest."""
    newest = {str(row["adw_id"]): row for row in reversed(rows)}

    return [
        f"dead: too many workers vanished with {adw_id}: look into adw logs {adw_id}, then adw retry {adw_id} --grant 1"
        for adw_id, row in reversed(newest.items())
        if row["state"] == RunState.DEAD.value
    ]


def _worker(row: JsonObject) -> str:
    left = row["claim_seconds_left"]
    if not isinstance(left, float | int):
        return "-"
    ends = f"{left:.0f} s left" if left > 0 else "over"

    return f"{row['owner']}, {row['liveness']}, claim {ends}"


def _due(row: JsonObject) -> str:
    if row["state"] != RunState.PENDING.value:
        return "-"
    if row["is_due"]:
        return "now"

    return f"{timestamps.parse(str(row['not_before'])):%Y-%m-%d %H:%M:%S} UTC"


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, float | int) else 0.0


# --- workers as lines of text ----------------------------------------------------------------------------------


#: Characters of a runner's id in the table; --json shows it whole.
ID_WIDTH = 8


def runner_lines(rows: Sequence[JsonObject]) -> list[str]:
    """Return the runners as a table."""
    if not rows:
        return ["no workers; adw worker starts one"]
    cells = [
        (
            str(row["runner_id"])[:ID_WIDTH],
            str(row["host"]),
            str(row["pid"]),
            ", ".join(map(str, row["tags"])) if isinstance(row["tags"], list) and row["tags"] else "-",
            str(row["state"]),
            "-" if row["state"] == RunnerState.GONE.value else f"{row['busy']}/{row['places']}",
            identifiers.age(_seconds(row["age_seconds"])),
            identifiers.age(_seconds(row["silent_seconds"])),
        )
        for row in rows
    ]

    return output.table(("RUNNER", "HOST", "PID", "TAGS", "STATE", "BUSY", "SINCE", "HEARD"), cells)


@click.command()
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    callback=lambda _ctx, _param, values: tuple(map(_known_state, values)),
    help="Only those in this state; may be given several times.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=50, show_default=True, help="Runs to show.")
@click.option("--before", type=click.IntRange(min=1), metavar="RUN", help="Only those that are older than this one.")
@output.json_option
def runs(*, states: tuple[RunState, ...], limit: int, before: int | None, as_json: bool) -> None:
    """List runs, newest first: queued, running, ended."""
    with main.open_home() as app:
        page = app.runs.page(states=states, limit=limit + 1, before=before) if app.has_database() else ()
        now = app.clock.now()
        held = why_held(app, page[:limit]) if page else {}
        rows = []
        for run in page[:limit]:
            verdict = app.processes.verdict(OwnerRecord.from_text(run.owner))
            rows.append(run_data(run, verdict=verdict, now=now, held=held.get(run.run_id, "")))
        next_page = page[limit - 1].run_id if len(page) > limit else None
        lines = run_lines(rows, next_page=next_page)

        output.emit({"runs": list(rows), "next_before": next_page}, lines, as_json=as_json)


def _known_state(text: str) -> RunState:
    """Return the state named in any case; raise UsageError with the list of states."""
    try:
        return RunState(text.lower())
    except ValueError as exc:
        known = ", ".join(state.value for state in RunState)
        raise UsageError(f"{text!r} is not a state of a run; use one of {known}") from exc


# --- `adw queue workers`: the workers, what they offer, and their last heartbeat -------------------------------


@click.command()
@output.json_option
def workers(*, as_json: bool) -> None:
    """List the workers on every machine: online, draining, silent or gone."""
    with main.open_home() as app:
        result = app.workers.all() if app.has_database() else ()
        now = app.clock.now()
        rows = [views.worker(runner, state=worker_state(app, runner).value, now=now) for runner in result]

        output.emit({"runners": list(rows)}, runner_lines(rows), as_json=as_json)


@click.command()
@output.json_option
def unschedulable(*, as_json: bool) -> None:
    """List the runs that no worker can execute, and why; each fails after five minutes."""
    with main.open_home() as app:
        patience = Patience(no_match=0.0, lease=app.settings.lease_ttl_seconds)
        waiting = app.runs.demanding() if app.has_database() else ()
        unmatched = (
            plan_unmatched(waiting, app.workers.all(), now=app.clock.now(), patience=patience) if waiting else ()
        )
        data: list[JsonObject] = [
            {"run_id": one.run.run_id, "adw_id": one.run.adw_id, "demands": one.run.demands.to_json()}
            for one in unmatched
        ]
        rows = [(str(one.run.run_id), one.run.adw_id, one.run.demands.describe()) for one in unmatched]
        lines = (
            output.table(("RUN", "WORKFLOW", "DEMANDS"), rows)
            if rows
            else ["every run has a worker that can execute it"]
        )

        output.emit({"unschedulable": data}, lines, as_json=as_json)
