"""
Checkpoints in memory.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.errors import Fenced
from adws.adw_modules.interfaces import Clock, LeaseBook
from adws.adw_modules.interfaces_durability import CheckpointLine, CheckpointRow


class MemoryCheckpoints:
    """A `CheckpointStore` in memory; *leases* know the fences of workflows."""

    def __init__(self, clock: Clock, leases: LeaseBook | None = None) -> None:
        self._clock = clock
        self._leases = leases
        self._guard = threading.Lock()
        self._rows: list[tuple[CheckpointRow, str]] = []  #: each with its JSON text: nobody shares what is stored
        self._sequence = 0

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
        with self._guard:
            adw_id = self._refuse_fenced(task_id, fence)
            self._sequence += 1
            row = CheckpointRow(
                checkpoint_id=checkpoint_id,
                task_id=task_id,
                sequence=self._sequence,
                data=json.loads(body),
                step_name=step_name,
                created_at=timestamps.to_text(self._clock.now()),
                adw_id=adw_id,
            )
            self._rows.append((row, body))
            old = [entry for entry in self._rows if entry[0].task_id == task_id][:-keep]
            self._rows = [entry for entry in self._rows if entry not in old]

            return row

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the newest checkpoint of *task_id*."""
        return next(reversed(self.all_of(task_id)), None)

    def all_of(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the checkpoints of *task_id*, oldest first."""
        with self._guard:
            return tuple(_fresh(row, body) for row, body in self._rows if row.task_id == task_id)

    def delete(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""
        with self._guard:
            self._refuse_fenced(task_id, fence)

            return self._drop([entry for entry in self._rows if entry[0].task_id == task_id])

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows whose phases have checkpoints, in the order of their ids."""
        with self._guard:
            return tuple(sorted({row.adw_id for row, _ in self._rows if row.adw_id}))

    def lines_of(self, adw_id: str) -> tuple[CheckpointLine, ...]:
        """Return the checkpoints of a workflow's phases, the newest first."""
        with self._guard:
            found = [(row, body) for row, body in self._rows if adw_id and row.adw_id == adw_id]

        return tuple(
            CheckpointLine(task_id=row.task_id, step_name=row.step_name, created_at=row.created_at, size=len(body))
            for row, body in reversed(found)
        )

    def forget(self, adw_id: str) -> int:
        """Delete all checkpoints of a workflow's phases and return how many there were."""
        with self._guard:
            return self._drop([entry for entry in self._rows if entry[0].adw_id == adw_id])

    def _drop(self, entries: list[tuple[CheckpointRow, str]]) -> int:
        self._rows = [entry for entry in self._rows if entry not in entries]

        return len(entries)

    def _refuse_fenced(self, task_id: str, fence: int | None) -> str:
        """Return the workflow that a task with a fence belongs to, "" for a task without."""
        if fence is None:
            return ""
        adw_id = task_id.partition("/")[0]
        row = self._leases.read(adw_id) if self._leases is not None else None
        if self._leases is not None and (row is None or row.fence != fence):
            raise Fenced(adw_id, fence, row.fence if row else None)

        return adw_id


def _fresh(row: CheckpointRow, body: str) -> CheckpointRow:
    """Return *row* with data of its own."""
    return replace(row, data=json.loads(body))
