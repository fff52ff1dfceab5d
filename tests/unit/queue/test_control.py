"""What people do to a workflow: by its owner while there is one, else at once."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.worker.control import Applied, Asked
from adws.adw_modules.workflow.requirements import Requirements
from tests.unit.conduct_cases import ADW_ID, BROKEN, DOUBT, FAR_AWAY, Home
from tests.unit.engine_cases import HUMAN, phase, spec_of

ONE_PHASE = spec_of(phase("plan", max_attempts=1))


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


def failed(home, **fields):
    home.runner.add("plan", BROKEN)
    home.create(spec=ONE_PHASE, **fields)
    home.work()
    assert home.state() == "failed"


# --- without an owner ------------------------------------------------------------------------------------------


def test_a_waiting_workflow_is_paused_at_once_and_its_run_with_it(home):
    home.create()

    done = home.control.pause(ADW_ID, by="kim", reason="lunch")

    assert done == Applied(state="paused", message=f"workflow {ADW_ID} is paused")
    assert (home.state(), home.document().pause_reason) == ("paused", "lunch")
    assert (home.run().state, home.run().reason) == (RunState.STOPPED, "lunch")


def test_a_second_pause_says_that_it_is_paused(home):
    home.create()
    home.control.pause(ADW_ID, by="kim", reason="lunch")

    assert "is paused already" in home.control.pause(ADW_ID, by="lee").message
    assert home.document().pause_reason == "lunch"


def test_abandon_frees_the_issue_and_ends_the_run(home):
    home.create()

    done = home.control.abandon(ADW_ID, by="kim")

    assert done.state == "abandoned"
    assert home.parts.locks.all() == ()
    assert home.run().state is RunState.STOPPED


@pytest.mark.parametrize("what", ["pause", "stop", "abandon"])
def test_what_is_over_can_neither_be_paused_nor_abandoned(home, what):
    home.create()
    home.work()

    with pytest.raises(UsageError, match="is completed: there is nothing to"):
        getattr(home.control, what)(ADW_ID, by="kim")


def test_a_pause_after_a_crash_closes_the_attempt_and_ends_its_process_first(home):
    home.create()
    home.crash()

    home.control.pause(ADW_ID, by="kim")

    record = home.record("plan")
    assert (home.state(), record.status, record.attempts_used) == ("paused", "interrupted", 1)
    assert home.run().state is RunState.STOPPING, "the run of a dead worker is confirmed by recovery"
    home.recovery().recover()
    assert home.run().state is RunState.STOPPED


@pytest.mark.parametrize("what", ["pause", "stop", "abandon"])
def test_a_stop_whose_processes_nobody_can_vouch_for_says_so(home, what):
    home.create()
    home.crash()
    home.give_process()
    home.engine_changes["end_process"] = lambda _process: FAR_AWAY

    done = getattr(home.control, what)(ADW_ID, by="kim", reason="enough")

    assert isinstance(done, Applied)
    assert (done.is_confirmed, done.message.endswith(f"; {DOUBT} (enough)")) == (False, True)
    assert home.run().reason == f"{DOUBT} (enough)"
    assert home.document().pause_reason == (None if what == "abandon" else f"{DOUBT} (enough)")


def test_a_stop_that_was_asked_for_before_ends_its_run_with_what_nobody_can_confirm(home):
    home.create()
    home.crash(is_proven=False)
    home.give_process()
    home.engine_changes["end_process"] = lambda _process: FAR_AWAY
    asked = home.control.stop(ADW_ID, by="kim", reason="enough")
    home.clock.advance(31.0)

    asked.again()

    assert (home.run().state, home.run().reason) == (RunState.STOPPED, f"{DOUBT} (enough)")


# --- with an owner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "kind"), [("pause", "pause"), ("stop", "stop"), ("abandon", "abandon")])
def test_a_live_owner_is_asked(home, what, kind):
    home.create()
    owned = home.hold()

    done = getattr(home.control, what)(ADW_ID, by="kim", reason="lunch")

    assert isinstance(done, Asked)
    assert (done.request.kind, done.request.asked_by) == (kind, "kim")
    assert done.request.payload == {"reason": "lunch", "is_urgent": False}
    assert owned.lease.owner.describe() in done.owner
    assert home.state() == "pending", "only its owner writes"
    assert [request.kind for request in home.requests.open_for(ADW_ID)] == [kind]


def begun(home, kind: str = "start") -> None:
    """A worker has begun on the run of a workflow, and owns that."""
    home.create(has_run=False)
    home.runs.enqueue(NewRun(adw_id=ADW_ID, kind=kind))
    home.runs.begin(home.claim())
    home.hold()


def test_a_stop_stands_on_the_run_until_its_worker_confirms_it(home):
    begun(home)

    home.control.stop(ADW_ID, by="kim", reason="enough")
    home.control.stop(ADW_ID, by="lee", reason="enough, I said")

    assert (home.run().state, home.run().reason) == (RunState.STOPPING, "enough")


def test_who_asked_an_owner_that_died_over_it_does_it_himself(home):
    home.create()
    home.crash(is_proven=False)
    asked = home.control.stop(ADW_ID, by="kim", reason="enough")
    assert isinstance(asked.again(), Asked), "its lease runs"
    home.clock.advance(31.0)

    done = asked.again()

    assert isinstance(done, Applied)
    assert (done.state, home.document().pause_reason) == ("paused", "enough")
    assert (home.run().state, home.run().reason) == (RunState.STOPPED, "enough")
    assert home.requests.open_for(ADW_ID) == ()
    assert len(home.answers()) == 1, "it is the same request"


@pytest.mark.parametrize("what", ["pause", "abandon"])
def test_an_owner_that_leaves_before_it_is_asked_leaves_nothing_undone(home, monkeypatch, what):
    """It looked for the last time, then we asked, then it was gone: nobody else would read the request."""
    home.create()
    owned = home.hold()
    ask = home.requests.ask

    def ask_too_late(*args, **keywords):
        home.parts.leases.release(owned.lease)
        home.parts.local_lock.let_go(ADW_ID)
        return ask(*args, **keywords)

    monkeypatch.setattr(home.requests, "ask", ask_too_late)

    done = getattr(home.control, what)(ADW_ID, by="kim")

    assert isinstance(done, Applied)
    assert home.state() in {"paused", "abandoned"}
    assert home.requests.open_for(ADW_ID) == ()


def test_a_request_that_was_answered_meanwhile_is_not_done_twice(home, monkeypatch):
    home.create()
    owned = home.hold()
    ask = home.requests.ask

    def answered_at_once(*args, **keywords):
        asked = ask(*args, **keywords)
        home.requests.handled(asked.request_id, "paused: lunch")
        home.parts.leases.release(owned.lease)
        return asked

    monkeypatch.setattr(home.requests, "ask", answered_at_once)

    assert home.control.pause(ADW_ID, by="kim") == Applied(state="pending", message="paused: lunch")


# --- going on --------------------------------------------------------------------------------------------------


def test_a_paused_workflow_goes_on_where_it_was(home):
    home.create()
    home.control.pause(ADW_ID, by="kim")

    done = home.control.resume(ADW_ID, by="lee", hint="use the cache")

    assert (done.state, done.message) == ("pending", f"workflow {ADW_ID} continues with plan")
    assert (done.run.kind, done.run.state, done.run.asked_by) == ("resume", RunState.PENDING, "lee")
    home.work()
    assert home.state() == "completed"
    assert home.runner.calls[0].context.hints == ("use the cache",)


def test_whoever_makes_a_workflow_go_on_its_run_demands_and_counts_the_same(home):
    home.create()
    home.control.pause(ADW_ID, by="kim", reason="lunch")
    with home.parts.ownership.own(ADW_ID) as owned:
        frozen = owned.document.workflow.changed(demands={"tags": ["gpu"]})
        owned.save(owned.document.changed(workflow=frozen))

    run = home.control.resume(ADW_ID, by="kim").run

    assert run.demands == Requirements(tags=frozenset({"gpu"}))
    assert f"workflow:{home.document().workflow.name}" in run.labels


def test_a_plan_changes_nothing(home):
    home.create()
    home.control.pause(ADW_ID, by="kim")
    before = home.document()

    assert home.control.plan(ADW_ID).describe() == f"workflow {ADW_ID} continues with plan"
    assert home.document() == before
    assert home.run().state is RunState.STOPPED


def test_used_up_attempts_need_a_grant(home):
    failed(home)
    with pytest.raises(UsageError, match="--grant N"):
        home.control.resume(ADW_ID, by="kim")

    done = home.control.resume(ADW_ID, by="kim", grant=2)

    assert (done.run.kind, home.record("plan").granted) == ("retry", 2)
    home.work()
    assert home.state() == "completed"


def test_a_resume_does_not_wait_for_the_time_of_the_retry(home):
    home.runner.add("plan", BROKEN)
    home.create()
    home.runs.ask_to_stop(home.run().run_id)
    home.runs.enqueue(NewRun(adw_id=ADW_ID, priority=7))
    home.work()
    waiting = home.run()
    assert waiting.not_before

    done = home.control.resume(ADW_ID, by="kim")

    assert (done.run.state, done.run.not_before, done.run.priority) == (RunState.PENDING, "", 7)
    assert home.runs.get(waiting.run_id).state is RunState.STOPPED
    home.work()
    assert home.state() == "completed"


def test_what_was_asked_of_a_dead_owner_is_overtaken_but_a_hint_still_holds(home):
    home.create()
    home.crash()
    home.requests.ask(ADW_ID, "pause")
    home.requests.ask(ADW_ID, "hint", payload={"text": "use the cache"})

    home.control.resume(ADW_ID, by="kim")

    assert home.answers() == ["overtaken: the workflow was told to go on", "noted for the next attempt"]
    assert [hint["text"] for hint in home.document().hints] == ["use the cache"]


def test_a_document_of_an_older_version_gets_its_definition_once(home):
    home.create(workflow=None, phases=[])
    home.work()
    assert home.state() == "paused"

    home.control.resume(ADW_ID, by="kim", spec=ONE_PHASE)
    home.work()
    assert home.state() == "completed"


# --- hints and approval ----------------------------------------------------------------------------------------


def test_a_hint_is_noted_at_once_without_an_owner_and_asked_with_one(home):
    home.create()
    assert home.control.hint(ADW_ID, "use the cache", by="kim").message == "noted for the next attempt"
    home.hold()

    done = home.control.hint(ADW_ID, "and the index", by="kim")

    assert isinstance(done, Asked)
    assert done.request.payload == {"text": "and the index"}
    assert [hint["text"] for hint in home.document().hints] == ["use the cache"]


def waiting(home, *phases):
    home.create(spec=spec_of(phase("plan", gates=HUMAN, max_attempts=2), *phases))
    home.work()
    assert home.state() == "paused"


def test_an_approval_queues_what_comes_after(home):
    waiting(home, "build")

    done = home.control.approve(ADW_ID, by="kim", text="good")

    assert (done.state, done.run.asked_by) == ("planning", "kim")
    home.work()
    assert home.state() == "completed"


def test_a_rejection_sends_the_phase_back_with_the_text_as_a_hint(home):
    waiting(home)

    done = home.control.reject(ADW_ID, by="kim", text="too long")
    home.work()

    assert done.run.state is RunState.PENDING
    assert home.runner.calls[-1].context.hints == ("too long",)


def test_what_was_asked_before_a_decision_does_not_stop_what_comes_after(home):
    waiting(home, "build")
    home.requests.ask(ADW_ID, "pause")

    home.control.approve(ADW_ID, by="kim")
    home.work()

    assert home.state() == "completed"


def test_only_what_waits_for_a_person_can_be_approved(home):
    home.create()

    with pytest.raises(UsageError, match="does not wait for approval"):
        home.control.approve(ADW_ID, by="kim")
