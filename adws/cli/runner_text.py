"""
What is shown of workers and of what waits for them: plain data for `--json`, and lines made from that same data.

Starts fast, as `adw runs` does: people look at workers when something is stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import time_words, timestamps
from adws.adw_modules.interfaces_coordination import Runner
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.run_limits import full_labels
from adws.adw_modules.run_waiting import RunnerState, offer_of, state_of, why_held
from adws.adw_modules.runs import Run, RunState
from adws.cli import output

if TYPE_CHECKING:
    from adws.app import App

#: Characters of a runner's id in the table; --json has it whole.
ID_WIDTH = 8


def why_waiting(app: App, runs: Sequence[Run]) -> dict[int, str]:
    """Return for each run that is due and may not be claimed now why that is; asks nothing when nothing can be held."""
    now, limits = timestamps.to_text(app.clock.now()), app.settings.run_limits
    due = [run for run in runs if run.state is RunState.PENDING and run.not_before <= now]
    if not any(run.demands.to_text() or (limits and run.labels) for run in due):
        return {}
    online = [runner for runner in app.runners.all() if state(app, runner) is RunnerState.ONLINE]
    full = full_labels((run.labels for run in app.runs.live()), limits) if limits else ()
    offers = [offer_of(runner) for runner in online]
    found = {run.run_id: why_held(run, offers=offers, full=full, limits=limits) for run in due}

    return {run_id: why for run_id, why in found.items() if why}


def state(app: App, runner: Runner) -> RunnerState:
    """Return how a runner stands, seen from here."""
    verdict = app.processes.verdict(runner.owner)

    return state_of(runner, verdict=verdict, lease_seconds=app.settings.lease_ttl_seconds)


def runner_data(runner: Runner, *, state: RunnerState, now: datetime) -> JsonObject:
    """Return one runner, with what it offers and how long ago it was heard of."""
    return {
        "runner_id": runner.runner_id,
        "host": runner.owner.host,
        "pid": runner.owner.pid,
        "tags": sorted(runner.tags),  # type: ignore[dict-item]  # texts are JSON
        "state": state.value,
        "busy": runner.busy,
        "places": runner.concurrency,
        "version": runner.version,
        "started_at": runner.started_at,
        "age_seconds": round((now - timestamps.parse(runner.started_at)).total_seconds(), 1),
        "heartbeat_at": runner.heartbeat_at,
        "silent_seconds": round(max(0.0, runner.silent_seconds), 1),
    }


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
            time_words.age(_number(row["age_seconds"])),
            time_words.age(_number(row["silent_seconds"])),
        )
        for row in rows
    ]

    return output.table(("RUNNER", "HOST", "PID", "TAGS", "STATE", "BUSY", "SINCE", "HEARD"), cells)


def _number(value: object) -> float:
    return float(value) if isinstance(value, float | int) else 0.0
