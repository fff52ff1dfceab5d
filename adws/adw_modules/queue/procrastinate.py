"""
Procrastinate's workers on an event loop in a thread of ours, restarted whenever they end.

There are two: one brings runs, and has as many places as the worker has; the other does the upkeep that Procrastinate's
periodic tasks ask for (the schedule, the sweep), and never waits behind a run. The library's log records are
translated: people see one line when the database is lost, not its tracebacks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import procrastinate
import psycopg
import psycopg_pool
from procrastinate.exceptions import ConnectorException

from adws.adw_modules.db import migrate
from adws.adw_modules.db.connection import Session
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.errors import DatabaseError, SchemaMismatch
from adws.adw_modules.interfaces import Clock, Listener, OwnerRecord
from adws.adw_modules.queue import store as queue_store

# The hand-off queue between Procrastinate's loop and the thread of a worker: the announced runs.
#
# The loop adds a run when a job brings it and waits until it is over; the worker takes it up, and says when it is over.
# A run that was not taken up when the loop ends goes back, so that others hear of it.


class NotTakenUp(Exception):
    """The listener ends, and the worker had not taken the run up."""


@dataclass(eq=False, slots=True)
class AnnouncedRun:
    """A run that a job announced."""

    run_id: int
    loop: asyncio.AbstractEventLoop
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False

    def end(self) -> None:
        """Say that it is over, from any thread; a loop that has ended needs not to know."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.over.set)


class Handover:
    """The announced runs. The loop and one worker share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[AnnouncedRun] = deque()
        self._taken: dict[int, list[AnnouncedRun]] = {}
        self._problem: DatabaseError | None = None

    # --- the loop ----------------------------------------------------------------------------------------------

    async def bring(self, run_id: int) -> None:
        """Announce a run and wait until it is over; raise NotTakenUp when this is cancelled before it is taken up."""
        told = AnnouncedRun(run_id=run_id, loop=asyncio.get_running_loop())
        with self._changed:
            self._waiting.append(told)
            self._changed.notify_all()
        try:
            await told.over.wait()
        except asyncio.CancelledError:
            if not self._forget(told):
                raise NotTakenUp from None
            raise

    def fail(self, problem: DatabaseError) -> None:
        """Pass the worker a problem that waiting does not solve."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _forget(self, told: AnnouncedRun) -> bool:
        """Forget a run, and say whether it was taken up."""
        with self._changed:
            if not told.is_taken:
                self._waiting.remove(told)
            return told.is_taken

    # --- the worker --------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Say whether a run waits to be taken up, at the latest after *seconds*; raise what the loop failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._problem, timeout=max(0.0, seconds))
            if self._problem is not None:
                raise self._problem
            return bool(self._waiting)

    def take(self) -> int | None:
        """Take up the run that has waited longest, None when none waits."""
        with self._changed:
            if not self._waiting:
                return None
            told = self._waiting.popleft()
            told.is_taken = True
            self._taken.setdefault(told.run_id, []).append(told)
            return told.run_id

    def end(self, run_id: int) -> None:
        """Say that a run that was taken up is over."""
        with self._changed:
            told = self._taken.get(run_id, [])
            ended = told.pop() if told else None
            if not told:
                self._taken.pop(run_id, None)
        if ended is not None:
            ended.end()


logger = logging.getLogger("adw.dispatch")

#: The queue of periodic jobs.
UPKEEP = "adw_upkeep"
#: When the schedule is looked at and swept: every minute.
EVERY_MINUTE = "* * * * *"

#: Seconds before workers that ended are begun again: at first, and at most.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: Workers that lived this long had a database: what comes now is new trouble.
WELL_SECONDS = 10.0
#: Seconds to wait for a connection.
CONNECT_SECONDS = 2.0
#: Connections for fetching and ending jobs; one more listens.
CONNECTIONS = 4

#: Libraries whose log records are ours to tell.
_QUIET = ("procrastinate", "psycopg.pool")


