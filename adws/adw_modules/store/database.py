"""
Documents as rows of the database: the body, its events and its revision in one transaction.

The row's fence is the fence of its last owner, raised by the takeover itself. A former owner's write sees the higher
fence and is refused by the same statement that would have written. The outbox stays empty: events are in their table.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from adws.adw_modules import durable_file
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Params, Row, Session
from adws.adw_modules.document import WorkflowDocument, parse
from adws.adw_modules.errors import (
    CommitUnknown,
    DatabaseUnavailable,
    Fenced,
    StateConflict,
    StateCorrupt,
    StateExists,
    StateNotFound,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import Clock, LoadedState, LoadNotice
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, version_of
from adws.adw_modules.store import files, serialization
from adws.adw_modules.store.serialization import Revision, Serializer

#: Number of ids read at a time.
_IDS_AT_ONCE = 1000


class _OldBody(NamedTuple):
    """A document body of an older version, replaced by the next write."""

    revision: int
    version: str
    data: JsonObject


class DatabaseStateStore:
    """
    A `StateStore` in the database.

    *scrub* removes secrets from every text before it is stored. *not_imported* are directories whose documents `adw
    state migrate` would import.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        scrub: Callable[[bytes], bytes] | None = None,
        not_imported: Sequence[Path] = (),
    ) -> None:
        self._database = database
        self._not_imported = not_imported
        # The outbox stays empty: events have a table. Not indented, as nobody reads rows by line.
        self._serializer = Serializer(clock=clock, scrub=scrub, max_outbox=0, is_indented=False)
        self._old: dict[str, _OldBody] = {}  #: bodies of older versions, as last read

    # --- reading -----------------------------------------------------------------------------------------------

    def load(self, adw_id: str) -> LoadedState:
        """Return the stored revision; raise StateNotFound or StateCorrupt. Takes no lock and writes nothing."""
        data, notices = self._read(check_adw_id(adw_id))

        return LoadedState(document=parse(data), notices=notices)

    def exists(self, adw_id: str) -> bool:
        """Say whether a document exists, valid or not; a row that is only registered has none yet."""
        return self._row(check_adw_id(adw_id)) is not None

    def ids(self) -> Iterator[str]:
        """Yield the id of every document; documents created meanwhile may be missing."""
        after = ""
        while True:
            with self._database.read() as session:
                rows = session.all(
                    """
                    SELECT adw_id FROM workflow_states WHERE home = 'database' AND revision > 0 AND adw_id > :after
                    ORDER BY adw_id LIMIT :limit
                    """,
                    {"after": after, "limit": _IDS_AT_ONCE},
                )
            yield from (row[0] for row in rows)
            if len(rows) < _IDS_AT_ONCE:
                return
            after = rows[-1][0]

    def _row(self, adw_id: str) -> Row | None:
        """Return revision and body, or None if there is no document."""
        with self._database.read() as session:
            return session.one(
                """
                SELECT revision, body FROM workflow_states
                WHERE adw_id = :adw_id AND home = 'database' AND revision > 0
                """,
                {"adw_id": adw_id},
            )

    def _read(self, adw_id: str) -> tuple[JsonObject, tuple[LoadNotice, ...]]:
        row = self._row(adw_id)
        if row is None:
            raise files.not_found(adw_id, self._not_imported)
        where = f"{self._database.name}, workflow {adw_id}"
        data = _checked(where, adw_id, revision=row[0], body=row[1])
        version = version_of(data)
        if version == CURRENT_VERSION:
            return data, ()
        migrated = StateMigration.migrate(data)
        self._old[adw_id] = _OldBody(row[0], version, data)
        reason = f"brought from version {version} to {CURRENT_VERSION} in memory; its next write stores it so"
        notice = LoadNotice(kind="migrated", path=where, reason=reason)

        return {**migrated, "revision": row[0]}, (notice,)

    # --- writing -----------------------------------------------------------------------------------------------

    def create(
        self,
        document: WorkflowDocument,
        *,
        events: Sequence[Event] = (),
        also: Callable[[Session], object] | None = None,
    ) -> WorkflowDocument:
        """
        Store *document* as revision 1, and run *also* in the same transaction; raise StateExists if its id is taken.

        With a fence, this only fills the row registered for this owner (same fence, no document yet). If the creator
        was too slow, its row is taken or gone, and the write is refused with Fenced.
        """
        adw_id, fence = check_adw_id(document.adw_id), document.fence
        after = self._serializer.next_revision(document, revision=1, fence=fence, events=events)
        params = _params(after, expected=0)

        def work(session: Session) -> None:
            if fence > 0:
                head = _head(session, adw_id)
                is_ours = head == ("database", 0, fence) and _write_row(session, params)
                if not is_ours and (head is None or (head[:2] == ("database", 0) and head[2] > fence)):
                    raise Fenced(adw_id, fence, None if head is None else head[2])
            else:
                is_ours = bool(
                    session.run(
                        """
                        INSERT INTO workflow_states (
                            adw_id, repository, issue_number, title, workflow, state, revision, fence, owner,
                            lease_until, lease_boot, taken_at, home, schema_version, is_costing, created_at,
                            updated_at, body)
                        VALUES (
                            :adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence, '',
                            0, '', '', 'database', :schema_version, :is_costing, :created_at,
                            :updated_at, :body)
                        ON CONFLICT (adw_id) DO NOTHING
                        """,
                        params,
                    )
                )
            if not is_ours:
                raise StateExists(adw_id)
            session.run_each(connection.EVENT_INSERT, after.event_rows)
            if also is not None:
                also(session)

        return self._committed(work, after, params)

    def save(
        self,
        document: WorkflowDocument,
        *,
        fence: int,
        events: Sequence[Event] = (),
        may_collect: bool = False,  # noqa: ARG002 - there is no copy that could wait
        also: Callable[[Session], object] | None = None,
    ) -> WorkflowDocument:
        """
        Store *document* with *events* as the next revision, and run *also* in the same transaction.

        The revision that ends a workflow also frees its issue. Raises StateNotFound, StateConflict or Fenced.
        """
        adw_id, expected = check_adw_id(document.adw_id), document.revision
        old = self._old.get(adw_id)
        if old is not None and old.revision == expected:
            # The event holds the backup: committed with the revision that replaces the document, or not at all.
            kept: JsonObject = {"from": old.version, "to": CURRENT_VERSION, "document": old.data}
            events = (Event(event_type="state_migrated", data=kept), *events)
        after = self._serializer.next_revision(document, revision=expected + 1, fence=fence, events=events)
        # A document that was never stored follows no revision, not even that of a row that is only registered.
        params = _params(after, expected=expected if expected > 0 else -1)

        def work(session: Session) -> None:
            if not _write_row(session, params):
                head = _head(session, adw_id)
                if head is None or head[0] != "database" or head[1] == 0:
                    raise StateNotFound(adw_id)
                if head[2] > fence:
                    raise Fenced(adw_id, fence, head[2])
                raise StateConflict(adw_id, expected, head[1])
            if document.issue_number is not None and is_terminal(document.current_state):
                session.run(
                    "DELETE FROM adw_locks WHERE issue_number = :issue_number AND adw_id = :adw_id", params
                )  # in the write that ends the workflow, so no crash can come between
            if after.event_rows:
                session.run_each(connection.EVENT_INSERT, after.event_rows)
            if also is not None:
                also(session)

        stored = self._committed(work, after, params)
        self._old.pop(adw_id, None)
        return stored

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """
        Make every write under *fence* or a lower one fail from now on.

        After a takeover nothing is left to do, as the takeover raised the row's fence. A write in progress is a
        transaction that locks the row, so it either commits before this returns or is refused.
        """
        params = {"adw_id": check_adw_id(adw_id), "fence": fence}
        sql = """
        UPDATE workflow_states SET fence = :fence + 1 WHERE adw_id = :adw_id AND home = 'database' AND fence <= :fence
        """
        self._database.transact(lambda session: session.run(sql, params))

    def sweep(self, adw_id: str) -> None:
        """Do nothing: an interrupted transaction leaves nothing behind."""

    def flush(self, adw_id: str = "") -> None:
        """Do nothing: the row itself is the document."""

    def _committed(self, work: Callable[[Session], None], after: Revision, params: Params) -> WorkflowDocument:
        """Run *work*; if the answer to the commit was lost, check whether our revision was stored."""
        try:
            self._database.transact(work)
        except CommitUnknown:
            if self._row(after.document.adw_id) != (after.document.revision, params["body"]):
                raise

        return after.document


