"""
A process that asks for a place or for ports, for the tests that let many compete.

Run as `python quota_asker.py DATABASE_URL TREES MODE ADW_ID [FIRST_PORT COUNT]`: it waits for a line, asks, tells, and
waits for another line before it ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.errors import PortsExhausted, QuotaExceeded
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.resources.ports import PortRange, Ports
from adws.adw_modules.resources.quotas import Limits, Quotas


def ask(url: str, trees: str, mode: str, adw_id: str, *numbers: str) -> str:
    clock = SystemClock()
    processes = SystemProcesses(clock=clock)
    database = open_database(url, clock=clock, boot_id=processes.boot_id)
    tell("ready")
    sys.stdin.readline()
    if mode == "ports":
        first, count = map(int, numbers)
        span = PortRange(backend_start=first, frontend_start=first + count, count=count)
        global held  # noqa: PLW0603 - the sockets live as long as the process
        held = Ports(database, clock=clock, me=processes.me("worker"), ports=span)
        pair = held.take(adw_id)
        return f"{pair.backend} {pair.frontend}"
    limits = Limits(min_free_disk=1, min_free_memory=1)
    Quotas(database, clock=clock, trees=Path(trees), host="one", limits=limits).admit(adw_id)

    return "in"


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


held: Ports

if __name__ == "__main__":
    try:
        tell(ask(*sys.argv[1:]))
    except (PortsExhausted, QuotaExceeded) as exc:
        tell(f"refused {getattr(exc, 'name', 'ports')}")
    sys.stdin.readline()
