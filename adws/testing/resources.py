"""
Ports and quotas in memory: nothing is bound, no disk is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.errors import PortsExhausted, QuotaExceeded
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import PortPair, PortRow, QuotaStatus
from adws.adw_modules.resources.ports import BACKEND, FRONTEND, PortRange
from adws.testing.clock import FakeClock


class MemoryPorts:
    """A `Ports` in memory; *foreign* are the ports that other programs listen on, for tests to change."""

    def __init__(self, clock: Clock | None = None, *, ports: PortRange | None = None, host: str = "testhost") -> None:
        self._clock = clock or FakeClock()
        self._range = ports or PortRange()
        self._host = host
        self._pairs: dict[str, tuple[PortPair, str]] = {}
        self._guard = threading.Lock()
        self.foreign: set[int] = set()
        self.held: set[str] = set()  #: workflows whose sockets would be held now

    def take(self, adw_id: str, *, preferred: PortPair | None = None) -> PortPair:
        """Reserve a pair and hold it; raise PortsExhausted. The pair it has when it has one."""
        check_adw_id(adw_id)
        wanted = [preferred] if preferred is not None and preferred in self._range else []
        with self._guard:
            present = self._pairs.pop(adw_id, None)
            first = [present[0]] if present else []
            for pair in (*first, *wanted, *self._range.pairs_for(adw_id)):
                if self._is_free(pair):
                    since = present[1] if present and present[0] == pair else timestamps.to_text(self._clock.now())
                    self._pairs[adw_id] = (pair, since)
                    self.held.add(adw_id)
                    return pair

        raise PortsExhausted(f"no pair of ports is free in {self._range}: free some, or widen the range")

    @contextmanager
    def handed_over(self, adw_id: str) -> Iterator[None]:
        """Let go of the ports inside the block; hold them again after it."""
        self.held.discard(adw_id)
        try:
            yield
        finally:
            if adw_id in self._pairs:
                self.held.add(adw_id)

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free what the workflow has and return it; nothing when it has none."""
        with self._guard:
            present = self._pairs.pop(check_adw_id(adw_id), None)
            self.held.discard(adw_id)

        return () if present is None else tuple(sorted((present[0].backend, present[0].frontend)))

    def all(self) -> tuple[PortRow, ...]:
        """Return every reservation."""
        rows = [
            PortRow(port=port, adw_id=adw_id, purpose=purpose, host=self._host, reserved_at=since)
            for adw_id, (pair, since) in self._pairs.items()
            for port, purpose in ((pair.backend, BACKEND), (pair.frontend, FRONTEND))
        ]

        return tuple(sorted(rows, key=lambda row: row.port))

    def _is_free(self, pair: PortPair) -> bool:
        ports = {pair.backend, pair.frontend}
        taken = {port for other, _ in self._pairs.values() for port in (other.backend, other.frontend)}

        return not ports & (taken | self.foreign)


class MemoryQuotas:
    """A `Quotas` in memory: a number of places; `measured` is what it says of everything else, for tests to change."""

    def __init__(self, *, max_runs: int = 15) -> None:
        self._max_runs = max_runs
        self._guard = threading.Lock()
        self.places: dict[str, float | None] = {}  #: workflow -> its estimate
        self.measured: list[QuotaStatus] = []

    def status(self, *, estimated_cost: float | None = None) -> tuple[QuotaStatus, ...]:
        """Return every limit."""
        cost = QuotaStatus(
            name="cost",
            used=estimated_cost or 0.0,
            limit=10.0,
            unit="USD",
            is_exceeded=(estimated_cost or 0.0) > 10.0,
            detail="what the workflow will cost is not known" if estimated_cost is None else "raise quota.max_cost",
            is_known=estimated_cost is not None,
        )

        return (*self.measured, cost, self._runs(len(self.places)))

    def admit(
        self,
        adw_id: str,
        *,
        estimated_cost: float | None = None,
        spent: float | None = None,
        cap: float | None = None,
    ) -> None:
        """Reserve a place for a workflow; raise QuotaExceeded naming the limit and what to do."""
        del spent, cap  # its one limit of money is what is expected
        check_adw_id(adw_id)
        with self._guard:
            others = len(self.places.keys() - {adw_id})
            runs = replace(self._runs(others), is_exceeded=others >= self._max_runs)
            for status in (*self.status(estimated_cost=estimated_cost)[:-1], runs):
                if status.is_exceeded:
                    raise QuotaExceeded(status.name, f"the quota {status.name} is used up: {status.detail}")
            self.places[adw_id] = estimated_cost

    def release(self, adw_id: str) -> None:
        """Give the place back."""
        with self._guard:
            self.places.pop(check_adw_id(adw_id), None)

    def _runs(self, used: int) -> QuotaStatus:
        return QuotaStatus(
            name="runs",
            used=used,
            limit=self._max_runs,
            unit="workflows",
            is_exceeded=used > self._max_runs,
            detail=f"{used} of {self._max_runs} workflows are being worked on: wait for one to end",
        )
