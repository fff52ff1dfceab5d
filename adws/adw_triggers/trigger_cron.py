"""
The cron of a home: looks what is due, claims it, has it done.

Only order and input/output: when something is due is decided in `schedule`, what is done in the jobs. Any number of
crons may run, on any number of machines: each tick is claimed by one. A job that fails is written down and comes again
with its next tick; a cron that dies leaves a claim that ends by itself, and the tick is done by another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.cron_jobs import Job
from adws.adw_modules.coordination.cron_work import TTL_SECONDS, CronWork, Ran
from adws.adw_modules.errors import ConfigError, DatabaseError
from adws.adw_modules.interfaces import Clock, Processes
from adws.adw_modules.interfaces_schedule import ScheduleBook, ScheduleRow
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_triggers import schedule
from adws.adw_triggers.schedule import Due, Entry

logger = logging.getLogger("adw.cron")

#: Seconds between two looks whether to end.
LOOK_SECONDS = 0.5
#: The longest wait for the next tick: the settings of a clock may change meanwhile.
MOST_SECONDS = 30.0
#: Sends what the other entries tell, so it comes after them.
LAST = "notify"


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
        self._book = book
        self._clock = clock
        self._work = CronWork(jobs, book=book, me=me, processes=processes, ttl_seconds=ttl_seconds)
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
        entry = due.entry

        return self._work.do(
            entry.name, spec=entry.expression, due=timestamps.to_text(due.at), row=row, missed=due.missed
        )

    def _rest(self) -> None:
        """Wait for the next tick."""
        now = self._clock.now()
        tick = schedule.next_tick(self._entries, now)
        seconds = MOST_SECONDS if tick is None else min(MOST_SECONDS, (tick - now).total_seconds())
        until = self._clock.monotonic() + seconds
        while not self._is_stopping and (left := until - self._clock.monotonic()) > 0.0:
            self._clock.sleep(min(left, LOOK_SECONDS))
