"""
Conversations with agents: which one an attempt resumes, and when a new one begins.

The rules are pure and use the document: each attempt's record has its agent and the id of the conversation. One is
resumed within its round unless something spoilt it; a new round begins with a new one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database
from adws.adw_modules.errors import AdwError, FailedRun, UsageError
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import LIVE_SESSIONS, AgentSession, Clock, SessionStatus

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.app import Home


#: The failure name for a conversation that the agent does not know (any more).
UNKNOWN_SESSION = "unknown_session"
#: Failure classes after which a conversation is not resumed: it is full, refused, or its history is broken.
SPOILING = frozenset({"context", "refused", "invalid", "crashed"})


def session_for(record: PhaseRecord, *, agent: str) -> str:
    """Return the conversation that the newest attempt of *record*, which begins now, resumes; "" for a new one."""
    before = newest_before(record)
    # A successful attempt is followed by another in its round only if a person rejected it, or it was planned again.
    if before is None or before.round != record.round or before.status == "running":
        return ""
    facts = before.agent or {}
    session_id = facts.get("session_id")
    if facts.get("name") != agent or not isinstance(session_id, str):
        return ""
    error = before.error or {}
    metadata = error.get("metadata")
    subtype = metadata.get("subtype") if isinstance(metadata, dict) else None
    if error.get("klass") in SPOILING or subtype == UNKNOWN_SESSION:
        return ""

    return session_id


def newest_before(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt before the one that begins now, or None for the first."""
    return record.attempts[-2] if len(record.attempts) > 1 else None


def had_session(record: PhaseRecord) -> bool:
    """Say whether the previous attempt of the round had a conversation, so that a new one needs a handover."""
    before = newest_before(record)

    return before is not None and before.round == record.round and bool((before.agent or {}).get("session_id"))


def base_of(record: PhaseRecord, *, default: str) -> str:
    """
    Return the commit that the work of this round is compared with: that of its first attempt.

    So the commits of an interrupted attempt count for the attempt that resumes its work.
    """
    bases = ((attempt.agent or {}).get("base") for attempt in record.attempts if attempt.round == record.round)

    return next((base for base in bases if isinstance(base, str) and base), default)


def is_unknown_session(failure: FailedRun) -> bool:
    """Say whether an agent failed because it does not know the conversation it was to resume."""
    return failure.subtype == UNKNOWN_SESSION or agents_base.is_unknown_session(failure.text)


# Recording which agents are at work: a session is opened with the facts about an agent and ended with its attempt.
#
# Errors here are logged and never stop the work: the end of the run ends its sessions in any case.


logger = logging.getLogger("adw.sessions")

#: How a session ends with its attempt; any other status is a failure.
_ENDS = {"succeeded": SessionStatus.FINISHED, "suspended": SessionStatus.STOPPED}


class AgentSessionRecorder:
    """Opens and ends the sessions of agents."""

    def __init__(self, home: Home) -> None:
        """The store is opened when the first agent begins: most homes that only run commands never need it."""
        self._home = home

    def begin(self, document: WorkflowDocument, phase: str, attempt: AttemptRecord) -> None:
        """Open the session of an attempt, or update the agent's id for it; do nothing until the agent is named."""
        facts = attempt.agent or {}
        if not facts.get("name"):
            return  # only facts about the repository are recorded before the agent starts
        session = AgentSession(
            session_id=session_id(document.adw_id, phase, attempt.number),
            adw_id=document.adw_id,
            run_id=None,  # the one that the workflow has
            phase=phase,
            attempt_number=attempt.number,
            agent=str(facts.get("name") or ""),
            host=self._home.host,
            status=SessionStatus.RUNNING,
            executor_session_id=str(facts.get("session_id") or ""),
        )
        try:
            self._home.sessions.open(session)
        except AdwError as exc:
            self._complain(session.session_id, exc)

    def end(self, document: WorkflowDocument, phase: str, attempt: AttemptRecord) -> None:
        """End the session of a finished attempt."""
        name = session_id(document.adw_id, phase, attempt.number)
        why = (attempt.error or {}).get("message")
        status = _ENDS.get(attempt.status, SessionStatus.FAILED)
        try:
            self._home.sessions.close(name, status, reason=why if isinstance(why, str) else "")
        except AdwError as exc:
            self._complain(name, exc)

    def _complain(self, name: str, cause: AdwError) -> None:
        said = {"action": "session_not_written", "session": name}
        logger.warning("The session of an agent could not be written down", extra=said, exc_info=cause)


