"""
Seeing whether anything changed, for pages that stay open: one look for everybody who watches.

A look is cheap while nothing is written: SQLite counts commits (`PRAGMA data_version`), PostgreSQL numbers its writers
(`pg_current_snapshot`). Only after a write the topics are looked at that somebody watches, each along an index. A mark
of a topic is a text that is another one when something of it changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from adws.adw_modules.db.queue_watch import SqliteWatch
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase

#: The topic of everything that the home has.
HOME = "home"
#: What the topic of a workflow begins with; its id follows.
WORKFLOW = "workflow:"

_WRITERS = "SELECT CAST(pg_current_snapshot() AS text)"
# Each part is a walk to the end of an index, or over rows of which there are as many as workers.
_HOME_MARK = """
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
_WORKFLOW_MARK = """
SELECT (SELECT revision FROM workflow_states WHERE adw_id = :adw_id),
       (SELECT MAX(seq) FROM events WHERE adw_id = :adw_id),
       (SELECT MAX(run_id) FROM runs WHERE adw_id = :adw_id),
       (SELECT MAX(updated_at) FROM runs WHERE adw_id = :adw_id),
       (SELECT COUNT(*) FROM requests WHERE adw_id = :adw_id AND handled_at IS NULL),
       (SELECT owner FROM workflow_states WHERE adw_id = :adw_id)
"""


class DatabaseChanges:
    """Marks of topics, read from the database. One thread uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watch = SqliteWatch(database) if isinstance(database, SqliteDatabase) else None
        self._writers = ""

    def has_changed(self) -> bool:
        """Say whether anything may have been written since the last look; the first look says yes."""
        if self._watch is not None:
            return self._watch.has_changed()
        with self._database.read() as session:
            row = session.one(_WRITERS)
        before, self._writers = self._writers, str(row[0]) if row else ""

        return self._writers != before

    def marks(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the mark of each of *topics*."""
        with self._database.read() as session:
            return {topic: _mark(session, topic) for topic in topics}

    def close(self) -> None:
        """Close what the looks keep open."""
        if self._watch is not None:
            self._watch.close()


def _mark(session: Session, topic: str) -> str:
    if topic == HOME:
        row: Row | None = session.one(_HOME_MARK)
    else:
        row = session.one(_WORKFLOW_MARK, {"adw_id": topic.removeprefix(WORKFLOW)})

    return hashlib.sha256(repr(row).encode()).hexdigest()[:16]
