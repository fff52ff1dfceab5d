"""Waking the run of a workflow: in the transaction that ends what it waits for, whatever its worker does meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.store import RunStore
from tests.contracts.worlds import FIRST, make_owner

LATER = timedelta(days=1)


@pytest.fixture
def queue(database, clock):
    return RunStore(database, clock=clock)


@pytest.fixture
def later(clock):
    return timestamps.to_text(clock.now() + LATER)


def wake(database, queue, adw_id=FIRST):
    return database.transact(lambda session: queue.wake_in(session, adw_id))


def claim(queue):
    return queue.claim(make_owner(), ttl_seconds=30.0)


def test_a_run_that_waits_far_out_is_due_at_once(database, queue, later):
    queue.enqueue(NewRun(adw_id=FIRST, not_before=later))
    assert claim(queue) is None

    woken = wake(database, queue)

    assert (woken.state, woken.not_before) == (RunState.PENDING, "")
    assert claim(queue).adw_id == FIRST


def test_a_wake_up_is_not_lost_on_a_worker_that_is_about_to_wait(database, queue, later):
    queue.enqueue(NewRun(adw_id=FIRST))
    run = queue.begin(claim(queue))
    wake(database, queue)

    given_back = queue.requeue(run, not_before=later, reason="waits")

    assert given_back.not_before == ""


def test_a_wake_up_counts_for_one_claim_only(database, queue, later):
    queue.enqueue(NewRun(adw_id=FIRST))
    run = claim(queue)
    wake(database, queue)
    queue.requeue(run, not_before=later)

    again = queue.requeue(claim(queue), not_before=later)

    assert again.not_before == later
    assert claim(queue) is None


def test_only_the_run_that_goes_on_with_the_workflow_is_woken(database, queue, later):
    lane = queue.enqueue(NewRun(adw_id=FIRST, kind="iteration", slot="x/1", not_before=later))

    assert wake(database, queue) is None
    assert queue.get(lane.run_id).not_before == later


def test_a_run_that_is_to_stop_stops_all_the_same(database, queue, later):
    queue.enqueue(NewRun(adw_id=FIRST))
    run = queue.begin(claim(queue))
    queue.ask_to_stop(run.run_id, reason="enough")
    wake(database, queue)

    assert queue.requeue(run, not_before=later).state is RunState.STOPPED
    assert wake(database, queue) is None
