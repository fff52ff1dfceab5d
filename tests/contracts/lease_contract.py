"""What every LeaseBook keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId, LeaseLost, RunLost, StateNotFound, UsageError
from adws.adw_modules.interfaces import Lease, LeaseBusy, LeaseTaken
from adws.adw_modules.queue.model import FINAL_RUNS, NewRun, Run, RunEnd, RunState
from tests.contracts.worlds import FIRST, SECOND, make_owner

TTL = 30.0


def take(world, name, **more) -> LeaseTaken | LeaseBusy:
    return world.leases.take(FIRST, make_owner(name), ttl_seconds=TTL, **more)


def claimed(world) -> Run:
    """Return a run of the workflow that a worker has claimed."""
    world.runs.enqueue(NewRun(adw_id=FIRST))
    return world.runs.claim(make_owner("worker"), ttl_seconds=TTL)


class LeaseContract:
    """Mix in and give a `world` fixture."""

    @pytest.fixture(autouse=True)
    def _a_workflow(self, world):
        world.add_row(FIRST)

    def test_a_free_lease_is_taken_with_the_next_fence(self, world):
        taken = take(world, "one")

        assert taken == LeaseTaken(lease=Lease(adw_id=FIRST, owner=make_owner("one"), fence=1))

    def test_a_live_lease_is_busy_and_says_whose_it_is(self, world):
        take(world, "one")
        world.let_pass(10.0)

        answer = take(world, "two")

        assert isinstance(answer, LeaseBusy)
        assert (answer.row.owner, answer.row.fence) == (make_owner("one"), 1)
        assert answer.row.seconds_left == pytest.approx(20.0, abs=1.0)
        assert world.leases.read(FIRST).owner == make_owner("one"), "asking changed nothing"

    def test_a_live_lease_is_busy_for_its_own_owner_too(self, world):
        take(world, "one")

        assert isinstance(take(world, "one"), LeaseBusy)

    def test_an_ended_lease_is_taken_over_and_names_the_former_owner(self, world):
        take(world, "one")
        world.let_pass(TTL)

        taken = take(world, "two")

        assert taken.lease.fence == 2
        assert (taken.previous, taken.previous_fence) == (make_owner("one"), 1)

    def test_a_lease_lasts_until_its_end(self, world):
        take(world, "one")
        world.let_pass(TTL - 2.0)

        assert isinstance(take(world, "two"), LeaseBusy)

    def test_a_dead_owner_is_taken_over_before_the_end(self, world):
        take(world, "one")

        taken = take(world, "two", dead_fence=1)

        assert taken.lease.fence == 2
        assert (taken.previous, taken.previous_fence) == (make_owner("one"), 1)

    def test_the_proof_of_death_holds_for_one_fence_only(self, world):
        take(world, "one")
        take(world, "two", dead_fence=1)

        assert isinstance(take(world, "three", dead_fence=1), LeaseBusy), "the second owner is not the dead one"

    def test_a_released_lease_is_free_and_has_no_former_owner(self, world):
        taken = take(world, "one")

        assert world.leases.release(taken.lease) is True
        assert world.leases.read(FIRST).owner is None
        again = take(world, "two")
        assert (again.lease.fence, again.previous, again.previous_fence) == (2, None, 0)

    def test_renewing_pushes_the_end_out(self, world):
        taken = take(world, "one")
        world.let_pass(20.0)
        world.leases.renew(taken.lease, ttl_seconds=TTL)
        world.let_pass(20.0)

        assert isinstance(take(world, "two"), LeaseBusy)

    def test_a_claim_is_renewed_with_the_lease(self, world):
        taken = take(world, "one", run=claimed(world))
        world.let_pass(20.0)

        run = world.leases.renew(taken.lease, ttl_seconds=TTL, run=taken.run)

        assert run.seconds_left == pytest.approx(TTL, abs=1.0)
        assert world.leases.read(FIRST).seconds_left == pytest.approx(TTL, abs=1.0)

    def test_without_its_run_no_lease_is_renewed(self, world):
        taken = take(world, "one", run=claimed(world))
        world.runs.requeue(taken.run)
        world.let_pass(10.0)

        with pytest.raises(RunLost):
            world.leases.renew(taken.lease, ttl_seconds=TTL, run=taken.run)
        assert world.leases.read(FIRST).seconds_left == pytest.approx(20.0, abs=1.0)

    def test_an_ended_lease_cannot_be_renewed(self, world):
        taken = take(world, "one")
        world.let_pass(TTL)

        with pytest.raises(LeaseLost, match="ran out"):
            world.leases.renew(taken.lease, ttl_seconds=TTL)
        assert isinstance(take(world, "two"), LeaseTaken)

    def test_who_was_taken_over_can_neither_renew_nor_release(self, world):
        old = take(world, "one").lease
        take(world, "two", dead_fence=1)

        with pytest.raises(LeaseLost, match="taken over"):
            world.leases.renew(old, ttl_seconds=TTL)
        assert world.leases.release(old) is False
        row = world.leases.read(FIRST)
        assert (row.owner, row.fence) == (make_owner("two"), 2)

    @pytest.mark.parametrize("wrong", ["fence", "owner"])
    def test_renewing_and_releasing_need_owner_and_fence(self, world, wrong):
        lease = take(world, "one").lease
        forged = Lease(
            adw_id=FIRST,
            owner=make_owner("two") if wrong == "owner" else lease.owner,
            fence=lease.fence + 1 if wrong == "fence" else lease.fence,
        )

        with pytest.raises(LeaseLost):
            world.leases.renew(forged, ttl_seconds=TTL)
        assert world.leases.release(forged) is False
        world.leases.renew(lease, ttl_seconds=TTL)

    def test_a_released_lease_cannot_be_renewed_or_released_again(self, world):
        lease = take(world, "one").lease
        world.leases.release(lease)

        assert world.leases.release(lease) is False
        with pytest.raises(LeaseLost):
            world.leases.renew(lease, ttl_seconds=TTL)

    def test_the_fence_only_grows(self, world):
        fences = []
        for number in range(6):
            taken = take(world, f"owner {number}")
            fences.append(taken.lease.fence)
            if number % 2:
                world.leases.release(taken.lease)
            world.let_pass(TTL)

        assert fences == [1, 2, 3, 4, 5, 6]

    def test_turning_the_wall_clock_ends_no_lease(self, world):
        take(world, "one")
        world.clock.set(world.clock.now().replace(year=2031))

        assert isinstance(take(world, "two"), LeaseBusy)

    def test_of_many_threads_one_takes_it(self, world):
        start, answers = threading.Barrier(8), []

        def compete(name: str) -> None:
            start.wait()
            answers.append(take(world, name))

        threads = [threading.Thread(target=compete, args=(f"owner {n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        won = [answer for answer in answers if isinstance(answer, LeaseTaken)]
        assert len(answers) == 8
        assert len(won) == 1
        assert world.leases.read(FIRST).owner == won[0].lease.owner

    def test_leases_of_workflows_do_not_touch_each_other(self, world):
        world.add_row(SECOND)
        take(world, "one")

        other = world.leases.take(SECOND, make_owner("two"), ttl_seconds=TTL)

        assert isinstance(other, LeaseTaken)
        assert world.leases.read(FIRST).owner == make_owner("one")

    # --- with a run --------------------------------------------------------------------------------------------

    def test_the_work_on_a_run_begins_with_the_lease(self, world):
        taken = take(world, "one", run=claimed(world))

        assert (taken.lease.fence, taken.run.state) == (1, RunState.RUNNING)
        assert world.runs.get(taken.run.run_id).started_at == taken.run.started_at

    def test_a_run_that_shall_stop_says_so_with_the_lease(self, world):
        run = claimed(world)
        world.runs.ask_to_stop(run.run_id, reason="enough")

        taken = take(world, "one", run=run)

        assert (taken.run.state, taken.run.reason) == (RunState.STOPPING, "enough")

    def test_without_its_run_no_lease_is_taken(self, world):
        run = claimed(world)
        world.runs.requeue(run)

        with pytest.raises(RunLost):
            take(world, "one", run=run)

        row = world.leases.read(FIRST)
        assert (row.owner, row.fence) == (None, 0)

    def test_a_busy_lease_begins_no_run(self, world):
        take(world, "one")
        run = claimed(world)

        assert isinstance(take(world, "two", run=run), LeaseBusy)
        assert world.runs.get(run.run_id).state is RunState.CLAIMED

    @pytest.mark.parametrize("state", sorted(FINAL_RUNS, key=str))
    def test_a_run_ends_with_the_lease(self, world, state):
        taken = take(world, "one", run=claimed(world))

        ended = world.leases.end_run(taken.lease, taken.run, RunEnd(state=state, reason="as it is"))

        assert (ended.state, ended.reason, ended.owner) == (state, "as it is", "")
        assert world.runs.get(ended.run_id).state is state
        assert world.leases.read(FIRST).owner is None

    def test_an_issue_becomes_free_with_the_run_and_no_other_does(self, world):
        world.locks.acquire(42, FIRST, "acme/widget")
        world.locks.acquire(43, FIRST, "acme/widget")
        world.locks.acquire(42, SECOND, "acme/gadget")
        taken = take(world, "one", run=claimed(world))

        world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.COMPLETED), free_issue=42)

        left = {(lock.issue_number, lock.adw_id) for lock in world.locks.all()}
        assert left == {(43, FIRST), (42, SECOND)}

    def test_a_run_that_is_lost_frees_no_issue(self, world):
        world.locks.acquire(42, FIRST, "acme/widget")
        taken = take(world, "one", run=claimed(world))
        world.runs.requeue(taken.run)

        with pytest.raises(RunLost):
            world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.COMPLETED), free_issue=42)

        assert world.locks.verify(42, FIRST, "acme/widget")

    def test_a_run_is_given_back_with_the_lease(self, world):
        taken = take(world, "one", run=claimed(world))
        later = "2027-01-31T09:00:00.000000Z"

        again = world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.PENDING, not_before=later))

        assert (again.state, again.not_before, again.owner) == (RunState.PENDING, later, "")
        assert world.leases.read(FIRST).owner is None

    def test_a_run_that_is_lost_keeps_the_lease_where_it_is(self, world):
        taken = take(world, "one", run=claimed(world))
        world.runs.requeue(taken.run)

        with pytest.raises(RunLost):
            world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.COMPLETED))

        assert world.leases.read(FIRST).owner == make_owner("one")
        assert world.runs.get(taken.run.run_id).state is RunState.PENDING

    def test_who_was_taken_over_ends_its_run_and_not_the_lease_of_the_next(self, world):
        taken = take(world, "one", run=claimed(world))
        take(world, "two", dead_fence=taken.lease.fence)

        ended = world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.STOPPED))

        assert ended.state is RunState.STOPPED
        assert world.leases.read(FIRST).owner == make_owner("two")

    def test_a_run_cannot_end_as_one_that_is_under_way(self, world):
        taken = take(world, "one", run=claimed(world))

        with pytest.raises(UsageError, match="cannot end as running"):
            world.leases.end_run(taken.lease, taken.run, RunEnd(state=RunState.RUNNING))

        assert world.leases.read(FIRST).owner == make_owner("one")

    def test_a_workflow_that_does_not_exist_has_no_lease(self, world):
        assert world.leases.read(SECOND) is None
        with pytest.raises(StateNotFound):
            world.leases.take(SECOND, make_owner(), ttl_seconds=TTL)

    def test_a_row_that_nobody_has_is_shown_as_free(self, world):
        row = world.leases.read(FIRST)

        assert (row.adw_id, row.fence, row.owner, row.seconds_left) == (FIRST, 0, None, 0.0)

    def test_an_id_that_is_no_name_is_refused(self, world):
        with pytest.raises(InvalidAdwId):
            world.leases.read("../etc")
        with pytest.raises(InvalidAdwId):
            world.leases.take("../etc", make_owner(), ttl_seconds=TTL)
