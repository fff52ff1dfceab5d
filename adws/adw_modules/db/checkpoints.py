"""
Checkpoints in the table task_checkpoints.

The order is that of the number which the database gives each row and never gives again. A checkpoint of a phase is
stored and deleted in one transaction with a look at the workflow's fence, so whoever lost the workflow changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from adws.adw_modules import timestamps
from adws.adw_modules.db import checkpoint_statements as sql
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.errors import DatabaseError, Fenced
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_durability import CheckpointLine, CheckpointRow


class DatabaseCheckpoints:
    """A `CheckpointStore` in a database."""

    def __init__(
        self, database: Database, *, clock: Clock, scrub: Callable[[bytes], bytes] = lambda payload: payload
    ) -> None:
        """*scrub* takes out of each checkpoint what must not be stored."""
        self._database = database
        self._clock = clock
        self._scrub = scrub

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
        params = {
            "id": checkpoint_id,
            "task_id": task_id,
            "adw_id": workflow_of(task_id, fence),
            "step_name": step_name,
            "created_at": timestamps.to_text(self._clock.now()),
            "checkpoint_data": self._scrub(body.encode()).decode(),
        }

        def work(session: Session) -> Row:
            self._refuse_fenced(session, task_id, fence)
            stored = session.one(sql.CHECKPOINT_ADD, params)
            if stored is None:
                raise DatabaseError(f"the checkpoint of {task_id} was not stored: try again")
            session.run(sql.CHECKPOINTS_PRUNE, {"task_id": task_id, "keep": keep})

            return stored

        return to_checkpoint(self._database.transact(work))

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the newest checkpoint of *task_id*."""
        with self._database.read() as session:
            row = session.one(sql.CHECKPOINT_LATEST, {"task_id": task_id})

        return to_checkpoint(row) if row else None

    def all_of(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the checkpoints of *task_id*, oldest first."""
        with self._database.read() as session:
            found = session.all(sql.CHECKPOINTS_OF, {"task_id": task_id})

        return tuple(map(to_checkpoint, found))

    def delete(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""

        def work(session: Session) -> int:
            self._refuse_fenced(session, task_id, fence)

            return session.run(sql.CHECKPOINTS_DELETE, {"task_id": task_id})

        return self._database.transact(work)

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows whose phases have checkpoints, in the order of their ids."""
        with self._database.read() as session:
            return tuple(row[0] for row in session.all(sql.CHECKPOINT_WORKFLOWS))

    def lines_of(self, adw_id: str) -> tuple[CheckpointLine, ...]:
        """Return the checkpoints of a workflow's phases, the newest first."""
        with self._database.read() as session:
            found = session.all(sql.CHECKPOINT_LINES, {"adw_id": adw_id}) if adw_id else []

        return tuple(
            CheckpointLine(task_id=task_id, step_name=step_name, created_at=created_at, size=size)
            for task_id, step_name, created_at, size in found
        )

    def forget(self, adw_id: str) -> int:
        """Delete all checkpoints of a workflow's phases and return how many there were."""
        return self._database.transact(lambda session: session.run(sql.CHECKPOINTS_FORGET, {"adw_id": adw_id}))

    def _refuse_fenced(self, session: Session, task_id: str, fence: int | None) -> None:
        if fence is None:
            return
        adw_id = workflow_of(task_id, fence)
        row = session.one(self._database.spell(sql.CHECKPOINT_FENCE), {"adw_id": adw_id})
        if row is None or row[0] != fence:
            raise Fenced(adw_id, fence, row[0] if row else None)


def workflow_of(task_id: str, fence: int | None) -> str:
    """Return the workflow that a task with a fence belongs to, "" for a task without."""
    return "" if fence is None else task_id.partition("/")[0]


def to_checkpoint(row: Row) -> CheckpointRow:
    """Return the checkpoint in a row of `checkpoint_statements.CHECKPOINTS_OF`."""
    sequence, checkpoint_id, task_id, adw_id, step_name, created_at, data = row

    return CheckpointRow(
        checkpoint_id=checkpoint_id,
        task_id=task_id,
        sequence=sequence,
        data=json.loads(data),
        step_name=step_name,
        created_at=created_at,
        adw_id=adw_id,
    )
