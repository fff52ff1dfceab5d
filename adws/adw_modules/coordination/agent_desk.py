"""
Writing down whose agents are at work: a session is opened with the facts about an agent, and ended with its attempt.

What goes wrong here is logged and never keeps anybody from working: the run ends its sessions in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces_coordination import AgentSession, AgentSessions, SessionStatus

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument

logger = logging.getLogger("adw.sessions")

#: How a session ends with its attempt; every other end is a failure.
_ENDS = {"succeeded": SessionStatus.FINISHED, "suspended": SessionStatus.STOPPED}


class AgentDesk:
    """Opens and ends the sessions of agents."""

    def __init__(self, sessions: Callable[[], AgentSessions], *, host: str) -> None:
        """*sessions* is asked when the first agent begins: most homes that only run commands never have one."""
        self._sessions = sessions
        self._host = host

    def begin(self, document: WorkflowDocument, phase: str, attempt: AttemptRecord) -> None:
        """Open the session of an attempt, or write down what the agent calls it by now."""
        facts = attempt.agent or {}
        session = AgentSession(
            session_id=session_id(document.adw_id, phase, attempt.number),
            adw_id=document.adw_id,
            run_id=None,  # the one that the workflow has
            phase=phase,
            attempt_number=attempt.number,
            agent=str(facts.get("name") or ""),
            host=self._host,
            status=SessionStatus.RUNNING,
            executor_session_id=str(facts.get("session_id") or ""),
        )
        try:
            self._sessions().open(session)
        except AdwError as exc:
            self._complain(session.session_id, exc)

    def end(self, document: WorkflowDocument, phase: str, attempt: AttemptRecord) -> None:
        """End the session of an attempt that is over."""
        name = session_id(document.adw_id, phase, attempt.number)
        why = (attempt.error or {}).get("message")
        status = _ENDS.get(attempt.status, SessionStatus.FAILED)
        try:
            self._sessions().close(name, status, reason=why if isinstance(why, str) else "")
        except AdwError as exc:
            self._complain(name, exc)

    def _complain(self, name: str, cause: AdwError) -> None:
        said = {"action": "session_not_written", "session": name}
        logger.warning("The session of an agent could not be written down", extra=said, exc_info=cause)


def session_id(adw_id: str, phase: str, attempt: int) -> str:
    """Return the id of the session of an attempt."""
    return f"{adw_id}.{phase}.{attempt}"
