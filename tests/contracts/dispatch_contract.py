"""
What every dispatcher promises: a worker hears of each run that waits, once it is stored and due, and nothing is stuck.

A worker claims only when it has heard something, as here: so a run that was claimed was told of.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from adws.adw_modules.interfaces import Dispatcher, Listener
from adws.adw_modules.queue.model import NewRun, Run, RunState
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

TTL = 30.0
#: How long a test waits for what has to come; far more than it takes.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchWorld:
    """A queue, and what brings its runs to workers."""

    runs: Any
    dispatcher: Dispatcher
    due_in: Callable[[float], str]
    let_pass: Callable[[float], None]
    lose_workers: Callable[[], None]  #: those that listen now look as dead ones do
    tells_which: bool  #: a listener says which run it was told of, and hears when a run becomes due


def listen(world: DispatchWorld, name: str = "one", *, places: int = 1) -> Listener:
    return world.dispatcher.listen(make_owner(name), places=places)


def be_quiet(listener: Listener) -> None:
    """Let the listener say what it has to say, the first yes and what nobody waits for."""
    while listener.hear(0.0):
        hint = listener.heard()
        if hint is not None:
            listener.done(hint)


def claim(world: DispatchWorld, name: str = "one") -> Run | None:
    return world.runs.claim(make_owner(name), ttl_seconds=TTL)


def work(world: DispatchWorld, listener: Listener, name: str = "one") -> tuple[Run, int | None]:
    """Wait as a worker does; return the run that was claimed, and which one it was told of."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if not listener.hear(0.005):
            continue
        hint = listener.heard()
        run = claim(world, name)
        if run is not None:
            return run, hint
        if hint is not None:
            listener.done(hint)

    raise AssertionError("nothing was heard of a run that waits")


def finish(world: DispatchWorld, listener: Listener, run: Run, hint: int | None) -> None:
    world.runs.finish(run, RunState.COMPLETED)
    if hint is not None:
        listener.done(hint)


