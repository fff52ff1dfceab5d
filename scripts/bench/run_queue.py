"""
What the run queue costs: claim and finish, the way from enqueue to start, and waiting for nothing.

Claim and finish stand beside a queue written by hand with the same durability (SQLite, WAL, synchronous=FULL, one
commit for the claim and one for the end), in one interleaved run. The way from enqueue to start stands beside Huey's,
which is installed into an environment that is thrown away; without a package index that part is left out. On
PostgreSQL both stand beside bare Procrastinate (postgres_queue.py).

    python scripts/bench/queue.py [--rounds 1000] [--latency-rounds 200] [--idle-seconds 60] [--directory DIR]
                                  [--only sqlite|postgresql]

Exit code 1: a limit was not met.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import verdict

from adws import app as app_module
from adws.adw_modules.interfaces import Listener, OwnerRecord
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.store import RunStore
from adws.config import load as config_load

#: Our rate of claim and finish, as a part of the rate of the queue written by hand.
RATE_LIMIT = 0.75
P95_LIMIT_MS = 50.0
LOOK_SECONDS = 0.03
IDLE_CPU_LIMIT = 0.01
#: The first look asks once; nothing after it does.
IDLE_QUERIES_LIMIT = 4
TTL = 30.0
WARM_UP = 50


class HandWritten:
    """
    The least that is a durable queue: a job is not lost with its worker, and two workers never both finish one.

    So a claim has an end, by which a job of a dead worker is found again, and a number that the finish names.
    """

    def __init__(self, path: Path, jobs: int) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, priority INTEGER,"
            " token INTEGER, owner TEXT, claim_until REAL, done_at REAL);"
            "CREATE INDEX waiting ON jobs (priority, id) WHERE state = 'pending';"
            "CREATE INDEX claims ON jobs (claim_until) WHERE state = 'claimed'"
        )
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO jobs (name, state, priority, token) VALUES (?, 'pending', 0, 0)",
            [(f"{number:08x}",) for number in range(jobs)],
        )
        self._db.execute("COMMIT")

    def claim(self) -> tuple[int, int]:
        """Take the oldest job; return it with the number of the claim."""
        self._db.execute("BEGIN IMMEDIATE")
        rows = self._db.execute(
            "UPDATE jobs SET state = 'claimed', token = token + 1, owner = ?, claim_until = ? WHERE id ="
            " (SELECT id FROM jobs WHERE state = 'pending' ORDER BY priority, id LIMIT 1) RETURNING id, token",
            ("me", time.time() + TTL),
        ).fetchall()
        self._db.execute("COMMIT")
        claimed: tuple[int, int] = rows[0]

        return claimed

    def finish(self, claimed: tuple[int, int]) -> None:
        """End a job."""
        self._db.execute("BEGIN IMMEDIATE")
        done = self._db.execute(
            "UPDATE jobs SET state = 'done', owner = NULL, claim_until = NULL, done_at = ?"
            " WHERE id = ? AND token = ? AND state = 'claimed'",
            (time.time(), *claimed),
        )
        if done.rowcount != 1:
            raise SystemExit("a job was lost")
        self._db.execute("COMMIT")


def open_home(root: Path, name: str) -> app_module.Home:
    """Open an empty home of its own."""
    home = root / name
    home.mkdir()

    return app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home))


def fill(queue: RunStore, app: app_module.Home, jobs: int) -> None:
    """Make *jobs* runs wait, in one transaction."""
    with app.database.write() as session:
        for number in range(jobs):
            queue.enqueue_in(session, NewRun(adw_id=f"{number:08x}"))  # type: ignore[attr-defined]  # ours has it


# --- claim and finish ------------------------------------------------------------------------------------------


def bench_rate(rounds: int, root: Path) -> bool:
    """Print the rate of both queues; say whether ours is near enough to the other."""
    jobs = rounds + WARM_UP
    with open_home(root, "rate") as app:
        queue, me = app.runs, app.processes.me("worker")
        fill(queue, app, jobs)
        (root / "by-hand").mkdir()
        other = HandWritten(root / "by-hand" / "queue.db", jobs)

        def ours() -> None:
            run = queue.claim(me, ttl_seconds=TTL)
            if run is None:
                raise SystemExit("the queue is empty too early")
            queue.finish(run, RunState.COMPLETED)

        times = interleaved(rounds, {"by hand": lambda: other.finish(other.claim()), "adw": ours})
    rates = {name: 1.0 / statistics.median(values) for name, values in times.items()}
    print(f"claim + finish, {rounds} interleaved rounds, two durable commits each (SQLite, WAL, synchronous=FULL)")
    for name, rate in rates.items():
        print(f"  {name:8} {rate:8.0f} / s   median {1000 / rate:6.3f} ms")

    return verdict.tell(
        "claims and ends on SQLite beside SQL by hand", rates["adw"] / rates["by hand"], least=RATE_LIMIT
    )


def interleaved(rounds: int, actions: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Run the actions in turn and return the seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for number in range(rounds + WARM_UP):
        for name in names if number % 2 else names[::-1]:
            start = time.perf_counter()
            actions[name]()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start)

    return times


# --- enqueue to start ------------------------------------------------------------------------------------------


class Claimer(threading.Thread):
    """Claims what is there when the listener says that there may be something, and notes when."""

    def __init__(self, queue: RunStore, listener: Listener, me: OwnerRecord) -> None:
        super().__init__(daemon=True)
        self.queue, self.listener, self.me = queue, listener, me
        self.started: dict[str, float] = {}
        self.looks = 0
        self.ending = threading.Event()

    def run(self) -> None:
        """Look every 30 ms, as a worker does."""
        with self.listener:
            while not self.ending.is_set():
                self.looks += 1
                if not self.listener.hear(LOOK_SECONDS):
                    continue
                while (run := self.queue.claim(self.me, ttl_seconds=TTL)) is not None:
                    self.started[run.adw_id] = time.perf_counter()
                    self.queue.finish(run, RunState.COMPLETED)


def claimer_of(app: app_module.Home) -> Claimer:
    """Return a claimer that hears as a worker of this home does."""
    me = app.processes.me("worker")

    return Claimer(app.runs, app.dispatcher().listen(me, places=1), me)


def bench_latency(rounds: int, root: Path) -> bool:
    """Print how long a run takes from before its enqueue to after its claim, ours and Huey's."""
    moments = random.Random(1)  # the moments fall anywhere between two looks, and the same ones each time
    with open_home(root, "latency") as app:
        claimer = claimer_of(app)
        claimer.start()
        asked = {}
        for number in range(rounds):
            time.sleep(0.03 + 0.05 * moments.random())
            adw_id = f"{number:08x}"
            asked[adw_id] = time.perf_counter()
            app.runs.enqueue(NewRun(adw_id=adw_id))
        deadline = time.monotonic() + 30.0
        while len(claimer.started) < rounds and time.monotonic() < deadline:
            time.sleep(0.01)
        claimer.ending.set()
        claimer.join()
    ours = [claimer.started[adw_id] - asked[adw_id] for adw_id in asked]
    print(f"enqueue to start, {rounds} runs one at a time")
    p95 = say_latency("adw (SQLite, durable, woken by a look every 30 ms)", ours)
    say_huey(rounds, root)

    return verdict.tell("p95 from enqueue to start on SQLite", p95, most=P95_LIMIT_MS, unit="ms")


