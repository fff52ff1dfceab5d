"""
Workflows of nine steps that do nothing, a second: ours beside other engines, interleaved in one run.

Ours: the workflow and its run are created, the run is claimed, nine phases of the `python` runner are carried out, each
attempt recorded before it runs and its result before the next, and the run is ended. The others are installed into a
throw-away environment; what each of them promises stands beside its number.

    python scripts/bench/steps.py [--rounds 8] [--batch 20] [--directory DIR] [--environment DIR]

Limits: with the files store at least 1.8 x, with the database store on SQLite at least 3 x the best of those that are
durable at every step.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import verdict

from adws import app as app_module
from adws.adw_modules.phase import PhaseContext
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load

FILES_LIMIT, DATABASE_LIMIT = 1.8, 3.0
#: Engine -> what to install, and whether each of its steps is durable before the next begins.
OTHERS = {
    "langgraph": (("langgraph", "langgraph-checkpoint-sqlite"), True),
    "dbos": (("dbos",), True),
    "prefect": (("prefect", "fastapi<0.130"), False),
    "luigi": (("luigi",), False),
}
STATES = ("planning", "building", "building", "linting", "testing", "reviewing", "documenting", "shipping", "cleaning")


def nothing(context: PhaseContext) -> None:
    """Do the work of a phase that does nothing."""
    del context


class Ours:
    """Our engine on one store."""

    def __init__(self, home: Path, store: str) -> None:
        home.mkdir()
        self.app = app_module.open_home(config_load.load(env={"ADW_HOME": str(home), "ADW_STORE": store}, cwd=home))
        phases = tuple(
            PhaseSpec(name=f"step{number}", state=state, runner="python", call=f"{__name__}:nothing")
            for number, state in enumerate(STATES)
        )
        self.app.workflows.register(WorkflowSpec(name="nine", phases=phases))
        self.spec = self.app.workflows.get("nine")
        self.me = self.app.processes.me("bench")
        self.count = 0
        kind = "a durable replace for each step" if store == "files" else "each step one commit to SQLite (WAL, FULL)"
        self.durability = f"{kind}; attempt recorded before it runs; queue, lease, issue lock and events included"

    def run(self, count: int) -> float:
        """Carry *count* workflows through and return the seconds."""
        start = time.perf_counter()
        for _ in range(count):
            self.one()

        return time.perf_counter() - start

    def one(self) -> None:
        """Create, enqueue, claim, carry out and end one workflow, as `adw run --detach` and a worker do."""
        self.count += 1
        document = self.app.workflow_creator.start(NewWorkflow(issue_number=self.count, spec=self.spec))
        run = self.app.runs.claim(self.me, ttl_seconds=30.0)
        if run is None or run.adw_id != document.adw_id:
            raise SystemExit("the queue gave another run")
        end = self.app.run_executor.work(run)
        if end.run is None or end.run.state.value != "completed":
            raise SystemExit(f"a workflow did not complete: {end}")

    def close(self) -> None:
        """Close the home."""
        self.app.close()


class Other:
    """Another engine in a process of its own."""

    def __init__(self, name: str, python: Path, directory: Path) -> None:
        directory.mkdir()
        script = Path(__file__).with_name("yardsticks.py")
        self.process = subprocess.Popen(
            [str(python), str(script), name, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.durability = self._answer()
        if not self.durability:
            self.close()
            raise RuntimeError(f"{name} did not start")

    def run(self, count: int) -> float:
        """Carry *count* workflows through and return the seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def make_environment(directory: Path) -> Path:
    """Return the Python of an environment with the other engines, made unless it is there."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    for name, (packages, _) in OTHERS.items():
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=False, capture_output=True)
        if done.returncode:
            print(f"  {name} could not be installed: left out")

    return python


def measure(engines: dict[str, Ours | Other], rounds: int, batch: int) -> dict[str, float]:
    """Return the workflows a second of each engine: the median of *rounds* turns, one engine after the other."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            seconds = engine.run(max(1, batch // 10) if name == "prefect" else batch)
            if number:  # the first turn is to get warm
                rates[name].append((max(1, batch // 10) if name == "prefect" else batch) / seconds)

    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> int:
    """Measure, print, and say whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--environment", type=Path, default=None, help="environment of the others, kept for next time")
    given = parser.parse_args()
    logging.disable(logging.NOTSET)
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        root = Path(name)
        python = make_environment(given.environment or root / "environment")
        engines: dict[str, Ours | Other] = {
            "adw, files": Ours(root / "files", "files"),
            "adw, database": Ours(root / "database", "database"),
        }
        for other in OTHERS:
            try:
                engines[other] = Other(other, python, root / other)
            except (RuntimeError, OSError) as exc:
                print(f"  {exc}: left out")
        try:
            rates = measure(engines, given.rounds, given.batch)
            return report(engines, rates)
        finally:
            for engine in engines.values():
                engine.close()


def report(engines: dict[str, Ours | Other], rates: dict[str, float]) -> int:
    """Print the numbers and return the exit code."""
    for name, rate in rates.items():
        print(f"  {name:14} {rate:7.1f} workflows/s   {engines[name].durability}")
    durable = {name: rate for name, rate in rates.items() if OTHERS.get(name, ("", False))[1]}
    if not durable:
        print("  no other durable engine could be run: nothing to compare with")
        return 1
    best = max(durable, key=lambda name: durable[name])
    is_met = True
    for name, limit in (("adw, files", FILES_LIMIT), ("adw, database", DATABASE_LIMIT)):
        is_met &= verdict.tell(
            f"workflows of nine phases a second, {name} beside {best}", rates[name] / durable[best], least=limit
        )

    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