class DispatchContract:
    """Mix in and give a `world` fixture."""

    def test_a_worker_hears_of_a_run_that_is_stored(self, world):
        with listen(world) as listener:
            be_quiet(listener)
            assert listener.heard() is None
            stored = world.runs.enqueue(NewRun(adw_id=FIRST))
            run, hint = work(world, listener)

        assert run.run_id == stored.run_id
        assert hint == (stored.run_id if world.tells_which else None)

    def test_what_waited_before_anybody_listened_is_heard_of(self, world):
        world.runs.enqueue(NewRun(adw_id=FIRST))
        with listen(world) as listener:
            run, _ = work(world, listener)

        assert run.adw_id == FIRST

    def test_a_run_that_is_given_back_is_told_of_again(self, world):
        with listen(world) as listener:
            be_quiet(listener)
            world.runs.enqueue(NewRun(adw_id=FIRST))
            run, hint = work(world, listener)
            world.runs.requeue(run, reason="later")
            if hint is not None:
                listener.done(hint)
            again, _ = work(world, listener)

        assert (again.run_id, again.token) == (run.run_id, run.token + 1)

    def test_a_run_that_is_taken_back_is_told_of_again(self, world):
        """
        Its first worker never says that it is done: it is dead.
        """
        with listen(world) as dead, listen(world, "two") as other:
            be_quiet(dead)
            be_quiet(other)
            world.runs.enqueue(NewRun(adw_id=FIRST))
            deadline = time.monotonic() + PATIENCE_SECONDS
            run = None
            while run is None and time.monotonic() < deadline:
                if dead.hear(0.0) or other.hear(0.0):
                    run = claim(world)
            world.runs.take_back(run, reason="its worker is gone")
            world.lose_workers()
            other.sweep()
            again, _ = work(world, other, "two")

        assert (again.run_id, again.token) == (run.run_id, run.token + 1)

    def test_a_run_is_not_taken_up_before_its_time(self, world):
        with listen(world) as listener:
            be_quiet(listener)
            world.runs.enqueue(NewRun(adw_id=FIRST, not_before=world.due_in(60)))
            marker = world.runs.enqueue(NewRun(adw_id=SECOND))
            run, hint = work(world, listener)
            assert run.run_id == marker.run_id
            finish(world, listener, run, hint)
            assert claim(world) is None

            world.let_pass(61)
            run, _ = work_when_due(world, listener)

        assert run.adw_id == FIRST

    def test_the_higher_priority_is_first(self, world):
        for adw_id, priority in ((FIRST, 0), (SECOND, 5), (THIRD, -3)):
            world.runs.enqueue(NewRun(adw_id=adw_id, priority=priority))
        done = []
        with listen(world) as listener:
            while len(done) < 3:
                run, hint = work(world, listener)
                done.append(run.adw_id)
                finish(world, listener, run, hint)

        assert done == [SECOND, FIRST, THIRD]

    def test_two_workers_work_on_each_run_once(self, world):
        ids = [f"{number:08x}" for number in range(20)]
        got: Counter[str] = Counter()
        with listen(world, places=2) as one, listen(world, "two", places=2) as two:
            deadline = time.monotonic() + PATIENCE_SECONDS

            def take(listener: Listener, name: str) -> None:
                while sum(got.values()) < len(ids) and time.monotonic() < deadline:
                    if not listener.hear(0.005):
                        continue
                    hint = listener.heard()
                    run = claim(world, name)
                    if run is not None:
                        got[run.adw_id] += 1
                        finish(world, listener, run, hint)
                    elif hint is not None:
                        listener.done(hint)

            threads = [threading.Thread(target=take, args=pair) for pair in ((one, "one"), (two, "two"))]
            for thread in threads:
                thread.start()
            for adw_id in ids:
                world.runs.enqueue(NewRun(adw_id=adw_id))
            for thread in threads:
                thread.join()

        assert got == Counter(ids)

    def test_a_worker_that_dies_with_what_it_was_told_leaves_nothing_stuck(self, world):
        with listen(world) as dead:
            be_quiet(dead)
            world.runs.enqueue(NewRun(adw_id=FIRST))
            wait_for_hint(dead)
            with listen(world, "two") as other:
                be_quiet(other)
                deadline = time.monotonic() + PATIENCE_SECONDS
                # Lost right before the sweep: the first one lives, and its next heartbeat undoes it. A sweep does
                # nothing while another one is under way, such as that of a listener's upkeep.
                world.lose_workers()
                while other.sweep() == 0 and world.tells_which and time.monotonic() < deadline:
                    world.lose_workers()
                run, _ = work_when_due(world, other, "two")

        assert run.adw_id == FIRST

    def test_what_was_not_taken_up_at_the_end_is_left_to_others(self, world):
        with listen(world) as ending:
            be_quiet(ending)
            world.runs.enqueue(NewRun(adw_id=FIRST))
            assert is_heard(ending)
        with listen(world, "two") as other:
            run, _ = work(world, other, "two")

        assert run.adw_id == FIRST

    def test_an_end_leaves_no_thread(self, world):
        before = set(threading.enumerate())
        with listen(world) as listener:
            be_quiet(listener)

        assert set(threading.enumerate()) <= before

    def test_one_that_ends_at_once_ends(self, world):
        before = set(threading.enumerate())
        for _ in range(3):
            with listen(world):
                pass

        assert set(threading.enumerate()) <= before

    def test_to_be_done_with_what_one_was_never_told_of_changes_nothing(self, world):
        with listen(world) as listener:
            listener.done(4711)
            world.runs.enqueue(NewRun(adw_id=FIRST))
            run, _ = work(world, listener)

        assert run.adw_id == FIRST

    def test_a_sweep_of_nothing_gives_up_nothing(self, world):
        with listen(world) as listener:
            assert listener.sweep() == 0
            assert listener.sweep() == 0


class TransactionContract:
    """For queues with transactions: give `world` and `database`."""

    def test_a_run_is_told_of_when_it_is_committed_and_not_before(self, world, database):
        with listen(world) as listener:
            be_quiet(listener)
            with database.write() as session:
                world.runs.enqueue_in(session, NewRun(adw_id=FIRST))
                assert listener.hear(0.0) is False
                assert listener.heard() is None
            run, _ = work(world, listener)

        assert run.adw_id == FIRST

    def test_nothing_is_told_of_what_was_rolled_back(self, world, database):
        def fail() -> None:
            with database.write() as session:
                world.runs.enqueue_in(session, NewRun(adw_id=FIRST))
                raise ZeroDivisionError

        with listen(world) as listener:
            be_quiet(listener)
            with pytest.raises(ZeroDivisionError):
                fail()
            marker = world.runs.enqueue(NewRun(adw_id=SECOND))
            run, hint = work(world, listener)
            assert run.run_id == marker.run_id
            assert hint == (marker.run_id if world.tells_which else None)
            finish(world, listener, run, hint)
            be_quiet(listener)
            assert listener.heard() is None


def is_heard(listener: Listener) -> bool:
    """Wait until the listener says yes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if listener.hear(0.005):
            return True

    return False


def wait_for_hint(listener: Listener) -> int | None:
    """Wait until the listener was told of something, and take it up; None from one that never says what."""
    return listener.heard() if is_heard(listener) else None


def work_when_due(world: DispatchWorld, listener: Listener, name: str = "one") -> tuple[Run, int | None]:
    """Wait as a worker does that also asks the queue when the next run is due: a watch does not see time pass."""
    if world.runs.seconds_to_next() == 0.0:
        run = None if world.tells_which else claim(world, name)
        if run is not None:
            return run, None

    return work(world, listener, name)
