"""
The worker: claims runs, works on them, recovers what dead workers left, and drains when it is told to stop.

Waiting costs next to nothing: the queue says cheaply whether anything changed, and when the next run is due.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from adws.adw_modules.coordination.workflow_work import RunWork, WorkEnd, WorkParts
from adws.adw_modules.errors import AdwError, DatabaseError, DatabaseUnavailable
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.outcome import Failed
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import Run, RunState

logger = logging.getLogger("adw.worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """How a worker works."""

    concurrency: int = 1
    once: bool = False  #: stop when nothing is due
    max_runs: int | None = None  #: stop after that many
    stop_on_first_failure: bool = False
    poll_seconds: float = 0.025  #: between two looks at the queue
    recover_seconds: float = 60.0  #: between two recoveries; the first is at the start
    patience_seconds: float = 60.0  #: without the database, then it gives up
    ttl_seconds: float = 30.0  #: of a claim


@dataclass(kw_only=True, slots=True)
class WorkerTotals:
    """What a worker did."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    requeued: int = 0
    stopped: int = 0
    lost: int = 0


class Worker:
    """Works on runs until it is told to stop."""

    def __init__(
        self,
        parts: WorkParts,
        *,
        me: OwnerRecord,
        options: WorkerOptions | None = None,
        recover: Callable[[], object] = lambda: None,
        on_end: Callable[[WorkEnd], None] = lambda _end: None,
    ) -> None:
        self._parts = parts
        self._me = me
        self._options = options or WorkerOptions()
        self._recover = recover
        self._on_end = on_end
        self._work = RunWork(parts)
        self._draining = threading.Event()
        self._trouble_since: float | None = None
        self.totals = WorkerTotals()

    def drain(self, reason: str = "the worker was told to stop", *, is_urgent: bool = False) -> None:
        """Claim nothing more and end what is under way: attempts are suspended, runs go back to the queue."""
        self._draining.set()
        self._parts.keeper.order_all(Order(kind="drain", reason=reason, is_urgent=is_urgent))

    def run(self) -> WorkerTotals:
        """Work until drained, or until there is nothing left that the options ask for."""
        watch = self._parts.runs.watch()
        recovered_at = float("-inf")
        running: set[Future[WorkEnd]] = set()
        try:
            with ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="adw-run") as pool:
                while not self._draining.is_set():
                    running = self._collect(running)
                    if self._parts.clock.monotonic() - recovered_at >= self._options.recover_seconds:
                        recovered_at = self._parts.clock.monotonic()
                        self._guarded(self._recover)
                    run = self._next(len(running))
                    if run is not None:
                        running.add(pool.submit(self._work.work, run))
                    elif not running and self._is_over():
                        break
                    else:
                        self._rest(running, watch.has_changed)
                self._collect(running, wait_for_all=True)
        finally:
            watch.close()

        return self.totals

    # --- claiming ----------------------------------------------------------------------------------------------

    def _next(self, busy: int) -> Run | None:
        if busy >= self._options.concurrency or self._has_claimed_enough():
            return None
        run = self._guarded(lambda: self._parts.runs.claim(self._me, ttl_seconds=self._options.ttl_seconds))
        if run is not None:
            self.totals.claimed += 1

        return run

    def _has_claimed_enough(self) -> bool:
        return self._options.max_runs is not None and self.totals.claimed >= self._options.max_runs

    def _is_over(self) -> bool:
        """Say whether there is nothing left to wait for; asked when nothing runs and nothing is due."""
        return self._options.once or self._has_claimed_enough()

    def _guarded(self, action: Callable[[], object]) -> Run | None:
        """Do *action*; a database that is gone is waited for, but not for ever."""
        try:
            answer = action()
        except DatabaseError as exc:
            self._note_trouble(exc)
            return None
        self._trouble_since = None

        return answer if isinstance(answer, Run) else None

    def _note_trouble(self, cause: DatabaseError) -> None:
        now = self._parts.clock.monotonic()
        self._trouble_since = self._trouble_since if self._trouble_since is not None else now
        silent = now - self._trouble_since
        logger.warning("The database does not answer", extra={"action": "database_trouble"}, exc_info=cause)
        if silent >= self._options.patience_seconds:
            raise DatabaseUnavailable(
                f"the database has not answered for {silent:.0f} s, so this worker stops: {cause}"
            ) from cause
        self._draining.wait(min(1.0, self._options.patience_seconds))

    # --- waiting -----------------------------------------------------------------------------------------------

    def _rest(self, running: set[Future[WorkEnd]], has_changed: Callable[[], bool]) -> None:
        """Wait until something may have happened: a run ended, the queue changed, the next one is due."""
        limit = self._seconds_to_rest()
        started = self._parts.clock.monotonic()
        while not self._draining.is_set() and self._parts.clock.monotonic() - started < limit:
            if running and wait(running, timeout=self._options.poll_seconds, return_when=FIRST_COMPLETED).done:
                return
            if not running:
                self._draining.wait(self._options.poll_seconds)
            if self._look(has_changed):
                return

    def _look(self, has_changed: Callable[[], bool]) -> bool:
        try:
            return has_changed()
        except DatabaseError as exc:
            self._note_trouble(exc)
            return False

    def _seconds_to_rest(self) -> float:
        try:
            due = self._parts.runs.seconds_to_next()
        except DatabaseError as exc:
            self._note_trouble(exc)
            due = None
        longest = self._options.recover_seconds

        return longest if due is None else min(longest, max(self._options.poll_seconds, due))

    # --- ends --------------------------------------------------------------------------------------------------

    def _collect(self, running: set[Future[WorkEnd]], *, wait_for_all: bool = False) -> set[Future[WorkEnd]]:
        done = wait(running).done if wait_for_all else {future for future in running if future.done()}
        for future in done:
            self._count(future)

        return running - done

    def _count(self, future: Future[WorkEnd]) -> None:
        try:
            end = future.result()
        except (AdwError, OSError) as exc:
            self.totals.lost += 1  # its claim ends by itself, and recovery finds the run
            logger.exception("A run could not be ended", extra={"action": "run_lost"}, exc_info=exc)
            return
        state = end.run.state if end.run else None
        name = {RunState.COMPLETED: "completed", RunState.FAILED: "failed", RunState.STOPPED: "stopped"}
        field = "lost" if state is None else name.get(state, "requeued")
        setattr(self.totals, field, getattr(self.totals, field) + 1)
        self._on_end(end)
        if self._options.stop_on_first_failure and (state is RunState.FAILED or isinstance(end.outcome, Failed)):
            self.drain("a workflow failed, and the worker was asked to stop then")
