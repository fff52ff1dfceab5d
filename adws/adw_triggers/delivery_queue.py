"""
Deliveries on their way into the database: those that come while others are stored go together next.

One thread stores; a commit costs the same for one delivery and for many, because the disk is what is waited for. Each
is answered after the commit that has it, and gets its own answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from adws.adw_triggers.problems import Problem

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

#: Deliveries of one commit, at most: the first does not wait for a crowd.
MOST_AT_A_TIME = 32
#: Deliveries that wait, at most; more means that the database hangs.
MOST_WAITING = 500

_FULL = Problem(
    status=503,
    code="too_much_at_once",
    message="too many deliveries wait to be stored",
    advice="Redeliver it: the same delivery is stored once.",
    retry_after=1,
)


class DeliveryQueue(Generic[_Item, _Answer]):
    """Hands what waits to one thread, as much at a time as there is."""

    def __init__(self, store: Callable[[Sequence[_Item]], Sequence[_Answer]]) -> None:
        """*store* answers each item, in their order, when all of them are stored."""
        self._store = store
        self._waiting: list[tuple[_Item, asyncio.Future[_Answer]]] = []
        self._is_storing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adw-ingress")

    async def put(self, item: _Item) -> _Answer | Problem:
        """Return the answer to *item*."""
        if len(self._waiting) >= MOST_WAITING:
            return _FULL
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._waiting.append((item, answer))
        loop.call_soon(self._go_on)  # soon, not now: those that arrived with it come along

        return await answer

    def _go_on(self) -> None:
        if self._is_storing or not self._waiting:
            return
        batch, self._waiting = self._waiting[:MOST_AT_A_TIME], self._waiting[MOST_AT_A_TIME:]
        self._is_storing = True
        items = [item for item, _ in batch]
        storing = asyncio.get_running_loop().run_in_executor(self._thread, self._store, items)
        storing.add_done_callback(partial(self._answer, batch))

    def _answer(
        self, batch: Sequence[tuple[_Item, asyncio.Future[_Answer]]], storing: asyncio.Future[Sequence[_Answer]]
    ) -> None:
        self._is_storing = False
        self._go_on()
        error = storing.exception()
        answers = () if error else storing.result()
        for number, (_, waiting) in enumerate(batch):
            if waiting.done():
                continue  # its sender was told that it takes too long
            if error:
                waiting.set_exception(error)
            else:
                waiting.set_result(answers[number])

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False)
