"""
Executions in the database: rows, events and runs change together or not at all.

Every change of an execution is one transaction that locks its row first. A lane proves by its run that it may change
anything; what it reports and what it takes next are the same transaction, and so is the end of the execution, which
makes the run of the workflow due.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.db import announcing, execution_rows, rows, statements
from adws.adw_modules.db import execution_statements as sql
from adws.adw_modules.db.execution_looks import ExecutionLooks
from adws.adw_modules.db.execution_shelf import RowShelf, save_turn
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import RunLost, StateInvalid, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.execution_picking import LEFT, cancel_some, lanes_of, pick
from adws.adw_modules.execution_state import Head, Lane, Plan, Rules, lane_run
from adws.adw_modules.execution_turn import ExecutionTurn
from adws.adw_modules.executions import (
    Assignment,
    CallReport,
    Execution,
    NewExecution,
    Taken,
)
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import ProcessRecord
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import ITERATION, Run, RunState
from adws.adw_modules.steps import StepSpec

#: Elements, and characters of them, that are stored in one transaction.
CHUNK, CHUNK_CHARACTERS = 500, 1_000_000
#: Executions whose plan is kept at hand.
PLANS = 256


class DatabaseExecutions(ExecutionLooks):
    """`Executions` in the tables executions, iterations and iteration_pages."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        rules: Rules,
        sanitise: Callable[[NewExecution], tuple[JsonObject, JsonObject]] = lambda _new: ({}, {}),
        scrub: Callable[[bytes], bytes] = lambda payload: payload,
    ) -> None:
        """*sanitise* makes what events show of a context, whole and in short; *scrub* is for what is stored."""
        super().__init__(database)
        self._clock = clock
        self._rules = rules
        self._sanitise = sanitise
        self._scrub = scrub
        self._runs = DatabaseRunQueue(database, clock=clock)
        self._plans: dict[str, Plan] = {}

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

        return (execution_rows.json_text(element, what, self._scrub) for element in elements)

    def _storing(
        self, new: NewExecution, lanes: int, position: int, chunk: Sequence[str], *, is_last: bool
    ) -> Callable[[Session], Execution | None]:
        def work(session: Session) -> Execution | None:
            if position == 0:
                moment = timestamps.to_text(self._clock.now())
                params = execution_rows.new_params(new, lanes=lanes, moment=moment, scrub=self._scrub)
                session.run(sql.INSERT, params)
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
        head: Head,
        position: int,
        chunk: Sequence[str],
        *,
        is_last: bool,
        turn: ExecutionTurn,
    ) -> None:
        execution_id = head.execution.execution_id
        fresh = chunk[max(0, head.stored - position) :]
        first = position + len(chunk) - len(fresh)
        session.run_each(
            sql.STORE,
            [{"execution_id": execution_id, "idx": first + n, "element": text} for n, text in enumerate(fresh)],
        )
        head.stored = max(head.stored, position + len(chunk))
        if is_last:
            turn.start(head.stored)
        self._save(session, turn)

    def _open_lanes(self, session: Session, new: NewExecution, head: Head) -> None:
        """Queue the lanes that are not there: all of them at first, later those that were stopped."""
        wanted = min(head.lanes, lanes_of(new.step, head.execution.total or 0))
        for lane in range(wanted):
            self._runs.enqueue_in(session, lane_run(new, f"{new.execution_id}/{lane}"))

    # --- lanes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, *, most: int) -> Taken:
        """Give *run* up to *most* iterations that are due."""
        return self._lane_turn(run, None, most)

    def report(self, run: Run, reports: Sequence[CallReport], *, most: int) -> Taken:
        """Store what came of calls, decide, and give *run* the next iterations: one transaction."""
        return self._lane_turn(run, reports, most)

    def _lane_turn(self, run: Run, reports: Sequence[CallReport] | None, most: int) -> Taken:
        execution_id = execution_of(run)

        def work(session: Session) -> Taken:
            turn = self._turn(session, execution_id, run=run)
            state, losses, is_wanted = self._ours(session, run)
            if turn is None:
                return Taken(is_over=True)
            shelf = RowShelf(session, self._sql, execution_id)
            called = shelf.of_lane(run.run_id)
            turn.interrupt([row for row in called if row.token != run.token])
            if reports is not None:
                turn.report([row for row in called if row.token == run.token], reports)
                if losses and reports:
                    session.run(sql.FORGIVE_LOSSES, {"run_id": run.run_id})
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
            "process": rows.json_text(process.to_json(), "the record of a process"),
        }
        if not self._database.transact(lambda session: session.run(sql.RECORD_PROCESS, params)):
            raise RunLost(run.run_id)

    def left_processes(self, run: Run) -> tuple[JsonObject, ...]:
        """Return the processes of calls that an earlier owner of *run* left."""
        with self._database.read() as session:
            called = RowShelf(session, self._sql, execution_of(run)).of_lane(run.run_id)

        return tuple(json.loads(row.process) for row in called if row.process and row.token != run.token)

    def give_up(self, run: Run, *, reason: str) -> None:
        """Fail the calls of a lane that too many workers vanished with; another run takes its place."""
        execution_id = execution_of(run)

        def work(session: Session) -> None:
            turn = self._turn(session, execution_id, run=run)
            if turn is None or turn.is_over:
                return
            shelf = RowShelf(session, self._sql, execution_id)
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
        found = False
        while True:
            is_there, has_more = self._database.transact(
                lambda session: self._cancel_chunk(session, execution_id, reason)
            )
            found = found or is_there
            if not has_more:
                return found

    def _cancel_one(self, session: Session, execution_id: str, index: int, reason: str) -> bool:
        turn = self._turn(session, execution_id)
        row = RowShelf(session, self._sql, execution_id).one_waiting(index)
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
        shelf = RowShelf(session, self._sql, execution_id)
        turn.ask_to_cancel(reason)
        lost = shelf.orphans()
        turn.give_up(lost, reason)
        has_more = cancel_some(turn, shelf)
        self._save(session, turn)

        return True, has_more

    def cancel_left(self) -> int:
        """Cancel executions of workflows that are over, and return how many there were."""
        with self._database.read() as session:
            found = [row[0] for row in session.all(sql.LEFT_OPEN)]

        return sum(self.cancel(execution_id, reason=LEFT) for execution_id in found)

    def cancel_all(self, adw_id: str, *, reason: str) -> int:
        """Cancel what has not ended of a workflow's executions, and return how many that were."""
        with self._database.read() as session:
            found = [row[0] for row in session.all(self._sql.open_of_workflow, {"adw_id": adw_id})]

        return sum(self.cancel(execution_id, reason=reason) for execution_id in found)

    # --- waiting -----------------------------------------------------------------------------------------------

    def is_wanted(self, adw_id: str) -> bool:
        """Say whether the workflow is to go on."""
        with self._database.read() as session:
            return session.one(sql.IS_WANTED, {"adw_id": adw_id}) is not None

    def due_lanes(self, adw_id: str) -> tuple[int, ...]:
        """Return the runs of the lanes of a workflow that wait and are due, the oldest first."""
        params = {"adw_id": adw_id, "moment": timestamps.to_text(self._clock.now())}
        with self._database.read() as session:
            return tuple(row[0] for row in session.all(sql.DUE_LANES, params))

    def mark_taken(self, execution_id: str) -> None:
        """Say that the phase has taken the result of an execution that has ended."""
        params = {"execution_id": execution_id, "moment": timestamps.to_text(self._clock.now())}
        self._database.transact(lambda session: session.run(sql.MARK_TAKEN, params))

    def wake(self, adw_id: str = "") -> int:
        """Make runs due whose workflow waits for executions that have ended, and return how many."""
        with self._database.read() as session:
            found = [row[0] for row in session.all(sql.UNTAKEN, {"adw_id": adw_id})]
        if not found:
            return 0

        return self._database.transact(lambda session: sum(self._wake(session, one) for one in found))

    def _wake(self, session: Session, adw_id: str) -> int:
        moment = timestamps.to_text(self._clock.now())
        woken = session.all(sql.WAKE, {"adw_id": adw_id, "moment": moment})
        if self._database.dialect != "sqlite":
            session.run_each(
                announcing.JOB_OF_RUN,
                [{"run_id": run_id, "rank": rank, "not_before": ""} for run_id, rank in woken],
            )

        return len(woken)

    # --- beside executions -------------------------------------------------------------------------------------

    def keep(self, key: str, value: JsonValue) -> None:
        """Store a large result of a single call, durable on return."""
        text = execution_rows.json_text(value, f"the result {key}", self._scrub)
        params = {"execution_id": key, "idx": -1, "page": 0, "part": text}
        self._database.transact(lambda session: session.run(sql.KEEP_PAGE, params))

    def kept(self, key: str) -> JsonValue:
        """Return what was stored for *key*."""
        with self._database.read() as session:
            row = session.one(sql.PAGES, {"execution_id": key, "idx": -1})
        if row is None:
            raise StateInvalid(f"the result {key} is not in the database any more: run the phase from its beginning")
        value: JsonValue = json.loads(row[0])

        return value

    def tell(self, events: Sequence[Event]) -> None:
        """Store events that belong to no execution of its own."""
        params = [rows.event_params(event) for event in events]
        self._database.transact(lambda session: session.run_each(statements.EVENT_INSERT, params))

    # --- how -----------------------------------------------------------------------------------------------------

    def _turn(self, session: Session, execution_id: str, *, run: Run | None = None) -> ExecutionTurn | None:
        """Begin a turn: lock the execution and read it, None when there is none."""
        head = self._head(session, execution_id, self._sql.head_to_change)
        if head is None:
            return None
        plan = self._cached_plan(session, execution_id)
        shelf = RowShelf(session, self._sql, execution_id)

        return ExecutionTurn(
            plan,
            head,
            self._rules,
            now=self._clock.now(),
            random=self._clock.random,
            lane=None if run is None else _lane_of(run),
            parts_of=shelf.parts,
        )

    def _step(self, session: Session, execution_id: str) -> StepSpec:
        return self._cached_plan(session, execution_id).new.step

    def _cached_plan(self, session: Session, execution_id: str) -> Plan:
        found = self._plans.get(execution_id)
        if found is None:
            new = self._asked(session, execution_id)
            whole, small = self._sanitise(new)
            found = Plan(new=new, event_context=whole, small_context=small)
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[execution_id] = found

        return found

    def _save(self, session: Session, turn: ExecutionTurn) -> None:
        """Write what a turn changed; its end makes the run of the workflow due."""
        save_turn(session, turn, self._scrub)
        if turn.is_over and turn.events:  # nothing happens to one that has ended: so this turn ended it
            self._wake(session, turn.plan.new.adw_id)


def execution_of(run: Run) -> str:
    """Return the execution that *run* is a lane of; raise UsageError when it is none."""
    found = run.payload.get("execution_id")
    if run.kind != ITERATION or not isinstance(found, str):
        raise UsageError(f"run {run.run_id} is of kind {run.kind} and no lane of an execution")

    return found


def _lane_of(run: Run) -> Lane:
    owner = OwnerRecord.from_text(run.owner)

    return Lane(run_id=run.run_id, token=run.token, worker_id=owner.describe() if owner else "")


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
