"""What every store of executions promises; and for each scenario, that its events folded give what its rows say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import RunLost, StateInvalid, StateUnserialisable, UsageError
from adws.adw_modules.interfaces import OwnerRecord, ProcessRecord
from adws.adw_modules.queue.model import ITERATION, NewRun, RunEnd, RunState
from adws.adw_modules.steps import execution_update
from adws.adw_modules.steps.model import CallReport, ExecutionState, IterationState, NewExecution
from adws.adw_modules.workflow.model import LoopSpec, RetryRule, SinkSpec, StepSpec
from tests.contracts.worlds import make_owner
from tests.loop_lab import counted

ADW_ID = "1a2b3c4d"
FAR = "2999-01-01T00:00:00.000000Z"
TRANSIENT = {"type": "OSError", "category": "transient", "recoverable": True, "message": "the line is dead"}

PARALLEL = LoopSpec(collection="{{ workload.items }}", mode="async", concurrency=3)
SEQUENTIAL = LoopSpec(collection="{{ workload.items }}")
AGAIN = RetryRule(kind="on_error", max_attempts=3, base_seconds=10, strategy="fixed")
PAGES = RetryRule(
    kind="on_success",
    when="response.more",
    max_attempts=5,
    next_call={"params": {"page": "{{ response.page + 1 }}"}},
    collect="append",
    merge_path="data",
    base_seconds=0.0,
)


def step(**fields):
    return StepSpec(**{"name": "work", "tool": "python", "loop": PARALLEL, **fields})


def well(assignment, result=None):
    return CallReport(index=assignment.index, attempt_number=assignment.attempt_number, ok=True, result=result)


def badly(assignment, error=TRANSIENT, fingerprint="dead"):
    return CallReport(
        index=assignment.index,
        attempt_number=assignment.attempt_number,
        ok=False,
        error=dict(error),
        fingerprint=fingerprint,
    )


class ExecutionContract:
    """Needs the fixtures `executions`, `runs`, `clock` and `events` (a function that gives all, in their order)."""

    @pytest.fixture(autouse=True)
    def parent(self, runs):
        """The run of the workflow, which waits."""
        return runs.enqueue(NewRun(adw_id=ADW_ID, kind="start", not_before=FAR))

    @pytest.fixture(autouse=True)
    def replayed(self, executions, events, opened):
        """After each scenario: whoever folds the log comes to what the rows say, in counts and for each iteration."""
        yield
        for new in opened:
            told = [event for event in events() if event.execution_id == new.execution_id]
            stands = executions.get(new.execution_id)
            assert counted(told) == (
                stands.state.value,
                stands.total,
                stands.succeeded,
                stands.failed,
                stands.cancelled,
            )
            ends = {
                event.iteration_index: execution_update.ENDS[event.event_type]
                for event in told
                if event.event_type in execution_update.ENDS
            }
            rows = {index: state for index, state, _result in executions.results(new.execution_id)}
            assert {index: state for index, state in rows.items() if state.value in _ENDED} == ends
            counts = Counter(event.event_type for event in told)
            assert sum(counts[name] for name in execution_update.ENDS) == len(ends), "one end for each iteration"
            assert sum(counts[name] for name in execution_update.EXECUTION_ENDS) == (
                stands.state is not ExecutionState.RUNNING
            )
            assert [event.event_id for event in told] == [f"{new.execution_id}.{n + 1}" for n in range(len(told))]
            assert _awaited(executions, new) <= _asked_for(told), "what waits is what the log last asked for"

    @pytest.fixture
    def opened(self):
        return []

    @pytest.fixture
    def open_one(self, executions, opened):
        def open_one(elements=range(4), *, spec=None, lanes=3, **fields):
            spec = spec or step()
            new = NewExecution(
                **{
                    "execution_id": f"{ADW_ID}.build.1.{spec.name}",
                    "parent_execution_id": f"{ADW_ID}.build.1",
                    "adw_id": ADW_ID,
                    "phase": "build",
                    "attempt_number": 1,
                    "catalog_id": "demo@1",
                    "step": spec,
                    "context": {"workload": {}, "vars": {}, "steps": {}},
                    **fields,
                }
            )
            executions.open(new, elements, lanes=lanes)
            if new not in opened:
                opened.append(new)
            return new

        return open_one

    @pytest.fixture
    def lane(self, runs):
        def lane(name="one"):
            result = runs.claim(make_owner(name), ttl_seconds=60)
            assert result is not None
            assert result.kind == ITERATION
            return runs.begin(result)

        return lane

    @pytest.fixture
    def begun(self, open_one, lane, executions):
        def begun(elements=("x",), **fields):
            """Open an execution, of one element if nothing else is said, and take its first call."""
            new, run = open_one(elements, **fields), lane()
            (one,) = executions.take(run, most=1).assignments
            return new, run, one

        return begun

    # --- storing -----------------------------------------------------------------------------------------------

    def test_an_execution_has_its_lanes_and_no_more(self, open_one, runs, executions):
        new = open_one(range(10), lanes=3)

        waiting = [run for run in runs.page(states=(RunState.PENDING,)) if run.kind == ITERATION]
        assert sorted(run.slot for run in waiting) == [f"{new.execution_id}/{n}" for n in range(3)]
        assert executions.due_lanes(ADW_ID) == tuple(sorted(run.run_id for run in waiting))
        assert executions.plan(new.execution_id) == new

    def test_few_elements_need_few_lanes(self, open_one, executions):
        open_one(range(2), lanes=3)

        assert len(executions.due_lanes(ADW_ID)) == 2

    def test_the_runs_of_a_workflow_are_told_without_its_lanes(self, open_one, runs, parent):
        open_one()

        assert [run.run_id for run in runs.of_workflow(ADW_ID)] == [parent.run_id]

    def test_opening_twice_changes_nothing(self, open_one, executions, events):
        new = open_one(range(5))
        told = len(events())

        assert executions.open(new, range(5), lanes=3) == executions.get(new.execution_id)
        assert len(events()) == told
        assert len(executions.due_lanes(ADW_ID)) == 3

    def test_lanes_that_were_stopped_are_opened_again(self, open_one, executions, runs):
        new = open_one(range(5))
        for run_id in executions.due_lanes(ADW_ID):
            runs.ask_to_stop(run_id)

        executions.open(new, range(5), lanes=3)

        assert len(executions.due_lanes(ADW_ID)) == 3

    def test_an_empty_collection_has_ended_at_once_and_wakes_the_workflow(self, open_one, executions, runs, parent):
        new = open_one([])

        assert executions.get(new.execution_id).state is ExecutionState.COMPLETED
        assert executions.due_lanes(ADW_ID) == ()
        assert runs.get(parent.run_id).not_before == ""

    def test_what_is_not_json_is_refused(self, open_one):
        with pytest.raises(StateUnserialisable):
            open_one([{1, 2}])

    def test_an_execution_needs_a_lane(self, executions, open_one):
        new = open_one()
        with pytest.raises(UsageError):
            executions.open(new, [], lanes=0)

    def test_many_elements_are_stored_in_their_order(self, open_one, executions, lane):
        new = open_one(range(1203))

        assert executions.get(new.execution_id).total == 1203
        taken = executions.take(lane(), most=20)
        assert [(one.index, one.element) for one in taken.assignments] == [(n, n) for n in range(20)]

    # --- taking and reporting ----------------------------------------------------------------------------------

    def test_results_stand_in_the_order_of_the_collection(self, open_one, executions, lane, runs, parent):
        new = open_one("abcd", spec=step(loop=replace(PARALLEL, concurrency=2)), lanes=2)
        one, two = lane("one"), lane("two")
        first, second = executions.take(one, most=1), executions.take(two, most=1)
        second = executions.report(two, [well(second.assignments[0], "B")], most=1)
        first = executions.report(one, [well(first.assignments[0], "A")], most=1)
        executions.report(one, [well(first.assignments[0], "D")], most=1)
        last = executions.report(two, [well(second.assignments[0], "C")], most=1)

        assert last.is_over
        assert [result for _n, _state, result in executions.results(new.execution_id)] == ["A", "B", "C", "D"]
        assert runs.get(parent.run_id).not_before == ""
        assert executions.results_size(new.execution_id) == 4 * len('"A"')

    def test_every_call_is_told_with_all_that_names_it(self, begun, executions, events):
        new, run, one = begun()
        executions.report(run, [replace(well(one, {"n": 1}), duration=0.5, meta={"call": {"rows": 2}})], most=1)

        told = events()
        assert [event.event_type for event in told] == [
            "iterator_started",
            "iteration_started",
            "action_started",
            "action_completed",
            "iteration_completed",
            "iterator_completed",
        ]
        action = told[3]
        assert (action.adw_id, action.execution_id, action.parent_execution_id) == (
            ADW_ID,
            new.execution_id,
            f"{ADW_ID}.build.1",
        )
        assert (action.iteration_index, action.total_iterations, action.attempt_number) == (0, 1, 1)
        assert (action.node_id, action.node_name, action.node_type) == ("build.work", "work", "iteration")
        assert (action.catalog_id, action.status, action.duration) == ("demo@1", "completed", 0.5)
        assert (action.parent_event_id, action.retry_sequence_id) == (told[2].event_id, told[2].event_id)
        assert action.result == {"n": 1}
        assert action.meta["queue"] == {"queue_id": run.run_id, "worker_id": make_owner().describe()}
        assert action.meta["execution"]["duration_seconds"] == 0.5
        assert action.meta["call"] == {"rows": 2}
        assert list(executions.metas(new.execution_id)) == [action.meta]

    def test_a_large_result_is_whole_in_its_row_and_small_in_events(self, begun, executions, events):
        new, run, one = begun()
        executions.report(run, [well(one, "y" * 70_000)], most=1)

        assert next(executions.results(new.execution_id))[2] == "y" * 70_000
        (action,) = (event for event in events() if event.event_type == "action_completed")
        where = {"_execution": new.execution_id, "_index": 0}
        assert action.result == {"_truncated": True, "_size": 70_002, **where}

    def test_what_a_call_gave_that_is_not_json_is_a_failed_call(self, begun, executions):
        new, run, one = begun()
        executions.report(run, [well(one, {1, 2})], most=1)

        assert executions.get(new.execution_id).state is ExecutionState.FAILED
        assert "not JSON" in executions.last_error(new.execution_id)["message"]

    def test_a_lane_takes_no_more_than_its_share(self, open_one, executions, lane):
        open_one(range(12), lanes=3)

        assert len(executions.take(lane(), most=64).assignments) == 2

    def test_whoever_lost_the_lane_changes_nothing(self, begun, executions, runs, events):
        new, run, one = begun()
        runs.take_back(run, reason="its worker is gone")
        told = len(events())

        with pytest.raises(RunLost):
            executions.report(run, [well(one)], most=1)
        with pytest.raises(RunLost):
            executions.take(run, most=1)

        assert len(events()) == told
        assert executions.get(new.execution_id).ended == 0

    def test_a_report_about_another_call_is_not_believed(self, begun, executions):
        """
        The row counts calls: a report with a number of its own is about none of them.
        """
        new, run, one = begun()

        again = executions.report(run, [replace(well(one), attempt_number=7)], most=1)

        assert executions.get(new.execution_id).ended == 0
        assert [call.attempt_number for call in again.assignments] == [1]

    def test_a_lane_is_asked_for_by_its_own_kind_of_run(self, executions, runs, parent):
        other = runs.claim(make_owner(), ttl_seconds=60, run_id=parent.run_id)
        with pytest.raises((UsageError, RunLost)):
            executions.take(replace(other, kind="start", token=99), most=1)

    def test_an_execution_that_does_not_exist_is_over(self, executions, runs):
        runs.enqueue(NewRun(adw_id=ADW_ID, kind=ITERATION, slot="s", payload={"execution_id": "gone"}))
        run = runs.claim(make_owner(), ttl_seconds=60)

        assert executions.take(run, most=1).is_over
        assert executions.get("gone") is None
        assert executions.plan("gone") is None
        assert not executions.cancel("gone", reason="x")
        assert not executions.cancel("gone", reason="x", index=0)
        assert executions.last_error("gone") is None
        executions.give_up(run, reason="x")

    # --- order -------------------------------------------------------------------------------------------------

    def test_a_sequential_loop_begins_nothing_before_the_one_before_is_over(self, open_one, executions, lane, clock):
        open_one("ab", spec=step(loop=SEQUENTIAL, retry=(AGAIN,)), lanes=1)
        run = lane()
        (one,) = executions.take(run, most=8).assignments

        waits = executions.report(run, [badly(one)], most=8)

        assert waits.assignments == ()
        assert timestamps.parse(waits.wait_until) > clock.now()
        clock.advance(13)
        (again,) = executions.take(run, most=8).assignments
        assert (again.index, again.attempt_number) == (0, 2)
        (after,) = executions.report(run, [well(again)], most=8).assignments
        assert after.index == 1

    def test_a_sequential_loop_without_rules_is_taken_in_pieces(self, open_one, executions, lane):
        open_one("abc", spec=step(loop=SEQUENTIAL), lanes=1)

        assert [one.index for one in executions.take(lane(), most=2).assignments] == [0, 1]

    # --- failures ----------------------------------------------------------------------------------------------

    def test_a_failed_call_is_made_again_at_its_time_and_listed_until_then(self, begun, executions, clock):
        new, run, one = begun(["x"], spec=step(retry=(AGAIN,)))

        waits = executions.report(run, [badly(one)], most=1)

        (listed,) = executions.retries()
        assert (listed.retry_id, listed.step, listed.index, listed.why) == (new.execution_id, "work", 0, "on_error")
        assert (listed.next_at, listed.error) == (waits.wait_until, "the line is dead")
        assert executions.retries(adw_id="5e6f7a8b") == ()
        clock.advance(13)
        (again,) = executions.take(run, most=1).assignments
        assert (again.attempt_number, again.page) == (2, 1)
        assert executions.report(run, [well(again)], most=1).is_over
        assert executions.get(new.execution_id).state is ExecutionState.COMPLETED
        assert executions.retries() == ()

    def test_the_log_says_which_rule_decided_and_whether_a_call_follows(self, begun, executions, events, clock):
        rules = (replace(PAGES, max_attempts=7), AGAIN)
        _new, run, one = begun(["x"], spec=step(retry=rules, sink=SinkSpec(tool="jsonl", path="x.jsonl")))
        executions.report(run, [badly(one)], most=1)
        clock.advance(13)
        (again,) = executions.take(run, most=1).assignments
        (page,) = executions.report(run, [well(again, {"data": [], "page": 1, "more": True})], most=1).assignments
        clock.advance(2)
        executions.report(run, [well(page, {"data": [], "page": 2, "more": False})], most=1)

        started, *told = (
            event for event in events() if event.event_type.startswith(("iterator", "action_", "retry_s"))
        )
        assert started.data["retry_config"][1]["kind"] == "on_error"
        assert (started.data["tool"], started.data["sink"]["path"]) == ("python", "x.jsonl")
        result = [event.meta["retry"] for event in told if event.event_type in {"action_failed", "action_completed"}]
        assert [
            (one["retry_type"], one["attempt_number"], one["max_attempts"], one["will_retry"]) for one in result
        ] == [
            ("on_error", 1, 3, True),
            ("on_success", 2, 7, True),
            ("on_success", 3, 7, False),
        ]
        sequence, end = told[-2:]
        assert sequence.result == {"_execution": started.execution_id, "_index": 0}
        assert end.result == {"_execution": started.execution_id}
        assert end.meta["completed_iterations"] == end.meta["total_iterations"] == 1
        assert (end.meta["success_rate"], end.meta["completed_at"]) == (1.0, end.created_at)
        (iteration,) = (event for event in events() if event.event_type == "iteration_completed")
        assert iteration.duration == pytest.approx(15.0)
        assert end.duration >= 15.0

    def test_a_failure_that_comes_again_uses_the_calls_up(self, open_one, executions, lane, clock, events):
        new = open_one(["x"], spec=step(retry=(AGAIN,)))
        run = lane()
        taken = executions.take(run, most=1)
        for _ in range(3):
            clock.advance(13)
            taken = taken if taken.assignments else executions.take(run, most=1)
            taken = executions.report(run, [badly(taken.assignments[0])], most=1)

        assert taken.is_over
        assert executions.get(new.execution_id).state is ExecutionState.FAILED
        chain = [event for event in events() if event.event_type.startswith("action")]
        assert {event.retry_sequence_id for event in chain} == {chain[0].event_id}
        assert [event.parent_event_id for event in chain[1:]] == [event.event_id for event in chain[:-1]]
        (ended,) = (event for event in events() if event.event_type.startswith("retry_sequence"))
        assert (ended.event_type, ended.data["total_attempts"]) == ("retry_sequence_exhausted", 3)

    def test_fail_fast_cancels_what_has_not_begun(self, begun, executions):
        new, run, one = begun(range(1200), lanes=1, spec=step(loop=replace(PARALLEL, concurrency=1)))
        taken = executions.report(run, [badly(one)], most=1)
        while not taken.is_over:
            assert taken.assignments == ()
            taken = executions.take(run, most=8)

        stands = executions.get(new.execution_id)
        assert (stands.state, stands.failed, stands.cancelled) == (ExecutionState.FAILED, 1, 1199)

    def test_calls_under_way_are_waited_for_when_a_loop_fails_fast(self, open_one, executions, lane):
        new = open_one(range(3), lanes=2, spec=step(loop=replace(PARALLEL, concurrency=2)))
        one, two = lane("one"), lane("two")
        first, second = executions.take(one, most=1), executions.take(two, most=1)

        rest = executions.report(one, [badly(first.assignments[0])], most=1)

        assert not rest.is_over
        assert executions.get(new.execution_id).state is ExecutionState.RUNNING
        assert executions.report(two, [well(second.assignments[0])], most=1).is_over
        stands = executions.get(new.execution_id)
        assert (stands.state, stands.succeeded, stands.failed, stands.cancelled) == (ExecutionState.FAILED, 1, 1, 1)

    def test_continue_goes_on_to_the_end(self, open_one, executions, lane):
        new = open_one(range(3), spec=step(loop=replace(PARALLEL, on_failure="continue")), lanes=1)
        run = lane()
        taken = executions.take(run, most=1)
        while taken.assignments:
            taken = executions.report(run, [badly(one) for one in taken.assignments], most=1)

        stands = executions.get(new.execution_id)
        assert (stands.state, stands.failed) == (ExecutionState.COMPLETED, 3)

    # --- pages -------------------------------------------------------------------------------------------------

    def test_pages_are_called_for_and_put_together(self, open_one, executions, lane):
        new = open_one([None], spec=step(loop=None, tool="http", retry=(PAGES,)), lanes=1)
        run = lane()
        taken = executions.take(run, most=1)
        for page in (1, 2, 3):
            (one,) = taken.assignments
            assert (one.page, one.sink_key) == (page, f"{new.execution_id}#0#{page}")
            assert one.call == ({} if page == 1 else {"params": {"page": page}})
            result = {"data": [page, page], "page": page, "more": page < 3}
            taken = executions.report(run, [well(one, result)], most=1)

        assert taken.is_over
        assert next(executions.results(new.execution_id))[2] == [1, 1, 2, 2, 3, 3]

    def test_a_cursor_that_comes_again_is_no_progress(self, open_one, executions, lane):
        new = open_one([None], spec=step(loop=None, retry=(PAGES,)), lanes=1)
        run = lane()
        taken = executions.take(run, most=1)
        while taken.assignments:
            taken = executions.report(run, [well(taken.assignments[0], {"data": [], "page": 1, "more": True})], most=1)

        stands = executions.get(new.execution_id)
        assert stands.state is ExecutionState.FAILED
        assert [state for _n, state, _result in executions.results(new.execution_id)] == [IterationState.FAILED]

    def test_why_it_failed_is_why_its_last_iteration_did_and_no_earlier_failure_that_passed(
        self, begun, executions, clock
    ):
        new, run, one = begun([None], spec=step(loop=None, retry=(PAGES, AGAIN)), lanes=1)
        executions.report(run, [badly(one)], most=1)
        assert executions.last_error(new.execution_id) is None
        clock.advance(13)
        taken = executions.take(run, most=1)
        while taken.assignments:
            taken = executions.report(run, [well(taken.assignments[0], {"data": [], "page": 1, "more": True})], most=1)

        result = executions.last_error(new.execution_id)
        assert result.keys() == {"message"}
        assert result["message"].startswith("no progress: after page 2")

    def test_the_error_of_the_last_call_comes_with_why_the_sequence_ended(self, begun, executions):
        new, run, one = begun([None], spec=step(loop=None, retry=(replace(AGAIN, max_attempts=1),)), lanes=1)
        executions.report(run, [badly(one)], most=1)

        result = executions.last_error(new.execution_id)
        assert (result["type"], result["category"]) == ("OSError", "transient")
        assert result["message"] == "1 of 1 attempts are used; the last error: the line is dead"

    # --- workers that vanish -----------------------------------------------------------------------------------

    def test_a_call_whose_worker_vanished_is_made_again(self, open_one, executions, lane, runs, events):
        new = open_one(["x"])
        gone = lane("one")
        executions.take(gone, most=1)
        runs.take_back(gone, reason="its worker is gone")

        (again,) = executions.take(lane("two"), most=1).assignments

        assert again.attempt_number == 2
        assert "action_failed" in [event.event_type for event in events()]
        assert executions.get(new.execution_id).failed == 0

    def test_a_call_that_takes_every_worker_with_it_fails_in_the_end(self, open_one, executions, lane, runs):
        new = open_one(["x"])
        for number in range(6):
            run = lane(str(number))
            assert executions.take(run, most=1).assignments
            runs.take_back(run, reason="its worker is gone")

        assert executions.take(lane("last"), most=1).is_over
        assert executions.get(new.execution_id).state is ExecutionState.FAILED

    def test_a_lane_that_is_buried_fails_its_call_and_is_replaced(self, open_one, executions, lane, runs):
        new = open_one("ab", spec=step(loop=replace(PARALLEL, concurrency=1, on_failure="continue")), lanes=1)
        run = lane()
        executions.take(run, most=1)

        executions.give_up(run, reason="3 workers vanished with it")
        runs.settle_lost(run, RunEnd(state=RunState.DEAD, reason="3 workers vanished with it"))

        assert executions.get(new.execution_id).failed == 1
        after = lane("two")
        (one,) = executions.take(after, most=1).assignments
        assert one.index == 1
        assert executions.report(after, [well(one)], most=1).is_over

    def test_calls_of_a_lane_that_ended_without_a_word_are_found(self, open_one, executions, lane, runs):
        open_one("abc", lanes=2, spec=step(loop=replace(PARALLEL, concurrency=2)))
        gone, other = lane("one"), lane("two")
        executions.take(gone, most=1)
        runs.finish(gone, RunState.STOPPED)
        taken = executions.take(other, most=1)
        seen = set()
        while taken.assignments or taken.wait_until:
            seen |= {one.index for one in taken.assignments}
            reports = [well(one) for one in taken.assignments]
            taken = executions.report(other, reports, most=1)

        assert taken.is_over
        assert seen == {0, 1, 2}

    def test_processes_of_calls_are_known_to_the_next_owner(self, open_one, executions, lane, runs):
        open_one(["x"])
        gone = lane("one")
        (one,) = executions.take(gone, most=1).assignments
        record = ProcessRecord(token="t", identity=make_owner(), argv=("sleep",), started_at="now")
        executions.record_process(gone, one, record)
        runs.take_back(gone, reason="gone")
        after = lane("two")

        assert executions.left_processes(gone) == ()
        (left,) = executions.left_processes(after)
        assert OwnerRecord.from_text(left["identity"]) == make_owner()
        with pytest.raises(RunLost):
            executions.record_process(after, one, record)

    # --- orders ------------------------------------------------------------------------------------------------

    def test_a_call_that_was_ended_on_order_does_not_count(self, open_one, executions, lane):
        open_one("ab", lanes=1, spec=step(loop=SEQUENTIAL))
        run = lane()
        first, _second = executions.take(run, most=2).assignments

        stopped = executions.report(run, [replace(well(first), ok=False, is_suspended=True)], most=0)

        assert stopped.assignments == ()
        (again,) = executions.take(run, most=2).assignments
        assert (again.index, again.attempt_number) == (0, 1)
        (after,) = executions.report(run, [well(again)], most=2).assignments
        assert (after.index, after.attempt_number) == (1, 1)

    def test_nothing_is_taken_of_a_workflow_that_does_not_go_on(self, open_one, executions, lane, runs, parent):
        open_one()
        run = lane()
        assert executions.is_wanted(ADW_ID)
        runs.ask_to_stop(parent.run_id, reason="paused")

        assert not executions.is_wanted(ADW_ID)
        taken = executions.take(run, most=1)
        assert (taken.assignments, taken.wait_until, taken.is_over) == ((), "", False)

    def test_nothing_is_taken_of_a_workflow_that_is_rolled_back(self, open_one, executions, lane, runs, parent):
        open_one()
        run = lane()
        runs.ask_to_stop(parent.run_id, reason="rolled back")
        runs.enqueue(NewRun(adw_id=ADW_ID, kind="rollback"))

        assert executions.take(run, most=1).assignments == ()

    def test_a_lane_that_shall_stop_takes_nothing_more(self, begun, executions, runs):
        _new, run, one = begun()
        runs.ask_to_stop(run.run_id, reason="enough")

        assert executions.report(run, [well(one)], most=1).assignments == ()

    # --- cancelling --------------------------------------------------------------------------------------------

    def test_cancelling_ends_what_waits_and_then_the_whole(self, begun, executions, runs, parent):
        new, run, one = begun(range(700))

        assert executions.cancel(new.execution_id, reason="not needed")
        assert executions.get(new.execution_id).state is ExecutionState.RUNNING
        assert executions.report(run, [well(one)], most=1).is_over

        stands = executions.get(new.execution_id)
        assert (stands.state, stands.succeeded, stands.cancelled) == (ExecutionState.CANCELLED, 1, 699)
        assert stands.reason == "not needed"
        assert runs.get(parent.run_id).not_before == ""
        assert not executions.cancel(new.execution_id, reason="again")

    def test_one_call_that_waits_can_be_cancelled(self, begun, executions):
        new, run, one = begun("ab", spec=step(retry=(AGAIN,), loop=replace(PARALLEL, on_failure="continue")), lanes=1)
        (other,) = executions.report(run, [badly(one)], most=1).assignments

        assert not executions.cancel(new.execution_id, reason="no", index=1)
        assert executions.cancel(new.execution_id, reason="no", index=0)

        assert executions.retries() == ()
        assert executions.report(run, [well(other)], most=1).is_over
        assert executions.get(new.execution_id).cancelled == 1

    def test_all_of_a_workflow_can_be_cancelled(self, open_one, executions):
        new = open_one()

        assert executions.cancel_all("5e6f7a8b", reason="x") == 0
        assert executions.cancel_all(ADW_ID, reason="abandoned") == 1
        assert executions.get(new.execution_id).state is ExecutionState.CANCELLED

    def test_what_a_workflow_that_is_over_left_is_cancelled(self, open_one, executions, make_over):
        new = open_one()
        assert executions.cancel_left() == 0

        make_over(ADW_ID)

        assert executions.cancel_left() == 1
        assert executions.get(new.execution_id).state is ExecutionState.CANCELLED

    # --- waking ------------------------------------------------------------------------------------------------

    def test_a_run_that_began_to_wait_after_the_end_is_woken(self, open_one, executions, runs, parent, clock):
        claimed = runs.claim(make_owner(), ttl_seconds=60, run_id=parent.run_id)
        new = open_one([])
        far = timestamps.to_text(clock.now() + timedelta(hours=1))
        runs.requeue(claimed, not_before=far)
        assert runs.get(parent.run_id).not_before == far

        assert executions.wake("5e6f7a8b") == 0
        assert executions.wake(ADW_ID) == 1
        assert runs.get(parent.run_id).not_before == ""

        executions.mark_taken(new.execution_id)
        runs.requeue(runs.claim(make_owner(), ttl_seconds=60, run_id=parent.run_id), not_before=far)
        assert executions.wake() == 0

    def test_nobody_is_woken_while_something_goes_on(self, open_one, executions):
        open_one([], execution_id=f"{ADW_ID}.build.1.before")
        open_one(range(2))

        assert executions.wake() == 0

    # --- beside executions -------------------------------------------------------------------------------------

    def test_a_large_result_is_kept_by_its_key(self, executions):
        executions.keep("a#0", [1, 2])
        executions.keep("a#0", {"b": "c"})

        assert executions.kept("a#0") == {"b": "c"}
        with pytest.raises(StateInvalid):
            executions.kept("b#0")

    def test_telling_an_event_twice_changes_nothing(self, executions, events, open_one):
        open_one(["x"])
        told = events()

        executions.tell(told)

        assert events() == told

    def test_of_pages_that_replace_each_other_the_part_of_the_last_one_counts(self, begun, executions):
        rule = RetryRule(kind="on_success", when="response.more", merge_path="data", next_call={"n": "{{ page }}"})
        new, run, one = begun([None], spec=step(loop=None, retry=(replace(rule, base_seconds=0.0),)), lanes=1)
        (two,) = executions.report(run, [well(one, {"data": 1, "more": True})], most=1).assignments
        executions.report(run, [well(two, {"data": 2, "more": False})], most=1)

        assert next(executions.results(new.execution_id))[2] == 2

    def test_rules_know_the_element(self, begun, executions):
        rule = RetryRule(kind="on_error", when="item == 'x' and index == 0")
        _new, run, one = begun(["x"], spec=step(retry=(rule,)))

        assert executions.report(run, [badly(one)], most=1).wait_until

    def test_a_lane_waits_for_the_first_call_of_all_that_wait(self, begun, executions, clock):
        _new, run, one = begun("ab", spec=step(retry=(AGAIN,), loop=replace(PARALLEL, on_failure="continue")), lanes=1)
        (two,) = executions.report(run, [badly(one)], most=1).assignments
        clock.advance(1)

        waits = executions.report(run, [badly(two)], most=1)

        assert len(executions.retries()) == 2
        assert waits.wait_until == executions.take(run, most=1).wait_until == executions.retries()[0].next_at


_ENDED = {"completed", "failed", "cancelled"}


def _awaited(executions, new):
    """Return what waits by a rule: number, page, how many calls there were, and when the next one is due."""
    return {
        (one.index, one.page, one.attempt_number, one.next_at)
        for one in executions.retries()
        if one.retry_id == new.execution_id and one.why in {"on_error", "on_success"}
    }


def _asked_for(told):
    """Return the same of the last call of each iteration, from the log alone."""
    last = {}
    for event in told:
        judged = event.data.get("retry", {})
        if event.event_type in {"action_completed", "action_failed"} and judged.get("again"):
            due = timestamps.parse(event.created_at) + timedelta(seconds=judged["after_seconds"])
            next_at = timestamps.to_text(due) if judged["after_seconds"] else ""
            last[event.iteration_index] = (event.iteration_index, judged["page"], event.attempt_number, next_at)

    return {*last.values()}
