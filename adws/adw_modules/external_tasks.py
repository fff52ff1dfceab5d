"""
A task: what somebody outside of adw does for an attempt, such as a job of a build server.

Whoever has its token may claim it; what they say about it names the number of their claim, and after another claim
that number is worth nothing. The token is made from the task's id and the key of the home, so nothing secret is kept.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError
from adws.adw_modules.json_value import JsonObject, JsonValue

#: Seconds until a phase is given up that says nothing about it.
DEFAULT_DEADLINE_SECONDS = 24 * 3600.0
#: Seconds that a claim lasts without a sign of life, unless whoever claims says otherwise.
DEFAULT_CLAIM_SECONDS = 60.0
#: What a task may be: waited for, reported on, or given up because nobody reported in time.
OPEN, REPORTED, EXPIRED = "open", "reported", "expired"
#: Events that end a task -> whether it went well.
ENDS: Mapping[str, bool] = {"action_completed": True, "action_failed": False}
#: What may be told of a task.
TOLD = ("action_started", "step_started", "step_completed", "step_failed", "step_skipped", *ENDS)
#: Where tasks are in the API.
PATH = "/api/v1/external"

_PREFIX = "adwx_"
_PURPOSE = b"adw external task\0"


class TaskNotFound(AdwError):
    """There is no such task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id}: adw external lists those there are")


class ClaimHeld(AdwError):
    """Somebody else has the task, and gave a sign of life not long ago."""

    def __init__(self, task: ExternalTask) -> None:
        who = task.worker or "somebody else"
        super().__init__(
            f"task {task.task_id} is with {who} until {task.claim_until}, unless it gives a heartbeat: try again then"
        )


class ClaimLost(AdwError):
    """What is said about a task comes from somebody who does not have it any more; nothing was changed."""

    def __init__(self, task_id: str, why: str) -> None:
        super().__init__(f"task {task_id} is not yours any more: {why}")


class ForeignToken(AdwError):
    """The token that was shown is that of another task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"the token is not that of task {task_id}: type adw external show {task_id} --token")


class Overdue(AdwError):
    """Nobody reported on a task in time."""

    def __init__(self, task: ExternalTask) -> None:
        had = f"; {task.worker or 'somebody'} had claimed it" if task.claims else "; nobody had claimed it"
        super().__init__(f"nobody reported on task {task.task_id} until {task.deadline}{had}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalReport:
    """What came of a task."""

    is_ok: bool
    report_id: str  #: of the event; the same report again changes nothing
    summary: str = ""
    result: JsonObject = field(default_factory=dict)
    error: JsonObject = field(default_factory=dict)  #: message, and what else is known: category, exit_code


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalTask:
    """A task as its row has it."""

    task_id: str  #: `<adw_id>.<phase>.<attempt>`
    adw_id: str
    phase: str
    round: int
    attempt_number: int  #: the attempt that waits for it now
    catalog_id: str
    deadline: str
    created_at: str = ""
    state: str = OPEN
    claims: int = 0  #: number of the last claim
    worker: str = ""
    claim_seconds: float = 0.0
    claim_until: str = ""
    ended_at: str | None = None
    report: ExternalReport | None = None

    def is_held(self, now: datetime) -> bool:
        """Say whether somebody has it who gave a sign of life not long ago."""
        return bool(self.claim_until) and self.claim_until > timestamps.to_text(now)

    def is_late(self, now: datetime) -> bool:
        """Say whether its time is over."""
        return timestamps.to_text(now) >= self.deadline


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskEvent:
    """What whoever has a task tells of it."""

    event_type: str  #: one of TOLD
    event_id: str  #: their own; the same one again changes nothing
    status: str = ""
    duration: float | None = None
    result: JsonValue = None
    context: JsonObject = field(default_factory=dict)
    data: JsonObject = field(default_factory=dict)
    meta: JsonObject = field(default_factory=dict)


class ExternalTasks(Protocol):
    """The tasks of a home."""

    def open(self, task: ExternalTask) -> ExternalTask:
        """Store a task, or return the one that is there under its id."""

    def get(self, task_id: str) -> ExternalTask | None:
        """Return a task."""

    def latest(self, adw_id: str, phase: str) -> ExternalTask | None:
        """Return the newest task of a phase."""

    def page(self, *, adw_id: str = "", only_open: bool = False, limit: int = 100) -> tuple[ExternalTask, ...]:
        """Return tasks, the newest first."""

    def adopt(self, task: ExternalTask, *, attempt_number: int) -> ExternalTask:
        """Let another attempt wait for a task whose own was cut off."""

    def expire(self, task_id: str) -> bool:
        """Give a task up that nobody reported on; False when somebody did."""

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give the task to whoever asks; its `claims` is their number. Raises TaskNotFound, ClaimHeld, ClaimLost."""

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Push the end of a claim out; raise TaskNotFound or ClaimLost."""

    def tell(self, task_id: str, claim: int, event: TaskEvent) -> bool:
        """Store what is told, and push the end of the claim out; False when that event was told before."""

    def report(self, task_id: str, claim: int, report: ExternalReport, event: TaskEvent) -> bool:
        """
        End the task and wake the run that waits for it: one transaction, with the event.

        False when the same was reported before; raises TaskNotFound or ClaimLost, and then nothing is stored.
        """


def task_id_of(adw_id: str, phase: str, attempt_number: int) -> str:
    """Return the id of the task of an attempt."""
    return f"{adw_id}.{phase}.{attempt_number}"


def token_of(task_id: str, key: bytes) -> str:
    """Return the token of a task, which proves that its bearer was given it."""
    return f"{_PREFIX}{task_id}_{_digest(task_id, key)}"


def task_of_token(token: str, key: Callable[[], bytes]) -> str | None:
    """Return the task whose token this is, None when it is none of this home."""
    if not token.startswith(_PREFIX):
        return None
    task_id, _, shown = token[len(_PREFIX) :].rpartition("_")
    fits = hmac.compare_digest(shown.encode("utf-8", "replace"), _digest(task_id, key()).encode())

    return task_id if fits else None


def _digest(task_id: str, key: bytes) -> str:
    return hmac.new(key, _PURPOSE + task_id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
