"""
What `adw runs` shows: plain data for `--json`, and lines of text made from that same data.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from adws.adw_modules import time_words, timestamps
from adws.adw_modules.demands import Demands
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import Run, RunState
from adws.cli import output

#: Longer reasons are cut in the table; --json has them whole.
REASON_WIDTH = 60


def run_data(run: Run, *, verdict: Verdict, now: datetime, held: str = "") -> JsonObject:
    """Return one run with its age, the liveness of its worker, and why it waits though it is due."""
    owner = OwnerRecord.from_text(run.owner)

    return {
        "run_id": run.run_id,
        "adw_id": run.adw_id,
        "kind": run.kind,
        "state": run.state.value,
        "priority": run.priority,
        "not_before": run.not_before or None,
        "is_due": run.state is RunState.PENDING and run.not_before <= timestamps.to_text(now),
        "attempts": run.attempts,
        "owner": _name_of(run, owner),
        "liveness": verdict.value if run.owner else "none",
        "claim_seconds_left": round(run.seconds_left, 1) if run.owner else None,
        "reason": run.reason,
        "demands": run.demands.to_json(),
        "labels": sorted(run.labels),  # type: ignore[dict-item]  # texts are JSON
        "held_by": held or None,
        "losses": run.losses,
        "slot": run.slot,
        "parent_run_id": run.parent_run_id,
        "payload": run.payload,
        "asked_by": run.asked_by,
        "age_seconds": round((now - timestamps.parse(run.created_at)).total_seconds(), 1),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def run_lines(rows: Sequence[JsonObject], *, next_page: int | None) -> list[str]:
    """Return the runs as a table, and how to see those before them."""
    if not rows:
        return ["no runs"]
    cells = [
        (
            str(row["run_id"]),
            str(row["adw_id"]),
            str(row["kind"]),
            str(row["state"]),
            time_words.age(_seconds(row["age_seconds"])),
            _worker(row),
            _due(row),
            output.shorten(_why(row), REASON_WIDTH),
        )
        for row in rows
    ]
    lines = output.table(("RUN", "WORKFLOW", "KIND", "STATE", "ASKED", "WORKER", "DUE", "REASON"), cells)
    lines += _advice(rows)
    if next_page is not None:
        lines.append(f"older ones: adw runs --before {next_page}")

    return lines


def _why(row: JsonObject) -> str:
    """Return why a run is where it is: what holds it, else what was said, and what it demands."""
    demands = Demands.from_json(row["demands"])
    said = str(row["held_by"] or row["reason"])
    wanted = f"demands {demands.describe()}" if demands.to_text() and not row["held_by"] else ""

    return "; ".join(filter(None, [said, wanted]))


def _advice(rows: Sequence[JsonObject]) -> list[str]:
    """Return what to do about runs that were given up, and that nobody has asked for again; the newest come first."""
    newest = {str(row["adw_id"]): row for row in reversed(rows)}

    return [
        f"dead: too many workers vanished with {adw_id}: look into adw logs {adw_id}, then adw retry {adw_id} --grant 1"
        for adw_id, row in reversed(newest.items())
        if row["state"] == RunState.DEAD.value
    ]


def _name_of(run: Run, owner: OwnerRecord | None) -> str | None:
    if not run.owner:
        return None

    return owner.describe() if owner else "a worker whose record cannot be read"


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
