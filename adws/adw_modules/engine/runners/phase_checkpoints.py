"""
The checkpoints of the phase that an attempt is made at.

An attempt goes on from the checkpoint of an earlier attempt in the same round, as long as nothing before the phase was
done again meanwhile: what it had built on may be another now.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from adws.adw_modules.checkpoint import CheckpointManager, task_of
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.interfaces_durability import CheckpointRow
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument


class PhaseCheckpoints:
    """Loads, saves and deletes them under the fence of the attempt."""

    def __init__(self, manager: CheckpointManager, context: PhaseContext) -> None:
        self._manager = manager
        self._context = context
        self._task = task_of(context.document.adw_id, context.phase, context.round)
        self._fence = context.document.fence

    def latest(self) -> CheckpointRow | None:
        """Return the checkpoint to go on from, None when the phase begins at its beginning; stale ones are deleted."""
        context = self._context
        since = valid_since(context.document, context.phase, context.round)
        if not is_first(context.document, context.phase, context.round):
            found = self._manager.latest(self._task)
            if found is None or found.created_at >= since:
                return found
            self.clear()
        elif context.round > 1:
            before = task_of(context.document.adw_id, context.phase, context.round - 1)
            self._manager.delete_checkpoints(before, fence=self._fence)

        return None

    def save(self, data: JsonObject, step_name: str | None = None) -> str:
        """Store *data*, durable on return; raise Fenced when the workflow was taken over."""
        return self._manager.save_checkpoint(self._task, data, step_name, fence=self._fence)

    def clear(self) -> None:
        """Delete the checkpoints of the phase; when the database cannot, that is told: the work itself is done."""
        try:
            self._manager.delete_checkpoints(self._task, fence=self._fence)
        except DatabaseError as exc:
            self._context.say(f"the checkpoints of phase {self._context.phase} could not be deleted: {exc}")

    def told(self) -> PhaseContext:
        """Return the context with the last checkpoint and a way to save the next."""
        found = self.latest()

        return replace(self._context, checkpoint=found.data if found else None, save_checkpoint=self.save)


def is_first(document: WorkflowDocument, phase: str, round_number: int) -> bool:
    """Say whether no attempt at *phase* was made in this round before the one that runs."""
    return len(_attempts(document, phase, round_number)) <= 1


def was_cut_off(document: WorkflowDocument, phase: str, number: int) -> bool:
    """Say whether attempt *number* at *phase* was ended by a crash or on order, and not by what came of it."""
    attempts = [item for record in document.phases if record.name == phase for item in record.attempts]

    return any(item.number == number and item.status in ("interrupted", "suspended") for item in attempts)


def valid_since(document: WorkflowDocument, phase: str, round_number: int) -> str:
    """Return since when checkpoints hold: the start of the round, or of the last attempt at a phase before this one."""
    before = takewhile(lambda record: record.name != phase, document.phases)
    starts = [item.started_at for record in before for item in record.attempts]

    return max([*starts, *(item.started_at for item in _attempts(document, phase, round_number)[:1])], default="")


def attempts_to_go_on_from(document: WorkflowDocument, phase: str, round_number: int) -> tuple[int, ...]:
    """Return the numbers of the attempts whose checkpoints still hold, newest first."""
    since = valid_since(document, phase, round_number)
    earlier = _attempts(document, phase, round_number)[:-1]

    return tuple(item.number for item in reversed(earlier) if item.started_at >= since)


def _attempts(document: WorkflowDocument, phase: str, round_number: int) -> list[AttemptRecord]:
    return [
        item
        for record in document.phases
        if record.name == phase
        for item in record.attempts
        if item.round == round_number
    ]
