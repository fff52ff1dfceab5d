"""
Every query, by name.

`:name` is a parameter. `{now}` (the lease clock) and `{row_lock}` are filled in by `Database.render`. No text of a
caller is ever put into a query.
"""

from __future__ import annotations

import json
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import comparable
from adws.adw_modules.interfaces import Clock, IssueLock, Request, WorkflowSummary

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


# One small session over the drivers' own connections.
#
# Queries are SQL texts with `:name` parameters, the same for both dialects; `Database.render` fills in the few parts
# that differ. `read()` sees one snapshot of the database, `write()` is one transaction, and neither lets a driver's
# error out.


#: One row, its values in the order of the query's columns.
Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, object]

_Result = TypeVar("_Result")
_NOTHING: Params = {}

#: How long a statement waits for a lock before the caller hears of it.
PATIENCE_SECONDS = 30.0


class Session(ABC):
    """One transaction; valid inside the block that gave it."""

    @abstractmethod
    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        """Return every row."""

    @abstractmethod
    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        """Return the first row, None when there is none."""

    @abstractmethod
    def run(self, sql: str, params: Params = _NOTHING) -> int:
        """Change rows and return how many."""

    @abstractmethod
    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        """Run the same statement once for each of *params*."""


class Database(ABC):
    """An open database. Threads may share it; a forked child gets connections of its own."""

    dialect: ClassVar[str]
    #: The moment that leases are measured by, as SQL.
    now_sql: ClassVar[str]
    #: What makes a SELECT keep others from changing its rows until the end of the transaction.
    row_lock_sql: ClassVar[str]
    #: What compares a text with a pattern, whatever the case of its letters.
    like_sql: ClassVar[str]

    def __init__(self, *, name: str, clock: Clock) -> None:
        self.name = name  #: where it is, without a password: for messages
        self.clock = clock
        #: Remove secrets from what people and programs said, as text and as JSON, before it is stored; set by the home.
        self.scrub_text: Callable[[str], str] = lambda text: text
        self.scrub_json: Callable[[str], str] = lambda text: text
        _OPEN.add(self)

    def render(self, sql: str) -> str:
        """Return *sql* with `{now}`, `{row_lock}` and `{like}` in the SQL of this dialect."""
        return (
            sql.replace("{now}", self.now_sql).replace("{row_lock}", self.row_lock_sql).replace("{like}", self.like_sql)
        )

    def clean(self, text: str) -> str:
        """Return *text*, which somebody said, without secrets."""
        return self.scrub_text(text) if text else text

    def clean_json(self, text: str) -> str:
        """Return *text*, which is JSON that somebody said, without secrets in its strings."""
        return self.scrub_json(text) if text != "{}" else text

    @abstractmethod
    def lease_clock(self) -> Params:
        """Return the parameters that `{now}` and `:boot` need."""

    def server_time(self) -> float | None:
        """Return the clock of the server in seconds since 1970, None when the database has no clock of its own."""
        return None

    @abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """Read inside the block; every query sees the same moment."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Session]:
        """Change inside the block: all of it is durable after the block, or nothing is done."""

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        """Return *work* done in one transaction; it is repeated when another transaction was in the way."""
        with self.write() as session:
            return work(session)

    @abstractmethod
    def schema_version(self) -> str | None:
        """Return the revision of the schema, None when there is none yet."""

    @abstractmethod
    def integrity_problems(self) -> list[str]:
        """Return what the database itself finds wrong with its storage."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection; the database opens again when it is used again."""

    def before_fork(self) -> None:  # noqa: B027 - not every database has something to do
        """Make ready for a fork of this process."""

    def after_fork_in_parent(self) -> None:  # noqa: B027 - not every database has something to do
        """Go on after a fork."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Drop the connections of the parent process without sending anything to the server."""


#: Every database of this process.
_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_OPEN):
        database.before_fork()


def _after_fork_in_parent() -> None:
    for database in list(_OPEN):
        database.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for database in list(_OPEN):
        database.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


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
    "created_at",
    "updated_at",
    "body",
)

_INSERT_STATE = f"INSERT INTO workflow_states ({', '.join(STATE_COLUMNS)})"

#: A row that nobody owns; 0 rows: the id is taken.
STATE_INSERT = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', :home, :schema_version, :created_at, :updated_at, :body) ON CONFLICT (adw_id) DO NOTHING"
)

#: A row with its first lease; 0 rows: the id is taken.
STATE_REGISTER = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, 0, 1,"
    " :owner, {now} + :ttl, :boot, :taken_at, :home, :schema_version, :created_at, :updated_at, '')"
    " ON CONFLICT (adw_id) DO NOTHING"
)

