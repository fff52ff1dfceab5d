"""Phases that are made of steps: in order, waiting for what others do, and never doing twice what is done."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules import error_handler
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.errors import ExpressionError, LeaseLost, RunLost
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.ownership.lease_renewer import LeaseRenewer
from adws.adw_modules.phase import Done, Failed, Order, Paused, RetryAt
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import ITERATION, NewRun, RunFactory, RunState
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps import runner
from adws.adw_modules.steps.iteration_worker import IterationWorker
from adws.adw_modules.steps.model import CallReport, ExecutionState, IterationState
from adws.adw_modules.steps.runner import SUPERSEDED, StepRunner, elements_of
from adws.adw_modules.workflow.model import LoopSpec, NextRule, SinkSpec, StepSpec
from tests.contracts.worlds import make_owner
from tests.unit.engine_cases import ADW_ID, GATED, World, phase, spec_of

FAR = "2999-01-01T00:00:00.000000Z"
LOOP = LoopSpec(collection="{{ workload.items }}", mode="async", concurrency=2)


def one(name, **fields):
    return StepSpec(**{"name": name, "tool": "python", **fields})


_keepers = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while _keepers:
        _keepers.pop().close()


class Calls:
    """Makes calls by functions: step -> what it does with element and values."""

    def __init__(self, does):
        self.does = does
        self.made = []
        self.keys = []  #: that sinks save under

    def make(self, step, assignment, context):
        self.made.append((step.name, assignment.index))
        self.keys.append(assignment.sink_key)
        try:
            result = self.does[step.name](assignment.element, context)
        except OSError as exc:
            error = error_handler.describe(exc, step.name).to_json()
            return CallReport(index=assignment.index, attempt_number=assignment.attempt_number, ok=False, error=error)
        if isinstance(result, CallReport):
            return result
        return CallReport(index=assignment.index, attempt_number=assignment.attempt_number, ok=True, result=result)


class Steps:
    """A workflow of one phase with steps, and all that works on it."""

    def __init__(self, *steps, does=None, **changes):
        spec = spec_of(phase("build", runner="steps", steps=steps, gates=GATED, **changes))
        self.world = World(spec)
        self.world.change(lambda draft: setattr(draft.document.workflow, "workload", {"items": [1, 2, 3, 4]}))
        self.clock, self.runs = self.world.clock, self.world.parts.runs
        self.executions = self.world.parts.executions
        self.calls = Calls(does or {})
        checkpoints = self.world.parts.checkpoint_manager
        self.run = self.runs.enqueue(NewRun(adw_id=ADW_ID, kind="start", not_before=FAR))
        self.ended = []
        self.lease_renewer = LeaseRenewer(
            clock=self.clock, requests=self.world.parts.requests, runs=self.runs, store=self.world.parts.store
        )
        _keepers.append(self.lease_renewer)
        home = SimpleNamespace(
            clock=self.clock,
            runs=self.runs,
            executions=self.executions,
            lease_renewer=self.lease_renewer,
            step_calls=self.calls,
            checkpoint_manager=checkpoints,
            redactor=Redactor(),
            run_factory=RunFactory(),
            settings=SimpleNamespace(database_url="sqlite://"),
            load=lambda adw_id: self.world.parts.store.load(adw_id).document,
            workspace=SimpleNamespace(workplace_of=lambda _document: Path()),
            folder_of=Path,
            end_process=lambda process: self.ended.append(process) or ProcessEnding(evidence="ended", is_certain=True),
            say=lambda _adw_id, _line: None,
        )
        self.runner, self.lanes = StepRunner(home), IterationWorker(home)

    def attempt(self):
        return self.world.attempt(phase_runners={"steps": self.runner})

    def work(self, name="one"):
        """Work on lanes until none is due."""
        while (run := self.runs.claim(make_owner(name), ttl_seconds=60)) is not None:
            assert run.kind == ITERATION or not run.slot
            if run.kind != ITERATION:
                self.runs.requeue(run, not_before=FAR)
                return
            self.lanes.work(run)

    @property
    def record(self):
        return self.world.record("build")

    def told(self, *types):
        """What was told of the steps, not of the workflow."""
        events = [event for event in self.world.parts.events.of_workflow(ADW_ID) if not event.revision]
        return [event for event in events if not types or event.event_type in types]


# --- single calls ----------------------------------------------------------------------------------------------


def test_steps_are_done_in_their_order_and_know_what_came_before():
    steps = Steps(
        one("first", vars={"n": "{{ result.n + 1 }}"}),
        one("second"),
        does={
            "first": lambda _e, _c: {"n": 1},
            "second": lambda _e, context: [context.values["vars"]["n"], context.values["steps"]["first"]["n"]],
        },
    )

    assert steps.attempt() == Done(state="completed")

    result = steps.record.result
    assert (result["result"], result["vars"]) == ([2, 1], {"n": 2})
    assert result["steps"]["second"]["data_type"] == "list"


def test_a_step_says_which_one_comes_next():
    steps = Steps(
        one("first", next=(NextRule(step="third", when="result == 1"),)),
        one("second"),
        one("third", next=(NextRule(step=""),)),
        one("fourth"),
        does=dict.fromkeys(("first", "second", "third", "fourth"), lambda _e, _c: 1),
    )
    steps.attempt()

    assert [name for name, _index in steps.calls.made] == ["first", "third"]


def test_steps_that_go_round_without_end_are_a_failure(monkeypatch):
    monkeypatch.setattr(runner, "MAX_VISITS", 20)
    steps = Steps(
        one("first", next=(NextRule(step="first"),)),
        does={"first": lambda _e, _c: 1},
        max_attempts=1,
    )

    assert isinstance(steps.attempt(), Failed)
    assert len(steps.calls.made) == 20


def test_a_failed_call_fails_the_attempt_as_it_was_classified_and_the_next_one_repeats_no_step_that_is_done():
    results = iter([ConnectionError("connection reset by peer"), 2])

    def sometimes(_element, _context):
        if isinstance(first := next(results), Exception):
            raise first
        return first

    steps = Steps(one("first"), one("second"), does={"first": lambda _e, _c: 1, "second": sometimes})
    assert isinstance(steps.attempt(), RetryAt)
    assert steps.record.attempts[0].error["category"] == "transient"
    assert [event.node_name for event in steps.told("step_failed")] == ["second"]
    steps.clock.advance(3600)

    assert steps.attempt() == Done(state="completed")
    assert [name for name, _index in steps.calls.made] == ["first", "second", "second"]


@pytest.mark.parametrize("lost", [LeaseLost("taken over"), RunLost(1)])
def test_whoever_lost_the_workflow_stops_there(lost):
    def gone(_element, _context):
        raise lost

    steps = Steps(one("first"), does={"first": gone})

    with pytest.raises(type(lost)):
        steps.attempt()


SAVED = SinkSpec(tool="jsonl", path="saved.jsonl")


def test_a_single_call_that_was_cut_off_saves_under_the_same_key_when_it_is_made_again():
    """
    Its worker died after the sink had saved: the next attempt must not save it a second time.
    """
    answers = iter([LeaseLost("its process died"), "saved"])

    def call(_element, _context):
        if isinstance(first := next(answers), Exception):
            raise first
        return first

    steps = Steps(one("save", sink=SAVED), does={"save": call}, max_attempts=3)
    with pytest.raises(LeaseLost):
        steps.attempt()

    assert steps.attempt() == Done(state="completed")
    assert steps.record.attempts[-1].number == 2
    assert steps.calls.keys == [f"{ADW_ID}.build.1.save#0#1"] * 2


class DyingRunner:
    """Runs steps, if any, and dies before anybody has stored what came of them."""

    def __init__(self, runner=None):
        self._runner = runner

    def check(self, phase):
        return ""

    def run(self, phase, context):
        if self._runner is not None:
            self._runner.run(phase, context)
        raise LeaseLost("its process died")


def test_a_crash_between_the_last_step_and_the_end_of_the_phase_repeats_no_step():
    steps = looped()
    steps.attempt()
    steps.work()
    with pytest.raises(LeaseLost):
        steps.world.attempt(phase_runners={"steps": DyingRunner(steps.runner)})
    made = len(steps.calls.made)

    assert steps.attempt() == Done(state="completed")

    assert [one.status for one in steps.record.attempts] == ["interrupted", "succeeded"]
    assert len(steps.calls.made) == made
    assert steps.record.result["result"]["results"] == [2, 4, 6, 8]


def test_an_attempt_that_is_cut_off_before_its_first_step_does_not_take_over_what_did_not_pass():
    steps = Steps(one("first"), does={"first": lambda _e, _c: 1}, max_attempts=4)
    red = {"gates": lambda _phase, _context, _report: GateVerdict(passed=False, reason="red")}
    steps.world.attempt(phase_runners={"steps": steps.runner}, **red)
    steps.clock.advance(600)
    with pytest.raises(LeaseLost):
        steps.world.attempt(phase_runners={"steps": DyingRunner()})

    assert steps.attempt() == Done(state="completed")
    assert [one.status for one in steps.record.attempts] == ["failed", "interrupted", "succeeded"]
    assert steps.calls.made == [("first", 0), ("first", 0)]


def test_a_step_with_a_sink_that_is_come_to_again_saves_under_a_key_of_its_own():
    steps = Steps(
        one(
            "save",
            sink=SAVED,
            vars={"n": "{{ vars.n|default(0) + 1 }}"},
            next=(NextRule(step="save", when="vars.n < 2"),),
        ),
        does={"save": lambda _e, _c: 1},
    )

    assert steps.attempt() == Done(state="completed")
    assert steps.calls.keys == [f"{ADW_ID}.build.1.save#0#1", f"{ADW_ID}.build.1.save~2#0#1"]


def test_an_order_ends_the_work_between_two_steps():
    def ordered(_element, _context):
        steps.world.orders.give(Order(kind="pause", reason="enough"))
        return 1

    steps = Steps(one("first"), one("second"), does={"first": ordered, "second": lambda _e, _c: 2})

    assert steps.attempt() == Paused(reason="enough")
    assert steps.calls.made == [("first", 0)]
    assert steps.record.attempts_used == 0


def test_a_large_result_is_kept_apart_and_read_when_it_is_asked_for():
    steps = Steps(
        one("first"),
        one("second"),
        does={
            "first": lambda _e, _c: ["x" * 100] * 1000,
            "second": lambda _e, context: len(context.values["steps"]["first"]),
        },
    )
    steps.attempt()

    assert steps.record.result["result"] == 1000
    (called, _) = steps.told("action_completed")
    assert called.result["_kept"] == f"{ADW_ID}.build.1.first#0"
    assert called.result["_truncated"] is True


def test_the_events_of_a_step_say_what_it_knew_who_made_it_and_what_came_before():
    steps = Steps(
        one("first", vars={"password": "{{ result }}"}),
        one("left_out", when="false"),
        one("second"),
        does={"first": lambda _e, _c: "hunter22", "second": lambda _e, _c: 2},
    )
    steps.attempt()

    told = steps.told()
    assert [event.event_type for event in told] == [
        *("step_started", "action_started", "action_completed", "step_completed", "step_skipped"),
        *("step_started", "action_started", "action_completed", "step_completed"),
    ]
    assert [event.parent_event_id for event in told] == [None, *(event.event_id for event in told[:-1])]
    assert {event.meta["queue"]["worker_id"] for event in told} == {steps.record.attempts[-1].owner}
    context = told[-1].context
    assert context["workload"] == {"items": [1, 2, 3, 4]}
    assert context["vars"] == {"password": "[redacted]"}
    assert (context["execution_id"], context["parent_execution_id"]) == (f"{ADW_ID}.build.1", ADW_ID)
    assert context["_step_results"]["left_out"]["status"] == "skipped"
    called = told[2]
    assert called.retry_sequence_id == told[1].event_id
    assert called.meta["execution"]["completed_at"] == called.created_at
    assert [event.duration for event in told if event.event_type == "step_completed"] == [0.0, 0.0]


# --- loops -----------------------------------------------------------------------------------------------------


def looped(*more, does=None, **fields):
    return Steps(
        one("first"),
        one("double", **{"loop": LOOP, **fields}),
        *more,
        does={"first": lambda _e, _c: 1, "double": lambda element, _c: element * 2, **(does or {})},
        max_attempts=2,
    )


def test_an_attempt_waits_for_a_loop_and_goes_on_with_its_results():
    steps = looped(one("last"), does={"last": lambda _e, context: sum(context.values["steps"]["double"]["results"])})

    waits = steps.attempt()

    assert isinstance(waits, RetryAt)
    assert waits.reason == "waits for 4 of 4 iterations of step double"
    assert (steps.record.attempts[-1].status, steps.record.wait_reason) == ("waiting", waits.reason)
    assert len(steps.executions.due_lanes(ADW_ID)) == 2
    steps.work()
    assert steps.runs.get(steps.run.run_id).state is RunState.PENDING
    assert steps.attempt() == Done(state="completed")
    assert steps.record.result["result"] == 20
    assert len(steps.record.attempts) == 1
    assert [name for name, _index in steps.calls.made].count("first") == 1
    assert steps.executions.wake() == 0


def test_a_failed_loop_fails_the_attempt_and_the_next_one_begins_it_anew():
    has_failed = []

    def sometimes(element, _context):
        if element == 3 and not has_failed:
            has_failed.append(element)
            raise ConnectionError("connection reset by peer")
        return element

    steps = looped(does={"double": sometimes})
    steps.attempt()
    steps.work()
    assert isinstance(steps.attempt(), RetryAt)
    assert steps.record.attempts[0].error["category"] == "transient"
    steps.clock.advance(3600)
    steps.attempt()
    steps.work()

    assert steps.attempt() == Done(state="completed")
    assert steps.executions.get(f"{ADW_ID}.build.1.double").state is ExecutionState.FAILED
    assert steps.executions.get(f"{ADW_ID}.build.2.double").state is ExecutionState.COMPLETED
    assert [name for name, _index in steps.calls.made].count("first") == 1


def test_a_crash_after_the_wait_finds_the_execution_again():
    steps = looped()
    steps.attempt()
    steps.work()
    steps.world.engine.phase_runners["steps"] = steps.runner
    with steps.world.session() as session:
        session.change(lambda draft: draft.mark_attempt(0, status="running"))

    assert steps.attempt() == Done(state="completed")
    assert [attempt.status for attempt in steps.record.attempts] == ["interrupted", "succeeded"]
    assert len(steps.told("iterator_started")) == 1


def test_what_an_earlier_round_left_is_cancelled():
    steps = looped()
    steps.attempt()
    steps.world.change(lambda draft: draft.change_phase(0, round=2, attempts_used=0))
    steps.attempt()

    assert steps.executions.get(f"{ADW_ID}.build.1.double").reason == SUPERSEDED
    assert steps.executions.get(f"{ADW_ID}.build.2.double").state is ExecutionState.RUNNING


def test_many_results_are_read_from_the_rows():
    def look(_element, context):
        results = context.values["steps"]["double"]["results"]
        with pytest.raises(IndexError):
            results[99]
        return [len(results), len(results[0]), len(results[-1]), len(results[1:3]), sum(len(one) for one in results)]

    steps = looped(one("last"), does={"double": lambda _e, _c: "x" * 20_000, "last": look})
    steps.attempt()
    steps.work()
    steps.attempt()

    assert steps.record.result["result"] == [4, 20_000, 20_000, 2, 80_000]


# --- lanes -----------------------------------------------------------------------------------------------------


def test_a_lane_stops_when_the_workflow_does_not_go_on_and_is_there_again_when_it_does():
    steps = looped()
    steps.attempt()
    steps.runs.ask_to_stop(steps.run.run_id, reason="paused")
    steps.work()
    assert steps.calls.made == [("first", 0)]
    assert steps.executions.due_lanes(ADW_ID) == ()

    steps.runs.enqueue(NewRun(adw_id=ADW_ID, kind="resume", not_before=FAR))
    steps.attempt()
    steps.work()

    assert steps.attempt() == Done(state="completed")


def test_a_lane_that_is_told_to_end_gives_back_what_it_has():
    def drained(element, _context):
        steps.lease_renewer.order_all(Order(kind="drain", reason="the worker ends"))
        return element

    steps = looped(does={"double": drained})
    steps.attempt()
    run = steps.runs.claim(make_owner(), ttl_seconds=60)

    end = steps.lanes.work(run)

    assert (end.run.state, end.run.reason) == (RunState.PENDING, "the worker ends")
    states = [state for _index, state, _result in steps.executions.results(f"{ADW_ID}.build.1.double")]
    assert states.count(IterationState.COMPLETED) == 1
    assert IterationState.RUNNING not in states


def test_a_lane_lets_others_come_first_after_its_time():
    def slow(element, _context):
        steps.clock.advance(6.0)
        return element

    steps = looped(does={"double": slow})
    steps.attempt()

    end = steps.lanes.work(steps.runs.claim(make_owner(), ttl_seconds=60))

    assert (end.run.state, end.run.reason) == (RunState.PENDING, "others come first")
    assert steps.executions.get(f"{ADW_ID}.build.1.double").succeeded == 1


def test_short_calls_are_taken_together_and_long_ones_are_not():
    steps = looped(loop=LoopSpec(collection=list(range(40)), mode="async", concurrency=1))
    steps.attempt()
    steps.work()

    told = steps.told("action_started", "action_completed")
    kinds = [event.event_type for event in told if event.node_name == "double"]
    assert len(kinds) == 80
    assert kinds[:6] == ["action_started", "action_completed", *["action_started"] * 2, *["action_completed"] * 2]


def test_after_a_failure_that_ends_the_loop_the_rest_of_a_batch_is_not_begun():
    def fails_at_three(element, _context):
        return _fail() if element == 3 else element

    steps = looped(loop=LoopSpec(collection=list(range(40))), does={"double": fails_at_three})
    steps.attempt()
    steps.work()

    assert [index for name, index in steps.calls.made if name == "double"] == [0, 1, 2, 3]


def test_what_a_dead_owner_left_running_is_ended_first():
    steps = looped()
    steps.attempt()
    gone = steps.runs.claim(make_owner("gone"), ttl_seconds=60)
    (assignment,) = steps.executions.take(gone, most=1).assignments
    record = ProcessRecord(token="t", identity=make_owner("gone"), argv=("agent",), started_at="")
    steps.executions.record_process(gone, assignment, record)
    steps.runs.take_back(gone, reason="its worker is gone")

    steps.work("two")

    assert [process["token"] for process in steps.ended] == ["t"]
    assert steps.attempt() == Done(state="completed")


def _fail():
    raise ConnectionError("connection reset by peer")


# --- elements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "elements"),
    [
        (LoopSpec(collection="{{ workload.items }}"), [3, 1, 2]),
        (LoopSpec(collection=[1, "{{ workload.items[0] }}"]), [1, 3]),
        (LoopSpec(collection={"a": 1}), [{"key": "a", "value": 1}]),
        (LoopSpec(collection="{{ workload.items }}", where="item > 1"), [3, 2]),
        (LoopSpec(collection="{{ workload.items }}", order_by="item"), [1, 2, 3]),
        (LoopSpec(collection="{{ workload.items }}", order_by="{{ -item }}", limit=2), [3, 2]),
        (LoopSpec(collection="{{ workload.items }}", chunk_size=2), [[3, 1], [2]]),
        (LoopSpec(collection="{{ workload.items }}", chunk_size=2, limit=1), [[3, 1]]),
    ],
    ids=str,
)
def test_a_loop_goes_over_the_elements_that_are_meant(loop, elements):
    assert list(elements_of(loop, {"workload": {"items": [3, 1, 2]}})) == elements


@pytest.mark.parametrize(
    "loop", [LoopSpec(collection="text"), LoopSpec(collection=[1, "a"], order_by="item")], ids=["text", "no-order"]
)
def test_what_is_no_list_or_has_no_order_is_said(loop):
    with pytest.raises(ExpressionError):
        list(elements_of(loop, {}))
