"""
Creating a workflow: its issue, its row, its first lease and its first run in one transaction.

The row has revision 0 until the document is written, whichever home that has. A crash in between leaves exactly such a
row: its lease ends, `adw db check` names it, and whoever sweeps finished locks takes it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adws.adw_modules import events as event_words
from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, run_statements, statements
from adws.adw_modules.db.issue_locks import DatabaseIssueLocks
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.db.state_store import DatabaseStateStore
from adws.adw_modules.errors import IssueLocked, StateExists
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, Lease
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import NewRun, check_run_of
from adws.adw_modules.state_revision import summary_of

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


class DatabaseRegistry:
    """A `Registry` in the database."""

    def __init__(self, database: Database, *, clock: Clock, home: str, repository: str = "") -> None:
        """Register workflows whose documents live in *home* ("files" or "database"); "" means *repository* there."""
        self._database = database
        self._clock = clock
        self._home = home
        self._locks = DatabaseIssueLocks(database, clock=clock, repository=repository)
        self._queue = DatabaseRunQueue(database, clock=clock)
        self._register = database.spell(statements.STATE_REGISTER)

    def register(
        self,
        document: WorkflowDocument,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        events: Sequence[Event] = (),
        run: NewRun | None = None,
    ) -> Lease:
        """
        Lock the issue, make the row with fence 1 and enqueue *run*.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        moment = timestamps.to_text(self._clock.now())
        params = self._row_of(document, owner, ttl_seconds, moment)
        # The key these events would have if they came with the document, so that storing them again changes nothing.
        stamped = event_words.stamp(events, adw_id=adw_id, revision=1, created_at=moment)

        def work(session: Session) -> None:
            if session.run(self._register, params) == 0:
                raise StateExists(adw_id)
            if document.issue_number is not None:
                self._lock(session, document.issue_number, adw_id, document.repository, moment)
            session.run_each(statements.EVENT_INSERT, [rows.event_params(event) for event in stamped])
            if run is not None:
                self._queue.enqueue_in(session, run)

        self._database.transact(work)

        return Lease(adw_id=adw_id, owner=owner, fence=1)

    def _row_of(
        self, document: WorkflowDocument, owner: OwnerRecord, ttl_seconds: float, moment: str
    ) -> dict[str, object]:
        return {
            **self._database.lease_clock(),
            **rows.summary_params(summary_of(document)),
            "title": "",  # comes with the document, once its secrets are taken out
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": moment,
            "home": self._home,
            "schema_version": document.state_version,
        }

    def unregister(self, lease: Lease) -> None:
        """Take that back for a workflow whose document could not be written; a row that has one stays."""
        params = {"adw_id": lease.adw_id, "owner": lease.owner.to_text(), "fence": lease.fence}

        def work(session: Session) -> None:
            if session.run(statements.STATE_UNREGISTER, params) == 0:
                return
            session.run(statements.LOCKS_OF_WORKFLOW_DELETE, params)
            session.run(statements.EVENTS_OF_WORKFLOW_DELETE, params)
            session.run(run_statements.RUNS_OF_WORKFLOW_DELETE, params)

        self._database.transact(work)

    def _lock(self, session: Session, issue_number: int, adw_id: str, repository: str, moment: str) -> None:
        held = self._locks.take(session, issue_number, adw_id, repository, moment)
        if held.adw_id != adw_id:
            raise IssueLocked(issue_number, held.adw_id, repository)


class DocumentRegistry(DatabaseRegistry):
    """A registry of workflows whose documents live in the same database."""

    def __init__(self, database: Database, *, clock: Clock, store: DatabaseStateStore, repository: str = "") -> None:
        """Register workflows whose documents are in *store*."""
        super().__init__(database, clock=clock, home="database", repository=repository)
        self._store = store

    def create(
        self, document: WorkflowDocument, *, events: Sequence[Event] = (), run: NewRun | None = None
    ) -> WorkflowDocument:
        """
        Store the document of a workflow that nobody owns yet, lock its issue and enqueue *run*, all in one transaction.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        moment = timestamps.to_text(self._clock.now())

        def add(session: Session) -> None:
            if document.issue_number is not None:
                self._lock(session, document.issue_number, adw_id, document.repository, moment)
            if run is not None:
                self._queue.enqueue_in(session, run)

        return self._store.create(document, events=events, also=add)
