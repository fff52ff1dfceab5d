"""Recovery plans from evidence: proof of death or a lease that is over decides, age only where nothing is proven."""

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
    RecoveryAction,
    RecoveryResult,
    RecoveryStep,
    mode_of,
    plan_recovery,
)
from adws.testing import START

OWNER = "worker 7@here"
ALIVE = Claim(owner=OWNER, verdict=Verdict.ALIVE, seconds_left=20.0)
UNSEEN = Claim(owner=OWNER, verdict=Verdict.UNKNOWN, seconds_left=0.5)
DEAD = Claim(owner=OWNER, verdict=Verdict.DEAD, seconds_left=29.0)
OVER = Claim(owner=OWNER, verdict=Verdict.ALIVE, seconds_left=-12.0)
PENDING = {"run_id": 1, "run_state": RunState.PENDING}
CLAIMED = {"run_id": 1, "run_state": RunState.CLAIMED}
RUNNING = {"run_id": 1, "run_state": RunState.RUNNING}
STOPPING = {"run_id": 1, "run_state": RunState.STOPPING}
ERRAND = {"state": "", "is_errand": True}
TORN = {"state": "", "problem": "it is torn"}
UNWRITTEN = {"state": "", "is_unwritten": True}
ROLLBACK = {"state": "abandoned", "is_rolling_back": True}
NOTHING = ("leave", "nothing is wrong")
LOST = "run 1: its owner worker 7@here is dead"


def ago(seconds: float) -> str:
    return timestamps.to_text(START - timedelta(seconds=seconds))


def unreadable(age: float) -> Claim:
    return Claim(owner="an owner whose record cannot be read", seconds_left=20.0, is_readable=False, since=ago(age))


def plan(mode: Mode = Mode.STALE, policy: Policy | None = None, **facts) -> tuple[RecoveryStep, ...]:
    row = Evidence(**{"adw_id": "1a2b3c4d", "state": "building", "revision": 9, **facts})
    return plan_recovery([row], START, mode, policy=policy)


def actions(*args, **facts) -> list[str]:
    return [step.action.value for step in plan(*args, **facts)]


@pytest.mark.parametrize(
    ("facts", "steps"),
    [
        # workflows that somebody works on, or that wait
        (PENDING, [NOTHING]),
        ({**CLAIMED, "run_claim": UNSEEN}, [("leave", f"{OWNER} has its run")]),
        ({"lease": DEAD, "open_attempt": "build"}, ["interrupt", "enqueue"]),
        ({"state": "paused", **RUNNING, "run_claim": ALIVE}, [NOTHING]),
        # runs whose worker is gone, and runs that nobody needs
        ({**CLAIMED, "run_claim": OVER}, ["requeue"]),
        ({**RUNNING, "run_claim": OVER}, ["requeue"]),
        ({"state": "paused", **PENDING}, [("end_run", "it is paused, but run 1 still waits")]),
        ({"state": "paused", **RUNNING, "run_claim": DEAD}, [("end_run", "it is paused, but run 1 still waits")]),
        # rollbacks: finishing one has to be asked for
        ({"is_rolling_back": True, "open_attempt": "build"}, [NOTHING]),
        ({**ROLLBACK, **RUNNING, "run_claim": DEAD}, ["requeue"]),
        ({**ROLLBACK, **RUNNING, "run_claim": ALIVE}, ["leave"]),
        ({**ROLLBACK, **PENDING}, ["leave"]),
        ({"state": "rolled_back", "is_rolling_back": True, **PENDING}, ["end_run"]),
        # documents and their copies
        ({**TORN, "copied_revision": 1}, [("report", "it is torn")]),
        ({"state": ""}, [("report", "its document has no state")]),
        ({**TORN, **RUNNING, "run_claim": DEAD}, ["report", "requeue"]),
        ({**TORN, **RUNNING, "run_claim": ALIVE}, ["report"]),
        ({**TORN, **RUNNING, "run_claim": DEAD, "lease": ALIVE}, ["report"]),
        ({**TORN, **PENDING}, ["report"]),
        (
            {"copied_revision": 8},
            [
                ("project", "the copy is at revision 8, the document at 9"),
                ("enqueue", "it is building and no run waits for it"),
            ],
        ),
        ({"copied_revision": 9, **PENDING}, [NOTHING]),
        ({**UNWRITTEN, "lease": ALIVE}, [("leave", f"{OWNER} is creating it")]),
        ({**UNWRITTEN, "lease": DEAD}, [("forget", f"it has no document, and its owner {OWNER} is dead")]),
        (UNWRITTEN, ["forget"]),
        # issues
        ({"state": "completed", "has_issue": True}, [("free_issue", "it is completed, and still has its issue")]),
        ({"state": "abandoned", "has_issue": True}, ["free_issue"]),
        ({"state": "rolled_back", "has_issue": True}, ["free_issue"]),
        ({"state": "paused", "has_issue": True}, ["leave"]),
        ({"state": "failed", "has_issue": True}, ["leave"]),
        # runs that are of no workflow
        ({**ERRAND, **PENDING}, [NOTHING]),
        ({**ERRAND, **RUNNING, "run_claim": ALIVE}, [NOTHING]),
        ({**ERRAND, **RUNNING, "run_claim": DEAD}, [("requeue", LOST)]),
        ({**ERRAND, **RUNNING, "run_claim": OVER}, ["requeue"]),
        ({**ERRAND, **STOPPING, "run_claim": DEAD}, ["stop"]),
        # attempts that are used up
        ({"exhausted_phase": "build", "open_attempt": "build", **RUNNING, "run_claim": DEAD}, ["interrupt", "requeue"]),
    ],
)
def test_what_is_done_about_what_is_known(facts, steps):
    planned = [(step.action.value, step.why) for step in plan(**facts)]

    assert [
        step if isinstance(expected, tuple) else step[0] for step, expected in zip(planned, steps, strict=True)
    ] == (steps)


