"""
A process that claims runs, for the tests that let it compete and kill it.

Run as `python run_queue_worker.py DATABASE_URL MODE NAME`. It waits for a line, works until nothing is left, and tells
each run on standard output before it is finished and after.
"""

from __future__ import annotations

import sys

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.store import RunStore

TTL = 60.0


def open_queue(url: str) -> tuple[RunStore, SystemProcesses]:
    clock = SystemClock()
    processes = SystemProcesses(clock=clock)
    return RunStore(open_database(url, clock=clock, boot_id=processes.boot_id), clock=clock), processes


def work(queue: RunStore, me: OwnerRecord) -> None:
    """Claim, begin, finish, until nothing waits."""
    while (run := queue.claim(me, ttl_seconds=TTL)) is not None:
        tell(f"claimed {run.run_id} {run.token}")
        queue.finish(queue.begin(run), RunState.COMPLETED)
        tell(f"finished {run.run_id} {run.token}")


def ask(queue: RunStore, me: OwnerRecord) -> None:
    """Enqueue a run for each of the same workflows as the others do."""
    for number in range(40):
        run = queue.enqueue(NewRun(adw_id=f"{number:08x}", asked_by=me.token))
        tell(f"got {number} {run.run_id}")


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


MODES = {"work": work, "ask": ask}

if __name__ == "__main__":
    the_queue, the_processes = open_queue(sys.argv[1])
    tell("ready")
    sys.stdin.readline()
    MODES[sys.argv[2]](the_queue, the_processes.me("worker"))
    tell("done")
