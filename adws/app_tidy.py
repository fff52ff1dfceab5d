"""
The wiring of what undoes, finds and checks: rollback, gc, verify, adopt.

Apart from `app` because only those commands need it; each part is built on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from adws import app_forge
from adws.adw_modules.coordination.adoption import Adoption
from adws.adw_modules.coordination.gc import GarbageCollector, GcParts
from adws.adw_modules.coordination.retention import Retention, RetentionParts
from adws.adw_modules.coordination.rollback_runs import RollbackRuns
from adws.adw_modules.coordination.rolling_back import RollingBack
from adws.adw_modules.coordination.survey import Survey, SurveyParts
from adws.adw_modules.coordination.verify import Verifier, VerifyParts
from adws.adw_modules.db.quota_book import DatabaseQuotaBook
from adws.adw_modules.db.retention import DatabaseRetention
from adws.adw_modules.errors import ConfigError, GitError
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.old_files import StateDirectory
from adws.adw_modules.process_tree import Ending, end_recorded, recorded
from adws.adw_modules.resources import ports as port_probe
from adws.adw_modules.retention_rules import Days
from adws.adw_modules.rollback import RollbackParts, RollbackReport, Rollbacks
from adws.adw_modules.rollback_hands import Hands
from adws.adw_modules.rollback_rules import Wishes
from adws.app_home import HomeBooks
from adws.app_work import LOG_NAME

if TYPE_CHECKING:
    from adws.adw_modules.coordination.ownership import WorkflowOwnership
    from adws.adw_modules.coordination.survey import Seen
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces import (
        EventLog,
        IssueLocks,
        LeaseBook,
        LocalLock,
        Requests,
    )
    from adws.adw_modules.interfaces_durability import CheckpointStore
    from adws.adw_modules.interfaces_metrics import EventTally
    from adws.adw_modules.interfaces_resources import GitWorkplace
    from adws.adw_modules.resources.ports import MachinePorts
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.adw_modules.resources.repository import RepositoryGit
    from adws.adw_modules.tampering import Marks
    from adws.app_resources import GitRoom
    from adws.app_work import WorkRoom

_PAGE = 200


class HomeParts(HomeBooks, Protocol):
    """What the parts of a home are to tidying it (`app.App`)."""

    @property
    def events(self) -> EventLog: ...
    @property
    def leases(self) -> LeaseBook: ...
    @property
    def locks(self) -> IssueLocks: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def checkpoints(self) -> CheckpointStore: ...
    @property
    def tally(self) -> EventTally: ...
    @property
    def database(self) -> Database: ...
    @property
    def ownership(self) -> WorkflowOwnership: ...
    @property
    def local_lock(self) -> LocalLock: ...
    @property
    def git_room(self) -> GitRoom: ...
    @property
    def workplace(self) -> GitWorkplace: ...
    @property
    def ports(self) -> MachinePorts: ...
    @property
    def quotas(self) -> MachineQuotas: ...
    @property
    def work(self) -> WorkRoom: ...


class TidyRoom:
    """The parts that tidy up one home."""

    def __init__(self, app: HomeParts) -> None:
        self._app = app

    # --- what is there -----------------------------------------------------------------------------------------

    @cached_property
    def git(self) -> RepositoryGit | None:
        """The repository of the home, None when the home is in none."""
        repository = self._app.git_room.repository
        try:
            _ = repository.root
        except GitError:
            return None

        return repository

    @cached_property
    def forge(self) -> Forge | None:
        """The forge, None when none is configured."""
        try:
            return self._app.forge
        except ConfigError:
            return None

    @property
    def _forge_key(self) -> bytes:
        return app_forge.key_of(self._app.settings, clock=self._app.clock) if self.forge is not None else b""

    @property
    def _host(self) -> str:
        return self._app.processes.me("cli").host

    def _end_process(self, data: Mapping[str, object]) -> Ending:
        record = recorded(data)
        if record is None:
            return Ending(evidence="its record cannot be read, so nothing was signalled")

        return end_recorded(
            record,
            clock=self._app.clock,
            processes=self._app.processes,
            grace_seconds=self._app.settings.grace_seconds,
        )

    # --- rollback ----------------------------------------------------------------------------------------------

    @cached_property
    def rollback_parts(self) -> RollbackParts:
        """What workflows are rolled back with."""
        app = self._app

        return RollbackParts(
            ownership=app.ownership,
            engine=app.work.engine,
            runs=app.runs,
            requests=app.requests,
            hands=Hands(
                clock=app.clock,
                host=self._host,
                folder_of=lambda adw_id: app.settings.state_dir / adw_id,
                end_process=self._end_process,
                git=self.git,
                refs=app.git_room.remote_refs if self.git is not None else None,
                is_shared=app.settings.is_shared,
                workplace=app.workplace if self.git is not None else None,
                ports=app.ports,
                forge=self.forge,
                forge_key=self._forge_key,
                scrub=app.redactor.redact_text,
                release=app.quotas.release,
                is_listened_on=lambda port: not port_probe.is_free(port),
            ),
            load=lambda adw_id: app.store.load(adw_id).document,
            keep=app.work.keeper.charge,
            observe=app.work.space.workspace.observe,
        )

    @property
    def rollbacks(self) -> Rollbacks:
        """Rolls back what nobody works on."""
        return Rollbacks(self.rollback_parts)

    @property
    def rolling_back(self) -> RollingBack:
        """Rolls back what somebody may work on."""
        return RollingBack(self.rollbacks, requests=self._app.requests, clock=self._app.clock)

    @property
    def rollback_runs(self) -> RollbackRuns:
        """Queues rollbacks for workers, and makes them there."""
        app = self._app

        return RollbackRuns(self.rollbacks, runs=app.runs, requests=app.requests, clock=app.clock)

    # --- gc, verify, adopt -------------------------------------------------------------------------------------

    @cached_property
    def _survey(self) -> SurveyParts:
        app = self._app
        book = DatabaseQuotaBook(app.database, clock=app.clock)

        return SurveyParts(
            store=app.store,
            leases=app.leases,
            locks=app.locks,
            processes=app.processes,
            state_dir=app.settings.state_dir,
            trees_dir=app.settings.trees_dir,
            git=self.git,
            host=self._host if app.settings.is_shared else "",
            ports=app.ports,
            places=lambda: tuple(place.adw_id for place in book.spending().places),
            checkpoints=app.checkpoints.workflows,
            copies=self._copies if app.settings.store == "files" else dict,
        )

    def look(self) -> Seen:
        """Return everything of ours that is there."""
        return Survey(self._survey).look()

    @property
    def collector(self) -> GarbageCollector:
        """Finds and removes orphans."""
        app = self._app

        return GarbageCollector(
            GcParts(
                survey=self._survey,
                clock=app.clock,
                roll_back=self._roll_back,
                release_lock=lambda _adw_id: app.ownership.release_finished_locks(),
                release_place=app.quotas.release,
                end_process=self._end_process,
                sweep=self._sweep,
                forget_checkpoints=app.checkpoints.forget,
                git=self.git,
                refs=app.git_room.remote_refs if self.git is not None and self._publishes else None,
                workplace=app.workplace if self.git is not None else None,
                forge=self.forge,
                forge_key=self._forge_key,
                retention=self.retention,
            )
        )

    @property
    def retention(self) -> Retention:
        """Forgets what is older than the settings say."""
        app, settings = self._app, self._app.settings

        return Retention(
            RetentionParts(
                clock=app.clock,
                days=Days(
                    events=settings.retention_events_days,
                    logs=settings.retention_logs_days,
                    deliveries=settings.retention_deliveries_days,
                    workflows=settings.retention_workflows_days,
                ),
                rows=DatabaseRetention(app.database),
                files=StateDirectory(settings.state_dir, log_name=LOG_NAME),
                store=app.store,
                ownership=lambda: app.ownership,
                deliveries=app.deliveries,
                is_live=Survey(self._survey).is_live,
                count=app.tally.bring_up,
            )
        )

    @property
    def _publishes(self) -> bool:
        """Whether work may be on the remote that is not shipped."""
        return self._app.settings.is_shared or self._app.settings.workspace_publish_work == "always"

    def _roll_back(self, adw_id: str, reason: str) -> RollbackReport:
        return self.rollbacks.rollback(adw_id, Wishes(reason=reason, by="adw gc"))

    def _sweep(self, adw_id: str) -> None:
        """Remove half written files; only who holds the file lock knows that nobody is writing."""
        sweep = getattr(self._app.store, "sweep", None)
        if sweep is None or not self._app.local_lock.try_hold(adw_id):
            return
        try:
            sweep(adw_id)
        finally:
            self._app.local_lock.let_go(adw_id)

    @property
    def verifier(self) -> Verifier:
        """Checks what must always hold."""
        app = self._app

        return Verifier(
            VerifyParts(
                survey=self._survey,
                events=app.events,
                redactor=app.redactor,
                shared=self._shared,
            )
        )

    def _shared(self) -> Marks:
        return self._app.git_room.shared.marks() if self.git is not None else {}

    def _copies(self) -> dict[str, int]:
        found: dict[str, int] = {}
        page = partial(PageQuery, limit=_PAGE)
        cursor: str | None = None
        while True:
            rows = self._app.catalogue.page(page(cursor=cursor))
            found.update((row.adw_id, row.revision) for row in rows.rows)
            cursor = rows.next_cursor
            if cursor is None:
                return found

    @property
    def adoption(self) -> Adoption:
        """Takes worktrees back; raises GitError when the home is in no repository."""
        app, repository = self._app, self._app.git_room.repository
        _ = repository.root

        return Adoption(
            git=repository,
            store=app.store,
            ownership=app.ownership,
            clock=app.clock,
            host=self._host,
            trees_dir=app.settings.trees_dir,
            repository=app.settings.repository or "",
        )
