"""The worker claims, waits cheaply, recovers, drains, and says when its database is gone."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.engine import attempt
from adws.adw_modules.errors import AdwError, DatabaseCorrupt, DatabaseUnavailable, StateReadFailed
from adws.adw_modules.queue.model import DELIVERY, DELIVERY_PRIORITY, NewRun, RunResult, RunState
from adws.adw_modules.worker.worker import Worker
from adws.testing import FakeClock
from tests.unit.conduct_cases import ADW_ID, BROKEN, OTHER, WELL, Home, always, obedient
from tests.unit.engine_cases import phase, spec_of

THIRD = "9c8d7e6f"
ONE_PHASE = spec_of(phase("plan", max_attempts=1))


class EndingClock(FakeClock):
    """A clock that tells somebody when its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.alarms: list = []  #: (seconds from the start, what to do)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for at, ring in [alarm for alarm in self.alarms if self.monotonic() - 1000.0 >= alarm[0]]:
            self.alarms.remove((at, ring))
            ring()


@pytest.fixture
def home():
    made = Home(clock=EndingClock())
    yield made
    made.lease_renewer.close()


def worker(home, **options) -> Worker:
    return home.worker(**{"poll_seconds": 0.025, **options})


def states(home):
    return {run.adw_id: run.state for run in home.runs.page()}


def test_once_works_on_everything_that_is_due_and_leaves_the_rest(home):
    home.create(ADW_ID, issue=1)
    home.create(OTHER, issue=2)
    later = timestamps.to_text(home.clock.now().replace(year=2100))
    home.runs.enqueue(NewRun(adw_id=THIRD, not_before=later))

    told = []

    totals = worker(home, once=True, on_end=lambda end: told.append(end.run.state)).run()

    assert (totals.claimed, totals.completed, told) == (2, 2, [RunState.COMPLETED] * 2)
    assert states(home) == {ADW_ID: RunState.COMPLETED, OTHER: RunState.COMPLETED, THIRD: RunState.PENDING}


def test_a_run_is_taken_up_when_it_is_due(home):
    home.runner.add("plan", BROKEN)
    home.create(spec=spec_of("plan"))
    totals = worker(home, max_runs=2, stop_on_first_failure=True).run()

    assert (totals.claimed, totals.requeued, totals.completed, totals.failed) == (2, 1, 1, 0), "a retry is no failure"
    record = home.record("plan")
    assert record.attempts[1].started_at >= record.attempts[0].ended_at
    assert home.clock.monotonic() > 1001.0, "the clock went on to the retry"


def test_a_run_whose_workflow_was_busy_does_not_count_for_max_runs(home):
    home.create()
    owned = home.hold()
    home.clock.alarms.append((0.04, lambda: home.parts.leases.release(owned.lease)))

    totals = worker(home, max_runs=1).run()

    assert (totals.requeued, totals.completed) == (1, 1)


class Bell:
    """Does what deliveries are for: rings, and workflows wait for that."""

    def __init__(self, home) -> None:
        self._home = home
        self.rung = threading.Event()

    def work(self, run):
        self.rung.set()
        ended = self._home.runs.finish(self._home.runs.begin(run), RunState.COMPLETED)
        return RunResult(run=ended, outcome=None)

    def give_up(self, run, why):
        raise AssertionError(why)


@pytest.mark.parametrize("is_late", [False, True], ids=["comes", "was-put-off"])
def test_a_delivery_does_not_wait_for_the_workflows_that_it_may_be_to_stop(home, is_late):
    bell = Bell(home)
    due = timestamps.to_text(home.clock.now() + timedelta(seconds=7)) if is_late else ""

    def wait_for_it(_context):
        home.runs.enqueue(NewRun(adw_id=THIRD, kind=DELIVERY, priority=DELIVERY_PRIORITY, not_before=due))
        home.clock.advance(8.0)
        assert bell.rung.wait(60.0)
        return WELL

    home.runner.add("plan", wait_for_it)
    home.create(ADW_ID, issue=1)
    home.create(OTHER, issue=2)

    totals = worker(home, once=True, parts={"job_handler": {DELIVERY: bell}.get}).run()

    assert totals.completed == 3


