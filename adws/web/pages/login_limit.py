"""
How often somebody may try to log in with a wrong token.

After a few failures an address waits, longer each time. So does everybody together after many, so that a thousand
addresses are no way around it. Nothing is counted for logins that went well.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: Failures of one address before it waits, and of all together.
FREE, FREE_TOGETHER = 5, 100
FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 900.0
#: Shorter, because it also holds off those who know the token.
LONGEST_TOGETHER_SECONDS = 30.0
#: Failures are forgotten after so long without another.
FORGET_SECONDS = 3600.0
#: Addresses that are remembered; the one that was quiet longest goes first.
MOST_ADDRESSES = 1000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0  #: by the monotonic clock


class LoginLimit:
    """Counts failures. Threads may share it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._together = _Failures()

    def seconds_left(self, address: str) -> float:
        """Return how long *address* has to wait before it may try again, 0 when it need not."""
        with self._guard:
            now = self._monotonic()
            alone = self._left(self._failures.get(address, _Failures()), FREE, now)
            together = self._left(self._together, FREE_TOGETHER, now)

            return max(alone, min(together, LONGEST_TOGETHER_SECONDS))

    def failed(self, address: str) -> None:
        """Note a wrong token."""
        with self._guard:
            now = self._monotonic()
            for one in (self._failures.setdefault(address, _Failures()), self._together):
                if now - one.last > FORGET_SECONDS:
                    one.count = 0
                one.count += 1
                one.last = now
            self._failures.move_to_end(address)
            while len(self._failures) > MOST_ADDRESSES:
                self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget what *address* did wrong."""
        with self._guard:
            self._failures.pop(address, None)

    @staticmethod
    def _left(failures: _Failures, free: int, now: float) -> float:
        if failures.count < free or now - failures.last > FORGET_SECONDS:
            return 0.0
        # Cap the exponent, not just the product: 2.0 ** 1025 raises OverflowError.
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures.count - free, 32))

        return max(0.0, failures.last + wait - now)
