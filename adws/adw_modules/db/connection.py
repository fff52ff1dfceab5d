"""
A small session over the drivers' own connections, and the mapping between rows and adw's data types.

Queries are SQL texts with `:name` parameters, the same for both dialects; `Database.render` fills in the few parts that
differ: `{now}` (the lease clock), `{row_lock}` and `{like}`. Text from callers never becomes part of a query. `read()`
sees one snapshot of the database, `write()` is one transaction, and both translate the drivers' errors.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from adws.adw_modules.errors import DatabaseUnavailable, StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import comparable, strict_json
from adws.adw_modules.interfaces import Clock, IssueLock, Request, WorkflowSummary

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: One row, with values in the order of the query's columns.
Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, object]

_Result = TypeVar("_Result")
_NOTHING: Params = {}

#: How long a statement waits for a lock before it fails.
PATIENCE_SECONDS = 30.0


class Session(ABC):
    """One transaction; valid only inside the block that opened it."""

    @abstractmethod
    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        """Return every row."""

    @abstractmethod
    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        """Return the first row, or None."""

    @abstractmethod
    def run(self, sql: str, params: Params = _NOTHING) -> int:
        """Change rows, and return the number of changed rows."""

    @abstractmethod
    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        """Run the same statement once for each of *params*."""


class Database(ABC):
    """An open database. Threads may share it; a forked child must not use it, see `check_process`."""

    dialect: ClassVar[str]
    #: The current time on the lease clock, as SQL.
    now_sql: ClassVar[str]
    #: The SQL suffix with which a SELECT locks its rows until the end of the transaction.
    row_lock_sql: ClassVar[str]
    #: The SQL operator that matches a pattern and ignores case.
    like_sql: ClassVar[str]

    def __init__(self, *, name: str, clock: Clock) -> None:
        self.name = name  #: its location without password, for messages
        self.clock = clock
        #: Remove secrets from text or JSON before it is stored; set by the home.
        self.scrub_text: Callable[[str], str] = lambda text: text
        self.scrub_json: Callable[[str], str] = lambda text: text
        self.opened_by = 0  #: pid of the process that has connections; 0: none

    def render(self, sql: str) -> str:
        """Return *sql* with `{now}`, `{row_lock}` and `{like}` replaced for this dialect."""
        return (
            sql.replace("{now}", self.now_sql).replace("{row_lock}", self.row_lock_sql).replace("{like}", self.like_sql)
        )

    def clean(self, text: str) -> str:
        """Return *text* from a person or program without its secrets."""
        return self.scrub_text(text) if text else text

    def clean_json(self, text: str) -> str:
        """Return JSON *text* from a person or program without the secrets in its strings."""
        return self.scrub_json(text) if text != "{}" else text

    @abstractmethod
    def lease_clock(self) -> Params:
        """Return the parameters for `{now}` and `:boot`."""

    def server_time(self) -> float | None:
        """Return the server's clock in seconds since 1970, or None if the database has no clock of its own."""
        return None

    @abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """Open a read transaction for the block; all its queries see the same snapshot."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Session]:
        """Open a write transaction for the block: after it, all changes are durable, or none is made."""

    @property
    def unsynced(self) -> Database:
        """
        The same database over connections whose commits do not wait for the disk; itself if it has no such connections.

        A power cut may undo the last of these commits, but never a part of one; a crash of the process undoes none.
        """
        return self

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        """Run *work* in one transaction and return its result; repeated if another transaction interferes."""
        with self.write() as session:
            return work(session)

    @abstractmethod
    def schema_version(self) -> str | None:
        """Return the revision of the schema, or None if there is no schema yet."""

    @abstractmethod
    def integrity_problems(self) -> list[str]:
        """Return the storage problems that the database itself detects."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection; the next use opens the database again."""

    def check_process(self) -> None:
        """
        Raise DatabaseUnavailable in a child that was forked while the database was open.

        Its connections and locks belong to the parent. SQLite even keeps in memory which locks the parent holds, so a
        child would not take its own. After `close`, either process may use the database again.
        """
        pid = os.getpid()
        if self.opened_by not in {0, pid}:
            raise DatabaseUnavailable(
                f"the database {self.name} was opened by process {self.opened_by} and cannot be used in process {pid}, "
                "which was forked from it: close it before the fork, and open it in each process"
            )
        self.opened_by = pid


