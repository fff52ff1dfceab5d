"""Lanes are runs beside the run of their workflow: each is looked after, recovered and given up for itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.resume import definition_of
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ownership.lease_renewer import NOT_WANTED
from adws.adw_modules.phase import WaitingForChildren
from adws.adw_modules.queue.model import ITERATION, NewRun, RunResult, RunState
from adws.adw_modules.recovery.plan import Policy
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.run_executor import RunExecutor
from adws.testing import START
from tests.unit.conduct_cases import ADW_ID, SPEC, Home, launcher_of
from tests.unit.engine_cases import WELL

FORKED = WaitingForChildren(reason="waits for 3 of 10 iterations of fetch", until=START + timedelta(hours=1))


@pytest.fixture
def home():
    made = Home({"plan": [FORKED, WELL]})
    yield made
    made.lease_renewer.close()


def lane(home, number=0):
    return home.runs.enqueue(NewRun(adw_id=ADW_ID, kind=ITERATION, slot=f"e/{number}", payload={"execution_id": "e"}))


class Errand:
    """Remembers what it was asked."""

    def __init__(self, raises=None):
        self.raises, self.given_up = raises, []

    def work(self, run):
        if self.raises is not None:
            raise self.raises
        return RunResult(run=run, outcome=None)

    def give_up(self, run, why):
        self.given_up.append((run.run_id, why))


# --- recovery --------------------------------------------------------------------------------------------------


def test_a_workflow_that_waits_for_its_lanes_is_left_alone(home):
    home.create()
    home.work()
    lane(home)

    assert home.recovery().recover(every_document=True).steps == ()
    assert home.record("plan").attempts[-1].status == "waiting"


def test_a_lane_whose_worker_died_goes_back_and_its_workflow_stays_as_it_is(home):
    home.create()
    home.work()
    lane(home, 0)
    lane(home, 1)
    me = home.parts.processes.me("worker")
    taken = home.runs.begin(home.runs.claim(me, ttl_seconds=30.0))
    home.parts.processes.kill(me)

    steps = home.recovery().recover(every_document=True).steps

    assert [(step.run_id, step.action.value) for step in steps] == [(taken.run_id, "requeue")]
    assert home.runs.get(taken.run_id).losses == 1
    assert home.run().not_before
    assert home.record("plan").attempts[-1].status == "waiting"


def test_a_run_whose_worker_died_is_found_behind_an_older_lane(home):
    home.create(has_run=False)
    lane(home)
    main = home.runs.enqueue(NewRun(adw_id=ADW_ID, kind="resume"))
    me = home.parts.processes.me("worker")
    home.runs.begin(home.runs.claim(me, ttl_seconds=30.0, run_id=main.run_id))
    home.parts.processes.kill(me)

    steps = home.recovery().recover(every_document=True).steps

    assert [(step.run_id, step.action.value) for step in steps] == [(main.run_id, "requeue")]


def test_a_lane_that_takes_every_worker_with_it_is_given_up_and_not_its_workflow(home):
    home.create()
    home.work()
    lane(home)
    me = home.parts.processes.me("worker")
    taken = home.runs.begin(home.runs.claim(me, ttl_seconds=30.0))
    home.parts.processes.kill(me)
    errand = Errand()

    home.recovery(job_handler={ITERATION: errand}.get).recover(policy=Policy(max_losses=1))

    assert [run_id for run_id, _why in errand.given_up] == [taken.run_id]
    assert home.runs.get(taken.run_id).state is RunState.FAILED
    assert home.state() == "planning"


# --- work ------------------------------------------------------------------------------------------------------


def test_a_workflow_that_begins_to_wait_is_woken_when_that_is_over_already(home):
    woken = []
    home.create()

    RunExecutor(home.changed(executions=SimpleNamespace(wake=woken.append))).work(home.claim())

    assert woken == [ADW_ID]


@pytest.mark.parametrize("trouble", [UsageError("no lane"), ValueError("a bug")])
def test_trouble_with_a_lane_does_not_park_its_workflow(home, trouble):
    home.create()
    home.work()
    lane(home)
    errand = Errand(trouble)
    work = RunExecutor(home.changed(job_handler={ITERATION: errand}.get))
    run = home.claim()
    if isinstance(trouble, UsageError):
        work.work(run)
    else:
        work.give_up(run, trouble)

    assert home.runs.get(run.run_id).state is RunState.FAILED
    assert len(errand.given_up) == 1
    assert home.state() == "planning"


# --- looking after ---------------------------------------------------------------------------------------------


def test_the_claim_of_a_lane_is_renewed_without_the_lease_of_its_workflow(home):
    home.create(has_run=False)
    lane(home)
    run = home.runs.begin(home.claim())
    with home.lease_renewer.keep(run, is_wanted=lambda: True) as charge:
        home.clock.advance(11)
        home.lease_renewer.look()

        assert home.runs.get(run.run_id).seconds_left == pytest.approx(30.0)
        assert charge.current() is None


def test_a_lane_is_to_stop_when_its_workflow_does_not_go_on(home):
    home.create(has_run=False)
    lane(home)
    with home.lease_renewer.keep(home.runs.begin(home.claim()), is_wanted=lambda: False) as charge:
        home.lease_renewer.look()

        assert (charge.current().kind, charge.current().reason) == ("stop", NOT_WANTED)


def test_a_lane_hears_what_is_asked_of_its_workflow(home):
    home.create(has_run=False)
    lane(home)
    with home.lease_renewer.keep(home.runs.begin(home.claim()), is_wanted=lambda: True) as charge:
        home.requests.ask(ADW_ID, "pause", payload={}, asked_by="kim")
        home.lease_renewer.look()

        assert charge.current().kind == "pause"


# --- pausing, resuming, rolling back ---------------------------------------------------------------------------


def test_a_workflow_is_paused_while_it_waits_and_goes_on_with_the_same_attempt(home):
    home.create()
    home.work()
    home.control.pause(ADW_ID, by="kim")
    assert home.state() == "paused"
    assert home.run().state is RunState.STOPPED

    home.control.resume(ADW_ID, by="kim")
    home.work()

    assert home.state() == "completed"
    assert [attempt.status for attempt in home.record("plan").attempts] == ["succeeded"]


def test_a_workflow_is_abandoned_while_it_waits(home):
    home.create()
    home.work()
    home.control.abandon(ADW_ID, by="kim")

    assert home.state() == "abandoned"
    assert home.run().state is RunState.STOPPED
    assert home.recovery().recover(every_document=True).steps == ()


def test_the_workload_of_a_workflow_is_frozen_with_it(home):
    started = launcher_of(home).start(
        NewWorkflow(issue_number=42, spec=replace(SPEC, workload={"items": [1]}), asked_by="kim")
    )

    assert definition_of(home.document(started.adw_id)).workload == {"items": [1]}
