"""Every query about the sessions of agents, by name."""

from __future__ import annotations

COLUMNS = """
session_id, adw_id, run_id, phase, attempt_number, agent, host, status, executor_session_id, reason, started_at,
ended_at
"""

#: Without a run of its own it belongs to the one that the workflow has now.
SESSION_OPEN = """
INSERT INTO sessions (session_id, adw_id, run_id, phase, attempt_number, agent, host, status, executor_session_id,
    reason, started_at, ended_at)
VALUES (:session_id, :adw_id,
    coalesce(CAST(:run_id AS BIGINT),
        (SELECT run_id FROM runs WHERE runs.adw_id = :adw_id AND slot = '' AND finished_at IS NULL)),
    :phase, :attempt_number, :agent, :host, :status, :executor_session_id, :reason, :started_at, NULL)
ON CONFLICT (session_id) DO UPDATE SET executor_session_id = excluded.executor_session_id
"""
SESSION_CLOSE = """
UPDATE sessions SET status = :status, reason = :reason, ended_at = :moment
WHERE session_id = :session_id AND ended_at IS NULL
"""
SESSIONS_FOLLOW = """
UPDATE sessions SET status = :status, reason = :reason, ended_at = :ended_at
WHERE run_id = :run_id AND ended_at IS NULL
"""
SESSIONS_OF_WORKFLOW = f"SELECT {COLUMNS} FROM sessions WHERE adw_id = :adw_id ORDER BY started_at, session_id"  # noqa: S608 - a text of this module
SESSIONS_LIVE = f"SELECT {COLUMNS} FROM sessions WHERE ended_at IS NULL ORDER BY started_at, session_id"  # noqa: S608 - a text of this module

#: For `adw db check`: whatever ends a run ends its sessions with it.
CHECK_SESSIONS = """
SELECT session_id, adw_id FROM sessions AS agent
WHERE ended_at IS NULL AND run_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = agent.run_id AND runs.finished_at IS NULL)
ORDER BY started_at, session_id
"""
