"""A phase that is done outside of adw: it waits, takes what was reported, and is cut off by its deadline."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.engine import transitions
from adws.adw_modules.events import Event
from adws.adw_modules.external_tasks import EXPIRED, ExternalReport, ExternalRunner, ExternalTasks, is_wanted
from adws.adw_modules.phase import Done, Failed, Next, Order, Paused, RetryAt, Stopped
from adws.testing import FakeClock
from tests.unit.engine_cases import ADW_ID, World, phase, spec_of

DEADLINE = 600.0
TASK = f"{ADW_ID}.build.1"


class Outside(World):
    """A workflow whose phase is done outside."""

    def __init__(self, **changes) -> None:
        done = phase("build", **{"deadline_seconds": DEADLINE, "max_attempts": 2, **changes})
        super().__init__(spec_of(done))
        self.tasks = self.parts.external_tasks
        self.home = SimpleNamespace(external_tasks=self.tasks, clock=self.clock)
        self.engine.phase_runners = {"scripted": ExternalRunner(self.home)}

    def report(self, task_id: str = TASK, *, is_ok: bool = True, **fields) -> None:
        claim = self.tasks.claim(task_id, worker="ci", seconds=60.0).claims
        event = Event(event_type="action_completed", event_id="end")
        report = ExternalReport(is_ok=is_ok, report_id="r", **fields)
        assert self.tasks.report(task_id, claim, report, event)

    def told(self) -> dict[str, Event]:
        """What was told of the task, by the id of the event."""
        return {event.event_id: event for event in self.parts.events.of_workflow(ADW_ID)}

    def statuses(self) -> list[str]:
        return [attempt.status for attempt in self.record("build").attempts]


def test_it_leaves_a_task_and_waits_until_the_deadline():
    world = Outside()

    outcome = world.attempt()

    until = world.clock.now() + timedelta(seconds=DEADLINE)
    assert isinstance(outcome, RetryAt)
    assert outcome.at == until
    assert world.statuses() == ["waiting"]
    task = world.tasks.get(TASK)
    assert (task.attempt_number, task.round, task.catalog_id) == (1, 1, "tried@7")
    assert task.deadline == timestamps.to_text(until)
    (told,) = world.events("attempt_waits")
    assert told.data["task_id"] == TASK
    assert told.data["path"] == f"/api/v1/external/{TASK}"
    assert told.data["deadline"] == task.deadline


@pytest.mark.parametrize(
    ("error", "category", "words"),
    [
        ({"message": "connection reset by peer", "exit_code": 1}, "transient", "it failed: connection reset by peer"),
        ({}, "transient", "no reason was given"),
        ({"message": "red", "exit_code": True, "status": "x"}, "transient", "it failed: red"),
    ],
)
def test_a_failure_that_was_reported_is_judged_by_the_one_classifier(error, category, words):
    world = Outside()
    world.attempt()
    world.report(is_ok=False, error=error)

    outcome = world.attempt()

    assert isinstance(outcome, RetryAt)
    assert world.statuses() == ["failed"]
    judged = world.record("build").attempts[0].error
    assert judged["category"] == category
    assert f"ci reports that {words}" in judged["message"] or words in judged["message"]


# --- the deadline ----------------------------------------------------------------------------------------------


def test_when_nobody_reports_in_time_the_attempt_is_interrupted_and_counts():
    world = Outside()
    world.attempt()
    world.clock.advance(DEADLINE)

    assert world.attempt() == Next(phase="build")

    assert world.statuses() == ["interrupted"]
    assert world.tasks.get(TASK).state == EXPIRED
    record = world.record("build")
    assert record.attempts_used == 1
    assert f"nobody reported on task {TASK} until" in record.last_failure_reason
    assert "nobody had claimed it" in record.last_failure_reason
    (told,) = world.events("attempt_interrupted")
    assert told.data["why"] == record.last_failure_reason


def test_the_last_attempt_that_is_cut_off_fails_the_workflow():
    world = Outside(max_attempts=1)
    world.attempt()
    world.tasks.claim(TASK, worker="ci", seconds=60.0)
    world.clock.advance(DEADLINE)

    outcome = world.attempt()

    assert isinstance(outcome, Failed)
    assert outcome.reason == "MAX_ATTEMPTS_EXHAUSTED"
    assert "ci had claimed it" in world.record("build").last_failure_reason


def test_a_report_that_comes_while_it_is_given_up_counts():
    world = Outside()
    world.attempt()
    database, executions = world.parts.database, world.parts.executions

    class Late(ExternalTasks):
        """Somebody is faster than us."""

        def expire(self, task_id: str) -> bool:
            world.tasks = ExternalTasks(database, clock=FakeClock(), executions=executions)  # its clock is behind ours
            world.report(task_id)
            return super().expire(task_id)

    world.tasks = world.home.external_tasks = Late(database, clock=world.clock, executions=executions)
    world.clock.advance(DEADLINE)

    assert world.attempt() == Done(state="completed")


# --- crashes and orders ----------------------------------------------------------------------------------------


def test_what_was_reported_is_not_lost_with_a_worker_that_dies_before_it_takes_it():
    world = Outside()
    world.attempt()
    world.report(result={"n": 1})
    world.crash()

    assert world.attempt() == Done(state="completed")

    assert world.statuses() == ["interrupted", "succeeded"]
    assert world.record("build").result == {"n": 1}


def test_whoever_works_outside_goes_on_when_a_worker_of_adw_dies():
    world = Outside()
    world.attempt()
    claim = world.tasks.claim(TASK, worker="ci", seconds=60.0).claims
    world.crash()

    assert isinstance(world.attempt(), RetryAt)

    assert world.statuses() == ["interrupted", "waiting"]
    assert world.tasks.heartbeat(TASK, claim).attempt_number == 2
    assert is_wanted(world.tasks.get(TASK), world.document)


def test_a_drain_while_it_goes_on_does_not_cost_the_work_outside():
    world = Outside()
    world.attempt()
    world.orders.give(Order(kind="drain", reason="restart"))
    assert isinstance(world.attempt(), Stopped)
    world.orders.clear()
    world.report(result={"n": 1})

    assert world.attempt() == Done(state="completed")
    assert world.statuses() == ["suspended", "succeeded"]


def test_an_attempt_of_another_round_begins_anew():
    world = Outside()
    world.attempt()
    world.change(lambda draft: draft.change_phase(0, round=2, attempts_used=0))

    world.attempt()

    assert world.tasks.latest(ADW_ID, "build").task_id == f"{ADW_ID}.build.2"


# --- whose task it is ------------------------------------------------------------------------------------------


def test_a_task_is_wanted_while_its_attempt_waits_and_while_the_workflow_is_paused():
    world = Outside()
    world.attempt()
    task = world.tasks.get(TASK)
    assert is_wanted(task, world.document)

    outcome = world.change(lambda draft: transitions.pause(draft, "lunch"))

    assert isinstance(outcome, Paused)
    assert is_wanted(task, world.document)


@pytest.mark.parametrize("changes", [{"phase": "deploy"}, {"round": 2}, {"attempt_number": 2}])
def test_a_task_of_something_else_is_not_wanted(changes):
    world = Outside()
    world.attempt()

    assert not is_wanted(replace(world.tasks.get(TASK), **changes), world.document)
