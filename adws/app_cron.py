"""
The wiring of what is done on a schedule, and of notifications.

Apart from `app` because only cron and workers need it; each part is built on first use.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from adws import app_forge, config, config_values
from adws.adw_modules import notify_rules
from adws.adw_modules.coordination.cron_jobs import CronJobs, CronParts, Job
from adws.adw_modules.coordination.cron_work import CronRunParts, CronRuns, CronWork
from adws.adw_modules.coordination.notifying import Notifier, NotifyParts, NotifyThread
from adws.adw_modules.coordination.poll_jobs import PollJobs, PollParts
from adws.adw_modules.db.breakers import DatabaseBreakers
from adws.adw_modules.db.notifications import DatabaseNotifications
from adws.adw_modules.db.schedule import DatabaseSchedule
from adws.adw_modules.errors import StateError
from adws.adw_modules.notify import Channel, CommandChannel, CommentChannel, HttpChannel
from adws.app_home import HomeBooks

if TYPE_CHECKING:
    from adws.adw_modules.coordination.reporting import Reporting
    from adws.adw_modules.db.cost_book import DatabaseCostBook
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.interfaces import Projection
    from adws.adw_modules.interfaces_reports import Reports
    from adws.adw_modules.recovery_facts import RecoveryStep
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.app_tidy import TidyRoom
    from adws.app_work import WorkRoom

#: Every entry of the schedule, in the order in which they are shown; the setting is `cron_<name>`.
ENTRIES = (
    "notify",
    "recover",
    "quota",
    "breakers",
    "poll_issues",
    "poll_comments",
    "redeliver",
    "gc",
    "retention",
    "report",
)


class HomeParts(HomeBooks, Protocol):
    """What the parts of a home are to its schedule (`app.App`)."""

    @property
    def database(self) -> Database: ...
    @property
    def projection(self) -> Projection: ...
    @property
    def costs(self) -> DatabaseCostBook: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def reporting(self) -> Reporting: ...
    @property
    def quotas(self) -> MachineQuotas: ...
    @property
    def work(self) -> WorkRoom: ...
    @property
    def tidy(self) -> TidyRoom: ...


class CronRoom:
    """The parts that do what is due, and tell people."""

    def __init__(self, app: HomeParts) -> None:
        self._app = app

    def close(self) -> None:
        """Wait a little for a notification that is under way."""
        thread = self.__dict__.pop("notify_thread", None)
        if thread is not None:
            thread.close()

    @cached_property
    def book(self) -> DatabaseSchedule:
        """The entries of the schedule, which all crons share."""
        return DatabaseSchedule(self._app.database, clock=self._app.clock)

    @cached_property
    def notifications(self) -> DatabaseNotifications:
        """What people are to be told."""
        return DatabaseNotifications(self._app.database, clock=self._app.clock)

    # --- notifications -----------------------------------------------------------------------------------------

    @cached_property
    def channels(self) -> dict[str, Channel]:
        """The ways by which people are told."""
        app, settings = self._app, self._app.settings
        found: dict[str, Channel] = {}
        if settings.notify_command:
            found[notify_rules.COMMAND] = CommandChannel(
                argv=config_values.commands_in(settings.notify_command)[0],
                cwd=settings.home,
                env=config.process_environment(),
                clock=app.clock,
                processes=app.processes,
                redactor=app.redactor,
                timeout_seconds=settings.notify_timeout_seconds,
            )
        if settings.notify_url:
            found[notify_rules.HTTP] = HttpChannel(
                url=settings.notify_url,
                redact=app.redactor.redact_text,
                timeout_seconds=settings.notify_timeout_seconds,
            )
        if settings.notify_comment:
            found[notify_rules.COMMENT] = CommentChannel(
                forge=lambda: app.forge,
                key=lambda: app_forge.key_of(settings, clock=app.clock),
                issue_of=self._issue_of,
                redact=app.redactor.redact_text,
            )

        return found

    def _issue_of(self, adw_id: str) -> int | None:
        try:
            number = self._app.store.peek(adw_id).data.get("issue_number")
        except StateError:
            return None

        return number if isinstance(number, int) else None

    @cached_property
    def notifier(self) -> Notifier:
        """Gathers notices and sends them."""
        app, settings = self._app, self._app.settings

        return Notifier(
            NotifyParts(
                book=self.notifications,
                clock=app.clock,
                channels=self.channels,
                switches=frozenset(settings.notify_events),
                max_attempts=settings.notify_attempts,
                timeout_seconds=settings.notify_timeout_seconds,
                flush=self._flush,
            )
        )

    def _flush(self) -> None:
        if self._app.settings.store == "files":
            self._app.projection.flush()

    @cached_property
    def notify_thread(self) -> NotifyThread:
        """Notifies beside the work of this process."""
        return NotifyThread(self.notifier)

    def poke(self) -> None:
        """Have people told soon, when anybody is to be told; never waits, never raises."""
        if self.channels:
            self.notify_thread.poke()

    # --- jobs --------------------------------------------------------------------------------------------------

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """What is done, by the names of entries."""
        return {**self._own_jobs().all(), **self._poll_jobs().all()}

    def _own_jobs(self) -> CronJobs:
        app, settings = self._app, self._app.settings

        return CronJobs(
            CronParts(
                clock=app.clock,
                host=app.processes.me("cron").host,
                reports=app.reports,
                quotas=app.quotas,
                breakers=DatabaseBreakers(app.database),
                notifications=self.notifications,
                notifier=self.notifier,
                recover=self._recover,
                collector=lambda: app.tidy.collector,
                costs=app.costs.entries,
                free_places=app.quotas.free_left_behind,
                gc_execute=settings.cron_gc_execute,
                stuck=app.reporting.stuck if settings.cron_stuck_minutes else tuple,
                retention=lambda: app.tidy.retention,
            )
        )

    @cached_property
    def cron_runs(self) -> CronRuns:
        """What queues runs that do an entry of the schedule, and does them."""
        app = self._app

        return CronRuns(
            CronRunParts(
                clock=app.clock,
                runs=app.runs,
                keeper=app.work.keeper,
                book=self.book,
                entries={name: getattr(app.settings, f"cron_{name}") for name in ENTRIES},
                work=lambda: CronWork(self.jobs, book=self.book, me=app.processes.me("cron"), processes=app.processes),
            )
        )

    def _recover(self) -> tuple[RecoveryStep, ...]:
        return self._app.work.recovery.recover().steps

    def _poll_jobs(self) -> PollJobs:
        app, settings = self._app, self._app.settings

        return PollJobs(
            PollParts(
                clock=app.clock,
                forge=lambda: app.forge,
                deliveries=app.deliveries,
                catalogue=app.catalogue,
                label=settings.webhook_label,
                has_webhook=bool(settings.webhook_secret),
            )
        )
