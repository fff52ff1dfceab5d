"""
Procrastinate's workers on an event loop in a thread of ours, restarted whenever they end.

There are two. One brings runs, with as many slots as the worker has; the other does the upkeep of Procrastinate's
periodic tasks (schedule, sweep), and never waits behind a run. The library's log records are translated: if the
database is lost, people see one line instead of tracebacks.
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

# --- hand-over of announced runs between Procrastinate's loop and a worker's thread ----------------------------
#
# The loop adds a run when a job brings it, and waits until its work ends. The worker takes the run, and reports the
# end. If a run was not taken when the loop ends, its job is requeued, so that other workers receive it.


class NotTakenUp(Exception):
    """The listener ended before the worker took the run."""


@dataclass(eq=False, slots=True)
class AnnouncedRun:
    """A run announced by a job."""

    run_id: int
    loop: asyncio.AbstractEventLoop
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False

    def end(self) -> None:
        """Report the end of the run, from any thread; does nothing if the loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.over.set)


class Handover:
    """The announced runs, shared by the loop and one worker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[AnnouncedRun] = deque()
        self._taken: dict[int, list[AnnouncedRun]] = {}
        self._problem: DatabaseError | None = None

    # --- the loop ----------------------------------------------------------------------------------------------

    async def bring(self, run_id: int) -> None:
        """Announce a run and wait until its work ends; raise NotTakenUp if cancelled before the worker took the run."""
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
        """Pass the worker an error that waiting does not resolve."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _forget(self, told: AnnouncedRun) -> bool:
        """Remove a run that still waits, and say whether it was taken."""
        with self._changed:
            if not told.is_taken:
                self._waiting.remove(told)
            return told.is_taken

    # --- the worker --------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Wait up to *seconds* for a run to take; return whether there is one. Raises the loop's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._problem, timeout=max(0.0, seconds))
            if self._problem is not None:
                raise self._problem
            return bool(self._waiting)

    def take(self) -> int | None:
        """Take the run that has waited longest, or return None."""
        with self._changed:
            if not self._waiting:
                return None
            told = self._waiting.popleft()
            told.is_taken = True
            self._taken.setdefault(told.run_id, []).append(told)
            return told.run_id

    def end(self, run_id: int) -> None:
        """Report that the work on a taken run has ended."""
        with self._changed:
            told = self._taken.get(run_id, [])
            ended = told.pop() if told else None
            if not told:
                self._taken.pop(run_id, None)
        if ended is not None:
            ended.end()


logger = logging.getLogger("adw.dispatch")

#: The queue for periodic jobs.
UPKEEP = "adw_upkeep"
#: When to sweep and to process the schedule: every minute.
EVERY_MINUTE = "* * * * *"

#: Seconds before ended workers are restarted: at first, and at most.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: Workers that ran this long had a database, so an error after that is a new problem.
WELL_SECONDS = 10.0
#: Maximum seconds to wait for a connection.
CONNECT_SECONDS = 2.0
#: Connections for fetching and ending jobs; one more is used to listen.
CONNECTIONS = 4

#: Libraries whose log records we translate.
_QUIET = ("procrastinate", "psycopg.pool")


class Service:
    """Brings runs until stopped."""

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
        """Start serving in a separate thread."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Stop, and say whether the thread ended within *seconds*."""
        loop = self._begun.result()
        with suppress(RuntimeError):  # it has ended already
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
            except Exception:  # a bug must not leave the worker deaf: it still polls by itself, and this retries
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
            shutdown_graceful_timeout=0.0,  # work continues without its job: its claim is in our own table
            delete_jobs="always",
            install_signal_handlers=False,  # the worker handles signals, by draining
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
        """Sweep, and process the schedule; each entry is claimed by one process, so several may poll."""
        try:
            self._sweep()
            if self._tick is not None and not self._stopping.is_set():
                self._tick()
        except DatabaseError as exc:
            said = {"action": "database_trouble", "why": str(exc)}
            logger.warning("The schedule was not looked at", extra=said)
        except Exception:  # a bug in the schedule must not stop the delivery of runs
            logger.exception("The schedule broke", extra={"action": "cron_failed"})


async def _commit_without_waiting(connection: psycopg.AsyncConnection[Any]) -> None:
    """
    Let Procrastinate's commits return before they are on the disk.

    A job only announces a run, whose row is ours and durable. A power cut may repeat or lose a job; the sweep announces
    every waiting run without a job.
    """
    await connection.execute("SET synchronous_commit = off")
    await connection.commit()