# --- workflows -------------------------------------------------------------------------------------------------

STATE_COLUMNS = (
    "adw_id",
    "repository",
    "issue_number",
    "title",
    "workflow",
    "state",
    "revision",
    "fence",
    "owner",
    "lease_until",
    "lease_boot",
    "taken_at",
    "home",
    "schema_version",
    "is_costing",
    "created_at",
    "updated_at",
    "body",
)


# --- events ----------------------------------------------------------------------------------------------------

EVENT_COLUMNS = (
    "event_id",
    "adw_id",
    "revision",
    "event_type",
    "created_at",
    "status",
    "execution_id",
    "parent_execution_id",
    "parent_event_id",
    "retry_sequence_id",
    "attempt_number",
    "iteration_index",
    "total_iterations",
    "node_id",
    "node_name",
    "node_type",
    "catalog_id",
    "duration",
    "result",
    "context",
    "data",
    "meta",
)

#: Storing an event twice changes nothing, because its key identifies it.
EVENT_INSERT = (
    f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in EVENT_COLUMNS)})"
    " ON CONFLICT (event_id) DO NOTHING"
)
#: Number of title characters stored for lists and search; forges allow 256.
TITLE_LENGTH = 300


# --- rows as adw's data types, and back ------------------------------------------------------------------------
#
# A database can store neither NUL nor lone surrogates, and an issue's title may contain both: they are replaced in the
# columns for lists. The document itself is JSON text, in which they are escaped or refused.


_JSON_COLUMNS = ("result", "context", "data", "meta")
_NUMBER_COLUMNS = frozenset({"revision", "attempt_number", "iteration_index", "total_iterations", "duration"})
_TEXT_COLUMNS = tuple(name for name in EVENT_COLUMNS if name not in _JSON_COLUMNS and name not in _NUMBER_COLUMNS)
_texts_of = itemgetter(*_TEXT_COLUMNS)
_said_of = itemgetter(
    *[name for name in _TEXT_COLUMNS if name not in {"adw_id", "event_id", "event_type", "created_at"}]
)
_json_of = itemgetter(*_JSON_COLUMNS)


def plain(text: str) -> str:
    """Return *text* without characters that some database cannot store."""
    if text.isascii() and "\x00" not in text:
        return text

    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def summary_params(summary: WorkflowSummary) -> dict[str, object]:
    """Return the list columns of *summary* as parameters."""
    return _list_params(summary, title=summary.title, workflow=summary.workflow, state=summary.state)


#: Occurs in the text of every document in which an attempt has a cost.
COSTING = b'"cost_usd"'


def document_params(document: WorkflowDocument, body: bytes) -> dict[str, object]:
    """Return the columns of *document* with the text *body*. Makes no summary first, as every step needs this."""
    issue, workflow = document.issue, document.workflow
    params = _list_params(
        document,
        title=issue.title if issue is not None else "",
        workflow=workflow.name if workflow is not None else "",
        state=document.current_state,
    )
    params["fence"], params["schema_version"] = document.fence, document.state_version
    params["is_costing"], params["body"] = int(COSTING in body), body.decode("utf-8")

    return params


def _list_params(
    line: WorkflowSummary | WorkflowDocument, *, title: str, workflow: str, state: str
) -> dict[str, object]:
    repository, title = comparable(line.repository), title[:TITLE_LENGTH]
    if not (texts := f"{repository}{title}{workflow}").isascii() or "\x00" in texts:
        repository, title, workflow = plain(repository), plain(title), plain(workflow)

    return {
        "adw_id": line.adw_id,
        "repository": repository,
        "issue_number": line.issue_number,
        "title": title,
        "workflow": workflow,
        "state": state,
        "revision": line.revision,
        "created_at": line.created_at,
        "updated_at": line.updated_at,
    }


