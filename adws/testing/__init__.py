"""
The public fakes: twins in memory of everything adw touches, for adw's own tests and for authors of workflows.

Each twin passes the same contract suite (`tests/contracts`) as the part it stands in for. Nothing here is used by adw
itself, touches a disk, or looks at the real time.
"""

from __future__ import annotations

from adws.adw_modules.circuit_breaker import MemoryBreakers
from adws.testing.checkpoints import MemoryCheckpoints
from adws.testing.clock import START, FakeClock
from adws.testing.deliveries import MemoryDeliveries
from adws.testing.executions import MemoryExecutions
from adws.testing.external_tasks import MemoryExternalTasks
from adws.testing.forge import MemoryForge
from adws.testing.ownership import (
    FakeProcesses,
    Machine,
    MemoryIssueLocks,
    MemoryLeases,
    MemoryLocalLock,
    MemoryRegistry,
    MemoryRequests,
)
from adws.testing.parts import MemoryParts, memory_parts
from adws.testing.reports import MemoryReports
from adws.testing.resources import MemoryPorts, MemoryQuotas
from adws.testing.run_queue import MemoryRunQueue
from adws.testing.runners import MemoryCounters, MemoryRunners
from adws.testing.schedule import MemoryNotifications, MemorySchedule
from adws.testing.sessions import MemorySessions
from adws.testing.stores import MemoryCatalogue, MemoryEventLog, MemoryStore
from adws.testing.work import MemoryOrders, ScriptedCall, ScriptedRunner

__all__ = [
    "START",
    "FakeClock",
    "FakeProcesses",
    "Machine",
    "MemoryBreakers",
    "MemoryCatalogue",
    "MemoryCheckpoints",
    "MemoryCounters",
    "MemoryDeliveries",
    "MemoryEventLog",
    "MemoryExecutions",
    "MemoryExternalTasks",
    "MemoryForge",
    "MemoryIssueLocks",
    "MemoryLeases",
    "MemoryLocalLock",
    "MemoryNotifications",
    "MemoryOrders",
    "MemoryParts",
    "MemoryPorts",
    "MemoryQuotas",
    "MemoryRegistry",
    "MemoryReports",
    "MemoryRequests",
    "MemoryRunQueue",
    "MemoryRunners",
    "MemorySchedule",
    "MemorySessions",
    "MemoryStore",
    "ScriptedCall",
    "ScriptedRunner",
    "memory_parts",
]
