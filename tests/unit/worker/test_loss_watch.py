"""
When to look for workers that vanished: at the end of the first claim, and a few times more when nothing came of it.
"""

from __future__ import annotations

from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.worker.worker import AGAIN_SECONDS, MAX_LOOKS, ExpiryTimer
from tests.contracts.worlds import FIRST, SECOND, make_owner
from tests.homes import lab_home

TTL = 30.0


class World:
    def __init__(self) -> None:
        home = lab_home()
        self.clock, self.runs = home.clock, home.runs
        self.watch = ExpiryTimer(self.runs, self.clock)
        self.asked = 0
        live = self.runs.live

        def counted():
            self.asked += 1
            return live()

        self.runs.live = counted

    def claim(self, adw_id: str = FIRST):
        self.runs.enqueue(NewRun(adw_id=adw_id))
        return self.runs.claim(make_owner("one"), ttl_seconds=TTL)


def test_where_nobody_has_a_run_there_is_nothing_to_wait_for_or_to_ask():
    world = World()

    assert world.watch.seconds_to_look() is None
    world.clock.advance(1000)

    assert not world.watch.has_lost()
    assert world.asked == 1


def test_the_first_claim_that_ends_is_waited_for_and_then_looked_at():
    world = World()
    world.claim()
    world.clock.advance(10)
    world.claim(SECOND)

    assert world.watch.seconds_to_look() == TTL - 10
    world.clock.advance(TTL - 10.5)
    assert not world.watch.has_lost()
    assert world.asked == 1  # not before its time
    world.clock.advance(0.5)

    assert world.watch.has_lost()


def test_a_claim_that_was_renewed_meanwhile_is_not_lost():
    world = World()
    run = world.claim()
    world.watch.seconds_to_look()
    world.clock.advance(TTL - 1)
    world.runs.renew(run, ttl_seconds=TTL)
    world.clock.advance(1)

    assert not world.watch.has_lost()
    assert world.watch.seconds_to_look() == TTL - 1


def test_what_recovery_leaves_alone_is_looked_at_a_few_times_more_and_then_with_all_others():
    world = World()
    world.claim()
    world.watch.seconds_to_look()
    world.clock.advance(TTL)
    looks = 0
    while world.watch.has_lost():
        looks += 1
        rest = world.watch.seconds_to_look()
        if rest is not None:
            assert rest == AGAIN_SECONDS
            world.clock.advance(rest)

    assert looks == MAX_LOOKS
    assert world.watch.seconds_to_look() is None


def test_a_claim_that_another_worker_has_now_is_watched_anew():
    world = World()
    run = world.claim()
    world.watch.seconds_to_look()
    world.clock.advance(TTL)
    assert world.watch.has_lost()
    [seen] = world.runs.live()
    world.runs.take_back(seen, reason="its worker is gone")
    world.runs.claim(make_owner("two"), ttl_seconds=TTL, run_id=run.run_id)

    assert world.watch.seconds_to_look() == TTL
