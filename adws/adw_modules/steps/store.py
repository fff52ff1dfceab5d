"""
Executions in the database: rows, events and runs change together or not at all.

Every change of an execution is one transaction that locks its row first. A lane proves by its run that it may change
anything; what it reports and what it takes next are the same transaction, and so is the end of the execution, which
makes the run of the workflow due.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import EventRefused, RunLost, StateInvalid, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock, OwnerRecord, ProcessRecord
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import ITERATION, Run, RunState, labels_of, labels_text
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.steps.context import event_contexts, resolved
from adws.adw_modules.steps.execution_update import (
    LEFT,
    ExecutionUpdate,
    cancel_some,
    failure_of,
    lanes_of,
    pick,
    shown_facts,
)
from adws.adw_modules.steps.model import (
    NULL,
    PENDING,
    RUNNING,
    Assignment,
    CallReport,
    Execution,
    ExecutionRow,
    ExecutionSpec,
    ExecutionState,
    Iteration,
    IterationState,
    NewExecution,
    ScheduledRetry,
    Slot,
    Taken,
    lane_run,
)
from adws.adw_modules.workflow.model import EXTERNAL, StepSpec, step_from_json, step_to_json
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.redaction.redactor import Redactor

# Rows of the tables of executions as values, and back, and the events of an update as rows.
#
# All of this is on the path of every call of a loop, so texts that stay the same are made once.


_encode = json.JSONEncoder(allow_nan=False).encode
_JSON_COLUMNS = ("result", "context", "data", "meta")


def scrubbed(text: str, redactor: Redactor) -> str:
    """Return a text of JSON as it is stored."""
    payload = text.encode("ascii")
    clean = redactor.scrub_bytes(payload)

    return text if clean is payload else clean.decode()


def json_text(value: object, what: str, redactor: Redactor) -> str:
    """Return *value* as it is stored; raise StateUnserialisable, naming *what*, when it is not JSON."""
    return scrubbed(connection.json_text(value, what), redactor)


def new_params(new: NewExecution, *, lanes: int, moment: str, redactor: Redactor) -> dict[str, object]:
    """Return the columns of an execution that is asked for."""
    return {
        "execution_id": connection.plain(new.execution_id),
        "adw_id": new.adw_id,
        "phase": connection.plain(new.phase),
        "attempt_number": new.attempt_number,
        "step": connection.plain(new.step.name),
        "parent_execution_id": connection.plain(new.parent_execution_id),
        "parent_run_id": new.parent_run_id,
        "catalog_id": connection.plain(new.catalog_id),
        "lanes": lanes,
        "created_at": moment,
        "labels": labels_text(new.labels),
        "demands": new.demands.to_text(),
        "spec": connection.json_text(step_to_json(new.step), f"step {new.step.name}"),
        "context": json_text(new.context, f"the context of step {new.step.name}", redactor),
    }


def to_new(row: Row) -> NewExecution:
    """Return what was asked for, of a row of `store.PLAN`."""
    return NewExecution(
        execution_id=row[0],
        adw_id=row[1],
        phase=row[2],
        attempt_number=row[3],
        parent_execution_id=row[5],
        parent_run_id=row[6],
        catalog_id=row[7],
        labels=labels_of(row[10]),
        demands=Requirements.from_text(row[11]),
        step=step_from_json(json.loads(row[12])),
        context=json.loads(row[13]),
    )


def to_head(execution_id: str, step: StepSpec, row: Row) -> ExecutionRow:
    """Return an execution as it stands, of a row of `store.HEAD`."""
    return ExecutionRow(
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


def head_params(head: ExecutionRow) -> dict[str, object]:
    """Return the columns of an execution that an update may change."""
    done = head.execution

    return {
        "execution_id": done.execution_id,
        "state": done.state.value,
        "reason": connection.plain(done.reason),
        "total": done.total,
        "stored": head.stored,
        "next_index": head.next_index,
        "succeeded": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "cancel_reason": connection.plain(head.cancel_reason),
        "last_event": head.last_event,
        "first_event_id": done.first_event_id,
        "ended_at": head.ended_at,
    }


def to_iteration(row: Row) -> Iteration:
    """Return the iteration in a row of `store.COLUMNS`."""
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


def iteration_params(execution_id: str, row: Iteration, redactor: Redactor) -> dict[str, object]:
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
        "why": connection.plain(row.why),
        "run_id": row.run_id,
        "token": row.token,
        "last_event_id": row.last_event_id,
        "sequence_id": row.sequence_id,
        "fingerprint": connection.plain(row.fingerprint),
        "same_failures": row.same_failures,
        "marks": row.marks,
        "error": connection.plain(row.error),
        "process": row.process,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "call": scrubbed(row.call, redactor),
        "result": scrubbed(row.result, redactor),
    }


def event_rows(events: Sequence[Event]) -> list[dict[str, object]]:
    """Return the events of one update as parameters; values that many of them share are written once."""
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

    result: list[dict[str, object]] = []
    for event in events:  # the events live as long as this call, and so do their values: an id means one of them
        params = dict(event.__dict__)
        for name in _JSON_COLUMNS:
            params[name] = text_of(params[name])
        result.append(params)

    return result


# Every query about executions, by name.
#
# As in `queue.store`; `{waiting}`, `{calling}` and `{open}` are the tables, scanned by the partial index of iterations
# that wait, are being called, or are not taken. Every change of an execution locks its row first.


#: SQLite is told which index: without statistics it takes the primary key, and walks over every iteration.
_SQLITE = {
    "{waiting}": "iterations INDEXED BY ix_iterations_waiting",
    "{calling}": "iterations INDEXED BY ix_iterations_running",
    "{open}": "executions INDEXED BY ix_executions_open",
}
_POSTGRESQL = {"{waiting}": "iterations", "{calling}": "iterations", "{open}": "executions"}


def spelled(database: Database, sql: str) -> str:
    """Return *sql* in the SQL of the dialect of *database*."""
    for word, meaning in (_POSTGRESQL if database.dialect == "postgresql" else _SQLITE).items():
        sql = sql.replace(word, meaning)

    return database.render(sql)


# --- executions ------------------------------------------------------------------------------------------------

NEW_COLUMNS = (
    "execution_id",
    "adw_id",
    "phase",
    "attempt_number",
    "step",
    "parent_execution_id",
    "parent_run_id",
    "catalog_id",
    "lanes",
    "created_at",
    "labels",
    "demands",
    "spec",
    "context",
)
#: 0 rows: it is there.
INSERT = (
    f"INSERT INTO executions ({', '.join(NEW_COLUMNS)}, state, reason, stored, next_index, succeeded, failed,"
    " cancelled, cancel_reason, last_event, first_event_id)"
    f" VALUES ({', '.join(f':{name}' for name in NEW_COLUMNS)}, 'running', '', 0, 0, 0, 0, 0, '', 0, '')"
    " ON CONFLICT (execution_id) DO NOTHING"
)
HEAD = """
SELECT state, reason, total, stored, next_index, succeeded, failed, cancelled, cancel_reason, lanes, last_event,
       first_event_id, ended_at, created_at
