"""
Iterations of a loop a second, and what they cost in memory: ours beside other queues, in turns, in one run.

A phase with one step goes over a collection and calls a function that does nothing; four workers, each a process of its
own, do it. Ours stores the collection, makes every call durable before and after it, and tells each iteration in four
events. Beside it on SQLite: Huey with its SQLite queue, four processes, with the same durability (and, to know, without
any). On PostgreSQL: bare Procrastinate, four processes. All store what is to be done, do it and store that it is done.

    python scripts/bench/loop.py [--iterations 10000] [--rounds 3] [--only sqlite memory postgresql] [--environment DIR]
                                 [--directory DIR]

Limits: on SQLite at least 2 x Huey; most memory of a worker at ten times the iterations at most 1.3 x; on PostgreSQL at
least 0.8 x Procrastinate. Exit code 1: a limit was not met.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import postgres_queue
import verdict

from adws import app as app_module
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.config import load as config_load

HUEY_LIMIT, PROCRASTINATE_LIMIT, MEMORY_LIMIT = 2.0, 0.8, 1.3
WORKERS = 4
#: Jobs of the others in one turn: a rate needs no more of them, and Huey is slow when it is durable.
PART = 5
ADW = str(Path(sysconfig.get_path("scripts")) / "adw")

NOOP = "def nothing(number):\n    return number\n"
WORKFLOW = """
[workflows.loop{count}]
[[workflows.loop{count}.phases]]
name = "build"
[[workflows.loop{count}.phases.steps]]
name = "call"
tool = "python"
call = "bench_noop:nothing"
args = {{number = "{{{{ n }}}}"}}
loop = {{collection = "{{{{ range({count}) }}}}", element = "n", mode = "async", concurrency = {workers}}}
"""


class Ours:
    """A home with four workers, each a process."""

    def __init__(self, home: Path, counts: Sequence[int], *, url: str = "") -> None:
        home.mkdir()
        (home / "bench_noop.py").write_text(NOOP)
        (home / "adw.toml").write_text("".join(WORKFLOW.format(count=count, workers=WORKERS) for count in counts))
        env = {"ADW_HOME": str(home), "ADW_FORGE_KIND": "none", **({"ADW_DATABASE_URL": url} if url else {})}
        self._app = app_module.open_home(config_load.load(env=env, cwd=home))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADW_", "PYTHON"))}
        # Compiled code is used as in any installation, also in a checkout that may not be written: compiling takes more
        # memory than any loop, and the first workers would look as if they had needed it for theirs.
        self._env = kept | env | {"PYTHONPYCACHEPREFIX": str(home.parent / "bytecode")}
        self._home = home
        self._log = (home / "workers.log").open("w")
        self._workers = [self._start_worker() for _ in range(WORKERS)]
        self._issue = 0
        self.durability = "every commit synced; claims, attempts, results and four events for each iteration included"

    def _start_worker(self) -> subprocess.Popen[bytes]:
        command = [ADW, "worker", "--concurrency", "1"]
        return subprocess.Popen(command, cwd=self._home, env=self._env, stdout=self._log, stderr=self._log)

    def run(self, count: int) -> float:
        """Carry a loop of *count* iterations through and return the seconds."""
        self._issue += 1
        spec = self._app.workflows.get(f"loop{count}")
        start = time.perf_counter()
        adw_id = self._app.workflow_creator.start(NewWorkflow(issue_number=self._issue, spec=spec)).adw_id
        while (state := self._app.store.load(adw_id).document.current_state) != "completed":
            if state in {"failed", "paused"} or any(worker.poll() is not None for worker in self._workers):
                raise SystemExit(f"the loop is {state}; the workers said:\n{self._said()}")
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        self._check(adw_id, count)

        return seconds

    def _check(self, adw_id: str, count: int) -> None:
        """Raise SystemExit unless every iteration was done once and told once."""
        sql = (
            "SELECT (SELECT count(*) FROM iterations WHERE state = 'completed' AND execution_id LIKE :like),"
            " (SELECT count(*) FROM events WHERE adw_id = :adw_id AND event_type = 'iteration_completed')"
        )
        with self._app.database.read() as session:
            row = session.one(sql, {"adw_id": adw_id, "like": f"{adw_id}%"})
        if row is None or tuple(row) != (count, count):
            raise SystemExit(f"of {count} iterations (rows, events) are done: {row}")

    def peak_megabytes(self) -> float:
        """Return the most memory that a worker has had."""
        return max(_peak(worker.pid) for worker in self._workers)

    def _said(self) -> str:
        self._log.flush()
        return (self._home / "workers.log").read_text()[-3000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait()
        self._log.close()
        self._app.close()


class Other:
    """Another queue in a process of its own."""

    def __init__(self, python: Path, name: str, place: str) -> None:
        script = Path(__file__).with_name("loop_yardsticks.py")
        self._process = subprocess.Popen(
            [str(python), str(script), name, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.durability = self._answer()

    def run(self, count: int) -> float:
        """Store and work off *count* jobs and return the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()

        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"a queue to compare with did not run: {self._process.stderr.read()[-2000:]}")

        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends its workers, and itself
        self._process.wait()


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))

    return int(kilobytes) / 1024


