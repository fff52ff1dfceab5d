"""
The checkpoints of the phase that an attempt is made at.

An attempt goes on from the checkpoint of an earlier attempt in the same round, as long as nothing before the phase was
done again meanwhile: what it had built on may be another now. When all of the work was done and then refused, it is
done anew. They are deleted once the end of the phase is stored: who dies before that does nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.checkpoint import CheckpointManager, task_of
from adws.adw_modules.errors import DatabaseError, Fenced
from adws.adw_modules.interfaces_durability import CheckpointRow
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.steps import STEPS

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument
    from adws.adw_modules.workflow import PhaseSpec

#: The end of the name of a command's own checkpoint file.
KIND = "checkpoint.json"
#: The runner whose phases keep checkpoints in files, too.
COMMAND = "command"
#: The runners whose phases keep checkpoints.
KEEPING = frozenset({COMMAND, "python", STEPS})

logger = logging.getLogger("adw.checkpoints")


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
        if not is_first(context.document, context.phase, context.round):
            found = self._manager.latest(self._task)
            if found is None or holds(found, context):
                return found
            self._clear()
        elif context.round > 1:
            before = task_of(context.document.adw_id, context.phase, context.round - 1)
            self._manager.delete_checkpoints(before, fence=self._fence)

        return None

    def save(self, data: JsonObject, step_name: str | None = None) -> str:
        """Store *data*, durable on return; raise Fenced when the workflow was taken over."""
        return self._manager.save_checkpoint(self._task, data, step_name, fence=self._fence)

    def _clear(self) -> None:
        """Delete the checkpoints of the phase; when the database cannot, that is told: nobody goes on from them."""
        try:
            self._manager.delete_checkpoints(self._task, fence=self._fence)
        except DatabaseError as exc:
            self._context.say(f"the checkpoints of phase {self._context.phase} could not be deleted: {exc}")

    def told(self) -> PhaseContext:
        """Return the context with the last checkpoint and a way to save the next."""
        found = self.latest()

        return replace(self._context, checkpoint=found.data if found else None, save_checkpoint=self.save)


class PastCheckpoints:
    """Deletes what is kept of phases whose end is stored."""

    def __init__(self, manager: CheckpointManager, folder_of: Callable[[str], Path]) -> None:
        """*folder_of* says where a workflow has its files."""
        self._manager = manager
        self._folder_of = folder_of

    def forget(self, document: WorkflowDocument, phase: PhaseSpec, round_number: int) -> None:
        """Delete the checkpoints of a phase; what cannot be deleted goes with the workflow."""
        if phase.runner not in KEEPING:
            return
        try:
            task = task_of(document.adw_id, phase.name, round_number)
            if self._manager.latest(task) is not None:  # most have none, and to look is cheaper than a transaction
                self._manager.delete_checkpoints(task, fence=document.fence)
            for item in _all_attempts(document, phase.name) if phase.runner == COMMAND else ():
                AttemptFiles(self._folder_of(document.adw_id), phase.name, item.number).discard(KIND)
        except (DatabaseError, Fenced, OSError):
            said = {"action": "checkpoints_left", "workflow": document.adw_id, "phase": phase.name}
            logger.warning("Checkpoints of a phase that is over are left", extra=said, exc_info=True)


def holds(row: CheckpointRow, context: PhaseContext) -> bool:
    """Say whether the attempt goes on from *row*."""
    document, phase, round_number = context.document, context.phase, context.round
    done = [item.ended_at or "" for item in _attempts(document, phase, round_number) if _was_done(item)]

    return row.created_at >= valid_since(document, phase, round_number) and row.created_at > max(done, default="")


def is_first(document: WorkflowDocument, phase: str, round_number: int) -> bool:
    """Say whether no attempt at *phase* was made in this round before the one that runs."""
    return len(_attempts(document, phase, round_number)) <= 1


def valid_since(document: WorkflowDocument, phase: str, round_number: int) -> str:
    """Return since when checkpoints hold: the start of the round, or of the last attempt at a phase before this one."""
    before = takewhile(lambda record: record.name != phase, document.phases)
    starts = [item.started_at for record in before for item in record.attempts]

    return max([*starts, *(item.started_at for item in _attempts(document, phase, round_number)[:1])], default="")


def attempts_to_go_on_from(document: WorkflowDocument, phase: str, round_number: int) -> tuple[int, ...]:
    """Return the numbers of the attempts whose checkpoints still hold, newest first."""
    since = valid_since(document, phase, round_number)
    earlier = reversed(_attempts(document, phase, round_number)[:-1])
    unfinished = takewhile(lambda item: not _was_done(item), earlier)

    return tuple(item.number for item in unfinished if item.started_at >= since)


def _was_done(attempt: AttemptRecord) -> bool:
    """Say whether an attempt did all of its work: it succeeded, or its work was refused."""
    return attempt.status == "succeeded" or bool((attempt.report or {}).get("was_done"))


def _attempts(document: WorkflowDocument, phase: str, round_number: int) -> list[AttemptRecord]:
    return [item for item in _all_attempts(document, phase) if item.round == round_number]


def _all_attempts(document: WorkflowDocument, phase: str) -> list[AttemptRecord]:
    return [item for record in document.phases if record.name == phase for item in record.attempts]