FROM executions WHERE execution_id = :execution_id
"""
HEAD_TO_CHANGE = HEAD + " {row_lock}"
PLAN = f"SELECT {', '.join(NEW_COLUMNS)} FROM executions WHERE execution_id = :execution_id"
UPDATE = """
UPDATE executions
SET state = :state, reason = :reason, total = :total, stored = :stored, next_index = :next_index,
    succeeded = :succeeded, failed = :failed, cancelled = :cancelled, cancel_reason = :cancel_reason,
    last_event = :last_event, first_event_id = :first_event_id, ended_at = :ended_at
WHERE execution_id = :execution_id
"""
MARK_TAKEN = "UPDATE executions SET taken_at = :moment WHERE execution_id = :execution_id AND ended_at IS NOT NULL"

# --- runs ------------------------------------------------------------------------------------------------------

#: Whether somebody wants the workflow to go on: it has a run that is not over and does not undo it.
_IS_WANTED = """EXISTS (
    SELECT 1 FROM runs AS main
    WHERE main.adw_id = :adw_id AND main.slot = '' AND main.finished_at IS NULL AND main.kind <> 'rollback'
)"""
#: The run of a lane, as long as it is ours; locked, so that nobody takes it back before we are done.
OUR_LANE = f"""
SELECT lane.state, lane.losses, {_IS_WANTED} FROM runs AS lane
WHERE lane.run_id = :run_id AND lane.token = :token AND lane.owner = :owner
  AND lane.state IN ('claimed', 'running', 'stopping')
{{row_lock}}
"""
DUE_LANES = """
SELECT run_id FROM runs
WHERE adw_id = :adw_id AND finished_at IS NULL AND kind = 'iteration' AND state = 'pending' AND not_before <= :moment
ORDER BY run_id
"""
IS_WANTED = f"SELECT 1 WHERE {_IS_WANTED}"
#: A lane that gets on is not one that workers vanish with.
FORGIVE_LOSSES = "UPDATE runs SET losses = 0 WHERE run_id = :run_id"
#: Makes the run due that waits for an execution.
WAKE = """
UPDATE runs SET not_before = '', updated_at = :moment
WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL AND state = 'pending' AND kind <> 'rollback'
  AND not_before > :moment
RETURNING run_id, rank
"""
#: Workflows whose phase has not taken the result of an execution that has ended.
UNTAKEN = """
SELECT DISTINCT adw_id FROM executions
WHERE taken_at IS NULL AND state <> 'running' AND (:adw_id = '' OR adw_id = :adw_id)
  AND NOT EXISTS (
      SELECT 1 FROM executions AS other
      WHERE other.adw_id = executions.adw_id AND other.taken_at IS NULL AND other.state = 'running'
  )
"""
#: Executions of workflows that are over: nobody will go on with them.
LEFT_OPEN = """
SELECT execution_id FROM executions
WHERE taken_at IS NULL AND state = 'running' AND EXISTS (
    SELECT 1 FROM workflow_states AS flow
    WHERE flow.adw_id = executions.adw_id AND flow.state IN ('completed', 'failed', 'abandoned', 'rolled_back')
)
"""
#: Loops that are run outside, for a task that is their parent.
OPEN_OF_TASK = (
    "SELECT execution_id FROM {open} WHERE adw_id = :adw_id AND taken_at IS NULL AND state = 'running'"
    " AND parent_execution_id = :task_id ORDER BY execution_id"
)
OPEN_OF_WORKFLOW = "SELECT execution_id FROM {open} WHERE adw_id = :adw_id AND taken_at IS NULL AND state = 'running'"

# --- iterations ------------------------------------------------------------------------------------------------

COLUMNS = (
    "idx",
    "state",
    "attempts",
    "page",
    "same_call",
    "interruptions",
    "next_at",
    "why",
    "run_id",
    "token",
    "last_event_id",
    "sequence_id",
    "fingerprint",
    "same_failures",
    "marks",
    "error",
    "process",
    "started_at",
    "ended_at",
    "call",
    "element",
    "result",
)
_SHOWN = ", ".join(COLUMNS)
STORE = """
INSERT INTO iterations (execution_id, idx, state, attempts, page, same_call, interruptions, next_at, why, token,
    last_event_id, sequence_id, fingerprint, same_failures, marks, error, process, call, element, result)
