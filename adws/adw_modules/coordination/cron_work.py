"""
Doing entries of the schedule: each is claimed for one moment, done, and written down; and runs that ask for one.

An entry is claimed in the database by one of all who could do it. A job that fails is written down; whoever dies in the
middle leaves a claim that ends by itself. A run of kind `cron` asks a worker to do an entry now, whenever it is due.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.cron_jobs import Job, JobEnd
from adws.adw_modules.coordination.keeper import Keeper
from adws.adw_modules.coordination.workflow_work import WorkEnd
from adws.adw_modules.errors import AdwError, DatabaseError, UsageError
from adws.adw_modules.interfaces import Clock, Processes
from adws.adw_modules.interfaces_engine import RunQueue
from adws.adw_modules.interfaces_schedule import ScheduleBook, ScheduleRow, Tick
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import CRON, NewRun, Run, RunState

logger = logging.getLogger("adw.cron")

#: Seconds that a claim lasts; it is renewed while its job runs.
TTL_SECONDS = 120.0
#: Seconds until an entry is asked for again that somebody else is at.
BUSY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What came of an entry."""

    name: str
    due: str
    missed: int
    status: str  #: done | failed | busy (another cron has it) | lost (another cron took it over)
    outcome: str
    details: tuple[str, ...] = ()


class CronWork:
    """Does one entry at a time."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        *,
        book: ScheduleBook,
        me: OwnerRecord,
        processes: Processes,
        ttl_seconds: float = TTL_SECONDS,
    ) -> None:
        self._jobs = jobs
        self._book = book
        self._me = me
        self._processes = processes
        self._ttl = ttl_seconds

    def do(self, name: str, *, spec: str, due: str, row: ScheduleRow | None, missed: int = 0) -> Ran:
        """Do the entry *name* for the moment *due*, unless somebody else has it; *row* is what is known about it."""
        tick = self._book.claim(
            name,
            spec=spec,
            due=due,
            seen=row.last_due if row else "",
            owner=self._me,
            ttl_seconds=self._ttl,
            dead_token=self._dead_token(row),
        )
        if tick is None:
            outcome = "another cron has it, or has done it"
            return Ran(name=name, due=due, missed=missed, status="busy", outcome=outcome)
        with self._kept(tick):
            status, end = self._do(tick)
        kept = self._book.finish(tick, status=status, outcome=end.outcome, memo=end.memo, notices=end.notices)
        logger.info("Done by schedule", extra={"action": "cron_ran", "entry": tick.name, "outcome": end.outcome})

        return Ran(
            name=name,
            due=due,
            missed=missed,
            status=status if kept else "lost",
            outcome=end.outcome,
            details=end.details,
        )

    def _do(self, tick: Tick) -> tuple[str, JobEnd]:
        try:
            return "done", self._jobs[tick.name](tick)
        except DatabaseError:
            raise  # nothing can be written down: the claim ends by itself, and the tick is done by whoever comes next
        except (AdwError, OSError) as exc:
            logger.warning("A job failed", extra={"action": "cron_failed", "entry": tick.name}, exc_info=exc)
            return "failed", JobEnd(outcome=" ".join(str(exc).split())[:500])
        except Exception as exc:  # a bug in one job must not keep the others from being done
            logger.exception("A job broke", extra={"action": "cron_failed", "entry": tick.name})
            return "failed", JobEnd(outcome=f"a bug in adw: {type(exc).__name__}: {exc}"[:500])

    def _dead_token(self, row: ScheduleRow | None) -> int | None:
        """Return the token of a claim that nobody works on any more, None when there is none."""
        if row is None or not row.owner:
            return None
        owner = OwnerRecord.from_text(row.owner)
        # One of ours is left over: its end could not be written down, and we do one thing at a time.
        is_over = owner == self._me or self._processes.verdict(owner) is Verdict.DEAD

        return row.token if is_over else None

    @contextmanager
    def _kept(self, tick: Tick) -> Iterator[None]:
        """Renew the claim while the block runs."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self._ttl / 3):
                try:
                    self._book.renew(tick, ttl_seconds=self._ttl)
                except DatabaseError as exc:
                    logger.warning("A claim was not renewed", extra={"action": "database_trouble"}, exc_info=exc)

        thread = threading.Thread(target=renew, name="adw-cron-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


# --- runs that ask for an entry --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CronRunParts:
    """What runs of the schedule need."""

    clock: Clock
    runs: RunQueue
    keeper: Keeper
    book: ScheduleBook
    entries: Mapping[str, str]  #: name -> when it comes by itself
    work: Callable[[], CronWork]  #: built late: most workers never need it, and each work has an owner of its own


class CronRuns:
    """Queues runs that do an entry of the schedule, and does those that a worker has claimed; implements `Errand`."""

    def __init__(self, parts: CronRunParts) -> None:
        self._parts = parts

    def queue(self, entry: str, *, by: str = "") -> Run:
        """Return the durable run that does *entry*; the one that waits or is under way when there is one."""
        self._check(entry)

        return self._parts.runs.enqueue(
            NewRun(adw_id=f"cron-{entry}", kind=CRON, payload={"entry": entry}, asked_by=by)
        )

    def do(self, entry: str) -> Ran:
        """Do *entry* now, whenever it is due; raise UsageError when there is none of that name."""
        self._check(entry)
        row = next((row for row in self._parts.book.rows() if row.name == entry), None)
        now = timestamps.to_text(self._parts.clock.now())

        return self._parts.work().do(entry, spec=self._parts.entries[entry], due=now, row=row)

    def work(self, run: Run) -> WorkEnd:
        """Do what a claimed run asks for, and end it; what somebody else is at is looked at again soon."""
        parts = self._parts
        run = parts.runs.begin(run)
        if run.state is RunState.STOPPING:
            return self._ended(run, RunState.STOPPED, run.reason)
        with parts.keeper.keep(run, is_wanted=lambda: True):
            ran = self.do(str(run.payload.get("entry") or ""))
        if ran.status in {"busy", "lost"}:
            due = timestamps.to_text(parts.clock.now() + timedelta(seconds=BUSY_SECONDS))
            again = parts.runs.requeue(run, not_before=due, reason=ran.outcome)
            return WorkEnd(run=again, outcome=None, message=ran.outcome)

        return self._ended(run, RunState.COMPLETED if ran.status == "done" else RunState.FAILED, ran.outcome)

    def give_up(self, run: Run, why: str) -> None:
        """Leave it at that: the run itself says why, and the entry comes again by itself."""

    def _ended(self, run: Run, state: RunState, reason: str) -> WorkEnd:
        ended = self._parts.runs.finish(run, state, reason=reason)

        return WorkEnd(run=ended, outcome=None, message=ended.reason)

    def _check(self, entry: str) -> None:
        if entry not in self._parts.entries:
            raise UsageError(f"{entry!r} is no entry of the schedule; use one of {', '.join(self._parts.entries)}")