def _why(ends: list[Any]) -> BaseException:
    """Return why the workers ended; they end without an error if they can no longer listen."""
    errors = [end for end in ends if isinstance(end, Exception)]

    return errors[0] if errors else DatabaseError("the workers of Procrastinate ended: the server hung up")


def _tell_loss(cause: Exception, *, is_again: bool) -> None:
    """Log once that the server is away. Retries last as long as the worker's patience; the worker logs more."""
    told = (
        cause.__cause__ if isinstance(cause, ConnectorException) and cause.__cause__ else cause
    )  # the wrapper says nothing
    said = {"action": "dispatch_lost", "why": " ".join(str(told).split())}
    logger.log(logging.DEBUG if is_again else logging.WARNING, "The dispatcher lost the database", extra=said)


def _log_unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors nobody waits for: the end of a job that the sweep had deleted, or that the server did not receive."""
    del loop
    logger.debug("A job could not be ended", extra={"action": "dispatch_job_lost"}, exc_info=context.get("exception"))


class _Told(logging.Handler):
    """Logs a library's records as details of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s", record.getMessage(), extra={"action": "dispatch_detail"}, exc_info=record.exc_info)


def _quieten() -> None:
    for name in _QUIET:
        library = logging.getLogger(name)
        library.propagate = False
        if not any(isinstance(handler, _Told) for handler in library.handlers):
            library.addHandler(_Told())


# --- the dispatcher for several machines: Procrastinate brings the ids of runs to workers ----------------------
#
# Its worker runs in a thread of ours and is supervised, because it ends without an error when the server restarts. A
# job lasts as long as the work it led to, so that a worker's slots are counted, and is deleted when it ends. Nothing
# depends on promises that Procrastinate does not make. A wake-up can be lost: the worker also polls every
# `POLL_SECONDS`. A job of a dead worker would stay forever: `sweep` deletes it and announces the run again. Jobs are
# never passed on, because any worker may end a job: a worker that was only frozen finds its job gone. The claim of the
# run and its token decide who works.


#: Maximum delay of a run after a lost wake-up.
POLL_SECONDS = 0.25
#: A Procrastinate worker without a heartbeat for this long is dead, or unable to work.
STALLED_SECONDS = 30.0
#: How long closing waits for work in the loop; a lost server must not keep a worker from ending.
CLOSE_SECONDS = 20.0
#: "adws" as a number: the lock that lets only one process sweep at a time.
SWEEP_LOCK = 0x61647773

_MAY_SWEEP = "SELECT pg_try_advisory_xact_lock(:key)"
#: Their jobs then have no worker; one that was only frozen fails to fetch a job and registers again. This statement
#: comes first, because Procrastinate does the same when a worker starts, and takes its locks in this order.
_FORGET_WORKERS = "DELETE FROM procrastinate_workers WHERE last_heartbeat < now() - make_interval(secs => :stalled)"
#: Procrastinate deletes ended jobs; those that remain could not be deleted when they ended.
_SWEEP = f"""
DELETE FROM procrastinate_jobs
WHERE queue_name IN ('{queue_store.QUEUE}', '{UPKEEP}')
  AND (status NOT IN ('todo', 'doing') OR (status = 'doing' AND worker_id IS NULL))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcrastinateTimes:
    """Intervals of the dispatcher, in seconds."""

    poll: float = POLL_SECONDS
    stalled: float = STALLED_SECONDS


class ProcrastinateDispatcher:
    """A `Dispatcher` over Procrastinate. *tick* processes the schedule; None: another process does that."""

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
        """Return the listener of a worker with *places* slots for runs."""
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
        """Wait for an announced run; also return True every `POLL_SECONDS` without one. Raises SchemaMismatch."""
        if self._handover.wait(min(seconds, self._yes_at - self._clock.monotonic())):
            return True
        if self._clock.monotonic() < self._yes_at:
            return False
        self._yes_at = self._clock.monotonic() + self._times.poll

        return True

    def heard(self) -> int | None:
        """Take an announced run, or return None."""
        return self._handover.take()

    def done(self, run_id: int) -> None:
        """End the job that announced the run."""
        self._handover.end(run_id)

    def sweep(self) -> int:
        """Delete the jobs of dead workers, announce every waiting run without a job, and return the number deleted."""
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