VALUES (:execution_id, :idx, 'pending', 0, 1, 0, 0, '', '', 0, '', '', '', 0, '', '', '', '{}', :element, 'null')
"""
CHANGE = f"""
UPDATE iterations SET {", ".join(f"{name} = :{name}" for name in COLUMNS if name not in ("idx", "element"))}
WHERE execution_id = :execution_id AND idx = :idx
"""
#: What is taken up for the first time: all else is as it was stored.
CHANGE_BEGUN = """
UPDATE iterations
SET state = 'running', why = '', attempts = 1, same_call = 1, run_id = :run_id, token = :token,
    last_event_id = :last_event_id, sequence_id = :sequence_id, started_at = :started_at
WHERE execution_id = :execution_id AND idx = :idx
"""
OF_LANE = (
    f"SELECT {_SHOWN} FROM {{calling}} WHERE execution_id = :execution_id AND state = 'running'"
    " AND run_id = :run_id ORDER BY idx"
)
#: Calls whose lane has vanished for good: ended, or claimed again without asking for them.
ORPHANS = f"""
SELECT {_SHOWN} FROM {{calling}} WHERE execution_id = :execution_id AND state = 'running' AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = iterations.run_id AND runs.token = iterations.token
      AND runs.finished_at IS NULL
) ORDER BY idx
"""
DUE = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait'"
    " AND next_at <= :moment ORDER BY next_at, idx LIMIT :most"
)
WAITING = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait'"
    " ORDER BY next_at, idx LIMIT :most"
)
#: The next one in the order of the collection; of a sequential loop at most one waits.
FIRST_WAITING = (
    f"SELECT {_SHOWN} FROM {{waiting}} WHERE execution_id = :execution_id AND state = 'retry_wait' ORDER BY idx LIMIT 1"
)
NEXT_AT = "SELECT min(next_at) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait'"
NOT_BEGUN = (
    f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx >= :next_index"
    " AND state = 'pending' ORDER BY idx LIMIT :most"
)
ONE = f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx = :idx"
SET_ELEMENT = "UPDATE iterations SET element = :element WHERE execution_id = :execution_id AND idx = :idx"
ONE_WAITING = (
    f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx = :idx AND state = 'retry_wait'"
)
COUNTS = """
SELECT (SELECT count(*) FROM {calling} WHERE execution_id = :execution_id AND state = 'running'),
       (SELECT count(*) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait'),
       (SELECT min(next_at) FROM {waiting} WHERE execution_id = :execution_id AND state = 'retry_wait')
"""
RESULTS = (
    "SELECT idx, state, result FROM iterations WHERE execution_id = :execution_id AND idx >= :first"
    " ORDER BY idx LIMIT :most"
)
#: Iterations that completed when their calls were used up; `why` of one that has ended has no index.
CUT_COUNT = "SELECT count(*) FROM iterations WHERE execution_id = :execution_id AND state = 'completed' AND why = 'cut'"
RESULTS_SIZE = "SELECT coalesce(sum(length(result)), 0) FROM iterations WHERE execution_id = :execution_id"
SHOWN = f"SELECT {_SHOWN} FROM iterations WHERE execution_id = :execution_id AND idx >= :first ORDER BY idx LIMIT :most"
RECORD_PROCESS = """
UPDATE iterations SET process = :process
WHERE execution_id = :execution_id AND idx = :idx AND state = 'running' AND run_id = :run_id AND token = :token
"""
RETRIES = """
SELECT waits.execution_id, owner.adw_id, owner.phase, owner.step, waits.idx, waits.attempts, waits.page, waits.next_at,
       waits.why, waits.error
FROM iterations AS waits JOIN executions AS owner ON owner.execution_id = waits.execution_id
WHERE waits.state = 'retry_wait' AND owner.state = 'running' AND owner.taken_at IS NULL
  AND (:adw_id = '' OR owner.adw_id = :adw_id)
ORDER BY waits.next_at, waits.execution_id, waits.idx LIMIT :limit
"""

# --- pages -----------------------------------------------------------------------------------------------------

KEEP_PAGE = """
INSERT INTO iteration_pages (execution_id, idx, page, part) VALUES (:execution_id, :idx, :page, :part)
ON CONFLICT (execution_id, idx, page) DO UPDATE SET part = excluded.part
"""
PAGES = "SELECT part FROM iteration_pages WHERE execution_id = :execution_id AND idx = :idx ORDER BY page"

# --- what its events tell --------------------------------------------------------------------------------------

_EVENTS = "FROM events WHERE adw_id = :adw_id AND seq > :after AND execution_id = :execution_id"
_OF_EXECUTION = "FROM events WHERE adw_id = :adw_id AND execution_id = :execution_id"
LAST_FAILURE = f"""
SELECT iteration_index, data {_OF_EXECUTION} AND event_type = 'iteration_failed' ORDER BY seq DESC LIMIT 1
"""
LAST_CALL = f"""
SELECT event_type, data {_OF_EXECUTION} AND iteration_index = :idx
  AND event_type IN ('action_completed', 'action_failed')
ORDER BY seq DESC LIMIT 1
"""
CALL_METAS = (
    f"SELECT seq, meta {_EVENTS} AND event_type IN ('action_completed', 'action_failed') ORDER BY seq LIMIT :most"
)


# The rows of one execution inside a transaction: what an update reads, and what it changed, in few statements.


_COMPLETED = IterationState.COMPLETED.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """The queries in the SQL of one dialect, rendered once."""

    head: str
    head_to_change: str
    our_lane: str
    open_of_workflow: str
    open_of_task: str
    of_lane: str
    orphans: str
    due: str
    waiting: str
    first_waiting: str
    next_at: str
    counts: str

    @classmethod
    def of(cls, database: Database) -> Texts:
        """Return them for *database*."""

        def render(text: str) -> str:
            return spelled(database, text)

        return cls(
            head=render(HEAD),
            head_to_change=render(HEAD_TO_CHANGE),
            our_lane=render(OUR_LANE),
            open_of_workflow=render(OPEN_OF_WORKFLOW),
            open_of_task=render(OPEN_OF_TASK),
            of_lane=render(OF_LANE),
            orphans=render(ORPHANS),
            due=render(DUE),
            waiting=render(WAITING),
            first_waiting=render(FIRST_WAITING),
            next_at=render(NEXT_AT),
            counts=render(COUNTS),
        )


class IterationRepository:
    """The rows of one execution inside a transaction."""

    def __init__(self, session: Session, texts: Texts, execution_id: str) -> None:
        self._session = session
        self._texts = texts
        self._id = execution_id

    def of_lane(self, run_id: int) -> list[Iteration]:
        """Return what a lane has, under whichever token."""
        return self._all(self._texts.of_lane, run_id=run_id)

    def due(self, moment: str, most: int) -> list[Iteration]:
        """Return iterations whose next call is due, the earliest first."""
        return self._all(self._texts.due, moment=moment, most=most)

    def waiting(self, most: int) -> list[Iteration]:
        """Return iterations that wait for their next call, whenever that is."""
        return self._all(self._texts.waiting, most=most)

    def first_waiting(self) -> Iteration | None:
        """Return the first of those in the order of the collection."""
        return next(iter(self._all(self._texts.first_waiting)), None)

    def one(self, index: int) -> Iteration | None:
        """Return the iteration with that index, whatever its state."""
        return next(iter(self._all(ONE, idx=index)), None)

    def one_waiting(self, index: int) -> Iteration | None:
        """Return one that waits for its next call."""
        return next(iter(self._all(ONE_WAITING, idx=index)), None)

    def next_at(self) -> str | None:
        """Return when the next call is due, None when none waits."""
        row = self._session.one(self._texts.next_at, {"execution_id": self._id})

        return None if row is None else row[0]

    def not_begun(self, first: int, most: int) -> list[Iteration]:
        """Return iterations from number *first* on, which nobody has begun."""
        return self._all(NOT_BEGUN, next_index=first, most=most)

    def orphans(self) -> list[Iteration]:
        """Return iterations that are being called by a lane which does not exist any more."""
        return self._all(self._texts.orphans)

    def parts(self, index: int) -> Iterator[JsonValue]:
        """Yield what was kept of the pages of an iteration."""
        rows = self._session.all(PAGES, {"execution_id": self._id, "idx": index})

        return (json.loads(row[0]) for row in rows)

    def cut(self) -> int:
        """Return how many handed on what they had when their calls were used up."""
        row = self._session.one(CUT_COUNT, {"execution_id": self._id})

        return int(row[0]) if row else 0

    def _all(self, text: str, **params: object) -> list[Iteration]:
        return [to_iteration(row) for row in self._session.all(text, {"execution_id": self._id, **params})]


def save_turn(session: Session, turn: ExecutionUpdate, redactor: Redactor) -> None:
    """Write the rows and events of an update."""
    execution_id = turn.head.execution.execution_id
    begun: list[dict[str, object]] = []
    changed: list[dict[str, object]] = []
    for row in turn.changed.values():
        if row.state == RUNNING and row.attempts == 1 and row.call == "{}" and not row.fingerprint:
            begun.append(_begun(execution_id, row))
        else:
            changed.append(iteration_params(execution_id, row, redactor))
    if begun:
        session.run_each(CHANGE_BEGUN, begun)
    if changed:
        session.run_each(CHANGE, changed)
    if turn.pages:
        session.run_each(
            KEEP_PAGE,
            [
                {"execution_id": execution_id, "idx": index, "page": page, "part": scrubbed(part, redactor)}
                for index, page, part in turn.pages
            ],
        )
    if turn.events:
        session.run_each(connection.EVENT_INSERT, event_rows(turn.events))
    session.run(UPDATE, head_params(turn.head))


def _begun(execution_id: str, row: Iteration) -> dict[str, object]:
    return {
        "execution_id": execution_id,
        "idx": row.index,
        "run_id": row.run_id,
        "token": row.token,
        "last_event_id": row.last_event_id,
        "sequence_id": row.sequence_id,
        "started_at": row.started_at,
    }


# Reading executions without changing them: how they stand, their results, the waiting calls.
#
# Long lists are read in pieces, so memory does not grow with them.


#: Results and events that are read at a time.
READ_AT_ONCE = 100


class ExecutionLooks:
    """The half of `Executions` that only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = Texts.of(database)

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, execution_id: str) -> Execution | None:
        """Return an execution as it stands."""
        with self._database.read() as session:
            head = self._head(session, execution_id, self._sql.head)

        return None if head is None else head.execution

    def plan(self, execution_id: str) -> NewExecution | None:
        """Return what was asked for."""
        with self._database.read() as session:
            row = session.one(PLAN, {"execution_id": execution_id})

        return None if row is None else to_new(row)

    def retries(self, *, adw_id: str = "", limit: int = 1000) -> tuple[ScheduledRetry, ...]:
        """Return the calls that wait for their time, the next one first."""
        with self._database.read() as session:
            rows = session.all(RETRIES, {"adw_id": adw_id, "limit": limit})

        return tuple(
            ScheduledRetry(
                execution_id=row[0],
                adw_id=row[1],
                phase=row[2],
                step=row[3],
                index=row[4],
                attempt_number=row[5],
                page=row[6],
                next_at=row[7],
                why=row[8],
                error=row[9],
            )
            for row in rows
        )

    def results(self, execution_id: str, *, first: int = 0) -> Iterator[tuple[int, IterationState, JsonValue]]:
        """Yield index, state and result of each iteration in the order of the collection."""
        while True:
            params = {"execution_id": execution_id, "first": first, "most": READ_AT_ONCE}
            with self._database.read() as session:
                rows = session.all(RESULTS, params)
            for index, state, text in rows:
                yield index, IterationState(state), json.loads(text)
            if len(rows) < READ_AT_ONCE:
                return
            first = rows[-1][0] + 1

    def results_size(self, execution_id: str) -> int:
        """Return about how many characters all results have as JSON."""
        with self._database.read() as session:
            row = session.one(RESULTS_SIZE, {"execution_id": execution_id})

        return int(row[0]) if row else 0

    def cut(self, execution_id: str) -> int:
        """Return how many iterations handed on what they had when their calls were used up."""
        with self._database.read() as session:
            return IterationRepository(session, self._sql, execution_id).cut()

    def facts(self, execution_id: str) -> Mapping[str, JsonValue]:
        """Return counts for people; empty for an execution that does not exist."""
        with self._database.read() as session:
            head = self._head(session, execution_id, self._sql.head)
            counts = session.one(self._sql.counts, {"execution_id": execution_id})
        if head is None or counts is None:
            return {}

        return shown_facts(head, running=counts[0], waiting=counts[1], next_at=counts[2])

    def last_error(self, execution_id: str) -> JsonObject | None:
        """Return why the last iteration that failed did; None when none has."""
        plan = self.plan(execution_id)
        if plan is None:
            return None
        which = {"execution_id": execution_id, "adw_id": plan.adw_id}
        with self._database.read() as session:
            failure = session.one(LAST_FAILURE, which)
            call = None if failure is None else session.one(LAST_CALL, {**which, "idx": failure[0]})
        if failure is None:
            return None
        failed_call = json.loads(call[1]) if call is not None and call[0] == "action_failed" else {}

        return failure_of(json.loads(failure[1]), failed_call)

    def metas(self, execution_id: str) -> Iterator[JsonObject]:
        """Yield the `meta` of each call that was reported."""
        return (json.loads(row[1]) for row in self._events(execution_id, CALL_METAS))

    def _events(self, execution_id: str, text: str) -> Iterator[Row]:
        plan = self.plan(execution_id)
        after = 0
        while plan is not None:
            params = {"execution_id": execution_id, "adw_id": plan.adw_id, "after": after, "most": READ_AT_ONCE}
            with self._database.read() as session:
                rows = session.all(text, params)
            yield from rows
            if len(rows) < READ_AT_ONCE:
                return
            after = rows[-1][0]

    def _head(self, session: Session, execution_id: str, text: str) -> ExecutionRow | None:
        row = session.one(text, {"execution_id": execution_id})

        return None if row is None else to_head(execution_id, self._step(session, execution_id), row)

    def _step(self, session: Session, execution_id: str) -> StepSpec:
        return self._asked(session, execution_id).step

    def _asked(self, session: Session, execution_id: str) -> NewExecution:
        row = session.one(PLAN, {"execution_id": execution_id})
        if row is None:
            raise UsageError(f"there is no execution {execution_id}")

        return to_new(row)