def _params(after: Revision, *, expected: int) -> Params:
    """Return the columns of a document's row, and the revision that the row must have before."""
    return {**connection.document_params(after.document, after.body), "expected": expected}


def _head(session: Session, adw_id: str) -> Row | None:
    return session.one("SELECT home, revision, fence FROM workflow_states WHERE adw_id = :adw_id", {"adw_id": adw_id})


def _write_row(session: Session, params: Params) -> bool:
    """Write a document over the revision it was made from, unless a later owner was seen; return False if refused."""
    # SQLite rewrites every index whose columns are named in SET, changed or not. So the first statement leaves out
    # columns that stay the same in a workflow's life, and matches no row if one of them did change.
    if session.run(
        """
        UPDATE workflow_states
        SET state = :state, revision = :revision, fence = :fence, schema_version = :schema_version,
            updated_at = :updated_at, body = :body
        WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
          AND repository = :repository AND workflow = :workflow AND created_at = :created_at AND title = :title
          AND is_costing = :is_costing
          AND coalesce(issue_number, 0) = coalesce(:issue_number, 0)
        """,
        params,
    ):
        return True
    return bool(
        session.run(
            """
            UPDATE workflow_states
            SET repository = :repository, issue_number = :issue_number, title = :title, workflow = :workflow,
                state = :state, revision = :revision, fence = :fence, schema_version = :schema_version,
                is_costing = :is_costing, created_at = :created_at, updated_at = :updated_at, body = :body
            WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
            """,
            params,
        )
    )


