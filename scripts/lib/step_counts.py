"""
Nine phases that do nothing, carried through a home: what `scripts/bench/steps.py` times, and what they cost in counts.

The counts do not depend on the machine: function calls as cProfile counts them (Python functions and built-in ones),
write transactions, read transactions and durable writes (a synced commit, or a revision put in its place in a file).
`tests/integration/test_step_counts.py` keeps them within their limits.

    python scripts/lib/step_counts.py STORE     # files or database: the counts as JSON
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adws import app as app_module
from adws.adw_modules.phase import PhaseContext
from adws.adw_modules.store import files, projection
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load

STATES = ("planning", "building", "building", "linting", "testing", "reviewing", "documenting", "shipping", "cleaning")


def nothing(context: PhaseContext) -> None:
    """Do the work of a phase that does nothing."""
    del context


@dataclass(kw_only=True)
class Counts:
    """What one workflow cost."""

    python_calls: int = 0  #: of functions written in Python
    calls: int = 0  #: of all functions, as cProfile counts them
    commits: int = 0  #: write transactions that were synced
    unsynced_commits: int = 0
    reads: int = 0  #: read transactions
    replaces: int = 0  #: revisions of the document put in place in its file

    @property
    def durable_writes(self) -> int:
        """Return how often the disk had to confirm something."""
        return self.commits + self.replaces

    def __str__(self) -> str:
        return (
            f"{self.calls} function calls ({self.python_calls} of Python functions), {self.commits} synced commits, "
            f"{self.replaces} replaces of the document, {self.unsynced_commits} commits without a sync, "
            f"{self.reads} read transactions"
        )


class NineSteps:
    """A home on one store, with a workflow of nine phases that do nothing."""

    def __init__(self, home: Path, store: str) -> None:
        home.mkdir()
        env = {"ADW_HOME": str(home), "ADW_STATE_STORE": store}
        self.app = app_module.open_home(config_load.load(env=env, cwd=home))
        phases = tuple(
            PhaseSpec(name=f"step{number}", state=state, runner="python", call="step_counts:nothing")
            for number, state in enumerate(STATES)
        )
        self.app.workflows.register(WorkflowSpec(name="nine", phases=phases))
        self.spec = self.app.workflows.get("nine")
        self.me = self.app.processes.me("bench")
        self.count = 0

    def one(self) -> None:
        """Create, enqueue, claim, carry out and end one workflow, as `adw run --detach` and a worker do."""
        self.count += 1
        document = self.app.workflow_creator.start(NewWorkflow(issue_number=self.count, spec=self.spec))
        claim = self.app.run_claimer.claim(self.me, ttl_seconds=30.0)
        if claim is None or claim.run.adw_id != document.adw_id:
            raise SystemExit("the queue gave another run")
        end = self.app.run_executor.work(claim)
        if end.run is None or end.run.state.value != "completed":
            raise SystemExit(f"a workflow did not complete: {end}")

    def close(self) -> None:
        """Close the home."""
        self.app.close()


def count(directory: Path, store: str) -> Counts:
    """Return what one workflow of nine phases costs with *store*, in a home below *directory*."""
    counts = Counts()
    # The copy of a file in the database is committed, and synced, by the clock, which would change the counts.
    projection.COLLECT_SECONDS = projection.INTERVAL_SECONDS = 60.0
    with _counting(counts) as switch:
        home = NineSteps(directory / f"counted-{store}", store)
        home.one()  # builds every part
        switch.is_on = True
        home.one()
        switch.is_on = False
        home.close()
    home = NineSteps(directory / f"profiled-{store}", store)
    home.one()
    home.one()
    profile = cProfile.Profile()
    profile.runcall(home.one)
    home.close()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined] # typeshed leaves the attribute out
    for (file, _, _), (_, number, *_) in stats.items():
        counts.calls += number
        counts.python_calls += 0 if file == "~" else number

    return counts


@dataclass
class _Switch:
    is_on: bool = False


@contextmanager
def _counting(counts: Counts) -> Iterator[_Switch]:
    """Count, while the switch is on, transactions of SQLite and revisions that are put in place in a file."""
    switch = _Switch()
    saved = {name: getattr(os, name) for name in ("rename", "replace", "link")}
    opened = sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = opened(*args, **options)
        is_synced, is_write = True, False

        def note(statement: str) -> None:
            nonlocal is_synced, is_write
            words = statement.upper().split()
            if words[:2] == ["PRAGMA", "SYNCHRONOUS"]:
                is_synced = words[-1].rstrip(";") in {"FULL", "EXTRA", "2", "3"}
            elif words[:1] == ["BEGIN"]:
                is_write = "IMMEDIATE" in words
            elif words[:1] == ["COMMIT"] and switch.is_on:
                name = "reads" if not is_write else "commits" if is_synced else "unsynced_commits"
                setattr(counts, name, getattr(counts, name) + 1)

        connection.set_trace_callback(note)
        return connection

    def counted(name: str) -> Callable[..., None]:
        def call(source: Any, target: Any, **options: Any) -> None:
            saved[name](source, target, **options)
            if switch.is_on and os.fspath(target).endswith(files.FILE_NAME):
                counts.replaces += 1

        return call

    try:
        sqlite3.connect = connect
        for name in saved:
            setattr(os, name, counted(name))
        yield switch
    finally:
        sqlite3.connect = opened
        for name, function in saved.items():
            setattr(os, name, function)


if __name__ == "__main__":
    sys.modules["step_counts"] = sys.modules["__main__"]  # the phases name a function of this module
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(asdict(count(Path(name), sys.argv[1]))))
