"""Recovery that is killed anywhere and done again comes to the same end, and what it cannot do it leaves alone."""

from __future__ import annotations

from collections import Counter

import pytest

from adws.adw_modules.errors import DatabaseUnavailable, StateCorrupt
from adws.adw_modules.process import tree
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import DELIVERY, NewRun, RunState
from adws.adw_modules.recovery.plan import Mode, Policy, RecoveryAction
from tests.unit.conduct_cases import ADW_ID, FAR_AWAY, OTHER, Home, always


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


def outcome(home) -> tuple[object, ...]:
    """What a recovery of one crash is to come to."""
    plan = home.record("plan")
    return home.run().state, home.state(), plan.status, plan.attempts_used, home.runs.page()[0].losses


# --- killed and done again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["take_all", "release_in"])
def test_a_recovery_that_dies_at_the_database_is_done_again(home, monkeypatch, call):
    home.create()
    home.crash()
    with monkeypatch.context() as patch:
        patch.setattr(home.parts.leases, call, always(DatabaseUnavailable("gone")))
        with pytest.raises(DatabaseUnavailable):
            home.recovery().recover()
    home.clock.advance(31.0)  # the lease of the one that died here is over

    home.recovery().recover()

    assert outcome(home) == (RunState.PENDING, "planning", "interrupted", 1, 1)
    assert Counter(home.events("attempt_interrupted")) == {"attempt_interrupted": 1}