def say_latency(name: str, seconds: Sequence[float]) -> float:
    """Print median and 95th percentile; return the latter in milliseconds."""
    ordered = sorted(value * 1000 for value in seconds)
    p50, p95 = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
    print(f"  {name:52} p50 {p50:7.1f} ms   p95 {p95:7.1f} ms")

    return p95


#: Runs in the environment that has Huey; prints the seconds from enqueue to start, as JSON.
HUEY_PROGRAM = """
import json, logging, random, sys, threading, time
from huey import SqliteHuey
logging.disable(logging.CRITICAL)
rounds, options = int(sys.argv[1]), json.loads(sys.argv[3])
huey = SqliteHuey(filename=sys.argv[2], fsync=True)
asked, started = {}, {}

@huey.task()
def work(number):
    started[number] = time.perf_counter()

consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False, **options)
consumer.start()
moments = random.Random(1)
for number in range(rounds):
    time.sleep(0.03 + 0.05 * moments.random())
    asked[number] = time.perf_counter()
    work(number)
deadline = time.monotonic() + 60.0
while len(started) < rounds and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps([started[number] - asked[number] for number in asked if number in started]))
sys.stdout.flush()
import os
os._exit(0)
"""


def say_huey(rounds: int, root: Path) -> None:
    """Print Huey's times, as it comes and polling as often as we look; one line when it cannot be had."""
    python = install(root / "huey", "huey")
    if python is None:
        print("  Huey is left out: it could not be installed (no package index within reach)")
        return
    ways = {"as it comes": {}, "polling every 30 ms": {"initial_delay": LOOK_SECONDS, "max_delay": LOOK_SECONDS}}
    for name, options in ways.items():
        file = root / f"huey-{len(name)}.db"
        done = subprocess.run(
            [str(python), "-c", HUEY_PROGRAM, str(rounds), str(file), json.dumps(options)],
            capture_output=True,
            text=True,
            check=False,
            timeout=rounds * 12.0 + 120.0,
        )
        if done.returncode != 0 or not done.stdout.strip():
            why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            print(f"  Huey, {name}: it did not run: {why}")
            continue
        say_latency(f"Huey (SQLite, fsync=True, one thread, {name})", json.loads(done.stdout))


