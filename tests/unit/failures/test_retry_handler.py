"""Trying again while the caller waits: by a clock that only tests move."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.error_handler import WorkflowError
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import ConfigError, RetriesExhausted, UsageError
from adws.adw_modules.retry_handler import RetryManager, RetryPolicy, RetryStrategy
from adws.testing import FakeClock
from tests.homes import lab_home

QUICK = RetryPolicy(max_attempts=3, backoff_base_seconds=0.1, jitter=False)


@pytest.fixture
def clock():
    return FakeClock()


class Task:
    """Fails with *errors* in turn, then works."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return {"ok": True}


# --- RetryManager: what a caller expects of it -----------------------------------------------------------------


def test_execute_with_retry_succeeds_third(clock):
    task = Task(RuntimeError("fail"), RuntimeError("fail"))

    assert RetryManager(clock=clock).execute_with_retry("t1", QUICK, task) == {"ok": True}
    assert (task.calls, clock.slept) == (3, [0.1, 0.2])


def test_execute_with_retry_exhausted(clock):
    task = Task(*(RuntimeError(f"always fail {n}") for n in range(9)))
    policy = RetryPolicy(max_attempts=2, backoff_base_seconds=0.1, jitter=False)

    with pytest.raises(RuntimeError, match="always fail 1") as caught:
        RetryManager(clock=clock).execute_with_retry("t1", policy, task)

    assert task.calls == 2
    assert caught.value.__notes__ == [
        "attempt 1 failed: RuntimeError: always fail 0",
        "not retried: 2 of 2 attempts are used; the last error: always fail 1",
    ]


def test_execute_with_retry_calls_on_retry(clock):
    calls = []

    def fn():
        if len(calls) < 2:
            raise RuntimeError("fail")
        return {"ok": True}

    def on_retry(task_id, attempt, exc):
        calls.append((task_id, attempt, str(exc), list(clock.slept)))

    RetryManager(clock=clock).execute_with_retry("t1", QUICK, fn, on_retry)

    assert calls == [("t1", 1, "fail", []), ("t1", 2, "fail", [0.1])]


# --- RetryManager: what went wrong elsewhere -------------------------------------------------------------------


def test_a_callback_that_raises_never_takes_the_place_of_the_error(clock):
    def on_retry(task_id, attempt, exc):
        raise KeyError("callback")

    task = Task(*(RuntimeError("real") for _ in range(9)))

    with pytest.raises(RuntimeError, match="real") as caught:
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, task, on_retry)

    assert task.calls == 3
    assert "on_retry failed after attempt 1: KeyError: 'callback'" in caught.value.__notes__
    assert RetryManager(clock=clock).execute_with_retry("t1", QUICK, Task(OSError("x")), on_retry) == {"ok": True}


def test_the_same_error_object_gets_each_note_once(clock):
    same = RuntimeError("same")

    def on_retry(task_id, attempt, exc):
        raise KeyError("callback")

    with pytest.raises(RuntimeError):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, Task(same, same, same), on_retry)

    assert len(same.__notes__) == len(set(same.__notes__)) == 5


@pytest.mark.parametrize("error", [TypeError("bug"), ConfigError("wrong"), FileNotFoundError(2, "none")])
def test_what_trying_again_does_not_help_is_raised_at_once(clock, error):
    task = Task(error)

    with pytest.raises(type(error)):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, task)

    assert (task.calls, clock.slept) == (1, [])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_order_to_stop_is_never_retried(clock, stop):
    task, told = Task(stop()), []

    with pytest.raises(stop):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, task, lambda *args: told.append(args))

    assert (task.calls, clock.slept, told) == (1, [], [])


def test_an_order_to_stop_ends_the_wait():
    class StoppedClock(FakeClock):
        def sleep(self, seconds):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RetryManager(clock=StoppedClock()).execute_with_retry("t1", QUICK, Task(OSError("x")))


def test_the_time_of_the_server_is_waited_for(clock):
    limited = type("E", (Exception,), {"status": 429, "headers": {"Retry-After": "42"}})()

    RetryManager(clock=clock).execute_with_retry("t1", QUICK, Task(limited))
    _strategy(clock).execute_with_retry(Task(limited), "build")

    assert clock.slept == [42.0, 42.0]


def test_attempts_of_earlier_processes_count(clock):
    task = Task(*(RuntimeError("fail") for _ in range(9)))
    manager = RetryManager(clock=clock)

    with pytest.raises(RuntimeError):
        manager.execute_with_retry("t1", QUICK, task, attempts_used=1)
    with pytest.raises(RetriesExhausted, match="3 of 3"):
        manager.execute_with_retry("t1", QUICK, task, attempts_used=3)

    assert (task.calls, clock.slept) == (2, [0.2])


