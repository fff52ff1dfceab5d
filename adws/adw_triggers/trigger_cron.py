"""
The cron of a home: looks what is due, claims it, has it done.

Only order and input/output: when something is due is decided in `schedule`, what is done in the jobs. Any number of
crons may run, on any number of machines: each tick is claimed by one. A job that fails is written down and comes again
with its next tick; a cron that dies leaves a claim that ends by itself, and the tick is done by another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.cron_jobs import Job, JobEnd
from adws.adw_modules.errors import AdwError, ConfigError, DatabaseError
from adws.adw_modules.interfaces import Clock, Processes
from adws.adw_modules.interfaces_schedule import ScheduleBook, ScheduleRow, Tick
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_triggers import schedule
from adws.adw_triggers.schedule import Due, Entry

logger = logging.getLogger("adw.cron")

#: Seconds that a claim lasts; it is renewed while its job runs.
TTL_SECONDS = 120.0
#: Seconds between two looks whether to end.
LOOK_SECONDS = 0.5
#: The longest wait for the next tick: the settings of a clock may change meanwhile.
MOST_SECONDS = 30.0
#: Sends what the other entries tell, so it comes after them.
LAST = "notify"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What came of an entry that was due."""

    name: str
    due: str
    missed: int
    status: str  #: done | failed | busy (another cron has it) | lost (another cron took it over)
    outcome: str
    details: tuple[str, ...] = ()


def check_entries(entries: Sequence[Entry], where: Callable[[str], str]) -> None:
    """Raise ConfigError with all expressions that cannot be used; *where* says where an entry was set."""
    problems = [
        f"{where(entry.name)}: cron.{entry.name} is {entry.expression!r} and {problem}"
        for entry in entries
        if (problem := schedule.problem_of(entry.expression))
    ]
    if problems:
        raise ConfigError(*problems)


class Cron:
    """Does what is due."""

    def __init__(
        self,
        entries: Sequence[Entry],
        jobs: Mapping[str, Job],
        *,
        book: ScheduleBook,
        clock: Clock,
        me: OwnerRecord,
        processes: Processes,
        ttl_seconds: float = TTL_SECONDS,
    ) -> None:
        self._entries = entries
        self._jobs = jobs
        self._book = book
        self._clock = clock
        self._me = me
        self._processes = processes
        self._ttl = ttl_seconds
        self._is_stopping = False

    def stop(self) -> None:
        """Begin nothing more; signal handlers call this."""
        self._is_stopping = True

    def run(self, tell: Callable[[Ran], None] = lambda _ran: None) -> None:
        """Do what is due, as it becomes due, until stopped; a database that is gone for a while is waited for."""
        while not self._is_stopping:
            try:
                for ran in self.run_due():
                    tell(ran)
            except DatabaseError as exc:
                logger.warning("The database does not answer", extra={"action": "database_trouble"}, exc_info=exc)
            self._rest()

    def run_due(self) -> Iterator[Ran]:
        """Do what is due now, one after the other, and yield what came of each."""
        rows = {row.name: row for row in self._book.rows()}
        due = schedule.due(self._entries, {name: row.last_due for name, row in rows.items()}, self._clock.now())
        for one in sorted(due, key=lambda found: found.entry.name == LAST):
            if self._is_stopping:
                return
            yield self._run(one, rows.get(one.entry.name))

    def _run(self, due: Due, row: ScheduleRow | None) -> Ran:
        tick = self._book.claim(
            due.entry.name,
            spec=due.entry.expression,
            due=timestamps.to_text(due.at),
            seen=row.last_due if row else "",
            owner=self._me,
            ttl_seconds=self._ttl,
            dead_token=self._dead_token(row),
        )
        if tick is None:
            return _ran(due, "busy", "another cron has it, or has done it")
        with self._kept(tick):
            status, end = self._do(tick)
        kept = self._book.finish(tick, status=status, outcome=end.outcome, memo=end.memo, notices=end.notices)
        logger.info("Done by schedule", extra={"action": "cron_ran", "entry": tick.name, "outcome": end.outcome})

        return _ran(due, status if kept else "lost", end.outcome, end.details)

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

    def _rest(self) -> None:
        """Wait for the next tick."""
        now = self._clock.now()
        tick = schedule.next_tick(self._entries, now)
        seconds = MOST_SECONDS if tick is None else min(MOST_SECONDS, (tick - now).total_seconds())
        until = self._clock.monotonic() + seconds
        while not self._is_stopping and (left := until - self._clock.monotonic()) > 0.0:
            self._clock.sleep(min(left, LOOK_SECONDS))


def _ran(due: Due, status: str, outcome: str, details: tuple[str, ...] = ()) -> Ran:
    return Ran(
        name=due.entry.name,
        due=timestamps.to_text(due.at),
        missed=due.missed,
        status=status,
        outcome=outcome,
        details=details,
    )
