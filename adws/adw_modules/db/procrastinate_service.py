"""
Procrastinate's workers on an event loop in a thread of ours, begun again whenever they end.

There are two: one brings runs, and has as many places as the worker has; the other does the upkeep that Procrastinate's
periodic tasks ask for (the schedule, the sweep), and never waits behind a run. What the library logs is ours to tell:
people see one line when the database is lost, not its tracebacks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

import procrastinate
import psycopg_pool
from procrastinate.exceptions import ConnectorException

from adws.adw_modules.db import announcing, procrastinate_schema
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.db.procrastinate_handover import Handover, NotTakenUp
from adws.adw_modules.errors import DatabaseError, SchemaMismatch

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
            except Exception:  # a bug must not leave the worker deaf: its own poll goes on, and this tries again
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
        await asyncio.to_thread(procrastinate_schema.ensure, self._database)
        async with self._connector() as connector:
            runs, upkeep = self._app_for_runs(connector), self._app_for_upkeep(connector)
            tasks = [
                asyncio.create_task(self._work(runs, announcing.QUEUE, self._places, self._poll_seconds)),
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
            listen_notify=queue == announcing.QUEUE,  # a minute's tick can wait for the poll
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
            conninfo=url, kwargs=options, min_size=1, max_size=CONNECTIONS, timeout=CONNECT_SECONDS
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
        app.task(name=announcing.TASK, queue=announcing.QUEUE, retry=give_back)(self._bring)

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
        """Sweep, and do what is due on the schedule; each entry is claimed by one, so several may look."""
        try:
            self._sweep()
            if self._tick is not None and not self._stopping.is_set():
                self._tick()
        except DatabaseError as exc:
            said = {"action": "database_trouble", "why": str(exc)}
            logger.warning("The schedule was not looked at", extra=said)
        except Exception:  # a bug in what is due must not end what brings runs
            logger.exception("The schedule broke", extra={"action": "cron_failed"})


def _why(ends: list[Any]) -> BaseException:
    """Return why the workers ended; they end without an error when they cannot listen any more."""
    errors = [end for end in ends if isinstance(end, Exception)]

    return errors[0] if errors else DatabaseError("the workers of Procrastinate ended: the server hung up")


def _tell_loss(cause: Exception, *, is_again: bool) -> None:
    """Say that the server is away, once: it is tried again for as long as the worker has patience, which says more."""
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
