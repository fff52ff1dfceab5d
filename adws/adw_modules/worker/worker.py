"""
The worker: claims and executes runs, recovers runs of dead workers, and drains when told to stop.

Idling is cheap: a listener says whether there may be something to claim, and the queue says when the next run is due.
An announced run is only a hint: the worker claims whichever run is next. Deliveries have a slot of their own beside
the workflows, so a stop request is never queued behind the workflow that it stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import adws
from adws.adw_modules.errors import (
    AdwError,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseUnavailable,
    DemandsUnmet,
    SchemaMismatch,
)
from adws.adw_modules.interfaces import Listener, OwnerRecord
from adws.adw_modules.phase import Failed, Order
from adws.adw_modules.queue.model import NO_TERMS, ClaimPolicy, RunResult, RunState
from adws.adw_modules.queue.workers import Patience, WorkerHeartbeat, plan_unmatched
from adws.adw_modules.worker.claim import Claim
from adws.adw_modules.workflow.requirements import Capabilities

if TYPE_CHECKING:
    from adws.app import Home

logger = logging.getLogger("adw.worker")

#: Seconds between two recoveries for an expired claim, and how long after its end recovery checks it: the lease of a
#: workflow can end a moment after the claim of its run.
AGAIN_SECONDS = 0.25
OVER_SECONDS = 0.9
#: Seconds between two tries while the database is unavailable.
TROUBLE_SECONDS = 1.0
#: A worker that is silent for this long is no longer listed.
FORGET_WORKER_SECONDS = 600.0
#: Seconds between two polls for a postponed delivery while all slots for workflows are taken.
DELIVERY_SECONDS = 5.0
#: Seconds between two claims while a due run is not for us: its requirements are not met, or a limit is reached.
HELD_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """Options of a worker."""

    concurrency: int = 1
    once: bool = False  #: stop when nothing is due
    max_runs: int | None = None  #: stop after this many
    stop_on_first_failure: bool = False
    poll_seconds: float = 0.03  #: between two polls of the queue
    recover_seconds: float = 60.0  #: between two recoveries; the first is at the start
    patience_seconds: float = 60.0  #: without the database, before it stops
    ttl_seconds: float = 30.0  #: of a claim
    terms: ClaimPolicy = NO_TERMS  #: what it offers, and its limits on runs of a kind at a time


@dataclass(kw_only=True, slots=True)
class WorkerTotals:
    """Counts of what a worker did."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    requeued: int = 0
    stopped: int = 0
    lost: int = 0


