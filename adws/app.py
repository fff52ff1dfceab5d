"""
The composition root: only `Home` names concrete classes.

Each part is built on first use, and its module is imported only then: showing one workflow loads neither the models nor
the database schema. Tests and embedders replace parts before their first use: `home.forge = MemoryForge()`.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
    DatabaseUnavailable,
    GitError,
    RepositoryNotTrusted,
    StateNotFound,
    WorkflowBusy,
)
from adws.config.load import from_environment, is_in_repository, process_environment
from adws.config.settings import Settings

if TYPE_CHECKING:
    from adws.adw_modules.agent import AgentProfile
    from adws.adw_modules.agents.preflight import AgentPreflight, AgentState
    from adws.adw_modules.agents.prompts import PromptFiles
    from adws.adw_modules.agents.sessions import AgentSessionRecorder, AgentSessions
    from adws.adw_modules.checkpoint import CheckpointManager, CheckpointStore, PastCheckpoints
    from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry
    from adws.adw_modules.costs import CostOf
    from adws.adw_modules.db.connection import Database
    from adws.adw_modules.db.listing import Catalogue, ChangeFeed, EventLog
    from adws.adw_modules.default_home import OpenedCheckpoints
    from adws.adw_modules.deliveries.handler import DeliveryHandler, PostMergeCleanup
    from adws.adw_modules.deliveries.store import DeliveryStore
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.attempt import Advisor
    from adws.adw_modules.engine.base_check import BaseCheck
    from adws.adw_modules.engine.gates import Gates
    from adws.adw_modules.engine.git_guard import Guard
    from adws.adw_modules.engine.runner_agent import AgentRunner
    from adws.adw_modules.engine.runner_command import CommandRunner
    from adws.adw_modules.engine.runner_ship import ShipRunner, StatusComment
    from adws.adw_modules.engine.service_guard import ServiceGuard, ServiceWaits
    from adws.adw_modules.events import Event
    from adws.adw_modules.external_tasks import ExternalTasks, ExternalTaskService
    from adws.adw_modules.forge.effects import ForgeEffects
    from adws.adw_modules.forge.model import Forge, ForgeAccess
    from adws.adw_modules.git.diff import Diffs
    from adws.adw_modules.git.git import GitCommands
    from adws.adw_modules.git.repository import Repository
    from adws.adw_modules.git.worktree import GitWorkplace
    from adws.adw_modules.housekeeping.gc import Adoption, GarbageCollector
    from adws.adw_modules.housekeeping.inventory import Inventory
    from adws.adw_modules.housekeeping.retention import Retention
    from adws.adw_modules.housekeeping.verify import Verifier
    from adws.adw_modules.interfaces import Clock, Dispatcher, OwnerRecord, StateStore
    from adws.adw_modules.maintenance.rebuild import Reconstruction
    from adws.adw_modules.ownership.issue_locks import DocumentRegistry, IssueLocks, WorkflowRegistry
    from adws.adw_modules.ownership.lease_renewer import LeaseRenewer
    from adws.adw_modules.ownership.leases import Leases, Requests
    from adws.adw_modules.ownership.local_lock import LocalLock
    from adws.adw_modules.ownership.ownership import Takeover, WorkflowOwnership
    from adws.adw_modules.phase import Runner
    from adws.adw_modules.plugins import Plugins
    from adws.adw_modules.process.identity import SystemProcesses
    from adws.adw_modules.process.tree import ProcessEnding
    from adws.adw_modules.queue.model import ClaimPolicy, RunFactory, RunResult
    from adws.adw_modules.queue.store import RunStore
    from adws.adw_modules.queue.workers import WorkerRegistry
    from adws.adw_modules.recovery.recovery import Recovery
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.adw_modules.reports.metrics import Counters, EventTally, Gauges, MetricsCollector
    from adws.adw_modules.reports.reports import Reporting
    from adws.adw_modules.reports.store import ReportStore
    from adws.adw_modules.resources.ports import PortRange, Ports
    from adws.adw_modules.resources.quotas import CostStore, Quotas
    from adws.adw_modules.rollback.run import Rollbacks
    from adws.adw_modules.sandbox.sandbox import Sandboxes
    from adws.adw_modules.schedule.jobs import CronRuns, Job
    from adws.adw_modules.schedule.notify import Channel, Notifier, NotifyThread
    from adws.adw_modules.schedule.store import NotificationStore, ScheduleStore
    from adws.adw_modules.steps.http_client import HttpClient
    from adws.adw_modules.steps.iteration_worker import IterationWorker, ToolCalls
    from adws.adw_modules.steps.runner import StepRunner
    from adws.adw_modules.steps.store import Executions
    from adws.adw_modules.steps.tools import Tool
    from adws.adw_modules.steps.views import ExecutionViews
    from adws.adw_modules.store.files import FileStateStore, StateFolders
    from adws.adw_modules.store.projection import Projection
    from adws.adw_modules.structured_logger import WorkflowLogs
    from adws.adw_modules.worker.claim import RunClaimer
    from adws.adw_modules.worker.control import Control, PendingRetries
    from adws.adw_modules.worker.create_workflow import WorkflowCreator
    from adws.adw_modules.worker.preflight import Preflight
    from adws.adw_modules.worker.run_executor import JobHandler, RunExecutor
    from adws.adw_modules.worker.worker import Worker, WorkerOptions
    from adws.adw_modules.workflow.library import Workflows
    from adws.adw_modules.workflow.model import PhaseSpec
    from adws.adw_modules.workspace.relocation import Publisher, RelocationCleanup
    from adws.adw_modules.workspace.workspace import Workspace


_LOST_COPY = "the database {} is missing or empty: adw db rebuild makes it again from the documents"
_LOST_DOCUMENTS = (
    "the database {} is missing or empty, and the documents in it with it: bring a backup back with adw db restore, or "
    "delete {} to start afresh"
)
_NO_FORGE = (
    "no forge is configured: set github.repository in adw.toml and ADW_GITHUB_TOKEN for GitHub, or "
    'kind = "local" under [forge] in adw.toml for issues and pull requests as files'
)
#: The forges that come with adw, which a plugin may build on.
BUILT_IN_FORGES = ("github", "local")

logger = logging.getLogger("adw.work")

_Value = TypeVar("_Value")


def open_home(settings: Settings, *, role: str = "cli", wrap_clock: Callable[[Clock], Clock] | None = None) -> Home:
    """Return a home, for use in a `with` statement; *role* is how other processes see this one."""
    clock: Clock = SystemClock()

    return Home(settings, clock=wrap_clock(clock) if wrap_clock else clock, role=role)


def open_default() -> Home:
    """Return the default home of this process, for library calls that pass none."""
    return open_home(from_environment(), role="library")


class part(cached_property[_Value]):  # noqa: N801 - a decorator, named as property is
    """
    A part of a home: built on first use, then kept; assignment replaces it.

    Only one thread at a time builds parts of a home, as server requests and worker threads may need them at once.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> _Value: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | _Value:
        if instance is None:
            return self
        home, name = cast("Home", instance), cast("str", self.attrname)
        with home.building:
            # Does not call super(): until Python 3.12 its lock is shared by all homes, and two threads could deadlock.
            if name not in home.__dict__:
                home.__dict__[name] = self.func(home)
            value: _Value = home.__dict__[name]

        return value


