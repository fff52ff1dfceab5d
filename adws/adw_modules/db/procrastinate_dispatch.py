"""
The dispatcher of several machines: Procrastinate brings the ids of runs to workers.

Its worker runs in a thread of ours and is watched over: it ends by itself, without an error, when the server restarts.
A job lasts as long as the work it led to, so that the places of a worker are counted, and is deleted when it ends. What
Procrastinate does not promise is not relied on. A wake-up can be lost: every `POLL_SECONDS` the worker looks by itself.
A job of a dead worker stays for ever: `sweep` deletes it and tells of the run anew. It is never handed on, because who
ends a job need not be who began it: a worker that was only frozen finds its job gone. The claim of the run and its
token decide who works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from adws.adw_modules.db import announcing, procrastinate_service
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.db.procrastinate_handover import Handover
from adws.adw_modules.db.session import Session
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Listener
from adws.adw_modules.owner_record import OwnerRecord

logger = logging.getLogger("adw.dispatch")

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
WHERE queue_name IN ('{announcing.QUEUE}', '{procrastinate_service.UPKEEP}')
  AND (status NOT IN ('todo', 'doing') OR (status = 'doing' AND worker_id IS NULL))
"""  # noqa: S608 - names of queues of ours


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
        """Return the ear of a worker that has *places* for runs."""
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
        self._service = procrastinate_service.Service(
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
        """Wait for a run that is told of; say yes without one every `POLL_SECONDS`. Raises SchemaMismatch."""
        if self._handover.wait(min(seconds, self._yes_at - self._clock.monotonic())):
            return True
        if self._clock.monotonic() < self._yes_at:
            return False
        self._yes_at = self._clock.monotonic() + self._times.poll

        return True

    def heard(self) -> int | None:
        """Take up a run that was told of."""
        return self._handover.take()

    def done(self, run_id: int) -> None:
        """End the job that told of a run."""
        self._handover.end(run_id)

    def sweep(self) -> int:
        """Delete the jobs of dead workers, tell anew of every run that waits without one, and return how many."""
        return self._database.transact(self._sweep)

    def _sweep(self, session: Session) -> int:
        if session.one(_MAY_SWEEP, {"key": SWEEP_LOCK}) != (True,):
            return 0
        session.run(_FORGET_WORKERS, {"stalled": self._times.stalled})
        given_up = session.run(_SWEEP)
        told = announcing.announce_missing(self._database, session)
        if given_up or told:
            extra = {"action": "dispatch_swept", "given_up": given_up, "told_again": told}
            logger.info("Swept the jobs of dead workers", extra=extra)

        return given_up
