"""
A process that hears of runs and claims them, for the test that freezes it.

Run as `python dispatch_worker.py DATABASE_URL STALLED_SECONDS`. It tells each claim, waits for a line, and says whether
it could finish the run.
"""

from __future__ import annotations

import sys

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.errors import RunLost
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.queue.procrastinate import ProcrastinateDispatcher, ProcrastinateTimes
from adws.adw_modules.queue.store import RunStore


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def work(url: str, stalled: float) -> None:
    clock = SystemClock()
    me = SystemProcesses(clock=clock).me("worker")
    database = open_database(url, clock=clock)
    queue = RunStore(database, clock=clock)
    dispatcher = ProcrastinateDispatcher(database, clock=clock, times=ProcrastinateTimes(stalled=stalled))
    with dispatcher.listen(me, places=1) as listener:
        tell("ready")
        while True:
            hint = listener.heard()
            if hint is None:
                listener.hear(0.025)
                continue
            run = queue.claim(me, ttl_seconds=60.0)
            if run is not None:
                tell(f"claimed {run.run_id} {run.token}")
                if not sys.stdin.readline():
                    return
                try:
                    queue.finish(run, RunState.COMPLETED)
                except RunLost as exc:
                    tell(f"lost {exc}")
                else:
                    tell(f"finished {run.run_id}")
            listener.done(hint)


if __name__ == "__main__":
    work(sys.argv[1], float(sys.argv[2]))
