"""
The database copy of documents that are files, written in each save.

Each save updates the workflow's row and inserts its events, after the document is durable. Most of these commits do not
wait for the disk; one from time to time does, and makes all earlier ones durable. Until then a document keeps its
events in its outbox, so neither a power cut nor a busy or broken database loses an event or stops a workflow. Saves
that follow each other within a few milliseconds are committed together.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING

from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Params, Session
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import AdwError
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.store import serialization
from adws.adw_modules.store.serialization import Revision

if TYPE_CHECKING:
    from adws.app import Home

logger = logging.getLogger("adw.projection")

#: Seconds between two commits that wait for the disk.
INTERVAL_SECONDS = 1.0
#: Seconds after a commit in which further revisions of a workflow are collected, if the caller allows it.
COLLECT_SECONDS = 0.05
#: Number of workflows whose revisions are remembered while the database is away; other events stay in their outboxes.
MAX_BEHIND = 1000


class Projection:
    """
    The database copy of a home's documents.

    The first write opens the database: reading a good file never opens it, reading a broken one never creates it.
    """

    def __init__(self, home: Home, *, interval_seconds: float | None = None) -> None:
        self._home = home
        self._interval = INTERVAL_SECONDS if interval_seconds is None else interval_seconds
        self._synced_at = -math.inf  #: Clock.monotonic of the last commit that waited for the disk
        self._confirmed: dict[str, int] = {}  #: workflow -> last revision whose events are durable
        self._unsynced: dict[str, int] = {}  #: workflow -> last revision committed without waiting for the disk
        self._behind: dict[str, Revision] = {}  #: workflow -> its newest revision, with all events not yet committed
        self._committed_at: dict[str, float] = {}  #: workflow -> Clock.monotonic of its last commit, while it is owned
        self._is_away = False  #: whether the last commit failed
        self._lock = threading.Lock()  #: protects `_behind`: the lease renewer flushes what a step collects

    def update(self, revision: Revision, *, may_collect: bool = False) -> None:
        """
        Update the copy of a document to *revision* and insert its events; errors are logged and stop nobody.

        With *may_collect*, a revision shortly after the last commit waits for the next revision, or for `flush`.
        """
        document, body, event_rows = revision
        adw_id, before = document.adw_id, document.revision - 1
        with self._lock:
            behind = self._behind.get(adw_id)
            if behind is not None and behind.document.revision == before:
                event_rows = [*behind.event_rows, *event_rows]
            elif before > self._unsynced.get(adw_id, 0) and before > self._confirmed.get(adw_id, 0):
                # An earlier process or a failed write left events behind: storing them twice is harmless.
                event_rows = serialization.outbox_rows(document)
            revision = Revision(document, body, event_rows)
            if behind is not None or len(self._behind) < MAX_BEHIND:
                self._behind[adw_id] = revision
        if may_collect:
            now = self._home.database.clock.monotonic()
            if now - self._committed_at.get(adw_id, -math.inf) < COLLECT_SECONDS:
                return
            self._committed_at[adw_id] = now
        try:
            self._commit(revision)
            self._is_away = False
        except AdwError as exc:
            if not self._is_away:
                logger.warning("Database copy is behind: %s", exc, extra={"action": "projection_failed"}, exc_info=exc)
            self._is_away = True

    def catch_up(self, document: WorkflowDocument) -> None:
        """Update the copy to the stored *document* with all its waiting events; raise the error that prevents it."""
        self._commit(Revision(document, document.to_bytes(), serialization.outbox_rows(document)), is_synced=True)

    def flush(self, adw_id: str = "") -> None:
        """Commit collected and failed revisions, of one workflow or of all; raise the error that prevents it."""
        for each in (adw_id,) if adw_id else tuple(self._behind):
            behind = self._behind.get(each)
            if behind is not None:
                self._commit(behind)
        self._committed_at.pop(adw_id, None)

    def close(self) -> None:
        """Commit pending revisions. An unreachable database is only logged, as the documents keep the events."""
        try:
            self.flush()
        except AdwError:
            logger.warning("Database copy not updated", extra={"action": "projection_behind"}, exc_info=True)

    def confirmed_revision(self, adw_id: str) -> int:
        """Return the last revision whose events are known to be durable in the database, 0 if unknown."""
        _ = self._home.database  # written next; a home that cannot be opened is refused before that

        return self._confirmed.get(adw_id, 0)

    def copy_of(self, adw_id: str) -> bytes | None:
        """Return the copied document, to recover a lost file, or None if there is no copy."""
        if not self._home.may_have_projection():
            return None
        with self._home.database.read() as session:
            row = session.one(
                "SELECT body FROM workflow_states WHERE adw_id = :adw_id AND home = 'files' AND revision > 0",
                {"adw_id": check_adw_id(adw_id)},
            )

        return None if row is None else str(row[0]).encode("utf-8")

    def _commit(self, revision: Revision, *, is_synced: bool = False) -> None:
        """Commit one revision, waiting for the disk if the last such commit is long ago."""
        document, body, event_rows = revision
        params = connection.document_params(document, body)
        database = self._home.database
        now = database.clock.monotonic()
        is_synced = is_synced or database.unsynced is database or now - self._synced_at >= self._interval
        # Taken first: all these were committed before ours, and a synced commit syncs all before it.
        before = {}
        if is_synced:
            before, self._unsynced = self._unsynced, {}

        def work(session: Session) -> None:
            _write_row(session, params)
            if event_rows:
                session.run_each(connection.EVENT_INSERT, event_rows)

        try:
            (database if is_synced else database.unsynced).transact(work)
        except BaseException:
            self._unsynced = {**before, **self._unsynced}
            raise
        adw_id, number = document.adw_id, document.revision
        with self._lock:
            behind = self._behind.get(adw_id)
            if behind is not None and behind.document.revision <= number:
                del self._behind[adw_id]
        if not is_synced:
            self._unsynced[adw_id] = max(number, self._unsynced.get(adw_id, 0))
            return
        self._synced_at = now
        for known_id, known in (*before.items(), (adw_id, number)):
            self._confirmed[known_id] = max(known, self._confirmed.get(known_id, 0))


def _write_row(session: Session, params: Params) -> None:
    """Update the row of a file: never its lease, never to an older revision, never a document of the database."""
    # SQLite rewrites every index whose columns are named in SET, changed or not. So the first statement leaves out
    # columns that stay the same in a workflow's life; the second is for the first write and rare other changes.
    if session.run(
        """
        UPDATE workflow_states
        SET state = :state, revision = :revision, schema_version = :schema_version, updated_at = :updated_at,
            body = :body
        WHERE adw_id = :adw_id AND home = 'files' AND revision < :revision
          AND repository = :repository AND workflow = :workflow AND created_at = :created_at AND title = :title
          AND is_costing = :is_costing
          AND coalesce(issue_number, 0) = coalesce(:issue_number, 0)
        """,
        params,
    ):
        return
    session.run(
        """
        INSERT INTO workflow_states (
            adw_id, repository, issue_number, title, workflow, state, revision, fence, owner, lease_until, lease_boot,
            taken_at, home, schema_version, is_costing, created_at, updated_at, body)
        VALUES (
            :adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence, '', 0, '',
            '', 'files', :schema_version, :is_costing, :created_at, :updated_at, :body)
        ON CONFLICT (adw_id) DO UPDATE
        SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
            workflow = excluded.workflow, state = excluded.state, revision = excluded.revision,
            schema_version = excluded.schema_version, is_costing = excluded.is_costing,
            created_at = excluded.created_at, updated_at = excluded.updated_at, body = excluded.body
        WHERE workflow_states.home = 'files' AND workflow_states.revision < excluded.revision
        """,
        params,
    )
