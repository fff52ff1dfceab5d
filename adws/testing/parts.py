"""
A whole adw in memory: what `ambient` needs, wired from the twins.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from adws.adw_modules.interfaces import Ownership
from adws.testing.checkpoints import MemoryCheckpoints
from adws.testing.clock import FakeClock
from adws.testing.forge import MemoryForge
from adws.testing.ownership import (
    FakeProcesses,
    MemoryIssueLocks,
    MemoryLeases,
    MemoryLocalLock,
    MemoryRegistry,
    MemoryRequests,
)
from adws.testing.reports import MemoryReports
from adws.testing.resources import MemoryQuotas
from adws.testing.run_queue import MemoryRunQueue
from adws.testing.runners import MemoryRunners
from adws.testing.sessions import MemorySessions
from adws.testing.stores import MemoryCatalogue, MemoryEventLog, MemoryStore


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """Satisfies `interfaces.Parts`; the further fields are for tests to turn and look at."""

    store: MemoryStore
    catalogue: MemoryCatalogue
    locks: MemoryIssueLocks
    ownership: Ownership
    clock: FakeClock
    events: MemoryEventLog
    leases: MemoryLeases
    registry: MemoryRegistry
    requests: MemoryRequests
    runs: MemoryRunQueue
    local_lock: MemoryLocalLock
    processes: FakeProcesses
    forge: MemoryForge
    quotas: MemoryQuotas
    checkpoints: MemoryCheckpoints
    sessions: MemorySessions
    runners: MemoryRunners
    reports: MemoryReports


def memory_parts(
    *,
    clock: FakeClock | None = None,
    store: MemoryStore | None = None,
    ttl_seconds: float = 30.0,
    role: str = "library",
    repository: str = "",
) -> MemoryParts:
    """
    Return parts that live in memory, ready for `ambient.using(...)` or `ADWState.load(..., parts=...)`.

    *repository* is that of the imagined home, which documents that name none belong to.
    """
    # Imported here so that a test of a single store does not load the conductors.
    ownership_module = importlib.import_module("adws.adw_modules.coordination.ownership")
    the_clock = clock or FakeClock()
    the_store = store or MemoryStore(clock=the_clock)
    runs = MemoryRunQueue(the_clock)
    locks = MemoryIssueLocks(the_clock, repository=repository)
    leases = MemoryLeases(the_clock, runs, locks)
    registry = MemoryRegistry(leases, locks, runs)
    local_lock = MemoryLocalLock()
    runners = MemoryRunners(the_clock)
    processes = FakeProcesses(the_clock.token)
    ownership: Ownership = ownership_module.WorkflowOwnership(
        store=the_store,
        leases=leases,
        registry=registry,
        local_lock=local_lock,
        processes=processes,
        clock=the_clock,
        locks=locks,
        ttl_seconds=ttl_seconds,
        role=role,
    )

    return MemoryParts(
        store=the_store,
        catalogue=MemoryCatalogue(the_store, repository=repository),
        locks=locks,
        ownership=ownership,
        clock=the_clock,
        events=MemoryEventLog(the_store),
        leases=leases,
        registry=registry,
        requests=MemoryRequests(the_clock),
        runs=runs,
        local_lock=local_lock,
        processes=processes,
        forge=MemoryForge(repository or "acme/widget", clock=the_clock),
        quotas=MemoryQuotas(),
        checkpoints=MemoryCheckpoints(the_clock, leases),
        sessions=MemorySessions(the_clock, runs),
        runners=runners,
        reports=MemoryReports(the_clock, the_store, runs=runs, leases=leases, runners=runners),
    )