def test_nothing_is_tried_after_the_deadline(clock):
    policy = RetryPolicy(max_attempts=100, backoff_base_seconds=10.0, jitter=False)
    task = Task(*(RuntimeError("fail") for _ in range(99)))

    with pytest.raises(RuntimeError) as caught:
        RetryManager(clock=clock).execute_with_retry("t1", policy, task, deadline=clock.now() + timedelta(seconds=65))

    assert clock.slept == [10.0, 20.0]
    assert "would be after the deadline" in caught.value.__notes__[-1]


def test_the_checkpoint_is_read_again_for_every_attempt(clock):
    class Checkpoints:
        saved = None

        def load_checkpoint(self, task_id):
            return self.saved if task_id == "t1" else None

    checkpoints, seen = Checkpoints(), []

    def fn(checkpoint):
        seen.append(checkpoint)
        checkpoints.saved = {"step": len(seen)}
        if len(seen) < 3:
            raise RuntimeError("fail")
        return "done"

    assert RetryManager(checkpoints, clock=clock).execute_with_retry("t1", QUICK, fn) == "done"
    assert seen == [None, {"step": 1}, {"step": 2}]


def test_a_caller_may_classify_in_its_own_way(clock):
    def classify(exc, phase):
        return WorkflowError(str(exc), ErrorCategory.FATAL, phase)

    task = Task(ConnectionResetError())

    with pytest.raises(ConnectionResetError):
        RetryManager(clock=clock, classify=classify).execute_with_retry("t1", QUICK, task)

    assert task.calls == 1


def test_jitter_comes_from_the_clock(seed):
    policy = RetryPolicy(max_attempts=3, backoff_base_seconds=4.0)
    slept = []
    for _ in range(2):
        clock = FakeClock(seed=seed)
        RetryManager(clock=clock).execute_with_retry("t1", policy, Task(RuntimeError("x"), RuntimeError("x")))
        slept.append(clock.slept)

    assert slept[0] == slept[1]
    assert 3.0 <= slept[0][0] <= 5.0
    assert slept[0] != [4.0, 8.0]


def test_without_a_clock_that_of_the_open_home_is_used():
    parts = lab_home()

    with default_home.using(parts):
        RetryManager().execute_with_retry("t1", QUICK, Task(OSError("x")))
        RetryStrategy(1).execute_with_retry(Task(ConnectionResetError()), "build")

    assert parts.clock.slept[0] == 0.1
    assert len(parts.clock.slept) == 2


# --- RetryStrategy ---------------------------------------------------------------------------------------------


def _strategy(clock, **values):
    return RetryStrategy(**values, clock=clock)


def test_a_strategy_has_bounds_and_retries_three_times_from_one_second_on():
    assert (RetryStrategy().max_retries, RetryStrategy().base_delay) == (3, 1.0)
    assert RetryStrategy(99).max_retries == 99
    for number in (-1, 100):
        with pytest.raises(ValueError, match=f"max_retries is {number}: give a number from 0 to 99"):
            RetryStrategy(number)
    for base in (-1.0, float("nan"), 86_401.0):
        with pytest.raises(ValueError, match="base_delay"):
            RetryStrategy(base_delay=base)


def test_the_last_error_is_classified_and_keeps_the_real_one_as_its_cause(clock):
    real = ConnectionResetError("gone")

    with pytest.raises(WorkflowError, match="gone") as caught:
        _strategy(clock, max_retries=0).execute_with_retry(Task(real), "build")

    assert caught.value.__cause__ is real
    assert (caught.value.category, caught.value.phase) == (ErrorCategory.TRANSIENT, "build")
    assert "not retried: 1 of 1 attempts are used" in caught.value.__notes__[-1]


def test_an_error_that_is_classified_already_is_raised_as_it_is(clock):
    error = WorkflowError("x", ErrorCategory.FATAL, "ship")

    with pytest.raises(WorkflowError) as caught:
        _strategy(clock).execute_with_retry(Task(error), "build")

    assert caught.value is error
    assert error.__cause__ is None


def test_arguments_go_to_the_function_also_one_called_phase(clock):
    def work(one, *, phase, func):
        return (one, phase, func)

    result = _strategy(clock).execute_with_retry(work, "build", 1, phase="its own", func="too")

    assert result == (1, "its own", "too")


