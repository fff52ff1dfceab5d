"""One transaction claims a run with the lease of its workflow and its place in the quotas."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import QuotaExceeded
from adws.adw_modules.queue.model import DELIVERY, DELIVERY_PRIORITY, NewRun, RunState
from adws.adw_modules.worker.claim import Claim
from tests.unit.conduct_cases import ADW_ID, Home


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


@pytest.fixture
def commits(home, monkeypatch):
    """Every transaction that changes something."""
    seen = []
    transact = home.parts.database.transact
    monkeypatch.setattr(home.parts.database, "transact", lambda work: seen.append(work) or transact(work))
    return seen


def claim(home, **how) -> Claim | None:
    return home.run_claimer.claim(home.parts.processes.me("worker"), ttl_seconds=30.0, **how)


def test_a_claim_takes_run_lease_and_quota_in_one_transaction(home, commits):
    home.create()
    home.requests.ask(ADW_ID, "hint", payload={"text": "use the cache"})
    reserved = []
    home.quotas.reserve_in = lambda _session, adw_id, workflow: reserved.append((adw_id, workflow)) or (1.5, None)
    commits.clear()

    taken = claim(home)

    assert len(commits) == 1
    assert (taken.run.state, taken.run.started_at) == (RunState.RUNNING, home.run().started_at)
    assert home.run() == taken.run
    assert home.parts.leases.read(ADW_ID).owner == taken.owned.lease.owner
    assert (reserved[0][0], taken.cost) == (ADW_ID, (1.5, None))
    assert [request.kind for request in taken.requests] == ["hint"]


def test_nothing_that_is_due_costs_no_transaction(home, commits):
    home.create()
    claim(home)
    assert claim(home) is None, "the first look that finds nothing"
    commits.clear()

    assert claim(home) is None
    assert commits == []


def test_a_lease_that_somebody_has_is_left_alone_and_the_run_is_claimed(home):
    home.create()
    owned = home.hold()

    taken = claim(home)

    assert (taken.owned, taken.run.state) == (None, RunState.CLAIMED)
    assert home.parts.leases.read(ADW_ID).owner == owned.lease.owner
    assert home.run_executor.work(taken).run.state is RunState.PENDING, "it waits until the workflow is free"


def test_a_workflow_that_was_not_released_is_taken_over_by_the_worker_that_executes_the_run(home):
    home.create()
    former = home.hold()
    home.parts.processes.kill(former.lease.owner)

    taken = claim(home)
    end = home.run_executor.work(taken)

    assert taken.owned is None
    assert end.run.state is RunState.COMPLETED
    assert "lease_taken_over" in home.events()


@pytest.mark.parametrize("is_full", [True, False], ids=["machine", "quota"])
def test_a_limit_that_is_reached_does_not_undo_the_claim(home, is_full):
    def refuse(*_what):
        raise QuotaExceeded("runs", "the quota runs is used up")

    home.create()
    home.quotas.is_machine_full = lambda: is_full
    home.quotas.reserve_in = refuse

    taken = claim(home)

    assert (taken.run.state, taken.cost) == (RunState.RUNNING, None)
    assert not taken.has_quota(home.document()), "whoever executes the run asks again, and says why it waits"


def test_a_place_that_was_decided_by_an_older_cost_does_not_count(home):
    home.create()
    home.quotas.reserve_in = lambda *_what: (0.0, 5.0)

    assert not claim(home).has_quota(home.document())


def test_what_is_of_no_workflow_takes_neither_lease_nor_quota(home):
    home.quotas.reserve_in = lambda *_what: pytest.fail("a delivery has no place in the quotas")
    home.runs.enqueue(NewRun(adw_id=ADW_ID, kind=DELIVERY, priority=DELIVERY_PRIORITY))

    taken = claim(home, only_deliveries=True)

    assert (taken.run.kind, taken.run.state, taken.owned) == (DELIVERY, RunState.CLAIMED, None)


def test_a_resume_queues_its_run_and_releases_the_workflow_in_one_transaction(home, commits):
    home.create()
    home.control.pause(ADW_ID, by="kim")
    commits.clear()

    applied = home.control.resume(ADW_ID, by="kim")

    assert len(commits) == 3, "the lease, the document, and the run with the release"
    assert home.parts.leases.read(ADW_ID).owner is None
    assert home.run() == applied.run
