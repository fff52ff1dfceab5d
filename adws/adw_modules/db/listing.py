"""
Finding workflows without reading their documents, except for results that a page requests.

A page starts where the previous page ended (the cursor holds the position of its last row), so reading a page along an
index costs the same however many workflows exist and however old the page is.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from adws.adw_modules import views
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.db.sqlite import CommitWatcher, SqliteDatabase
from adws.adw_modules.errors import DatabaseUnavailable, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import check_adw_id, in_home
from adws.adw_modules.interfaces import Page, PageQuery, WorkflowResult, WorkflowSummary

# --- search words: what people type, and what it matches -------------------------------------------------------
#
# Pure. Every word must match in any case: in the title or repository, at the start of the id, or as the issue number.


#: Maximum number of search words, and maximum characters of each.
MOST_WORDS, LONGEST_WORD = 8, 60
#: Maximum digits of an issue number in a search.
_MOST_DIGITS = 15


def words_in(text: str) -> tuple[str, ...]:
    """Return the distinct words to search for, within the limits."""
    return tuple(dict.fromkeys(word[:LONGEST_WORD] for word in text.split()))[:MOST_WORDS]


def issue_in(word: str) -> int | None:
    """Return the issue number in *word*, with or without #, or None if *word* is not a number."""
    digits = word.removeprefix("#")

    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def spellings(word: str) -> tuple[str, ...]:
    """Return case variants of *word*, for databases that ignore case only in ASCII letters."""
    if word.isascii():
        return (word,)

    return tuple(dict.fromkeys((word, word.lower(), word.upper(), word.capitalize())))


#: Maximum number of rows on a page.
MAX_LIMIT = 1000
#: Number of documents read per query.
_DOCUMENTS_AT_ONCE = 100


class Catalogue:
    """Lists of a home's workflows."""

    def __init__(self, database: Database, *, repository: str = "") -> None:
        """Search *database*; an empty repository in a row means *repository* in this home."""
        self._database = database
        self._repository = repository

    def page(self, query: PageQuery) -> Page:
        """Return one page, at a cost that does not grow with the number of workflows."""
        if not 1 <= query.limit <= MAX_LIMIT:
            raise UsageError(f"a page has 1 to {MAX_LIMIT} rows, not {query.limit}")
        sql, params = self.query_of(query)
        with self._database.read() as session:
            rows = session.all(sql, params)
            shown = tuple(connection.to_summary(row) for row in rows[: query.limit])
            if query.with_results:
                results = _results(session, [row.adw_id for row in shown])
                shown = tuple(dataclasses.replace(row, result=results.get(row.adw_id)) for row in shown)

        return Page(rows=shown, next_cursor=to_cursor(shown[-1]) if len(rows) > query.limit else None)

    def find_by_issue(self, issue_number: int, repository: str | None = None) -> tuple[WorkflowSummary, ...]:
        """Return the workflows of an issue, newest first."""
        sql, params = self._select(PageQuery(issue_number=issue_number, repository=repository))
        with self._database.read() as session:
            rows: list[Row] = session.all(sql, params)

        return tuple(connection.to_summary(row) for row in rows)

    def query_of(self, query: PageQuery) -> tuple[str, dict[str, object]]:
        """Return the SQL of a page and its parameters; it fetches one extra row to detect a next page."""
        sql, params = self._select(query)

        return f"{sql} LIMIT :limit", {**params, "limit": query.limit + 1}

    def _select(self, query: PageQuery) -> tuple[str, dict[str, object]]:
        params: dict[str, object] = dict(self._database.lease_clock())
        conditions = []
        words = words_in(query.search)
        # Hide these columns from the planner: with words, their indexes would be worse than the one for words.
        hidden = " || ''" if words else ""
        if query.repository is not None:
            # Rows that name no repository belong to the home's own.
            key, own = in_home(query.repository, self._repository), in_home("", self._repository)
            is_in = "IN (:repository, '')" if key and key == own else "= :repository"
            conditions.append(f"repository{hidden} {is_in}")
            params["repository"] = connection.plain(key)
        for name in ("state", "workflow"):
            wanted = getattr(query, name)
            if wanted is not None:
                conditions.append(f"{name}{hidden} = :{name}")
                params[name] = connection.plain(wanted)
        if query.issue_number is not None:
            conditions.append("issue_number = :issue_number")
            params["issue_number"] = query.issue_number
        conditions += [_has_word(connection.plain(word), number, params) for number, word in enumerate(words)]
        if query.cursor is not None:
            conditions.append("(created_at, adw_id) < (:cursor_created_at, :cursor_adw_id)")
            params["cursor_created_at"], params["cursor_adw_id"] = from_cursor(query.cursor)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        # The owner of an expired lease no longer works on the workflow.
        sql = f"""
            SELECT adw_id, repository, issue_number, title, workflow, state, revision, created_at, updated_at,
                   CASE WHEN lease_boot = :boot AND lease_until > {{now}} THEN owner ELSE '' END
            FROM workflow_states {where} ORDER BY created_at DESC, adw_id DESC
        """

        return self._database.render(sql), params


