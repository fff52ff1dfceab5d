"""
Executions in the database: rows, events and runs change together or not at all.

Every change of an execution is one transaction that locks its row first. A lane proves by its run that it may change
rows. What it reports and what it takes next are one transaction, which also ends the execution and then makes the
workflow's run due. Long lists are read in pieces, so that memory does not grow with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import EventRefused, RunLost, StateInvalid, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock, ProcessRecord
from adws.adw_modules.phase import EXTERNAL
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import ITERATION, Run, RunState, labels_of, labels_text
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.steps.context import event_contexts, resolved
from adws.adw_modules.steps.execution_update import ExecutionUpdate, lanes_of
from adws.adw_modules.steps.model import (
    NULL,
    PENDING,
    RUNNING,
    Assignment,
    CallReport,
    Execution,
    ExecutionSpec,
    ExecutionState,
    Iteration,
    IterationState,
    NewExecution,
    Taken,
    WaitingRetry,
    lane_run,
)
from adws.adw_modules.workflow.model import StepSpec, from_json, to_json
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.redaction.redactor import Redactor

#: Most elements, and characters of them, stored in one transaction.
CHUNK, CHUNK_CHARACTERS = 500, 1_000_000
#: Results and events read at a time.
READ_AT_ONCE = 100
#: Executions whose spec is cached.
SPECS = 256

_NEW_COLUMNS = (
    "execution_id, adw_id, phase, attempt_number, step, parent_execution_id, parent_run_id, catalog_id, lanes,"
    " created_at, labels, demands, spec, context"
)
_NEW = f"SELECT {_NEW_COLUMNS} FROM executions WHERE execution_id = :execution_id"
_INSERT = f"""
INSERT INTO executions ({_NEW_COLUMNS}, state, reason, stored, next_index, succeeded, failed, cancelled, cancel_reason,
    last_event, first_event_id)
VALUES (:{_NEW_COLUMNS.replace(", ", ", :")}, 'running', '', 0, 0, 0, 0, 0, '', 0, '')
ON CONFLICT (execution_id) DO NOTHING
"""
#: The columns of an execution that change, in the order of the fields of `Execution`.
_EXECUTION = """
SELECT state, reason, total, stored, next_index, succeeded, failed, cancelled, cancel_reason, lanes, last_event,
    first_event_id, ended_at, created_at
FROM executions WHERE execution_id = :execution_id
"""
_UPDATE = """
UPDATE executions
SET state = :state, reason = :reason, total = :total, stored = :stored, next_index = :next_index,
    succeeded = :succeeded, failed = :failed, cancelled = :cancelled, cancel_reason = :cancel_reason,
    last_event = :last_event, first_event_id = :first_event_id, ended_at = :ended_at
WHERE execution_id = :execution_id
"""
_MARK_TAKEN = "UPDATE executions SET taken_at = :moment WHERE execution_id = :execution_id AND ended_at IS NOT NULL"
#: Whether the workflow is to continue: it has a run that has not finished and is not a rollback.
_IS_WANTED = """EXISTS (
    SELECT 1 FROM runs AS main
    WHERE main.adw_id = :adw_id AND main.slot = '' AND main.finished_at IS NULL AND main.kind <> 'rollback'
)"""

_NAMES = ("idx", *(one.name for one in fields(Iteration)[1:]))
_COLUMNS = ", ".join(_NAMES)
_STORE = """
INSERT INTO iterations (execution_id, idx, state, attempts, page, same_call, interruptions, next_at, why, token,
    last_event_id, sequence_id, fingerprint, same_failures, marks, error, process, call, element, result)
VALUES (:execution_id, :idx, 'pending', 0, 1, 0, 0, '', '', 0, '', '', '', 0, '', '', '', '{}', :element, 'null')
"""
_CHANGE = f"""
UPDATE iterations SET {", ".join(f"{name} = :{name}" for name in _NAMES if name not in ("idx", "element"))}
WHERE execution_id = :execution_id AND idx = :idx
"""
#: For an iteration that begins for the first time: every other column is as inserted.
_CHANGE_BEGUN = """
UPDATE iterations
SET state = 'running', why = '', attempts = 1, same_call = 1, run_id = :run_id, token = :token,
    last_event_id = :last_event_id, sequence_id = :sequence_id, started_at = :started_at
