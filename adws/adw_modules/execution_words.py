"""Where executions and their iterations stand. Apart from `executions`, so that views start without its records."""

from __future__ import annotations

from enum import Enum


class IterationState(Enum):
    """Where an iteration stands."""

    PENDING = "pending"  #: waits for a place
    RUNNING = "running"  #: a run has it
    RETRY_WAIT = "retry_wait"  #: called again at `next_at`, after a failure or for the next page
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"  #: the loop ended before it, or a person did not want it


class ExecutionState(Enum):
    """Where an execution stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