def _results(session: Session, adw_ids: Sequence[str]) -> dict[str, WorkflowResult]:
    """Return the results of workflows; workflows without a readable document are left out."""
    from adws.adw_modules import document  # noqa: PLC0415 - needs pydantic, which other lists do not load

    results = {}
    for start in range(0, len(adw_ids), _DOCUMENTS_AT_ONCE):
        ids = {f"id_{place}": adw_id for place, adw_id in enumerate(adw_ids[start : start + _DOCUMENTS_AT_ONCE])}
        names = ", ".join(f":{name}" for name in ids)
        for adw_id, body in session.all(
            f"SELECT adw_id, body FROM workflow_states WHERE adw_id IN ({names}) AND revision > 0", ids
        ):
            if (known := document.readable(body)) is not None:
                results[adw_id] = views.result(known)

    return results


def _has_word(word: str, number: int, params: dict[str, object]) -> str:
    """
    Return the condition that a search word matches, and add its parameters to *params*.

    The index `newest` has all these columns, so it answers the condition without touching the documents of workflows
    that do not match.
    """
    found = [f"adw_id {{like}} :id_{number} ESCAPE '!'"]
    params[f"id_{number}"] = f"{_escaped(word)}%"
    for place, spelling in enumerate(spellings(word)):
        name = f"word_{number}_{place}"
        found.append(f"title {{like}} :{name} ESCAPE '!' OR repository {{like}} :{name} ESCAPE '!'")
        params[name] = f"%{_escaped(spelling)}%"
    issue = issue_in(word)
    if issue is not None:
        found.append(f"issue_number = :issue_{number}")
        params[f"issue_{number}"] = issue

    return f"({' OR '.join(found)})"


def _escaped(text: str) -> str:
    """Return *text* as a LIKE pattern that matches only itself."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def to_cursor(row: WorkflowSummary) -> str:
    """Return the position after *row* as an opaque text."""
    return base64.urlsafe_b64encode(json.dumps([row.created_at, row.adw_id]).encode()).decode().rstrip("=")


def from_cursor(cursor: str) -> tuple[str, str]:
    """Return the position in *cursor*; raise UsageError if it is not one of ours."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        created_at, adw_id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        created_at = adw_id = None
    if not isinstance(created_at, str) or not isinstance(adw_id, str) or "\x00" in created_at + adw_id:
        raise UsageError(f"{cursor[:60]!r} is not a cursor: use the next_cursor of the page before, unchanged")

    return created_at, adw_id


# --- detecting changes, for pages that stay open ---------------------------------------------------------------
#
# One check serves all watchers, and is cheap while nothing is written: SQLite counts commits (`PRAGMA data_version`),
# PostgreSQL numbers its writers (`pg_current_snapshot`). Only after a write are the watched topics read, each along an
# index. The mark of a topic is a text that changes whenever the topic does.


#: The topic of everything in the home.
HOME = "home"
#: Prefix of a workflow's topic, followed by the workflow id.
WORKFLOW = "workflow:"


class ChangeFeed:
    """Marks of topics, read from the database. For use by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watch = CommitWatcher(database) if isinstance(database, SqliteDatabase) else None
        self._writers = ""

    def has_changed(self) -> bool:
        """Return whether anything may have been written since the last check; True on the first check."""
        if self._watch is not None:
            return self._watch.has_changed()
        with self._database.read() as session:
            row = session.one("SELECT CAST(pg_current_snapshot() AS text)")
        before, self._writers = self._writers, str(row[0]) if row else ""

        return self._writers != before

    def marks(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the mark of each of *topics*."""
        with self._database.read() as session:
            return {topic: _mark(session, topic) for topic in topics}

    def close(self) -> None:
        """Close the connection that checks keep open."""
        if self._watch is not None:
            self._watch.close()


def _mark(session: Session, topic: str) -> str:
    if topic == HOME:
        # Each part reads the end of an index, or a table with about as many rows as there are workers.
        row: Row | None = session.one(
            """
            SELECT (SELECT MAX(seq) FROM events),
                   (SELECT MAX(run_id) FROM runs),
                   (SELECT COUNT(*) FROM runs WHERE state NOT IN ('pending', 'completed')
                                                AND state IN ('claimed', 'running', 'stopping')),
                   (SELECT MAX(updated_at) FROM runs WHERE state NOT IN ('pending', 'completed')
                                                       AND state IN ('claimed', 'running', 'stopping')),
                   (SELECT COUNT(*) FROM runners),
                   (SELECT MAX(heartbeat_at) FROM runners),
                   (SELECT COUNT(*) FROM adw_locks),
                   (SELECT MAX(changed_at) FROM breakers),
                   (SELECT MAX(seq) FROM deliveries)
            """
        )
    else:
        row = session.one(
            """
            SELECT (SELECT revision FROM workflow_states WHERE adw_id = :adw_id),
                   (SELECT MAX(seq) FROM events WHERE adw_id = :adw_id),
                   (SELECT MAX(run_id) FROM runs WHERE adw_id = :adw_id),
                   (SELECT MAX(updated_at) FROM runs WHERE adw_id = :adw_id),
                   (SELECT COUNT(*) FROM requests WHERE adw_id = :adw_id AND handled_at IS NULL),
                   (SELECT owner FROM workflow_states WHERE adw_id = :adw_id)
            """,
            {"adw_id": topic.removeprefix(WORKFLOW)},
        )

    return hashlib.sha256(repr(row).encode()).hexdigest()[:16]


