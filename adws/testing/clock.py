"""
A clock that moves only on command.

Randomness comes from a seed, so tests replay exactly.
"""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime, timedelta

from adws.adw_modules.errors import UsageError

#: Default start of a FakeClock.
START = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)


class FakeClock:
    """A `Clock` for tests: `sleep` advances it at once, `advance` and `set` move it by hand."""

    def __init__(self, start: datetime = START, *, seed: int = 0, boottime: float = 1000.0) -> None:
        if start.tzinfo is None:
            raise UsageError("FakeClock needs a start with a time zone")
        self._now = start.astimezone(UTC)
        self._monotonic = boottime
        self._seed = seed
        self._drawn = 0
        self._guard = threading.Lock()
        self.slept: list[float] = []  #: every requested wait, in order

    def now(self) -> datetime:
        """Return the current time of this clock."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that `advance` and `sleep` increase and `set` does not change."""
        return self._monotonic

    def boottime(self) -> float:
        """Return the same as `monotonic`: a fake machine is never suspended."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance by *seconds* at once and record it in `slept`."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance every clock by *seconds*."""
        if not 0.0 <= seconds < float("inf"):
            raise UsageError(
                f"cannot advance by {seconds} seconds: time goes forward; use set() to turn the wall clock"
            )

        with self._guard:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds

    def set(self, moment: datetime) -> None:
        """Set the wall clock to *moment*, even back; as on a real machine, durations do not change."""
        if moment.tzinfo is None:
            raise UsageError("FakeClock.set needs a moment with a time zone")
        self._now = moment.astimezone(UTC)

    def random(self) -> float:
        """Return the next number of the seeded sequence, from 0.0 up to, not including, 1.0."""
        return (int(self.token(), 16) >> 75) / (1 << 53)

    def token(self) -> str:
        """Return the next 32 hex digits of the seeded sequence."""
        with self._guard:
            self._drawn += 1
            return hashlib.sha256(f"{self._seed}:{self._drawn}".encode()).hexdigest()[:32]
