"""What every RunQueue keeps about runs whose workers vanished: it counts them, and ends what nobody survives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.errors import RunLost
from adws.adw_modules.queue.model import NewRun, Run, RunEnd, RunState
from tests.contracts.worlds import FIRST, make_owner

TTL = 30.0
WHY = "5 workers vanished with it"


def enqueue(world) -> Run:
    return world.runs.enqueue(NewRun(adw_id=FIRST))


def claim(world, name="one") -> Run:
    return world.runs.claim(make_owner(name), ttl_seconds=TTL)


class LostRunContract:
    """Mix in and give a `world` fixture."""

    def test_each_worker_that_vanishes_with_a_run_is_counted(self, world):
        enqueue(world)

        counted = [world.runs.take_back(claim(world), reason="gone").losses for _ in range(3)]

        assert counted == [1, 2, 3]
        assert world.runs.of_workflow(FIRST)[0].losses == 3

    def test_a_worker_that_gives_its_run_back_did_not_vanish(self, world):
        enqueue(world)
        world.runs.take_back(claim(world), reason="gone")

        assert world.runs.requeue(claim(world), reason="drained").losses == 1
        assert world.runs.finish(claim(world), RunState.FAILED).losses == 1

    @pytest.mark.parametrize("is_over", [False, True])
    def test_a_buried_run_is_dead_and_says_why(self, world, is_over):
        run = enqueue(world)
        world.runs.begin(claim(world))
        world.let_pass(2 * TTL if is_over else 1.0)
        (seen,) = world.runs.live()

        dead = world.runs.settle_lost(seen, RunEnd(state=RunState.DEAD, reason=WHY))

        assert (dead.state, dead.reason, dead.losses) == (RunState.DEAD, WHY, 1)
        assert (dead.owner, dead.seconds_left) == ("", 0.0)
        assert dead.finished_at is not None
        assert world.runs.get(run.run_id) == dead
        assert world.runs.page(states=[RunState.DEAD]) == (dead,)

    def test_a_dead_run_is_not_claimed_and_makes_room_for_another(self, world):
        run = enqueue(world)
        world.runs.settle_lost(claim(world), RunEnd(state=RunState.DEAD, reason=WHY))

        assert claim(world) is None
        assert world.runs.claim(make_owner(), ttl_seconds=TTL, run_id=run.run_id) is None
        assert world.runs.ask_to_stop(run.run_id).state is RunState.DEAD
        assert enqueue(world).run_id > run.run_id

    def test_one_that_waits_can_be_buried_and_loses_nobody_by_that(self, world):
        enqueue(world)
        waiting = world.runs.take_back(claim(world), reason="gone")

        dead = world.runs.settle_lost(waiting, RunEnd(state=RunState.DEAD, reason=WHY))

        assert (dead.state, dead.losses) == (RunState.DEAD, 1)

    def test_what_was_to_stop_is_stopped_and_not_dead(self, world):
        enqueue(world)
        run = claim(world)
        asked = world.runs.ask_to_stop(run.run_id, reason="wrong issue")

        ended = world.runs.settle_lost(asked, RunEnd(state=RunState.DEAD, reason=WHY))

        assert (ended.state, ended.reason) == (RunState.STOPPED, "wrong issue")

    @pytest.mark.parametrize("moved", ["claimed again", "finished", "taken back", "renewed", "buried", "never there"])
    def test_what_moved_on_is_not_buried(self, world, moved):
        run = enqueue(world)
        mine = claim(world)
        world.let_pass(2 * TTL)
        (seen,) = world.runs.live()
        if moved == "renewed":
            world.runs.renew(mine, ttl_seconds=TTL)
        elif moved == "finished":
            world.runs.finish(mine, RunState.COMPLETED)
        elif moved == "buried":
            world.runs.settle_lost(mine, RunEnd(state=RunState.DEAD, reason="before"))
        elif moved != "never there":
            world.runs.take_back(mine, reason="gone")
        if moved == "claimed again":
            claim(world, "two")
        before = world.runs.get(run.run_id)
        if moved == "never there":
            seen = replace(seen, run_id=seen.run_id + 1000)

        assert world.runs.settle_lost(seen, RunEnd(state=RunState.DEAD, reason="late")) is None

        after = world.runs.get(run.run_id)
        assert (after.state, after.reason, after.owner) == (before.state, before.reason, before.owner)

    def test_the_worker_of_a_buried_run_that_comes_back_changes_nothing(self, world):
        enqueue(world)
        run = claim(world)
        world.runs.settle_lost(run, RunEnd(state=RunState.DEAD, reason=WHY))

        with pytest.raises(RunLost, match="not yours any more"):
            world.runs.finish(run, RunState.COMPLETED)

        assert world.runs.get(run.run_id).state is RunState.DEAD

    @pytest.mark.parametrize("state", [RunState.PENDING, RunState.FAILED, RunState.STOPPED, RunState.DEAD])
    @pytest.mark.parametrize("is_over", [False, True])
    def test_what_recovery_decides_about_a_lost_run_is_done_and_counted(self, world, state, is_over):
        enqueue(world)
        world.runs.begin(claim(world))
        world.let_pass(2 * TTL if is_over else 1.0)
        (seen,) = world.runs.live()

        settled = world.runs.settle_lost(seen, RunEnd(state=state, reason="gone"))

        assert (settled.state, settled.reason, settled.losses) == (state, "gone", 1)
        assert (settled.owner, settled.seconds_left) == ("", 0.0)
        assert (settled.finished_at is None) == (state is RunState.PENDING)
        assert world.runs.get(seen.run_id) == settled
        assert world.runs.settle_lost(seen, RunEnd(state=state, reason="again")) is None

    @pytest.mark.parametrize("state", [RunState.PENDING, RunState.FAILED, RunState.DEAD])
    def test_a_lost_run_that_was_to_stop_is_stopped_whatever_was_decided(self, world, state):
        run = claim(world, "one") if enqueue(world) else None
        world.runs.ask_to_stop(run.run_id, reason="enough")
        (seen,) = world.runs.live()

        settled = world.runs.settle_lost(seen, RunEnd(state=state, reason="gone"))

        assert (settled.state, settled.reason) == (RunState.STOPPED, "enough")

    def test_a_stop_that_nobody_confirmed_says_so(self, world):
        run = claim(world, "one") if enqueue(world) else None
        world.runs.ask_to_stop(run.run_id, reason="enough")
        (seen,) = world.runs.live()

        settled = world.runs.settle_lost(seen, RunEnd(state=RunState.STOPPED, reason="stop unconfirmed: enough"))

        assert settled.reason == "stop unconfirmed: enough"

    def test_a_lost_run_whose_worker_came_back_is_not_settled(self, world):
        enqueue(world)
        run = claim(world)
        world.let_pass(2 * TTL)
        (seen,) = world.runs.live()
        world.runs.renew(run, ttl_seconds=TTL)

        assert world.runs.settle_lost(seen, RunEnd(state=RunState.FAILED, reason="gone")) is None
        assert world.runs.get(run.run_id).state is RunState.CLAIMED

    def test_a_run_that_waits_can_be_settled_and_nobody_was_lost_with_it(self, world):
        run = enqueue(world)

        settled = world.runs.settle_lost(run, RunEnd(state=RunState.FAILED, reason="used up"))

        assert (settled.state, settled.reason, settled.losses) == (RunState.FAILED, "used up", 0)
