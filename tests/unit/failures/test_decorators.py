"""`RetryManager` and `CircuitBreaker` as decorator, as context manager and by a plain call."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import timedelta

import pytest

from adws.adw_modules.error_handler import ErrorCategory, ErrorClassifier, WorkflowError
from adws.adw_modules.errors import UsageError
from adws.durability import (
    CircuitBreaker,
    CircuitBreakerConfig,
    CircuitOpen,
    CircuitState,
    RetryManager,
    RetryPolicy,
)
from adws.testing import START, FakeClock

THREE = RetryPolicy(max_attempts=3, backoff_base_seconds=1.0, jitter=False)
TOUCHY = CircuitBreakerConfig(failure_threshold=1, reset_timeout_seconds=60.0)


class Service:
    """Raises the given errors one after the other, then answers with its arguments."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return args, kwargs


def gone() -> ConnectionError:
    return ConnectionResetError("connection reset by peer")


async def slow(*_args):
    """Never awaited."""


async def stream(*_args):
    yield 1


class SlowCall:
    async def __call__(self, *args):
        """Never awaited."""


@pytest.fixture
def clock(seed):
    return FakeClock(seed=seed)


@pytest.fixture
def retry(clock):
    return RetryManager(policy=THREE, clock=clock)


@pytest.fixture
def breaker(clock):
    return CircuitBreaker("mail", TOUCHY, clock=clock, exclude=(ValueError,))


def repeat(attempts, work) -> None:
    for attempt in attempts:
        with attempt:
            work()


# --- retries ---------------------------------------------------------------------------------------------------


def test_a_call_passes_its_arguments_and_names_its_attempts(retry, clock):
    assert retry.call(Service(gone()), 1, two=2) == ((1,), {"two": 2})

    result = retry.run(Service(gone(), gone()), "func", func="its own")
    assert (result.value, result.attempts) == ((("func",), {"func": "its own"}), 3)
    assert clock.now() == START + timedelta(seconds=1 + 1 + 2)


def test_a_decorated_function_or_method_is_retried_and_keeps_its_name(retry):
    service = Service(gone(), gone())

    class Client:
        """A client."""

        @retry
        def fetch(self, table, *, limit=1):
            """Return rows."""
            return service(table, limit=limit)

    assert Client().fetch("orders", limit=7) == (("orders",), {"limit": 7})
    assert (Client.fetch.__name__, Client.fetch.__doc__, service.calls) == ("fetch", "Return rows.", 3)


def test_a_decorated_function_begins_anew_with_each_call(retry):
    failing = retry(Service(*(gone() for _ in range(5))))

    with pytest.raises(ConnectionResetError) as caught:
        failing()
    assert caught.value.__notes__[-1].startswith("not retried: 3 of 3 attempts are used")
    assert failing() == ((), {})


def test_a_block_is_repeated_until_it_works(retry, clock):
    service, numbers = Service(gone(), gone()), []
    for attempt in retry.attempts():
        with attempt:
            numbers.append(attempt.number)
            result = service("x")

    assert (numbers, result) == ([1, 2, 3], (("x",), {}))
    assert clock.now() == START + timedelta(seconds=3)


@pytest.mark.parametrize(
    ("failures", "calls"), [([gone(), gone(), gone()], 3), ([TypeError("a bug")], 1)], ids=["used-up", "not-retried"]
)
def test_the_last_error_leaves_its_block(retry, failures, calls):
    service = Service(*failures)

    with pytest.raises(type(failures[-1])) as caught:
        repeat(retry.attempts(), service)
    assert service.calls == calls
    assert "not retried" in caught.value.__notes__[-1]