def install(place: Path, package: str) -> Path | None:
    """Return the Python of a fresh environment that has *package*, None when there is no index to get it from."""
    python = place / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "-q", "--retries", "0", "--timeout", "10", package],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120.0)
        except (subprocess.SubprocessError, OSError):
            return None

    return python


# --- waiting for nothing ---------------------------------------------------------------------------------------


def bench_idle(seconds: float, root: Path) -> bool:
    """Print what a worker without work costs; say whether that is next to nothing."""
    with open_home(root, "idle") as app:
        queries = count_queries(app)
        claimer = claimer_of(app)
        before = time.process_time()
        claimer.start()
        time.sleep(seconds)
        claimer.ending.set()
        claimer.join()
        cpu = (time.process_time() - before) / seconds
    print(
        f"idle for {seconds:.0f} s: {claimer.looks} looks at data_version, {len(queries)} queries, {cpu:.2%} of a CPU"
    )
    is_quiet = verdict.tell("queries of an idle worker", len(queries), most=IDLE_QUERIES_LIMIT, unit="queries")

    return verdict.tell("processor time of an idle worker", 100 * cpu, most=100 * IDLE_CPU_LIMIT, unit="%") and is_quiet


def count_queries(app: app_module.Home) -> list[str]:
    """Note every transaction that is begun on the database from now on."""
    begun: list[str] = []
    database = app.database

    def noting(kind: str, begin: Callable[[], object]) -> Callable[[], object]:
        def noted() -> object:
            begun.append(kind)
            return begin()

        return noted

    database.read = noting("read", database.read)  # type: ignore[assignment,method-assign]  # to count, here only
    database.write = noting("write", database.write)  # type: ignore[assignment,method-assign]  # to count, here only

    return begun


def on_postgres(rounds: int, latency_rounds: int, root: Path) -> bool:
    """Run the part on PostgreSQL, where there is a server to be had."""
    try:
        from postgres_queue import bench_postgres  # noqa: PLC0415 - its libraries are extras
    except ImportError as exc:
        print(f"PostgreSQL is left out: {exc}; pip install -e '.[dev]' brings what it needs")
        return True

    return bench_postgres(rounds, latency_rounds, root)


def main() -> int:
    """Run all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--latency-rounds", type=int, default=200)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--only", choices=["sqlite", "postgresql"], default=None)
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=given.directory) as root:
        if given.only != "postgresql":
            results += [
                bench_rate(given.rounds, Path(root)),
                bench_latency(given.latency_rounds, Path(root)),
                bench_idle(given.idle_seconds, Path(root)),
            ]
        if given.only != "sqlite":
            results.append(on_postgres(given.rounds, given.latency_rounds, Path(root)))

    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
