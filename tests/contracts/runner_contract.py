"""What all Runners keep."""

from __future__ import annotations

import pytest

from adws.adw_modules.workflow.requirements import Capabilities
from tests.contracts.worlds import make_owner

OFFER = Capabilities(host="testhost", tags=frozenset({"gpu", "big"}))


def register(world, name="one", **more) -> None:
    world.runners.register(make_owner(name), more.pop("offer", OFFER), **{"concurrency": 2, "version": "1.2", **more})


class RunnerContract:
    """Mix in and give a `world` fixture."""

    def test_a_worker_is_listed_as_it_said_it_is(self, world):
        register(world)

        (runner,) = world.runners.all()

        owner = make_owner("one")
        assert (runner.runner_id, runner.owner, runner.tags) == (owner.token, owner, OFFER.tags)
        assert (runner.concurrency, runner.busy, runner.version, runner.is_draining) == (2, 0, "1.2", False)
        assert runner.started_at == runner.heartbeat_at
        assert runner.silent_seconds == pytest.approx(0.0, abs=1.0)

    def test_those_that_came_first_are_listed_first(self, world):
        for name in ("zoe", "ada", "kim"):
            register(world, name)
            world.clock.advance(1.0)

        assert [runner.runner_id for runner in world.runners.all()] == [
            make_owner(name).token for name in ("zoe", "ada", "kim")
        ]

    def test_a_heartbeat_says_how_busy_it_is_and_ends_its_silence(self, world):
        register(world)
        world.let_pass(50.0)
        assert world.runners.all()[0].silent_seconds == pytest.approx(50.0, abs=1.0)

        assert world.runners.beat(make_owner("one"), busy=2, is_draining=True)

        (runner,) = world.runners.all()
        assert (runner.busy, runner.is_draining) == (2, True)
        assert runner.silent_seconds == pytest.approx(0.0, abs=1.0)
        assert runner.heartbeat_at > runner.started_at

    def test_registering_again_is_a_heartbeat_of_the_same_worker(self, world):
        register(world)
        world.let_pass(50.0)
        register(world, concurrency=5)

        (runner,) = world.runners.all()
        assert runner.concurrency == 5
        assert runner.heartbeat_at > runner.started_at
        assert runner.silent_seconds == pytest.approx(0.0, abs=1.0)

    def test_who_is_not_registered_has_to_register(self, world):
        assert not world.runners.beat(make_owner("one"), busy=0)
        assert world.runners.all() == ()

    def test_one_that_left_has_no_place_any_more_and_is_not_heard_again(self, world):
        register(world)
        world.runners.beat(make_owner("one"), busy=1, is_draining=True)
        world.runners.leave(make_owner("one"))
        world.runners.leave(make_owner("one"))

        (runner,) = world.runners.all()
        assert (runner.concurrency, runner.busy, runner.is_draining) == (0, 0, False)
        assert not world.runners.beat(make_owner("one"), busy=1)

    def test_leaving_twice_does_not_move_the_moment(self, world):
        register(world)
        world.runners.leave(make_owner("one"))
        world.let_pass(20.0)

        world.runners.leave(make_owner("one"))

        assert world.runners.all()[0].silent_seconds == pytest.approx(20.0, abs=1.0)

    def test_the_silent_are_forgotten(self, world):
        register(world, "one")
        world.let_pass(100.0)
        register(world, "two")
        world.let_pass(10.0)

        assert world.runners.forget(silent_seconds=200.0) == 0
        assert world.runners.forget(silent_seconds=60.0) == 1
        assert [runner.runner_id for runner in world.runners.all()] == [make_owner("two").token]
        assert world.runners.forget(silent_seconds=60.0) == 0