STATE_UNREGISTER = """
DELETE FROM workflow_states WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND revision = 0
"""

#: Writes a document over the revision it was made from, unless a later owner was seen. SQLite writes every index anew
#: whose columns are named in SET, changed or not: so this one leaves out what stays the same in a workflow's life, and
#: does nothing when one of those did change.
STATE_WRITE = """
UPDATE workflow_states
SET state = :state, revision = :revision, fence = :fence, schema_version = :schema_version,
    updated_at = :updated_at, body = :body
WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
  AND repository = :repository AND workflow = :workflow AND created_at = :created_at AND title = :title
  AND coalesce(issue_number, 0) = coalesce(:issue_number, 0)
"""

#: The same with every column, for the rare write that changes those too.
STATE_WRITE_ALL = """
UPDATE workflow_states
SET repository = :repository, issue_number = :issue_number, title = :title, workflow = :workflow, state = :state,
    revision = :revision, fence = :fence, schema_version = :schema_version, created_at = :created_at,
    updated_at = :updated_at, body = :body
WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
"""

STATE_FENCE_OUT = """
UPDATE workflow_states SET fence = :fence + 1 WHERE adw_id = :adw_id AND home = 'database' AND fence <= :fence
"""

#: Brings the copy of a file up; never the lease, never backwards, never over a document that lives here.
STATE_PROJECT = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', 'files', :schema_version, :created_at, :updated_at, :body)"
    """
ON CONFLICT (adw_id) DO UPDATE
SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
    workflow = excluded.workflow, state = excluded.state, revision = excluded.revision,
    schema_version = excluded.schema_version, created_at = excluded.created_at, updated_at = excluded.updated_at,
    body = excluded.body
WHERE workflow_states.home = 'files' AND workflow_states.revision < excluded.revision
"""
)

STATE_HEAD = "SELECT home, revision, fence FROM workflow_states WHERE adw_id = :adw_id"
STATE_BODY = "SELECT revision, body FROM workflow_states WHERE adw_id = :adw_id AND home = :home AND revision > 0"
STATE_EXISTS = "SELECT 1 FROM workflow_states WHERE adw_id = :adw_id AND home = :home AND revision > 0"
STATE_IDS = """
SELECT adw_id FROM workflow_states WHERE home = :home AND revision > 0 AND adw_id > :after ORDER BY adw_id LIMIT :limit
"""

# --- lists -----------------------------------------------------------------------------------------------------

#: The owner of a lease that is over does not work on it any more.
SUMMARY = """
SELECT adw_id, repository, issue_number, title, workflow, state, revision, created_at, updated_at,
       CASE WHEN lease_boot = :boot AND lease_until > {now} THEN owner ELSE '' END
FROM workflow_states
"""
#: A word of a search is found; `{like}` is spelled by the dialect. All but the last is answered by the index of the
#: newest alone, which has these columns for that: no document is touched for a workflow that is not found.
HAS_TEXT = "title {like} :{name} ESCAPE '!' OR repository {like} :{name} ESCAPE '!'"
HAS_ID = "adw_id {like} :{name} ESCAPE '!'"
HAS_ISSUE = "issue_number = :{name}"
NEWEST_FIRST = "ORDER BY created_at DESC, adw_id DESC"
AFTER_CURSOR = "(created_at, adw_id) < (:cursor_created_at, :cursor_adw_id)"

# --- leases ----------------------------------------------------------------------------------------------------

LEASE_READ = """
SELECT fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}, taken_at
FROM workflow_states WHERE adw_id = :adw_id
"""

#: `{ids}` are the names of parameters.
LEASES_READ = """
SELECT adw_id, fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}, taken_at
FROM workflow_states WHERE adw_id IN ({ids})
"""

LEASE_READ_TO_TAKE = LEASE_READ + " {row_lock}"

LEASE_TAKE = """
UPDATE workflow_states
SET owner = :owner, fence = fence + 1, lease_until = {now} + :ttl, lease_boot = :boot, taken_at = :taken_at
WHERE adw_id = :adw_id AND (owner = '' OR lease_boot <> :boot OR lease_until <= {now} OR fence = :dead_fence)
RETURNING fence
"""

LEASE_RENEW = """
UPDATE workflow_states SET lease_until = {now} + :ttl
WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND lease_boot = :boot AND lease_until > {now}
"""

LEASE_RELEASE = """
UPDATE workflow_states SET owner = '', lease_until = 0, lease_boot = '', taken_at = ''
WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence
"""

