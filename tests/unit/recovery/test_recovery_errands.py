"""Runs of deliveries and of the schedule, which are of no workflow: recovery gives them back and misses no document."""

from __future__ import annotations

import pytest

from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import CRON, DELIVERY, RUN_KINDS, WITHOUT_WORKFLOW, NewRun, RunState
from adws.adw_modules.recovery.plan import Claim, Evidence, plan_recovery
from tests.unit.conduct_cases import Home

DEAD = Claim(owner="worker 7@here", verdict=Verdict.DEAD, seconds_left=29.0)
ALIVE = Claim(owner="worker 7@here", verdict=Verdict.ALIVE, seconds_left=20.0)


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


def plan(**facts: object) -> list[tuple[str, str]]:
    row = Evidence(adw_id="d0000001", is_errand=True, run_id=1, **facts)
    return [(step.action.value, step.why) for step in plan_recovery([row])]


def test_both_kinds_can_be_asked_for():
    assert {DELIVERY, CRON} == WITHOUT_WORKFLOW
    assert set(RUN_KINDS) >= WITHOUT_WORKFLOW


def test_one_that_waits_or_is_worked_on_is_left_alone():
    assert plan(run_state=RunState.PENDING) == [("leave", "nothing is wrong")]
    assert plan(run_state=RunState.RUNNING, run_claim=ALIVE) == [("leave", "nothing is wrong")]


def test_one_whose_worker_is_gone_goes_back():
    assert plan(run_state=RunState.RUNNING, run_claim=DEAD) == [("requeue", "run 1: its owner worker 7@here is dead")]


@pytest.mark.parametrize("kind", sorted(WITHOUT_WORKFLOW))
def test_a_document_is_neither_looked_for_nor_missed(home, kind, caplog):
    run = home.runs.enqueue(NewRun(adw_id="d0000001", kind=kind, payload={"guid": "g1"}))
    recovery = home.recovery()
    assert recovery.recover(every_document=True).steps == ()
    me = home.parts.processes.me("worker")
    home.runs.begin(home.runs.claim(me, ttl_seconds=30.0))
    assert recovery.recover().steps == ()

    home.parts.processes.kill(me)
    steps = recovery.recover().steps

    assert [(step.adw_id, step.action.value) for step in steps] == [("d0000001", "requeue")]
    assert home.runs.get(run.run_id).state is RunState.PENDING
    assert "Needs a person" not in caplog.text
    assert recovery.recover().steps == ()
