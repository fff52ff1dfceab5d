"""
The wiring: the only place that names concrete parts.

Each part is built on first use, and its module is imported then: a view of one workflow loads neither the models nor
the database schema. Tests and embedders build the same thing from other parts (`adws.testing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from adws import config
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import AdwError, DatabaseUnavailable
from adws.app_shared import SharedParts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry
    from adws.adw_modules.coordination.measuring import Measuring
    from adws.adw_modules.coordination.ownership import Takeover, WorkflowOwnership
    from adws.adw_modules.coordination.recovery import Recovery
    from adws.adw_modules.coordination.reporting import Reporting
    from adws.adw_modules.db.reconstruction import DatabaseReconstruction
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.forge_effects import ForgeEffects
    from adws.adw_modules.interfaces import (
        Clock,
        LocalLock,
        Projection,
        Registry,
        StateStore,
    )
    from adws.adw_modules.interfaces_durability import CheckpointStore
    from adws.adw_modules.interfaces_resources import GitRepository, GitWorkplace
    from adws.adw_modules.json_value import JsonValue
    from adws.adw_modules.plugins import Plugins
    from adws.adw_modules.process import SystemProcesses
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.resources.ports import MachinePorts
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.adw_modules.rollback import RollbackParts
    from adws.adw_modules.state_folders import StateFolders
    from adws.adw_modules.trigger import Deliveries
    from adws.adw_modules.workflow import PhaseSpec
    from adws.adw_modules.workflows import Workflows
    from adws.app_agents import AgentRoom
    from adws.app_cron import CronRoom
    from adws.app_resources import GitRoom
    from adws.app_tidy import TidyRoom
    from adws.app_work import WorkRoom


_LOST_COPY = "the database {} is missing or empty: adw db rebuild makes it again from the documents"
_LOST_DOCUMENTS = (
    "the database {} is missing or empty, and the documents in it with it: bring a backup back with adw restore, or "
    "delete {} to start afresh"
)


def open_app(
    settings: config.Settings, *, role: str = "cli", wrap_clock: Callable[[Clock], Clock] | None = None
) -> App:
    """Return the parts of a home, to be used with `with`; *role* is what this process is to others."""
    clock: Clock = SystemClock()

    return App(settings, clock=wrap_clock(clock) if wrap_clock else clock, role=role)


def open_default() -> App:
    """Return the parts of the home this process is in, for library calls that name none."""
    return open_app(config.from_environment(), role="library")


class App(SharedParts):
    """Everything there is, built when it is asked for."""

    def __init__(self, settings: config.Settings, *, clock: Clock, role: str) -> None:
        self.settings = settings
        self.clock = clock
        self._role = role
        # Both are set before work begins, by who shows it.
        self.say: Callable[[str, str], None] = lambda _adw_id, _line: None  #: a line of a phase's output
        self.tell: Callable[[WorkflowDocument, Sequence[Event]], None] = lambda _document, _events: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Bring the database copy up and let go of what was opened."""
        for name in ("cron", "work", "ports", "projection", "reconstruction", "database", "forge"):
            part = self.__dict__.pop(name, None)  # only what somebody asked for
            if part is not None:
                part.close()

    # --- documents ---------------------------------------------------------------------------------------------

    @cached_property
    def store(self) -> StateStore:
        """The home of documents that the settings chose."""
        if self.settings.store == "database":
            return self._database_store()

        return self._file_store()

    def _file_store(self) -> StateStore:
        from adws.adw_modules.state_files import FileStateStore
        from adws.app_projection import LateProjection

        return FileStateStore(
            self.settings.state_dir,
            clock=self.clock,
            parse=_parse,
            projection=LateProjection(lambda: self.projection, may_be=self._may_have_copy),
            scrub=self._scrub,
            max_bytes=self.settings.max_document_bytes,
        )

    def _may_have_copy(self) -> bool:
        """Say whether there can be a copy: looking at a broken document must not make a database."""
        file = self.settings.database_file

        return "projection" in self.__dict__ or file is None or _is_made(file)

    def bring_up(self, adw_id: str) -> None:
        """Bring the database copy of a document in files up to what is on the disk."""
        store = self.store
        if isinstance(store, BringsUp):
            store.bring_up(adw_id)

    def _database_store(self) -> StateStore:
        from adws.adw_modules.db.state_store import DatabaseStateStore

        return DatabaseStateStore(self.database, clock=self.clock, parse=_parse, dump=_dump_compact, scrub=self._scrub)

    @cached_property
    def redactor(self) -> Redactor:
        """What keeps the secrets we know out of everything that is written."""
        from adws.app_redaction import make_redactor

        return make_redactor(self.settings)

    def _scrub(self, payload: bytes) -> bytes:
        return self.redactor.scrub_bytes(payload)

    def _scrub_text(self, text: str) -> str:
        return self.redactor.scrub_text(text)

    def _scrub_json(self, text: str) -> str:
        return self.redactor.scrub_json(text)

    # --- database ----------------------------------------------------------------------------------------------

    @cached_property
    def database(self) -> Database:
        """What is shared: leases, locks, requests, events, the copy of documents; made when nobody worked here yet."""
        from adws.adw_modules.db import document_marker, opening

        self.refuse_lost_database()
        opened = opening.open_database(self.settings.database_url, clock=self.clock, boot_id=self.processes.boot_id)
        opened.scrub_text, opened.scrub_json = self._scrub_text, self._scrub_json
        file = self.settings.database_file
        try:
            if file is not None and self.settings.store == "database":
                document_marker.leave(file)
        except BaseException:
            opened.close()
            raise

        return opened

    def has_database(self) -> bool:
        """Say whether there is a database to look into; raise DatabaseUnavailable when there is none but should be."""
        self.refuse_lost_database()
        file = self.settings.database_file

        return file is None or _is_made(file)

    def refuse_lost_database(self) -> None:
        """
        Raise DatabaseUnavailable when the database is gone, and documents with it or documents in files that it knew.

        An empty one in its place would hide the loss and give away the issues of all these workflows. Only
        `reconstruction`, which makes it again from a backup or from files, does not ask. Documents of older versions
        never had a database: they do not count.
        """
        file = self.settings.database_file
        if file is None or _is_made(file):
            return
        from adws.adw_modules.db.document_marker import marker_of

        has_files = self.settings.store == "files" and any(map(self._had_database, self.store.ids()))
        marker = marker_of(file)
        had_documents = marker.exists()
        if not has_files and not had_documents:
            return
        # Looked at again: a process that made both meanwhile made the database first.
        if _is_made(file):
            return

        raise DatabaseUnavailable((_LOST_COPY if has_files else _LOST_DOCUMENTS).format(file, marker))

    def _had_database(self, adw_id: str) -> bool:
        try:
            notices = self.store.peek(adw_id).notices
        except AdwError:
            return False  # what cannot be read cannot say whose issue it has; `adw db check` names it

        return all(notice.kind != "migrated" for notice in notices)

    @cached_property
    def projection(self) -> Projection:
        """The copy of documents that live in files."""
        from adws.adw_modules.db.projection import DatabaseProjection

        return DatabaseProjection(
            self.database, clock=self.clock, interval_seconds=self.settings.projector_interval_seconds
        )

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """What tasks keep, to go on from there."""
        from adws.adw_modules.db.checkpoints import DatabaseCheckpoints

        return DatabaseCheckpoints(self.database, clock=self.clock, scrub=self._scrub)

    @cached_property
    def deliveries(self) -> Deliveries:
        """What came in from outside and asks for work."""
        from adws.adw_modules.db.deliveries import DatabaseDeliveries

        return DatabaseDeliveries(self.database, clock=self.clock, scrub=self._scrub)

    @property
    def recovery(self) -> Recovery:
        """What finds work whose worker is gone, for library calls."""
        return self.work.recovery

    @cached_property
    def registry(self) -> Registry:
        """New workflows."""
        from adws.adw_modules.db.registry import DatabaseRegistry, DocumentRegistry
        from adws.adw_modules.db.state_store import DatabaseStateStore

        repository = self.settings.repository or ""
        if isinstance(self.store, DatabaseStateStore):
            return DocumentRegistry(self.database, clock=self.clock, store=self.store, repository=repository)

        return DatabaseRegistry(self.database, clock=self.clock, home="files", repository=repository)

    @cached_property
    def reconstruction(self) -> DatabaseReconstruction:
        """The database in whatever condition it is, for backup, restore and rebuild."""
        from adws.adw_modules.db.reconstruction import DatabaseReconstruction

        return DatabaseReconstruction(self.settings.database_url, clock=self.clock, boot_id=self.processes.boot_id)

    @cached_property
    def folders(self) -> StateFolders:
        """The directories of workflows, as a whole."""
        from adws.adw_modules.state_folders import StateFolders

        return StateFolders(self.settings.state_dir)

    # --- definitions -------------------------------------------------------------------------------------------

    @cached_property
    def workflows(self) -> Workflows:
        """The workflows there are to run; raises WorkflowInvalid when `adw.toml` defines one that is not sound."""
        from adws.adw_modules import plugin
        from adws.adw_modules.plugins import KnownNames
        from adws.adw_modules.steps import SINK_TOOLS
        from adws.adw_modules.workflow import RUNNERS
        from adws.adw_modules.workflows import Workflows

        return Workflows(
            runners=KnownNames(RUNNERS, plugin.RUNNERS),
            sinks=KnownNames(SINK_TOOLS, plugin.SINKS),
            has_file=self.agents.prompts.has,
            why_idle=self._why_idle,
            definitions=self.settings.section("workflows"),
            phases=self.settings.section("phases"),
            max_attempts=self.settings.max_attempts,
            connections={name: one.type for name, one in self.settings.connections.items()},
        )

    def _why_idle(self, phase: PhaseSpec) -> str:
        """Return why *phase* cannot be run on this machine, "" when it can."""
        from adws.adw_modules.workflow import RUNNERS

        return (self.agents.runner.why_idle if phase.runner in RUNNERS else self.plugins.why_idle)(phase)

    @cached_property
    def plugins(self) -> Plugins:
        """The runners, sinks and forges that other packages bring."""
        from adws.app_plugins import open_plugins

        return open_plugins(
            self.settings, clock=self.clock, redact=self.redactor.redact_text, open_forge=self._open_forge
        )

    @cached_property
    def agents(self) -> AgentRoom:
        """The agents there are, and what they are run with."""
        from adws.app_agents import AgentRoom

        return AgentRoom(self, git=lambda: self.work.space.git)

    # --- issues and pull requests ------------------------------------------------------------------------------

    @cached_property
    def forge(self) -> Forge:
        """Where issues and pull requests are; raises ConfigError when nothing is configured."""
        return self._open_forge(self.settings.forge_kind)

    def _open_forge(self, kind: str) -> Forge:
        from adws import app_forge

        return app_forge.open_forge(
            self.settings,
            clock=self.clock,
            processes=self.processes,
            scrub=self.redactor.redact_text,
            plugins=self.plugins,
            kind=kind,
        )

    def forge_effects(self, check: Callable[[], None] = lambda: None) -> ForgeEffects:
        """Return what makes pull requests and comments, each once; *check* raises when they are not ours to make."""
        from adws import app_forge
        from adws.adw_modules.forge_effects import ForgeEffects

        return ForgeEffects(
            self.forge, clock=self.clock, key=app_forge.key_of(self.settings, clock=self.clock), check=check
        )

    # --- what workflows hold on this machine -------------------------------------------------------------------

    @cached_property
    def git_room(self) -> GitRoom:
        """The repository of this home, its worktrees, and working in them."""
        from adws.app_resources import GitRoom

        return GitRoom(self.settings, clock=self.clock)

    @property
    def git(self) -> GitRepository:
        """The repository of this home."""
        return self.git_room.repository

    @property
    def workplace(self) -> GitWorkplace:
        """A worktree as a place to work in."""
        return self.git_room.workplace

    @cached_property
    def ports(self) -> MachinePorts:
        """The ports of workflows."""
        from adws.app_resources import open_ports

        return open_ports(self.settings, self.database, clock=self.clock, me=self.processes.me(self._role))

    @cached_property
    def quotas(self) -> MachineQuotas:
        """The limits of this machine."""
        from adws.app_resources import open_quotas

        host = self.processes.me(self._role).host

        return open_quotas(self.settings, self.database, clock=self.clock, host=host)

    @cached_property
    def breakers(self) -> CircuitBreakerRegistry:
        """The breakers of outside parties."""
        from adws.app_resources import open_breakers

        return open_breakers(self.settings, self.database, clock=self.clock)

    @cached_property
    def measuring(self) -> Measuring:
        """What reads the metrics."""
        from adws.app_metrics import open_measuring

        return open_measuring(self)

    # --- work --------------------------------------------------------------------------------------------------

    @cached_property
    def work(self) -> WorkRoom:
        """What runs workflows."""
        from adws.app_work import WorkRoom

        return WorkRoom(self)

    @cached_property
    def cron(self) -> CronRoom:
        """What is done on a schedule, and what people are told."""
        from adws.app_cron import CronRoom

        return CronRoom(self)

    @cached_property
    def reporting(self) -> Reporting:
        """What makes reports, and finds what is stuck."""
        from adws.app_reporting import open_reporting

        return open_reporting(self)

    # --- undoing -----------------------------------------------------------------------------------------------

    @cached_property
    def tidy(self) -> TidyRoom:
        """What undoes, finds left-overs and checks."""
        from adws.app_tidy import TidyRoom

        return TidyRoom(self)

    @property
    def rollback_parts(self) -> RollbackParts:
        """What workflows are rolled back with, for library calls."""
        return self.tidy.rollback_parts

    # --- ownership ---------------------------------------------------------------------------------------------

    @cached_property
    def processes(self) -> SystemProcesses:
        """Processes, known by more than their pid."""
        from adws.adw_modules.process import SystemProcesses

        return SystemProcesses(clock=self.clock, host=self.settings.worker_host)

    @cached_property
    def local_lock(self) -> LocalLock:
        """The file locks that live owners on this machine hold."""
        from adws.adw_modules.local_lock import FileLocalLock

        return FileLocalLock(self.settings.state_dir)

    @cached_property
    def ownership(self) -> WorkflowOwnership:
        """Taking workflows and giving them back."""
        from adws.adw_modules.coordination.ownership import WorkflowOwnership

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
            on_takeover=self._end_former,
        )

    def _end_former(self, takeover: Takeover) -> None:
        self.work.end_former(takeover)


@runtime_checkable
class BringsUp(Protocol):
    """A store whose documents have a copy elsewhere."""

    def bring_up(self, adw_id: str) -> None:
        """Bring the copy up to the document."""


def _is_made(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def _parse(data: Mapping[str, JsonValue]) -> WorkflowDocument:
    from adws.adw_modules import document

    return document.parse(data)


#: A document in a row of the database; nobody reads it line by line there.
_dump_compact = methodcaller("to_bytes", indent=None)
