"""An attempt that waits for work that others do is the same attempt when it goes on."""

from __future__ import annotations

from datetime import timedelta

from adws.adw_modules.phase import Done, Failed, RetryAt, RunReport, WaitingForChildren
from adws.adw_modules.worker.run_executor import describe
from adws.testing import START
from tests.unit.engine_cases import WELL, World, phase, spec_of

UNTIL = START + timedelta(hours=1)
FORKED = WaitingForChildren(reason="waits for 3 of 10 iterations of fetch", until=UNTIL, facts={"step": "fetch"})


def test_an_attempt_that_forks_waits_and_leaves_the_workflow_in_its_state():
    world = World(spec_of("build"), {"build": [FORKED]})

    outcome = world.attempt()

    assert outcome == RetryAt(phase="build", at=UNTIL, reason=FORKED.reason, is_waiting=True)
    assert describe(outcome) == "build waits for 3 of 10 iterations of fetch"

    record = world.record("build")
    assert (record.status, record.wait_reason, record.retry_at) == ("retry_wait", FORKED.reason, None)
    assert (record.attempts_used, record.attempts[-1].status, record.attempts[-1].ended_at) == (1, "waiting", None)
    assert world.state == "building"
    (told,) = world.events("attempt_waits")
    assert (told.data["step"], told.data["why"], told.status) == ("fetch", FORKED.reason, "waiting")


def test_it_continues_as_the_same_attempt_and_is_counted_once():
    world = World(spec_of("build"), {"build": [FORKED, WELL]})
    world.attempt()

    assert world.attempt() == Done(state="completed")

    record = world.record("build")
    assert [attempt.number for attempt in record.attempts] == [1]
    assert (record.attempts_used, record.status, record.wait_reason) == (1, "complete", None)
    assert len(world.events("attempt_started")) == len(world.events("attempt_went_on")) == 1


def test_the_last_attempt_of_a_round_may_wait_too():
    world = World(spec_of(phase("build", max_attempts=1)), {"build": [FORKED, WELL]})
    world.attempt()

    assert world.attempt() == Done(state="completed")


def test_a_failure_after_the_wait_uses_the_attempt_up():
    broken = RunReport(ok=False, error=RuntimeError("two iterations failed"))
    world = World(spec_of(phase("build", max_attempts=1)), {"build": [FORKED, broken]})
    world.attempt()

    assert isinstance(world.attempt(), Failed)
    assert world.record("build").attempts_used == 1


def test_a_new_round_begins_a_new_attempt():
    world = World(spec_of("build"), {"build": [FORKED, WELL]})
    world.attempt()
    world.change(lambda draft: draft.change_phase(0, round=2, attempts_used=0))

    world.attempt()

    assert [(attempt.number, attempt.round) for attempt in world.record("build").attempts] == [(1, 1), (2, 2)]


def test_a_crash_while_it_continues_is_a_crash_of_that_attempt():
    world = World(spec_of("build"), {"build": [FORKED]})
    world.attempt()
    world.die()
    world.runner.add("build", WELL)

    world.attempt()

    statuses = [attempt.status for attempt in world.record("build").attempts]
    assert statuses[0] == "interrupted"
    assert statuses[-1] in {"running", "succeeded"}