def test_a_recovery_that_dies_before_the_document_is_written_is_done_again(home, monkeypatch):
    home.create()
    home.crash()
    with monkeypatch.context() as patch:
        patch.setattr(home.store, "save", always(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            home.recovery().recover()
    assert home.run().state is RunState.RUNNING
    home.clock.advance(31.0)

    home.recovery().recover()

    assert outcome(home) == (RunState.PENDING, "planning", "interrupted", 1, 1)


def test_a_takeover_that_was_not_written_keeps_its_lease(home, monkeypatch):
    """Whoever comes after has to know that there is something to take over."""
    home.create()
    dead = home.crash()
    recovery = home.recovery()
    plan = recovery.planned()
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "planned", lambda **_: plan)
        patch.setattr(home.store, "load", always(StateCorrupt("adw_state.json", "it is torn")))
        assert recovery.recover().steps == ()

    kept = home.parts.leases.read(ADW_ID)
    assert (kept.owner is not None, kept.owner != dead) == (True, True)
    home.clock.advance(31.0)
    home.recovery().recover()
    assert home.events("lease_taken_over") == ["lease_taken_over"]
    assert home.parts.leases.read(ADW_ID).owner is None


def test_proof_of_death_is_about_the_owner_it_was_found_for(home, monkeypatch):
    """Somebody else took it over since the plan, and was silent for too long: nobody has proven that one dead."""
    home.create()
    home.crash()
    recovery = home.recovery()
    plan = recovery.planned()
    home.hold()
    home.clock.advance(31.0)
    shut: list[int] = []
    monkeypatch.setattr(recovery, "planned", lambda **_: plan)
    monkeypatch.setattr(home.store, "revoke_writers", lambda _adw_id, *, fence: shut.append(fence))

    recovery.recover()

    (fence,) = shut
    taken = [event for event in home.parts.events.of_workflow(ADW_ID) if event.event_type == "lease_taken_over"]
    assert (fence, taken[-1].data["verdict"]) == (home.parts.leases.read(ADW_ID).fence - 1, "unknown")


# --- policies, done --------------------------------------------------------------------------------------------


def test_work_that_died_between_two_phases_fails_at_the_next_one(home):
    home.create()
    run = home.runs.begin(home.claim())
    home.parts.processes.kill(home.parts.processes.me("worker"))
    home.clock.advance(31.0)

    home.recovery().recover(policy=Policy(fails_running=True))

    assert (home.runs.get(run.run_id).state, home.state(), home.record("plan").status) == (
        RunState.FAILED,
        "failed",
        "failed",
    )


def test_a_delivery_that_every_worker_dies_of_has_failed_and_says_so_to_its_sender(home):
    told: list[tuple[int, str]] = []

    class Errand:
        def give_up(self, run, why):
            told.append((run.run_id, why))

    run = home.runs.enqueue(NewRun(adw_id="d0000001", kind=DELIVERY))
    me = home.parts.processes.me("worker")
    home.runs.claim(me, ttl_seconds=30.0)
    home.parts.processes.kill(me)

    home.recovery(job_handler={DELIVERY: Errand()}.get).recover(policy=Policy(max_losses=1))

    assert home.runs.get(run.run_id).state is RunState.FAILED
    assert [run_id for run_id, _ in told] == [run.run_id]


# --- stops -----------------------------------------------------------------------------------------------------


def stopping(home) -> None:
    home.create()
    home.crash()
    home.runs.ask_to_stop(home.run().run_id, reason="enough")


def test_a_stop_parks_the_workflow_once_its_processes_are_gone(home):
    stopping(home)
    home.give_process()
    home.requests.ask(ADW_ID, "hint", payload={"text": "use the cache"})
    stubborn = ProcessEnding(evidence="pid 7 runs", left=("7 (agent)",))
    assert home.recovery(end_process=lambda _process: stubborn).recover().runs == (), "it waits for them"
    assert home.run().state is RunState.STOPPING
    home.clock.advance(31.0)

    result = home.recovery().recover()

    assert (result.marked_stopped, home.run().state, home.run().reason) == (1, RunState.STOPPED, "enough")
    assert (home.state(), home.document().pause_reason) == ("paused", "enough")
    assert len(home.ended) == 1
    assert home.recovery().recover().steps == (), "nobody goes on with it"
    assert [request.kind for request in home.requests.open_for(ADW_ID)] == ["hint"], "for the next owner"


def test_what_a_worker_was_to_stop_when_it_died_is_stopped_and_the_request_is_answered(home):
    """Nobody works on it again: what was wanted stands on the run, also when nobody saw its worker die."""
    home.create()
    home.crash(is_proven=False)
    asked = home.control.stop(ADW_ID, by="kim", reason="enough")
    assert (home.run().state, home.run().reason) == (RunState.STOPPING, "enough")
    assert home.recovery().recover().runs == (), "its lease runs"
    home.clock.advance(31.0)

    result = home.recovery().recover()

    assert (result.marked_stopped, result.reset_to_pending) == (1, 0)
    assert (home.state(), home.run().state) == ("paused", RunState.STOPPED)
    assert home.requests.get(asked.request.request_id).outcome == "paused: enough"
    assert home.runner.calls == []


def closed_far_away(home, *, is_parked: bool = False) -> None:
    """An attempt whose process is on this machine was closed by another one, which could not look."""
    home.create()
    home.crash()
    home.give_process()
    home.recovery(end_process=lambda _process: FAR_AWAY).recover()
    if is_parked:
        home.control.pause(ADW_ID, by="kim")
    assert "in_doubt" in home.record("plan").attempts[0].process


def test_what_an_attempt_left_here_that_was_closed_elsewhere_is_ended(home):
    closed_far_away(home, is_parked=True)

    result = home.recovery().recover(every_document=True)

    assert [step.action.value for step in result.steps] == ["end_left"]
    assert "attempt 1 of plan" in result.steps[0].why
    assert len(home.ended) >= 1
    assert "in_doubt" not in home.record("plan").attempts[0].process
    assert home.events("left_processes_ended") == ["left_processes_ended"]
    assert home.recovery().recover(every_document=True).steps == ()


def test_it_is_ended_also_while_another_machine_works_on_the_workflow(home):
    """Only that it was is written down later."""
    closed_far_away(home)
    home.hold()

    home.recovery().recover()

    assert len(home.ended) == 1
    assert "in_doubt" in home.record("plan").attempts[0].process


def test_what_cannot_be_looked_at_from_here_is_left_to_who_can(home):
    closed_far_away(home)
    record = tree.recorded(home.record("plan").attempts[0].process)
    home.parts.processes.lose_sight_of(record.identity)

    assert [step.action for step in home.recovery().plan() if step.action is RecoveryAction.END_LEFT] == []


def test_a_plan_is_applied_later_and_what_moved_on_since_is_left_alone(home):
    for adw_id, issue in ((ADW_ID, 1), (OTHER, 2)):
        home.create(adw_id, issue=issue)
        home.crash(adw_id)
    recovery = home.recovery()
    plan = recovery.planned()
    home.recovery().recover()
    again = home.runs.claim(home.parts.processes.me("worker"), ttl_seconds=30.0, run_id=home.run(OTHER).run_id)

    result = recovery.apply(plan, Mode.STALE)

    assert (result.runs, home.run(OTHER).token, home.run(OTHER).state) == ((), again.token, RunState.CLAIMED)
    assert home.run().losses == 1