def measure(sides: dict[str, Ours | Other], iterations: int, rounds: int) -> dict[str, float]:
    """Return the rate of each side: the median of *rounds* turns, the order of the sides turned round each time."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            count = iterations if name == "adw" else max(1, iterations // PART)
            if not number:  # the first turn is to get warm
                count = min(count, iterations // 10)
            seconds = sides[name].run(count)
            if number:
                rates[name].append(count / seconds)
                print(f"  round {number}: {name:16} {count / seconds:8.0f} / s", flush=True)

    return {name: statistics.median(item) for name, item in rates.items()}


def report(sides: dict[str, Ours | Other], rates: dict[str, float], *, beside: str, limit: float) -> bool:
    """Print the numbers; say whether ours is fast enough."""
    for name, rate in rates.items():
        print(f"  {name:16} {rate:8.0f} / s   {sides[name].durability}")
        if name not in {"adw", beside}:
            print(f"  {'':16} adw: {rates['adw'] / rate:.2f} x of it, to know")

    return verdict.tell(f"iterations a second beside {beside}", rates["adw"] / rates[beside], least=limit)


def bench_sqlite(root: Path, python: Path, iterations: int, rounds: int) -> bool:
    """Print our rate and Huey's on SQLite; say whether ours is fast enough."""
    print(f"{iterations} iterations of nothing on SQLite, {WORKERS} workers, {rounds} rounds in turns")
    with ExitStack() as stack:
        sides: dict[str, Ours | Other] = {}
        for name in ("huey", "huey-unsynced"):
            (root / name).mkdir()
            sides[name] = stack.enter_context(Other(python, name, str(root / name)))
        sides["adw"] = stack.enter_context(Ours(root / "sqlite", (iterations // 10, iterations)))
        return report(sides, measure(sides, iterations, rounds), beside="huey", limit=HUEY_LIMIT)


def bench_memory(root: Path, iterations: int) -> bool:
    """Print the most memory a worker has for a loop and for one ten times as long; say whether that is flat."""
    peaks = {}
    warm_up = max(1, iterations // 10)
    with Ours(root / "memory-warm-up", (warm_up,)) as ours:
        ours.run(warm_up)
    print("most memory of a worker, each loop with fresh workers")
    for count in (iterations, 10 * iterations):
        with Ours(root / f"memory{count}", (count,)) as ours:
            seconds = ours.run(count)
            peaks[count] = ours.peak_megabytes()
        print(f"  {count:8} iterations: {peaks[count]:7.1f} MB   ({count / seconds:.0f} / s)", flush=True)
    ratio = peaks[10 * iterations] / peaks[iterations]

    return verdict.tell("most memory of a worker at ten times the iterations", ratio, most=MEMORY_LIMIT)


def bench_postgres(root: Path, iterations: int, rounds: int) -> bool:
    """Print our rate and Procrastinate's on one server; say whether ours is fast enough."""
    print(f"{iterations} iterations of nothing on PostgreSQL, {WORKERS} workers, {rounds} rounds in turns")
    with postgres_queue.server(root) as made, ExitStack() as stack:
        bare = Other(Path(sys.executable), "procrastinate", made.get_uri(database="bare"))
        ours = Ours(root / "postgresql", (iterations // 10, iterations), url=made.get_uri(database="ours"))
        sides: dict[str, Ours | Other] = {
            "procrastinate": stack.enter_context(bare),
            "adw": stack.enter_context(ours),
        }
        rates = measure(sides, iterations, rounds)
        return report(sides, rates, beside="procrastinate", limit=PROCRASTINATE_LIMIT)


@contextmanager
def environment(given: Path | None, root: Path) -> Iterator[Path]:
    """Give the Python of an environment with Huey, made unless it is there."""
    place = given or root / "environment"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    has_it = subprocess.run([str(python), "-c", "import huey"], check=False, capture_output=True).returncode == 0
    if not has_it:
        subprocess.run([str(python), "-m", "pip", "install", "-q", "huey"], check=True)
    yield python


def main() -> int:
    """Measure, print, and say whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parts = ("sqlite", "memory", "postgresql")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--environment", type=Path, default=None, help="environment of Huey, kept for next time")
    given = parser.parse_args()
    met = []
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        root = Path(name)
        if "sqlite" in given.only:
            with environment(given.environment, root) as python:
                met.append(bench_sqlite(root, python, given.iterations, given.rounds))
        if "memory" in given.only:
            met.append(bench_memory(root, given.iterations))
        if "postgresql" in given.only:
            met.append(bench_postgres(root, given.iterations, given.rounds))

    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