def test_the_place_for_deliveries_is_not_for_workflows(home):
    claims: list[str] = []

    def look(context):
        claims.append(context.document.adw_id)
        run = home.runs.claim(home.parts.processes.me("other"), ttl_seconds=30.0, only_deliveries=True)
        assert run is None
        return WELL

    home.runner.add("plan", look, look)
    home.create(ADW_ID, issue=1, spec=ONE_PHASE)
    home.create(OTHER, issue=2, spec=ONE_PHASE)

    assert worker(home, once=True, parts={"job_handler": {DELIVERY: Bell(home)}.get}).run().completed == 2
    assert claims == [ADW_ID, OTHER]


# --- trouble ---------------------------------------------------------------------------------------------------


def test_a_database_that_is_gone_for_good_ends_the_worker(home, monkeypatch, caplog):
    monkeypatch.setattr(home.runs, "may_claim", always(DatabaseUnavailable("connection refused")))

    with pytest.raises(DatabaseUnavailable, match="has not answered for 10 s, so this worker stops: connection ref"):
        worker(home, patience_seconds=10.0).run()

    assert home.clock.monotonic() == pytest.approx(1010.0, abs=2.0)
    [said] = [record for record in caplog.records if record.getMessage() == "The database does not answer"]
    assert (said.why, said.exc_info) == ("connection refused", None), "a sentence, once"


def test_a_database_that_comes_back_is_waited_for(home, monkeypatch):
    home.create()
    patch = pytest.MonkeyPatch()
    patch.setattr(home.runs, "may_claim", always(DatabaseUnavailable("connection refused")))
    home.clock.alarms.append((30.0, patch.undo))

    totals = worker(home, once=True).run()

    assert totals.completed == 1, "who cannot look does not know that nothing is due"
    assert home.clock.monotonic() - 1000.0 < 32.0, "it is asked again every second"


def test_work_under_way_is_suspended_when_the_worker_fails(home):
    """Else the worker would wait for the end of all work, for hours."""
    has_begun = threading.Event()

    def long(context):
        has_begun.set()
        return obedient(context) if context.orders.wait(60.0) else WELL

    def recover():
        if home.runner.calls:
            raise DatabaseCorrupt("adw.db", "malformed")

    home.runner.add("plan", long)
    home.create()
    made = worker(home, concurrency=2, recover=recover, recover_seconds=0.01)
    home.clock.alarms.append((0.0, lambda: has_begun.wait(60.0)))
    ticking = threading.Thread(target=lambda: (has_begun.wait(60.0), home.clock.advance(1.0)))
    ticking.start()

    with pytest.raises(DatabaseCorrupt):
        made.run()

    ticking.join()
    assert home.record("plan").attempts[-1].status == "suspended"
    assert home.run().state is RunState.PENDING


def test_a_bug_parks_its_workflow_and_the_worker_continues(home, monkeypatch):
    real, is_first = attempt.judge, [True]

    def judge(*args, **keywords):
        if is_first[0]:
            is_first[0] = False
            raise ZeroDivisionError("a bug")
        return real(*args, **keywords)

    monkeypatch.setattr(attempt, "judge", judge)
    home.runner.add("plan", BROKEN)
    home.create(ADW_ID, issue=1, spec=spec_of("plan"))
    home.create(OTHER, issue=2, spec=ONE_PHASE)

    totals = worker(home, once=True).run()

    assert (totals.failed, totals.completed) == (1, 1)
    assert (home.state(), home.run().reason) == ("paused", "a bug in adw: ZeroDivisionError: a bug")


