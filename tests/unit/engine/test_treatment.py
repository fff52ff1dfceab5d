"""What the doctor decided is one change with the end of the attempt, and takes no counter back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adws.adw_modules.agents.prices import model_for
from adws.adw_modules.engine.advisor import MAX_REPLANS, Advice, RulesAdvisor
from adws.adw_modules.engine.transitions import hints_for
from adws.adw_modules.errors import FailedRun, GateFailed, RunFailed, UsageError
from adws.adw_modules.phase import Done, Failed, Next, RetryAt, RunReport
from tests.log_files import open_log
from tests.unit.engine_cases import ADW_ID, World, phase, spec_of

GATE = GateFailed("build", "3 tests fail")
TURNS = RunFailed(FailedRun(subtype="error_max_turns", text="too many turns"))


class Told:
    """A doctor that decides what it was told to, one decision for each call."""

    name = "told"
    is_free = False

    def __init__(self, *decisions: Advice | BaseException) -> None:
        self._decisions = list(decisions)
        self.cases = []
        self.stored = []

    def ask(self, case):
        self.cases.append(case)
        self.stored.append(case.record.doctor)
        result = self._decisions.pop(0)
        if isinstance(result, BaseException):
            raise result
        return replace(result, by=self.name, report=RunReport(ok=True, cost_usd=0.5))


def order(decision: str, reason: str = "because", **more) -> Advice:
    return Advice(decision=decision, reason=reason, **more)


def last_write(world: World) -> list[str]:
    return [event.event_type for event in world.events() if event.revision == world.document.revision]


def world_of(*phases, scripts=None, **fields) -> World:
    return World(spec_of(*(phases or ("plan", "build"))), scripts or {"build": [GATE]}, **fields)


def failed_with(world: World, *decisions, **parts):
    """Let plan succeed and build fail, with a doctor that decides so."""
    doctor = Told(*decisions)
    with world.session(advisor=doctor, **parts) as session:
        session.attempt()
        outcome = session.attempt()
    return outcome, doctor


# --- what is durable when --------------------------------------------------------------------------------------


def test_the_call_is_counted_before_the_doctor_is_asked_and_its_decision_is_in_the_finishing_write():
    world = world_of()

    _, doctor = failed_with(world, order("retry"))

    ((asked,),) = doctor.stored
    assert asked["by"] == "told"
    assert "decision" not in asked
    assert doctor.cases[0].document.doctor_calls == 1
    (entry,) = world.record("build").doctor
    assert (entry["decision"], entry["reason"], entry["attempt"]) == ("retry", "because", 1)
    assert last_write(world) == ["attempt_failed", "cost_added", "doctor_decided", "retry_scheduled"]


def test_no_attempt_is_made_twice_because_the_doctor_cut_in(tmp_path):
    world = world_of(phase("build", max_attempts=5), scripts={"build": [GATE] * 5})
    doctor = Told(*[order("retry")] * 5)

    with open_log(tmp_path, ADW_ID):
        for _ in range(7):
            world.attempt(advisor=doctor)  # each time by a new worker
            world.clock.advance(4000)

    lines = [json.loads(line)["message"] for line in (tmp_path / ADW_ID / "adw.log").read_text().splitlines()]
    assert [line for line in lines if line.startswith("Attempt ") and "/" in line] == [
        f"Attempt {n}/5" for n in range(1, 6)
    ]
    assert (world.state, world.document.terminal_reason) == ("failed", "MAX_ATTEMPTS_EXHAUSTED")


def test_a_doctor_that_raises_is_no_answer_and_what_was_judged_is_done():
    world = world_of()

    outcome, _ = failed_with(world, ZeroDivisionError("oops"))

    assert isinstance(outcome, RetryAt)
    assert world.record("build").doctor[0]["problem"] == "ZeroDivisionError: oops"


def test_ctrl_c_while_the_doctor_is_asked_suspends_the_attempt():
    world = world_of()

    with pytest.raises(KeyboardInterrupt):
        failed_with(world, KeyboardInterrupt())

    assert world.record("build").attempts[-1].status == "suspended"
    assert world.document.doctor_calls == 1


def test_the_doctor_by_rules_is_asked_without_a_write_and_leaves_no_trace_when_it_has_nothing_to_add():
    world = world_of()

    with world.session(advisor=RulesAdvisor()) as session:
        session.attempt()
        before = session.document.revision
        session.attempt()

    assert world.document.revision == before + 2  # begun, ended
    assert (world.record("build").doctor, world.document.doctor_calls) == ([], 0)


# --- decisions -------------------------------------------------------------------------------------------------


def test_another_model_is_the_model_of_the_next_attempts():
    world = world_of()

    outcome, _ = failed_with(world, order("retry_model", model="large"), model_for=model_for)
    world.clock.advance(4000)
    world.attempt(model_for=model_for)

    assert isinstance(outcome, RetryAt)
    assert [made.model for made in world.record("build").attempts] == [None, "large"]
    assert last_write(world)[0] == "attempt_succeeded"


def test_where_trying_again_was_not_judged_worth_it_another_model_is_tried_at_once_and_the_same_not_again():
    world = world_of(scripts={"build": [TURNS]})
    outcome, _ = failed_with(world, order("retry_model", model="large"))
    assert outcome == RetryAt(phase="build", at=world.clock.now(), reason=world.record("build").last_failure_reason)

    world = world_of(scripts={"build": [TURNS]})
    outcome, _ = failed_with(world, order("retry"))
    assert (outcome.reason, world.state) == ("NEEDS_PERSON", "failed")


def test_skipping_ends_the_phase_in_the_write_of_its_attempt():
    world = world_of()

    outcome, _ = failed_with(world, order("skip", "it makes no progress"))

    record = world.record("build")
    assert outcome == Failed(phase="build", reason="DOCTOR_SKIP", message="it makes no progress", advice=outcome.advice)
    assert (record.status, record.terminal_reason, record.attempts_used) == ("failed", "DOCTOR_SKIP", 1)
    assert (
        record.last_failure_reason != "it makes no progress"
    )  # why it failed, and why it was given up, are two things
    assert last_write(world) == ["attempt_failed", "cost_added", "doctor_decided", "phase_failed", "state_changed"]


@pytest.mark.parametrize(("decision", "reason"), [("skip", "DOCTOR_SKIP"), ("human", "NEEDS_PERSON")])
def test_a_phase_that_is_not_required_is_passed_over_whatever_is_decided(decision, reason):
    world = world_of("plan", phase("build", is_required=False))

    outcome, _ = failed_with(world, order(decision))

    assert outcome == Done(state="completed", warnings=("build was passed over: because",))
    assert world.record("build").terminal_reason == reason


# --- planning again --------------------------------------------------------------------------------------------


def test_planning_again_goes_back_in_one_write_with_the_reason_as_a_hint_and_keeps_every_counter():
    world = world_of()

    outcome, _ = failed_with(world, order("replan", "the interface is wrong"))

    plan, build = world.record("plan"), world.record("build")
    assert outcome == Next(phase="plan")
    assert (world.state, world.document.replans, world.document.retry_count, world.document.reworks) == (
        "planning",
        1,
        0,
        0,
    )
    assert (plan.status, plan.attempts_used, plan.round) == ("queued", 1, 1)
    assert (build.status, build.attempts_used, build.round) == ("queued", 1, 1)
    assert hints_for(world.document, "plan") == ("build failed: the interface is wrong",)
    assert last_write(world) == ["attempt_failed", "cost_added", "doctor_decided", "state_changed", "state_changed"]


def test_planning_again_is_bounded_and_then_what_was_judged_is_done():
    spec = spec_of("plan", "build", "test", "review")
    world = World(spec, {name: [GATE] * 5 for name in ("build", "test", "review")})
    doctor = Told(*[order("replan")] * 10)

    for _ in range(40):
        with world.session(advisor=doctor) as session:
            session.attempt()
        world.clock.advance(4000)

    assert world.document.replans == MAX_REPLANS
    assert world.state == "failed"
    problems = [entry.get("problem", "") for record in world.document.phases for entry in record.doctor]
    assert [bool(problem) for problem in problems[:MAX_REPLANS]] == [False] * MAX_REPLANS
    assert all(record.attempts_used <= record.max_attempts for record in world.document.phases)


def test_planning_again_is_refused_where_a_phase_could_not_be_done_again():
    world = world_of(phase("plan", max_attempts=1), "build")

    outcome, _ = failed_with(world, order("replan"))

    (entry,) = world.record("build").doctor
    assert isinstance(outcome, RetryAt)
    assert entry["problem"] == "it cannot be done: plan has no attempt left to be done again"
    assert world.document.replans == 0


@pytest.mark.parametrize("decision", [order("replan"), order("retry_model", model="large")], ids=["replan", "model"])
def test_a_health_budget_that_is_gone_ends_the_workflow_whatever_is_decided(decision):
    world = world_of(max_total_attempts=2)

    outcome, _ = failed_with(world, decision)

    assert (outcome.reason, world.state) == ("HEALTH_BUDGET", "failed")


def test_another_model_is_refused_for_a_phase_that_has_none():
    world = World(
        spec_of("plan", phase("build", runner="command", command=("true",))),
    )
    world.engine.phase_runners["command"] = world.runner
    world.runner.add("build", GATE)

    outcome, _ = failed_with(world, order("retry_model", model="large"))

    assert isinstance(outcome, RetryAt)
    assert world.record("build").doctor[0]["problem"] == "it cannot be done: no model works on build"
    assert world.record("build").model is None


# --- limits ----------------------------------------------------------------------------------------------------


def test_a_phase_has_two_calls_and_a_crash_in_the_middle_of_one_gives_none_back():
    world = world_of(phase("build", max_attempts=9), scripts={"build": [GATE] * 9})
    doctor = Told(UsageError("x"), *[order("retry")] * 9)

    for _ in range(9):
        world.attempt(advisor=doctor)
        world.clock.advance(4000)

    assert len(doctor.cases) == len(world.record("build").doctor) == 2
    assert world.document.doctor_calls == 2


def test_the_whole_workflow_has_ten_calls():
    names = [f"part{number}" for number in range(8)]
    spec = spec_of(*(phase(name, state="building", is_required=False, max_attempts=3) for name in names))
    world = World(spec, {name: [GATE] * 3 for name in names})
    doctor = Told(*[order("retry")] * 20)

    for _ in range(30):
        world.attempt(advisor=doctor)
        world.clock.advance(4000)

    assert len(doctor.cases) == world.document.doctor_calls == 10


def test_the_built_in_doctor_carries_a_phase_through_models_and_a_new_plan():
    """Whole: the same failure twice, another model, the same again, planned again, and then it works."""
    spec = spec_of("plan", phase("build", options={"models": ["small"]}, max_attempts=6))
    world = World(spec, {"build": [TURNS, GATE, GATE]})
    doctor = RulesAdvisor(spare=("large",))

    for _ in range(12):
        world.attempt(advisor=doctor, model_for=model_for)
        world.clock.advance(4000)

    build = world.record("build")
    assert world.state == "completed"
    assert [entry["decision"] for entry in build.doctor] == ["retry_model", "replan"]
    assert [made.model for made in build.attempts] == ["small", "large", "large", "large"]
    assert world.record("plan").attempts_used == 2
