"""
Workflows of nine steps that do nothing, a second: ours beside other engines, interleaved in one run; and their counts.

Ours: the workflow and its run are created, the run is claimed, nine phases of the `python` runner are carried out, each
attempt recorded before it runs and its result before the next, and the run is ended. The others are installed into a
throw-away environment; what each of them promises stands beside its number.

    python scripts/bench/steps.py [--rounds 8] [--batch 20] [--directory DIR] [--environment DIR] [--counts]

Limits: with the files store at least 1 x, with the database store on SQLite at least 2 x the workflows a second of
LangGraph, which commits every step as well. The counts have limits of their own, in a test
(`tests/integration/test_step_counts.py`); `--counts` prints only them.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import step_counts

FILES_LIMIT, DATABASE_LIMIT = 1.0, 2.0
YARDSTICK = "langgraph"
#: Engine -> what to install.
OTHERS = {"langgraph": ("langgraph", "langgraph-checkpoint-sqlite"), "dbos": ("dbos",)}


class Ours(step_counts.NineSteps):
    """Our engine on one store."""

    def __init__(self, home: Path, store: str) -> None:
        super().__init__(home, store)
        kind = "a durable replace for each step" if store == "files" else "each step one commit to SQLite (WAL, FULL)"
        self.durability = f"{kind}; attempt recorded before it runs; queue, lease, issue lock and events included"

    def run(self, count: int) -> float:
        """Carry *count* workflows through and return the seconds."""
        start = time.perf_counter()
        for _ in range(count):
            self.one()

        return time.perf_counter() - start


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
    for name, packages in OTHERS.items():
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=False, capture_output=True)
        if done.returncode:
            print(f"  {name} could not be installed: left out")

    return python


def measure(engines: dict[str, Ours | Other], rounds: int, batch: int) -> dict[str, float]:
    """Return the workflows a second of each engine: the median of *rounds* turns, one engine after the other."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            seconds = engine.run(batch)
            if number:  # the first turn is to get warm
                rates[name].append(batch / seconds)

    return {name: statistics.median(values) for name, values in rates.items()}


def show_counts(directory: Path) -> None:
    """Print what one workflow costs on each store, in counts."""
    for store in ("files", "database"):
        print(f"  adw, {store}: {step_counts.count(directory, store)}")


def main() -> int:
    """Measure, print, and say whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--environment", type=Path, default=None, help="environment of the others, kept for next time")
    parser.add_argument("--counts", action="store_true", help="print the counts alone")
    given = parser.parse_args()
    logging.disable(logging.NOTSET)
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        root = Path(name)
        show_counts(root)
        if given.counts:
            return 0
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
    if YARDSTICK not in rates:
        print(f"  {YARDSTICK} could not be run: nothing to compare with")
        return 1
    is_met = True
    for name, limit in (("adw, files", FILES_LIMIT), ("adw, database", DATABASE_LIMIT)):
        is_met &= verdict.tell(
            f"workflows of nine phases a second, {name} beside {YARDSTICK}", rates[name] / rates[YARDSTICK], least=limit
        )

    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
