"""Recovery plans from evidence: proof of death or a lease that is over, never age."""

from __future__ import annotations

import pytest

from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.plan import Claim, Evidence, RecoveryAction, RecoveryStep, plan_recovery
from adws.adw_modules.state_machine import ACTIVE_STATES

ALIVE = Claim(owner="worker 7@here", verdict=Verdict.ALIVE, seconds_left=20.0)
UNSEEN = Claim(owner="worker 7@elsewhere", verdict=Verdict.UNKNOWN, seconds_left=0.5)
DEAD = Claim(owner="worker 7@here", verdict=Verdict.DEAD, seconds_left=29.0)
OVER = Claim(owner="worker 7@here", verdict=Verdict.ALIVE, seconds_left=-12.0)


def plan(**facts) -> list[tuple[str, str]]:
    row = Evidence(**{"adw_id": "1a2b3c4d", "state": "building", "revision": 9, **facts})
    return [(step.action.value, step.why) for step in plan_recovery([row])]


def actions(**facts) -> list[str]:
    return [action for action, _ in plan(**facts)]


def test_a_workflow_with_a_waiting_run_is_left_alone():
    assert plan(run_id=1, run_state=RunState.PENDING) == [("leave", "nothing is wrong")]


@pytest.mark.parametrize("lease", [ALIVE, UNSEEN])
def test_nobody_is_disturbed_who_works_or_may_work(lease):
    result = plan(lease=lease, open_attempt="build", run_id=1, run_state=RunState.RUNNING, run_claim=DEAD)

    assert result == [("leave", f"{lease.owner} works on it ({lease.verdict.value})")]


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        (DEAD, "build was cut off: its owner worker 7@here is dead"),
        (OVER, "build was cut off: the lease of worker 7@here is over since 12 s"),
        (Claim(), "build was cut off: nobody owns it"),
    ],
)
def test_an_attempt_whose_worker_is_gone_is_interrupted_however_young_it_is(lease, why):
    result = plan(lease=lease, open_attempt="build", run_id=1, run_state=RunState.RUNNING, run_claim=DEAD)

    assert result == [("interrupt", why), ("requeue", "run 1: its owner worker 7@here is dead")]


@pytest.mark.parametrize("state", [RunState.CLAIMED, RunState.RUNNING])
def test_a_run_whose_worker_is_gone_goes_back_to_the_queue(state):
    assert actions(run_id=1, run_state=state, run_claim=OVER) == ["requeue"]


def test_a_run_that_somebody_has_is_left_to_them():
    result = plan(run_id=1, run_state=RunState.CLAIMED, run_claim=UNSEEN)

    assert result == [("leave", "worker 7@elsewhere has its run")]


@pytest.mark.parametrize("state", sorted(state.value for state in ACTIVE_STATES))
def test_an_active_workflow_without_a_run_is_queued(state):
    assert plan(state=state) == [("enqueue", f"it is {state} and no run waits for it")]


def test_a_cut_off_workflow_without_a_run_is_closed_and_queued():
    assert actions(lease=DEAD, open_attempt="build") == ["interrupt", "enqueue"]


@pytest.mark.parametrize("state", ["paused", "failed", "completed", "abandoned", "rolled_back"])
def test_a_parked_or_finished_workflow_is_not_queued(state):
    assert plan(state=state) == [("leave", "nothing is wrong")]


@pytest.mark.parametrize("run_state", [RunState.PENDING, RunState.RUNNING])
def test_a_run_of_a_parked_workflow_is_ended(run_state):
    result = plan(state="paused", run_id=4, run_state=run_state, run_claim=DEAD)

    assert result == [("end_run", "it is paused, but run 4 still waits")]


def test_a_run_of_a_parked_workflow_is_left_to_the_worker_that_is_ending_it():
    assert actions(state="paused", run_id=4, run_state=RunState.RUNNING, run_claim=ALIVE) == ["leave"]


# --- rollbacks -------------------------------------------------------------------------------------------------


def test_a_rollback_that_was_begun_is_never_gone_on_with_as_work():
    assert actions(is_rolling_back=True, open_attempt="build") == ["leave"]