WHERE execution_id = :execution_id AND idx = :idx
"""
KEEP_PAGE = """
INSERT INTO iteration_pages (execution_id, idx, page, part) VALUES (:execution_id, :idx, :page, :part)
ON CONFLICT (execution_id, idx, page) DO UPDATE SET part = excluded.part
"""
_PAGES = "SELECT part FROM iteration_pages WHERE execution_id = :execution_id AND idx = :idx ORDER BY page"

_encode = json.JSONEncoder(allow_nan=False).encode


class IterationRepository:
    """The rows of one execution inside a transaction."""

    def __init__(self, session: Session, executions: Executions, execution_id: str) -> None:
        self._session = session
        self._executions = executions
        self._id = execution_id

    def of_lane(self, run_id: int) -> list[Iteration]:
        """Return the iterations that a lane is calling, under any token."""
        return self._all(self._executions.calling, "state = 'running' AND run_id = :run_id ORDER BY idx", run_id=run_id)

    def due(self, moment: str, most: int) -> list[Iteration]:
        """Return iterations whose next call is due, earliest first."""
        where = "state = 'retry_wait' AND next_at <= :moment ORDER BY next_at, idx LIMIT :most"
        return self._all(self._executions.waiting, where, moment=moment, most=most)

    def waiting(self, most: int) -> list[Iteration]:
        """Return iterations that wait for their next call, due or not."""
        return self._all(self._executions.waiting, "state = 'retry_wait' ORDER BY next_at, idx LIMIT :most", most=most)

    def first_waiting(self) -> list[Iteration]:
        """Return the first waiting iteration in collection order; a sequential loop has at most one."""
        return self._all(self._executions.waiting, "state = 'retry_wait' ORDER BY idx LIMIT 1")

    def one(self, index: int) -> Iteration | None:
        """Return the iteration *index*, or None."""
        return next(iter(self._all("iterations", "idx = :idx", idx=index)), None)

    def not_begun(self, first: int, most: int) -> list[Iteration]:
        """Return iterations from index *first* that have not begun."""
        where = "idx >= :first AND state = 'pending' ORDER BY idx LIMIT :most"
        return self._all("iterations", where, first=first, most=most)

    def orphans(self) -> list[Iteration]:
        """Return iterations in a call whose lane has ended or was claimed again since."""
        where = """state = 'running' AND NOT EXISTS (
            SELECT 1 FROM runs WHERE runs.run_id = iterations.run_id AND runs.token = iterations.token
              AND runs.finished_at IS NULL
        ) ORDER BY idx"""
        return self._all(self._executions.calling, where)

    def next_at(self) -> str | None:
        """Return when the next call is due, or None if no call waits."""
        sql = f"""
        SELECT min(next_at) FROM {self._executions.waiting} WHERE execution_id = :execution_id AND state = 'retry_wait'
        """
        row = self._session.one(sql, {"execution_id": self._id})

        return None if row is None else row[0]

    def cut(self) -> int:
        """Return how many iterations completed with their calls used up."""
        sql = (
            "SELECT count(*) FROM iterations WHERE execution_id = :execution_id AND state = 'completed' AND why = 'cut'"
        )
        row = self._session.one(sql, {"execution_id": self._id})

        return int(row[0]) if row else 0

    def parts(self, index: int) -> list[JsonValue]:
        """Return the stored parts of an iteration's pages."""
        return [json.loads(row[0]) for row in self._session.all(_PAGES, {"execution_id": self._id, "idx": index})]

    def known(self, new: NewExecution) -> Mapping[str, Value]:
        """Return the values available to templates."""
        return resolved(new.context, self._executions, new.adw_id)

    def _all(self, table: str, where: str, **params: object) -> list[Iteration]:
        sql = f"SELECT {_COLUMNS} FROM {table} WHERE execution_id = :execution_id AND {where}"

        return [Iteration(*row) for row in self._session.all(sql, {"execution_id": self._id, **params})]


