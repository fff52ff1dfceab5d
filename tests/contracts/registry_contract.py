"""What every Registry keeps."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import InvalidAdwId, IssueLocked, StateExists, UsageError
from adws.adw_modules.interfaces import Lease
from adws.adw_modules.queue.model import NewRun, RunState
from tests.contracts.worlds import FIRST, SECOND, make_document, make_owner

TTL = 30.0


def register(world, adw_id=FIRST, owner="one", run=None, **changes) -> Lease:
    return world.registry.register(make_document(adw_id, **changes), make_owner(owner), ttl_seconds=TTL, run=run)


class RegistryContract:
    """Mix in and give a `world` fixture."""

    def test_a_new_workflow_has_its_issue_and_its_first_lease(self, world):
        lease = register(world)

        assert lease == Lease(adw_id=FIRST, owner=make_owner("one"), fence=1)
        assert world.locks.holder(42, "acme/widget").adw_id == FIRST
        row = world.leases.read(FIRST)
        assert (row.owner, row.fence) == (make_owner("one"), 1)
        assert row.seconds_left == pytest.approx(TTL, abs=1.0)

    def test_its_lease_is_a_lease_like_any_other(self, world):
        lease = register(world)

        world.leases.renew(lease, ttl_seconds=TTL)
        assert world.leases.release(lease) is True

    def test_a_workflow_without_an_issue_locks_nothing(self, world):
        register(world, issue_number=None)

        assert world.locks.all() == ()
        assert world.leases.read(FIRST).fence == 1

    def test_a_locked_issue_is_refused_and_nothing_is_left(self, world):
        register(world)

        with pytest.raises(IssueLocked, match=FIRST) as refused:
            register(world, SECOND, "two")

        assert (refused.value.issue_number, refused.value.holder) == (42, FIRST)
        assert world.leases.read(SECOND) is None
        assert [lock.adw_id for lock in world.locks.all()] == [FIRST]

    def test_a_workflow_without_a_repository_is_one_of_the_homes_own(self, home_world):
        register(home_world, repository="")

        with pytest.raises(IssueLocked, match=FIRST):
            register(home_world, SECOND, "two", repository="acme/WIDGET")
        register(home_world, SECOND, "two", repository="acme/gadget")

    def test_a_taken_id_is_refused_and_nothing_is_left(self, world):
        register(world)

        with pytest.raises(StateExists):
            register(world, FIRST, "two", issue_number=43)

        assert world.locks.holder(43, "acme/widget") is None
        assert world.leases.read(FIRST).owner == make_owner("one")

    def test_an_issue_that_the_workflow_has_already_is_no_obstacle(self, world):
        world.locks.acquire(42, FIRST, "acme/widget")

        assert register(world).fence == 1

    def test_unregistering_leaves_nothing(self, world):
        lease = register(world)

        world.registry.unregister(lease)

        assert world.leases.read(FIRST) is None
        assert world.locks.all() == ()
        assert register(world, SECOND, "two").fence == 1, "the issue is free again"

    def test_who_was_taken_over_cannot_unregister(self, world):
        lease = register(world)
        world.leases.take(FIRST, make_owner("two"), ttl_seconds=TTL, dead_fence=1)

        world.registry.unregister(lease)

        assert world.leases.read(FIRST).owner == make_owner("two")
        assert world.locks.holder(42, "acme/widget").adw_id == FIRST

    def test_an_id_that_is_no_name_is_refused(self, world):
        with pytest.raises(InvalidAdwId):
            register(world, "../etc")
        assert world.locks.all() == ()

    def test_a_workflow_comes_with_its_first_run(self, world):
        register(world, run=NewRun(adw_id=FIRST, priority=3, payload={"issue": 42}))

        (run,) = world.runs.of_workflow(FIRST)
        assert (run.kind, run.state, run.priority, run.payload) == ("start", RunState.PENDING, 3, {"issue": 42})

    def test_a_workflow_without_a_run_gets_none(self, world):
        register(world)

        assert world.runs.page() == ()

    @pytest.mark.parametrize("why", ["the issue is locked", "the id is taken"])
    def test_a_refused_workflow_leaves_no_run(self, world, why):
        register(world)
        adw_id, number = (SECOND, 42) if why == "the issue is locked" else (FIRST, 43)

        with pytest.raises((IssueLocked, StateExists)):
            register(world, adw_id, "two", issue_number=number, run=NewRun(adw_id=adw_id))

        assert world.runs.page() == ()

    @pytest.mark.parametrize("run", [NewRun(adw_id=SECOND), NewRun(adw_id=FIRST, kind="dance")])
    def test_a_run_that_cannot_be_its_first_is_refused_and_nothing_is_left(self, world, run):
        with pytest.raises(UsageError):
            register(world, run=run)

        assert world.runs.page() == ()
        assert world.leases.read(FIRST) is None
        assert world.locks.all() == ()

    def test_unregistering_takes_the_run_back(self, world):
        lease = register(world, run=NewRun(adw_id=FIRST))
        other = world.runs.enqueue(NewRun(adw_id=SECOND))

        world.registry.unregister(lease)

        assert world.runs.page() == (other,)
