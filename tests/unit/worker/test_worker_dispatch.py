"""The worker and its listener: what it was told of is a hint, and is answered for when the work is over."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pytest

from adws.adw_modules.errors import SchemaMismatch
from adws.adw_modules.queue.dispatch import WatchDispatcher
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.worker.worker import Worker
from adws.testing import FakeClock
from tests.unit.conduct_cases import ADW_ID, OTHER, Home


class ScriptedListener:
    """A listener that was told of some runs, and notes what it hears of them."""

    def __init__(self, home: Home, hints: list[int]) -> None:
        self.home, self.hints = home, hints
        self.notes: list[object] = []
        self.trouble: Exception | None = None

    def listen(self, owner, *, places: int) -> Self:
        self.notes.append(("places", places))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notes.append("closed")

    def hear(self, seconds: float) -> bool:
        self.home.clock.sleep(seconds)
        if self.trouble is not None:
            raise self.trouble
        return bool(self.hints)

    def heard(self) -> int | None:
        return self.hints.pop(0) if self.hints else None

    def done(self, run_id: int) -> None:
        result = self.home.runs.get(run_id)
        self.notes.append((run_id, result.state if result else None))

    def sweep(self) -> int:
        self.notes.append("swept")
        return 0


@pytest.fixture
def home():
    made = Home(clock=FakeClock())
    yield made
    made.lease_renewer.close()


def worker(home, listener, **options) -> Worker:
    return home.worker(dispatcher=listener, **{"poll_seconds": 0.025, **options})


def test_a_run_that_was_told_of_is_answered_for_when_the_work_is_over(home):
    home.create(ADW_ID, issue=1)
    (run,) = home.runs.page()
    listener = ScriptedListener(home, [run.run_id])

    worker(home, listener, once=True).run()

    assert listener.notes == [("places", 1), "swept", (run.run_id, RunState.COMPLETED), "closed"]


def test_what_cannot_be_claimed_is_answered_for_at_once(home):
    listener = ScriptedListener(home, [4711, 4712])

    worker(home, listener, once=True).run()

    assert listener.notes == [("places", 1), "swept", (4711, None), "closed"]
    assert listener.hints == [4712], "left for others"


def test_the_next_run_is_claimed_whichever_was_told_of(home):
    """
    The order of the queue is kept, and both hints are answered for.
    """
    for adw_id, issue in ((ADW_ID, 1), (OTHER, 2)):
        home.create(adw_id, issue=issue)
    newer, older = home.runs.page()
    listener = ScriptedListener(home, [newer.run_id, older.run_id])
    ended = []
    made = worker(home, listener, once=True)
    made._on_end = lambda end: ended.append(end.run.run_id)

    made.run()

    assert ended == [older.run_id, newer.run_id]
    assert [note[0] for note in listener.notes if isinstance(note, tuple)][1:] == [newer.run_id, older.run_id]


def test_nothing_is_taken_up_after_the_last_run_that_was_asked_for(home):
    home.create(ADW_ID, issue=1)
    home.runs.enqueue(NewRun(adw_id=OTHER, priority=-5))
    listener = ScriptedListener(home, [1, 2])

    worker(home, listener, max_runs=1).run()

    assert listener.hints == [2]


def test_a_listener_that_can_never_work_ends_the_worker(home):
    listener = ScriptedListener(home, [])
    listener.trouble = SchemaMismatch("made by a newer one")

    with pytest.raises(SchemaMismatch):
        worker(home, listener).run()
    assert listener.notes[-1] == "closed"


def test_looking_is_waiting_and_asks_nobody():
    clock, looks = FakeClock(), [True, False]

    class Watch:
        is_closed = False

        def has_changed(self) -> bool:
            return looks.pop(0)

        def close(self) -> None:
            self.is_closed = True

    watch = Watch()
    with WatchDispatcher(lambda: watch, clock=clock).listen(None, places=3) as listener:
        assert [listener.hear(0.5), listener.hear(0.0)] == [True, False]
        assert (listener.heard(), listener.sweep(), listener.done(1)) == (None, 0, None)

    assert clock.slept == [0.5]
    assert watch.is_closed
