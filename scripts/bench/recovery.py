"""
How long recovery takes for many workflows whose worker died in the middle of an attempt.

    python scripts/bench/recovery.py [--workflows 1000] [--store files database] [--directory DIR] [--profile]

A process of its own creates the workflows, claims their runs, begins an attempt of each and is killed; then recovery is
timed: evidence, plan, and every step made durable. The goal is 1,000 in less than 2 seconds on SQLite.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import verdict

from adws import app as app_module
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import LeaseLost
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load
from adws.testing import ScriptedRunner

GOAL_SECONDS = 2.0
#: A lease that is not over while the bench runs: what is found is found by proof of death.
LONG_LEASE = "3600"
SPEC = WorkflowSpec(
    name="benched",
    phases=tuple(
        PhaseSpec(name=name, state=state, runner="command", shell="true")
        for name, state in (("plan", "planning"), ("build", "building"), ("test", "testing"))
    ),
)


def main() -> int:
    """Print a line for each store; exit with 1 when one is slower than the goal."""
    asked = _arguments()
    if asked.populate:
        _populate(Path(asked.directory), asked.store[0], asked.workflows)
    slow = False
    for store in asked.store:
        with tempfile.TemporaryDirectory(dir=asked.directory, prefix="adw-bench-") as place:
            seconds, busy = _measure(Path(place), store, asked.workflows, profile=asked.profile)
        goal = GOAL_SECONDS * asked.workflows / 1000
        print(
            f"{store:9} {asked.workflows} workflows in {seconds:.2f} s, {busy:.2f} s of them busy"
            f" ({seconds / asked.workflows * 1000:.2f} ms each)"
        )
        what = f"recovery of {asked.workflows} workflows, {store} store"
        slow |= not verdict.tell(what, seconds, most=goal, unit="s")

    return 1 if slow else 0


def _measure(home: Path, store: str, count: int, *, profile: bool) -> tuple[float, float]:
    argv = [sys.executable, __file__, "--populate", "--directory", str(home), "--store", store]
    done = subprocess.run([*argv, "--workflows", str(count)], check=False)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit("the workflows could not be made")
    with _open(home, store) as app:
        recovery = app.recovery
        seen = cProfile.Profile() if profile else contextlib.nullcontext()
        started, busy = time.perf_counter(), time.process_time()
        with seen:
            recovery.recover()
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        if isinstance(seen, cProfile.Profile):
            pstats.Stats(seen).sort_stats("tottime").print_stats(40)
        _check(app, count)

    return seconds, busy


def _check(app: app_module.Home, count: int) -> None:
    """Raise SystemExit unless every workflow is ready to go on."""
    waiting = app.runs.page(states=[RunState.PENDING], limit=count + 1)
    closed = [app.store.load(run.adw_id).document.phases[0].attempts[-1].status for run in waiting]
    if len(waiting) != count or set(closed) != {"interrupted"}:
        raise SystemExit(f"{len(waiting)} of {count} runs wait again, with attempts that are {sorted(set(closed))}")


def _populate(home: Path, store: str, count: int) -> None:
    """Begin an attempt in each of *count* workflows, and die."""
    with _open(home, store) as app:
        dying = ScriptedRunner({"plan": [LeaseLost("its process died")] * count})
        app.phase_runners = {"command": dying}
        app.workspace.prepare = lambda _session: None
        owned = []
        for number in range(count):
            app.workflow_creator.start(NewWorkflow(issue_number=number + 1, spec=SPEC))
            run = app.runs.claim(app.processes.me("worker"), ttl_seconds=float(LONG_LEASE))
            if run is None:
                raise SystemExit("nothing is due")
            owning = app.ownership.own(run.adw_id, run=run)
            owned.append(owning)  # kept: a block that is collected would be left in good order
            with contextlib.suppress(LeaseLost):
                WorkSession(app.engine, owning.__enter__(), NoOrders()).attempt()
        if store == "files":
            app.projection.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _open(home: Path, store: str) -> app_module.Home:
    env = {
        "ADW_HOME": str(home),
        "ADW_STATE_STORE": store,
        "ADW_LEASE_TTL_SECONDS": LONG_LEASE,
        "ADW_FORGE_KIND": "none",
    }

    return app_module.open_home(config_load.load(env=env, cwd=home), role="worker")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflows", type=int, default=1000)
    parser.add_argument("--store", nargs="+", choices=["files", "database"], default=["files", "database"])
    parser.add_argument("--directory", help="where to measure; the disk of it counts")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--populate", action="store_true", help=argparse.SUPPRESS)

    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
