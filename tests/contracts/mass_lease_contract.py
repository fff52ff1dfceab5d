"""What leases keep when many are taken at a time: each as if it were alone, and all of it or nothing."""

from __future__ import annotations

from adws.adw_modules.interfaces import LeaseBusy, LeaseTaken
from adws.adw_modules.queue.model import NewRun, RunEnd, RunState
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

TTL = 30.0
ME = make_owner("me")


def take_one(world, adw_id: str, owner=ME, dead_fence: int | None = None):
    return world.leases.take_all({adw_id: dead_fence}, owner, ttl_seconds=TTL)[adw_id]


def give_back(world, *works):
    """Do *works*, which take a session, in one transaction."""
    return world.leases.database.transact(lambda session: [work(session) for work in works])


class MassLeaseContract:
    """Mix in and give a `world` fixture."""

    def test_each_lease_is_taken_or_not_as_if_it_were_alone(self, world):
        for adw_id in (FIRST, SECOND):
            world.add_row(adw_id)
        world.leases.take(SECOND, make_owner("other"), ttl_seconds=TTL)

        taken = world.leases.take_all({THIRD: None, SECOND: None, FIRST: None}, ME, ttl_seconds=TTL)

        assert set(taken) == {FIRST, SECOND}
        assert isinstance(taken[SECOND], LeaseBusy)
        assert (taken[SECOND].row.adw_id, taken[SECOND].row.owner) == (SECOND, make_owner("other"))
        assert isinstance(taken[FIRST], LeaseTaken)
        assert (taken[FIRST].lease.adw_id, taken[FIRST].lease.fence, taken[FIRST].previous_fence) == (FIRST, 1, 0)
        assert world.leases.read(FIRST).owner == ME

    def test_the_lease_of_one_that_is_dead_is_taken_by_its_fence(self, world):
        world.add_row(FIRST)
        world.leases.take(FIRST, make_owner("dead"), ttl_seconds=TTL)

        wrong = take_one(world, FIRST, dead_fence=7)
        taken = take_one(world, FIRST, dead_fence=1)

        assert isinstance(wrong, LeaseBusy)
        assert (taken.lease.fence, taken.previous, taken.previous_fence) == (2, make_owner("dead"), 1)

    def test_one_that_is_over_is_taken_without(self, world):
        world.add_row(FIRST)
        world.leases.take(FIRST, make_owner("late"), ttl_seconds=TTL)
        world.let_pass(2 * TTL)

        assert take_one(world, FIRST).lease.fence == 2

    def test_many_are_read_at_once(self, world):
        ids = [f"{number:08x}" for number in range(450)]
        for adw_id in ids:
            world.add_row(adw_id)
        lease = take_one(world, ids[420]).lease

        result = world.leases.read_all([*ids, "ffffffff"])

        assert set(result) == set(ids)
        assert (result[ids[420]].owner, result[ids[420]].fence) == (ME, lease.fence)
        assert result[ids[0]].owner is None
        assert world.leases.read_all([]) == {}

    def test_a_lease_is_released_in_the_transaction_that_settles_the_run(self, world):
        world.add_row(FIRST)
        world.runs.enqueue(NewRun(adw_id=FIRST))
        run = world.runs.claim(make_owner("dead"), ttl_seconds=TTL)
        lease = take_one(world, FIRST).lease

        _, settled = give_back(
            world,
            lambda session: world.leases.release_in(session, lease),
            lambda session: world.runs.settle_in(session, run, RunEnd(state=RunState.PENDING, reason="gone")),
        )

        assert (settled.state, settled.reason, settled.losses) == (RunState.PENDING, "gone", 1)
        assert world.leases.read(FIRST).owner is None

    def test_a_lease_is_released_although_the_run_moved_on(self, world):
        world.add_row(FIRST)
        world.runs.enqueue(NewRun(adw_id=FIRST))
        run = world.runs.claim(make_owner("dead"), ttl_seconds=TTL)
        world.runs.finish(run, RunState.COMPLETED)
        lease = take_one(world, FIRST).lease

        released, settled = give_back(
            world,
            lambda session: world.leases.release_in(session, lease),
            lambda session: world.runs.settle_in(session, run, RunEnd(state=RunState.PENDING, reason="gone")),
        )

        assert (released, settled) == (True, None)
        assert world.runs.get(run.run_id).state is RunState.COMPLETED

    def test_a_lease_is_released_with_a_new_run_unless_there_is_one(self, world):
        world.add_row(FIRST)
        lease = take_one(world, FIRST).lease

        def enqueue(session):
            world.leases.release_in(session, lease)
            return world.runs.enqueue_in(session, NewRun(adw_id=FIRST, kind="resume"))

        (first,), (second,) = give_back(world, enqueue), give_back(world, enqueue)

        assert (first.kind, first.state, second.run_id) == ("resume", RunState.PENDING, first.run_id)

    def test_an_issue_is_freed_with_the_lease(self, world):
        world.add_row(FIRST)
        world.locks.acquire(42, FIRST)
        lease = take_one(world, FIRST).lease

        give_back(world, lambda session: world.leases.release_in(session, lease, free_issue=42))

        assert (world.leases.read(FIRST).owner, world.locks.holder(42)) == (None, None)

    # --- with a claim ------------------------------------------------------------------------------------------

    def test_a_claim_takes_a_lease_that_was_given_back(self, world):
        world.add_row(FIRST)
        world.leases.release(take_one(world, FIRST).lease)

        ((lease, _workflow, state),) = give_back(
            world, lambda session: world.leases.take_free_in(session, FIRST, ME, ttl_seconds=TTL)
        )

        assert (lease.adw_id, lease.owner, lease.fence) == (FIRST, ME, 2)
        assert state == "pending"
        assert world.leases.read(FIRST).seconds_left > 0.0

    def test_a_claim_takes_no_lease_that_somebody_has_or_did_not_give_back(self, world):
        world.add_row(FIRST)
        take_one(world, FIRST, make_owner("other"))

        def take(session):
            return world.leases.take_free_in(session, FIRST, ME, ttl_seconds=TTL)

        assert give_back(world, take) == [None], "somebody has it"
        world.let_pass(2 * TTL)
        assert give_back(world, take) == [None], "it ran out: that is a takeover"
        assert world.leases.read(FIRST).fence == 1
        assert give_back(world, lambda session: world.leases.take_free_in(session, THIRD, ME, ttl_seconds=TTL)) == [
            None
        ]
