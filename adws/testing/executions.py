"""
Executions in memory, over a queue in memory: the same turns as in the database, without one.

Rows are copied before a turn changes them, so a turn that fails changes nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from adws.adw_modules import timestamps
from adws.adw_modules.errors import RunLost, StateInvalid, StateUnserialisable, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.execution_picking import LEFT, cancel_some, lanes_of, pick, shown_facts
from adws.adw_modules.execution_state import RETRY_WAIT, RUNNING, Head, Iteration, Lane, Plan, Rules, lane_run
from adws.adw_modules.execution_telling import failure_of
from adws.adw_modules.execution_turn import ExecutionTurn
from adws.adw_modules.execution_words import ExecutionState, IterationState
from adws.adw_modules.executions import Assignment, CallReport, Execution, NewExecution, ScheduledRetry, Taken
from adws.adw_modules.fanout import planner
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import ProcessRecord
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import FINAL_RUNS, ITERATION, ROLLBACK, Run, RunState
from adws.testing.run_queue import MemoryRunQueue


@dataclass(kw_only=True, slots=True)
class _Stored:
    """One execution with its rows."""

    plan: Plan
    head: Head
    rows: dict[int, Iteration] = field(default_factory=dict)
    pages: dict[tuple[int, int], str] = field(default_factory=dict)
    is_taken: bool = False


class _Shelf:
    """A `Shelf` over rows in memory."""

    def __init__(self, stored: _Stored, runs: Callable[[], Mapping[int, Run]]) -> None:
        self._stored = stored
        self._runs = runs

    def of_lane(self, run_id: int) -> list[Iteration]:
        return self._those(lambda row: row.state == RUNNING and row.run_id == run_id)

    def due(self, moment: str, most: int) -> list[Iteration]:
        return self._waiting(lambda row: row.next_at <= moment)[:most]

    def waiting(self, most: int) -> list[Iteration]:
        return self._waiting(lambda _row: True)[:most]

    def first_waiting(self) -> Iteration | None:
        return next(iter(self._those(lambda row: row.state == RETRY_WAIT)), None)

    def next_at(self) -> str | None:
        return min((row.next_at for row in self._stored.rows.values() if row.state == RETRY_WAIT), default=None)

    def not_begun(self, first: int, most: int) -> list[Iteration]:
        return self._those(lambda row: row.index >= first)[:most]

    def orphans(self) -> list[Iteration]:
        runs = self._runs()

        def is_lost(row: Iteration) -> bool:
            run = runs.get(row.run_id or 0)
            return row.state == RUNNING and (run is None or run.token != row.token or run.state in FINAL_RUNS)

        return self._those(is_lost)

    def parts(self, index: int) -> Iterator[JsonValue]:
        kept = sorted((page, text) for (place, page), text in self._stored.pages.items() if place == index)

        return (json.loads(text) for _page, text in kept)

    def _waiting(self, is_meant: Callable[[Iteration], bool]) -> list[Iteration]:
        found = self._those(lambda row: row.state == RETRY_WAIT and is_meant(row))
        return sorted(found, key=lambda row: (row.next_at, row.index))

    def _those(self, is_meant: Callable[[Iteration], bool]) -> list[Iteration]:
        rows = sorted(self._stored.rows.items())
        return [replace(row) for _index, row in rows if is_meant(row)]


class MemoryExecutions:
    """`Executions` in memory."""

    def __init__(self, clock: Clock, runs: MemoryRunQueue, *, rules: Rules | None = None) -> None:
        self._clock = clock
        self._runs = runs
        self._rules = rules or Rules(decide=planner.decide, fold=planner.fold)
        self._guard = threading.RLock()
        self._stored: dict[str, _Stored] = {}
        self._values: dict[str, str] = {}
        self.events: list[Event] = []  #: all there are, in their order
        self.over: set[str] = set()  #: workflows that are over, for `cancel_left`

    # --- storing -----------------------------------------------------------------------------------------------

    def open(self, new: NewExecution, elements: Iterable[JsonValue], *, lanes: int) -> Execution:
        """Store an execution with its iterations and its lanes, or open lanes that are gone."""
        if lanes < 1:
            raise UsageError(f"an execution needs at least one lane, not {lanes}")
        with self._guard:
            stored = self._stored.get(new.execution_id)
            if stored is None:
                stored = self._new(new, elements, lanes)
            if stored.head.execution.state is ExecutionState.RUNNING:
                for lane in range(min(stored.head.lanes, lanes_of(new.step, stored.head.stored))):
                    self._runs.enqueue(lane_run(new, f"{new.execution_id}/{lane}"))

            return stored.head.execution

    def _new(self, new: NewExecution, elements: Iterable[JsonValue], lanes: int) -> _Stored:
        texts = [_text(element) for element in elements]
        copied = replace(new, context=json.loads(_text(new.context)))
        head = Head(
            execution=Execution(execution_id=new.execution_id, step=new.step),
            lanes=lanes,
            stored=len(texts),
            created_at=timestamps.to_text(self._clock.now()),
        )
        stored = _Stored(plan=Plan(new=copied), head=head)
        stored.rows = {index: Iteration(index=index, element=text) for index, text in enumerate(texts)}
        self._stored[new.execution_id] = stored
        turn = self._turn(stored)
        turn.start(len(texts))
        self._save(stored, turn)

        return stored

    # --- lanes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, *, most: int) -> Taken:
        """Give *run* up to *most* iterations that are due."""
        return self._lane_turn(run, None, most)

    def report(self, run: Run, reports: Sequence[CallReport], *, most: int) -> Taken:
        """Store what came of calls, decide, and give *run* the next iterations."""
        return self._lane_turn(run, reports, most)

    def _lane_turn(self, run: Run, reports: Sequence[CallReport] | None, most: int) -> Taken:
        with self._guard:
            ours = self._ours(run)
            stored = self._stored.get(str(run.payload.get("execution_id")))
            if stored is None:
                return Taken(is_over=True)
            turn, shelf = self._turn(stored, run), self._shelf(stored)
            called = shelf.of_lane(run.run_id)
            turn.interrupt([row for row in called if row.token != run.token])
            if reports is not None:
                turn.report([row for row in called if row.token == run.token], reports)
            may_go_on = self.is_wanted(run.adw_id) and ours.state is not RunState.STOPPING
            taken = pick(turn, shelf, moment=self._moment(), most=most, is_wanted=may_go_on)
            self._save(stored, turn)

            return taken

    def _ours(self, run: Run) -> Run:
        found = self._runs.get(run.run_id)
        if found is None or found.state in FINAL_RUNS or (found.token, found.owner) != (run.token, run.owner):
            raise RunLost(run.run_id)

        return found

    def record_process(self, run: Run, assignment: Assignment, process: ProcessRecord) -> None:
        """Write down which process makes a call."""
        with self._guard:
            row = self._stored[assignment.execution_id].rows[assignment.index]
            if (row.state, row.run_id, row.token) != (RUNNING, run.run_id, run.token):
                raise RunLost(run.run_id)
            row.process = json.dumps(process.to_json())

    def left_processes(self, run: Run) -> tuple[JsonObject, ...]:
        """Return the processes of calls that an earlier owner of *run* left."""
        stored = self._stored.get(str(run.payload.get("execution_id")))
        called = self._shelf(stored).of_lane(run.run_id) if stored else []

        return tuple(json.loads(row.process) for row in called if row.process and row.token != run.token)

    def give_up(self, run: Run, *, reason: str) -> None:
        """Fail the calls of a lane that too many workers vanished with; another run takes its place."""
        with self._guard:
            stored = self._stored.get(str(run.payload.get("execution_id")))
            if stored is None or stored.head.execution.state is not ExecutionState.RUNNING:
                return
            turn, shelf = self._turn(stored, run), self._shelf(stored)
            turn.give_up(shelf.of_lane(run.run_id), reason)
            if turn.head.cancel_reason:
                cancel_some(turn, shelf)
            self._save(stored, turn)
            if not turn.is_over:
                self._runs.enqueue(lane_run(stored.plan.new, f"{run.slot}+"))

    # --- cancelling --------------------------------------------------------------------------------------------

    def cancel(self, execution_id: str, *, reason: str, index: int | None = None) -> bool:
        """End an execution, or the call of one iteration that waits for its time."""
        with self._guard:
            stored = self._stored.get(execution_id)
            if stored is None or stored.head.execution.state is not ExecutionState.RUNNING:
                return False
            if index is not None:
                return self._cancel_one(stored, index, reason)
            while True:
                turn, shelf = self._turn(stored), self._shelf(stored)
                turn.ask_to_cancel(reason)
                turn.give_up(shelf.orphans(), reason)
                has_more = cancel_some(turn, shelf)
                self._save(stored, turn)
                if not has_more:
                    return True

    def _cancel_one(self, stored: _Stored, index: int, reason: str) -> bool:
        row = stored.rows.get(index)
        if row is None or row.state != RETRY_WAIT:
            return False
        turn = self._turn(stored)
        turn.cancel([replace(row)], reason)
        self._save(stored, turn)

        return True

    def cancel_left(self) -> int:
        """Cancel executions of workflows that are over."""
        found = [key for key, stored in self._stored.items() if stored.plan.new.adw_id in self.over]

        return sum(self.cancel(execution_id, reason=LEFT) for execution_id in found)

    def cancel_all(self, adw_id: str, *, reason: str) -> int:
        """Cancel what has not ended of a workflow's executions."""
        found = [key for key, stored in self._stored.items() if stored.plan.new.adw_id == adw_id]

        return sum(self.cancel(execution_id, reason=reason) for execution_id in found)

    # --- waiting -----------------------------------------------------------------------------------------------

    def is_wanted(self, adw_id: str) -> bool:
        """Say whether the workflow is to go on."""
        return any(
            run.adw_id == adw_id and not run.slot and run.kind != ROLLBACK and run.state not in FINAL_RUNS
            for run in self._all_runs().values()
        )

    def due_lanes(self, adw_id: str) -> tuple[int, ...]:
        """Return the runs of the lanes of a workflow that wait and are due, the oldest first."""
        moment = self._moment()

        return tuple(
            sorted(
                run.run_id
                for run in self._all_runs().values()
                if (run.adw_id, run.kind, run.state) == (adw_id, ITERATION, RunState.PENDING)
                and run.not_before <= moment
            )
        )

    def mark_taken(self, execution_id: str) -> None:
        """Say that the phase has taken the result of an execution that has ended."""
        stored = self._stored.get(execution_id)
        if stored is not None and stored.head.ended_at is not None:
            stored.is_taken = True

    def wake(self, adw_id: str = "") -> int:
        """Make runs due whose workflow waits for executions that have ended."""
        with self._guard:
            open_ = [one for one in self._stored.values() if not one.is_taken]
            running = {one.plan.new.adw_id for one in open_ if one.head.ended_at is None}
            ended = {one.plan.new.adw_id for one in open_ if one.head.ended_at is not None}
            meant = {one for one in ended - running if adw_id in ("", one)}

            return sum(self._runs.wake(one) for one in meant)

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, execution_id: str) -> Execution | None:
        """Return an execution as it stands."""
        stored = self._stored.get(execution_id)

        return None if stored is None else stored.head.execution

    def plan(self, execution_id: str) -> NewExecution | None:
        """Return what was asked for."""
        stored = self._stored.get(execution_id)

        return None if stored is None else stored.plan.new

    def iterations(self, execution_id: str) -> list[Iteration]:
        """Return the rows of an execution, for tests."""
        return [replace(row) for _index, row in sorted(self._stored[execution_id].rows.items())]

    def retries(self, *, adw_id: str = "", limit: int = 1000) -> tuple[ScheduledRetry, ...]:
        """Return the calls that wait for their time, the next one first."""
        found = [
            ScheduledRetry(
                execution_id=key,
                adw_id=stored.plan.new.adw_id,
                phase=stored.plan.new.phase,
                step=stored.plan.new.step.name,
                index=row.index,
                attempt_number=row.attempts,
                page=row.page,
                next_at=row.next_at,
                why=row.why,
                error=row.error,
            )
            for key, stored in self._stored.items()
            if stored.head.execution.state is ExecutionState.RUNNING and adw_id in ("", stored.plan.new.adw_id)
            for row in stored.rows.values()
            if row.state == RETRY_WAIT
        ]

        return tuple(sorted(found, key=lambda one: (one.next_at, one.execution_id, one.index))[:limit])

    def results(self, execution_id: str, *, first: int = 0) -> Iterator[tuple[int, IterationState, JsonValue]]:
        """Yield index, state and result of each iteration in the order of the collection."""
        stored = self._stored.get(execution_id)
        rows = sorted(stored.rows.items()) if stored else []

        return ((index, IterationState(row.state), json.loads(row.result)) for index, row in rows if index >= first)

    def results_size(self, execution_id: str) -> int:
        """Return about how many characters all results have as JSON."""
        stored = self._stored.get(execution_id)

        return sum(len(row.result) for row in stored.rows.values()) if stored else 0

    def facts(self, execution_id: str) -> Mapping[str, JsonValue]:
        """Return counts for people."""
        stored = self._stored.get(execution_id)
        if stored is None:
            return {}
        states = [row.state for row in stored.rows.values()]

        return shown_facts(
            stored.head,
            running=states.count(RUNNING),
            waiting=states.count(RETRY_WAIT),
            next_at=self._shelf(stored).next_at(),
        )

    def last_error(self, execution_id: str) -> JsonObject | None:
        """Return why the last iteration that failed did."""
        failures = self._told(execution_id, "iteration_failed")
        if not failures:
            return None
        end = failures[-1]
        calls = self._told(execution_id, "action_completed", "action_failed")
        last = [event for event in calls if event.iteration_index == end.iteration_index][-1]

        return failure_of(end.data, last.data if last.event_type == "action_failed" else {})

    def metas(self, execution_id: str) -> Iterator[JsonObject]:
        """Yield the `meta` of each call that was reported."""
        return (event.meta for event in self._told(execution_id, "action_completed", "action_failed"))

    def _told(self, execution_id: str, *types: str) -> list[Event]:
        return [event for event in self.events if event.execution_id == execution_id and event.event_type in types]

    # --- beside executions -------------------------------------------------------------------------------------

    def keep(self, key: str, value: JsonValue) -> None:
        """Store a large result of a single call."""
        self._values[key] = _text(value)

    def kept(self, key: str) -> JsonValue:
        """Return what was stored for *key*."""
        if key not in self._values:
            raise StateInvalid(f"the result {key} is not in the database any more: run the phase from its beginning")
        value: JsonValue = json.loads(self._values[key])

        return value

    def tell(self, events: Sequence[Event]) -> None:
        """Store events that belong to no execution of its own."""
        known = {event.event_id for event in self.events}
        self.events += [event for event in events if event.event_id not in known]

    # --- how -----------------------------------------------------------------------------------------------------

    def _turn(self, stored: _Stored, run: Run | None = None) -> ExecutionTurn:
        owner = OwnerRecord.from_text(run.owner) if run is not None else None
        lane = Lane(run_id=run.run_id, token=run.token, worker_id=owner.describe() if owner else "") if run else None

        return ExecutionTurn(
            stored.plan,
            replace(stored.head),
            self._rules,
            now=self._clock.now(),
            random=self._clock.random,
            lane=lane,
            parts_of=self._shelf(stored).parts,
        )

    def _shelf(self, stored: _Stored) -> _Shelf:
        return _Shelf(stored, self._all_runs)

    def _all_runs(self) -> dict[int, Run]:
        return {run.run_id: run for run in self._runs.page(limit=1_000_000)}

    def _save(self, stored: _Stored, turn: ExecutionTurn) -> None:
        stored.head = turn.head
        stored.rows.update(turn.changed)
        stored.pages.update({(index, page): text for index, page, text in turn.pages})
        self.events += turn.events
        if turn.is_over and turn.events:
            self._runs.wake(stored.plan.new.adw_id)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


def _text(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise StateUnserialisable(f"it is not JSON: {exc}") from exc