@pytest.mark.parametrize("lease", [ALIVE, UNSEEN])
def test_nobody_is_disturbed_who_works_or_may_work(lease):
    (step,) = plan(lease=lease, open_attempt="build", **RUNNING, run_claim=DEAD)

    assert (step.action.value, step.why) == ("leave", f"{lease.owner} works on it ({lease.verdict.value})")


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        (DEAD, f"build was cut off: its owner {OWNER} is dead"),
        (OVER, f"build was cut off: the lease of {OWNER} is over since 12 s"),
        (Claim(), "build was cut off: nobody owns it"),
    ],
)
def test_an_attempt_whose_worker_is_gone_is_interrupted_however_young_it_is(lease, why):
    steps = plan(lease=lease, open_attempt="build", **RUNNING, run_claim=DEAD)

    assert [(step.action.value, step.why) for step in steps] == [("interrupt", why), ("requeue", LOST)]


# --- modes -----------------------------------------------------------------------------------------------------


def test_an_unknown_mode_is_refused_by_naming_those_there_are():
    assert [mode_of(mode.value) for mode in Mode] == list(Mode)
    with pytest.raises(UsageError, match="'some' is no mode of recovery; use one of none, stale, all"):
        mode_of("some")


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_proven_needs_no_mode_and_no_age(mode):
    for claim in (DEAD, OVER):
        assert actions(mode, **RUNNING, run_claim=claim) == ["requeue"]
    for claim in (ALIVE, UNSEEN):
        assert actions(mode, **RUNNING, run_claim=claim) == ["leave"]
        assert actions(mode, **RUNNING, lease=claim, run_claim=DEAD) == ["leave"]


def test_force_takes_from_the_living_in_mode_all_only():
    forced = Policy(is_forced=True)

    assert actions(Mode.STALE, forced, **RUNNING, run_claim=ALIVE) == ["leave"]
    (step,) = plan(Mode.ALL, forced, **RUNNING, run_claim=ALIVE)
    assert (step.action, step.why) == (RecoveryAction.REQUEUE, f"run 1: it is taken by force from {OWNER} (alive)")


@pytest.mark.parametrize(("age", "expected"), [(299.0, "leave"), (300.0, "requeue"), (9999.0, "requeue")])
def test_age_decides_about_an_owner_that_cannot_be_read(age, expected):
    assert actions(**RUNNING, run_claim=unreadable(age)) == [expected]
    assert actions(**RUNNING, lease=unreadable(age), run_claim=DEAD) == [expected]
    assert actions(Mode.ALL, **RUNNING, run_claim=unreadable(age)) == ["requeue"]
    assert actions(**UNWRITTEN, lease=unreadable(age)) == ["leave" if expected == "leave" else "forget"]


def test_a_plan_says_how_long_it_still_waits():
    assert plan(**RUNNING, run_claim=unreadable(100.0))[0].why == (
        "nobody can tell whether an owner whose record cannot be read lives: it is reclaimed in 200 s"
    )
    assert plan(**RUNNING, run_claim=Claim(since=ago(100.0)))[0].why == (
        "it has a worker, and nobody says who: it is reclaimed in 200 s"
    )


@pytest.mark.parametrize("since", ["", "no time at all"])
def test_a_claim_whose_age_nobody_knows_is_not_young(since):
    assert actions(**RUNNING, run_claim=Claim(since=since)) == ["requeue"]
    row = Evidence(adw_id="1a2b3c4d", state="building", **RUNNING, run_claim=unreadable(0.0))
    assert [step.action for step in plan_recovery([row])] == [RecoveryAction.REQUEUE], "without a moment nothing is"