# --- the events of a workflow ----------------------------------------------------------------------------------
#
# Events of one workflow are numbered under its row lock, so their numbers increase in the order they happened.


#: Greater than any event number.
_BEHIND_ALL = 2**62


class EventLog:
    """The events of workflows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_workflow(self, adw_id: str, *, after: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events of a workflow in the order they happened; with *after*, those after that event."""
        with self._database.read() as session:
            place = _number_of_event(session, adw_id, after, limit=limit, otherwise=0)
            rows = session.all(
                f"SELECT {', '.join(connection.EVENT_COLUMNS)} FROM events"
                " WHERE adw_id = :adw_id AND seq > :after ORDER BY seq LIMIT :limit",
                {"adw_id": adw_id, "after": place, "limit": limit},
            )

        return tuple(connection.to_event(row) for row in rows)

    def newest(self, adw_id: str, *, before: str | None = None, limit: int = 50) -> tuple[Event, ...]:
        """Return the events of a workflow, newest first; with *before*, those before that event."""
        with self._database.read() as session:
            place = _number_of_event(session, adw_id, before, limit=limit, otherwise=_BEHIND_ALL)
            rows = session.all(
                f"SELECT {', '.join(connection.EVENT_COLUMNS)} FROM events"
                " WHERE adw_id = :adw_id AND seq < :before ORDER BY seq DESC LIMIT :limit",
                {"adw_id": adw_id, "before": place, "limit": limit},
            )

        return tuple(connection.to_event(row) for row in rows)


def _number_of_event(session: Session, adw_id: str, event_id: str | None, *, limit: int, otherwise: int) -> int:
    """Return the number of a workflow's event; raise UsageError if the workflow has no event with that id."""
    check_adw_id(adw_id)
    if limit < 1:
        raise UsageError(f"a limit of {limit} events shows nothing: use at least 1")
    if event_id is None:
        return otherwise
    row = session.one(
        "SELECT seq FROM events WHERE event_id = :event_id AND adw_id = :adw_id",
        {"event_id": connection.plain(event_id), "adw_id": adw_id},
    )
    if row is None:
        raise UsageError(f"workflow {adw_id} has no event {event_id}")

    return int(row[0])


# --- reading events in order, each once ------------------------------------------------------------------------
#
# PostgreSQL assigns numbers before the commit, so a lower number may appear after a higher one was seen: a reader must
# not store a position past an event that has yet to appear. The position is stored in the database under the reader's
# name, and moves in the same transaction as the reader's results. It is an event's number and id: if events were
# rebuilt from documents the numbers differ, and the id shows that.


class PagePosition(NamedTuple):
    """The last event a reader has processed."""

    seq: int
    event_id: str


def last(database: Database) -> int | None:
    """Return the number of the last event once no earlier one can still appear, or None: ask again later."""

    def work(session: Session) -> int:
        if database.dialect == "postgresql":
            # The holder of this lock has waited for all writers of events. The wait is short: later writers queue up.
            session.run("SET LOCAL lock_timeout = '2s'")
            session.run("LOCK TABLE events IN SHARE MODE")

        return last_in(session)

    try:
        return database.transact(work)
    except DatabaseUnavailable:
        # Another process has been writing events for a long time, and a later read finds them. If the database is gone,
        # the next query says so.
        return None


def last_in(session: Session) -> int:
    """Return the number of the last event, 0 if there are no events."""
    row = session.one("SELECT coalesce(max(seq), 0) FROM events")

    return int(row[0]) if row else 0


def event_at(session: Session, seq: int) -> str:
    """Return the id of the event numbered *seq*, or "" if it does not exist."""
    row = session.one("SELECT event_id FROM events WHERE seq = :seq", {"seq": seq})

    return str(row[0]) if row else ""


def place_of(session: Session, name: str, *, row_lock: str = "") -> PagePosition | None:
    """Return the position of the reader *name*, or None if it never read."""
    row = session.one(f"SELECT seq, event_id FROM notification_cursor WHERE name = :name {row_lock}", {"name": name})

    return PagePosition(int(row[0]), str(row[1])) if row and row[0] >= 0 else None


def take_place(database: Database, session: Session, name: str) -> PagePosition | None:
    """Return the position of the reader *name*, and lock it until the end of the transaction."""
    session.run(
        "INSERT INTO notification_cursor (name, seq, event_id) VALUES (:name, -1, '') ON CONFLICT (name) DO NOTHING",
        {"name": name},
    )

    return place_of(session, name, row_lock=database.row_lock_sql)


def move(session: Session, name: str, seq: int) -> None:
    """Store that the reader *name* has read everything up to number *seq*."""
    session.run(
        "UPDATE notification_cursor SET seq = :seq, event_id = :event_id WHERE name = :name",
        {"name": name, "seq": seq, "event_id": event_at(session, seq)},
    )
