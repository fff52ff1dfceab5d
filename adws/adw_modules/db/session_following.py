"""
How the sessions of agents follow their run.

Whatever ends, takes back or stops a run calls `follow` in the same transaction, and only when the run has an agent that
has not ended. Apart from the queries, so that views start without the words of runs.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Session
from adws.adw_modules.db.session_statements import SESSIONS_FOLLOW
from adws.adw_modules.interfaces_coordination import SessionStatus
from adws.adw_modules.runs import Run, RunState

#: What a session is when its run is something; every other end is a failure.
_FOLLOWS = {
    RunState.STOPPING: SessionStatus.STOPPING,
    RunState.STOPPED: SessionStatus.STOPPED,
    RunState.COMPLETED: SessionStatus.FINISHED,
}
_WORKED_ON = frozenset({RunState.CLAIMED, RunState.RUNNING})


def status_with(state: RunState) -> SessionStatus | None:
    """Return what the open sessions of a run become that is in *state*; None: they stay as they are."""
    return None if state in _WORKED_ON else _FOLLOWS.get(state, SessionStatus.FAILED)


def follow(session: Session, run: Run, moment: str) -> None:
    """Have the open sessions of *run* follow it, inside the transaction *session*."""
    status = status_with(run.state)
    if status is None:
        return
    ended_at = None if status is SessionStatus.STOPPING else moment
    params = {"run_id": run.run_id, "status": status.value, "reason": run.reason, "ended_at": ended_at}
    session.run(SESSIONS_FOLLOW, params)
