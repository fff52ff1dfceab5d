"""Modes, policies and the threshold of recovery: proof counts in each of them, and age decides only about the rest."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.plan import (
    RESTARTED,
    STATE_UNKNOWN,
    Claim,
    Evidence,
    Mode,
    Policy,
    Proof,
    RecoveryAction,
    RecoveryResult,
    RecoveryStep,
    mode_of,
    plan_recovery,
)
from adws.testing import START

OWNER = "worker 7@here"
ALIVE = Claim(owner=OWNER, verdict=Verdict.ALIVE, seconds_left=20.0)
UNSEEN = Claim(owner=OWNER, verdict=Verdict.UNKNOWN, seconds_left=20.0)
DEAD = Claim(owner=OWNER, verdict=Verdict.DEAD, seconds_left=20.0)
OVER = Claim(owner=OWNER, verdict=Verdict.UNKNOWN, seconds_left=-5.0)


def ago(seconds: float) -> str:
    return timestamps.to_text(START - timedelta(seconds=seconds))


def unreadable(age: float) -> Claim:
    return Claim(owner="an owner whose record cannot be read", seconds_left=20.0, is_readable=False, since=ago(age))


def plan(mode: Mode = Mode.STALE, policy: Policy | None = None, **facts):
    fields = {"adw_id": "1a2b3c4d", "state": "building", "run_id": 1, "run_state": RunState.RUNNING, **facts}
    return plan_recovery([Evidence(**fields)], START, mode, policy=policy)


def actions(*args, **facts) -> list[str]:
    return [step.action.value for step in plan(*args, **facts)]


# --- modes -----------------------------------------------------------------------------------------------------


def test_an_unknown_mode_is_refused_by_naming_those_there_are():
    assert [mode_of(mode.value) for mode in Mode] == list(Mode)
    with pytest.raises(UsageError, match="'some' is no mode of recovery; use one of none, stale, all"):
        mode_of("some")


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("claim", [DEAD, OVER])
def test_what_is_proven_needs_no_mode_and_no_age(mode, claim):
    assert actions(mode, run_claim=claim) == ["requeue"]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("claim", [ALIVE, UNSEEN])
def test_no_mode_takes_from_who_lives_or_may_live(mode, claim):
    assert actions(mode, run_claim=claim) == ["leave"]
    assert actions(mode, lease=claim, run_claim=DEAD) == ["leave"]


def test_force_takes_from_the_living_in_mode_all_only():
    forced = Policy(is_forced=True)

    assert actions(Mode.STALE, forced, run_claim=ALIVE) == ["leave"]
    (step,) = plan(Mode.ALL, forced, run_claim=ALIVE)
    assert (step.action, step.why) == (RecoveryAction.REQUEUE, "run 1: it is taken by force from worker 7@here (alive)")


@pytest.mark.parametrize(("age", "expected"), [(299.0, "leave"), (300.0, "requeue"), (9999.0, "requeue")])
def test_age_decides_about_an_owner_that_cannot_be_read(age, expected):
    assert actions(run_claim=unreadable(age)) == [expected]
    assert actions(lease=unreadable(age), run_claim=DEAD) == [expected]
    assert actions(Mode.ALL, run_claim=unreadable(age)) == ["requeue"]


def test_a_plan_says_how_long_it_still_waits():
    assert plan(run_claim=unreadable(100.0))[0].why == (
        "nobody can tell whether an owner whose record cannot be read lives: it is taken back in 200 s"
    )
    assert plan(run_claim=Claim(since=ago(100.0)))[0].why == (
        "it has a worker, and nobody says who: it is taken back in 200 s"
    )
    assert "nobody can tell whether" in plan(run_claim=unreadable(400.0))[0].why


@pytest.mark.parametrize("since", ["", "no time at all"])
def test_a_claim_whose_age_nobody_knows_is_not_young(since):
    assert actions(run_claim=Claim(since=since)) == ["requeue"]


def test_without_a_moment_nothing_is_young():
    row = Evidence(adw_id="1a2b3c4d", state="building", run_id=1, run_state=RunState.RUNNING, run_claim=unreadable(0.0))

    assert [step.action for step in plan_recovery([row])] == [RecoveryAction.REQUEUE]


def test_what_was_never_written_waits_for_a_creator_that_cannot_be_read():
    facts = {"state": "", "is_unwritten": True, "run_id": None, "run_state": None}

    assert actions(lease=unreadable(10.0), **facts) == ["leave"]
    assert actions(lease=unreadable(400.0), **facts) == ["forget"]


# --- policies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "said"), [(Mode.STALE, RESTARTED), (Mode.ALL, STATE_UNKNOWN)])
def test_running_work_fails_by_the_policy_fail(mode, said):
    (step,) = plan(mode, Policy(fails_running=True), run_claim=DEAD, open_attempt="build")

    assert (step.action, step.why, step.after) == (RecoveryAction.FAIL, said, RunState.FAILED)


def test_the_policy_fail_is_about_running_work_only():
    fail = Policy(fails_running=True)

    assert actions(policy=fail, run_claim=DEAD, run_state=RunState.CLAIMED) == ["requeue"]
    assert actions(policy=fail, run_claim=DEAD, is_rolling_back=True, state="abandoned") == ["requeue"]
    assert actions(policy=fail, run_claim=DEAD, is_errand=True, state="") == ["requeue"]


@pytest.mark.parametrize("state", [RunState.CLAIMED, RunState.RUNNING])
def test_a_run_is_given_up_when_its_workers_have_vanished_too_often(state):
    assert actions(run_claim=DEAD, run_state=state, losses=3) == ["requeue"]
    (step,) = plan(run_claim=DEAD, run_state=state, losses=4)

    assert (step.action, step.after) == (RecoveryAction.BURY, RunState.DEAD)
    assert step.why == "5 workers vanished with run 1, the last time because its owner worker 7@here is dead"
    assert actions(policy=Policy(max_losses=1), run_claim=DEAD, run_state=state) == ["bury"]


def test_an_errand_that_every_worker_dies_of_has_failed():
    (step,) = plan(run_claim=DEAD, is_errand=True, state="", losses=4)

    assert (step.action, step.after) == (RecoveryAction.BURY, RunState.FAILED)


# --- stops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [None, Verdict.DEAD, Verdict.ALIVE])
def test_a_stop_is_done_as_soon_as_the_worker_is_gone_and_its_processes_can_be_looked_at(process):
    (step,) = plan(run_claim=DEAD, run_state=RunState.STOPPING, open_attempt="build", process=process, losses=9)

    assert (step.action, step.after) == (RecoveryAction.STOP, RunState.STOPPED)


def test_a_stop_that_cannot_be_confirmed_waits_for_the_threshold_and_then_says_so():
    facts = {"run_state": RunState.STOPPING, "open_attempt": "build", "process": Verdict.UNKNOWN}
    young, old = Claim(owner=OWNER, since=ago(100.0)), Claim(owner=OWNER, since=ago(400.0))

    (kept,) = plan(run_claim=young, **facts)
    assert (kept.action, kept.why.endswith("cannot be told from here; it counts as stopped in 200 s")) == (
        RecoveryAction.LEAVE,
        True,
    )
    (step,) = plan(run_claim=old, **facts)
    assert (step.action, step.why.startswith("stop unconfirmed: run 1: ")) == (RecoveryAction.STOP, True)
    assert actions(Mode.ALL, run_claim=young, **facts) == ["stop"]


def test_an_errand_that_was_to_stop_is_stopped():
    assert actions(run_claim=DEAD, run_state=RunState.STOPPING, is_errand=True, state="") == ["stop"]


def test_a_stop_of_a_document_that_nobody_can_read_ends_its_run():
    steps = plan(run_claim=DEAD, run_state=RunState.STOPPING, state="", problem="torn")

    assert [(step.action, step.after) for step in steps] == [
        (RecoveryAction.REPORT, None),
        (RecoveryAction.REQUEUE, RunState.STOPPED),
    ]


# --- attempts that are used up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "after"),
    [
        ({"run_state": RunState.RUNNING, "run_claim": DEAD}, RunState.FAILED),
        ({"run_state": RunState.PENDING}, RunState.FAILED),
        ({"run_id": None, "run_state": None}, None),
    ],
)
def test_what_has_no_attempt_left_has_failed(run, after):
    (step,) = plan(exhausted_phase="build", **run)

    assert (step.action, step.after, step.why) == (RecoveryAction.FAIL, after, "the attempts of build are used up")


def test_what_has_no_attempt_left_is_left_to_the_attempt_that_runs():
    facts = {"exhausted_phase": "build", "open_attempt": "build", "run_claim": DEAD}

    assert actions(**facts) == ["interrupt", "requeue"]


# --- evidence and results --------------------------------------------------------------------------------------


def test_every_step_says_what_it_was_decided_by():
    (step,) = plan(run_claim=Claim(owner=OWNER, verdict=Verdict.DEAD, seconds_left=20.0, since=ago(7.0)), losses=2)

    assert step.to_json() == {
        "adw_id": "1a2b3c4d",
        "action": "requeue",
        "why": "run 1: its owner worker 7@here is dead",
        "run_id": 1,
        "from": "running",
        "to": "pending",
        "evidence": {
            "owner": OWNER,
            "proof": "dead",
            "verdict": "dead",
            "lease_seconds_left": 20.0,
            "age_seconds": 7.0,
            "losses": 2,
        },
    }


@pytest.mark.parametrize(
    ("claim", "proof"),
    [
        (Claim(), Proof.FREE),
        (ALIVE, Proof.LIVE),
        (UNSEEN, Proof.LIVE),
        (DEAD, Proof.DEAD),
        (OVER, Proof.OVER),
        (unreadable(0.0), Proof.NONE),
    ],
)
def test_a_claim_is_judged_by_proof(claim, proof):
    assert claim.proof is proof
    assert claim.why_over()


def test_a_result_counts_what_became_of_runs_under_the_same_names_in_every_mode():
    ends = (RunState.PENDING, RunState.FAILED, RunState.DEAD, RunState.STOPPED, RunState.PENDING)
    runs = tuple(
        RecoveryStep(
            adw_id="a",
            action=RecoveryAction.REQUEUE,
            why="x",
            run_id=9 - number,
            before=RunState.RUNNING,
            after=end,
            evidence={"proof": "dead"},
        )
        for number, end in enumerate(ends)
    )

    result = RecoveryResult(mode=Mode.ALL, runs=runs)

    assert (result.reset_to_pending, result.marked_failed, result.marked_stopped) == (2, 2, 1)
    assert [result[key] for key in ("reset_to_pending", "marked_failed", "marked_stopped")] == [2, 2, 1]
    with pytest.raises(KeyError):
        result["claimed"]
    assert result.to_json()["run_ids"] == {"reset_to_pending": [5, 9], "marked_failed": [7, 8], "marked_stopped": [6]}
    assert result.metrics() == {("dead", "all", "requeue"): 5}
    assert set(RecoveryResult(mode=Mode.NONE).to_json()) == set(result.to_json())
