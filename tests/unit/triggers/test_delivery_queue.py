"""Deliveries that come at once are stored together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from adws.adw_triggers import trigger_webhook
from adws.adw_triggers.trigger_webhook import DeliveryQueue


class Store:
    """Notes what is stored together; the first time it waits until the test lets it go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.trouble: Exception | None = None

    def __call__(self, items):
        self.batches.append(list(items))
        assert self.go.wait(30)
        if self.trouble:
            raise self.trouble
        return [f"answer {item}" for item in items]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def queue(store):
    made = DeliveryQueue(store)
    yield made
    store.go.set()
    made.close()


async def put_all(queue, store, count: int) -> list:
    """Put so many at once; nothing is stored before all of them wait."""
    putting = [asyncio.ensure_future(queue.put(0))]
    while not store.batches:  # noqa: ASYNC110 - the store works in a thread, which has no asyncio.Event
        await asyncio.sleep(0)
    putting += [asyncio.ensure_future(queue.put(number)) for number in range(1, count)]
    for _ in range(5):
        await asyncio.sleep(0)  # each comes to where it waits
    store.go.set()
    return await asyncio.gather(*putting, return_exceptions=True)


def test_those_that_come_while_others_are_stored_go_together_next(queue, store):
    answers = asyncio.run(put_all(queue, store, 10))

    assert answers == [f"answer {number}" for number in range(10)]
    assert store.batches == [[0], list(range(1, 10))]


def test_a_crowd_is_stored_in_parts(queue, store, monkeypatch):
    monkeypatch.setattr(trigger_webhook, "MOST_AT_A_TIME", 4)

    answers = asyncio.run(put_all(queue, store, 10))

    assert answers == [f"answer {number}" for number in range(10)]
    assert max(map(len, store.batches)) == 4


def test_when_too_many_wait_the_next_is_told_to_come_later(queue, store, monkeypatch):
    monkeypatch.setattr(trigger_webhook, "MOST_WAITING", 3)

    answers = asyncio.run(put_all(queue, store, 6))

    assert [getattr(answer, "status", 202) for answer in answers] == [202, 202, 202, 202, 503, 503]


def test_an_error_reaches_all_that_were_in_the_batch_and_the_next_are_stored(queue, store):
    store.trouble = ZeroDivisionError("a bug")
    answers = asyncio.run(put_all(queue, store, 2))
    store.trouble = None

    assert {type(answer) for answer in answers} == {ZeroDivisionError}
    assert asyncio.run(queue.put(7)) == "answer 7"


def test_who_gave_up_waiting_keeps_nobody_from_his_answer(queue, store):
    async def scenario():
        late = asyncio.ensure_future(queue.put(1))
        other = asyncio.ensure_future(queue.put(2))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.sleep(0)
        store.go.set()
        return await other

    assert asyncio.run(scenario()) == "answer 2"
