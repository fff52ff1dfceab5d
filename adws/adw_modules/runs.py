"""
A run: one piece of work that waits for a worker, or is with one.

The row in `runs` is the truth about it. Every report of a worker carries the run's token; after a new claim the old
token is worth nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from adws.adw_modules.json_value import JsonObject


class RunState(Enum):
    """Where a run stands."""

    PENDING = "pending"  #: waits for a worker, not before `not_before`
    CLAIMED = "claimed"  #: a worker has it and has not begun
    RUNNING = "running"
    STOPPING = "stopping"  #: somebody wants it stopped; its worker has not confirmed yet
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


#: A worker has it.
LIVE_RUNS = frozenset({RunState.CLAIMED, RunState.RUNNING, RunState.STOPPING})
#: Nothing will happen to it any more.
FINAL_RUNS = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.STOPPED})

#: What a run may be for.
RUN_KINDS = ("start", "resume", "retry", "rollback", "iteration", "cron")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A run that is asked for."""

    adw_id: str
    kind: str = "start"  #: one of RUN_KINDS
    priority: int = 0  #: higher first; among equals the oldest first
    not_before: str = ""  #: timestamps.to_text; "": at once
    payload: JsonObject = field(default_factory=dict)
    asked_by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run as its row has it."""

    run_id: int
    adw_id: str
    kind: str
    state: RunState
    priority: int
    not_before: str
    attempts: int  #: how often it was claimed
    token: int  #: grows with each claim; what a worker proves itself by
    owner: str  #: the worker's record as text, "" when nobody has it
    seconds_left: float  #: of its claim; negative when over, 0 when nobody has it
    reason: str  #: why it is in this state, for people
    payload: JsonObject
    asked_by: str
    created_at: str
    updated_at: str
    started_at: str | None = None
    finished_at: str | None = None
