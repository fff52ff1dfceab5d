"""
What breakers and checkpoints keep, and where: shared by all processes of a home.

The rules (`circuit_breaker`, `checkpoint`) are pure and take one of these stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Permit:
    """Leave to try once; it ends by itself when whoever has it never says what came of it."""

    token: str
    generation: int  #: of the breaker when it was given
    expires_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerRow:
    """All that is known about one breaker."""

    name: str  #: the outside party: anthropic | openai | github | git | ...
    state: str = "closed"  #: closed | open | half_open, as of `changed_at`
    failures: int = 0  #: in a row
    generation: int = 1  #: grows each time it opens or closes; what began in an older one changes nothing
    opened_at: str | None = None
    reopens_at: str | None = None  #: when trials are allowed; None while closed
    reason: str = ""  #: the failure that opened it, in one line
    permits: tuple[Permit, ...] = ()  #: trials under way while half open
    settings: JsonObject = field(default_factory=dict)  #: threshold and times it works with
    changed_at: str = ""


class BreakerStore(Protocol):
    """Breakers by name."""

    def read(self, name: str) -> BreakerRow | None:
        """Return a breaker, None when nothing ever happened to it."""

    def all(self) -> tuple[BreakerRow, ...]:
        """Return every breaker, in the order of their names."""

    def change(self, name: str, rule: Callable[[BreakerRow], BreakerRow]) -> BreakerRow:
        """Replace a breaker by what *rule*, which is pure, makes of it; no other change comes in between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRow:
    """A stored checkpoint."""

    checkpoint_id: str
    task_id: str
    sequence: int  #: grows with every checkpoint of all tasks: the highest is the latest
    data: JsonObject
    step_name: str | None = None
    created_at: str = ""
    adw_id: str = ""  #: the workflow whose phase the task is, "" for a task of a library user


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointLine:
    """A checkpoint in a list, without what it keeps."""

    task_id: str
    step_name: str | None
    created_at: str
    size: int  #: characters of its JSON


class CheckpointStore(Protocol):
    """
    Checkpoints of tasks; durable when a call returns.

    A call with a *fence* is made for a phase of the workflow that *task_id* begins with, up to its first slash. It
    raises Fenced, and changes nothing, when that workflow is owned under another fence.
    """

    def add(
        self,
        checkpoint_id: str,
        task_id: str,
        body: str,
        *,
        step_name: str | None,
        keep: int,
        fence: int | None = None,
    ) -> CheckpointRow:
        """Store *body*, JSON text, as the latest of *task_id*; all but the newest *keep* of that task go."""

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the newest checkpoint of *task_id*."""

    def all_of(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the checkpoints of *task_id*, oldest first."""

    def delete(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows whose phases have checkpoints, in the order of their ids."""

    def lines_of(self, adw_id: str) -> tuple[CheckpointLine, ...]:
        """Return the checkpoints of a workflow's phases, the newest first."""

    def forget(self, adw_id: str) -> int:
        """Delete all checkpoints of a workflow's phases and return how many there were."""