def to_summary(row: Row) -> WorkflowSummary:
    """Return the list entry in a row that `db.listing.Catalogue` selected."""
    adw_id, repository, issue_number, title, workflow, state, revision, created_at, updated_at, owner = row

    return WorkflowSummary(
        adw_id=adw_id,
        repository=repository,
        issue_number=issue_number,
        title=title,
        workflow=workflow,
        state=state,
        revision=revision,
        created_at=created_at,
        updated_at=updated_at,
        owner=owner,
    )


def event_rows(events: Sequence[Event]) -> list[Params]:
    """Return stamped events as parameters of `EVENT_INSERT`; raise StateUnserialisable for values JSON cannot hold."""
    rows: list[Params] = []
    meta, text = None, ""  # the events of one step mostly share theirs
    for event in events:
        params = event_params(event, meta_text=text if event.meta is meta else "")
        meta, text = event.meta, params["meta"]
        rows += (params,)

    return rows


def event_params(event: Event, *, meta_text: str = "") -> dict[str, Any]:
    """Return a stamped event as parameters, using *meta_text* as its `meta` if given; raises as `event_rows` does."""
    params: dict[str, Any] = {**event.__dict__}  # its fields are the columns
    try:
        texts = "".join(filter(None, _texts_of(params)))  # one check for all texts, as every step stores events
    except TypeError:  # an outbox changed by hand may contain any type
        texts = "\x00"
    if not texts.isascii() or "\x00" in texts:
        params.update((name, plain(str(params[name]))) for name in _TEXT_COLUMNS if params[name])
    for name in _JSON_COLUMNS:
        value = params[name]
        if value is None:
            params[name] = "null"
            continue
        if meta_text and name == "meta":
            params[name] = meta_text
            continue
        try:
            params[name] = "{}" if value == {} else strict_json(value)
        except (ValueError, TypeError, RecursionError) as exc:
            raise StateUnserialisable(f"{name} of the event {event.event_type} is not JSON: {exc}") from exc

    return params


def event_texts(rows: Sequence[Params]) -> str:
    """Return everything in *rows* (from `event_params`) that may contain a secret, as one JSON array."""
    # Most texts occur in several rows. Keys and timestamps were just made by adw.
    texts = {text for row in rows for text in _said_of(row) if text}
    values = {text for row in rows for text in _json_of(row)}

    return f"[{', '.join((strict_json([*texts]), *values))}]"


def to_event(row: Row) -> Event:
    """Return the event in a row of `EVENT_COLUMNS`."""
    values = dict(zip(EVENT_COLUMNS, row, strict=True))
    for name in _JSON_COLUMNS:
        values[name] = json.loads(values[name])

    return Event(**values)


def to_lock(row: Row) -> IssueLock:
    """Return the lock in a row of repository, issue number, workflow id and time."""
    repository, issue_number, adw_id, acquired_at = row

    return IssueLock(repository=repository, issue_number=issue_number, adw_id=adw_id, acquired_at=acquired_at)


def lock_params(lock: IssueLock) -> dict[str, object]:
    """Return the columns of a lock as parameters."""
    return {name: getattr(lock, name) for name in ("repository", "issue_number", "adw_id", "acquired_at")}


def to_request(row: Row) -> Request:
    """Return the request in a row of the table requests, in column order."""
    request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome = row

    return Request(
        request_id=request_id,
        adw_id=adw_id,
        kind=kind,
        payload=json.loads(payload),
        asked_by=asked_by,
        created_at=created_at,
        handled_at=handled_at,
        outcome=outcome,
    )


def json_text(value: object, what: str) -> str:
    """Return *value* as JSON text; raise StateUnserialisable naming *what* if that is impossible."""
    try:
        return strict_json(value)
    except (ValueError, TypeError, RecursionError) as exc:
        raise StateUnserialisable(f"{what} is not JSON: {exc}") from exc