class Service:
    """Brings runs until it is stopped."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        handover: Handover,
        name: str,
        places: int,
        poll_seconds: float,
        stalled_seconds: float,
        tick: Callable[[], object] | None,
        sweep: Callable[[], int],
    ) -> None:
        self._database = database
        self._handover = handover
        self._name = name
        self._places = places
        self._poll_seconds = poll_seconds
        self._stalled_seconds = stalled_seconds
        self._tick = tick
        self._sweep = sweep
        self._stopping = asyncio.Event()
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="adw-dispatch", daemon=True)

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """End, and say whether that was done within *seconds*."""
        loop = self._begun.result()
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(seconds)

        return not self._thread.is_alive()

    def _run(self) -> None:
        _quieten()
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.set_exception_handler(_log_unheard)
            self._begun.set_result(loop)
            runner.run(self._supervise())

    async def _supervise(self) -> None:
        clock = asyncio.get_running_loop().time
        pause, is_told = FIRST_PAUSE, False
        while not self._stopping.is_set():
            began = clock()
            try:
                await self._serve()
            except SchemaMismatch as exc:
                self._handover.fail(exc)
                return
            except (DatabaseError, ConnectorException, psycopg_pool.PoolTimeout, OSError) as exc:
                _tell_loss(exc, is_again=is_told and clock() - began < WELL_SECONDS)
                is_told = True
            except Exception:  # a bug must not leave the worker deaf: its own poll goes on, and this retries
                logger.exception("The dispatcher failed", extra={"action": "dispatch_failed"})
            is_new = clock() - began >= WELL_SECONDS
            pause = FIRST_PAUSE if is_new else min(LONGEST_PAUSE, 2 * pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    # --- serving -----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Run both workers until one ends or we are stopped."""
        await asyncio.to_thread(migrate.ensure_procrastinate, self._database)
        async with self._connector() as connector:
            runs, upkeep = self._app_for_runs(connector), self._app_for_upkeep(connector)
            tasks = [
                asyncio.create_task(self._work(runs, queue_store.QUEUE, self._places, self._poll_seconds)),
                asyncio.create_task(self._work(upkeep, UPKEEP, 1, 4 * self._poll_seconds)),
                asyncio.create_task(self._stopping.wait()),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stopping.is_set():
            raise _why(ends)

    async def _work(self, app: procrastinate.App, queue: str, places: int, poll_seconds: float) -> None:
        await app.run_worker_async(
            queues=[queue],
            name=self._name,
            concurrency=places,
            fetch_job_polling_interval=poll_seconds,
            listen_notify=queue == queue_store.QUEUE,  # a minute's tick can wait for the poll
            shutdown_graceful_timeout=0.0,  # the work goes on without its job: its claim is in our own table
            delete_jobs="always",
            install_signal_handlers=False,  # signals are the worker's, which drains
            update_heartbeat_interval=self._stalled_seconds / 3,
            stalled_worker_timeout=self._stalled_seconds,
        )

    @asynccontextmanager
    async def _connector(self) -> AsyncIterator[procrastinate.PsycopgConnector]:
        url, options = self._database.connect_with()
        connector = procrastinate.PsycopgConnector(
            conninfo=url,
            kwargs=options,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=CONNECT_SECONDS,
            configure=_commit_without_waiting,
        )
        try:
            await connector.open_async()
            yield connector
        finally:
            await connector.close_async()

    # --- tasks -------------------------------------------------------------------------------------------------

    def _app_for_runs(self, connector: procrastinate.PsycopgConnector) -> procrastinate.App:
        app = procrastinate.App(connector=connector)
        give_back = procrastinate.RetryStrategy(retry_exceptions=[NotTakenUp])
        app.task(name=queue_store.TASK, queue=queue_store.QUEUE, retry=give_back)(self._bring)

        return app

    async def _bring(self, run_id: int) -> None:
        await self._handover.bring(run_id)

    def _app_for_upkeep(self, connector: procrastinate.PsycopgConnector) -> procrastinate.App:
        app = procrastinate.App(connector=connector)

        @app.periodic(cron=EVERY_MINUTE)
        @app.task(name="adw.upkeep", queue=UPKEEP, queueing_lock="adw.upkeep")
        async def upkeep(timestamp: int) -> None:
            del timestamp
            await asyncio.to_thread(self._keep_up)

        return app

    def _keep_up(self) -> None:
        """Sweep, and do what is due on the schedule; each entry is claimed by one, so several may poll."""
        try:
            self._sweep()
            if self._tick is not None and not self._stopping.is_set():
                self._tick()
        except DatabaseError as exc:
            said = {"action": "database_trouble", "why": str(exc)}
            logger.warning("The schedule was not looked at", extra=said)
        except Exception:  # a bug in what is due must not end what brings runs
            logger.exception("The schedule broke", extra={"action": "cron_failed"})


async def _commit_without_waiting(connection: psycopg.AsyncConnection[Any]) -> None:
    """
    Let the commits of Procrastinate return before they are on the disk.

    A job only announces a run, whose row is ours and durable: a power cut may repeat a job or lose one, and the sweep
    announces every waiting run that has none.
    """
    await connection.execute("SET synchronous_commit = off")
    await connection.commit()


def _why(ends: list[Any]) -> BaseException:
    """Return why the workers ended; they end without an error when they cannot listen any more."""
    errors = [end for end in ends if isinstance(end, Exception)]

    return errors[0] if errors else DatabaseError("the workers of Procrastinate ended: the server hung up")


def _tell_loss(cause: Exception, *, is_again: bool) -> None:
    """Log that the server is away, once: it is retried as long as the worker has patience, and the worker logs more."""
    told = (
        cause.__cause__ if isinstance(cause, ConnectorException) and cause.__cause__ else cause
    )  # itself says nothing
    said = {"action": "dispatch_lost", "why": " ".join(str(told).split())}
    logger.log(logging.DEBUG if is_again else logging.WARNING, "The dispatcher lost the database", extra=said)


def _log_unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody waits for: the end of a job that the sweep had taken away, or that the server did not hear."""
    del loop
    logger.debug("A job could not be ended", extra={"action": "dispatch_job_lost"}, exc_info=context.get("exception"))


class _Told(logging.Handler):
    """Passes a library's records on as details of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s", record.getMessage(), extra={"action": "dispatch_detail"}, exc_info=record.exc_info)


def _quieten() -> None:
    for name in _QUIET:
        library = logging.getLogger(name)
        library.propagate = False
        if not any(isinstance(handler, _Told) for handler in library.handlers):
            library.addHandler(_Told())


# The dispatcher of several machines: Procrastinate brings the ids of runs to workers.
#
# Its worker runs in a thread of ours and is watched over: it ends by itself, without an error, when the server
# restarts. A job lasts as long as the work it led to, so that the places of a worker are counted, and is deleted when
# it ends. What Procrastinate does not promise is not relied on. A wake-up can be lost: every `POLL_SECONDS` the worker
# polls by itself. A job of a dead worker stays for ever: `sweep` deletes it and announces the run anew. It is never
# handed on, because a job need not be ended by the worker that began it: one that was only frozen finds its job gone.
# The claim of the run and its token decide who works.


#: How long a lost wake-up delays a run at most.
POLL_SECONDS = 0.25
#: A worker of Procrastinate without a heartbeat for this long is dead, or cannot work.
STALLED_SECONDS = 30.0
#: How long an end waits for what is under way in the loop; a server that is gone must not keep a worker from ending.
CLOSE_SECONDS = 20.0
#: "adws" as a number: only one sweeps at a time.
SWEEP_LOCK = 0x61647773

_MAY_SWEEP = "SELECT pg_try_advisory_xact_lock(:key)"
#: Their jobs have no worker then; one that was only frozen fails to fetch a job and registers anew. First, because
#: Procrastinate does the same whenever a worker starts, and takes its locks in this order.
_FORGET_WORKERS = "DELETE FROM procrastinate_workers WHERE last_heartbeat < now() - make_interval(secs => :stalled)"
#: Ended ones are deleted by Procrastinate; what is left of them are ends that could not be written.
_SWEEP = f"""
DELETE FROM procrastinate_jobs
WHERE queue_name IN ('{queue_store.QUEUE}', '{UPKEEP}')
  AND (status NOT IN ('todo', 'doing') OR (status = 'doing' AND worker_id IS NULL))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcrastinateTimes:
    """How often what is looked at, in seconds."""

    poll: float = POLL_SECONDS
    stalled: float = STALLED_SECONDS


class ProcrastinateDispatcher:
    """A `Dispatcher` over Procrastinate. *tick* does what is due on the schedule; None: somebody else does."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        clock: Clock,
        times: ProcrastinateTimes | None = None,
        tick: Callable[[], object] | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._times = times or ProcrastinateTimes()
        self._tick = tick

    def listen(self, owner: OwnerRecord, *, places: int) -> Listener:
        """Return the listener of a worker that has *places* for runs."""
        return ProcrastinateListener(
            self._database,
            clock=self._clock,
            times=self._times,
            tick=self._tick,
            name=owner.token,
            places=places,
        )


class ProcrastinateListener:
    """A `Listener` with a thread that runs Procrastinate's worker."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        clock: Clock,
        times: ProcrastinateTimes,
        tick: Callable[[], object] | None,
        name: str,
        places: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._times = times
        self._handover = Handover()
        self._service = Service(
            database,
            handover=self._handover,
            name=name,
            places=places,
            poll_seconds=times.poll,
            stalled_seconds=times.stalled,
            tick=tick,
            sweep=self.sweep,
        )
        self._yes_at = clock.monotonic()

    def __enter__(self) -> Self:
        self._service.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._service.close(CLOSE_SECONDS):
            logger.warning("The dispatcher did not end in time", extra={"action": "dispatch_left"})

    def hear(self, seconds: float) -> bool:
        """Wait for an announced run; return True without one every `POLL_SECONDS`. Raises SchemaMismatch."""
        if self._handover.wait(min(seconds, self._yes_at - self._clock.monotonic())):
            return True
        if self._clock.monotonic() < self._yes_at:
            return False
        self._yes_at = self._clock.monotonic() + self._times.poll

        return True

    def heard(self) -> int | None:
        """Take up an announced run."""
        return self._handover.take()

    def done(self, run_id: int) -> None:
        """End the job that announced a run."""
        self._handover.end(run_id)

    def sweep(self) -> int:
        """Delete the jobs of dead workers, tell anew of every run that waits without one, and return how many."""
        return self._database.transact(self._sweep)

    def _sweep(self, session: Session) -> int:
        if session.one(_MAY_SWEEP, {"key": SWEEP_LOCK}) != (True,):
            return 0
        session.run(_FORGET_WORKERS, {"stalled": self._times.stalled})
        given_up = session.run(_SWEEP)
        told = queue_store.announce_missing(self._database, session)
        if given_up or told:
            extra = {"action": "dispatch_swept", "given_up": given_up, "told_again": told}
            logger.info("Swept the jobs of dead workers", extra=extra)

        return given_up
