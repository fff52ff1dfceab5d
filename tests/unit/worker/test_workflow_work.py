"""Working on a run: every outcome leads to the right run, every request is obeyed before it is answered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.document import Mark
from adws.adw_modules.errors import (
    DatabaseUnavailable,
    DurabilityUnknown,
    StateCorrupt,
    StateWriteFailed,
    UsageError,
    WorkElsewhere,
)
from adws.adw_modules.phase import Done, Failed, Next, Order, Paused, RetryAt, Stopped
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import NewRun, RunResult, RunState
from adws.adw_modules.worker.run_executor import RunExecutor, busy_seconds, describe, final_state
from adws.adw_modules.workflow.requirements import Requirements
from adws.testing import START
from tests.unit.conduct_cases import ADW_ID, BROKEN, DOUBT, FAR_AWAY, WELL, Home, always, obedient
from tests.unit.engine_cases import HUMAN, phase, spec_of


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


TWO = spec_of("plan", "build")
SPENT = "MAX_ATTEMPTS_EXHAUSTED"


def asks(home, kind, then=obedient, **payload):
    """An attempt in the middle of which somebody asks the owner for something."""

    def attempt(context):
        home.requests.ask(ADW_ID, kind, payload=payload, asked_by="kim")
        home.lease_renewer.look()
        if callable(then):
            return then(context)
        if isinstance(then, BaseException):
            raise then
        return then

    return attempt


def test_work_that_only_another_machine_has_is_released_for_that_machine(home):
    home.create()

    def refuse(session, **_how):
        raise WorkElsewhere(session.document.adw_id, "far")

    end = RunExecutor(home.changed(workspace=SimpleNamespace(admit=refuse))).work(home.claim())

    assert (end.run.state, end.run.demands, end.outcome) == (RunState.PENDING, Requirements(host="far"), None)
    assert "only a worker there can continue it" in end.message
    assert home.state() == "pending"
    assert home.runner.calls == []


# --- outcomes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase_of", "state", "run", "reason"),
    [
        (
            {"max_attempts": 1},
            "failed",
            RunState.FAILED,
            f"plan failed ({SPENT}): connection reset by peer",
        ),
        ({"gates": HUMAN}, "paused", RunState.STOPPED, "paused: awaiting_approval"),
    ],
    ids=["failed", "waits for a person"],
)
def test_a_workflow_that_does_not_go_on_ends_its_run_with_the_reason(home, phase_of, state, run, reason):
    home.runner.add("plan", BROKEN if state == "failed" else WELL)
    home.create(spec=spec_of(phase("plan", **phase_of)))

    home.work()

    assert (home.state(), home.run().state, home.run().reason) == (state, run, reason)


def test_a_drain_between_two_phases_suspends_what_was_begun_at_once(home):
    """The end of the first and the beginning of the second phase are one write."""
    home.runner.add("plan", WELL)
    home.runner.add("build", obedient)
    home.create()

    def drain_at_build(document, _events):
        if document.current_state == "building":
            home.lease_renewer.order_all(Order(kind="drain", reason="SIGTERM"))

    home.engine_changes["tell"] = drain_at_build

    assert home.work().outcome == Stopped(reason="drain")
    assert home.record("build").attempts[-1].status == "suspended"
    assert home.runner.numbers("build") == [], "an order is looked at before anything runs"


@pytest.mark.parametrize(
    ("kind", "outcome", "state"),
    [
        ("start", Done(state="completed"), RunState.COMPLETED),
        ("start", Done(state="abandoned"), RunState.STOPPED),
        ("resume", Done(state="rolled_back"), RunState.STOPPED),
        ("rollback", Done(state="rolled_back"), RunState.COMPLETED),
        ("start", Paused(reason="lunch"), RunState.STOPPED),
        ("start", Failed(phase="plan", reason="FATAL"), RunState.FAILED),
    ],
)
def test_a_run_is_completed_only_by_what_it_was_for(home, kind, outcome, state):
    run = home.runs.enqueue(NewRun(adw_id=ADW_ID, kind=kind))

    assert final_state(run, outcome) is state


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Done(state="completed"), "completed"),
        (RetryAt(phase="plan", at=START, reason="busy"), "plan is retried at 2026-01-31T09:00:00.000000Z: busy"),
        (Paused(reason="lunch"), "paused: lunch"),
        (Failed(phase="plan", reason="FATAL", message="no"), "plan failed (FATAL): no"),
        (
            Stopped(reason="drain"),
            "its worker was told to end and gave it back; the attempt under way does not count",
        ),
        (
            Stopped(reason="lost_lease"),
            "its worker could not prove any more that the workflow is its own; the attempt under way does not count",
        ),
        (Stopped(reason="a reason of its own"), "a reason of its own; the attempt under way does not count"),
        (Next(phase="build"), "continues with build"),
    ],
)
def test_an_outcome_is_described_in_a_few_words(outcome, text):
    assert describe(outcome) == text


# --- requests --------------------------------------------------------------------------------------------------


LUNCH = Paused(reason="lunch")
GONE = Done(state="abandoned")
UNKNOWN = "dance is nothing that this owner can do"


@pytest.mark.parametrize(
    ("kind", "then", "outcome", "answer"),
    [
        ("pause", obedient, LUNCH, "paused: lunch"),
        ("stop", obedient, LUNCH, "paused: lunch"),
        ("abandon", obedient, GONE, "abandoned"),
        ("rollback", obedient, GONE, "abandoned"),
        ("pause", BROKEN, LUNCH, "paused: lunch"),
        ("pause", WELL, LUNCH, "paused: lunch"),
        ("pause", WELL, Done(state="completed"), "completed"),
        ("dance", WELL, Done(state="completed"), UNKNOWN),
    ],
    ids=["pause", "stop", "abandon", "rollback", "it fails by itself", "between two phases", "too late", "unknown"],
)
def test_a_request_in_the_middle_of_an_attempt_is_obeyed_and_answered(home, kind, then, outcome, answer):
    home.runner.add("plan", asks(home, kind, then=then, reason="lunch"))
    home.create(spec=spec_of("plan") if answer == "completed" else TWO)

    assert home.work().outcome == outcome

    state = outcome.state if isinstance(outcome, Done) else "paused"
    assert (home.state(), home.answers()) == (state, [answer])
    assert home.run().state is (RunState.COMPLETED if state == "completed" else RunState.STOPPED)
    assert home.record("plan").attempts_used == (0 if then is obedient else 1), "an ordered stop does not count"
    assert bool(home.parts.locks.all()) is (state == "paused"), "the issue is free when it is over"


def test_ctrl_c_parks_the_workflow_also_when_the_attempt_fails_by_itself(home):
    def interrupted(_context):
        home.lease_renewer.order_all(Order(kind="pause", reason="Ctrl-C"))
        raise BROKEN

    home.runner.add("plan", interrupted)
    home.create()

    assert home.work().outcome == Paused(reason="Ctrl-C")
    assert (home.state(), home.run().state) == ("paused", RunState.STOPPED)


@pytest.mark.parametrize(("kind", "state"), [("pause", "paused"), ("abandon", "abandoned")])
def test_who_asked_in_the_middle_of_an_attempt_is_written_down(home, kind, state):
    """
    The attempt ends with the order in one write, which knows nothing of who gave it.
    """
    mark = Mark(delivery="dashboard:1", kind=kind, by="ada", source="dashboard, 10.0.0.7")
    home.runner.add("plan", asks(home, kind, mark=mark.to_json()))
    home.create()

    home.work()

    assert home.state() == state
    [told] = [event for event in home.parts.events.of_workflow(ADW_ID) if event.event_type == "action_asked"]
    assert told.data == {"action": kind, "by": "ada", "from": "dashboard, 10.0.0.7"}


def test_a_pause_of_a_worker_that_drains_is_not_forgotten(home):
    def drained(context):
        home.lease_renewer.order_all(Order(kind="drain", reason="SIGTERM"))
        home.requests.ask(ADW_ID, "pause", payload={"reason": "lunch"})
        home.lease_renewer.look()
        return obedient(context)

    home.runner.add("plan", drained)
    home.create()

    assert home.work().outcome == Paused(reason="lunch")
    assert (home.state(), home.answers()) == ("paused", ["paused: lunch"])


def test_a_pause_and_an_abandon_are_both_answered(home):
    home.runner.add("plan", asks(home, "pause", then=asks(home, "abandon", reason="no use")))
    home.create()

    assert home.work().outcome == Done(state="abandoned")
    assert home.answers() == ["paused: pause asked by kim", "abandoned"]


@pytest.mark.parametrize("then", [BROKEN, WELL], ids=["attempt", "phase of the same run"])
def test_a_hint_reaches_the_next_attempt_or_phase(home, then):
    home.runner.add("plan", asks(home, "hint", then=then, text="use the cache"))
    home.create()
    home.work()
    home.clock.advance(3600.0)
    if then is BROKEN:
        home.work()

    assert home.runner.calls[1].context.hints == ("use the cache",)
    assert home.answers() == ["noted for the next attempt"]
    assert [hint["text"] for hint in home.document().hints] == ["use the cache"]


def test_what_was_asked_of_an_owner_who_died_is_obeyed_by_the_next(home):
    home.create()
    home.crash()
    home.requests.ask(ADW_ID, "hint", payload={"text": "use the cache"})
    home.requests.ask(ADW_ID, "pause", payload={"reason": "lunch"})
    home.runs.take_back(home.run(), reason="its worker is dead")

    end = home.work()

    assert end.outcome == Paused(reason="lunch")
    assert home.runner.calls == [], "nothing is run before it"
    assert home.record("plan").attempts[-1].status == "interrupted", "a parked workflow has no open attempt"
    assert home.answers() == ["noted for the next attempt", "paused: lunch"]
    assert home.document().hints[0]["text"] == "use the cache"


def test_a_pause_of_what_was_closed_in_doubt_is_unconfirmed(home):
    left_in_doubt(home)
    home.requests.ask(ADW_ID, "pause", payload={"reason": "lunch"})

    assert home.work().outcome == Paused(reason=f"{DOUBT} (lunch)")
    assert home.answers() == [f"paused: {DOUBT} (lunch)"]


def test_work_that_continued_in_spite_of_a_doubt_is_stopped_without_it(home):
    home.runner.add("plan", WELL)
    home.runner.add("build", asks(home, "pause", then=BROKEN, reason="lunch"))
    home.create()
    home.crash()
    home.give_process()
    home.runs.take_back(home.run(), reason="its worker is dead")
    home.engine_changes["end_process"] = lambda _process: FAR_AWAY

    assert home.work().outcome == Paused(reason="lunch")


def left_in_doubt(home) -> None:
    """An attempt was cut off far away, and closed by somebody who could not look there; its run waits again."""
    home.create()
    home.crash()
    home.give_process()
    home.recovery(end_process=lambda _process: FAR_AWAY).recover()
    assert home.run().state is RunState.PENDING
    assert home.record("plan").attempts[0].process["in_doubt"] == FAR_AWAY.describe()


def test_what_an_attempt_left_here_is_ended_before_the_next_one_begins(home):
    left_in_doubt(home)

    assert home.work().outcome == Done(state="completed")

    assert len(home.ended) == 1
    assert "in_doubt" not in home.record("plan").attempts[0].process
    told = home.events("attempt_started", "left_processes_ended")
    assert told == ["attempt_started", "left_processes_ended", *["attempt_started"] * (len(told) - 2)]


def test_what_cannot_be_ended_here_keeps_the_next_attempt_from_beginning(home):
    left_in_doubt(home)
    home.engine_changes["end_process"] = lambda _process: ProcessEnding(evidence="pid 7 runs", left=("7 (agent)",))

    end = home.work()

    assert (end.run.state, home.runner.calls) == (RunState.PENDING, [])
    assert "processes of an earlier attempt that cannot be ended (7 (agent))" in end.run.reason


def test_what_runs_on_another_machine_keeps_nobody_from_going_on_here(home):
    left_in_doubt(home)
    home.engine_changes["end_process"] = lambda _process: FAR_AWAY

    assert home.work().outcome == Done(state="completed")
    assert home.record("plan").attempts[0].process["in_doubt"]


def test_the_write_that_parks_the_workflow_ends_its_run_and_releases_everything(home, monkeypatch):
    monkeypatch.setattr(home.parts.leases, "end_run", always(AssertionError("not in a transaction of its own")))
    commits = []
    transact = home.parts.database.transact
    monkeypatch.setattr(home.parts.database, "transact", lambda work: commits.append(work) or transact(work))
    home.create(spec=spec_of(phase("plan", gates=HUMAN)))
    commits.clear()

    end = RunExecutor(home).work(home.run_claimer.claim(home.parts.processes.me("worker"), ttl_seconds=30.0))

    assert (end.outcome, end.run.state) == (Paused(reason="awaiting_approval"), RunState.STOPPED)
    assert home.run() == end.run
    assert home.parts.leases.read(ADW_ID).owner is None
    assert not home.parts.local_lock.is_held(ADW_ID)
    assert len(commits) == 3, "the claim, the attempt, and its result with the end"


def test_what_is_asked_at_the_last_moment_is_answered_before_the_run_ends(home):
    def asked_meanwhile(context):
        home.requests.ask(ADW_ID, "abandon", payload={"reason": "no use"})
        return WELL

    home.runner.add("plan", asked_meanwhile)
    home.create(spec=spec_of(phase("plan", gates=HUMAN)))

    end = home.work()

    assert (home.state(), home.answers(), end.run.state) == ("abandoned", ["abandoned"], RunState.STOPPED)


def test_a_run_that_was_taken_away_does_not_undo_the_last_result(home):
    def taken_away(context):
        home.runs.take_back(home.run(), reason="its worker was thought dead")
        return WELL

    home.runner.add("plan", taken_away)
    home.create(spec=spec_of("plan"))

    home.work()

    assert home.state() == "completed"
    assert home.run().state is RunState.PENDING


def test_a_request_after_the_last_poll_is_answered_when_the_workflow_is_free(home, monkeypatch):
    home.has_forge = True  # there is a comment to update before the run ends
    end_run = home.parts.leases.end_run

    def asked_meanwhile(*args, **more):
        home.requests.ask(ADW_ID, "abandon", payload={"reason": "no use"})
        return end_run(*args, **more)

    monkeypatch.setattr(home.parts.leases, "end_run", asked_meanwhile)
    home.create(spec=spec_of(phase("plan", gates=HUMAN)))

    home.work()

    assert (home.state(), home.answers()) == ("abandoned", ["abandoned"])


def test_a_run_that_shall_stop_is_not_begun(home):
    home.create()
    run = home.claim()
    home.runs.ask_to_stop(run.run_id, reason="no longer wanted")

    end = home.work(run)

    assert end.outcome == Paused(reason="no longer wanted")
    assert home.runner.calls == []
    assert (home.state(), home.run().state) == ("paused", RunState.STOPPED)


# --- losing it -------------------------------------------------------------------------------------------------


def test_work_whose_lease_was_taken_over_cannot_write_any_more(home):
    """Its process was stopped for longer than its lease; meanwhile somebody parked the workflow."""

    def stopped_meanwhile(_context):
        home.clock.advance(31.0)
        home.control.pause(ADW_ID, by="kim", reason="lunch")
        return WELL

    home.runner.add("plan", stopped_meanwhile)
    home.create()

    end = home.work()

    assert end.outcome is None
    assert home.state() == "paused"
    assert home.record("plan").status == "interrupted", "the late result is not in the document"
    assert home.run().state is RunState.STOPPED


def test_work_that_could_not_renew_stops_and_leaves_requests_to_the_next_owner(home, monkeypatch):
    def cut_off(context):
        home.requests.ask(ADW_ID, "pause")
        home.clock.advance(20.0)
        return obedient(context)

    monkeypatch.setattr(home.parts.leases, "renew", always(DatabaseUnavailable("it is away")))
    home.runner.add("plan", cut_off)
    home.create()

    end = home.work()

    assert end.outcome == Stopped(reason="lost_lease")
    assert home.record("plan").attempts[-1].status == "suspended"
    assert home.record("plan").attempts_used == 0
    assert (home.run().state, home.answers()) == (RunState.PENDING, [None])


def test_a_run_that_another_worker_has_is_left_to_it(home):
    def taken_meanwhile(_context):
        home.clock.advance(31.0)
        home.runs.take_back(home.run(), reason="its worker was thought dead")
        return WELL

    home.runner.add("plan", taken_meanwhile)
    home.create(spec=spec_of("plan"))
    mine = home.claim()

    end = home.work(mine)

    assert end.run is None
    assert "is not yours any more" in end.message
    assert home.run().state is RunState.PENDING


def test_a_workflow_that_stays_busy_is_asked_for_less_and_less_often():
    assert [busy_seconds(claims) for claims in (0, 1, 2, 3, 6, 7, 5000)] == [0.05, 0.05, 0.1, 0.2, 1.6, 2.0, 2.0]


@pytest.mark.parametrize(
    "error", [StateWriteFailed("adw_state.json", OSError(28, "No space left on device")), DatabaseUnavailable("gone")]
)
def test_a_full_disk_or_a_lost_database_burns_no_attempt(home, monkeypatch, error):
    home.create()
    for _ in range(10):
        with monkeypatch.context() as patch:
            patch.setattr(home.store, "save", always(error))
            end = home.work()
        assert (end.outcome, home.run().state) == (None, RunState.PENDING)
        assert home.runs.seconds_to_next() == pytest.approx(30.0)
        home.clock.advance(30.0)
    assert home.runner.calls == []
    assert home.record("plan").attempts_used == 0

    assert home.work().outcome == Done(state="completed")


def test_a_corrupt_document_ends_its_run_with_the_reason(home, monkeypatch):
    home.create()
    monkeypatch.setattr(home.store, "load", always(StateCorrupt("adw_state.json", "it is torn")))

    end = home.work()

    assert (end.run.state, end.outcome) == (RunState.FAILED, None)
    assert home.run().reason == "adw_state.json is corrupt: it is torn"


def test_a_workflow_without_a_definition_is_parked_and_not_queued_for_ever(home):
    home.create(workflow=None, phases=[])

    end = home.work()

    assert end.run.state is RunState.FAILED
    assert home.state() == "paused"
    assert "--workflow NAME gives it one" in home.document().pause_reason
    assert home.recovery().recover().steps == ()


def test_a_write_that_may_not_be_durable_parks_the_workflow(home, monkeypatch):
    def unsynced(_context):
        with monkeypatch.context() as failing:
            failing.setattr(home.store, "save", always(DurabilityUnknown("adw_state.json", OSError(5, "I/O error"))))
            home.store.save()
        return WELL

    home.runner.add("plan", unsynced)
    home.create()

    end = home.work()

    assert end.run.state is RunState.FAILED
    assert home.state() == "paused"
    assert "could not be synced (I/O error)" in home.document().pause_reason
    assert home.record("plan").attempts[-1].status == "interrupted"


# --- runs that are for something else --------------------------------------------------------------------------


class Errand:
    """Does what it is told to do, and remembers what it was told."""

    def __init__(self, home, error: Exception | None = None) -> None:
        self._home = home
        self._error = error
        self.given_up: list[str] = []

    def work(self, run):
        if self._error is not None:
            raise self._error
        return RunResult(run=self._home.runs.finish(run, RunState.COMPLETED, reason="done"), outcome=None)

    def give_up(self, run, why):
        self.given_up.append(why)


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (None, RunState.COMPLETED, []),
        (UsageError("not like this"), RunState.FAILED, ["not like this"]),
        (KeyError("x"), RunState.FAILED, ["a bug in adw: KeyError: 'x'"]),
    ],
    ids=["done", "refused", "a bug"],
)
def test_a_run_of_another_kind_goes_to_its_handler_and_is_given_up_with_a_word(home, caplog, error, state, told):
    errand = Errand(home, error)
    executor = RunExecutor(home.changed(job_handler={"delivery": errand}.get))
    home.runs.enqueue(NewRun(adw_id="dddddddd", kind="delivery"))
    run = home.claim()
    try:
        end = executor.work(run)
    except KeyError as exc:  # as the worker does it
        end = executor.give_up(run, exc)

    assert (end.run.state, errand.given_up) == (state, told)
    assert "could not be parked" not in caplog.text


def test_an_errand_that_cannot_even_be_told_still_ends_and_one_without_a_handler_says_so(home):
    errand = Errand(home, UsageError("no"))
    errand.give_up = always(DatabaseUnavailable("gone"))
    for handlers, reason in (({"delivery": errand}, "no"), ({}, "cannot do what runs of kind delivery are for")):
        home.runs.enqueue(NewRun(adw_id="dddddddd", kind="delivery"))
        end = RunExecutor(home.changed(job_handler=handlers.get)).work(home.claim())
        assert end.run.state is RunState.FAILED
        assert reason in end.run.reason
