"""
Documents as rows of the database: the body, its events and its revision in one transaction.

The row's fence is the token of its last owner, raised by the takeover itself: a former owner finds a higher one and is
refused in the same statement that would have written. The outbox stays empty, for the events are in.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import durable_file
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Params, Session
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
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id
from adws.adw_modules.interfaces import Clock, LoadedState, LoadNotice, PeekedState
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, version_of
from adws.adw_modules.store import serialization
from adws.adw_modules.store.serialization import RevisionBuilder

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


#: Ids read at a time.
_IDS_AT_ONCE = 1000
_HOME = {"home": "database"}


class _Next(NamedTuple):
    """The next revision, ready to be written."""

    document: WorkflowDocument
    params: dict[str, object]
    events: list[Params]


class DatabaseStateStore:
    """
    A `StateStore` in the database.

    *parse* makes a document of plain JSON, *dump* the JSON text of a document (`document.parse`, `document.to_bytes`);
    *scrub* takes secrets out of every text before it is stored.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        parse: Callable[[Mapping[str, JsonValue]], WorkflowDocument],
        dump: Callable[[WorkflowDocument], bytes] | None = None,
        scrub: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._database = database
        self._parse = parse
        self._scrub = scrub
        # Its outbox stays empty: events have a table of their own.
        self._builder = RevisionBuilder(clock=clock, parse=parse, dump=dump, scrub=scrub, max_outbox=0)

    # --- reading -----------------------------------------------------------------------------------------------

    def load(self, adw_id: str) -> LoadedState:
        """Return the stored revision; raise StateNotFound or StateCorrupt. Takes no lock, writes nothing."""
        data, notices = self._read(check_adw_id(adw_id))

        return LoadedState(document=self._parse(data), notices=notices)

    def peek(self, adw_id: str) -> PeekedState:
        """Return the same as plain JSON of the current version, without parsing it into a model: for viewers."""
        data, notices = self._read(check_adw_id(adw_id))

        return PeekedState(data=data, notices=notices)

    def exists(self, adw_id: str) -> bool:
        """Say whether there is a document, good or bad; a row that is only registered has none yet."""
        with self._database.read() as session:
            return session.one(connection.STATE_EXISTS, {"adw_id": check_adw_id(adw_id), **_HOME}) is not None

    def ids(self) -> Iterator[str]:
        """Yield the id of every document; those created meanwhile may be missing."""
        after = ""
        while True:
            with self._database.read() as session:
                rows = session.all(connection.STATE_IDS, {"after": after, "limit": _IDS_AT_ONCE, **_HOME})
            yield from (row[0] for row in rows)
            if len(rows) < _IDS_AT_ONCE:
                return
            after = rows[-1][0]

    def _read(self, adw_id: str) -> tuple[JsonObject, tuple[LoadNotice, ...]]:
        with self._database.read() as session:
            row = session.one(connection.STATE_BODY, {"adw_id": adw_id, **_HOME})
        if row is None:
            raise StateNotFound(adw_id)
        where = f"{self._database.name}, workflow {adw_id}"
        data = _checked(where, adw_id, revision=row[0], body=row[1])
        version = version_of(data)
        if version == CURRENT_VERSION:
            return data, ()
        notice = LoadNotice(kind="migrated", path=where, reason=f"read as {version}, brought to {CURRENT_VERSION}")

        return StateMigration.migrate(data), (notice,)

    # --- writing -----------------------------------------------------------------------------------------------

    def create(
        self,
        document: WorkflowDocument,
        *,
        events: Sequence[Event] = (),
        also: Callable[[Session], object] = lambda _session: None,
    ) -> WorkflowDocument:
        """
        Store *document* as revision 1, and do *also* in the same transaction; raise StateExists when its id is taken.

        With a fence it only fills the row that the registry made for this very owner (same fence, no document yet). A
        creator that was too slow finds its row taken or gone, and is refused with Fenced.
        """
        check_adw_id(document.adw_id)
        after = self._next(document, revision=1, fence=document.fence, events=events)
        params = {**after.params, **_HOME, "expected": 0}

        def work(session: Session) -> None:
            is_in = _fill(session, params) if document.fence > 0 else session.run(connection.STATE_INSERT, params) == 1
            if not is_in:
                raise _refusal_to_create(session, document)
            session.run_each(connection.EVENT_INSERT, after.events)
            also(session)

        return self._committed(work, after)

    def save(self, document: WorkflowDocument, *, fence: int, events: Sequence[Event] = ()) -> WorkflowDocument:
        """
        Store *document* with *events* as the next revision; raise StateNotFound, StateConflict or Fenced.

        The revision that ends a workflow also frees its issue.
        """
        return self.save_with(document, fence=fence, events=events)

    def save_with(
        self,
        document: WorkflowDocument,
        *,
        fence: int,
        events: Sequence[Event] = (),
        also: Callable[[Session], object] = lambda _session: None,
    ) -> WorkflowDocument:
        """Do the same, and *also* in the same transaction."""
        check_adw_id(document.adw_id)
        after = self._next(document, revision=document.revision + 1, fence=fence, events=events)
        # A document that was never stored follows nothing, not even a row that is only registered.
        after.params["expected"] = document.revision if document.revision > 0 else -1

        def work(session: Session) -> None:
            if not _write(session, after.params):
                raise _refusal(session, document, fence)
            if is_terminal(after.document.current_state):
                _free_issue(session, after.document)
            session.run_each(connection.EVENT_INSERT, after.events)
            also(session)

        return self._committed(work, after)

    def revoke_writers(self, adw_id: str, *, fence: int) -> None:
        """
        Make every write under *fence* or a lower one fail from now on.

        After a takeover there is nothing to do, for the takeover raised the row's fence itself. A half-done write is
        a transaction: it holds the row, so it is either committed before this returns or refused.
        """
        params = {"adw_id": check_adw_id(adw_id), "fence": fence}
        self._database.transact(lambda session: session.run(connection.STATE_FENCE_OUT, params))

    def sweep(self, adw_id: str) -> None:
        """Do nothing: a transaction that was cut off leaves nothing behind."""

    def _next(self, document: WorkflowDocument, *, revision: int, fence: int, events: Sequence[Event]) -> _Next:
        """Return the revision that follows *document*, without its secrets."""
        stored, body, stamped = self._builder.build(document, revision=revision, fence=fence, events=events)
        params = connection.document_params(stored)
        params.update(fence=fence, schema_version=stored.state_version, body=body.decode("utf-8"))

        return _Next(stored, params, self._event_params(stamped))

    def _event_params(self, events: Sequence[Event]) -> list[Params]:
        params: list[Params] = [connection.event_params(event) for event in events]
        if self._scrub is None or not params:
            return params
        texts = "\n".join(map(str, chain.from_iterable(each.values() for each in params))).encode("utf-8")
        if self._scrub(texts) == texts:  # the usual case, found out without writing the events as JSON texts
            return params

        return [self._scrubbed(event, self._scrub) for event in events]

    def _scrubbed(self, event: Event, scrub: Callable[[bytes], bytes]) -> Params:
        text = connection.json_text(event.to_json(), f"the event {event.event_type}").encode("ascii")

        return connection.event_params(Event.from_json(json.loads(scrub(text))))

    def _committed(self, work: Callable[[Session], None], after: _Next) -> WorkflowDocument:
        """Do *work*; when the answer to the commit was lost, look whether our revision is there."""
        try:
            self._database.transact(work)
        except CommitUnknown:
            with self._database.read() as session:
                row = session.one(connection.STATE_BODY, {**after.params, **_HOME})
            if row != (after.document.revision, after.params["body"]):
                raise

        return after.document


