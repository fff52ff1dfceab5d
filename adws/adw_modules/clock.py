"""
Time and randomness.

Nothing else in adw reads the clock, sleeps or draws random numbers: code that needs them takes a `Clock`, so that tests
can replace it with `adws.testing.FakeClock`.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from uuid import UUID

from adws.adw_modules.errors import UsageError

#: Bits in the fraction of a float, all used by `random()`.
_FRACTION_BITS = 53
#: CLOCK_BOOTTIME includes suspended time; macOS does not have it.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def uuid_of(token: str) -> str:
    """Return the random UUID made from *token*, the 32 hex digits of `Clock.token`."""
    return str(UUID(hex=token, version=4))


class SystemClock:
    """The clock of this machine; implements `interfaces.Clock`."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring durations."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return seconds since the machine started, including suspended time where the system reports it."""
        if _BOOTTIME is None:
            return time.monotonic()

        return time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*; raise UsageError if they are negative or infinite."""
        if not 0.0 <= seconds < float("inf"):
            raise UsageError(f"cannot sleep for {seconds} seconds: give a number from 0 up")

        time.sleep(seconds)

    def random(self) -> float:
        """Return a number from 0.0 up to, not including, 1.0."""
        return (int.from_bytes(os.urandom(7), "big") >> 3) / (1 << _FRACTION_BITS)

    def token(self) -> str:
        """Return 32 hex digits that nobody can guess."""
        return os.urandom(16).hex()
