"""
What all who work in a home share, each a part over its database: lists, leases, locks, the run queue, the workers.

The first half of `app.App`, apart because of its length. As there, a part's module is imported when the part is used.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from adws import config
    from adws.adw_modules.coordination.external_desk import ExternalDesk
    from adws.adw_modules.coordination.retry_desk import RetryDesk
    from adws.adw_modules.db.changes import DatabaseChanges
    from adws.adw_modules.db.cost_book import DatabaseCostBook
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.execution_views import ExecutionViews
    from adws.adw_modules.executions import Executions
    from adws.adw_modules.external_tasks import ExternalTasks
    from adws.adw_modules.interfaces import Catalogue, Clock, EventLog, IssueLocks, LeaseBook, Requests, StateStore
    from adws.adw_modules.interfaces_coordination import AgentSessions, Counters, Dispatcher, Runners
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.interfaces_metrics import EventTally
    from adws.adw_modules.interfaces_reports import Reports
    from adws.adw_modules.process import SystemProcesses
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.run_making import RunMaker
    from adws.adw_modules.runs import Terms
    from adws.app_work import WorkRoom


class SharedParts:
    """What is shared by means of the database."""

    if TYPE_CHECKING:  # what `App` brings
        settings: config.Settings
        clock: Clock
        _role: str

        @cached_property
        def database(self) -> Database: ...
        @cached_property
        def processes(self) -> SystemProcesses: ...
        @cached_property
        def store(self) -> StateStore: ...
        @cached_property
        def redactor(self) -> Redactor: ...
        @cached_property
        def work(self) -> WorkRoom: ...

    @cached_property
    def catalogue(self) -> Catalogue:
        """Lists and look-ups."""
        from adws.adw_modules.db.catalogue import DatabaseCatalogue

        return DatabaseCatalogue(self.database, repository=self.settings.repository or "")

    @cached_property
    def events(self) -> EventLog:
        """What happened."""
        from adws.adw_modules.db.events import DatabaseEventLog

        return DatabaseEventLog(self.database)

    def changes(self) -> DatabaseChanges:
        """Return what sees whether anything changed: a new one for each who looks."""
        from adws.adw_modules.db.changes import DatabaseChanges

        return DatabaseChanges(self.database)

    @cached_property
    def costs(self) -> DatabaseCostBook:
        """What was spent."""
        from adws.adw_modules.db.cost_book import DatabaseCostBook

        return DatabaseCostBook(self.database)

    @cached_property
    def reports(self) -> Reports:
        """What was done, and what is now."""
        from adws.adw_modules.db.reports import DatabaseReports

        return DatabaseReports(self.database, clock=self.clock)

    @cached_property
    def leases(self) -> LeaseBook:
        """Who works on what."""
        from adws.adw_modules.db.leases import DatabaseLeases

        return DatabaseLeases(self.database, clock=self.clock)

    @cached_property
    def locks(self) -> IssueLocks:
        """Which workflow has which issue."""
        from adws.adw_modules.db.issue_locks import DatabaseIssueLocks

        return DatabaseIssueLocks(self.database, clock=self.clock, repository=self.settings.repository or "")

    @cached_property
    def requests(self) -> Requests:
        """Messages to live owners."""
        from adws.adw_modules.db.requests import DatabaseRequests

        return DatabaseRequests(self.database, clock=self.clock)

    @cached_property
    def runs(self) -> RunQueue:
        """What waits for a worker, and what is with one."""
        from adws.adw_modules.db.run_queue import DatabaseRunQueue

        return DatabaseRunQueue(self.database, clock=self.clock)

    @cached_property
    def runners(self) -> Runners:
        """The workers there are."""
        from adws.adw_modules.db.runners import DatabaseRunners

        return DatabaseRunners(self.database, clock=self.clock)

    @cached_property
    def sessions(self) -> AgentSessions:
        """Whose agents are at work."""
        from adws.adw_modules.db.sessions import DatabaseSessions

        return DatabaseSessions(self.database, clock=self.clock)

    @cached_property
    def counters(self) -> Counters:
        """What was counted."""
        from adws.adw_modules.db.counters import DatabaseCounters

        return DatabaseCounters(self.database)

    @cached_property
    def tally(self) -> EventTally:
        """What happened, counted."""
        from adws.adw_modules.db.event_tally import DatabaseEventTally

        return DatabaseEventTally(self.database)

    @cached_property
    def external_tasks(self) -> ExternalTasks:
        """What is done outside of adw."""
        from adws.adw_modules.db.external_tasks import DatabaseExternalTasks

        return DatabaseExternalTasks(self.database, clock=self.clock)

    @cached_property
    def external(self) -> ExternalDesk:
        """Where those report who do it."""
        from adws.adw_modules.coordination.external_desk import DeskParts, ExternalDesk
        from adws.app_forge import key_of

        return ExternalDesk(
            DeskParts(
                tasks=self.external_tasks,
                load=lambda adw_id: self.store.load(adw_id).document,
                redact=self.redactor.redact,
                key=partial(key_of, self.settings, clock=self.clock),
            )
        )

    def dispatcher(self, tick: Callable[[], object] | None = None) -> Dispatcher:
        """Return what brings runs to workers; *tick* does what is due on the schedule (`app_dispatch`)."""
        from adws.app_dispatch import open_dispatcher

        return open_dispatcher(self.database, self.settings, clock=self.clock, tick=tick)

    @cached_property
    def executions(self) -> Executions:
        """Steps whose calls are spread over workers."""
        from adws.adw_modules.db.executions import DatabaseExecutions
        from adws.adw_modules.execution_state import Rules
        from adws.adw_modules.fanout import planner
        from adws.adw_modules.fanout.contexts import event_contexts, resolved

        redact = self.redactor.redact

        return DatabaseExecutions(
            self.database,
            clock=self.clock,
            rules=Rules(
                decide=planner.decide,
                fold=planner.fold,
                scrub=redact,
                is_storable=self._is_storable,
                resolve=lambda new: resolved(new.context, self.executions, new.adw_id),
            ),
            sanitise=lambda new: event_contexts(new, redact),
            scrub=self.redactor.scrub_bytes,
        )

    def _is_storable(self, text: str) -> bool:
        payload = text.encode("ascii")

        return self.redactor.scrub_bytes(payload) is payload

    @cached_property
    def retries(self) -> RetryDesk:
        """What is tried again later."""
        from adws.adw_modules.coordination.retry_desk import RetryDesk, RetryParts

        return RetryDesk(
            RetryParts(
                executions=self.executions,
                runs=self.runs,
                peek=lambda adw_id: self.store.peek(adw_id).data,
                control=lambda: self.work.control,
            )
        )

    @cached_property
    def execution_views(self) -> ExecutionViews:
        """Looking at them."""
        from adws.adw_modules.db.execution_views import DatabaseExecutionViews

        return DatabaseExecutionViews(self.database)

    @cached_property
    def run_maker(self) -> RunMaker:
        """What makes the runs of workflows."""
        from adws.adw_modules.run_making import RunMaker
        from adws.app_parties import provider_of_runner

        return RunMaker(
            repository=self.settings.repository or "",
            provider_of=partial(provider_of_runner, usual=self.settings.agent_name),
        )

    @cached_property
    def terms(self) -> Terms:
        """On which terms runs are claimed here: what this machine offers, and how many runs go on at a time."""
        from adws.adw_modules.demands import Offer
        from adws.adw_modules.runs import Terms

        tags = frozenset(self.settings.worker_tags or ())

        return Terms(offer=Offer(host=self.processes.me(self._role).host, tags=tags), limits=self.settings.run_limits)