def session_id(adw_id: str, phase: str, attempt: int) -> str:
    """Return the id of the session of an attempt."""
    return f"{adw_id}.{phase}.{attempt}"


# Agent sessions in the database: one row for each attempt that an agent works on.
#
# A session is opened when the agent is recorded and ended with its attempt. Whatever ends, reclaims or stops the run
# ends or marks its sessions in the same transaction (`store.follow`).


_COLUMNS = (
    *("session_id", "adw_id", "run_id", "phase", "attempt_number", "agent", "host", "status"),
    *("executor_session_id", "reason", "started_at", "ended_at"),
)


class AgentSessions:
    """The agent sessions in the table `sessions`."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def open(self, session: AgentSession) -> None:
        """Store a new session; for a known id, update only the agent's id for it."""
        known = {name: getattr(session, name) for name in _COLUMNS}
        params = {name: connection.plain(fact) if isinstance(fact, str) else fact for name, fact in known.items()}
        params |= {"adw_id": check_adw_id(session.adw_id), "status": SessionStatus.RUNNING.value}
        params["started_at"] = session.started_at or self._moment()
        # Without a run of its own it belongs to the workflow's current run.
        sql = """
            INSERT INTO sessions (session_id, adw_id, run_id, phase, attempt_number, agent, host, status,
                executor_session_id, reason, started_at, ended_at)
            VALUES (:session_id, :adw_id,
                coalesce(CAST(:run_id AS BIGINT),
                    (SELECT run_id FROM runs WHERE runs.adw_id = :adw_id AND slot = '' AND finished_at IS NULL)),
                :phase, :attempt_number, :agent, :host, :status, :executor_session_id, :reason, :started_at, NULL)
            ON CONFLICT (session_id) DO UPDATE SET executor_session_id = excluded.executor_session_id
        """
        self._database.transact(lambda work: work.run(sql, params))

    def close(self, session_id: str, status: SessionStatus, *, reason: str = "") -> bool:
        """End a session; False if it had ended already. Raises UsageError for a status that is not final."""
        if status in LIVE_SESSIONS:
            raise UsageError(f"a session does not end as {status.value}")
        params = {"session_id": connection.plain(session_id), "status": status.value, "moment": self._moment()}
        params["reason"] = connection.plain(reason)
        sql = """
            UPDATE sessions SET status = :status, reason = :reason, ended_at = :moment
            WHERE session_id = :session_id AND ended_at IS NULL
        """

        return self._database.transact(lambda work: work.run(sql, params)) == 1

    def of_workflow(self, adw_id: str) -> tuple[AgentSession, ...]:
        """Return the sessions of a workflow, the oldest first."""
        return self._all("adw_id = :adw_id", adw_id=check_adw_id(adw_id))

    def live(self) -> tuple[AgentSession, ...]:
        """Return every session that has not ended, the oldest first."""
        return self._all("ended_at IS NULL")

    def _all(self, condition: str, **params: object) -> tuple[AgentSession, ...]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM sessions WHERE {condition} ORDER BY started_at, session_id"
        with self._database.read() as work:
            rows = [dict(zip(_COLUMNS, row, strict=True)) for row in work.all(sql, params)]

        return tuple(AgentSession(**{**row, "status": SessionStatus(row["status"])}) for row in rows)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())