def test_a_run_that_cannot_be_ended_is_counted_as_lost(home, monkeypatch):
    home.has_forge = True  # there is a comment to update before the run ends
    home.create()
    with monkeypatch.context() as patch:
        patch.setattr(home.runs, "finish", always(DatabaseUnavailable("gone")))
        patch.setattr(home.runs, "requeue", always(DatabaseUnavailable("gone")))
        patch.setattr(home.parts.leases, "end_run", always(DatabaseUnavailable("gone")))
        totals = worker(home, once=True).run()

    assert totals.lost == 1
    assert home.run().state is RunState.RUNNING, "its claim ends by itself, and recovery finds it"


# --- recovery and waiting --------------------------------------------------------------------------------------


def test_recovery_comes_first_and_then_every_minute(home):
    moments = []

    def recover():
        moments.append(home.clock.monotonic() - 1000.0)
        if len(moments) == 4:
            made.drain()

    made = worker(home, recover=recover)
    made.run()

    assert moments == pytest.approx([0.0, 60.0, 120.0, 180.0], abs=0.1)


@pytest.mark.parametrize(
    ("renewed_at", "moments"),
    [(None, [0.0, 30.0, 30.25, 30.5, 30.75, 31.0, 91.0]), (29.0, [0.0, 59.0, 59.25, 59.5, 59.75, 60.0, 120.0])],
    ids=["silent", "renewed"],
)
def test_recovery_comes_when_a_claim_ends_and_a_few_times_more_for_its_lease(home, renewed_at, moments):
    home.runs.enqueue(NewRun(adw_id=THIRD))
    claimed = home.runs.claim(home.parts.processes.me("worker"), ttl_seconds=30.0)
    came = []

    def recover():
        came.append(home.clock.monotonic() - 1000.0)
        if len(came) == len(moments):
            made.drain()

    if renewed_at is not None:
        home.clock.alarms.append((renewed_at, lambda: home.runs.renew(claimed, ttl_seconds=30.0)))
    made = worker(home, recover=recover)
    made.run()

    assert came == pytest.approx(moments, abs=0.1)


def test_recovery_comes_again_when_the_run_has_a_new_worker(home):
    run = home.runs.enqueue(NewRun(adw_id=THIRD))
    me, came = home.parts.processes.me("worker"), []
    claimed = home.runs.claim(me, ttl_seconds=30.0)

    def recover():
        came.append(home.clock.monotonic() - 1000.0)
        if len(came) == 2:
            home.runs.take_back(claimed, reason="its worker is gone")
            home.runs.claim(me, ttl_seconds=10.0, run_id=run.run_id)
        if len(came) == 3:
            made.drain()

    made = worker(home, recover=recover)
    made.run()

    assert came == pytest.approx([0.0, 30.0, 40.0], abs=0.1)


@pytest.mark.parametrize("error", [AdwError("torn"), StateReadFailed("x", OSError(13, "denied")), OSError("denied")])
def test_a_recovery_that_fails_does_not_end_the_worker(home, error):
    home.create()

    totals = worker(home, once=True, recover=always(error)).run()

    assert totals.completed == 1


def test_what_recovery_queues_is_worked_on(home):
    home.create()
    home.crash()
    recovery = home.recovery()

    totals = worker(home, once=True, recover=recovery.recover).run()

    assert totals.completed == 1
    assert [attempt.status for attempt in home.record("plan").attempts] == ["interrupted", "succeeded"]


class CountingQueue:
    """A queue that counts what is asked of it."""

    def __init__(self, queue) -> None:
        self._queue = queue
        self.asked: list[str] = []

    def __getattr__(self, name):
        self.asked.append(name)
        return getattr(self._queue, name)


def test_an_empty_queue_is_asked_next_to_nothing(home):
    """A minute without work: two thousand looks at the watch, a handful of queries."""
    home.runs = CountingQueue(home.runs)
    made = worker(home)
    home.clock.alarms.append((59.0, made.drain))

    made.run()

    assert len(home.clock.slept) > 2000
    assert len(home.runs.asked) <= 11, home.runs.asked