def _checked(where: str, adw_id: str, *, revision: int, body: str) -> JsonObject:
    """Return the document in *body*; raise StateCorrupt if it does not match its row."""
    try:
        data = serialization.parse(body.encode("utf-8"))
    except serialization.Unreadable as exc:
        raise StateCorrupt(where, str(exc), "bring a backup back with adw db restore") from exc
    if data.get("adw_id") != adw_id or data.get("revision") != revision:
        result = f"{data.get('adw_id')!r} at revision {data.get('revision')!r}"
        raise StateCorrupt(
            where, f"it holds {result}, its row says revision {revision}", "adw db restore brings a backup"
        )

    return data


# --- the marker file beside a SQLite database that holds documents ---------------------------------------------
#
# A lost database means lost documents, and adw must not silently continue with an empty one. The file is made after the
# database and before its first document, and stays. So the file without the database means that the database was lost.


_TEXT = """\
The SQLite database beside this file holds workflow documents. While this file is there, adw makes no empty database in
the place of a lost one. Bring a backup back with adw db restore, or delete this file to start afresh.
"""


def marker_of(database: Path) -> Path:
    """Return the path of the marker file of *database*."""
    return database.with_name(f"{database.name}.has-documents")


def leave(database: Path) -> None:
    """
    Make the file durably, unless it exists; raise DatabaseUnavailable if that fails.

    If this process may not write there, it only reads and stores no documents, so the file is not needed.
    """
    path = marker_of(database)
    if path.exists():
        return
    try:
        with suppress(FileExistsError):  # another process was faster
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as stream:
                stream.write(_TEXT)
        durable_file.sync_directory_at(str(path.parent))
    except OSError as exc:
        if exc.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return
        raise DatabaseUnavailable(
            f"cannot make {path}: {exc.strerror or exc}; look at the directory and the disk of the database"
        ) from exc
