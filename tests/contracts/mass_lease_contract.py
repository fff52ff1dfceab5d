"""What every MassLeases keeps: many leases at a time, each as if it were alone, and all of it or nothing."""

from __future__ import annotations

from adws.adw_modules.interfaces import HandBack, LeaseBusy, LeaseTaken, LeaseWish
from adws.adw_modules.queue.model import NewRun, RunEnd, RunState
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

TTL = 30.0
ME = make_owner("me")


def wish(adw_id: str, dead_fence: int | None = None) -> LeaseWish:
    return LeaseWish(adw_id=adw_id, dead_fence=dead_fence)


def take_one(world, adw_id: str, owner=ME):
    (taken,) = world.leases.take_all([wish(adw_id)], owner, ttl_seconds=TTL)
    return taken.lease


class MassLeaseContract:
    """Mix in and give a `world` fixture."""

    def test_each_lease_is_taken_or_not_as_if_it_were_alone(self, world):
        for adw_id in (FIRST, SECOND):
            world.add_row(adw_id)
        world.leases.take(SECOND, make_owner("other"), ttl_seconds=TTL)

        missing, busy, taken = world.leases.take_all([wish(THIRD), wish(SECOND), wish(FIRST)], ME, ttl_seconds=TTL)

        assert missing is None
        assert isinstance(busy, LeaseBusy)
        assert (busy.row.adw_id, busy.row.owner) == (SECOND, make_owner("other"))
        assert isinstance(taken, LeaseTaken)
        assert (taken.lease.adw_id, taken.lease.fence, taken.previous_fence) == (FIRST, 1, 0)
        assert world.leases.read(FIRST).owner == ME

    def test_the_lease_of_one_that_is_dead_is_taken_by_its_fence(self, world):
        world.add_row(FIRST)
        world.leases.take(FIRST, make_owner("dead"), ttl_seconds=TTL)

        (wrong,) = world.leases.take_all([wish(FIRST, 7)], ME, ttl_seconds=TTL)
        (taken,) = world.leases.take_all([wish(FIRST, 1)], ME, ttl_seconds=TTL)

        assert isinstance(wrong, LeaseBusy)
        assert (taken.lease.fence, taken.previous, taken.previous_fence) == (2, make_owner("dead"), 1)

    def test_one_that_is_over_is_taken_without(self, world):
        world.add_row(FIRST)
        world.leases.take(FIRST, make_owner("late"), ttl_seconds=TTL)
        world.let_pass(2 * TTL)

        assert take_one(world, FIRST).fence == 2

    def test_many_are_read_at_once(self, world):
        ids = [f"{number:08x}" for number in range(450)]
        for adw_id in ids:
            world.add_row(adw_id)
        lease = take_one(world, ids[420])

        result = world.leases.read_all([*ids, "ffffffff"])

        assert set(result) == set(ids)
        assert (result[ids[420]].owner, result[ids[420]].fence) == (ME, lease.fence)
        assert result[ids[0]].owner is None
        assert world.leases.read_all([]) == {}

    def test_what_is_handed_back_is_free_and_its_run_is_settled(self, world):
        world.add_row(FIRST)
        world.runs.enqueue(NewRun(adw_id=FIRST))
        run = world.runs.claim(make_owner("dead"), ttl_seconds=TTL)
        lease = take_one(world, FIRST)

        (settled,) = world.leases.hand_back(
            [HandBack(lease=lease, run=run, end=RunEnd(state=RunState.PENDING, reason="gone"))]
        )

        assert (settled.state, settled.reason, settled.losses) == (RunState.PENDING, "gone", 1)
        assert world.leases.read(FIRST).owner is None

    def test_a_run_that_moved_on_is_left_alone(self, world):
        world.add_row(FIRST)
        world.runs.enqueue(NewRun(adw_id=FIRST))
        run = world.runs.claim(make_owner("dead"), ttl_seconds=TTL)
        world.runs.finish(run, RunState.COMPLETED)
        lease = take_one(world, FIRST)

        end = RunEnd(state=RunState.PENDING, reason="gone")
        assert world.leases.hand_back([HandBack(lease=lease, run=run, end=end)]) == (None,)
        assert world.runs.get(run.run_id).state is RunState.COMPLETED

    def test_a_new_run_is_queued_unless_there_is_one(self, world):
        world.add_row(FIRST)
        lease = take_one(world, FIRST)
        new = HandBack(lease=lease, new_run=NewRun(adw_id=FIRST, kind="resume"))

        (first,), (second,) = world.leases.hand_back([new]), world.leases.hand_back([new])

        assert (first.kind, first.state, second.run_id) == ("resume", RunState.PENDING, first.run_id)

    def test_a_lease_may_be_kept_and_an_issue_freed(self, world):
        world.add_row(FIRST)
        world.locks.acquire(42, FIRST)
        lease = take_one(world, FIRST)

        assert world.leases.hand_back([HandBack(lease=None)]) == (None,)
        assert world.leases.read(FIRST).owner == ME
        world.leases.hand_back([HandBack(lease=lease, free_issue=42)])

        assert (world.leases.read(FIRST).owner, world.locks.holder(42)) == (None, None)
