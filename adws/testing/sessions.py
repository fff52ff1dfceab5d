"""
The sessions of agents in memory.

They follow the runs of the queue that they were made with, as rows follow rows in the database.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.db.session_following import status_with
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import LIVE_SESSIONS, AgentSession, SessionStatus
from adws.adw_modules.runs import FINAL_RUNS, Run
from adws.testing.run_queue import MemoryRunQueue


class MemorySessions:
    """`AgentSessions` in memory."""

    def __init__(self, clock: Clock, runs: MemoryRunQueue) -> None:
        self._clock = clock
        self._runs = runs
        self._guard = threading.Lock()
        self._sessions: dict[str, AgentSession] = {}
        runs.followers.append(self._follow)

    def open(self, session: AgentSession) -> None:
        """Store a session that begins; again for the same id changes nothing but what the agent calls it."""
        check_adw_id(session.adw_id)
        run_id = self._run_of(session.adw_id) if session.run_id is None else session.run_id
        with self._guard:
            known = self._sessions.get(session.session_id)
            if known is not None:
                called = session.executor_session_id
                self._sessions[session.session_id] = replace(known, executor_session_id=called)
                return
            self._sessions[session.session_id] = replace(
                session,
                run_id=run_id,
                status=SessionStatus.RUNNING,
                started_at=session.started_at or self._moment(),
                ended_at=None,
            )

    def close(self, session_id: str, status: SessionStatus, *, reason: str = "") -> bool:
        """End it; False when it had ended already. Raises UsageError for a status that is no end."""
        if status in LIVE_SESSIONS:
            raise UsageError(f"a session does not end as {status.value}")
        with self._guard:
            known = self._sessions.get(session_id)
            if known is None or known.ended_at is not None:
                return False
            self._sessions[session_id] = replace(known, status=status, reason=reason, ended_at=self._moment())

        return True

    def of_workflow(self, adw_id: str) -> tuple[AgentSession, ...]:
        """Return those of a workflow, the oldest first."""
        check_adw_id(adw_id)

        return tuple(session for session in self._in_order() if session.adw_id == adw_id)

    def live(self) -> tuple[AgentSession, ...]:
        """Return every one that has not ended, the oldest first."""
        return tuple(session for session in self._in_order() if session.ended_at is None)

    def _in_order(self) -> list[AgentSession]:
        with self._guard:
            return sorted(self._sessions.values(), key=lambda session: (session.started_at, session.session_id))

    def _run_of(self, adw_id: str) -> int | None:
        unfinished = (run for run in self._runs.of_workflow(adw_id) if run.state not in FINAL_RUNS and not run.slot)

        return next((run.run_id for run in unfinished), None)

    def _follow(self, run: Run) -> None:
        status = status_with(run.state)
        if status is None:
            return
        ended_at = None if status is SessionStatus.STOPPING else self._moment()
        with self._guard:
            for key, session in self._sessions.items():
                if session.run_id == run.run_id and session.ended_at is None:
                    self._sessions[key] = replace(session, status=status, reason=run.reason, ended_at=ended_at)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())