#: Elements, and characters of them, that are stored in one transaction.
CHUNK, CHUNK_CHARACTERS = 500, 1_000_000
#: Executions whose spec is cached.
PLANS = 256


class Executions(ExecutionLooks):
    """Executions in the tables executions, iterations and iteration_pages."""

    def __init__(self, database: Database, *, clock: Clock, redactor: Redactor) -> None:
        super().__init__(database)
        self._clock = clock
        self._redactor = redactor
        self._runs = RunStore(database, clock=clock)
        self._plans: dict[str, ExecutionSpec] = {}

    # --- storing -----------------------------------------------------------------------------------------------

    def open(self, new: NewExecution, elements: Iterable[JsonValue], *, lanes: int) -> Execution:
        """Store an execution with its iterations and its lanes, or go on with storing it; idempotent by its id."""
        if lanes < 1:
            raise UsageError(f"an execution needs at least one lane, not {lanes}")
        position = 0
        for chunk, is_last in _chunked(self._texts(new, elements)):
            done = self._database.transact(self._storing(new, lanes, position, chunk, is_last=is_last))
            if done is not None:
                return done
            position += len(chunk)

        raise AssertionError("the last chunk ends it")  # pragma: no cover - _chunked always yields a last one

    def _texts(self, new: NewExecution, elements: Iterable[JsonValue]) -> Iterator[str]:
        what = f"an element of step {new.step.name}"

        return (json_text(element, what, self._redactor) for element in elements)

    def _storing(
        self, new: NewExecution, lanes: int, position: int, chunk: Sequence[str], *, is_last: bool
    ) -> Callable[[Session], Execution | None]:
        def work(session: Session) -> Execution | None:
            if position == 0:
                moment = timestamps.to_text(self._clock.now())
                params = new_params(new, lanes=lanes, moment=moment, redactor=self._redactor)
                session.run(INSERT, params)
            turn = self._turn(session, new.execution_id)
            if turn is None:
                raise UsageError(f"the execution {new.execution_id} was deleted while it was stored: begin it again")
            head = turn.head
            if head.execution.total is None:
                self._store_chunk(session, head, position, chunk, is_last=is_last, turn=turn)
            if head.execution.total is None:
                return None
            if not turn.is_over:
                self._open_lanes(session, new, head)

            return head.execution

        return work

    def _store_chunk(
        self,
        session: Session,
        head: ExecutionRow,
        position: int,
        chunk: Sequence[str],
        *,
        is_last: bool,
        turn: ExecutionUpdate,
    ) -> None:
        execution_id = head.execution.execution_id
        fresh = chunk[max(0, head.stored - position) :]
        first = position + len(chunk) - len(fresh)
        session.run_each(
            STORE,
            [{"execution_id": execution_id, "idx": first + n, "element": text} for n, text in enumerate(fresh)],
        )
        head.stored = max(head.stored, position + len(chunk))
        if is_last:
            turn.start(head.stored)
        self._save(session, turn)

    def _open_lanes(self, session: Session, new: NewExecution, head: ExecutionRow) -> None:
        """Queue the lanes that are not there: all of them at first, later those that were stopped."""
        wanted = min(head.lanes, lanes_of(new.step, head.execution.total or 0))
        for lane in range(wanted):
            self._runs.enqueue_in(session, lane_run(new, f"{new.execution_id}/{lane}"))

    # --- lanes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, *, most: int) -> Taken:
        """Give *run* up to *most* iterations that are due."""
        return self._lane_turn(run, None, most)

    def report(self, run: Run, reports: Sequence[CallReport], *, most: int) -> Taken:
        """Store the results of calls, decide, and give *run* the next iterations: one transaction."""
        return self._lane_turn(run, reports, most)

    def _lane_turn(self, run: Run, reports: Sequence[CallReport] | None, most: int) -> Taken:
        execution_id = execution_of(run)

        def work(session: Session) -> Taken:
            turn = self._turn(session, execution_id, run=run)
            state, losses, is_wanted = self._ours(session, run)
            if turn is None:
                return Taken(is_over=True)
            shelf = IterationRepository(session, self._sql, execution_id)
            called = shelf.of_lane(run.run_id)
            turn.interrupt([row for row in called if row.token != run.token])
            if reports is not None:
                turn.report([row for row in called if row.token == run.token], reports)
                if losses and reports:
                    session.run(FORGIVE_LOSSES, {"run_id": run.run_id})
            moment = timestamps.to_text(self._clock.now())
            may_go_on = bool(is_wanted) and state != RunState.STOPPING.value
            taken = pick(turn, shelf, moment=moment, most=most, is_wanted=may_go_on)
            self._save(session, turn)

            return taken

        return self._database.transact(work)

    def _ours(self, session: Session, run: Run) -> tuple[str, int, bool]:
        params = {"run_id": run.run_id, "token": run.token, "owner": run.owner, "adw_id": run.adw_id}
        row = session.one(self._sql.our_lane, params)
        if row is None:
            raise RunLost(run.run_id)

        return row[0], row[1], bool(row[2])

    def record_process(self, run: Run, assignment: Assignment, process: ProcessRecord) -> None:
        """Write down which process makes a call, durable on return."""
        params = {
            "execution_id": assignment.execution_id,
            "idx": assignment.index,
            "run_id": run.run_id,
            "token": run.token,
            "process": connection.json_text(process.to_json(), "the record of a process"),
        }
        if not self._database.transact(lambda session: session.run(RECORD_PROCESS, params)):
            raise RunLost(run.run_id)

    def left_processes(self, run: Run) -> tuple[JsonObject, ...]:
        """Return the processes of calls that an earlier owner of *run* left."""
        with self._database.read() as session:
            called = IterationRepository(session, self._sql, execution_of(run)).of_lane(run.run_id)

        return tuple(json.loads(row.process) for row in called if row.process and row.token != run.token)

    def give_up(self, run: Run, *, reason: str) -> None:
        """Fail the calls of a lane that too many workers vanished with; another run takes its place."""
        execution_id = execution_of(run)

        def work(session: Session) -> None:
            turn = self._turn(session, execution_id, run=run)
            if turn is None or turn.is_over:
                return
            shelf = IterationRepository(session, self._sql, execution_id)
            turn.give_up(shelf.of_lane(run.run_id), reason)
            if turn.head.cancel_reason:
                cancel_some(turn, shelf)
            self._save(session, turn)
            if not turn.is_over:
                # Its own slot is taken until it has ended, which it has not yet.
                self._runs.enqueue_in(session, lane_run(self._asked(session, execution_id), f"{run.slot}+"))

        self._database.transact(work)

    # --- cancelling --------------------------------------------------------------------------------------------

    def cancel(self, execution_id: str, *, reason: str, index: int | None = None) -> bool:
        """End an execution, or the call of one iteration that waits for its time; False when there is none."""
        if index is not None:
            return self._database.transact(lambda session: self._cancel_one(session, execution_id, index, reason))
        result = False
        while True:
            is_there, has_more = self._database.transact(
                lambda session: self._cancel_chunk(session, execution_id, reason)
            )
            result = result or is_there
            if not has_more:
                return result

    def _cancel_one(self, session: Session, execution_id: str, index: int, reason: str) -> bool:
        turn = self._turn(session, execution_id)
        row = IterationRepository(session, self._sql, execution_id).one_waiting(index)
        if turn is None or turn.is_over or row is None:
            return False
        turn.cancel([row], reason)
        self._save(session, turn)

        return True

    def _cancel_chunk(self, session: Session, execution_id: str, reason: str) -> tuple[bool, bool]:
        turn = self._turn(session, execution_id)
        if turn is None or turn.is_over:
            return False, False
        head = turn.head
        if head.execution.total is None:
            turn.start(head.stored)  # what is not stored yet never will be
        shelf = IterationRepository(session, self._sql, execution_id)
        turn.ask_to_cancel(reason)
        lost = shelf.orphans()
        if turn.plan.new.step.tool == EXTERNAL:
            turn.cancel(lost, reason)  # no lane has them: they are with somebody outside
        else:
            turn.give_up(lost, reason)
        has_more = cancel_some(turn, shelf)
        self._save(session, turn)

        return True, has_more

    def cancel_left(self) -> int:
        """Cancel executions of workflows that are over, and return how many there were."""
        with self._database.read() as session:
            result = [row[0] for row in session.all(LEFT_OPEN)]

        return sum(self.cancel(execution_id, reason=LEFT) for execution_id in result)

    def cancel_all(self, adw_id: str, *, reason: str) -> int:
        """Cancel what has not ended of a workflow's executions, and return how many that were."""
        with self._database.read() as session:
            result = [row[0] for row in session.all(self._sql.open_of_workflow, {"adw_id": adw_id})]

        return sum(self.cancel(execution_id, reason=reason) for execution_id in result)

    # --- loops that are run outside ----------------------------------------------------------------------------

    def open_outside(self, session: Session, new: NewExecution, total: int, said: Mapping[str, Any]) -> None:
        """Store a loop whose iterations somebody outside reports; raise EventRefused when it has begun already."""
        moment = timestamps.to_text(self._clock.now())
        if not session.run(INSERT, new_params(new, lanes=0, moment=moment, redactor=self._redactor)):
            raise EventRefused(f"the loop {new.execution_id} has begun already: give another loop its own execution_id")
        session.run_each(
            STORE, [{"execution_id": new.execution_id, "idx": index, "element": NULL} for index in range(total)]
        )
        self._plans.pop(new.execution_id, None)  # of a transaction that was rolled back
        turn = self._open_loop(session, new.execution_id)
        turn.head.stored = total
        turn.start(total, said)
        self._save(session, turn)

    def tell_outside(
        self,
        session: Session,
        execution_id: str,
        index: int,
        state: IterationState,
        said: Mapping[str, Any],
        *,
        value: JsonValue = None,
        reason: str = "",
    ) -> None:
        """
        Record that an iteration outside is running, with *value* as its element, or how it ended, with its result.

        Raises EventRefused when that contradicts what is recorded: an iteration begins once and ends once.
        """
        turn = self._open_loop(session, execution_id)
        shelf = IterationRepository(session, self._sql, execution_id)
        row = shelf.one(index)
        if row is None:
            raise UsageError(
                f"iteration_index is {index}, and the loop {execution_id} has {turn.head.stored} elements: count from 0"
            )
        if row.state not in (PENDING, RUNNING):
            raise EventRefused(f"iteration {index} of {execution_id} is {row.state} already: it ends once")
        if state is IterationState.RUNNING:
            if row.state == RUNNING:
                raise EventRefused(f"iteration {index} of {execution_id} is running already: it begins once")
            if turn.head.cancel_reason:
                raise EventRefused(f"the loop {execution_id} begins nothing more: {turn.head.cancel_reason}")
            turn.begin_outside(row, said)
            element = json_text(value, f"the element of iteration {index}", self._redactor)
            session.run(SET_ELEMENT, {"execution_id": execution_id, "idx": index, "element": element})
        else:
            text = json_text(value, f"the result of iteration {index}", self._redactor)
            turn.end_outside(row, state, said, reason=reason, result=text)
        if index == turn.head.next_index:
            following = shelf.not_begun(index + 1, 1)
            turn.head.next_index = following[0].index if following else turn.head.stored
        self._save(session, turn)
        if turn.head.cancel_reason and not turn.is_over:  # too many failed: what has not begun is cancelled
            while self._cancel_pending(session, execution_id):
                pass

    def end_loop_outside(
        self, session: Session, execution_id: str, state: ExecutionState, said: Mapping[str, Any], *, reason: str
    ) -> bool:
        """
        Take the end of a loop; False when it has ended so already. Raises EventRefused.

        adw counts itself: a loop is completed or failed when its last iteration ends. Only a cancellation ends it
        sooner.
        """
        found = self._turn(session, execution_id)
        if found is not None and found.is_over and found.head.execution.state is state:
            return False
        turn = self._open_loop(session, execution_id)
        if state is not ExecutionState.CANCELLED:
            done = turn.head.execution
            raise EventRefused(
                f"{(done.total or 0) - done.ended} of {done.total} iterations of {execution_id} have no end: report"
                " theirs, or iterator_cancelled"
            )
        turn.ask_to_cancel(reason or "cancelled outside", said)
        self._save(session, turn)
        self.cancel_in(session, execution_id, reason=reason or "cancelled outside")

        return True

    def cancel_outside(self, session: Session, adw_id: str, task_id: str, *, reason: str) -> None:
        """Cancel what is open of the loops of a task that is over."""
        for row in session.all(self._sql.open_of_task, {"adw_id": adw_id, "task_id": task_id}):
            self.cancel_in(session, row[0], reason=reason)

    def cancel_in(self, session: Session, execution_id: str, *, reason: str) -> None:
        """Cancel all that is left of an execution in the transaction of the caller."""
        while self._cancel_chunk(session, execution_id, reason)[1]:
            pass

    def _cancel_pending(self, session: Session, execution_id: str) -> bool:
        """Cancel some of the iterations that nobody has begun; return whether there are more."""
        turn = self._turn(session, execution_id)
        if turn is None or turn.is_over:
            return False
        has_more = cancel_some(turn, IterationRepository(session, self._sql, execution_id))
        self._save(session, turn)

        return has_more

    def _open_loop(self, session: Session, execution_id: str) -> ExecutionUpdate:
        turn = self._turn(session, execution_id)
        if turn is None:
            raise EventRefused(f"the loop {execution_id} has not begun: report its iterator_started first")
        if turn.is_over:
            raise EventRefused(f"the loop {execution_id} is {turn.head.execution.state.value} already: it ends once")

        return turn

    # --- waiting -----------------------------------------------------------------------------------------------

    def is_wanted(self, adw_id: str) -> bool:
        """Say whether the workflow is to go on."""
        with self._database.read() as session:
            return session.one(IS_WANTED, {"adw_id": adw_id}) is not None

    def due_lanes(self, adw_id: str) -> tuple[int, ...]:
        """Return the runs of the lanes of a workflow that wait and are due, the oldest first."""
        params = {"adw_id": adw_id, "moment": timestamps.to_text(self._clock.now())}
        with self._database.read() as session:
            return tuple(row[0] for row in session.all(DUE_LANES, params))

    def mark_taken(self, execution_id: str) -> None:
        """Say that the phase has taken the result of an execution that has ended."""
        params = {"execution_id": execution_id, "moment": timestamps.to_text(self._clock.now())}
        self._database.transact(lambda session: session.run(MARK_TAKEN, params))

    def wake(self, adw_id: str = "") -> int:
        """Make runs due whose workflow waits for executions that have ended, and return how many."""
        with self._database.read() as session:
            result = [row[0] for row in session.all(UNTAKEN, {"adw_id": adw_id})]
        if not result:
            return 0

        return self._database.transact(lambda session: sum(self._wake(session, one) for one in result))

    def _wake(self, session: Session, adw_id: str) -> int:
        moment = timestamps.to_text(self._clock.now())
        woken = session.all(WAKE, {"adw_id": adw_id, "moment": moment})
        if self._database.dialect != "sqlite":
            session.run_each(
                queue_store.JOB_OF_RUN,
                [{"run_id": run_id, "rank": rank, "not_before": ""} for run_id, rank in woken],
            )

        return len(woken)

    # --- beside executions -------------------------------------------------------------------------------------

    def keep(self, key: str, value: JsonValue) -> None:
        """Store a large result of a single call, durable on return."""
        text = json_text(value, f"the result {key}", self._redactor)
        params = {"execution_id": key, "idx": -1, "page": 0, "part": text}
        self._database.transact(lambda session: session.run(KEEP_PAGE, params))

    def kept(self, key: str) -> JsonValue:
        """Return what was stored for *key*."""
        with self._database.read() as session:
            row = session.one(PAGES, {"execution_id": key, "idx": -1})
        if row is None:
            raise StateInvalid(f"the result {key} is not in the database any more: run the phase from its beginning")
        value: JsonValue = json.loads(row[0])

        return value

    def tell(self, events: Sequence[Event]) -> None:
        """Store events that belong to no execution of its own."""
        params = [connection.event_params(event) for event in events]
        self._database.transact(lambda session: session.run_each(connection.EVENT_INSERT, params))

    # --- how -----------------------------------------------------------------------------------------------------

    def _turn(self, session: Session, execution_id: str, *, run: Run | None = None) -> ExecutionUpdate | None:
        """Begin an update: lock the execution and read it, None when there is none."""
        head = self._head(session, execution_id, self._sql.head_to_change)
        if head is None:
            return None
        plan = self._cached_plan(session, execution_id)
        shelf = IterationRepository(session, self._sql, execution_id)

        return ExecutionUpdate(
            plan,
            head,
            redactor=self._redactor,
            now=self._clock.now(),
            random=self._clock.random,
            lane=None if run is None else _lane_of(run),
            parts_of=shelf.parts,
            known=lambda: resolved(plan.new.context, self, plan.new.adw_id),
            cut=shelf.cut,
        )

    def _step(self, session: Session, execution_id: str) -> StepSpec:
        return self._cached_plan(session, execution_id).new.step

    def _cached_plan(self, session: Session, execution_id: str) -> ExecutionSpec:
        result = self._plans.get(execution_id)
        if result is None:
            new = self._asked(session, execution_id)
            whole, small = event_contexts(new, self._redactor)
            result = ExecutionSpec(new=new, event_context=whole, small_context=small)
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[execution_id] = result

        return result

    def _save(self, session: Session, turn: ExecutionUpdate) -> None:
        """Write what an update changed; the end of the execution makes the run of the workflow due."""
        save_turn(session, turn, self._redactor)
        if not turn.is_over or not turn.events:
            return
        # Nothing happens to one that has ended: so this update ended it.
        new = turn.plan.new
        if new.step.tool == EXTERNAL:  # no phase takes its result: it goes on when its task is reported
            session.run(MARK_TAKEN, {"execution_id": new.execution_id, "moment": timestamps.to_text(self._clock.now())})
        else:
            self._wake(session, new.adw_id)


def execution_of(run: Run) -> str:
    """Return the execution that *run* is a lane of; raise UsageError when it is none."""
    result = run.payload.get("execution_id")
    if run.kind != ITERATION or not isinstance(result, str):
        raise UsageError(f"run {run.run_id} is of kind {run.kind} and no lane of an execution")

    return result


def _lane_of(run: Run) -> Slot:
    owner = OwnerRecord.from_text(run.owner)

    return Slot(run_id=run.run_id, token=run.token, worker_id=owner.describe() if owner else "")


def _chunked(texts: Iterator[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the texts in pieces that fit a transaction, the last one marked; an empty one when there are none."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        if len(chunk) >= CHUNK or (chunk and size + len(text) > CHUNK_CHARACTERS):
            yield chunk, False
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    yield chunk, True
