"""Why runs wait, and when nobody will ever do them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces import RegisteredWorker, Verdict
from adws.adw_modules.queue.model import Run, RunLimits, RunState
from adws.adw_modules.queue.workers import Patience, RunnerState, due_seconds, plan_unmatched, state_of, why_held
from adws.adw_modules.workflow.requirements import Capabilities, Requirements
from tests.contracts.worlds import MOMENT, make_owner

NOW = timestamps.parse(MOMENT)
GPU = Requirements(tags=frozenset({"gpu"}))
PATIENCE = Patience(no_match=300.0, lease=30.0)
LIMITS = RunLimits(scopes={"workflow": {"sdlc": 2}, "provider": {"anthropic": 1}})


def ago(seconds: float) -> str:
    return timestamps.to_text(NOW - timedelta(seconds=seconds))


def run(**fields) -> Run:
    usual = {
        "run_id": 7,
        "adw_id": "1a2b3c4d",
        "kind": "start",
        "state": RunState.PENDING,
        "priority": 0,
        "not_before": "",
        "attempts": 0,
        "token": 0,
        "owner": "",
        "seconds_left": 0.0,
        "reason": "",
        "payload": {},
        "asked_by": "",
        "created_at": ago(1000),
        "updated_at": ago(1000),
        "demands": GPU,
    }
    return Run(**{**usual, **fields})


def runner(**fields) -> RegisteredWorker:
    usual = {
        "runner_id": "r",
        "owner": make_owner("one"),
        "tags": frozenset({"gpu"}),
        "concurrency": 2,
        "busy": 2,
        "version": "1",
        "is_draining": False,
        "started_at": MOMENT,
        "heartbeat_at": MOMENT,
        "silent_seconds": 1.0,
    }
    return RegisteredWorker(**{**usual, **fields})


def planned(waiting: Run, *runners: RegisteredWorker, patience: Patience = PATIENCE) -> bool:
    return bool(plan_unmatched([waiting], runners, now=NOW, patience=patience))


# --- runners ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "verdict", "state"),
    [
        ({}, Verdict.ALIVE, RunnerState.ONLINE),
        ({"is_draining": True}, Verdict.UNKNOWN, RunnerState.DRAINING),
        ({"silent_seconds": 60.0}, Verdict.UNKNOWN, RunnerState.ONLINE),
        ({"silent_seconds": 60.1}, Verdict.UNKNOWN, RunnerState.SILENT),
        ({"silent_seconds": 60.1, "is_draining": True}, Verdict.ALIVE, RunnerState.SILENT),
        ({}, Verdict.DEAD, RunnerState.GONE),
        ({"concurrency": 0}, Verdict.ALIVE, RunnerState.GONE),
    ],
)
def test_a_runner_is_online_until_it_drains_is_silent_for_two_leases_or_is_gone(fields, verdict, state):
    assert state_of(runner(**fields), verdict=verdict, lease_seconds=30.0) is state


# --- nobody ----------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_can_do_is_given_up_with_a_reason_that_names_the_demand():
    (result,) = plan_unmatched([run()], [runner(tags=frozenset())], now=NOW, patience=PATIENCE)

    assert result.run.run_id == 7
    assert result.why.startswith("it demands tag gpu, and for 300 s there was no worker that has that")


@pytest.mark.parametrize(
    "fields",
    [
        {"demands": Requirements()},
        {"updated_at": ago(299)},
        {"not_before": ago(299)},
        {"not_before": ago(-60)},
        {"state": RunState.CLAIMED},
        {"state": RunState.STOPPED},
    ],
    ids=["demands nothing", "given back lately", "due lately", "not due", "with a worker", "over"],
)
def test_what_is_not_due_for_long_enough_or_demands_nothing_is_left_alone(fields):
    assert not planned(run(**fields))


def test_it_counts_from_the_moment_the_run_became_due():
    assert planned(run(not_before=ago(300)))
    assert due_seconds(run(not_before=ago(10)), now=NOW) == 10.0
    assert due_seconds(run(not_before=ago(5000)), now=NOW) == 1000.0


@pytest.mark.parametrize(
    ("fields", "is_given_up"),
    [
        ({}, False),
        ({"is_draining": True}, False),
        ({"silent_seconds": 300.0}, False),
        ({"silent_seconds": 300.1}, True),
        ({"concurrency": 0, "silent_seconds": 299.0}, False),
        ({"concurrency": 0, "silent_seconds": 301.0}, True),
        ({"tags": frozenset({"big"})}, True),
    ],
    ids=["busy", "draining", "silent", "silent for longer", "left lately", "left for longer", "another"],
)
def test_nobody_is_who_could_do_it_and_was_not_heard_of_for_as_long(fields, is_given_up):
    """
    A worker that is restarted is away for a moment: what waits for it is not failed then.
    """
    assert planned(run(), runner(**fields)) is is_given_up


def test_one_that_lives_counts_between_two_heartbeats_however_short_the_patience():
    short = Patience(no_match=1.0, lease=30.0)

    assert not planned(run(), runner(silent_seconds=50.0), patience=short)
    assert planned(run(), runner(silent_seconds=61.0), patience=short)
    assert planned(run(), runner(silent_seconds=5.0, concurrency=0), patience=short)


# --- what is said ----------------------------------------------------------------------------------------------


def test_what_anybody_may_do_is_held_by_nothing():
    assert why_held(run(demands=Requirements()), offers=(), full=(), limits=LIMITS) == ""
    assert why_held(run(), offers=[Capabilities(host="a", tags=GPU.tags)], full=("workflow:x",), limits=LIMITS) == ""


def test_a_demand_that_nobody_meets_is_named():
    assert (
        why_held(run(), offers=[Capabilities(host="a")], full=(), limits=LIMITS)
        == "no worker that is there has tag gpu"
    )


def test_limits_that_are_reached_are_named():
    labels = frozenset({"workflow:sdlc", "provider:anthropic", "repository:a/b"})
    held = why_held(
        run(demands=Requirements(), labels=labels),
        offers=(),
        full=["workflow:sdlc", "provider:anthropic"],
        limits=LIMITS,
    )

    assert held == ("the limit of 1 for provider anthropic is reached; the limit of 2 for workflow sdlc is reached")