# --- issue locks -----------------------------------------------------------------------------------------------

LOCK_ACQUIRE = """
INSERT INTO adw_locks (repository, issue_number, adw_id, acquired_at)
VALUES (:repository, :issue_number, :adw_id, :acquired_at)
ON CONFLICT (repository, issue_number) DO NOTHING
"""
LOCKS_OF_NUMBER = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks
WHERE issue_number = :issue_number ORDER BY acquired_at, repository
"""
LOCK_RELEASE = """
DELETE FROM adw_locks WHERE repository = :repository AND issue_number = :issue_number AND adw_id = :adw_id
"""
#: The issue of a workflow that ended, however its repository is spelled.
LOCK_END = "DELETE FROM adw_locks WHERE issue_number = :issue_number AND adw_id = :adw_id"
LOCKS_OF_WORKFLOW_DELETE = "DELETE FROM adw_locks WHERE adw_id = :adw_id"
LOCKS_ALL = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks ORDER BY acquired_at, repository, issue_number
"""

#: Along the key.
LOCKS_FIRST = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks ORDER BY repository, issue_number LIMIT :limit
"""

# --- requests --------------------------------------------------------------------------------------------------

REQUEST_ASK = """
INSERT INTO requests (adw_id, kind, payload, asked_by, created_at)
VALUES (:adw_id, :kind, :payload, :asked_by, :created_at)
RETURNING request_id
"""
REQUESTS_OPEN = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE adw_id = :adw_id AND handled_at IS NULL ORDER BY request_id
"""
REQUEST_GET = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE request_id = :request_id
"""
REQUEST_HANDLED = """
UPDATE requests SET handled_at = :handled_at, outcome = :outcome WHERE request_id = :request_id AND handled_at IS NULL
"""

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

#: Storing an event twice changes nothing: its key says which one it is.
EVENT_INSERT = (
    f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in EVENT_COLUMNS)})"
    " ON CONFLICT (event_id) DO NOTHING"
)
EVENT_PLACE = "SELECT seq FROM events WHERE event_id = :event_id AND adw_id = :adw_id"
EVENTS_OF_WORKFLOW = (
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE adw_id = :adw_id AND seq > :after ORDER BY seq LIMIT :limit"
)
EVENTS_NEWEST = (
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM events"
    " WHERE adw_id = :adw_id AND seq < :before ORDER BY seq DESC LIMIT :limit"
)
EVENTS_OF_WORKFLOW_DELETE = "DELETE FROM events WHERE adw_id = :adw_id"

# --- checks ----------------------------------------------------------------------------------------------------

CHECK_ROWS = """
SELECT adw_id, home, revision, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}
FROM workflow_states ORDER BY adw_id
"""
CHECK_LOCKS = """
SELECT repository, issue_number, adw_id FROM adw_locks AS held
WHERE NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = held.adw_id) ORDER BY acquired_at
"""
CHECK_REQUESTS = """
SELECT request_id, adw_id FROM requests AS asked
WHERE handled_at IS NULL AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
ORDER BY request_id
"""

# --- making the contents again ---------------------------------------------------------------------------------

#: Puts a document in its row, whatever was there. Its lease is over, but its owner stays: the next one takes over.
STATE_REBUILD = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', :home, :schema_version, :created_at, :updated_at, :body)"
    """
ON CONFLICT (adw_id) DO UPDATE
SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
    workflow = excluded.workflow, state = excluded.state, revision = excluded.revision, fence = excluded.fence,
    lease_until = 0, lease_boot = '', home = excluded.home, schema_version = excluded.schema_version,
    created_at = excluded.created_at, updated_at = excluded.updated_at, body = excluded.body
"""
)
STATE_FORGET = "DELETE FROM workflow_states WHERE adw_id = :adw_id AND revision = 0"
SALVAGE_STATES = """
SELECT adw_id, home, revision, fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}
FROM workflow_states ORDER BY adw_id
"""
SALVAGE_EVENT_COUNTS = "SELECT adw_id, count(*) FROM events GROUP BY adw_id"
SALVAGE_REQUESTS = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE handled_at IS NULL ORDER BY request_id
"""
EVENTS_AFTER = f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > :after ORDER BY seq LIMIT :limit"
EVENTS_COUNT = "SELECT count(*) FROM events"
LOCKS_CLEAR = "DELETE FROM adw_locks"


#: Characters of a title that lists keep and search finds; forges allow 256.
TITLE_LENGTH = 300