class Worker:
    """Executes runs until it is told to stop."""

    def __init__(
        self,
        home: Home,
        options: WorkerOptions,
        *,
        on_end: Callable[[RunResult], None] = lambda _end: None,
        tick: Callable[[], object] | None = None,
    ) -> None:
        """*tick* is called each minute by a dispatcher that can keep time (`Home.dispatcher`)."""
        self._home = home
        self._options = options
        self._on_end = on_end
        self._me = home.processes.me("worker")
        self._dispatcher = home.dispatcher(tick)
        self._work = home.run_executor
        self._presence = WorkerHeartbeat(
            home.workers,
            me=self._me,
            offer=options.terms.offer or Capabilities(host=self._me.host),
            places=options.concurrency,
            version=adws.__version__,
            clock=home.clock,
            every_seconds=home.settings.lease_renew_seconds,
        )
        self._is_draining = False
        self._taken = 0  #: runs that count towards `max_runs`
        self._hints: dict[Future[RunResult], int] = {}  #: the announced run that led to this work
        self._trouble_since: float | None = None
        self._recovered_at = float("-inf")
        self._has_compared = False  #: whether every document was compared with its copy, which is done once
        self._look_at = float("inf")  #: Clock.monotonic, when a claim may have expired
        self.totals = WorkerTotals()

    def drain(self, reason: str = "the worker was told to stop", *, is_urgent: bool = False) -> None:
        """
        Stop claiming and end running work: attempts are suspended, runs go back to the queue.

        Takes no lock, because signal handlers call it.
        """
        self._is_draining = True
        self._presence.is_draining = True
        self._home.lease_renewer.order_all(Order(kind="drain", reason=reason, is_urgent=is_urgent))

    def run(self) -> WorkerTotals:
        """
        Work until drained, or until the options leave nothing to do.

        Raises DatabaseError if the database stays away; running work is suspended first.
        """
        with (
            self._presence,
            self._dispatcher.listen(self._me, places=self._options.concurrency) as listener,
            ThreadPoolExecutor(self._places, thread_name_prefix="adw-run") as pool,
        ):
            try:
                running = self._loop(pool, listener)
            except BaseException:
                self.drain("the worker failed")  # else leaving this block would wait for all work to end
                raise
            self._collect(running, listener, wait_for_all=True)

        return self.totals

    def _loop(self, pool: ThreadPoolExecutor, listener: Listener) -> set[Future[RunResult]]:
        """Claim and dispatch runs until it is time to end; return the runs still executing."""
        running: set[Future[RunResult]] = set()
        while not self._is_draining:
            running = self._collect(running, listener)
            self._presence.busy = len(running)
            self._recover_if_due(listener)
            has_place = len(running) < self._options.concurrency and not self._has_claimed_enough()
            hint = listener.heard() if has_place else None
            claim = self._next(len(running))
            if claim is not None:
                future = pool.submit(self._work_on, claim)
                running.add(future)
                if hint is not None:
                    self._hints[future] = hint
                continue
            if hint is not None:
                listener.done(hint)  # another worker has it, or it is not for us
            is_sure = self._trouble_since is None  # a failed query does not prove that nothing is due
            if not running and ((self._options.once and is_sure) or self._has_claimed_enough()):
                break
            if is_sure:  # else `_note_trouble` has waited already
                self._rest(running, listener)

        return running

    def _work_on(self, claim: Claim) -> RunResult:
        try:
            return self._work.work(claim)
        except (AdwError, OSError):
            raise
        except Exception as exc:  # noqa: BLE001 - a bug: give_up logs it, and a person has to resume the workflow
            return self._work.give_up(claim.run, exc)

    def _recover_if_due(self, listener: Listener) -> None:
        """Recover runs of dead workers, fail runs that no worker can execute, and forget workers that are gone."""
        home, now = self._home, self._home.clock.monotonic()
        is_due = now - self._recovered_at >= self._options.recover_seconds
        if self._is_draining:
            return
        try:
            if not is_due and not self._has_lost():
                return
            self._recovered_at = home.clock.monotonic()
            home.recovery.recover(every_document=not self._has_compared)
            self._has_compared = True
            give_up_unschedulable(home, self._me)
            # Workers that left still count while a run may wait for them.
            home.workers.forget(silent_seconds=FORGET_WORKER_SECONDS)
            listener.sweep()
        except DatabaseError as exc:
            self._note_trouble(exc)
        except (AdwError, OSError):
            logger.exception("Could not recover", extra={"action": "recovery_failed"})

    def _has_lost(self) -> bool:
        """Return whether recovery should check an expired claim; queries the database only if one may be."""
        if self._home.clock.monotonic() < self._look_at:
            return False
        seconds = self._seconds_to_loss()

        return seconds is not None and seconds <= 0.0

    def _seconds_to_loss(self) -> float | None:
        """Return the seconds until recovery should check a claim, None if there are no claims; stores the moment."""
        now, again = self._home.clock.monotonic(), self._recovered_at + AGAIN_SECONDS
        ends = (now + run.seconds_left for run in self._home.runs.live())
        waits = [max(end, again) - now for end in ends if end > self._recovered_at - OVER_SECONDS]
        self._look_at = now + min(waits, default=float("inf"))

        return min(waits, default=None)

    # --- claiming ----------------------------------------------------------------------------------------------

    @property
    def _places(self) -> int:
        """The number of runs executed at a time: a slot for a delivery besides those for other runs."""
        return self._options.concurrency + 1

    def _next(self, busy: int) -> Claim | None:
        if busy >= self._places or self._has_claimed_enough():
            self._trouble_since = None  # the database is not needed now
            return None
        is_full = busy >= self._options.concurrency
        try:
            claim = self._home.run_claimer.claim(
                self._me,
                ttl_seconds=self._options.ttl_seconds,
                only_deliveries=is_full,
                terms=self._options.terms,
            )
        except DatabaseError as exc:
            self._note_trouble(exc)
            return None
        self._trouble_since = None
        if claim is not None:
            self.totals.claimed += 1
            self._taken += 1

        return claim

    def _has_claimed_enough(self) -> bool:
        return self._options.max_runs is not None and self._taken >= self._options.max_runs

    def _note_trouble(self, cause: DatabaseError) -> None:
        """Wait a little for an unavailable database; raise if waiting cannot help or has taken too long."""
        if isinstance(cause, DatabaseCorrupt | SchemaMismatch):
            raise cause
        now = self._home.clock.monotonic()
        if self._trouble_since is None:
            # Logged once: the next try, a second later, would say the same.
            logger.warning("The database does not answer", extra={"action": "database_trouble", "why": str(cause)})
            self._trouble_since = now
        silent = now - self._trouble_since
        if silent >= self._options.patience_seconds:
            raise DatabaseUnavailable(
                f"the database has not answered for {silent:.0f} s, so this worker stops: {cause}"
            ) from cause
        self._pause(min(TROUBLE_SECONDS, self._options.patience_seconds))

    def _pause(self, seconds: float) -> None:
        """Wait unless draining; polls, because a signal handler can only set a flag."""
        until = self._home.clock.monotonic() + seconds
        while not self._is_draining and (left := until - self._home.clock.monotonic()) > 0.0:
            self._home.clock.sleep(min(left, self._options.poll_seconds))

    # --- waiting -----------------------------------------------------------------------------------------------

    def _rest(self, running: set[Future[RunResult]], listener: Listener) -> None:
        """Wait until there may be work: a run ended, one was announced, or the next one is due."""
        may_claim = len(running) < self._places and not self._has_claimed_enough()
        limit = self._options.recover_seconds
        if may_claim and len(running) < self._options.concurrency:
            limit = self._seconds_to_rest()
        elif may_claim:
            limit = min(DELIVERY_SECONDS, limit)
        started = self._home.clock.monotonic()
        while not self._is_draining and self._home.clock.monotonic() - started < limit:
            if running and wait(running, timeout=self._options.poll_seconds, return_when=FIRST_COMPLETED).done:
                return
            if not may_claim and not running:
                self._home.clock.sleep(self._options.poll_seconds)
            elif may_claim:
                try:
                    has_heard = listener.hear(0.0 if running else self._options.poll_seconds)
                except DatabaseError as exc:
                    self._note_trouble(exc)
                    return
                if has_heard:
                    return

    def _seconds_to_rest(self) -> float:
        """Return the time until a run or a recovery is due, or a claim may have expired."""
        due: float | None = None
        loss: float | None = None
        try:
            due, loss = self._home.runs.seconds_to_next(), self._seconds_to_loss()
        except DatabaseError as exc:
            self._note_trouble(exc)
        if due == 0.0:
            due = HELD_SECONDS
        until_recovery = self._recovered_at + self._options.recover_seconds - self._home.clock.monotonic()
        # A claim made meanwhile expires later than this.
        ends = [until_recovery, self._options.ttl_seconds, *(one for one in (due, loss) if one is not None)]

        return max(self._options.poll_seconds, min(ends))

    # --- ends --------------------------------------------------------------------------------------------------

    def _collect(
        self, running: set[Future[RunResult]], listener: Listener, *, wait_for_all: bool = False
    ) -> set[Future[RunResult]]:
        done = wait(running).done if wait_for_all else {future for future in running if future.done()}
        for future in done:
            hint = self._hints.pop(future, None)
            if hint is not None:
                listener.done(hint)
            self._count(future)

        return running - done

    def _count(self, future: Future[RunResult]) -> None:
        try:
            end = future.result()
        except (AdwError, OSError) as exc:
            self.totals.lost += 1  # its claim expires, and recovery finds the run
            logger.exception("A run could not be ended", extra={"action": "run_lost"}, exc_info=exc)
            return
        state = end.run.state if end.run else None
        name = {RunState.COMPLETED: "completed", RunState.FAILED: "failed", RunState.STOPPED: "stopped"}
        field = "lost" if state is None else name.get(state, "requeued")
        setattr(self.totals, field, getattr(self.totals, field) + 1)
        if end.outcome is None and field == "requeued":
            self._taken -= 1  # its workflow was busy or the disk full: nothing was done
        self._on_end(end)
        if self._options.stop_on_first_failure and (state is RunState.FAILED or isinstance(end.outcome, Failed)):
            self.drain("a workflow failed, and the worker was asked to stop then")


def give_up_unschedulable(home: Home, me: OwnerRecord) -> int:
    """
    Fail the runs that no worker can execute, and return how many there were.

    Each is claimed first, so that only one worker fails it, and ends like any run that cannot be worked on: the run
    failed, its workflow paused, both with the reason.
    """
    patience = Patience(lease=home.settings.lease_ttl_seconds)
    waiting, count = home.runs.demanding(), 0
    for unschedulable in (
        plan_unmatched(waiting, home.workers.all(), now=home.clock.now(), patience=patience) if waiting else ()
    ):
        demands = unschedulable.run.demands
        # Claimed as a worker that meets these requirements: if they changed since, it may not have waited long enough.
        terms = ClaimPolicy(offer=Capabilities(host=demands.host or me.host, tags=demands.tags))
        ttl_seconds, run_id = home.settings.lease_ttl_seconds, unschedulable.run.run_id
        claimed = home.runs.claim(me, ttl_seconds=ttl_seconds, run_id=run_id, terms=terms)
        if claimed is not None:  # else a worker took it meanwhile
            home.run_executor.give_up(claimed, DemandsUnmet(unschedulable.why))
            count += 1

    return count
