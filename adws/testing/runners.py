"""
Runners and counters in memory.

Time comes from the clock that is passed in: advance it to make a runner silent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.demands import Offer
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Runner
from adws.adw_modules.owner_record import OwnerRecord


class MemoryRunners:
    """`Runners` in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._runners: dict[str, Runner] = {}
        self._beats: dict[str, float] = {}  #: by Clock.boottime

    def register(self, owner: OwnerRecord, offer: Offer, *, concurrency: int, version: str) -> None:
        """Say that a worker is there; again for the same one is a heartbeat."""
        moment = timestamps.to_text(self._clock.now())
        with self._guard:
            before = self._runners.get(owner.token)
            self._beats[owner.token] = self._clock.boottime()
            self._runners[owner.token] = Runner(
                runner_id=owner.token,
                owner=owner,
                tags=offer.tags,
                concurrency=concurrency,
                busy=before.busy if before else 0,
                version=version,
                is_draining=before.is_draining if before else False,
                started_at=before.started_at if before else moment,
                heartbeat_at=moment,
                silent_seconds=0.0,
            )

    def beat(self, owner: OwnerRecord, *, busy: int, is_draining: bool = False) -> bool:
        """Say that it lives; False when it is not registered any more, and has to register again."""
        return self._change(owner, busy=busy, is_draining=is_draining)

    def leave(self, owner: OwnerRecord) -> None:
        """Say that it ends. Idempotent."""
        self._change(owner, concurrency=0, busy=0, is_draining=False)

    def all(self) -> tuple[Runner, ...]:
        """Return every worker, the oldest first."""
        now = self._clock.boottime()
        with self._guard:
            found = [
                replace(runner, silent_seconds=now - self._beats[runner.runner_id]) for runner in self._runners.values()
            ]

        return tuple(sorted(found, key=lambda runner: (runner.started_at, runner.runner_id)))

    def forget(self, *, silent_seconds: float) -> int:
        """Take those away that were silent for longer, and return how many."""
        silent = [runner.runner_id for runner in self.all() if runner.silent_seconds > silent_seconds]
        with self._guard:
            for runner_id in silent:
                del self._runners[runner_id]

        return len(silent)

    def _change(self, owner: OwnerRecord, **changes: object) -> bool:
        with self._guard:
            runner = self._runners.get(owner.token)
            if runner is None or not runner.concurrency:
                return False
            moment = timestamps.to_text(self._clock.now())
            self._runners[owner.token] = replace(runner, heartbeat_at=moment, **changes)  # type: ignore[arg-type]  # mypy does not know which field is which
            self._beats[owner.token] = self._clock.boottime()

        return True


class MemoryCounters:
    """`Counters` in memory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Count; raise UsageError for an amount below nothing."""
        if not amount >= 0.0:
            raise UsageError(f"the counter {name} only grows: {amount} cannot be added")
        key = name, json.dumps(dict(labels), sort_keys=True)
        with self._guard:
            self._values[key] = self._values.get(key, 0.0) + amount

    def all(self) -> tuple[tuple[str, Mapping[str, str], float], ...]:
        """Return name, labels and value of each, in a fixed order."""
        with self._guard:
            found = sorted(self._values.items())

        return tuple((name, json.loads(labels), value) for (name, labels), value in found)
