"""
Other queues doing the work of loop.py: many calls that do nothing, by four workers.

Runs in a Python that has the queue: `python loop_yardsticks.py NAME PLACE`. It prints one line when it is
ready; then each line `N` on standard input stores and works off N jobs and is answered with the seconds that took.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

WORKERS = 4
#: How often Huey looks for work when there was none.
LOOK_SECONDS = 0.025
#: Seconds without a result after which what is left is lost: a worker of Huey that finds the file locked drops its job.
LOST_SECONDS = 10.0
#: Jobs that Procrastinate stores in one statement.
CHUNK = 1000


#: Stores and works off so many jobs, and returns seconds that do not count.
Run = Callable[[int], float]


def huey(place: str, *, is_synced: bool) -> tuple[str, Run]:
    """Huey's SQLite queue and its consumer of four processes; results are stored, as ours are."""
    from huey import SqliteHuey  # noqa: PLC0415 - each queue is only there for itself

    queue = SqliteHuey(filename=f"{place}/huey.db", fsync=is_synced)

    @queue.task()
    def nothing(number: int) -> int:
        return number

    consumer = queue.create_consumer(
        workers=WORKERS, worker_type="process", periodic=False, initial_delay=LOOK_SECONDS, max_delay=LOOK_SECONDS
    )
    consumer.start()

    def run(count: int) -> float:
        for number in range(count):
            nothing(number)
        stored, moment = 0, time.perf_counter()
        while stored < count:
            time.sleep(0.005)
            before, stored = stored, queue.storage.result_store_size()
            if stored != before:
                moment = time.perf_counter()
            elif time.perf_counter() - moment > LOST_SECONDS and not queue.storage.queue_size():
                break  # what is lost counts as done, and the wait for it does not
        queue.storage.flush_results()
        return time.perf_counter() - moment

    durability = "every commit synced, as ours" if is_synced else "nothing synced: lost with the machine's power"

    return f"{WORKERS} processes, {durability}", run


def procrastinate(url: str) -> tuple[str, Run]:
    """Procrastinate with four workers, each a process with one place."""
    import procrastinate as library  # noqa: PLC0415 - each queue is only there for itself

    sync = library.App(connector=library.SyncPsycopgConnector(conninfo=url))
    sync.open()
    sync.schema_manager.apply_schema()
    for _ in range(WORKERS):
        if os.fork() == 0:
            _work_for_procrastinate(url)
    jobs = sync.configure_task("nothing", queue="bench")

    def run(count: int) -> float:
        numbers = iter(range(count))
        while chunk := list(itertools.islice(numbers, CHUNK)):
            jobs.batch_defer(*({"number": number} for number in chunk))
        left = "SELECT 1 AS one FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
        while sync.connector.get_sync_connector().execute_query_all(left):
            time.sleep(0.005)
        return 0.0

    return f"{WORKERS} processes with one place each, jobs stored {CHUNK} at a time, deleted when they are done", run


def _work_for_procrastinate(url: str) -> None:
    import procrastinate as library  # noqa: PLC0415 - each queue is only there for itself

    app = library.App(connector=library.PsycopgConnector(conninfo=url))

    @app.task(name="nothing", queue="bench")
    async def nothing(number: int) -> int:
        return number

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(
                queues=["bench"], concurrency=1, delete_jobs="always", install_signal_handlers=False
            )

    asyncio.run(work())


QUEUES: dict[str, Callable[[str], tuple[str, Run]]] = {
    "huey": lambda place: huey(place, is_synced=True),
    "huey-unsynced": lambda place: huey(place, is_synced=False),
    "procrastinate": procrastinate,
}


def main() -> None:
    """Answer on standard output until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a queue prints is not an answer
    logging.disable(logging.CRITICAL)
    os.setpgid(0, 0)
    durability, run = QUEUES[sys.argv[1]](sys.argv[2])
    print(durability, file=answers, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        idle = run(int(line))
        print(time.perf_counter() - start - idle, file=answers, flush=True)
    os.killpg(0, signal.SIGKILL)  # the workers that were forked are in our group


if __name__ == "__main__":
    main()