class Home:
    """All parts of a home, each built on first use."""

    #: Whether SQLite databases and worktrees survive a power cut; the homes of `adws.testing` turn this off.
    is_synced = True

    def __init__(self, settings: Settings, *, clock: Clock, role: str, env: Mapping[str, str] | None = None) -> None:
        """*env* is the environment for child processes; by default that of this process."""
        self.settings = settings
        self.clock = clock
        self._role = role
        self.building = threading.RLock()  #: held while a part is built
        self.env = process_environment() if env is None else env
        # The command that shows progress sets both before work begins.
        self.say: Callable[[str, str], None] = lambda _adw_id, _line: None  #: receives each line of a phase's output
        self.tell: Callable[[WorkflowDocument, Sequence[Event]], None] = lambda _document, _events: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Bring the projection up to date and close the parts that were built."""
        for name in _CLOSED_IN_ORDER:
            part = self.__dict__.pop(name, None)  # only parts that were built
            if part is not None:
                part.close()

    # --- this process ------------------------------------------------------------------------------------------

    @part
    def processes(self) -> SystemProcesses:
        """The processes of this machine, identified by more than their pid."""
        from adws.adw_modules.process.identity import SystemProcesses

        return SystemProcesses(clock=self.clock, host=self.settings.worker_host)

    @part
    def host(self) -> str:
        """The name of this machine in leases, ports and the ledger."""
        return self.processes.me(self._role).host

    @property
    def me(self) -> OwnerRecord:
        """This process as an owner."""
        return self.processes.me(self._role)

    @property
    def repository(self) -> str:
        """The repository of documents that name none, "" when none is set."""
        return self.settings.repository or ""

    @part
    def redactor(self) -> Redactor:
        """Removes known secrets from everything that is written."""
        return make_redactor(self.settings)

    def folder_of(self, adw_id: str) -> Path:
        """Return the directory of a workflow."""
        return self.settings.state_dir / adw_id

    def load(self, adw_id: str) -> WorkflowDocument:
        """Return the current document of a workflow."""
        return self.store.load(adw_id).document

    def end_process(self, data: Mapping[str, object]) -> ProcessEnding:
        """End the remains of a recorded process; return what was found, even if that proves nothing."""
        return self._end_recorded(data, grace_seconds=self.settings.grace_seconds)

    def end_process_in_time(self, data: Mapping[str, object]) -> ProcessEnding:
        """End the remains of a recorded process well before a lease expires that perhaps nobody renews."""
        settings = self.settings

        return self._end_recorded(data, grace_seconds=min(settings.grace_seconds, settings.lease_ttl_seconds / 3))

    def _end_recorded(self, data: Mapping[str, object], *, grace_seconds: float) -> ProcessEnding:
        from adws.adw_modules.process.tree import ProcessEnding, end_recorded, recorded

        record = recorded(data)
        if record is None:
            return ProcessEnding(evidence="its record cannot be read, so nothing was signalled")

        return end_recorded(record, clock=self.clock, processes=self.processes, grace_seconds=grace_seconds)

    # --- documents ---------------------------------------------------------------------------------------------

    @part
    def store(self) -> StateStore:
        """The document store chosen in the settings."""
        from adws.adw_modules.store.database import DatabaseStateStore
        from adws.adw_modules.store.files import FileStateStore

        if self.settings.store == "database":
            return DatabaseStateStore(
                self.database,
                clock=self.clock,
                scrub=self.scrub,
                not_imported=self._document_places,
            )

        return FileStateStore(
            self.settings.state_dir,
            clock=self.clock,
            projection=self.projection,
            scrub=self.scrub,
            not_imported=self._document_places,
        )

    @property
    def _document_places(self) -> tuple[Path, Path]:
        """The directories of documents: ours, and that of older set-ups."""
        return self.settings.state_dir, self.settings.home / "agents"

    def no_workflow(self, adw_id: str) -> StateNotFound:
        """Return the error for a workflow unknown to the database; it names the file of its document, if any."""
        from adws.adw_modules.store.files import not_found

        return not_found(adw_id, self._document_places)

    def files_of_documents(self) -> list[Path]:
        """Return the document files, ours and those of older set-ups."""
        return sorted(path for place in self._document_places for path in place.glob("*/adw_state.json"))

    def may_have_projection(self) -> bool:
        """Say whether a projection may exist: reading a broken document must not create a database."""
        file = self.settings.database_file

        return "database" in self.__dict__ or file is None or _is_made(file)

    def catch_up(self, adw_id: str) -> None:
        """Bring the projection of a document in files up to date."""
        if self.settings.store == "files":
            cast("FileStateStore", self.store).catch_up(adw_id)

    def flush_projection(self) -> None:
        """Bring the projection of all documents up to date; database stores have no projection."""
        if self.settings.store == "files":
            self.projection.flush()

    # Methods instead of the redactor's own: making a redactor takes time, and a view that writes nothing needs none.
    def scrub(self, payload: bytes) -> bytes:
        """Return what is to be stored, without the secrets we know."""
        return self.redactor.scrub_bytes(payload)

    def _scrub_text(self, text: str) -> str:
        return self.redactor.scrub_text(text)

    def _scrub_json(self, text: str) -> str:
        return self.redactor.scrub_json(text)

    @part
    def projection(self) -> Projection:
        """The database copy of documents in files."""
        from adws.adw_modules.store.projection import Projection

        return Projection(self)

    @part
    def folders(self) -> StateFolders:
        """The directories of workflows, as a whole."""
        from adws.adw_modules.store.files import StateFolders

        return StateFolders(self.settings.state_dir)

    # --- database ----------------------------------------------------------------------------------------------

    @part
    def database(self) -> Database:
        """The database with leases, locks, requests, events and projection; created unless one was lost."""
        from adws.adw_modules.db.migrate import open_database
        from adws.adw_modules.store.database import leave

        self.refuse_lost_database()
        opened = open_database(
            self.settings.database_url, clock=self.clock, boot_id=self.processes.boot_id, is_synced=self.is_synced
        )
        opened.scrub_text = self._scrub_text
        opened.scrub_json = self._scrub_json
        file = self.settings.database_file
        try:
            if file is not None and self.settings.store == "database":
                leave(file)
        except BaseException:
            opened.close()
            raise

        return opened

    def has_database(self) -> bool:
        """Say whether a database exists to read; raise DatabaseUnavailable if one should exist but does not."""
        self.refuse_lost_database()
        file = self.settings.database_file

        return file is None or _is_made(file)

    def refuse_lost_database(self) -> None:
        """
        Raise DatabaseUnavailable if the database was lost that held documents, or the records of documents in files.

        An empty database in its place would hide the loss and release the issues of all these workflows. Only
        `reconstruction`, which recreates it from a backup or from files, skips this check. Documents of older versions
        never had a database and do not count.
        """
        from adws.adw_modules.store.database import marker_of

        file = self.settings.database_file
        if file is None or _is_made(file):
            return

        has_files = self.settings.store == "files" and any(map(self._had_database, self.store.ids()))
        marker = marker_of(file)
        had_documents = marker.exists()
        if not has_files and not had_documents:
            return
        # Checked again: a process that made both meanwhile made the database first.
        if _is_made(file):
            return

        raise DatabaseUnavailable((_LOST_COPY if has_files else _LOST_DOCUMENTS).format(file, marker))

    def _had_database(self, adw_id: str) -> bool:
        try:
            notices = self.store.load(adw_id).notices
        except AdwError:
            return False  # an unreadable document cannot say which issue it has; `adw db check` reports it

        return all(notice.kind != "migrated" for notice in notices)

    @part
    def reconstruction(self) -> Reconstruction:
        """The database in any condition, for backup, restore and rebuild."""
        from adws.adw_modules.maintenance.rebuild import Reconstruction

        return Reconstruction(self.settings.database_url, clock=self.clock, boot_id=self.processes.boot_id)

    @part
    def catalogue(self) -> Catalogue:
        """Lists of workflows, and look-ups."""
        from adws.adw_modules.db.listing import Catalogue

        return Catalogue(database=self.database, repository=self.repository)

    @part
    def events(self) -> EventLog:
        """The event log."""
        from adws.adw_modules.db.listing import EventLog

        return EventLog(database=self.database)

    def changes(self) -> ChangeFeed:
        """Return a new feed that detects changes; each caller needs its own."""
        from adws.adw_modules.db.listing import ChangeFeed

        return ChangeFeed(self.database)

    # --- ownership ---------------------------------------------------------------------------------------------

    @part
    def local_lock(self) -> LocalLock:
        """The file locks held by live owners on this machine."""
        from adws.adw_modules.ownership.local_lock import LocalLock

        return LocalLock(self.settings.state_dir)

    @part
    def leases(self) -> Leases:
        """The leases of workflows."""
        from adws.adw_modules.ownership.leases import Leases

        return Leases(database=self.database, clock=self.clock)

    @part
    def locks(self) -> IssueLocks:
        """The issue locks of workflows."""
        from adws.adw_modules.ownership.issue_locks import IssueLocks

        return IssueLocks(database=self.database, clock=self.clock, repository=self.repository)

    @part
    def requests(self) -> Requests:
        """The requests to live owners."""
        from adws.adw_modules.ownership.leases import Requests

        return Requests(database=self.database, clock=self.clock)

    @part
    def registry(self) -> WorkflowRegistry | DocumentRegistry:
        """Registers new workflows."""
        from adws.adw_modules.ownership.issue_locks import DocumentRegistry, WorkflowRegistry
        from adws.adw_modules.store.database import DatabaseStateStore

        if isinstance(self.store, DatabaseStateStore):
            return DocumentRegistry(self.database, clock=self.clock, store=self.store, repository=self.repository)

        return WorkflowRegistry(self.database, clock=self.clock, home="files", repository=self.repository)

    @part
    def ownership(self) -> WorkflowOwnership:
        """Takes and releases workflows."""
        from adws.adw_modules.ownership.ownership import WorkflowOwnership

        return WorkflowOwnership(
            store=self.store,
            leases=self.leases,
            registry=self.registry,
            local_lock=self.local_lock,
            processes=self.processes,
            clock=self.clock,
            locks=self.locks,
            ttl_seconds=self.settings.lease_ttl_seconds,
            role=self._role,
            on_takeover=self.end_former_processes,
        )

    def end_former_processes(self, takeover: Takeover) -> None:
        """End processes that the former owner of a workflow left; raise WorkflowBusy if they cannot be ended."""
        from adws.adw_modules.engine.transitions import running_attempt

        adw_id = takeover.document.adw_id
        for attempt in filter(None, map(running_attempt, takeover.document.phases)):
            if not attempt.process:
                continue
            ending = self.end_process_in_time(attempt.process)
            facts = {"action": "former_processes_ended", "workflow": adw_id, "found": ending.describe()}
            logger.warning("Looked for what a former owner left running", extra=facts)
            if ending.left:
                what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
                raise WorkflowBusy(adw_id, what)

    @part
    def lease_renewer(self) -> LeaseRenewer:
        """The thread that renews our leases and fetches requests."""
        from adws.adw_modules.db.sqlite import CommitWatcher, SqliteDatabase
        from adws.adw_modules.ownership.lease_renewer import LeaseRenewer, RenewalTimes

        settings, database = self.settings, self.database

        return LeaseRenewer(
            watcher=CommitWatcher(database) if isinstance(database, SqliteDatabase) else None,
            clock=self.clock,
            requests=self.requests,
            runs=self.runs,
            store=self.store,
            times=RenewalTimes(
                renew=settings.lease_renew_seconds,
                give_up=settings.lease_stop_seconds,
                ttl=settings.lease_ttl_seconds,
            ),
        )

    # --- the run queue -----------------------------------------------------------------------------------------

    @part
    def runs(self) -> RunStore:
        """The queue of waiting and running runs."""
        from adws.adw_modules.queue.store import RunStore

        return RunStore(database=self.database, clock=self.clock)

    @part
    def workers(self) -> WorkerRegistry:
        """The registered workers."""
        from adws.adw_modules.queue.workers import WorkerRegistry

        return WorkerRegistry(database=self.database, clock=self.clock)

    @part
    def providers(self) -> Mapping[str, str]:
        """Runner name -> the provider that its agent calls; other runners call none."""
        from adws.adw_modules.agents.base import PROVIDERS
        from adws.adw_modules.workflow.model import AGENT

        return {**PROVIDERS, AGENT: PROVIDERS.get(self.settings.agent_name, "")}

    @part
    def run_factory(self) -> RunFactory:
        """Makes the runs of workflows."""
        from adws.adw_modules.queue.model import RunFactory

        return RunFactory(repository=self.repository, providers=self.providers)

    @part
    def claim_policy(self) -> ClaimPolicy:
        """The terms for claims here: the capabilities of this machine, and the limits of simultaneous runs."""
        from adws.adw_modules.queue.model import ClaimPolicy
        from adws.adw_modules.workflow.requirements import Capabilities

        tags = frozenset(self.settings.worker_tags or ())

        return ClaimPolicy(offer=Capabilities(host=self.host, tags=tags), limits=self.settings.run_limits)

    def dispatcher(self, tick: Callable[[], object] | None = None) -> Dispatcher:
        """
        Return the dispatcher that brings runs to workers.

        On PostgreSQL, one worker calls *tick* each minute to process the schedule. On one machine `adw cron` does.
        """
        from adws.adw_modules.db.sqlite import CommitWatcher, SqliteDatabase
        from adws.adw_modules.queue.dispatch import WatchDispatcher

        if isinstance(self.database, SqliteDatabase):
            return WatchDispatcher(partial(CommitWatcher, self.database), clock=self.clock)
        try:
            # Imported late: it is an extra, which users of SQLite do not have.
            module = importlib.import_module("adws.adw_modules.queue.procrastinate")
        except ImportError as exc:
            raise DatabaseUnavailable(
                f"workers on PostgreSQL need Procrastinate, which is missing ({exc}): pip install 'adw[postgres]'"
            ) from exc
        times = module.ProcrastinateTimes(stalled=self.settings.lease_ttl_seconds)
        dispatcher: Dispatcher = module.ProcrastinateDispatcher(self.database, clock=self.clock, times=times, tick=tick)

        return dispatcher

    # --- workflow definitions and plugins ----------------------------------------------------------------------

    @part
    def workflows(self) -> Workflows:
        """The available workflows; raises WorkflowInvalid if `adw.toml` defines an unsound one."""
        from adws.adw_modules.plugins import RUNNERS as PLUGIN_RUNNERS
        from adws.adw_modules.plugins import SINKS as PLUGIN_SINKS
        from adws.adw_modules.plugins import KnownNames
        from adws.adw_modules.workflow.library import Workflows
        from adws.adw_modules.workflow.model import RUNNERS, SINK_TOOLS

        return Workflows(
            runners=KnownNames(RUNNERS, PLUGIN_RUNNERS),
            sinks=KnownNames(SINK_TOOLS, PLUGIN_SINKS),
            has_file=self.prompts.has,
            why_idle=self._why_idle,
            definitions=self.settings.section("workflows"),
            phases=self.settings.section("phases"),
            max_attempts=self.settings.max_attempts,
            connections={name: one.type for name, one in self.settings.connections.items()},
        )

    def _why_idle(self, phase: PhaseSpec) -> str:
        """Return why *phase* cannot run on this machine, or "" if it can."""
        from adws.adw_modules.workflow.model import RUNNERS

        return (self.agent_runner.why_idle if phase.runner in RUNNERS else self.plugins.why_idle)(phase)

    @part
    def plugins(self) -> Plugins:
        """The runners, sinks and forges that other packages provide."""
        from adws.adw_modules.plugins import Plugins

        return Plugins(self)

    # --- the forge ---------------------------------------------------------------------------------------------

    @part
    def forge(self) -> Forge:
        """The forge with the issues and pull requests; raises ConfigError if none is configured."""
        return self._open_forge(self.settings.forge_kind)

    @part
    def has_forge(self) -> bool:
        """Whether a forge is configured."""
        return self.settings.forge_kind != "none"

    @part
    def forge_if_any(self) -> Forge | None:
        """The forge, or None if none is configured."""
        try:
            return self.forge
        except ConfigError:
            return None

    def forge_access(self) -> ForgeAccess:
        """Ask the forge who we are and what we may do; some forges report only who we are."""
        from adws.adw_modules.forge.model import ForgeAccess

        forge = self.forge
        if self.settings.forge_kind != "local":
            from adws.adw_modules.forge.github import GitHubForge

            if isinstance(forge, GitHubForge):
                return forge.access()

        return ForgeAccess(login=forge.login())

    @part
    def forge_key(self) -> bytes:
        """The key that signs markers on the forge."""
        return key_of(self.settings, clock=self.clock)

    def built_in_forge(self, kind: str) -> Forge:
        """Return a new built-in forge, for a plugin to build on; raise ConfigError if *kind* is not built in."""
        if kind not in BUILT_IN_FORGES:
            raise ConfigError(f"{kind!r} is no forge that comes with adw: name one of {', '.join(BUILT_IN_FORGES)}")

        return self._open_forge(kind)

    def _open_forge(self, kind: str) -> Forge:
        """Return the forge of that kind; raise ConfigError if it is not, or not completely, configured."""
        if kind == "github":
            return self._github()
        if kind == "local":
            return self._local_forge()
        if kind == "none":
            raise ConfigError(_NO_FORGE)

        return self.plugins.new_forge(kind)

    def _github(self) -> Forge:
        from adws.adw_modules.forge.github import GitHubAccess, GitHubForge, timeout_for

        settings = self.settings
        if not settings.repository:
            raise ConfigError("GitHub needs github.repository: set it to owner/name in adw.toml")
        if settings.github_token and settings.github_app_id:
            raise ConfigError("ADW_GITHUB_TOKEN and github.app_id are both set: unset one of them")
        if not settings.github_token and not settings.github_app_id:
            raise ConfigError(
                f"there is no token for {settings.repository} on GitHub: export ADW_GITHUB_TOKEN=..., or set "
                "github.app_id and github.app_key_file; without a forge, "
                'write kind = "none" under [forge] in adw.toml'
            )
        access = GitHubAccess(
            token=settings.github_token or "",
            app_id=settings.github_app_id or "",
            private_key=_private_key(settings) if settings.github_app_id else "",
            api_url=settings.github_api_url,
            timeout_seconds=timeout_for(
                ttl_seconds=settings.lease_ttl_seconds, stop_seconds=settings.lease_stop_seconds
            ),
        )

        return GitHubForge(settings.repository, access, clock=self.clock, scrub=self.redactor.redact_text)

    def _local_forge(self) -> Forge:
        from adws.adw_modules.forge.local import REMOTE_NAME, BareRepository, LocalForge

        root = self.settings.local_forge_dir
        forge = LocalForge(
            root,
            repository=self.repository,
            git=BareRepository(root / REMOTE_NAME),
            clock=self.clock,
            scrub=self.redactor.redact_text,
        )
        forge.prepare()

        return forge

    def forge_effects(self, check: Callable[[], None] = lambda: None) -> ForgeEffects:
        """Return what makes each pull request and comment only once; *check* raises if we may not make them."""
        from adws.adw_modules.forge.effects import ForgeEffects

        return ForgeEffects(
            self.forge, clock=self.clock, key=self.forge_key, check=check, scrub=self.redactor.redact_text
        )

    # --- git ---------------------------------------------------------------------------------------------------

    @part
    def git_commands(self) -> GitCommands:
        """Runs git commands in this home."""
        from adws.adw_modules.git.git import GitCommands
        from adws.adw_modules.git.private_dir import NAME as PRIVATE_GIT
        from adws.adw_modules.identifiers import OWN_SECRETS

        settings = self.settings

        return GitCommands(
            settings.home,
            private=settings.state_dir / PRIVATE_GIT,
            remote=settings.git_remote,
            remote_url=settings.git_remote_url or "",
            token=settings.github_token,
            author=settings.git_author or "",
            variables=tuple(name for name in settings.git_env or () if name not in OWN_SECRETS),
        )

    @part
    def git(self) -> Repository:
        """The repository of this home."""
        from adws.adw_modules.git.repository import Repository

        return Repository(self.git_commands, trees=self.settings.trees_dir, clock=self.clock)

    @part
    def git_if_any(self) -> Repository | None:
        """The repository of the home, or None if the home is in none."""
        try:
            _ = self.git.root
        except RepositoryNotTrusted:
            raise  # it exists, and its contents must not be taken for lost
        except GitError:
            return None

        return self.git

    @part
    def has_worktrees(self) -> bool:
        """Whether workflows use worktrees; otherwise they work in place, and no git module is loaded."""
        return self.settings.worktree_enabled and is_in_repository(self.settings.home)

    @part
    def workplace(self) -> GitWorkplace:
        """The worktrees as places to work in."""
        from adws.adw_modules.git.worktree import GitWorkplace
        from adws.config.kinds import commands_in

        return GitWorkplace(
            self.git,
            include=self.settings.worktree_include,
            setup=commands_in(self.settings.worktree_setup),
        )

    @part
    def diffs(self) -> Diffs:
        """The changes that workflows made."""
        from adws.adw_modules.git.diff import Diffs

        return Diffs(self.git_commands, clock=self.clock, redact=self.redactor.redact_text)

    # --- resources of this machine -----------------------------------------------------------------------------

    @part
    def ports(self) -> Ports:
        """The ports reserved for workflows."""
        from adws.adw_modules.resources.ports import Ports

        return Ports(self.database, clock=self.clock, me=self.me, ports=port_range(self.settings))

    @part
    def quotas(self) -> Quotas:
        """The limits of this machine, and those shared through its database."""
        return open_quotas(self.settings, self.database, clock=self.clock, host=self.host)

    @property
    def known_quotas(self) -> Quotas:
        """The limits for readers: does not create a missing database."""
        if self.has_database():
            return self.quotas

        return open_quotas(self.settings, None, clock=self.clock, host=self.host)

    @part
    def breakers(self) -> CircuitBreakerRegistry:
        """The circuit breakers of external services, shared through the database."""
        from adws.adw_modules.circuit_breaker import CircuitBreakerConfig, CircuitBreakerRegistry, DatabaseBreakers

        settings = self.settings
        numbers = CircuitBreakerConfig(
            failure_threshold=settings.breakers_failure_threshold,
            reset_timeout_seconds=settings.breakers_reset_timeout_seconds,
        )

        return CircuitBreakerRegistry(numbers, store=DatabaseBreakers(self.database), clock=self.clock)

    # --- agents ------------------------------------------------------------------------------------------------

    @part
    def prompts(self) -> PromptFiles:
        """The prompt files of this home."""
        from adws.adw_modules.agents.prompts import PromptFiles

        return PromptFiles(self.settings.home)

    @part
    def agent_preflight(self) -> AgentPreflight:
        """Finds installed agents."""
        from adws.adw_modules.agents.preflight import AgentPreflight

        return AgentPreflight(self)

    def look_at_agent(self, name: str) -> tuple[AgentProfile, AgentState]:
        """Return an agent and its state on this machine; runs the agent to find out."""
        from adws.adw_modules.agents.base import profile as agent_profile

        profile = agent_profile(name)

        return profile, self.agent_preflight.look(profile, self.agent_variables(profile))

    def agent_variables(self, profile: AgentProfile) -> dict[str, str]:
        """Return the environment for querying an agent: as in its work, without our own secrets."""
        from adws.adw_modules.agents.preflight import variables_of
        from adws.adw_modules.engine.runner_command import ALLOWED_VARIABLES
        from adws.adw_modules.identifiers import OWN_SECRETS

        wanted = {*ALLOWED_VARIABLES, *variables_of(profile, self.env), *(self.settings.agent_env or ())}
        env = {key: value for key, value in self.env.items() if key in wanted - OWN_SECRETS or key.startswith("LC_")}

        return {**env, **profile.settings, **self.sandboxes.variables_of_user}

    @part
    def agent_runner(self) -> AgentRunner:
        """Runs phases with agents."""
        from adws.adw_modules.engine.runner_agent import AgentRunner

        return AgentRunner(self)

    @part
    def git_guard(self) -> Guard:
        """Guards the git directory shared by all worktrees."""
        from adws.adw_modules.engine.git_guard import Guard

        return Guard(self.git if self.has_worktrees else None)

    @property
    def agent_runners(self) -> dict[str, Runner]:
        """The one guarded driver, under the name of every agent."""
        from adws.adw_modules.agents.base import names as agent_names
        from adws.adw_modules.engine.git_guard import GuardedRunner
        from adws.adw_modules.workflow.model import AGENT

        return dict.fromkeys((AGENT, *agent_names()), GuardedRunner(self.agent_runner, self.git_guard))

    @part
    def cost_of(self) -> CostOf:
        """Prices of tokens: from `[prices]` in adw.toml, or else from the list that comes with adw."""
        from adws.adw_modules.agents.prices import cost_of as price_of
        from adws.adw_modules.agents.prices import read_prices

        return partial(price_of, prices=read_prices(self.settings.section("prices").data))

    @part
    def sessions(self) -> AgentSessions:
        """The agent sessions."""
        from adws.adw_modules.agents.sessions import AgentSessions

        return AgentSessions(database=self.database, clock=self.clock)

    @part
    def agent_session_recorder(self) -> AgentSessionRecorder:
        """Records which agent sessions are open."""
        from adws.adw_modules.agents.sessions import AgentSessionRecorder

        return AgentSessionRecorder(self)

    @part
    def costs(self) -> CostStore:
        """The amounts spent."""
        from adws.adw_modules.resources.quotas import CostStore

        return CostStore(database=self.database)

    # --- the workspace -----------------------------------------------------------------------------------------

    @part
    def workspace(self) -> Workspace:
        """Prepares and releases the workspaces of workflows."""
        from adws.adw_modules.workspace.workspace import Workspace

        return Workspace(self)

    @part
    def publisher(self) -> Publisher | None:
        """Publishes work to the remote; None: no other machine can continue it, and nobody asked for it."""
        from adws.adw_modules.workspace.relocation import Publisher

        is_wanted = self.settings.is_shared or self.settings.workspace_publish_work == "always"

        return Publisher(self) if self.has_worktrees and is_wanted else None

    @part
    def left_behind(self) -> RelocationCleanup | None:
        """Removes files here of workflows that moved away; None: there is no other machine to move to."""
        from adws.adw_modules.workspace.relocation import RelocationCleanup

        return RelocationCleanup(self) if self.has_worktrees and self.settings.is_shared else None

    # --- the engine --------------------------------------------------------------------------------------------

    @part
    def checkpoints(self) -> CheckpointStore:
        """The store of checkpoints."""
        from adws.adw_modules.checkpoint import CheckpointStore

        return CheckpointStore(database=self.database, clock=self.clock, scrub=self.scrub)

    @part
    def checkpoint_manager(self) -> CheckpointManager:
        """Checkpoints of phases, from which they continue."""
        from adws.adw_modules.checkpoint import CheckpointManager

        return CheckpointManager(self.checkpoints, clock=self.clock)

    @part
    def past_checkpoints(self) -> PastCheckpoints:
        """Deletes the checkpoints of phases that have ended."""
        from adws.adw_modules.checkpoint import PastCheckpoints

        return PastCheckpoints(self)

    @part
    def commands(self) -> CommandRunner:
        """Runs commands for phases and gates."""
        from adws.adw_modules.engine.runner_command import CommandRunner

        return CommandRunner(self)

    @part
    def sandboxes(self) -> Sandboxes:
        """Puts agents, commands and gates into sandboxes."""
        from adws.adw_modules.sandbox.sandbox import Sandboxes

        return Sandboxes(self)

    @part
    def gates(self) -> Gates:
        """Checks the gates of phases."""
        from adws.adw_modules.engine.gates import Gates

        return Gates(commands=self.commands, git_guard=self.git_guard, base_check=self.base_check)

    @part
    def base_check(self) -> BaseCheck:
        """Runs the gates of workflows on their base commits."""
        from adws.adw_modules.engine.base_check import BaseCheck

        return BaseCheck(self)

    @part
    def phase_runners(self) -> Mapping[str, Runner]:
        """
        The built-in runners of phases, by name; plugins add more.

        Runners that execute foreign code are guarded; the tools of steps are guarded call by call.
        """
        from adws.adw_modules.engine.git_guard import GuardedRunner
        from adws.adw_modules.engine.runner_command import CleanRunner
        from adws.adw_modules.engine.runner_python import PythonRunner
        from adws.adw_modules.external_tasks import ExternalRunner
        from adws.adw_modules.phase import EXTERNAL
        from adws.adw_modules.workflow.model import CLEAN, SHIP, STEPS

        git = self.git if self.has_worktrees else None
        command: Runner = self.commands
        python: Runner = PythonRunner(search=(self.settings.home,), checkpoints=self.checkpoint_manager)
        if self.has_worktrees:  # else there is no shared git directory
            command, python = GuardedRunner(command, self.git_guard), GuardedRunner(python, self.git_guard)

        return {
            "command": command,
            "python": python,
            STEPS: self.step_runner,
            SHIP: self.ship_runner,
            CLEAN: CleanRunner(git, host=self.host if self.settings.is_shared else ""),
            EXTERNAL: ExternalRunner(self),
            **self.agent_runners,
        }

    @part
    def ship_runner(self) -> ShipRunner:
        """Pushes work and opens pull requests; opens the forge only to ship something."""
        from adws.adw_modules.engine.runner_ship import ShipRunner

        return ShipRunner(self)

    @part
    def status_comment(self) -> StatusComment:
        """Keeps the status comment on the issue up to date."""
        from adws.adw_modules.engine.runner_ship import StatusComment

        return StatusComment(self)

    @part
    def advisor(self) -> Advisor | None:
        """Advises after failed attempts; None if turned off."""
        from adws.adw_modules.engine.advisor import AgentAdvisor, CallAdvisor, RulesAdvisor
        from adws.adw_modules.engine.runner_python import Callables

        use = self.settings.advisor_use
        if use == "off":
            return None
        if use == "rules":
            spare = (self.settings.agent_models or {}).get("spare")
            return RulesAdvisor(spare=(spare,) if spare else ())
        if ":" in use:
            return CallAdvisor(use, partial(Callables(self.settings.home).find, use))

        return AgentAdvisor(self)

    @part
    def service_guard(self) -> ServiceGuard:
        """The external services of phases, behind their circuit breakers."""
        from adws.adw_modules.engine.service_guard import ServiceGuard

        return ServiceGuard(
            self.breakers,
            clock=self.clock,
            providers=self.providers,
            forge=self.settings.forge_kind,
            has_remote=self.has_worktrees,
            scrub=self.redactor.redact_text,
        )

    @part
    def service_waits(self) -> ServiceWaits:
        """The runs that wait for an external service, made due when it is available again."""
        from adws.adw_modules.engine.service_guard import ServiceWaits

        return ServiceWaits(self)

    @part
    def engine(self) -> Home:
        """
        This home, with all parts built that attempts need.

        Unusable settings are refused here, before any work begins, and threads find the parts built.
        """
        for name in _PARTS_OF_ATTEMPTS:
            getattr(self, name)

        return self

    @part
    def workflow_logs(self) -> WorkflowLogs:
        """The logs of workflows being worked on."""
        from adws.adw_modules.attempt_files import LOG_NAME
        from adws.adw_modules.structured_logger import WorkflowLogs

        return WorkflowLogs(self.settings.state_dir, LOG_NAME)

    def log_of(self, adw_id: str) -> AbstractContextManager[object]:
        """Return the log of a workflow, for a `with` block: records logged inside are written to it."""
        return self.workflow_logs.open(adw_id)

    # --- steps and external tasks ------------------------------------------------------------------------------

    @part
    def executions(self) -> Executions:
        """The executions of steps whose calls are spread over workers."""
        from adws.adw_modules.steps.store import Executions

        return Executions(database=self.database, clock=self.clock, redactor=self.redactor)

    @part
    def execution_views(self) -> ExecutionViews:
        """Views of executions."""
        from adws.adw_modules.steps.views import ExecutionViews

        return ExecutionViews(database=self.database)

    @part
    def step_runner(self) -> StepRunner:
        """Runs phases made of steps."""
        from adws.adw_modules.steps.runner import StepRunner

        return StepRunner(self)

    @part
    def iteration_worker(self) -> IterationWorker:
        """Executes the iterations of executions."""
        from adws.adw_modules.steps.iteration_worker import IterationWorker

        return IterationWorker(self)

    @part
    def step_calls(self) -> ToolCalls:
        """Makes the calls of steps, in any thread of a worker."""
        from adws.adw_modules.steps.iteration_worker import ToolCalls

        return ToolCalls(self)

    @part
    def tools(self) -> Mapping[str, Tool]:
        """The tools of steps, by name."""
        from adws.adw_modules.steps.tools import AgentTool, CommandTool, HttpTool, PythonTool

        return {
            "command": CommandTool(self),
            "python": PythonTool(self),
            "http": HttpTool(self),
            "agent": AgentTool(self),
        }

    @part
    def step_http(self) -> HttpClient:
        """Makes the HTTP requests of steps."""
        from adws.adw_modules.steps.http_client import HttpClient

        return HttpClient(self.clock, allowed_hosts=self.settings.steps_http_allow)

    @part
    def external_tasks(self) -> ExternalTasks:
        """The store of tasks done outside adw."""
        from adws.adw_modules.external_tasks import ExternalTasks

        return ExternalTasks(database=self.database, clock=self.clock, executions=self.executions)

    @part
    def external(self) -> ExternalTaskService:
        """The service for claiming and reporting external tasks."""
        from adws.adw_modules.external_tasks import ExternalTaskService

        return ExternalTaskService(self)

    # --- workers -----------------------------------------------------------------------------------------------

    @part
    def run_claimer(self) -> RunClaimer:
        """Claims runs, with the leases of their workflows and their quota reservations."""
        from adws.adw_modules.worker.claim import RunClaimer

        return RunClaimer(self)

    @part
    def run_executor(self) -> RunExecutor:
        """Executes one run."""
        from adws.adw_modules.worker.run_executor import RunExecutor

        return RunExecutor(self)

    def job_handler(self, kind: str) -> JobHandler | None:
        """Return the handler for runs of *kind*, built on first use, or None for runs that continue a workflow."""
        from adws.adw_modules.queue.model import CRON, DELIVERY, ITERATION, ROLLBACK

        names = {
            ROLLBACK: "rollbacks",
            DELIVERY: "delivery_handler",
            ITERATION: "iteration_worker",
            CRON: "cron_runs",
        }
        handler: JobHandler | None = getattr(self, names[kind]) if kind in names else None

        return handler

    def worker(
        self,
        options: WorkerOptions,
        *,
        on_end: Callable[[RunResult], None] = lambda _end: None,
        tick: Callable[[], object] | None = None,
    ) -> Worker:
        """Return a worker of this home; *tick* is called by a dispatcher that can keep time (`dispatcher`)."""
        from adws.adw_modules.worker.worker import Worker

        return Worker(self, options, on_end=on_end, tick=tick)

    @part
    def workflow_creator(self) -> WorkflowCreator:
        """Creates workflows."""
        from adws.adw_modules.worker.create_workflow import WorkflowCreator

        return WorkflowCreator(
            ownership=self.ownership,
            clock=self.clock,
            workflows=self.workflows,
            run_factory=self.run_factory,
            settings=self.settings,
        )

    @part
    def preflight(self) -> Preflight:
        """Checks whether a workflow can be started."""
        from adws.adw_modules.worker.preflight import Preflight

        return Preflight(self)

    @part
    def control(self) -> Control:
        """The actions people take on workflows."""
        from adws.adw_modules.worker.control import Control

        return Control(self)

    @part
    def pending_retries(self) -> PendingRetries:
        """The pending retries."""
        from adws.adw_modules.worker.control import PendingRetries

        return PendingRetries(self)

    @part
    def recovery(self) -> Recovery:
        """Finds runs of dead workers."""
        from adws.adw_modules.recovery.recovery import Recovery

        return Recovery(self)

    def free_left_behind(self) -> None:
        """Free ports of dead workers and quotas of unowned workflows, and clean up after work that ended or moved."""
        self.ports.free_left_behind(self.processes.verdict)
        self.quotas.free_left_behind()
        self.executions.cancel_left()
        self.executions.wake()
        if self.left_behind is not None:
            self.left_behind.sweep_when_due()

    # --- deliveries --------------------------------------------------------------------------------------------

    @part
    def deliveries(self) -> DeliveryStore:
        """The webhook deliveries, each stored with its run."""
        from adws.adw_modules.deliveries.store import DeliveryStore

        return DeliveryStore(database=self.database, clock=self.clock, scrub=self.scrub)

    @part
    def delivery_handler(self) -> DeliveryHandler:
        """Carries out deliveries."""
        from adws.adw_modules.deliveries.handler import DeliveryHandler

        return DeliveryHandler(self)

    @part
    def post_merge_cleanup(self) -> PostMergeCleanup:
        """Removes worktree and branch after a pull request was merged."""
        from adws.adw_modules.deliveries.handler import PostMergeCleanup

        return PostMergeCleanup(self)

    # --- rollback and housekeeping -----------------------------------------------------------------------------

    @part
    def rollbacks(self) -> Rollbacks:
        """Undoes everything a workflow made, at once or as a run."""
        from adws.adw_modules.rollback.run import Rollbacks

        return Rollbacks(self)

    @part
    def inventory(self) -> Inventory:
        """Everything adw has on this machine."""
        from adws.adw_modules.housekeeping.inventory import Inventory

        return Inventory(self)

    @property
    def collector(self) -> GarbageCollector:
        """Finds and removes orphans."""
        from adws.adw_modules.housekeeping.gc import GarbageCollector

        return GarbageCollector(self)

    @property
    def retention(self) -> Retention:
        """Deletes data older than the settings allow."""
        from adws.adw_modules.housekeeping.retention import Retention

        return Retention(self)

    @part
    def verifier(self) -> Verifier:
        """Checks the invariants."""
        from adws.adw_modules.housekeeping.verify import Verifier

        return Verifier(self)

    @part
    def adoption(self) -> Adoption:
        """Adopts orphaned worktrees."""
        from adws.adw_modules.housekeeping.gc import Adoption

        return Adoption(self)

    # --- the schedule and notifications ------------------------------------------------------------------------

    @part
    def schedule(self) -> ScheduleStore:
        """The entries of the schedule, shared by all crons."""
        from adws.adw_modules.schedule.store import ScheduleStore

        return ScheduleStore(database=self.database, clock=self.clock)

    @part
    def cron_jobs(self) -> dict[str, Job]:
        """The jobs of the schedule, by the names of its entries."""
        from adws.adw_modules.schedule.jobs import CronJobs, PollJobs

        return {**CronJobs(self).all(), **PollJobs(self).all()}

    @part
    def cron_runs(self) -> CronRuns:
        """Queues and executes the runs of schedule entries."""
        from adws.adw_modules.schedule.jobs import CronRuns

        return CronRuns(self)

    @part
    def notifications(self) -> NotificationStore:
        """The pending and sent notifications."""
        from adws.adw_modules.schedule.store import NotificationStore

        return NotificationStore(database=self.database, clock=self.clock)

    @part
    def channels(self) -> dict[str, Channel]:
        """The channels by which people are notified."""
        from adws.adw_modules.schedule.notify import COMMAND, COMMENT, HTTP, CommandChannel, CommentChannel, HttpChannel
        from adws.config.kinds import commands_in

        settings = self.settings
        channels: dict[str, Channel] = {}
        if settings.notify_command:
            channels[COMMAND] = CommandChannel(argv=commands_in(settings.notify_command)[0], home=self)
        if settings.notify_url:
            channels[HTTP] = HttpChannel(url=settings.notify_url, redactor=self.redactor)
        if settings.notify_comment:
            channels[COMMENT] = CommentChannel(home=self)

        return channels

    @part
    def notifier(self) -> Notifier:
        """Collects and sends notifications."""
        from adws.adw_modules.schedule.notify import Notifier

        return Notifier(self)

    @part
    def notify_thread(self) -> NotifyThread:
        """Sends notifications alongside the work of this process."""
        from adws.adw_modules.schedule.notify import NotifyThread

        return NotifyThread(self)

    # --- reports and metrics -----------------------------------------------------------------------------------

    @part
    def reports(self) -> ReportStore:
        """The stored sums and current figures behind reports."""
        from adws.adw_modules.reports.store import ReportStore

        return ReportStore(database=self.database, clock=self.clock)

    @part
    def reporting(self) -> Reporting:
        """Makes reports, and finds stuck work."""
        from adws.adw_modules.reports.reports import Reporting

        return Reporting(self)

    @part
    def counters(self) -> Counters:
        """The counters."""
        from adws.adw_modules.reports.metrics import Counters

        return Counters(database=self.database)

    @part
    def tally(self) -> EventTally:
        """Counts events."""
        from adws.adw_modules.reports.metrics import EventTally

        return EventTally(database=self.database)

    @part
    def gauges(self) -> Gauges:
        """The current numbers of workflows, runs and executions, by state."""
        from adws.adw_modules.reports.metrics import Gauges

        return Gauges(database=self.database, clock=self.clock)

    @part
    def metrics_collector(self) -> MetricsCollector:
        """Collects the metrics."""
        from adws.adw_modules.reports.metrics import MetricsCollector

        return MetricsCollector(self)


#: The parts that `Home.engine` builds.
_PARTS_OF_ATTEMPTS = (
    "workspace",
    "service_guard",
    "service_waits",
    "phase_runners",
    "gates",
    "past_checkpoints",
    "advisor",
    "agent_runner",
    "agent_session_recorder",
    "status_comment",
)

#: The parts that `Home.close` closes, in order: threads before the parts they use.
_CLOSED_IN_ORDER = (
    "notify_thread",
    "step_calls",
    "step_http",
    "lease_renewer",
    "ports",
    "projection",
    "reconstruction",
    "database",
    "forge",
    "workflow_logs",
)


def _is_made(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def _private_key(settings: Settings) -> str:
    file = settings.github_app_key_file
    if file is None:
        raise ConfigError("a GitHub App needs github.app_key_file: the file with its private key")
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the key of the GitHub App from {file}: {exc}") from exc


def key_of(settings: Settings, *, clock: Clock) -> bytes:
    """Return the key that signs markers on the forge."""
    from adws.adw_modules.forge.text import KEY_NAME, read_or_make

    if settings.forge_key:
        return hashlib.sha256(settings.forge_key.encode()).digest()

    return read_or_make(settings.state_dir / KEY_NAME, clock=clock)


def make_redactor(settings: Settings | None) -> Redactor:
    """
    Return the redactor for the secrets of *settings*, if given, and of the environment.

    The environment counts too: commands of phases get variables by name, and may print them.
    """
    known = settings.secrets() if settings is not None else ()

    return _make_redactor(frozenset(process_environment().items()), frozenset(known))


@lru_cache(maxsize=2)
def _make_redactor(env: frozenset[tuple[str, str]], known: frozenset[str]) -> Redactor:
    """Return the redactor, shared by the process log and its work, as many secrets take long to index."""
    from adws.adw_modules.redaction.redactor import Redactor

    return Redactor.from_environment(dict(env), known_values=known)


def port_range(settings: Settings) -> PortRange:
    """Return the range of ports for workflows."""
    from adws.adw_modules.resources.ports import PortRange

    return PortRange(
        backend_start=settings.ports_backend_start,
        frontend_start=settings.ports_frontend_start,
        count=settings.ports_count,
    )


def open_quotas(settings: Settings, database: Database | None, *, clock: Clock, host: str) -> Quotas:
    """Return the limits of this machine and those shared through *database*, which is None if there is none yet."""
    from adws.adw_modules.resources.quotas import Limits, Quotas

    limits = Limits(
        min_free_disk=settings.quota_min_free_disk,
        min_free_memory=settings.quota_min_free_memory,
        max_worktrees=settings.quota_max_worktrees,
        max_worktree_size=settings.quota_max_worktree_size,
        max_cost=settings.quota_max_cost,
        max_cost_per_day=settings.quota_max_cost_per_day,
        max_runs=settings.quota_max_runs,
    )

    return Quotas(database, clock=clock, trees=settings.trees_dir, host=host, limits=limits)


def open_checkpoints(place: str) -> OpenedCheckpoints:
    """Return the checkpoints of the database at *place*, a path or URL; the database is created if missing."""
    from adws.adw_modules.checkpoint import CheckpointStore
    from adws.adw_modules.db.migrate import open_database
    from adws.adw_modules.default_home import OpenedCheckpoints

    clock = SystemClock()
    opened = open_database(place if "://" in place else f"sqlite:///{place}", clock=clock)

    return OpenedCheckpoints(store=CheckpointStore(opened, clock=clock), clock=clock, close=opened.close)
