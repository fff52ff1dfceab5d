"""One attempt per call: durable before it runs, and its result, counters and next state are one write."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import replace

import pytest

from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.engine.transitions import MAX_SUSPENSIONS
from adws.adw_modules.errors import (
    DurabilityUnknown,
    FailedRun,
    Fenced,
    LeaseLost,
    RunFailed,
    RunLost,
    StateConflict,
    StateInvalid,
    StateUnserialisable,
    StateWriteFailed,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.interfaces import OwnerRecord, ProcessRecord
from adws.adw_modules.phase import Done, Failed, Next, Order, Paused, RetryAt, RunReport, Stopped, Suspended
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.state_machine import PHASE_STATES
from adws.adw_modules.store.database import DatabaseStateStore
from tests.contracts.worlds import make_owner
from tests.homes import lab_home, use_store
from tests.log_files import open_log
from tests.unit.engine_cases import ADW_ID, BROKEN, HUMAN, WELL, S, World, phase, spec_of

DRAIN = Order(kind="drain", reason="the worker ends")
PAUSE = Order(kind="pause", reason="someone wants to look")


def drained(world: World, order: Order = DRAIN):
    """A script entry that is ordered to stop while it runs."""

    def run(_context):
        world.orders.give(order)
        return Suspended(reason=order.kind)

    return run


class FailingStore(DatabaseStateStore):
    """A store whose next saves raise what `trouble` has."""

    def __init__(self, database, **options) -> None:
        super().__init__(database, **options)
        self.trouble: list[BaseException | None] = []

    def save(self, document, **options):
        cause = self.trouble.pop(0) if self.trouble else None
        if cause is not None:
            raise cause
        return super().save(document, **options)


class SmallStore(DatabaseStateStore):
    """A store that takes no document above a size, like the one on disk."""

    def save(self, document, **options):
        if len(document.to_bytes()) > 20_000:
            raise StateUnserialisable(f"the document of {document.adw_id} is too large: keep large texts in files")
        return super().save(document, **options)


def world_with(store_type, spec, scripts=None, **fields) -> World:
    parts = lab_home()
    use_store(parts, store_type)
    return World(spec, scripts, parts=parts, **fields)


# --- what is durable, and when ---------------------------------------------------------------------------------


def test_the_attempt_is_durable_before_the_runner_is_called():
    world = World(spec_of("plan"))
    seen = []
    world.runner.add("plan", lambda context: seen.append((context, world.document)) or WELL)

    world.attempt()

    ((context, stored),) = seen
    (made,) = stored.phases[0].attempts
    assert (stored.current_state, stored.phases[0].status, stored.phases[0].attempts_used) == ("planning", "running", 1)
    assert (made.number, made.status, made.ended_at) == (1, "running", None)
    assert made.owner.startswith("library ")
    assert made.fence == stored.fence > 0
    assert made.deadline_at == "2026-01-31T10:00:00.000000Z"
    assert context.document.revision == stored.revision


def test_result_counters_and_next_state_are_one_write():
    world = World(spec_of("plan"), {"plan": [RunReport(ok=True, result={"n": 1})]})

    world.attempt()

    last = [event.event_type for event in world.events() if event.revision == world.document.revision]
    assert last == ["attempt_succeeded", "phase_completed", "state_changed"]
    assert world.document.revision == 3  # created, begun, ended


def test_the_end_of_one_phase_and_the_beginning_of_the_next_are_one_write_when_the_work_goes_on():
    world = World(spec_of("plan", "build"))

    with world.session() as session:
        outcome = session.attempt(may_go_on=lambda: True)
        between = session.document
        assert session.has_begun
        session.attempt(may_go_on=lambda: True)

    assert outcome == Next(phase="build", is_begun=True)
    assert (between.current_state, between.revision) == ("building", 3)
    assert [event.event_type for event in world.events() if event.revision == 3] == [
        "attempt_succeeded",
        "phase_completed",
        "state_changed",
        "attempt_started",
    ]
    assert world.document.revision == 4
    assert world.runner.numbers("build") == [1]


def test_an_order_is_as_good_as_not_going_on():
    world = World(spec_of("plan", "build"))

    def run(_context):
        world.orders.give(DRAIN)
        return WELL

    world.runner.add("plan", run)
    with world.session() as session:
        outcome = session.attempt(may_go_on=lambda: True)

    assert outcome == Next(phase="build")
    assert world.record("build").attempts == []


def test_going_on_into_a_workflow_that_may_not_go_on_ends_it_in_the_same_write():
    world = World(spec_of("plan", "build"), max_total_attempts=1)

    with world.session() as session:
        outcome = session.attempt(may_go_on=lambda: True)

        assert outcome.reason == "HEALTH_BUDGET"
        assert not session.has_begun
    assert (world.state, world.document.revision) == ("failed", 3)


def test_a_workflow_goes_from_start_to_end():
    names = ["plan", "build", "lint", "test", "review", "document", "ship", "clean"]
    world = World(spec_of(*names))

    with world.session() as session:
        outcome = session.attempt(may_go_on=lambda: True)
        while isinstance(outcome, Next):
            outcome = session.attempt(may_go_on=lambda: True)

    assert outcome == Done(state="completed")
    assert [call.phase for call in world.runner.calls] == names
    assert world.document.revision == 2 + len(names)
    assert world.parts.locks.holder(42) is None


def test_a_phase_is_told_what_it_may_know():
    world = World(spec_of("plan", "build"), {"plan": [RunReport(ok=True, result={"file": "a.md"})]})
    world.change(lambda draft: resume.add_hint(draft, "build", "be short", "someone"))
    said = []

    def build(context):
        context.say("halfway")
        return WELL

    world.runner.add("build", BROKEN, build)
    world.attempt()
    world.attempt()
    world.clock.advance(3600.0)
    world.attempt(say=lambda adw_id, line: said.append((adw_id, line)))

    context = world.runner.calls[-1].context
    assert (context.phase, context.attempt_number, context.round) == ("build", 2, 1)
    assert (context.results, context.hints) == ({"plan": {"file": "a.md"}}, ("be short",))
    assert context.orders is world.orders
    assert said == [(ADW_ID, "halfway")]


def test_a_process_is_recorded_before_the_runner_goes_on_and_ended_after_a_crash():
    identity = OwnerRecord(
        token="t", host="here", machine="m", boot_id="b", pid_namespace="p", pid=77, start_ticks=5, role="phase"
    )
    process = ProcessRecord(token="tok", identity=identity, argv=("make",), started_at="2026-01-31T09:00:00.000000Z")
    world = World(spec_of("plan"))

    def run(context):
        context.record_process(process)
        assert world.record("plan").attempts[-1].process == process.to_json()
        raise LeaseLost("its process died")

    world.runner.add("plan", run)
    with pytest.raises(LeaseLost):
        world.attempt()
    with world.session() as session:
        assert session.settle() is None

    assert world.ended == [process.to_json()]
    assert world.record("plan").last_failure_reason == (
        "the process that worked on it ended without a word; its process was ended"
    )


# --- failing ---------------------------------------------------------------------------------------------------


def test_waiting_for_a_retry_is_not_running():
    world = World(spec_of("plan"), {"plan": [BROKEN]})

    outcome = world.attempt()

    record = world.record("plan")
    assert isinstance(outcome, RetryAt)
    assert (record.status, world.state) == ("retry_wait", "planning")
    assert record.attempts[0].error["klass"] == "network"
    assert "RunFailed: connection reset by peer" in record.attempts[0].error["traceback"]


def test_a_look_before_its_time_changes_nothing():
    world = World(spec_of("plan"), {"plan": [BROKEN]})
    first = world.attempt()
    before = world.document.revision

    assert world.attempt() == first

    assert (world.document.revision, world.runner.numbers("plan")) == (before, [1])


def test_exhausted_is_failed_in_the_write_that_counted_it():
    world = World(spec_of(phase("plan", max_attempts=1), "build"), {"plan": [BROKEN]})

    outcome = world.attempt()

    assert (outcome.phase, outcome.reason) == ("plan", "MAX_ATTEMPTS_EXHAUSTED")
    told = [event.event_type for event in world.events() if event.revision == world.document.revision]
    assert told == ["attempt_failed", "phase_failed", "state_changed"]
    assert (world.state, world.document.terminal_reason) == ("failed", "MAX_ATTEMPTS_EXHAUSTED")
    assert world.record("plan").last_failure_reason == "connection reset by peer"


def test_the_end_of_an_attempt_is_told_with_who_made_it_how_long_it_took_and_what_is_left():
    world = World(spec_of(phase("build", max_attempts=3)), {"build": [BROKEN, WELL]})
    run = world.parts.runs.enqueue(NewRun(adw_id=ADW_ID))
    run = world.parts.runs.claim(make_owner(), ttl_seconds=60, run_id=run.run_id)
    with world.parts.ownership.own(ADW_ID, run=run) as owned:
        session = WorkSession(world.engine, owned, world.orders)
        session.attempt()
        world.clock.advance(600)
        session.attempt()
        owner = owned.lease.owner.describe()

    failed, well = (event for event in world.events() if event.event_type in {"attempt_failed", "attempt_succeeded"})
    assert failed.meta["queue"] == well.meta["queue"] == {"queue_id": run.run_id, "worker_id": owner}
    assert failed.meta["retry"] == {"has_config": True, "attempt_number": 1, "max_attempts": 3}
    assert failed.meta["error"] == {"message": failed.data["error"]["message"], **_seen(failed)}
    assert well.meta["retry"]["attempt_number"] == 2
    assert well.meta["execution"] == {"duration_seconds": well.duration, "completed_at": well.created_at}
    assert "error" not in well.meta


def _seen(event):
    return {"has_stack_trace": True, "failed_at": event.created_at}


def test_a_failed_workflow_is_not_worked_on_and_no_later_phase_starts():
    world = World(spec_of(phase("plan", max_attempts=1), "build"), {"plan": [BROKEN]})
    world.attempt()
    before = world.document.revision

    again = world.attempt()

    assert again == Failed(phase="plan", reason="MAX_ATTEMPTS_EXHAUSTED", message="connection reset by peer")
    assert world.document.revision == before
    assert world.runner.numbers("build") == []


def test_an_error_that_no_attempt_can_help_does_not_burn_the_others():
    world = World(spec_of("plan"), {"plan": [UsageError("the prompt file is missing")]})

    outcome = world.attempt()

    assert (outcome.reason, world.record("plan").attempts_used) == ("NEEDS_PERSON", 1)
    error = world.record("plan").attempts[0].error
    assert error["not_retried"].startswith("config: the prompt file is missing")
    assert outcome.advice


def test_a_class_of_errors_is_worth_its_retries_in_each_round_and_what_a_person_grants():
    bad = [RunFailed(FailedRun(subtype="bad_output", text="no JSON")) for _ in range(20)]
    world = World(spec_of(phase("plan", max_attempts=9)), {"plan": bad})

    def fail_for_good():
        while isinstance(outcome := world.attempt(), RetryAt):
            world.clock.advance(3600.0)
        assert outcome.reason == "RETRIES_DO_NOT_HELP"
        return len(world.record("plan").attempts)

    first = fail_for_good()
    world.resume(grant=2)
    assert fail_for_good() == first + 2
    world.resume(from_phase="plan")
    assert fail_for_good() == first + 2 + first


class Odd(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("odd"),
        SystemExit(3),
        Odd("odd"),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseExceptionGroup("several", [Odd("one"), ValueError("two")]),
        WorkflowBusy("2b3c4d5e", "somebody"),
        RunFailed(FailedRun(exit_code=1, text="\udcff is no text")),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_whatever_a_runner_raises_is_a_failed_attempt(raised):
    world = World(spec_of(phase("plan", max_attempts=2)), {"plan": [raised]})

    outcome = world.attempt()

    record = world.record("plan")
    assert isinstance(outcome, RetryAt | Failed)
    assert (record.attempts[0].status, record.attempts_used) == ("failed", 1)
    assert record.last_failure_reason


@pytest.mark.parametrize("answer", [None, True, {"ok": True}])
def test_an_answer_that_is_no_report_is_a_failed_attempt(answer):
    world = World(spec_of("plan"), {"plan": [lambda _context: answer]})

    world.attempt()

    record = world.record("plan")
    assert record.attempts[0].status == "failed"
    assert "not with a RunReport, Suspended or WaitingForChildren" in record.last_failure_reason


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (RunReport(ok=False), "it failed without a reason"),
        (RunReport(ok=False, error=ValueError("red tests")), "red tests"),
        (RunReport(ok=True, error=ValueError("but it broke")), "but it broke"),
        (RunReport(ok=False, error=ValueError("red"), wants_rework=True), "red"),
        (RunReport(ok=True, wants_rework=True), "its definition does not say where to go back to"),
    ],
)
def test_only_a_report_that_says_nothing_but_success_is_one(report, said):
    world = World(spec_of(phase("plan", max_attempts=1)), {"plan": [report]})

    outcome = world.attempt()

    assert isinstance(outcome, Failed)
    assert said in world.record("plan").last_failure_reason


def test_a_phase_whose_runner_is_not_there_needs_a_person():
    world = World(spec_of("plan"))

    outcome = world.attempt(phase_runners={})

    assert outcome.reason == "NEEDS_PERSON"
    assert "has the runner 'scripted'" in world.record("plan").last_failure_reason


@pytest.mark.parametrize(
    "report",
    [
        RunReport(ok=True, result={"x": object()}),
        RunReport(ok=True, result={"x": float("nan")}),
        RunReport(ok=True, result={"text": "y" * 30_000}),
        RunReport(ok=True, cost_usd=float("inf")),
        RunReport(ok=True, summary="\ud800"),
    ],
    ids=["object", "nan", "too-large", "infinite-cost", "no-text"],
)
def test_a_result_that_cannot_be_stored_is_a_failed_attempt(report):
    world = world_with(SmallStore, spec_of(phase("plan", max_attempts=1), "build"), {"plan": [report]})

    with world.session() as session:
        outcome = session.attempt(may_go_on=lambda: True)

    record = world.record("plan")
    assert isinstance(outcome, Failed)
    assert (world.state, record.status, record.result) == ("failed", "failed", None)
    assert record.attempts[0].error["error_type"] == "StateUnserialisable"


# --- gates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [ValueError("odd"), SystemExit(0), Odd("odd")])
def test_a_gate_that_raises_does_not_pass(raised):
    world = World(spec_of(phase("plan", gates=HUMAN)))

    def gates(*_args):
        raise raised

    world.attempt(gates=gates)

    assert world.record("plan").status == "retry_wait"
    assert "the gate could not be decided" in world.record("plan").last_failure_reason


def test_an_order_while_a_gate_is_tried_suspends_the_attempt():
    world = World(spec_of(phase("plan", gates=HUMAN)))

    def gates(*_args):
        world.orders.give(PAUSE)
        return GateVerdict(passed=False, is_suspended=True, reason="pause")

    outcome = world.attempt(gates=gates)

    assert outcome == Paused(reason="someone wants to look")
    assert (world.record("plan").status, world.record("plan").attempts_used) == ("suspended", 0)


def test_a_person_is_asked_and_lets_it_pass():
    world = World(spec_of(phase("plan", gates=HUMAN), "build"))

    assert world.attempt() == Paused(reason="awaiting_approval")
    assert world.attempt() == Paused(reason="awaiting_approval")
    assert (world.state, world.record("plan").status) == ("paused", "waiting")

    with world.session() as session:
        session.change(lambda draft: resume.approve(draft, session.spec, by="someone"))
    assert world.attempt() == Done(state="completed")
    assert (world.runner.numbers("plan"), world.record("plan").attempts_used) == ([1], 1)


def test_a_person_is_asked_and_refuses_until_no_attempt_is_left():
    world = World(spec_of(phase("plan", gates=HUMAN, max_attempts=2)))
    reject = resume.reject
    world.attempt()
    world.change(lambda draft: reject(draft, world.spec, text="too long", by="someone"))

    assert world.attempt() == Paused(reason="awaiting_approval")
    assert world.runner.calls[-1].context.hints == ("too long",)
    outcome = world.change(lambda draft: reject(draft, world.spec, by="someone"))

    assert (outcome.reason, world.state) == ("REJECTED", "failed")
    assert world.record("plan").attempts_used == 2
    world.resume(grant=1)
    assert world.attempt() == Paused(reason="awaiting_approval")


# --- rework ----------------------------------------------------------------------------------------------------

AGAIN = RunReport(ok=True, wants_rework=True, result={"broken": 2})


def test_rework_sends_the_work_back_in_one_write_and_counts_anew():
    world = World(spec_of("build", phase("test", on_rework="build")), {"test": [AGAIN]})

    with world.session() as session:
        session.attempt(may_go_on=lambda: True)
        outcome = session.attempt(may_go_on=lambda: True)

        assert outcome == Next(phase="build", is_begun=True)
        document = session.document
        assert (document.current_state, document.reworks) == ("building", 1)
        assert [(r.status, r.round, r.attempts_used) for r in document.phases] == [("running", 2, 1), ("queued", 2, 0)]
        while isinstance(outcome, Next):
            outcome = session.attempt(may_go_on=lambda: True)

    assert outcome == Done(state="completed")
    assert world.runner.numbers("build") == [1, 2]
    assert world.runner.numbers("test") == [1, 2]
    assert world.runner.calls[2].context.results == {"test": {"broken": 2}}


def test_rework_is_bounded():
    world = World(spec_of("build", phase("test", on_rework="build")), {"test": [AGAIN] * 9}, max_reworks=2)

    while isinstance(outcome := world.attempt(), Next):
        pass

    assert (outcome.phase, outcome.reason) == ("test", "MAX_REWORKS_EXHAUSTED")
    assert world.runner.numbers("build") == [1, 2, 3]
    assert (world.document.reworks, world.state) == (2, "failed")


# --- phases that are not required, needs, budgets ---------------------------------------------------------------


def test_a_phase_that_is_not_required_fails_alone_and_what_needs_it_is_left_out():
    spec = spec_of(
        "plan",
        phase("build"),
        phase("lint", is_required=False, max_attempts=1),
        phase("test", is_required=False, needs=("lint",)),
        "review",
    )
    world = World(spec, {"lint": [BROKEN]})

    while isinstance(outcome := world.attempt(), Next):
        pass

    assert [record.status for record in world.document.phases] == [
        "complete",
        "complete",
        "failed",
        "skipped",
        "complete",
    ]
    assert outcome == Done(
        state="completed",
        warnings=(
            "lint was passed over: connection reset by peer",
            "test was passed over: lint is not complete",
        ),
    )
    moves = [(move.from_state, move.to_state) for move in world.document.state_history]
    assert ("linting", "testing") in moves
    assert ("testing", "reviewing") in moves


def test_minutes_of_work_are_bounded_and_waiting_is_not_work():
    world = World(spec_of("plan", "build"), max_minutes=2.0)

    def slow(_context):
        world.clock.advance(90.0)
        return WELL

    world.runner.add("plan", BROKEN, slow)
    world.runner.add("build", slow)
    world.attempt()
    world.clock.advance(86_400.0)  # a day between two attempts
    assert world.attempt() == Next(phase="build")
    assert world.attempt() == Done(state="completed")

    world = World(spec_of("plan", "build", "test"), {"plan": [], "build": []}, max_minutes=2.0)
    world.runner.add("plan", lambda _context: world.clock.advance(90.0) or WELL)
    world.runner.add("build", lambda _context: world.clock.advance(90.0) or WELL)
    world.attempt()
    world.attempt()
    outcome = world.attempt()
    assert (outcome.phase, outcome.reason) == ("test", "HEALTH_BUDGET")
    assert outcome.message == "its health budget is gone: 3.0 of 2 minutes are used"
    assert world.runner.numbers("test") == []


def test_a_workflow_over_its_budget_goes_on_when_a_person_raises_it():
    world = World(spec_of("plan", "build"), max_total_attempts=1)
    world.attempt()
    assert world.attempt().reason == "HEALTH_BUDGET"
    with pytest.raises(UsageError, match="adw state set"):
        world.resume()

    def raise_it(draft):
        draft.document.max_total_attempts = 2

    world.change(raise_it)
    world.resume()

    assert world.attempt() == Done(state="completed")


# --- crashes and ordered stops ---------------------------------------------------------------------------------


def test_an_attempt_that_was_cut_off_counts():
    world = World(spec_of(phase("plan", max_attempts=3)))
    world.crash()

    assert world.attempt() == Done(state="completed")

    record = world.record("plan")
    assert [made.status for made in record.attempts] == ["interrupted", "succeeded"]
    assert record.attempts_used == 2
    assert world.runner.numbers("plan") == [2]


@pytest.mark.parametrize("is_required", [True, False])
def test_a_phase_that_kills_its_process_every_time_is_failed_in_the_end(is_required):
    """
    It never reports a failure, so counting after the failure would repeat the first attempt for ever.
    """
    world = World(spec_of(phase("plan", max_attempts=3, is_required=is_required), *([] if is_required else ["build"])))
    for _ in range(3):
        world.crash()

    outcome = world.attempt()

    assert world.record("plan").attempts_used == 3
    if is_required:
        assert (outcome.reason, world.state, world.runner.calls) == ("MAX_ATTEMPTS_EXHAUSTED", "failed", [])
    else:
        said = "plan was passed over: the process that worked on it ended without a word"
        assert outcome == Done(state="completed", warnings=(said,))


def test_ordered_stops_burn_no_attempt_and_after_twenty_in_a_row_a_person_is_needed():
    world = World(spec_of(phase("plan", max_attempts=2)))
    outcomes = []
    for _ in range(MAX_SUSPENSIONS):
        world.runner.add("plan", drained(world))
        outcomes.append(world.attempt())
        world.orders.clear()

    assert outcomes[:-1] == [Stopped(reason="drain")] * 19
    assert outcomes[-1] == Paused(reason="suspended_too_often")
    assert (world.state, world.document.pause_reason) == ("paused", "suspended_too_often")
    assert world.record("plan").attempts_used == 0
    world.resume()
    assert world.attempt() == Done(state="completed")
    assert world.runner.numbers("plan") == list(range(1, 22))


def test_an_order_that_came_before_the_runner_keeps_it_from_running_and_a_stop_without_one_parks():
    world = World(spec_of("plan", "build"))

    with world.session() as session:
        session.attempt(may_go_on=lambda: True)
        world.orders.give(PAUSE)
        outcome = session.attempt()

    assert outcome == Paused(reason="someone wants to look")
    assert world.runner.numbers("build") == []
    assert (world.state, world.record("build").attempts_used) == ("paused", 0)
    world = World(spec_of("plan"), {"plan": [Suspended(reason="the quota is used up")]})
    assert world.attempt() == Paused(reason="the quota is used up")


def test_ctrl_c_suspends_the_attempt_and_is_passed_on():
    world = World(spec_of("plan"), {"plan": [KeyboardInterrupt()]})

    with pytest.raises(KeyboardInterrupt):
        world.attempt()

    record = world.record("plan")
    assert (record.status, record.attempts_used, world.state) == ("suspended", 0, "paused")
    assert world.document.pause_reason == "interrupted from the keyboard"


def test_ctrl_c_is_passed_on_also_when_the_attempt_cannot_be_closed():
    world = world_with(FailingStore, spec_of("plan"))

    def run(_context):
        world.parts.store.trouble = [Fenced(ADW_ID, 1, 2)]
        raise KeyboardInterrupt

    world.runner.add("plan", run)
    with pytest.raises(KeyboardInterrupt) as stopped:
        world.attempt()

    assert "will count as interrupted" in stopped.value.__notes__[0]
    assert world.record("plan").status == "running"


@pytest.mark.parametrize(
    "lost",
    [
        LeaseLost("taken over"),
        Fenced(ADW_ID, 1, 2),
        RunLost(7),
        StateConflict(ADW_ID, 2, 3),
        DurabilityUnknown("x", OSError(5, "Input/output error")),
    ],
    ids=lambda lost: type(lost).__name__,
)
@pytest.mark.parametrize("where", ["runner", "gate"])
def test_who_does_not_own_the_workflow_any_more_writes_nothing(lost, where):
    world = World(spec_of(phase("plan", gates=HUMAN)))

    def gates(*_args):
        raise lost

    if where == "runner":
        world.runner.add("plan", lost)
    with pytest.raises(type(lost)):
        world.attempt(**({"gates": gates} if where == "gate" else {}))

    assert world.document.revision == 2
    assert world.record("plan").status == "running"


def test_a_worker_that_was_taken_over_cannot_write_its_result():
    world = World(spec_of("plan"))

    def slow(_context):
        world.clock.advance(60.0)  # its lease ends meanwhile
        with world.session() as other:
            other.settle()
        return WELL

    world.runner.add("plan", slow)
    with pytest.raises(Fenced):
        world.attempt()

    record = world.record("plan")
    assert [made.status for made in record.attempts] == ["interrupted"]
    assert (record.status, record.attempts_used, record.result) == ("interrupted", 1, None)


# --- writes that fail ------------------------------------------------------------------------------------------


def failed_write() -> StateWriteFailed:
    return StateWriteFailed("state/1a2b3c4d", OSError(28, "No space left on device"))


def test_an_attempt_that_cannot_be_recorded_is_not_run():
    world = world_with(FailingStore, spec_of("plan"))
    world.parts.store.trouble = [failed_write()]

    with world.session() as session:
        with pytest.raises(StateWriteFailed):
            session.attempt()
        assert world.runner.calls == []
        assert session.attempt() == Done(state="completed")

    assert world.runner.numbers("plan") == [1]


def test_a_finish_that_cannot_be_stored_leaves_an_attempt_that_counts():
    world = world_with(FailingStore, spec_of("plan", "build"))
    world.runner.add("plan", lambda _context: world.parts.store.trouble.append(failed_write()) or WELL)

    with world.session() as session:
        with pytest.raises(StateWriteFailed):
            session.attempt(may_go_on=lambda: True)

        assert not session.has_begun
        assert world.record("plan").status == "running"
        assert session.attempt() == Next(phase="build")  # the same session goes on from what is stored
        assert session.attempt() == Done(state="completed")

    assert [made.status for made in world.record("plan").attempts] == ["interrupted", "succeeded"]
    assert [(m.from_state, m.to_state) for m in world.document.state_history] == [
        ("pending", "planning"),
        ("planning", "building"),
        ("building", "completed"),
    ]


# --- going on --------------------------------------------------------------------------------------------------


def exhausted(**fields) -> World:
    spec = spec_of("plan", phase("build", max_attempts=2))
    world = World(spec, {"build": [BROKEN] * 9}, **fields)
    world.attempt()
    world.attempt()
    world.clock.advance(3600.0)
    assert world.attempt().reason == "MAX_ATTEMPTS_EXHAUSTED"
    return world


def test_resuming_from_a_phase_counts_anew_and_forgets_nothing():
    world = exhausted()

    world.resume(from_phase="plan")
    assert world.attempt() == Next(phase="build")
    world.attempt()

    record = world.record("build")
    assert (record.round, record.attempts_used, record.status) == (2, 1, "retry_wait")
    assert [(made.number, made.round) for made in record.attempts] == [(1, 1), (2, 1), (3, 2)]
    assert world.runner.numbers("plan") == [1, 2]


def test_planning_again_gives_no_attempt_back():
    """
    A replan that set the counters back would be a loop without end.
    """
    world = exhausted()

    world.change(lambda draft: draft.move(S.PLANNING, {"reason": "replan"}))

    assert (world.state, world.document.retry_count) == ("planning", 1)
    assert (world.record("build").attempts_used, world.record("build").round) == (2, 1)
    assert world.attempt().reason == "MAX_ATTEMPTS_EXHAUSTED"
    assert world.runner.numbers("build") == [1, 2]


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (lambda draft: transitions.abandon(draft, "enough"), Done(state="abandoned")),
        (lambda draft: transitions.pause(draft, "wait"), Paused(reason="wait")),
        (lambda draft: draft.machine.begin_rollback(), Done(state="pending")),
    ],
)
def test_a_workflow_that_rests_is_not_worked_on(ended, outcome):
    world = World(spec_of("plan"))
    world.change(ended)

    assert world.attempt() == outcome
    assert world.runner.calls == []


# --- the failure loop ------------------------------------------------------------------------------------------


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_attempts_of_a_failing_phase_are_numbered_one_to_five_through_restarts_and_then_it_has_failed(tmp_path):
    """
    A log once said "Attempt 1/5", "Attempt 2/5", and after an early return and a restart "Attempt 2/5" again, for ever.
    """
    name = "fileorg-p2-test-fixes"
    limit = RunFailed(FailedRun(exit_code=1, text="LLM output invalid format (stop_reason=max_tokens)"))
    spec = spec_of(phase(name, max_attempts=5))
    world = World(spec, {name: [limit, limit]})
    outcomes = []
    with open_log(tmp_path, ADW_ID):
        outcomes.append(world.attempt())
        world.clock.advance(85.0)
        outcomes.append(world.attempt())
        world.clock.advance(70.0)
        world.crash()  # an early return that nobody recorded
        world.runner.add(name, limit, limit)
        outcomes.append(world.attempt())
        world.clock.advance(600.0)
        outcomes.append(world.attempt())
        outcomes.append(world.attempt())

    assert [type(outcome).__name__ for outcome in outcomes] == ["RetryAt", "RetryAt", "RetryAt", "Failed", "Failed"]
    assert outcomes[-1].reason == "MAX_ATTEMPTS_EXHAUSTED"
    assert [event.attempt_number for event in world.events("attempt_started")] == [1, 2, 3, 4, 5]
    assert [event.data["attempts_used"] for event in world.events("attempt_started")] == [1, 2, 3, 4, 5]
    assert [made.number for made in world.record(name).attempts] == [1, 2, 3, 4, 5]
    started = [line for line in lines_of(tmp_path / ADW_ID / "adw.log") if line["event_type"] == "attempt_started"]
    assert [line["message"] for line in started] == [f"Attempt {number}/5" for number in (1, 2, 3, 4, 5)]
    assert (world.state, world.record(name).attempts_used) == ("failed", 5)


def is_said_already(event) -> bool:
    """Entering a phase is told by its attempt, its completion by the success of that attempt."""
    is_entry = event.event_type == "state_changed" and event.status in {state.value for state in PHASE_STATES}
    return is_entry or event.event_type == "phase_completed"


def test_document_events_and_log_lines_agree_on_every_counter(tmp_path):
    spec = spec_of("plan", phase("build", max_attempts=3), phase("test", on_rework="build"))
    world = World(spec, {"build": [BROKEN], "test": [AGAIN]})
    with open_log(tmp_path, ADW_ID):
        world.attempt()
        world.attempt()
        world.clock.advance(60.0)
        world.crash()
        world.runner.add("build", drained(world))
        world.attempt()
        world.orders.clear()
        while isinstance(world.attempt(), Next):
            pass

    assert world.state == "completed"
    events, lines = world.events()[1:], lines_of(tmp_path / ADW_ID / "adw.log")
    events = [event for event in events if event.event_type != "lease_taken_over" and not is_said_already(event)]
    assert [(line["event_type"], line["revision"]) for line in lines] == [(e.event_type, e.revision) for e in events]
    for event, line in zip(events, lines, strict=True):
        assert line.get("attempt") == event.attempt_number
        assert line["phase"] == (event.node_name or "workflow")
        if event.event_type == "attempt_started":
            assert (line["attempts_used"], line["max_attempts"]) == (event.data["attempts_used"], event.data["limit"])
            assert line["message"] == f"Attempt {event.data['attempts_used']}/{event.data['limit']}"
        if event.node_name is None:
            assert line.get("attempts_used") is None
    for record in world.document.phases:
        told = [event.attempt_number for event in world.events("attempt_started") if event.node_name == record.name]
        assert told == [made.number for made in record.attempts]
        last = [line for line in lines if line["phase"] == record.name][-1]
        assert last["attempts_used"] == record.attempts_used


def test_a_fresh_session_knows_all_that_the_last_one_knew():
    """
    Nothing that matters lives in the session: each attempt in one of its own gives the same as all in one.
    """
    scripts = {"build": [BROKEN, BROKEN], "test": [AGAIN]}
    spec = spec_of("plan", "build", phase("test", on_rework="build"))
    apart, together = World(spec, scripts), World(spec, scripts)
    while not isinstance(apart.attempt(), Done):
        apart.clock.advance(600.0)
    with together.session() as session:
        while not isinstance(session.attempt(), Done):
            together.clock.advance(600.0)

    def shape(world):
        return [
            replace(
                event,
                event_id="",
                revision=0,
                created_at="",
                duration=None,
                data={},
                meta={},
                adw_id="",
                execution_id="",
            )
            for event in world.events()
        ]

    assert shape(apart) == shape(together)
    assert [r.attempts_used for r in apart.document.phases] == [r.attempts_used for r in together.document.phases]


def test_a_document_of_an_older_version_is_worked_on_with_the_definition_it_was_given():
    world = World(spec_of("plan", "build"), workflow=None, phases=[])
    with world.session() as session:
        with pytest.raises(StateInvalid, match="has no definition"):
            session.attempt()

        session.change(lambda draft: resume.adopt(draft, world.spec))
        session.forget_table()
        assert session.attempt() == Next(phase="build")
        assert session.attempt() == Done(state="completed")  # no lint, no test: the table is that of the definition


# --- a long run ------------------------------------------------------------------------------------------------


def test_fifteen_phases_in_three_tiers_run_in_order_through_failures_and_a_crash_after_each_tier():
    tiers = {0: "planning", 1: "building", 2: "testing"}
    phases = [phase(f"p{n:02}", tier=n // 5, state=tiers[n // 5], max_attempts=3) for n in range(15)]
    world = World(spec_of(*phases), {"p03": [BROKEN], "p08": [BROKEN, BROKEN], "p14": [BROKEN]})

    outcome = None
    while not isinstance(outcome, Done):
        done = sum(record.status == "complete" for record in world.document.phases)
        if done in (5, 10) and not world.document.phases[done].attempts:
            world.crash()
        outcome = world.attempt()
        world.clock.advance(600.0)

    assert [r.attempts_used for r in world.document.phases] == [1, 1, 1, 2, 1, 2, 1, 1, 3, 1, 2, 1, 1, 1, 2]
    started = [event.node_name for event in world.events("attempt_started")]
    assert started == sorted(started)
    assert [move.to_state for move in world.document.state_history] == ["planning", "building", "testing", "completed"]


# --- something was short ---------------------------------------------------------------------------------------


def test_what_was_short_is_freed_before_the_phase_is_tried_again_and_only_then():
    freed: list[tuple[str, int]] = []
    world = World(spec_of("build", "test"), {"build": [OSError(errno.ENOSPC, "No space left on device"), BROKEN]})

    def clean_up(tried, context) -> None:
        assert len(world.runner.numbers("build")) == 1, "freed before the second attempt ran"
        freed.append((tried.name, context.attempt_number))

    while not isinstance(world.attempt(clean_up=clean_up), Done):
        world.clock.advance(600.0)

    assert world.runner.numbers("build") == [1, 2, 3]
    assert freed == [("build", 2)]


def test_a_clean_up_that_fails_is_a_failed_attempt():
    world = World(spec_of("build"), {"build": [OSError(errno.ENOSPC, "No space left on device")]})
    world.attempt()
    world.clock.advance(600.0)

    def broken(tried, context) -> None:
        raise ConnectionError("nothing could be freed")

    assert isinstance(world.attempt(clean_up=broken), RetryAt)
    assert world.runner.numbers("build") == [1]