def test_a_block_that_is_left_or_stopped_is_not_repeated(retry):
    service = Service(gone(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        repeat(retry.attempts(), service)
    assert service.calls == 2

    for attempt in retry.attempts():
        with attempt:
            break
    assert attempt.number == 1


def test_an_attempt_that_is_not_used_is_an_error_and_no_endless_loop(retry):
    with pytest.raises(UsageError, match="do the work inside of `with attempt:`"):
        for _attempt in retry.attempts():
            pass


def test_a_deadline_ends_the_attempts_of_a_block(retry, clock):
    service = Service(gone(), gone())
    with pytest.raises(ConnectionResetError):
        repeat(retry.attempts("fetch", deadline=clock.now() + timedelta(seconds=2)), service)
    assert service.calls == 2


# --- breakers --------------------------------------------------------------------------------------------------


def test_a_decorated_function_is_not_called_while_the_breaker_is_open(breaker, clock):
    service = Service(gone())
    guarded = breaker(service.__call__)

    with pytest.raises(ConnectionResetError):
        guarded()
    with pytest.raises(
        CircuitOpen, match=r"the circuit breaker mail is open, no calls until 2026-.*connection reset"
    ) as caught:
        guarded()
    assert (service.calls, caught.value.name, caught.value.until) == (1, "mail", clock.now() + timedelta(seconds=60))

    clock.advance(60)
    assert guarded(1, two=2) == ((1,), {"two": 2})
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (gone(), CircuitState.OPEN),
        (ValueError("the service says that the request is wrong"), CircuitState.CLOSED),
        (KeyboardInterrupt(), CircuitState.CLOSED),
    ],
    ids=["failure", "excluded", "order-to-stop"],
)
def test_what_leaves_a_block_is_raised_and_recorded(breaker, error, state):
    with pytest.raises(type(error)), breaker:
        raise error
    assert breaker.state is state


def test_an_order_to_stop_frees_the_place_of_a_trial(breaker, clock):
    breaker.record_failure()
    clock.advance(60)
    with pytest.raises(KeyboardInterrupt), breaker:
        raise KeyboardInterrupt

    assert breaker.can_execute()


def test_blocks_may_be_nested_and_breakers_shared_by_threads(clock):
    outer, inner = (CircuitBreaker(name, TOUCHY, clock=clock) for name in ("outer", "inner"))
    ready, done = threading.Event(), threading.Event()

    def other_thread():
        with outer:
            ready.set()
            done.wait(10)

    thread = threading.Thread(target=other_thread)
    thread.start()
    ready.wait(10)
    with outer:
        with pytest.raises(ConnectionResetError), inner, outer:
            raise gone()
        assert (outer.state, inner.state) == (CircuitState.OPEN, CircuitState.OPEN)
    done.set()
    thread.join()

    # Both other blocks began before it opened: their success is too late to close it.
    assert outer.state is CircuitState.OPEN


def test_a_block_inside_an_async_function_is_guarded(breaker):
    async def work():
        with breaker:
            await asyncio.sleep(0)
            raise gone()

    with pytest.raises(ConnectionResetError):
        asyncio.run(work())
    assert breaker.state is CircuitState.OPEN


def test_retries_around_a_breaker_wait_until_it_admits_a_call(retry, breaker, clock):
    service = Service(gone())

    assert retry.run(breaker(service.__call__), "x").attempts == 3
    assert service.calls == 2
    assert clock.now() >= START + timedelta(seconds=60)


# --- async functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [slow, stream, SlowCall(), functools.partial(slow)], ids=lambda _: "")
@pytest.mark.parametrize("way", ["decorator", "call"])
def test_an_async_function_is_refused_before_it_is_called(retry, breaker, function, way):
    for part, message in ((retry, "retries call it as a plain function"), (breaker, "a breaker calls it as a plain")):
        with pytest.raises(UsageError, match=f"is async, and {message}"):
            part(function) if way == "decorator" else part.call(function)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_never_the_result(retry, breaker):
    def started(*args):
        return slow(*args)

    for part in (retry, breaker):
        with pytest.raises(UsageError, match="is async"):
            part(started)()


# --- classified errors -----------------------------------------------------------------------------------------


def test_a_classified_error_has_its_class_and_advice():
    network = ErrorClassifier.classify(gone(), "fetch")
    plain = WorkflowError("gone wrong", ErrorCategory.FATAL, "fetch")

    assert (network.error_class, network.advice[:34]) == ("network", "The service could not be reached. ")
    assert (plain.error_class, plain.advice) == (
        "fatal",
        "A retry does not help. Read the message and the traceback.",
    )