@pytest.mark.parametrize(
    ("error", "retries", "base", "waits"),
    [
        (ConnectionResetError(), 3, 1.0, [1.0, 2.0, 4.0]),
        (ConnectionResetError(), 8, 0.5, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
        (Exception("HTTP 500 Internal Server Error"), 6, 1.0, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
        (Exception("rate limit"), 7, 1.0, [1.0, 3.0, 9.0, 27.0, 81.0, 243.0, 300.0]),
        (Exception("usage limit reached"), 6, 2.0, [2.0, 6.0, 18.0, 54.0, 162.0, 300.0]),
        (Exception("rate limit"), 2, 400.0, [300.0, 300.0]),
        (OSError(28, "No space left on device"), 4, 1.0, [2.0, 4.0, 8.0, 16.0]),
        (Exception("port 9100 in use"), 2, 3.0, [6.0, 12.0]),
        (Exception("prompt is too long"), 3, 1.0, [2.0, 4.0, 8.0]),
        (ConnectionResetError(), 2, 0.0, [0.0, 0.0]),
    ],
    ids=str,
)
def test_a_strategy_makes_exactly_the_retries_and_waits_that_its_caller_said(clock, error, retries, base, waits):
    task = Task(*(error for _ in range(99)))

    with pytest.raises(WorkflowError):
        _strategy(clock, max_retries=retries, base_delay=base).execute_with_retry(task, "build")

    assert (task.calls, clock.slept) == (retries + 1, waits)


def test_a_clean_up_runs_before_a_resource_is_tried_again(clock):
    steps = []

    def work():
        steps.append("work")
        if len(steps) < 3:
            raise OSError(28, "No space left on device")

    strategy = RetryStrategy(clock=clock, clean_up=lambda error: steps.append(error.metadata["class"]))
    strategy.execute_with_retry(work, "build")

    assert steps == ["work", "disk", "work"]


def test_a_clean_up_that_fails_ends_the_attempts_and_hides_nothing(clock):
    def clean_up(error):
        raise PermissionError("no")

    task = Task(*(OSError(28, "No space left on device") for _ in range(3)))

    with pytest.raises(WorkflowError, match="No space left") as caught:
        RetryStrategy(clock=clock, clean_up=clean_up).execute_with_retry(task, "build")

    assert task.calls == 1
    assert caught.value.__notes__ == ["not retried: the clean-up failed: PermissionError: no"]


def test_a_strategy_keeps_to_its_deadline(clock):
    task = Task(*(ConnectionResetError() for _ in range(9)))
    strategy = RetryStrategy(99, clock=clock, deadline=clock.now() + timedelta(seconds=12))

    with pytest.raises(WorkflowError):
        strategy.execute_with_retry(task, "build")

    assert (task.calls, clock.slept) == (4, [1.0, 2.0, 4.0])


# --- async functions -------------------------------------------------------------------------------------------


async def slow(*_args):
    raise RuntimeError("never awaited")


async def stream(*_args):
    yield 1


class SlowCall:
    async def __call__(self, *args):
        """Never awaited."""


@pytest.mark.parametrize("function", [slow, stream, SlowCall(), functools.partial(slow)], ids=lambda _: "")
def test_an_async_function_is_refused_before_it_is_called(clock, function):
    message = "is async, and retries call it as a plain function: call asyncio.run inside of it"

    with pytest.raises(UsageError, match=rf"execute_fn \(.*\) {message}"):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, function)
    with pytest.raises(UsageError, match=rf"func \(.*\) {message}"):
        RetryStrategy(clock=clock).execute_with_retry(function, "build")
    with pytest.raises(UsageError, match=rf"on_retry \(.*\) {message}"):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, Task(), function)
    for kind in (RetryManager, RetryStrategy):
        with pytest.raises(UsageError, match=rf"clean_up \(.*\) {message}"):
            kind(clean_up=function)
    assert clock.slept == []


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_never_the_result(clock):
    calls = []

    def started():
        calls.append(1)
        return slow()

    with pytest.raises(UsageError, match="started returned a coroutine, so it is async"):
        RetryManager(clock=clock).execute_with_retry("t1", QUICK, started)
    with pytest.raises(UsageError, match="started returned a coroutine, so it is async"):
        RetryStrategy(clock=clock).execute_with_retry(started, "build")

    assert (len(calls), clock.slept) == (2, [])


def test_a_function_that_runs_its_own_event_loop_is_retried(clock):
    task = Task(ConnectionResetError("gone"))

    async def work():
        return task()

    result = RetryManager(clock=clock).execute_with_retry("t1", QUICK, lambda: asyncio.run(work()))

    assert (result, task.calls, clock.slept) == ({"ok": True}, 2, [0.1])


@pytest.mark.filterwarnings("error")
def test_a_hook_that_returns_a_coroutine_is_noted_and_hides_nothing(clock):
    full = OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        RetryManager(clock=clock, clean_up=lambda _error: slow()).execute_with_retry("t1", QUICK, Task(full))

    assert "clean_up returned a coroutine, so it is async" in caught.value.__notes__[-1]
