"""The keeper renews what is owned, brings orders, and gives up in time."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.db.sqlite import CommitWatcher
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.ownership.lease_renewer import LeaseRenewer, RenewalTimes
from adws.adw_modules.phase import Order
from tests.unit.conduct_cases import ADW_ID, NEVER, Home, always

DRAIN = Order(kind="drain", reason="SIGTERM")


@pytest.fixture
def home():
    made = Home()
    made.create()
    yield made
    made.lease_renewer.close()


@pytest.fixture
def owned(home):
    with home.parts.ownership.own(ADW_ID) as owned:
        yield owned


@pytest.fixture
def charge(home, owned):
    with home.lease_renewer.charge(owned, home.runs.begin(home.claim())) as charge:
        yield charge


def left(home):
    return home.parts.leases.read(ADW_ID).seconds_left, home.run().seconds_left


def test_lease_and_claim_are_renewed_after_ten_seconds_and_not_before(home, charge):
    home.clock.advance(9.0)
    home.lease_renewer.look()
    assert left(home) == (21.0, 21.0)

    home.clock.advance(1.0)
    home.lease_renewer.look()
    assert left(home) == (30.0, 30.0)
    assert charge.current() is None


def test_a_write_renews_lease_and_claim_and_the_keeper_leaves_them_alone(home, charge, owned, monkeypatch):
    home.clock.advance(6.0)
    owned.save(owned.document)
    assert left(home) == (30.0, 30.0)

    monkeypatch.setattr(home.parts.leases, "renew", always(AssertionError("a write has renewed it")))
    home.clock.advance(9.0)
    home.lease_renewer.look()

    assert charge.current() is None
    assert left(home) == (21.0, 21.0)


def test_a_run_that_shall_stop_is_an_order_also_when_a_write_renewed_its_claim(home, charge, owned):
    home.runs.ask_to_stop(home.run().run_id, reason="no longer wanted")
    home.clock.advance(6.0)
    owned.save(owned.document)
    home.lease_renewer.look()

    assert (charge.current().kind, charge.current().reason) == ("stop", "no longer wanted")


def test_requests_are_looked_for_only_after_a_commit(home, owned, monkeypatch):
    watcher = CommitWatcher(home.parts.database)
    renewer = LeaseRenewer(
        clock=home.clock,
        requests=home.requests,
        runs=home.runs,
        store=home.store,
        times=RenewalTimes(look=NEVER),
        watcher=watcher,
    )
    looked = []
    open_for = home.requests.open_for
    monkeypatch.setattr(home.requests, "open_for", lambda *ids: looked.append(ids) or open_for(*ids))
    with renewer.charge(owned) as charge:
        for _ in range(3):
            renewer.look()
        assert len(looked) == 1, "the first look, for what was asked before"

        home.requests.ask(ADW_ID, "pause", asked_by="kim")
        renewer.look()
        assert charge.current().kind == "pause"
    renewer.close()


def test_a_renewal_that_fails_for_twenty_seconds_orders_the_work_to_stop(home, charge, monkeypatch):
    monkeypatch.setattr(home.parts.leases, "renew", always(DatabaseUnavailable("it is away")))
    home.clock.advance(19.9)
    home.lease_renewer.look()
    assert charge.current() is None

    home.clock.advance(0.1)
    home.lease_renewer.look()

    order = charge.current()
    assert (order.kind, order.is_urgent) == ("lost_lease", True)
    assert order.reason == "the lease could not be renewed for 20 s: it is away"
    assert home.parts.leases.read(ADW_ID).seconds_left == pytest.approx(10.0), "before anybody else may take it"


def test_a_renewal_that_works_again_in_time_lets_the_work_go_on(home, charge, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(home.parts.leases, "renew", always(DatabaseUnavailable("it is away")))
        home.clock.advance(19.0)
        home.lease_renewer.look()
    home.lease_renewer.look()
    home.clock.advance(5.0)

    assert charge.current() is None


def test_work_stops_itself_also_when_the_keeper_hangs(home, charge):
    """The thread may wait in a database that never answers: then nobody looks."""
    home.clock.advance(20.0)

    assert charge.current().kind == "lost_lease"
    assert charge.wait(NEVER).kind == "lost_lease"


def test_a_lease_that_was_taken_over_stops_the_work_at_once(home, charge, owned):
    home.parts.processes.kill(owned.lease.owner)
    with home.parts.ownership.own(ADW_ID):
        home.clock.advance(10.0)
        home.lease_renewer.look()

    order = charge.current()
    assert (order.kind, order.is_urgent) == ("lost_lease", True)
    assert "taken over" in order.reason


def test_a_run_that_somebody_else_has_stops_the_work(home, charge):
    home.runs.take_back(home.run(), reason="its worker was thought dead")
    home.clock.advance(10.0)
    home.lease_renewer.look()

    assert charge.current().kind == "lost_lease"


def test_a_run_that_shall_stop_is_an_order_to_stop(home, charge):
    home.runs.ask_to_stop(home.run().run_id, reason="no longer wanted")
    home.clock.advance(10.0)
    home.lease_renewer.look()

    assert (charge.current().kind, charge.current().reason) == ("stop", "no longer wanted")


@pytest.mark.parametrize("kind", ["pause", "stop", "abandon", "rollback"])
def test_a_request_that_ends_the_attempt_is_an_order_at_the_next_look(home, charge, kind):
    assert not charge.has_business()
    asked = home.requests.ask(ADW_ID, kind, payload={"reason": "lunch", "is_urgent": True}, asked_by="kim")

    home.lease_renewer.look()

    assert charge.has_business()
    assert charge.current() == Order(
        kind=kind, reason="lunch", asked_by="kim", request_id=asked.request_id, is_urgent=True
    )


def test_a_hint_waits_and_orders_nothing(home, charge):
    home.requests.ask(ADW_ID, "hint", payload={"text": "use the cache"})
    home.lease_renewer.look()

    assert charge.current() is None
    assert charge.has_business()
    assert [request.kind for request in charge.open_requests()] == ["hint"]


def test_a_request_that_was_answered_is_not_brought_again_by_who_looked_before(home, charge):
    asked = home.requests.ask(ADW_ID, "pause")
    charge.answered(asked.request_id)

    charge.note(asked)

    assert charge.open_requests() == ()
    assert charge.current() is None


def test_only_a_more_urgent_order_replaces_another(charge):
    pause, stop = Order(kind="pause"), Order(kind="stop", is_urgent=True)
    for order in (pause, Order(kind="abandon"), stop, Order(kind="lost_lease", is_urgent=True)):
        charge.give(order)

    assert charge.current() == stop


def test_an_order_to_everything_reaches_what_there_is_and_what_comes(home, charge, owned):
    home.lease_renewer.order_all(DRAIN)

    assert charge.current() == DRAIN
    with home.lease_renewer.charge(owned) as later:
        assert later.current() == DRAIN


def test_an_urgent_order_to_everything_goes_before_one_that_is_not(home, charge):
    charge.give(Order(kind="pause"))
    home.lease_renewer.order_all(DRAIN)
    assert charge.current().kind == "pause"

    home.lease_renewer.order_all(Order(kind="drain", is_urgent=True))
    assert charge.current().kind == "drain"


def test_who_waits_for_an_order_gets_it(charge):
    giving = threading.Thread(target=charge.give, args=(DRAIN,))
    giving.start()
    order = charge.wait(NEVER)
    giving.join()

    assert order == DRAIN
    assert charge.wait(NEVER) == DRAIN


def test_what_is_given_back_is_not_looked_after_any_more(home, owned):
    with home.lease_renewer.charge(owned) as charge:
        pass
    home.clock.advance(15.0)
    home.lease_renewer.look()

    assert home.parts.leases.read(ADW_ID).seconds_left == 15.0
    assert charge.current() is None


def test_the_thread_brings_requests_by_itself_and_survives_a_bug(home, owned, monkeypatch, caplog):
    """Everything a process owns hangs on this thread."""
    has_failed = threading.Event()
    open_for = home.requests.open_for

    def broken_once(adw_id):
        if has_failed.is_set():
            return open_for(adw_id)
        has_failed.set()
        raise KeyError("a bug")

    monkeypatch.setattr(home.requests, "open_for", broken_once)
    home.requests.ask(ADW_ID, "pause")
    lease_renewer = LeaseRenewer(
        clock=home.clock, requests=home.requests, runs=home.runs, store=home.store, times=RenewalTimes(look=0.001)
    )
    try:
        with lease_renewer.charge(owned) as charge:
            assert charge.wait(60.0).kind == "pause"
    finally:
        lease_renewer.close()
    assert [record.action for record in caplog.records] == ["lease_renewer_failed"]
    assert not [
        thread
        for thread in threading.enumerate()
        if thread.name == "adw-lease-renewer" and thread is lease_renewer._thread
    ]


def test_a_database_that_is_away_is_logged_and_asked_again(home, charge, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(home.requests, "open_for", always(DatabaseUnavailable("it is away")))
        home.lease_renewer.look()
    assert [record.action for record in caplog.records] == ["lease_trouble"]

    home.requests.ask(ADW_ID, "pause")
    home.lease_renewer.look()
    assert charge.current().kind == "pause"
