"""Recovery makes ready what dead workers left, leaves the living alone, and does nothing twice."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import DatabaseUnavailable, StateCorrupt
from adws.adw_modules.queue.model import WITHOUT_WORKFLOW, NewRun, RunState
from adws.adw_modules.recovery.plan import RecoveryAction
from tests.unit.conduct_cases import ADW_ID, OTHER, Home, always
from tests.unit.engine_cases import document_of, phase, spec_of

ONE_PHASE = spec_of(phase("plan", max_attempts=1))


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


def done(steps):
    return [(step.adw_id, step.action.value) for step in steps]


def steps_of(groups):
    return [step for group in groups for step in group.steps]


def everything(home):
    """All that recovery could change."""
    return (
        [home.document(adw_id) for adw_id in sorted(home.store.ids())],
        home.runs.page(),
        home.parts.locks.all(),
        list(home.brought_up),
        list(home.ended),
    )


# --- dead and living -------------------------------------------------------------------------------------------


def test_the_attempt_of_a_dead_worker_is_interrupted_and_its_run_goes_back(home):
    home.create()
    home.crash()

    steps = home.recovery().recover().steps

    assert done(steps) == [(ADW_ID, "interrupt"), (ADW_ID, "requeue")]
    assert (home.record("plan").status, home.record("plan").attempts_used) == ("interrupted", 1)
    assert home.run().state is RunState.PENDING
    assert "is dead" in home.run().reason
    assert home.events("attempt_interrupted", "run_recovered") == ["attempt_interrupted", "run_recovered"]
    home.work()
    assert home.state() == "completed"


def test_a_worker_that_died_between_claim_and_ownership_loses_its_run(home):
    home.create()
    me = home.parts.processes.me("worker")
    home.runs.claim(me, ttl_seconds=30.0)
    assert home.recovery().recover().steps == ()

    home.parts.processes.kill(me)

    assert done(home.recovery().recover().steps) == [(ADW_ID, "requeue")]
    assert home.run().state is RunState.PENDING


# --- runs ------------------------------------------------------------------------------------------------------


def test_a_workflow_that_no_run_waits_for_is_queued_once(home):
    home.create(has_run=False)
    first, second = home.recovery(), home.recovery()

    assert done(first.recover().steps) == [(ADW_ID, "enqueue")]
    assert second.recover().steps == ()
    assert [(run.kind, run.asked_by) for run in home.runs.page()] == [("resume", "recovery")]


def test_the_run_of_a_worker_that_died_after_the_last_write_is_ended(home, monkeypatch):
    """The document is completed, the run still says running."""
    home.has_forge = True  # there is a comment to update before the run ends
    home.create()
    run = home.claim()
    with monkeypatch.context() as patch:
        patch.setattr(home.parts.leases, "end_run", always(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            home.work(run)
    assert (home.state(), home.run().state) == ("completed", RunState.RUNNING)
    home.clock.advance(31.0)

    assert done(home.recovery().recover().steps) == [(ADW_ID, "end_run")]
    assert home.run().state is RunState.STOPPED


@pytest.mark.parametrize("change", ["renewed", "resumed", "abandoned"])
def test_what_moves_on_after_the_plan_was_made_is_left_alone(home, monkeypatch, change):
    home.create(has_run=change != "abandoned")
    if change == "renewed":
        run = home.claim()
        home.clock.advance(31.0)
    elif change == "resumed":
        home.control.pause(ADW_ID, by="kim")
        home.runs.enqueue(NewRun(adw_id=ADW_ID))
    recovery = home.recovery()
    plan = recovery.planned()
    monkeypatch.setattr(recovery, "planned", lambda **_: plan)
    assert all(step.action is not RecoveryAction.LEAVE for step in steps_of(plan))
    if change == "renewed":
        home.runs.renew(run, ttl_seconds=30.0)
    elif change == "resumed":
        home.control.resume(ADW_ID, by="kim")
    else:
        home.control.abandon(ADW_ID, by="kim")
    before = everything(home)

    assert recovery.recover().steps == ()
    assert everything(home) == before


@pytest.mark.parametrize("has_run", [False, True])
def test_exhausted_but_not_over_becomes_failed(home, has_run):
    """A version that counted and failed in two writes could leave this."""
    home.create(spec=ONE_PHASE, has_run=has_run)
    with home.parts.ownership.own(ADW_ID) as owned:
        spent = owned.document.phases[0].model_copy(update={"attempts_used": 1, "status": "interrupted"})
        owned.save(owned.document.model_copy(update={"phases": [spent]}))

    assert done(home.recovery().recover().steps) == [(ADW_ID, "fail")]

    assert (home.state(), home.document().terminal_reason) == ("failed", "MAX_ATTEMPTS_EXHAUSTED")
    assert [run.state for run in home.runs.page()] == [RunState.FAILED] * has_run
    assert home.recovery().recover().steps == ()
    assert home.runner.calls == []


# --- documents -------------------------------------------------------------------------------------------------


class OldCopies:
    """A catalogue whose copy of every document is one revision behind."""

    def __init__(self, catalogue) -> None:
        self._catalogue = catalogue

    def revisions(self, **options):
        return {adw_id: revision - 1 for adw_id, revision in self._catalogue.revisions(**options).items()}


@pytest.mark.parametrize("is_worked_on", [False, True])
def test_a_document_that_is_newer_than_the_database_is_brought_up_unless_its_owner_does_it(home, is_worked_on):
    home.create()
    home.hold() if is_worked_on else home.work()

    steps = home.recovery(catalogue=OldCopies(home.parts.catalogue)).recover(every_document=True).steps

    assert done(steps) == ([] if is_worked_on else [(ADW_ID, "project")])
    assert home.brought_up == ([] if is_worked_on else [ADW_ID])


class Unreadable:
    """A store whose documents cannot be looked at."""

    def __init__(self, store, error) -> None:
        self._store = store
        self.load = always(error)

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_document_that_cannot_be_read_is_reported_and_told_once(home, caplog):
    home.create()
    home.crash()
    recovery = home.recovery(store=Unreadable(home.store, StateCorrupt("adw_state.json", "it is torn")))

    steps = recovery.recover().steps
    again = recovery.recover().steps

    assert done(steps) == [(ADW_ID, "report"), (ADW_ID, "requeue")]
    assert steps[0].why == "adw_state.json is corrupt: it is torn"
    assert done(again) == [(ADW_ID, "report")]
    assert [record.action for record in caplog.records if record.levelname == "ERROR"] == ["recovery_report"]
    assert home.run().state is RunState.PENDING, "a worker ends it and says why"


def test_a_database_that_is_away_says_nothing_about_documents(home):
    home.create()

    with pytest.raises(DatabaseUnavailable):
        home.recovery(store=Unreadable(home.store, DatabaseUnavailable("gone"))).recover()


def test_one_workflow_that_cannot_be_recovered_does_not_keep_the_others(home, monkeypatch):
    home.create(has_run=False)
    home.create(OTHER, issue=43, has_run=False)
    load = home.store.load

    def torn_for_one(adw_id):
        if adw_id == ADW_ID:
            raise StateCorrupt("adw_state.json", "it is torn")
        return load(adw_id)

    recovery = home.recovery(catalogue=home.parts.catalogue)
    plan = recovery.planned()
    monkeypatch.setattr(recovery, "planned", lambda **_: plan)
    monkeypatch.setattr(home.store, "load", torn_for_one)

    assert done(recovery.recover().steps) == [(OTHER, "enqueue")]


# --- what crashes leave of workflows that are over, or never were ----------------------------------------------


@pytest.mark.parametrize("issue", [42, None])
def test_a_workflow_whose_creator_died_before_its_first_write_is_taken_away(home, issue):
    creator = home.parts.processes.me("cli")
    document = document_of(ONE_PHASE, issue_number=issue)
    home.parts.registry.register(document, creator, ttl_seconds=30.0, run=NewRun(adw_id=ADW_ID))
    assert home.recovery().recover().steps == (), "it is being created"

    home.parts.processes.kill(creator)
    steps = home.recovery().recover().steps

    assert done(steps) == [(ADW_ID, "forget")]
    assert home.parts.locks.all() == ()
    assert home.runs.page() == ()
    assert home.parts.leases.read(ADW_ID) is None
    assert home.recovery().recover().steps == ()
    home.create(OTHER, issue=42)


def test_a_worker_that_finds_no_document_leaves_it_to_recovery(home):
    creator = home.parts.processes.me("cli")
    home.parts.registry.register(document_of(ONE_PHASE), creator, ttl_seconds=30.0, run=NewRun(adw_id=ADW_ID))
    home.parts.processes.kill(creator)

    assert home.work().run.state is RunState.FAILED
    assert home.recovery().recover().steps == (), "the lease of who looked is live"
    home.clock.advance(31.0)

    assert done(home.recovery().recover().steps) == [(ADW_ID, "forget")]
    assert home.parts.locks.all() == ()


# --- dry run ---------------------------------------------------------------------------------------------------


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