def _write(session: Session, params: Params) -> bool:
    """Write over the expected revision; False when the row does not allow it."""
    if session.run(connection.STATE_WRITE, params) == 1:
        return True

    return session.run(connection.STATE_WRITE_ALL, params) == 1


def _fill(session: Session, params: Params) -> bool:
    """Write the first document into the row registered under the same fence; False when there is no such row."""
    is_ours = session.one(connection.STATE_HEAD, params) == ("database", 0, params["fence"])

    return is_ours and _write(session, params)


def _refusal_to_create(session: Session, document: WorkflowDocument) -> Exception:
    """Return why there can be no first document: the id is another's, or its creator lost it."""
    head = session.one(connection.STATE_HEAD, {"adw_id": document.adw_id})
    if document.fence > 0 and head is None:
        return Fenced(document.adw_id, document.fence)
    if document.fence > 0 and head is not None and head[:2] == ("database", 0) and head[2] > document.fence:
        return Fenced(document.adw_id, document.fence, head[2])

    return StateExists(document.adw_id)


def _free_issue(session: Session, document: WorkflowDocument) -> None:
    """Give the issue back with the write that ends its workflow: a crash cannot come between the two."""
    if document.issue_number is not None:
        key = {"issue_number": document.issue_number, "adw_id": document.adw_id}
        session.run(connection.LOCK_END, key)


def _refusal(session: Session, document: WorkflowDocument, fence: int) -> Exception:
    """Return why the row could not be written, from the row itself."""
    head = session.one(connection.STATE_HEAD, {"adw_id": document.adw_id})
    if head is None or head[0] != "database" or head[1] == 0:
        return StateNotFound(document.adw_id)
    _, revision, current = head
    if current > fence:
        return Fenced(document.adw_id, fence, current)

    return StateConflict(document.adw_id, document.revision, revision)


def _checked(where: str, adw_id: str, *, revision: int, body: str) -> JsonObject:
    """Return the document in *body*; raise StateCorrupt when it is not the one that its row speaks of."""
    try:
        data = serialization.parse(body.encode("utf-8"))
    except serialization.Unreadable as exc:
        raise StateCorrupt(where, str(exc), "bring a backup back with adw restore") from exc
    if data.get("adw_id") != adw_id or data.get("revision") != revision:
        result = f"{data.get('adw_id')!r} at revision {data.get('revision')!r}"
        raise StateCorrupt(where, f"it holds {result}, its row says revision {revision}", "adw restore brings a backup")

    return data


# A file beside a SQLite database that says: documents live in there.
#
# A lost database means lost documents, and adw must not silently go on with an empty one. The file is made after the
# database and before its first document, and stays: so one without the other means that the database is gone.


_TEXT = """\
The SQLite database beside this file holds workflow documents. While this file is there, adw makes no empty database in
the place of a lost one. Bring a backup back with adw restore, or delete this file to start afresh.
"""


def marker_of(database: Path) -> Path:
    """Return the path of the file that goes with *database*."""
    return database.with_name(f"{database.name}.has-documents")


def leave(database: Path) -> None:
    """
    Make the file, durably, unless it is there; raise DatabaseUnavailable when that cannot be done.

    Where this process may not write it makes no documents either, and only reads: then the file is not needed.
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
