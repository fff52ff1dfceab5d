"""
The sessions of agents in the database: one row for each attempt that an agent works on.

A session is opened when the agent is recorded and ended with its attempt. What ends, takes back or stops the run ends
or marks its sessions in the same transaction (`session_following.follow`).
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows, session_statements
from adws.adw_modules.db.session import Database, Row
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import LIVE_SESSIONS, AgentSession, SessionStatus


class DatabaseSessions:
    """`AgentSessions` in the table sessions."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def open(self, session: AgentSession) -> None:
        """Store a session that begins; again for the same id changes nothing but what the agent calls it."""
        params = {
            "session_id": rows.plain(session.session_id),
            "adw_id": check_adw_id(session.adw_id),
            "run_id": session.run_id,
            "phase": rows.plain(session.phase),
            "attempt_number": session.attempt_number,
            "agent": rows.plain(session.agent),
            "host": rows.plain(session.host),
            "status": SessionStatus.RUNNING.value,
            "executor_session_id": rows.plain(session.executor_session_id),
            "reason": rows.plain(session.reason),
            "started_at": session.started_at or self._moment(),
        }
        self._database.transact(lambda work: work.run(session_statements.SESSION_OPEN, params))

    def close(self, session_id: str, status: SessionStatus, *, reason: str = "") -> bool:
        """End it; False when it had ended already. Raises UsageError for a status that is no end."""
        if status in LIVE_SESSIONS:
            raise UsageError(f"a session does not end as {status.value}")
        params = {
            "session_id": rows.plain(session_id),
            "status": status.value,
            "reason": rows.plain(reason),
            "moment": self._moment(),
        }

        return self._database.transact(lambda work: work.run(session_statements.SESSION_CLOSE, params)) == 1

    def of_workflow(self, adw_id: str) -> tuple[AgentSession, ...]:
        """Return those of a workflow, the oldest first."""
        return self._all(session_statements.SESSIONS_OF_WORKFLOW, adw_id=check_adw_id(adw_id))

    def live(self) -> tuple[AgentSession, ...]:
        """Return every one that has not ended, the oldest first."""
        return self._all(session_statements.SESSIONS_LIVE)

    def _all(self, sql: str, **params: object) -> tuple[AgentSession, ...]:
        with self._database.read() as work:
            return tuple(map(_to_session, work.all(sql, params)))

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


def _to_session(row: Row) -> AgentSession:
    return AgentSession(
        session_id=row[0],
        adw_id=row[1],
        run_id=row[2],
        phase=row[3],
        attempt_number=row[4],
        agent=row[5],
        host=row[6],
        status=SessionStatus(row[7]),
        executor_session_id=row[8],
        reason=row[9],
        started_at=row[10],
        ended_at=row[11],
    )
