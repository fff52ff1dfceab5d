"""
When to look for workers that vanished: at the end of the first claim that nobody renewed, not a minute later.

The database says how long each claim lasts. A worker that rests wakes up when the first one ends; one that was renewed
meanwhile is looked at again at its new end. What recovery leaves alone although its claim is over is looked at a few
times more, because the lease of a workflow can end a moment after the claim of its run, and then with every recovery.
"""

from __future__ import annotations

from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import RunQueue

#: Seconds between two looks at a claim that is over, and how often that is done.
AGAIN_SECONDS = 0.25
MAX_LOOKS = 5


class LossWatch:
    """Knows when the next claim ends."""

    def __init__(self, runs: RunQueue, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._look_at = float("inf")
        self._looks: dict[tuple[int, int], int] = {}  #: claim that is over -> how often it was looked at

    def seconds_to_look(self) -> float | None:
        """Return in how many seconds a claim may be over, None when nobody has one; remembers it."""
        live = {(run.run_id, run.token): run.seconds_left for run in self._runs.live()}
        self._looks = {claim: looks for claim, looks in self._looks.items() if claim in live}
        waits = [max(left, self._rest_of(claim)) for claim, left in live.items() if self._is_looked_at(claim)]
        if not waits:
            self._look_at = float("inf")
            return None
        self._look_at = self._clock.monotonic() + min(waits)

        return min(waits)

    def has_lost(self) -> bool:
        """Say whether a claim is over that recovery should look at now; asks the database only when one may be."""
        if self._clock.monotonic() < self._look_at:
            return False
        self._look_at = float("inf")
        over = [(run.run_id, run.token) for run in self._runs.live() if run.seconds_left <= 0.0]
        found = [claim for claim in over if self._is_looked_at(claim)]
        for claim in found:
            self._looks[claim] = self._looks.get(claim, 0) + 1

        return bool(found)

    def _is_looked_at(self, claim: tuple[int, int]) -> bool:
        return self._looks.get(claim, 0) < MAX_LOOKS

    def _rest_of(self, claim: tuple[int, int]) -> float:
        return AGAIN_SECONDS if self._looks.get(claim) else 0.0