class Executions:
    """Executions in the tables executions, iterations and iteration_pages."""

    def __init__(self, database: Database, *, clock: Clock, redactor: Redactor) -> None:
        self._database = database
        self._clock = clock
        self._redactor = redactor
        self._runs = RunStore(database, clock=clock)
        self._specs: dict[str, ExecutionSpec] = {}
        # The tables with the partial index of iterations that wait or are called, and of executions that are not taken.
        # SQLite needs the name: without statistics it uses the primary key and walks over every iteration.
        is_told = database.dialect == "sqlite"
        self.waiting = "iterations INDEXED BY ix_iterations_waiting" if is_told else "iterations"
        self.calling = "iterations INDEXED BY ix_iterations_running" if is_told else "iterations"
        self._untaken = "executions INDEXED BY ix_executions_open" if is_told else "executions"

    # --- storing -----------------------------------------------------------------------------------------------

    def open(self, new: NewExecution, elements: Iterable[JsonValue], *, lanes: int) -> Execution:
        """Store an execution with its iterations and lanes, or continue storing it; idempotent by its id."""
        if lanes < 1:
            raise UsageError(f"an execution needs at least one lane, not {lanes}")
        what, position = f"an element of step {new.step.name}", 0
        for chunk, is_last in _chunked(self._json_text(element, what) for element in elements):
            store = partial(self._store_chunk, new=new, lanes=lanes, position=position, chunk=chunk, is_last=is_last)
            execution = self._database.transact(store)
            if execution.total is not None:
                return execution
            position += len(chunk)

        raise AssertionError("the last chunk ends it")  # pragma: no cover - _chunked always yields a last one

    def _store_chunk(
        self, session: Session, *, new: NewExecution, lanes: int, position: int, chunk: Sequence[str], is_last: bool
    ) -> Execution:
        if position == 0:
            session.run(_INSERT, self._new_params(new, lanes))
        update = self._update(session, new.execution_id)
        if update is None:
            raise UsageError(f"the execution {new.execution_id} was deleted while it was stored: begin it again")
        execution = update.execution
        if execution.total is None:
            first = max(position, execution.stored)  # of a partly stored chunk, only the rest is stored
            params = [
                {"execution_id": new.execution_id, "idx": index, "element": text}
                for index, text in enumerate(chunk[first - position :], start=first)
            ]
            session.run_each(_STORE, params)
            execution.stored = max(execution.stored, position + len(chunk))
            if is_last:
                update.start(execution.stored)
            self._save(session, update)
        if execution.total is not None and not update.is_over:
            # Queue missing lanes: all of them at first, later those that were stopped.
            for lane in range(min(execution.lanes, lanes_of(new.step, execution.total))):
                self._runs.enqueue_in(session, lane_run(new, f"{new.execution_id}/{lane}"))

        return execution

    def _new_params(self, new: NewExecution, lanes: int) -> dict[str, object]:
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
            "created_at": self._moment(),
            "labels": labels_text(new.labels),
            "demands": new.demands.to_text(),
            "spec": connection.json_text(to_json(new.step), f"step {new.step.name}"),
            "context": self._json_text(new.context, f"the context of step {new.step.name}"),
        }

    # --- lanes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, *, most: int) -> Taken:
        """Assign up to *most* due iterations to *run*."""
        return self.report(run, None, most=most)

    def report(self, run: Run, reports: Sequence[CallReport] | None, *, most: int) -> Taken:
        """
        Store the results of calls, decide what follows, and assign the next iterations to *run*, in one transaction.

        Without *reports* no results are stored; an empty list makes the iterations of the run wait again. Raises
        RunLost.
        """
        execution_id = execution_of(run)
        lane = {"run_id": run.run_id, "token": run.token, "owner": run.owner, "adw_id": run.adw_id}

        def work(session: Session) -> Taken:
            update = self._update(session, execution_id, run=run)
            # Locked, so that no one else claims the run before the commit.
            row = session.one(
                f"""
                SELECT lane.state, lane.losses, {_IS_WANTED} FROM runs AS lane
                WHERE lane.run_id = :run_id AND lane.token = :token AND lane.owner = :owner
                  AND lane.state IN ('claimed', 'running', 'stopping')
                {self._database.row_lock_sql}""",
                lane,
            )
            if row is None:
                raise RunLost(run.run_id)
            if update is None:
                return Taken(is_over=True)
            state, losses, is_wanted = row
            called = update.rows.of_lane(run.run_id)
            update.interrupt([row for row in called if row.token != run.token])
            if reports is not None:
                update.report([row for row in called if row.token == run.token], reports)
                if losses and reports:  # a lane that makes progress is not crashing its workers
                    session.run("UPDATE runs SET losses = 0 WHERE run_id = :run_id", {"run_id": run.run_id})
            taken = update.take(most, is_wanted=bool(is_wanted) and state != RunState.STOPPING.value)
            self._save(session, update)

            return taken

        return self._database.transact(work)

    def record_process(self, run: Run, assignment: Assignment, process: ProcessRecord) -> None:
        """Record which process makes a call, durable on return; raise RunLost if the run no longer has the call."""
        sql = """
        UPDATE iterations SET process = :process
        WHERE execution_id = :execution_id AND idx = :idx AND state = 'running' AND run_id = :run_id AND token = :token
        """
        params = {
            "execution_id": assignment.execution_id,
            "idx": assignment.index,
            "run_id": run.run_id,
            "token": run.token,
            "process": connection.json_text(process.to_json(), "the record of a process"),
        }
        if not self._database.transact(lambda session: session.run(sql, params)):
            raise RunLost(run.run_id)

    def left_processes(self, run: Run) -> tuple[JsonObject, ...]:
        """Return the processes of calls left by earlier owners of *run*."""
        with self._database.read() as session:
            called = IterationRepository(session, self, execution_of(run)).of_lane(run.run_id)

        return tuple(json.loads(row.process) for row in called if row.process and row.token != run.token)

    def give_up(self, run: Run, *, reason: str) -> None:
        """Fail the calls of a lane with which too many workers vanished; a new run takes its place."""
        execution_id = execution_of(run)

        def work(session: Session) -> None:
            update = self._update(session, execution_id, run=run)
            if update is None or update.is_over:
                return
            update.give_up(update.rows.of_lane(run.run_id), reason)
            if update.execution.cancel_reason:
                update.cancel_some()
            self._save(session, update)
            if not update.is_over:
                # Its own slot stays taken until the run has ended, which happens later.
                self._runs.enqueue_in(session, lane_run(update.spec.new, f"{run.slot}+"))

        self._database.transact(work)

    # --- cancelling --------------------------------------------------------------------------------------------

    def cancel(self, execution_id: str, *, reason: str, index: int | None = None) -> bool:
        """Cancel an open execution, or only iteration *index* if it waits for a call; return False if not found."""
        if index is not None:

            def cancel_one(session: Session) -> bool:
                update = self._update(session, execution_id)
                row = None if update is None or update.is_over else update.rows.one(index)
                if update is None or row is None or row.state != IterationState.RETRY_WAIT.value:
                    return False
                update.cancel([row], reason)
                self._save(session, update)
                return True

            return self._database.transact(cancel_one)
        result = False
        while True:
            is_there, has_more = self._database.transact(
                lambda session: self._cancel_chunk(session, execution_id, reason)
            )
            result = result or is_there
            if not has_more:
                return result

    def _cancel_chunk(self, session: Session, execution_id: str, reason: str) -> tuple[bool, bool]:
        """Cancel some iterations; return whether the execution was open and whether more iterations remain."""
        update = self._update(session, execution_id)
        if update is None or update.is_over:
            return False, False
        if update.execution.total is None:
            update.start(update.execution.stored)  # iterations not stored yet never will be
        update.ask_to_cancel(reason)
        lost = update.rows.orphans()
        if update.spec.new.step.tool == EXTERNAL:
            update.cancel(lost, reason)  # no lane has them: they are called outside
        else:
            update.give_up(lost, reason)
        has_more = update.cancel_some()
        self._save(session, update)

        return True, has_more

    def cancel_left(self) -> int:
        """Cancel the executions of finished workflows, and return how many there were."""
        with self._database.read() as session:
            rows = session.all("""
            SELECT execution_id FROM executions
            WHERE taken_at IS NULL AND state = 'running' AND EXISTS (
                SELECT 1 FROM workflow_states AS flow
                WHERE flow.adw_id = executions.adw_id
                  AND flow.state IN ('completed', 'failed', 'abandoned', 'rolled_back')
            )""")

        return sum(self.cancel(row[0], reason="its workflow is over") for row in rows)

    def cancel_all(self, adw_id: str, *, reason: str) -> int:
        """Cancel the open executions of a workflow, and return how many there were."""
        sql = f"""
        SELECT execution_id FROM {self._untaken} WHERE adw_id = :adw_id AND taken_at IS NULL AND state = 'running'
        """
        with self._database.read() as session:
            rows = session.all(sql, {"adw_id": adw_id})

        return sum(self.cancel(row[0], reason=reason) for row in rows)

    # --- loops run outside of adw ----------------------------------------------------------------------------------

    def open_outside(self, session: Session, new: NewExecution, total: int, said: Mapping[str, Any]) -> None:
        """Store a loop whose iterations are reported from outside; raise EventRefused if it has begun already."""
        if not session.run(_INSERT, self._new_params(new, 0)):
            raise EventRefused(f"the loop {new.execution_id} has begun already: give another loop its own execution_id")
        session.run_each(
            _STORE, [{"execution_id": new.execution_id, "idx": index, "element": NULL} for index in range(total)]
        )
        self._specs.pop(new.execution_id, None)  # may be of a transaction that was rolled back
        update = self._open_loop(session, new.execution_id)
        update.execution.stored = total
        update.start(total, said)
        self._save(session, update)

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
        Record that an outside iteration runs, with its element in *value*, or has ended, with its result in *value*.

        Raises EventRefused if that contradicts the record: an iteration begins once and ends once.
        """
        update = self._open_loop(session, execution_id)
        execution, row = update.execution, update.rows.one(index)
        if row is None:
            raise UsageError(
                f"iteration_index is {index}, and the loop {execution_id} has {execution.stored} elements: count from 0"
            )
        if row.state not in (PENDING, RUNNING):
            raise EventRefused(f"iteration {index} of {execution_id} is {row.state} already: it ends once")
        if state is IterationState.RUNNING:
            if row.state == RUNNING:
                raise EventRefused(f"iteration {index} of {execution_id} is running already: it begins once")
            if execution.cancel_reason:
                raise EventRefused(f"the loop {execution_id} begins nothing more: {execution.cancel_reason}")
            update.begin_outside(row, said)
            element = self._json_text(value, f"the element of iteration {index}")
            session.run(
                "UPDATE iterations SET element = :element WHERE execution_id = :execution_id AND idx = :idx",
                {"execution_id": execution_id, "idx": index, "element": element},
            )
        else:
            result = self._json_text(value, f"the result of iteration {index}")
            update.end_outside(row, state, said, reason=reason, result=result)
        if index == execution.next_index:
            following = update.rows.not_begun(index + 1, 1)
            execution.next_index = following[0].index if following else execution.stored
        self._save(session, update)
        has_more = bool(execution.cancel_reason)  # too many failed: iterations not begun are cancelled
        while has_more and not update.is_over:
            update = self._open_loop(session, execution_id)
            has_more = update.cancel_some()
            self._save(session, update)

    def end_loop_outside(
        self, session: Session, execution_id: str, state: ExecutionState, said: Mapping[str, Any], *, reason: str
    ) -> bool:
        """
        Record the end of a loop; return False if it has that end already. Raises EventRefused.

        adw does its own counting: a loop completes or fails with its last iteration. Only a cancellation ends it
        sooner.
        """
        known = self._update(session, execution_id)
        if known is not None and known.is_over and known.execution.state is state:
            return False
        update = self._open_loop(session, execution_id)
        if state is not ExecutionState.CANCELLED:
            execution = update.execution
            raise EventRefused(
                f"{(execution.total or 0) - execution.ended} of {execution.total} iterations of {execution_id} have no"
                " end: report theirs, or iterator_cancelled"
            )
        update.ask_to_cancel(reason or "cancelled outside", said)
        self._save(session, update)
        while self._cancel_chunk(session, execution_id, reason or "cancelled outside")[1]:
            pass

        return True

    def cancel_outside(self, session: Session, adw_id: str, task_id: str, *, reason: str) -> None:
        """Cancel the open loops of a task that has ended."""
        sql = f"""
        SELECT execution_id FROM {self._untaken} WHERE adw_id = :adw_id AND taken_at IS NULL AND state = 'running'
          AND parent_execution_id = :task_id ORDER BY execution_id
        """
        for row in session.all(sql, {"adw_id": adw_id, "task_id": task_id}):
            while self._cancel_chunk(session, row[0], reason)[1]:
                pass

    def _open_loop(self, session: Session, execution_id: str) -> ExecutionUpdate:
        update = self._update(session, execution_id)
        if update is None:
            raise EventRefused(f"the loop {execution_id} has not begun: report its iterator_started first")
        if update.is_over:
            raise EventRefused(f"the loop {execution_id} is {update.execution.state.value} already: it ends once")

        return update

    # --- waiting -----------------------------------------------------------------------------------------------

    def is_wanted(self, adw_id: str) -> bool:
        """Return whether the workflow is to continue."""
        with self._database.read() as session:
            return session.one(f"SELECT 1 WHERE {_IS_WANTED}", {"adw_id": adw_id}) is not None

    def due_lanes(self, adw_id: str) -> tuple[int, ...]:
        """Return the ids of a workflow's waiting lane runs that are due, oldest first."""
        sql = """
        SELECT run_id FROM runs
        WHERE adw_id = :adw_id AND finished_at IS NULL AND kind = 'iteration' AND state = 'pending'
          AND not_before <= :moment
        ORDER BY run_id
        """
        with self._database.read() as session:
            return tuple(row[0] for row in session.all(sql, {"adw_id": adw_id, "moment": self._moment()}))

    def mark_taken(self, execution_id: str) -> None:
        """Record that the phase has taken the result of an ended execution."""
        params = {"execution_id": execution_id, "moment": self._moment()}
        self._database.transact(lambda session: session.run(_MARK_TAKEN, params))

    def wake(self, adw_id: str = "") -> int:
        """Make the runs due whose workflows wait only for ended executions, and return how many."""
        sql = """
        SELECT DISTINCT adw_id FROM executions
        WHERE taken_at IS NULL AND state <> 'running' AND (:adw_id = '' OR adw_id = :adw_id)
          AND NOT EXISTS (
              SELECT 1 FROM executions AS other
              WHERE other.adw_id = executions.adw_id AND other.taken_at IS NULL AND other.state = 'running'
          )
        """
        with self._database.read() as session:
            rows = session.all(sql, {"adw_id": adw_id})
        if not rows:
            return 0

        return self._database.transact(lambda session: sum(self._wake(session, row[0]) for row in rows))

    def _wake(self, session: Session, adw_id: str) -> int:
        """Make the workflow's run due that waits for an execution."""
        sql = """
        UPDATE runs SET not_before = '', updated_at = :moment
        WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL AND state = 'pending' AND kind <> 'rollback'
          AND not_before > :moment
        RETURNING run_id, rank
        """
        woken = session.all(sql, {"adw_id": adw_id, "moment": self._moment()})
        if self._database.dialect != "sqlite":
            session.run_each(
                queue_store.JOB_OF_RUN,
                [{"run_id": run_id, "rank": rank, "not_before": ""} for run_id, rank in woken],
            )

        return len(woken)

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, execution_id: str) -> Execution | None:
        """Return the current row of an execution, or None."""
        with self._database.read() as session:
            return self._execution(session, execution_id, _EXECUTION)

    def plan(self, execution_id: str) -> NewExecution | None:
        """Return the execution as it was requested, or None."""
        with self._database.read() as session:
            row = session.one(_NEW, {"execution_id": execution_id})

        return None if row is None else _to_new(row)

    def retries(self, *, adw_id: str = "", limit: int = 1000) -> tuple[WaitingRetry, ...]:
        """Return the calls that wait for a retry, the next one first."""
        sql = """
        SELECT waits.execution_id, owner.adw_id, owner.phase, waits.next_at, waits.why, owner.step, waits.idx,
            waits.attempts, waits.page, waits.error
        FROM iterations AS waits JOIN executions AS owner ON owner.execution_id = waits.execution_id
        WHERE waits.state = 'retry_wait' AND owner.state = 'running' AND owner.taken_at IS NULL
          AND (:adw_id = '' OR owner.adw_id = :adw_id)
        ORDER BY waits.next_at, waits.execution_id, waits.idx LIMIT :limit
        """
        with self._database.read() as session:
            return tuple(WaitingRetry("call", *row) for row in session.all(sql, {"adw_id": adw_id, "limit": limit}))

    def results(self, execution_id: str, *, first: int = 0) -> Iterator[tuple[int, IterationState, JsonValue]]:
        """Yield index, state and result of each iteration in collection order."""
        sql = """
        SELECT idx, state, result FROM iterations WHERE execution_id = :execution_id AND idx > :after
        ORDER BY idx LIMIT :most
        """
        for index, state, text in self._in_pieces(sql, {"execution_id": execution_id}, after=first - 1):
            yield index, IterationState(state), json.loads(text)

    def results_size(self, execution_id: str) -> int:
        """Return the approximate number of JSON characters of all results."""
        sql = "SELECT coalesce(sum(length(result)), 0) FROM iterations WHERE execution_id = :execution_id"
        with self._database.read() as session:
            row = session.one(sql, {"execution_id": execution_id})

        return int(row[0]) if row else 0

    def cut(self, execution_id: str) -> int:
        """Return how many iterations completed with their calls used up."""
        with self._database.read() as session:
            return IterationRepository(session, self, execution_id).cut()

    def last_error(self, execution_id: str) -> JsonObject | None:
        """Return the error of the latest failed iteration, with its reason as the message, or None if none failed."""
        new = self.plan(execution_id)
        if new is None:
            return None
        which = {"execution_id": execution_id, "adw_id": new.adw_id}
        of_execution = "FROM events WHERE adw_id = :adw_id AND execution_id = :execution_id"
        with self._database.read() as session:
            failure = session.one(
                f"SELECT iteration_index, data {of_execution} AND event_type = 'iteration_failed'"
                " ORDER BY seq DESC LIMIT 1",
                which,
            )
            if failure is None:
                return None
            call = session.one(
                f"SELECT event_type, data {of_execution} AND iteration_index = :idx"
                " AND event_type IN ('action_completed', 'action_failed') ORDER BY seq DESC LIMIT 1",
                {**which, "idx": failure[0]},
            )
        error = json.loads(call[1]).get("error") or {} if call is not None and call[0] == "action_failed" else {}

        return {**error, "message": json.loads(failure[1]).get("reason") or error.get("message") or ""}

    def metas(self, execution_id: str) -> Iterator[JsonObject]:
        """Yield the `meta` of each reported call."""
        sql = """
        SELECT seq, meta FROM events
        WHERE adw_id = :adw_id AND seq > :after AND execution_id = :execution_id
          AND event_type IN ('action_completed', 'action_failed')
        ORDER BY seq LIMIT :most
        """
        if (new := self.plan(execution_id)) is not None:
            params = {"execution_id": execution_id, "adw_id": new.adw_id}
            yield from (json.loads(row[1]) for row in self._in_pieces(sql, params, after=0))

    def _in_pieces(self, sql: str, params: Mapping[str, object], *, after: int) -> Iterator[Row]:
        """Yield the rows of *sql* a few at a time, ordered by their first column, which must exceed *after*."""
        while True:
            with self._database.read() as session:
                rows = session.all(sql, {**params, "after": after, "most": READ_AT_ONCE})
            yield from rows
            if len(rows) < READ_AT_ONCE:
                return
            after = rows[-1][0]

    def denied(self, execution_id: str) -> JsonObject:
        """Return the hosts that sandboxes denied to the calls, with counts."""
        new, result = self.plan(execution_id), Counter[str]()
        if new is None:
            return {}
        sql = """
        SELECT meta FROM events
        WHERE adw_id = :adw_id AND execution_id = :execution_id
          AND event_type IN ('action_completed', 'action_failed') AND meta LIKE :pattern
        """
        with self._database.read() as session:
            rows = session.all(sql, {"adw_id": new.adw_id, "execution_id": execution_id, "pattern": '%"denied"%'})
        for row in rows:
            result.update(json.loads(row[0]).get("call", {}).get("denied", {}))

        return {**result}

    # --- beside executions -------------------------------------------------------------------------------------

    def keep(self, key: str, value: JsonValue) -> None:
        """Store a large result of a single call, durable on return."""
        text = self._json_text(value, f"the result {key}")
        params = {"execution_id": key, "idx": -1, "page": 0, "part": text}
        self._database.transact(lambda session: session.run(KEEP_PAGE, params))

    def kept(self, key: str) -> JsonValue:
        """Return the result stored for *key*."""
        with self._database.read() as session:
            row = session.one(_PAGES, {"execution_id": key, "idx": -1})
        if row is None:
            raise StateInvalid(f"the result {key} is not in the database any more: run the phase from its beginning")
        value: JsonValue = json.loads(row[0])

        return value

    def tell(self, events: Sequence[Event]) -> None:
        """Store events that belong to no execution in this store."""
        params = [connection.event_params(event) for event in events]
        self._database.transact(lambda session: session.run_each(connection.EVENT_INSERT, params))

    # --- one update --------------------------------------------------------------------------------------------

    def _update(self, session: Session, execution_id: str, *, run: Run | None = None) -> ExecutionUpdate | None:
        """Begin an update: lock and read the execution; return None if it does not exist."""
        execution = self._execution(session, execution_id, _EXECUTION + self._database.row_lock_sql)
        if execution is None:
            return None

        return ExecutionUpdate(
            self._spec(session, execution_id),
            execution,
            IterationRepository(session, self, execution_id),
            redactor=self._redactor,
            clock=self._clock,
            run=run,
        )

    def _execution(self, session: Session, execution_id: str, sql: str) -> Execution | None:
        row = session.one(sql, {"execution_id": execution_id})
        if row is None:
            return None

        return Execution(execution_id, self._spec(session, execution_id).new.step, ExecutionState(row[0]), *row[1:])

    def _spec(self, session: Session, execution_id: str) -> ExecutionSpec:
        result = self._specs.get(execution_id)
        if result is None:
            row = session.one(_NEW, {"execution_id": execution_id})
            if row is None:
                raise UsageError(f"there is no execution {execution_id}")
            new = _to_new(row)
            whole, small = event_contexts(new, self._redactor)
            result = ExecutionSpec(new=new, event_context=whole, small_context=small)
            if len(self._specs) >= SPECS:
                self._specs.clear()
            self._specs[execution_id] = result

        return result

    def _save(self, session: Session, update: ExecutionUpdate) -> None:
        """Write the changes of an update; the end of the execution makes the workflow's run due."""
        execution, execution_id = update.execution, update.execution.execution_id
        begun: list[dict[str, object]] = []
        changed: list[dict[str, object]] = []
        plain, scrub = connection.plain, self._scrubbed
        for row in update.changed.values():
            params = {"execution_id": execution_id, "idx": row.index, **row.__dict__}
            if row.state == RUNNING and row.attempts == 1 and row.call == "{}" and not row.fingerprint:
                begun.append(params)
                continue
            params["why"], params["error"] = plain(row.why), plain(row.error)
            params["fingerprint"] = plain(row.fingerprint)
            params["call"], params["result"] = scrub(row.call), scrub(row.result)
            changed.append(params)
        if begun:
            session.run_each(_CHANGE_BEGUN, begun)
        if changed:
            session.run_each(_CHANGE, changed)
        if update.pages:
            pages = [
                {"execution_id": execution_id, "idx": index, "page": page, "part": scrub(part)}
                for index, page, part in update.pages
            ]
            session.run_each(KEEP_PAGE, pages)
        if update.events:
            session.run_each(connection.EVENT_INSERT, _event_params(update.events))
        session.run(
            _UPDATE,
            {
                **execution.__dict__,
                "state": execution.state.value,
                "reason": plain(execution.reason),
                "cancel_reason": plain(execution.cancel_reason),
            },
        )
        if not update.is_over or not update.events:
            return
        # An ended execution gets no more events, so this update ended it.
        new = update.spec.new
        if new.step.tool == EXTERNAL:  # no phase takes its result: the workflow continues when its task is reported
            session.run(_MARK_TAKEN, {"execution_id": execution_id, "moment": self._moment()})
        else:
            self._wake(session, new.adw_id)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())

    def _json_text(self, value: object, what: str) -> str:
        """Return *value* as stored JSON; raise StateUnserialisable, naming *what*, if it is not JSON."""
        return self._scrubbed(connection.json_text(value, what))

    def _scrubbed(self, text: str) -> str:
        """Return JSON text without secrets."""
        payload = text.encode("ascii")
        clean = self._redactor.scrub_bytes(payload)

        return text if clean is payload else clean.decode()


def execution_of(run: Run) -> str:
    """Return the execution that *run* is a lane of; raise UsageError if it is not a lane."""
    result = run.payload.get("execution_id")
    if run.kind != ITERATION or not isinstance(result, str):
        raise UsageError(f"run {run.run_id} is of kind {run.kind} and no lane of an execution")

    return result


def _to_new(row: Row) -> NewExecution:
    """Return the execution in a row of `_NEW_COLUMNS`."""
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
        step=from_json(StepSpec, json.loads(row[12])),
        context=json.loads(row[13]),
    )


def _event_params(events: Sequence[Event]) -> list[dict[str, object]]:
    """Return the events of one update as parameters; a value shared by many of them is encoded once."""
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
    for event in events:  # the events and their values outlive this loop, so an id identifies one value
        params = dict(event.__dict__)
        for name in ("result", "context", "data", "meta"):
            params[name] = text_of(params[name])
        result.append(params)

    return result


def _chunked(texts: Iterator[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the texts in chunks that fit a transaction, each with whether it is the last; even without texts, one."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        if len(chunk) >= CHUNK or (chunk and size + len(text) > CHUNK_CHARACTERS):
            yield chunk, False
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    yield chunk, True
