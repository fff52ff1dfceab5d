"""A worker's sign of life, and what the worker does on its terms."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.queue.model import DELIVERY, ClaimPolicy, NewRun, RunLimits, RunState
from adws.adw_modules.queue.workers import WorkerHeartbeat, WorkerRegistry
from adws.adw_modules.worker.worker import give_up_unschedulable
from adws.adw_modules.workflow.requirements import Capabilities, Requirements
from adws.testing import FakeClock
from tests.contracts.worlds import make_owner
from tests.homes import lab_home
from tests.unit.conduct_cases import ADW_ID, OTHER, WELL, Home

ME = make_owner("me")
GPU = Requirements(tags=frozenset({"gpu"}))
OFFER = Capabilities(host="testhost", tags=frozenset({"gpu"}))


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


@pytest.fixture
def clock():
    return FakeClock()


def heartbeat(runners, clock, **more) -> WorkerHeartbeat:
    return WorkerHeartbeat(runners, me=ME, offer=OFFER, places=3, version="1.2", clock=clock, **more)


class Broken(WorkerRegistry):
    """Runners whose database does not answer."""

    is_broken = True

    def beat(self, owner, *, busy, is_draining=False):
        if self.is_broken:
            raise DatabaseUnavailable("nobody answers")
        return super().beat(owner, busy=busy, is_draining=is_draining)

    def leave(self, owner):
        raise DatabaseUnavailable("nobody answers")


def test_a_worker_is_listed_inside_the_block_and_gone_after_it(clock):
    runners = lab_home(clock=clock).workers

    with heartbeat(runners, clock):
        (inside,) = runners.all()

    assert (inside.concurrency, inside.tags, inside.version) == (3, OFFER.tags, "1.2")
    assert runners.all()[0].concurrency == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "adw-presence"]


def test_it_says_that_it_lives_when_it_is_time_and_at_once_when_it_drains(clock):
    runners = lab_home(clock=clock).workers
    made = heartbeat(runners, clock, every_seconds=10.0)
    made.tell()
    made.busy = 2
    clock.advance(9.0)
    made.look()
    assert runners.all()[0].busy == 0

    clock.advance(1.0)
    made.look()
    assert (runners.all()[0].busy, runners.all()[0].silent_seconds) == (2, 0.0)

    made.is_draining = True
    made.look()
    assert runners.all()[0].is_draining


def test_one_that_was_forgotten_registers_again_as_it_stands(clock):
    runners = lab_home(clock=clock).workers
    made = heartbeat(runners, clock)
    made.tell()
    clock.advance(700.0)
    assert runners.forget(silent_seconds=600.0) == 1
    made.busy = 1

    made.look()

    assert [runner.busy for runner in runners.all()] == [1]


def test_trouble_with_the_database_ends_no_work_and_is_over_with_the_next_heartbeat(clock):
    runners = Broken(lab_home(clock=clock).database, clock=clock)
    made = heartbeat(runners, clock)

    with made:
        assert runners.all() == ()
        runners.is_broken = False
        clock.advance(60.0)
        made.look()
        assert len(runners.all()) == 1


# --- the worker ------------------------------------------------------------------------------------------------


def work(home, *, terms, runners=None, **options):
    return home.worker(once=True, terms=terms, parts={"workers": runners} if runners else None, **options).run()


def labelled(home, adw_id, **fields):
    home.create(adw_id, issue=None, has_run=False)
    return home.runs.enqueue(NewRun(adw_id=adw_id, **fields))


def test_a_worker_keeps_to_its_limits(home):
    """
    The second one waits for the first one's place, and gets it.
    """
    for adw_id in (ADW_ID, OTHER):
        labelled(home, adw_id, labels=frozenset({"workflow:sdlc"}))
    most = []

    def phase(_context):
        most.append(len(home.runs.live()))
        return WELL

    home.runner.add("plan", phase, phase)

    totals = work(home, terms=ClaimPolicy(limits=RunLimits(scopes={"workflow": {"sdlc": 1}})), concurrency=2)

    assert most[0] == 1
    assert totals.completed >= 1
    assert work(home, terms=ClaimPolicy()).completed + totals.completed == 2


def test_a_worker_is_listed_while_it_works_and_says_how_busy_it_is(home):
    runners = home.parts.workers
    labelled(home, ADW_ID)
    seen = []

    def phase(_context):
        seen.extend(runners.all())
        return WELL

    home.runner.add("plan", phase)
    work(home, terms=ClaimPolicy(), runners=runners, concurrency=3)

    assert [runner.concurrency for runner in seen] == [3]
    assert [runner.concurrency for runner in runners.all()] == [0]


def test_while_something_is_due_that_is_for_others_a_worker_looks_a_few_times_a_second(home):
    """
    Not at every glance at the queue: what another's demands hold may wait for hours.
    """
    labelled(home, ADW_ID, demands=GPU)
    claims = []
    original = home.runs.may_claim

    def claim(*args, **more):
        claims.append(home.clock.monotonic())
        if len(claims) == 20:
            made.drain()
        return original(*args, **more)

    home.runs.may_claim = claim
    made = home.worker()
    made.run()

    assert claims[-1] - claims[2] == pytest.approx(17 * 0.25, abs=0.6)


# --- what nobody can do ----------------------------------------------------------------------------------------


def give_up(home) -> int:
    return give_up_unschedulable(home.changed(runners=home.parts.workers), home.parts.processes.me("worker"))


def test_what_nobody_can_do_fails_and_its_workflow_is_parked_with_the_reason(home):
    run = labelled(home, ADW_ID, demands=Requirements(host="alpha", tags=GPU.tags))
    home.clock.advance(299.0)
    assert give_up(home) == 0
    home.clock.advance(1.0)

    assert give_up(home) == 1

    ended = home.runs.get(run.run_id)
    assert ended.state is RunState.FAILED
    assert ended.reason.startswith("it demands host alpha and tag gpu, and for 300 s there was no worker")
    assert home.state() == "paused"
    assert home.document().pause_reason == ended.reason
    assert give_up(home) == 0


def test_a_delivery_that_nobody_can_do_fails_without_a_workflow(home):
    run = home.runs.enqueue(NewRun(adw_id=OTHER, kind=DELIVERY, demands=GPU))
    home.clock.advance(301.0)

    assert give_up(home) == 1
    assert home.runs.get(run.run_id).state is RunState.FAILED
