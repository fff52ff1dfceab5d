"""
Rows of the tables of executions as nouns, and back, and the events of a turn as rows.

All of this is on the path of every call of a loop, so texts that stay the same are made once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from adws.adw_modules.db import rows
from adws.adw_modules.db.session import Row
from adws.adw_modules.demands import Demands
from adws.adw_modules.events import Event
from adws.adw_modules.execution_state import Head, Iteration
from adws.adw_modules.execution_words import ExecutionState
from adws.adw_modules.executions import Execution, NewExecution
from adws.adw_modules.runs import labels_of, labels_text
from adws.adw_modules.step_json import step_from_json, step_to_json
from adws.adw_modules.steps import StepSpec

_encode = json.JSONEncoder(allow_nan=False).encode
_JSON_COLUMNS = ("result", "context", "data", "meta")

#: Takes out of a text of JSON what must not be stored.
Scrub = Callable[[bytes], bytes]


def scrubbed(text: str, scrub: Scrub) -> str:
    """Return a text of JSON as it is stored."""
    payload = text.encode("ascii")
    found = scrub(payload)

    return text if found is payload else found.decode()


def json_text(value: object, what: str, scrub: Scrub) -> str:
    """Return *value* as it is stored; raise StateUnserialisable, naming *what*, when it is not JSON."""
    return scrubbed(rows.json_text(value, what), scrub)


def new_params(new: NewExecution, *, lanes: int, moment: str, scrub: Scrub) -> dict[str, object]:
    """Return the columns of an execution that is asked for."""
    return {
        "execution_id": rows.plain(new.execution_id),
        "adw_id": new.adw_id,
        "phase": rows.plain(new.phase),
        "attempt_number": new.attempt_number,
        "step": rows.plain(new.step.name),
        "parent_execution_id": rows.plain(new.parent_execution_id),
        "parent_run_id": new.parent_run_id,
        "catalog_id": rows.plain(new.catalog_id),
        "lanes": lanes,
        "created_at": moment,
        "labels": labels_text(new.labels),
        "demands": new.demands.to_text(),
        "spec": rows.json_text(step_to_json(new.step), f"step {new.step.name}"),
        "context": json_text(new.context, f"the context of step {new.step.name}", scrub),
    }


def to_new(row: Row) -> NewExecution:
    """Return what was asked for, of a row of `execution_statements.PLAN`."""
    return NewExecution(
        execution_id=row[0],
        adw_id=row[1],
        phase=row[2],
        attempt_number=row[3],
        parent_execution_id=row[5],
        parent_run_id=row[6],
        catalog_id=row[7],
        labels=labels_of(row[10]),
        demands=Demands.from_text(row[11]),
        step=step_from_json(json.loads(row[12])),
        context=json.loads(row[13]),
    )


def to_head(execution_id: str, step: StepSpec, row: Row) -> Head:
    """Return an execution as it stands, of a row of `execution_statements.HEAD`."""
    return Head(
        execution=Execution(
            execution_id=execution_id,
            step=step,
            state=ExecutionState(row[0]),
            reason=row[1],
            total=row[2],
            succeeded=row[5],
            failed=row[6],
            cancelled=row[7],
            first_event_id=row[11],
        ),
        stored=row[3],
        next_index=row[4],
        cancel_reason=row[8],
        lanes=row[9],
        last_event=row[10],
        ended_at=row[12],
        created_at=row[13],
    )


def head_params(head: Head) -> dict[str, object]:
    """Return the columns of an execution that a turn may change."""
    done = head.execution

    return {
        "execution_id": done.execution_id,
        "state": done.state.value,
        "reason": rows.plain(done.reason),
        "total": done.total,
        "stored": head.stored,
        "next_index": head.next_index,
        "succeeded": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "cancel_reason": rows.plain(head.cancel_reason),
        "last_event": head.last_event,
        "first_event_id": done.first_event_id,
        "ended_at": head.ended_at,
    }


def to_iteration(row: Row) -> Iteration:
    """Return the iteration in a row of `execution_statements.COLUMNS`."""
    return Iteration(
        index=row[0],
        state=row[1],
        attempts=row[2],
        page=row[3],
        same_call=row[4],
        interruptions=row[5],
        next_at=row[6],
        why=row[7],
        run_id=row[8],
        token=row[9],
        last_event_id=row[10],
        sequence_id=row[11],
        fingerprint=row[12],
        same_failures=row[13],
        marks=row[14],
        error=row[15],
        process=row[16],
        started_at=row[17],
        ended_at=row[18],
        call=row[19],
        element=row[20],
        result=row[21],
    )


def iteration_params(execution_id: str, row: Iteration, scrub: Scrub) -> dict[str, object]:
    """Return every column of an iteration but for its element."""
    return {
        "execution_id": execution_id,
        "idx": row.index,
        "state": row.state,
        "attempts": row.attempts,
        "page": row.page,
        "same_call": row.same_call,
        "interruptions": row.interruptions,
        "next_at": row.next_at,
        "why": rows.plain(row.why),
        "run_id": row.run_id,
        "token": row.token,
        "last_event_id": row.last_event_id,
        "sequence_id": row.sequence_id,
        "fingerprint": rows.plain(row.fingerprint),
        "same_failures": row.same_failures,
        "marks": row.marks,
        "error": rows.plain(row.error),
        "process": row.process,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "call": scrubbed(row.call, scrub),
        "result": scrubbed(row.result, scrub),
    }


def event_rows(events: Sequence[Event]) -> list[dict[str, object]]:
    """Return the events of one turn as parameters; values that many of them share are written once."""
    texts: dict[int, str] = {}

    def text_of(value: object) -> str:
        if value is None:
            return "null"
        if not value and isinstance(value, dict):
            return "{}"
        known = texts.get(id(value))
        if known is None:
            known = texts[id(value)] = _encode(value)
        return known

    found: list[dict[str, object]] = []
    for event in events:  # the events live as long as this call, and so do their values: an id means one of them
        params = dict(event.__dict__)
        for name in _JSON_COLUMNS:
            params[name] = text_of(params[name])
        found.append(params)

    return found
