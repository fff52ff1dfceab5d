"""
Rows of the table `runs` as nouns, and back.

What is asked for is checked before it is stored: a moment in another spelling would sort wrongly for ever.
"""

from __future__ import annotations

import json

from adws.adw_modules.db import rows
from adws.adw_modules.db.session import Database, Row
from adws.adw_modules.demands import Demands
from adws.adw_modules.runs import NO_DEMANDS, NewRun, Run, RunState, check_new_run, labels_of, labels_text

NO_LABELS: frozenset[str] = frozenset()


#: Columns of `run_statements.CHANGED`.
_CHANGED = 9
#: A third of the time of `RunState(text)`.
_STATES = {state.value: state for state in RunState}


def to_run(row: Row) -> Run:
    """Return the run in a row of `run_statements.SHOWN`."""
    payload = row[11]

    return Run(
        run_id=row[0],
        adw_id=row[1],
        kind=row[2],
        state=_STATES[row[3]],
        priority=row[4],
        not_before=row[5],
        attempts=row[6],
        token=row[7],
        owner=row[8],
        seconds_left=float(row[9]),
        reason=row[10],
        payload={} if payload == "{}" else json.loads(payload),
        asked_by=row[12],
        created_at=row[13],
        updated_at=row[14],
        started_at=row[15],
        finished_at=row[16],
        demands=Demands.from_text(row[17]) if row[17] else NO_DEMANDS,
        labels=labels_of(row[18]) if row[18] else NO_LABELS,
        losses=row[19],
        slot=row[20],
        parent_run_id=row[21],
    )


def changed(run: Run, row: Row) -> Run:
    """Return *run* as it stands in a row of `run_statements.CHANGED`."""
    return Run(  # by hand: dataclasses.replace takes three times as long, and every run passes here
        run_id=run.run_id,
        adw_id=run.adw_id,
        kind=run.kind,
        state=_STATES[row[0]],
        priority=run.priority,
        not_before=row[1],
        attempts=run.attempts,
        token=run.token,
        owner=row[2],
        seconds_left=float(row[3]),
        reason=row[4],
        payload=run.payload,
        asked_by=run.asked_by,
        created_at=run.created_at,
        updated_at=row[5],
        started_at=row[6],
        finished_at=row[7],
        demands=run.demands,
        labels=run.labels,
        losses=row[8],
        slot=run.slot,
        parent_run_id=run.parent_run_id,
    )


def has_agent(row: Row) -> bool:
    """Say whether an agent of the run has not ended; only the ends of runs ask."""
    return len(row) > _CHANGED and bool(row[_CHANGED])


def new_run_params(run: NewRun, moment: str, database: Database) -> dict[str, object]:
    """
    Return the columns of a run that is asked for, as *database* stores them.

    Raises UsageError or StateUnserialisable when it cannot be one.
    """
    run = check_new_run(run)

    return {
        "adw_id": run.adw_id,
        "kind": run.kind,
        "rank": -run.priority,
        "not_before": run.not_before,
        "payload": database.clean_json(rows.json_text(run.payload, f"the payload of a run of {run.adw_id}")),
        "asked_by": rows.plain(database.clean(run.asked_by)),
        "demands": run.demands.to_text(),
        "labels": labels_text(run.labels),
        "slot": rows.plain(run.slot),
        "parent_run_id": run.parent_run_id,
        "moment": moment,
    }