def test_the_run_of_a_rollback_is_not_ended_but_given_back():
    facts = {"state": "abandoned", "is_rolling_back": True, "run_id": 5}

    assert actions(**facts, run_state=RunState.RUNNING, run_claim=DEAD) == ["requeue"]
    assert actions(**facts, run_state=RunState.RUNNING, run_claim=ALIVE) == ["leave"]
    assert actions(**facts, run_state=RunState.PENDING) == ["leave"]


def test_the_run_of_a_rollback_that_is_done_is_ended():
    result = actions(state="rolled_back", is_rolling_back=True, run_id=5, run_state=RunState.PENDING)

    assert result == ["end_run"]


# --- documents and copies --------------------------------------------------------------------------------------


def test_a_document_that_cannot_be_read_is_reported():
    assert plan(state="", problem="it is torn", copied_revision=1) == [("report", "it is torn")]
    assert plan(state="") == [("report", "its document says no state")]


def test_a_copy_that_is_behind_is_brought_up_besides_everything_else():
    result = plan(copied_revision=8)

    assert result == [
        ("project", "the copy is at revision 8, the document at 9"),
        ("enqueue", "it is building and no run waits for it"),
    ]


@pytest.mark.parametrize("revision", [9, None])
def test_a_copy_that_is_up_to_date_or_not_kept_needs_nothing(revision):
    assert actions(copied_revision=revision, run_id=1, run_state=RunState.PENDING) == ["leave"]


def test_rows_are_planned_in_the_order_given_and_shown_as_json():
    rows = [Evidence(adw_id="1a2b3c4d", state="building", run_id=3), Evidence(adw_id="2b3c4d5e", problem="torn")]

    steps = plan_recovery(rows)

    assert [step.adw_id for step in steps] == ["1a2b3c4d", "2b3c4d5e"]
    assert RecoveryStep(adw_id="x", action=RecoveryAction.REQUEUE, why="dead", run_id=3).to_json() == {
        "adw_id": "x",
        "action": "requeue",
        "why": "dead",
        "run_id": 3,
        "from": None,
        "to": None,
        "evidence": {},
    }


@pytest.mark.parametrize(("claim", "expected"), [(DEAD, ["report", "requeue"]), (ALIVE, ["report"])])
def test_the_run_of_a_document_that_nobody_can_read_goes_back_when_its_worker_is_gone(claim, expected):
    facts = {"state": "", "problem": "it is torn", "run_id": 3}

    assert actions(**facts, run_state=RunState.RUNNING, run_claim=claim) == expected
    assert actions(**facts, run_state=RunState.PENDING) == ["report"]
    assert actions(**facts, run_state=RunState.RUNNING, run_claim=claim, lease=ALIVE) == ["report"]


def test_a_workflow_that_was_never_written_is_forgotten_only_when_its_creator_is_gone():
    assert plan(state="", is_unwritten=True, lease=ALIVE) == [("leave", "worker 7@here is creating it")]
    assert plan(state="", is_unwritten=True, lease=DEAD) == [
        ("forget", "it has no document, and its owner worker 7@here is dead")
    ]


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_a_workflow_that_is_over_gives_its_issue_back(state):
    assert plan(state=state, has_issue=True) == [("free_issue", f"it is {state}, and still has its issue")]


@pytest.mark.parametrize("state", ["paused", "failed"])
def test_a_parked_workflow_keeps_its_issue(state):
    assert actions(state=state, has_issue=True) == ["leave"]


# --- runs that are of no workflow ------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [DEAD, OVER])
def test_a_delivery_whose_worker_is_gone_goes_back_to_the_queue(claim):
    facts = {"state": "", "is_errand": True, "run_id": 1}

    assert actions(run_state=RunState.RUNNING, run_claim=claim, **facts) == ["requeue"]


@pytest.mark.parametrize(("state", "claim"), [(RunState.PENDING, Claim()), (RunState.RUNNING, ALIVE)])
def test_a_delivery_that_waits_or_is_worked_on_is_left_alone(state, claim):
    """
    It has no document, and nobody has to look at that.
    """
    result = plan(state="", is_errand=True, run_id=1, run_state=state, run_claim=claim)

    assert result == [("leave", "nothing is wrong")]