# --- policies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "why"), [(Mode.STALE, RESTARTED), (Mode.ALL, STATE_UNKNOWN)])
def test_running_work_fails_by_the_policy_fail_and_nothing_else_does(mode, why):
    fail = Policy(fails_running=True)
    (step,) = plan(mode, fail, **RUNNING, run_claim=DEAD, open_attempt="build")

    assert (step.action, step.why, step.after) == (RecoveryAction.FAIL, why, RunState.FAILED)
    assert actions(mode, fail, **CLAIMED, run_claim=DEAD) == ["requeue"]
    assert actions(mode, fail, **RUNNING, run_claim=DEAD, **ROLLBACK) == ["requeue"]
    assert actions(mode, fail, **RUNNING, run_claim=DEAD, **ERRAND) == ["requeue"]


@pytest.mark.parametrize("run", [CLAIMED, RUNNING])
def test_a_run_is_given_up_when_its_workers_have_vanished_too_often(run):
    assert actions(**run, run_claim=DEAD, losses=3) == ["requeue"]
    (step,) = plan(**run, run_claim=DEAD, losses=4)

    assert (step.action, step.after) == (RecoveryAction.BURY, RunState.DEAD)
    assert step.why == f"5 workers vanished with run 1, the last time because its owner {OWNER} is dead"
    assert actions(policy=Policy(max_losses=1), **run, run_claim=DEAD) == ["bury"]
    (errand,) = plan(**run, **ERRAND, run_claim=DEAD, losses=4)
    assert (errand.action, errand.after) == (RecoveryAction.BURY, RunState.FAILED)


@pytest.mark.parametrize(
    ("run", "after"),
    [({**RUNNING, "run_claim": DEAD}, RunState.FAILED), (PENDING, RunState.FAILED), ({}, None)],
)
def test_what_has_no_attempt_left_has_failed(run, after):
    (step,) = plan(exhausted_phase="build", **run)

    assert (step.action, step.after, step.why) == (RecoveryAction.FAIL, after, "the attempts of build are used up")


# --- stops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [None, Verdict.DEAD, Verdict.ALIVE])
def test_a_stop_is_done_as_soon_as_the_worker_is_gone_and_its_processes_can_be_checked(process):
    (step,) = plan(**STOPPING, run_claim=DEAD, open_attempt="build", process=process, losses=9)

    assert (step.action, step.after) == (RecoveryAction.STOP, RunState.STOPPED)


def test_a_stop_that_cannot_be_confirmed_waits_for_the_threshold_and_then_says_so():
    facts = {**STOPPING, "open_attempt": "build", "process": Verdict.UNKNOWN}
    young, old = Claim(owner=OWNER, since=ago(100.0)), Claim(owner=OWNER, since=ago(400.0))

    (kept,) = plan(run_claim=young, **facts)
    assert kept.action is RecoveryAction.LEAVE
    assert kept.why.endswith("cannot be told from here; it counts as stopped in 200 s")
    (step,) = plan(run_claim=old, **facts)
    assert (step.action, step.why.startswith("stop unconfirmed: run 1: ")) == (RecoveryAction.STOP, True)
    assert actions(Mode.ALL, run_claim=young, **facts) == ["stop"]


def test_a_stop_of_a_document_that_nobody_can_read_ends_its_run():
    steps = plan(run_claim=DEAD, **STOPPING, **TORN)

    assert [(step.action, step.after) for step in steps] == [
        (RecoveryAction.REPORT, None),
        (RecoveryAction.REQUEUE, RunState.STOPPED),
    ]


# --- evidence and results --------------------------------------------------------------------------------------


def test_every_step_says_what_it_was_decided_by():
    claim = Claim(owner=OWNER, verdict=Verdict.DEAD, seconds_left=20.0, since=ago(7.0))
    (step,) = plan(**RUNNING, run_claim=claim, losses=2)

    assert step.to_json() == {
        "adw_id": "1a2b3c4d",
        "action": "requeue",
        "why": LOST,
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


def test_a_result_counts_what_became_of_runs_under_the_same_names_in_every_mode():
    ends = (RunState.PENDING, RunState.FAILED, RunState.DEAD, RunState.STOPPED, RunState.PENDING)
    requeue = {"adw_id": "a", "action": RecoveryAction.REQUEUE, "why": "x", "evidence": {"proof": "dead"}}
    runs = tuple(RecoveryStep(**requeue, run_id=9 - number, after=end) for number, end in enumerate(ends))

    result = RecoveryResult(mode=Mode.ALL, runs=runs)

    assert (result.reset_to_pending, result.marked_failed, result.marked_stopped) == (2, 2, 1)
    assert [result[key] for key in ("reset_to_pending", "marked_failed", "marked_stopped")] == [2, 2, 1]
    with pytest.raises(KeyError):
        result["claimed"]
    assert result.to_json()["run_ids"] == {"reset_to_pending": [5, 9], "marked_failed": [7, 8], "marked_stopped": [6]}
    assert result.metrics() == {("dead", "all", "requeue"): 5}
    assert set(RecoveryResult(mode=Mode.NONE).to_json()) == set(result.to_json())