# Rows of the database as adw's data types, and back.
#
# A database stores neither a NUL character nor half a surrogate pair, and both can stand in an issue's title: in the
# columns made for lists they are replaced. The document itself is JSON text, where they are escaped or refused.


_JSON_COLUMNS = ("result", "context", "data", "meta")
_NUMBER_COLUMNS = frozenset({"revision", "attempt_number", "iteration_index", "total_iterations", "duration"})
_TEXT_COLUMNS = tuple(name for name in EVENT_COLUMNS if name not in _JSON_COLUMNS and name not in _NUMBER_COLUMNS)
_texts_of = itemgetter(*_TEXT_COLUMNS)
#: Made once: json.dumps builds a new encoder for every call that does not use its defaults.
_encode = json.JSONEncoder(allow_nan=False).encode


def plain(text: str) -> str:
    """Return *text* as every database can store it."""
    if _is_plain(text):
        return text
    text = text.replace("\x00", "\ufffd")

    return text.encode("utf-8", "replace").decode("utf-8")


def _is_plain(text: str) -> bool:
    return text.isascii() and "\x00" not in text


def _are_plain(texts: Iterable[str | None]) -> bool:
    try:
        return _is_plain("".join(filter(None, texts)))
    except TypeError:  # in an outbox that was changed by hand anything can stand
        return False


def summary_params(summary: WorkflowSummary) -> dict[str, object]:
    """Return the columns of a list as parameters."""
    return _list_params(summary, title=summary.title, workflow=summary.workflow, state=summary.state)


def document_params(document: WorkflowDocument) -> dict[str, object]:
    """Return the columns of a list that *document* has, without the detour of a summary: each step needs them."""
    title, workflow = document.issue_title, document.workflow_name

    return _list_params(document, title=title, workflow=workflow, state=document.current_state)


def _list_params(
    line: WorkflowSummary | WorkflowDocument, *, title: str, workflow: str, state: str
) -> dict[str, object]:
    return {
        "adw_id": line.adw_id,
        "repository": plain(comparable(line.repository)),
        "issue_number": line.issue_number,
        "title": plain(title[:TITLE_LENGTH]),
        "workflow": plain(workflow),
        "state": state,
        "revision": line.revision,
        "created_at": line.created_at,
        "updated_at": line.updated_at,
    }


def to_summary(row: Row) -> WorkflowSummary:
    """Return the line of a list in a row of `connection.SUMMARY`."""
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


def event_params(event: Event) -> dict[str, object]:
    """Return a stamped event as parameters; raise StateUnserialisable when it holds what JSON cannot."""
    params: dict[str, object] = dict(event.__dict__)  # its fields are the columns
    if not _are_plain(_texts_of(params)):
        params.update((name, plain(str(params[name]))) for name in _TEXT_COLUMNS if params[name])
    for name in _JSON_COLUMNS:
        value = params[name]
        if value is None:
            params[name] = "null"
        elif value == {}:
            params[name] = "{}"
        else:
            params[name] = json_text(value, f"{name} of the event {event.event_type}")

    return params


def to_event(row: Row) -> Event:
    """Return the event in a row of `connection.EVENTS_OF_WORKFLOW`."""
    values = dict(zip(EVENT_COLUMNS, row, strict=True))
    for name in _JSON_COLUMNS:
        values[name] = json.loads(values[name])

    return Event(**values)


def to_lock(row: Row) -> IssueLock:
    """Return the lock in a row of `LOCKS_ALL`."""
    repository, issue_number, adw_id, acquired_at = row

    return IssueLock(repository=repository, issue_number=issue_number, adw_id=adw_id, acquired_at=acquired_at)


def lock_params(lock: IssueLock) -> dict[str, object]:
    """Return the columns of a lock as parameters."""
    return {name: getattr(lock, name) for name in ("repository", "issue_number", "adw_id", "acquired_at")}


def to_request(row: Row) -> Request:
    """Return the request in a row of `connection.REQUESTS_OPEN`."""
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
    """Return *value* as JSON text; raise StateUnserialisable, naming *what*, when it has no such form."""
    try:
        return _encode(value)
    except (ValueError, TypeError) as exc:
        raise StateUnserialisable(f"{what} is not JSON: {exc}") from exc


# Which schema this adw knows.
#
# Imports nothing: opening a database compares one text with `HEAD`, and only a difference loads SQLAlchemy and Alembic.
# A test holds this table against the migration scripts.


#: Every revision there ever was, oldest first.
KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014")
#: The revision this adw works with.
HEAD = KNOWN[-1]

#: Where Alembic keeps the revision of a database.
READ_VERSION = "SELECT version_num FROM alembic_version"
