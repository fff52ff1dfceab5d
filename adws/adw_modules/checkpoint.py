"""
Checkpoints of tasks and phases, and their store.

A checkpoint loads as it was saved: data that JSON cannot carry unchanged is refused. The order is that of saving,
independent of any clock. A checkpoint is durable when `save_checkpoint` returns.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.clock import uuid_of
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.errors import DatabaseError, Fenced, UnsafePath, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.phase import PhaseContext
from adws.adw_modules.workflow.model import STEPS

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument
    from adws.adw_modules.workflow.model import PhaseSpec
    from adws.app import Home


CHECKPOINT_COLUMNS = ("sequence", "id", "task_id", "adw_id", "step_name", "created_at", "checkpoint_data")
_COLUMNS = ", ".join(CHECKPOINT_COLUMNS)
#: Stores one checkpoint; the database numbers them, so those copied from another database are inserted in order.
_ADD = f"""
INSERT INTO task_checkpoints ({", ".join(CHECKPOINT_COLUMNS[1:])})
VALUES ({", ".join(f":{name}" for name in CHECKPOINT_COLUMNS[1:])})
"""

#: Checkpoints of workflows that no longer exist.
CHECK_CHECKPOINTS = """
SELECT adw_id, count(*) FROM task_checkpoints AS kept
WHERE adw_id <> '' AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = kept.adw_id)
GROUP BY adw_id ORDER BY adw_id
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRow:
    """A stored checkpoint."""

    checkpoint_id: str
    task_id: str
    sequence: int  #: grows with every checkpoint of any task: the highest is the latest
    data: JsonObject
    step_name: str | None = None
    created_at: str = ""
    adw_id: str = ""  #: the workflow whose phase is the task, "" for a task of a library user


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointLine:
    """A checkpoint in a list, without its data."""

    task_id: str
    step_name: str | None
    created_at: str
    size: int  #: characters of its JSON


#: Most bytes of one checkpoint as JSON: larger data belongs in a file that the checkpoint names.
MAX_BYTES = 1 << 20
#: Checkpoints kept per task, unless the caller says otherwise.
KEEP = 10
#: Most characters in the name of a task or step.
MAX_NAME = 255


class DefaultHome(Enum):
    """Placeholder for the database of a home."""

    HERE = "here"  #: the database of the current home


class CheckpointManager:
    """Saves, loads and deletes the checkpoints of tasks."""

    def __init__(
        self,
        db: CheckpointStore | str | os.PathLike[str] | DefaultHome = DefaultHome.HERE,
        *,
        clock: Clock | None = None,
        keep: int = KEEP,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Use the store *db*, or the database at that path or URL; by default that of the current home.

        Raises TypeError for anything else, including None. The newest *keep* checkpoints of a task are kept, each of at
        most *max_bytes*.
        """
        if not 1 <= keep <= 1000:
            raise UsageError(f"keep is {keep}: give a number from 1 to 1000")
        if max_bytes < 1:
            raise UsageError(f"max_bytes is {max_bytes}: give a number from 1 up")
        self._opened = default_home.open_checkpoints(os.fspath(db)) if isinstance(db, str | os.PathLike) else None
        if self._opened is not None:
            self._store = self._opened.store
        elif isinstance(db, DefaultHome):
            self._store = default_home.get().checkpoints
        elif isinstance(db, CheckpointStore):
            self._store = db
        else:
            other: object = db
            raise TypeError(
                f"CheckpointManager got {'None' if other is None else type(other).__name__}: give it a "
                "CheckpointStore, the path or URL of a database, or nothing for the home you are in"
            )
        self._clock = clock or (self._opened.clock if self._opened else None)
        self.saved: set[str] = set()  #: tasks with a checkpoint saved here and not deleted since
        self._keep = keep
        self._max_bytes = max_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close a database opened by path or URL; a store passed in stays open."""
        if self._opened is not None:
            self._opened.close()

    def save_checkpoint(
        self, task_id: str, data: JsonObject, step_name: str | None = None, *, fence: int | None = None
    ) -> str:
        """
        Store *data* as the latest checkpoint of *task_id*, durable on return, and return its id, a UUID.

        Raises TypeError if *data* is not a dict, ValueError if it is too large or JSON cannot carry it unchanged.
        *fence* is given for a phase of a workflow, see `CheckpointStore`.
        """
        _check_name(task_id, "task_id")
        if step_name is not None:
            _check_name(step_name, "step_name")
        if not isinstance(data, dict):
            raise TypeError(f"a checkpoint must be a dict, and is {type(data).__name__}")
        try:
            body = json.dumps(data, allow_nan=False)
            changed = _first_change(data, json.loads(body), "data")
        except (TypeError, ValueError, RecursionError) as exc:
            raise UsageError(f"the checkpoint cannot be written as JSON: {exc}") from exc
        if changed:
            raise UsageError(f"the checkpoint would not come back from JSON as it is: {changed}")
        if len(body) > self._max_bytes:
            raise UsageError(
                f"the checkpoint of {task_id} has {len(body)} bytes, the limit is {self._max_bytes}: keep large things "
                "in a file and its path in the checkpoint"
            )
        clock = self._clock or default_home.get().clock
        made = uuid_of(clock.token())
        self.saved.add(task_id)  # before it is stored: the answer to the commit may be lost

        return self._store.add(made, task_id, body, step_name=step_name, keep=self._keep, fence=fence).checkpoint_id

    def load_checkpoint(self, task_id: str) -> JsonObject | None:
        """Return the data saved last, or None if there is no checkpoint."""
        result = self.latest(task_id)

        return None if result is None else result.data

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the checkpoint saved last, with its step and time, or None if none is stored."""
        return self._store.latest(_check_name(task_id, "task_id"))

    def list_checkpoints(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the kept checkpoints, oldest first."""
        return self._store.all_of(_check_name(task_id, "task_id"))

    def delete_checkpoints(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""
        count = self._store.delete(_check_name(task_id, "task_id"), fence=fence)
        self.saved.discard(task_id)

        return count


def task_of(adw_id: str, phase: str, round_number: int = 1) -> str:
    """
    Return the task for a phase of a workflow: `<adw_id>/<phase>`, plus `/<round>` from the second round on.

    A new round does not continue from the checkpoints of an earlier one, whose results may be gone.
    """
    return f"{adw_id}/{phase}" if round_number <= 1 else f"{adw_id}/{phase}/{round_number}"


def _check_name(name: object, what: str) -> str:
    """Return *name* if it can name a task or step; else raise TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a text, and is {type(name).__name__}")
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise UsageError(f"{what} {name[:60]!r} is no name: use 1 to {MAX_NAME} printable characters")

    return name


def _first_change(saved: object, loaded: object, where: str) -> str:
    """Return where *loaded* differs from *saved*, as text, or "" if it does not."""
    if isinstance(saved, dict):
        for key in saved:
            if not isinstance(key, str):
                return f"{where} has the key {key!r}, and keys must be texts"
        pairs = [(saved[key], loaded[key], f"{where}[{key!r}]") for key in saved]  # type: ignore[index]  # a dict too
    elif isinstance(saved, list):
        pairs = [(item, loaded[n], f"{where}[{n}]") for n, item in enumerate(saved)]  # type: ignore[index]  # a list too
    else:
        return "" if saved == loaded else f"{where} is {type(saved).__name__}, and would be {type(loaded).__name__}"

    return next(filter(None, (_first_change(*pair) for pair in pairs)), "")


class CheckpointStore:
    """
    The checkpoints in a database.

    They are ordered by the number that the database gives each row and never reuses. A checkpoint of a phase is stored
    and deleted in the transaction that checks the workflow's fence: a worker that lost the workflow changes nothing.
    """

    def __init__(
        self, database: Database, *, clock: Clock, scrub: Callable[[bytes], bytes] = lambda payload: payload
    ) -> None:
        """*scrub* removes from each checkpoint what must not be stored."""
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
        """Store the JSON text *body* as the latest checkpoint of *task_id*, and delete all but the newest *keep*."""
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
            stored = session.one(f"{_ADD} RETURNING {_COLUMNS}", params)
            if stored is None:
                raise DatabaseError(f"the checkpoint of {task_id} was not stored: try again")
            session.run(
                """
                DELETE FROM task_checkpoints WHERE task_id = :task_id AND sequence NOT IN (
                  SELECT sequence FROM task_checkpoints WHERE task_id = :task_id ORDER BY sequence DESC LIMIT :keep
                )
                """,
                {"task_id": task_id, "keep": keep},
            )

            return stored

        return to_checkpoint(self._database.transact(work))

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the newest checkpoint of *task_id*, or None."""
        sql = f"SELECT {_COLUMNS} FROM task_checkpoints WHERE task_id = :task_id ORDER BY sequence DESC LIMIT 1"
        with self._database.read() as session:
            row = session.one(sql, {"task_id": task_id})

        return to_checkpoint(row) if row else None

    def all_of(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the checkpoints of *task_id*, oldest first."""
        sql = f"SELECT {_COLUMNS} FROM task_checkpoints WHERE task_id = :task_id ORDER BY sequence"
        with self._database.read() as session:
            rows = session.all(sql, {"task_id": task_id})

        return tuple(map(to_checkpoint, rows))

    def delete(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""

        def work(session: Session) -> int:
            self._refuse_fenced(session, task_id, fence)

            return session.run("DELETE FROM task_checkpoints WHERE task_id = :task_id", {"task_id": task_id})

        return self._database.transact(work)

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows whose phases have checkpoints, ordered by id."""
        sql = "SELECT DISTINCT adw_id FROM task_checkpoints WHERE adw_id <> '' ORDER BY adw_id"
        with self._database.read() as session:
            return tuple(row[0] for row in session.all(sql))

    def lines_of(self, adw_id: str) -> tuple[CheckpointLine, ...]:
        """Return the checkpoints of a workflow's phases, newest first."""
        if not adw_id:
            return ()
        sql = """
            SELECT task_id, step_name, created_at, length(checkpoint_data) FROM task_checkpoints
            WHERE adw_id = :adw_id ORDER BY sequence DESC
        """
        with self._database.read() as session:
            rows = session.all(sql, {"adw_id": adw_id})

        return tuple(
            CheckpointLine(task_id=task_id, step_name=step_name, created_at=created_at, size=size)
            for task_id, step_name, created_at, size in rows
        )

    def forget(self, adw_id: str) -> int:
        """Delete all checkpoints of a workflow's phases and return how many there were."""
        sql = "DELETE FROM task_checkpoints WHERE adw_id = :adw_id"

        return self._database.transact(lambda session: session.run(sql, {"adw_id": adw_id}))

    def _refuse_fenced(self, session: Session, task_id: str, fence: int | None) -> None:
        """Raise Fenced if the workflow has another fence; its row stays locked until the end of the transaction."""
        if fence is None:
            return
        adw_id = workflow_of(task_id, fence)
        sql = self._database.render("SELECT fence FROM workflow_states WHERE adw_id = :adw_id {row_lock}")
        row = session.one(sql, {"adw_id": adw_id})
        if row is None or row[0] != fence:
            raise Fenced(adw_id, fence, row[0] if row else None)


def workflow_of(task_id: str, fence: int | None) -> str:
    """Return the workflow of a task with a fence, or "" for a task without one."""
    return "" if fence is None else task_id.partition("/")[0]


def to_checkpoint(row: Row) -> CheckpointRow:
    """Return the checkpoint in a row of CHECKPOINT_COLUMNS."""
    values = dict(zip(CHECKPOINT_COLUMNS, row, strict=True))
    checkpoint_id, data = values.pop("id"), json.loads(values.pop("checkpoint_data"))

    return CheckpointRow(checkpoint_id=checkpoint_id, data=data, **values)


# Checkpoints of a phase.
#
# An attempt continues from the checkpoint of an earlier attempt in the same round, unless an earlier phase was repeated
# since, which may have changed what the work is built on. Work that was completed and then refused is done anew.
# Checkpoints are deleted once the end of the phase is stored: a crash before that repeats nothing.


#: Suffix of a command's own checkpoint file.
KIND = "checkpoint.json"
#: The runner whose phases also keep checkpoints in files, and the one that calls functions.
COMMAND, PYTHON = "command", "python"
#: The runners whose phases have checkpoints.
KEEPING = frozenset({COMMAND, PYTHON, STEPS})

logger = logging.getLogger("adw.checkpoints")


class PhaseCheckpoints:
    """Loads, saves and deletes the checkpoints of a phase under the fence of the attempt."""

    def __init__(self, manager: CheckpointManager, context: PhaseContext) -> None:
        self._manager = manager
        self._context = context
        self._task = task_of(context.document.adw_id, context.phase, context.round)
        self._fence = context.document.fence

    def latest(self) -> CheckpointRow | None:
        """Return the checkpoint to continue from, or None to begin the phase anew; stale checkpoints are deleted."""
        context = self._context
        document, phase, round_number = context.document, context.phase, context.round
        if context.attempt_number == 1:
            return None
        if is_first(document, phase, round_number):
            if round_number > 1:
                before = task_of(document.adw_id, phase, round_number - 1)
                self._manager.delete_checkpoints(before, fence=self._fence)
            return None
        row = self._manager.latest(self._task)
        if row is None or holds(row, context):
            return row
        try:
            self._manager.delete_checkpoints(self._task, fence=self._fence)
        except DatabaseError as exc:  # no attempt continues from them
            context.say(f"the checkpoints of phase {phase} could not be deleted: {exc}")

        return None

    def save(self, data: JsonObject, step_name: str | None = None) -> str:
        """Store *data*, durable on return; raise Fenced if the workflow was taken over."""
        return self._manager.save_checkpoint(self._task, data, step_name, fence=self._fence)


class PastCheckpoints:
    """Deletes the checkpoints of phases whose end is stored."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def forget(self, document: WorkflowDocument, phase: PhaseSpec, round_number: int) -> None:
        """
        Delete the checkpoints of a phase; those that cannot be deleted go with the workflow.

        The database is asked only if it may have one: the only attempt at a function was made in this process.
        """
        if phase.runner not in KEEPING:
            return
        manager, attempts = self._home.checkpoint_manager, _all_attempts(document, phase.name)
        is_only_here = phase.runner == PYTHON and len(attempts) == 1
        if is_only_here and not manager.saved:
            return
        task = task_of(document.adw_id, phase.name, round_number)
        if is_only_here and task not in manager.saved:
            return
        folder, is_command = self._home.folder_of(document.adw_id), phase.runner == COMMAND
        if is_command and len(attempts) == 1 and not AttemptFiles(folder, phase.name, attempts[0].number).has(KIND):
            return  # its only attempt ran here and left no file, so nothing was stored either
        try:
            if manager.latest(task) is not None:  # most phases have none, and a read is cheaper than a transaction
                manager.delete_checkpoints(task, fence=document.fence)
            for item in attempts if is_command else ():
                AttemptFiles(folder, phase.name, item.number).discard(KIND)
        except (DatabaseError, Fenced, OSError):
            said = {"action": "checkpoints_left", "workflow": document.adw_id, "phase": phase.name}
            logger.warning("Checkpoints of a phase that is over are left", extra=said, exc_info=True)


def holds(row: CheckpointRow, context: PhaseContext) -> bool:
    """Return whether the attempt may continue from *row*."""
    document, phase, round_number = context.document, context.phase, context.round
    done = [item.ended_at or "" for item in _attempts(document, phase, round_number) if _was_done(item)]

    return row.created_at >= valid_since(document, phase, round_number) and row.created_at > max(done, default="")


def is_first(document: WorkflowDocument, phase: str, round_number: int) -> bool:
    """Return whether the running attempt at *phase* is the first one in this round."""
    return len(_attempts(document, phase, round_number)) <= 1


def valid_since(document: WorkflowDocument, phase: str, round_number: int) -> str:
    """Return from when checkpoints are valid: the start of the round, or of the last attempt at an earlier phase."""
    before = takewhile(lambda record: record.name != phase, document.phases)
    starts = [item.started_at for record in before for item in record.attempts]

    return max([*starts, *(item.started_at for item in _attempts(document, phase, round_number)[:1])], default="")


def attempts_to_go_on_from(document: WorkflowDocument, phase: str, round_number: int) -> tuple[int, ...]:
    """Return the numbers of the attempts whose checkpoints are still valid, newest first."""
    since = valid_since(document, phase, round_number)
    earlier = reversed(_attempts(document, phase, round_number)[:-1])
    unfinished = takewhile(lambda item: not _was_done(item), earlier)

    return tuple(item.number for item in unfinished if item.started_at >= since)


def _was_done(attempt: AttemptRecord) -> bool:
    """Return whether an attempt did all of its work: it succeeded, or its work was refused."""
    return attempt.status == "succeeded" or bool((attempt.report or {}).get("was_done"))


def _attempts(document: WorkflowDocument, phase: str, round_number: int) -> list[AttemptRecord]:
    return [item for item in _all_attempts(document, phase) if item.round == round_number]


def _all_attempts(document: WorkflowDocument, phase: str) -> list[AttemptRecord]:
    return [item for record in document.phases if record.name == phase for item in record.attempts]


# The checkpoint of a command: a JSON file that it finds as an earlier attempt left it, and may rewrite.
#
# Each attempt has its own file, which survives the death of any process. After the attempt its content is also stored
# with the other checkpoints, as the next attempt may run on another machine. The newer of both is carried over.


#: The environment variable that names the file to the command.
VARIABLE = "ADW_CHECKPOINT_FILE"

_STEP = re.compile(r"attempt-([0-9]+)")


class CheckpointFile:
    """The checkpoint file of one attempt."""

    def __init__(
        self, context: PhaseContext, manager: CheckpointManager | None, scrub: Callable[[bytes], bytes]
    ) -> None:
        """Also store the checkpoint with *manager*; *scrub* removes secrets."""
        self._context = context
        self._kept = PhaseCheckpoints(manager, context) if manager is not None else None
        self._scrub = scrub
        self._stored: JsonObject | None = None  #: the data that the manager has

    def prepare(self) -> Path:
        """Write the last checkpoint to the file, or remove the file if none is stored, and return its path."""
        context = self._context
        row = self._kept.latest() if self._kept is not None else None
        data = self._stored = row.data if row else None
        stored_by = _STEP.fullmatch(row.step_name or "") if row is not None else None
        for number in attempts_to_go_on_from(context.document, context.phase, context.round):
            left = self._read(number)
            if left is not None and number >= (int(stored_by[1]) if stored_by else 0):
                data = left  # as new as the stored checkpoint, or newer
                break
        files = self._files(context.attempt_number)
        if data is None:
            files.discard(KIND)
            return files.path(KIND)

        return files.write(KIND, json.dumps(data, indent=1).encode())

    def save(self) -> None:
        """Store the checkpoint in the command's file; one that cannot be stored is reported and stays in the file."""
        number = self._context.attempt_number
        data = self._read(number)
        if self._kept is None or data is None or data == self._stored:
            return
        try:
            self._kept.save(data, f"attempt-{number}")
        except (DatabaseError, ValueError) as exc:
            self._context.say(f"the checkpoint of attempt {number} is kept in its file only: {exc}")

    def _read(self, number: int) -> JsonObject | None:
        """Return the checkpoint in an attempt's file, or None if it is unusable; secrets are removed from the file."""
        files = self._files(number)
        try:
            raw = files.read(KIND, max_bytes=MAX_BYTES)
            if not raw:
                return None
            clean = self._scrub(raw)
            if clean != raw:
                files.write(KIND, clean)
            result = json.loads(clean, parse_constant=_refuse_constant)
        except (TooLarge, UnsafePath, OSError, ValueError, RecursionError) as exc:
            self._context.say(f"the checkpoint file of attempt {number} cannot be used: {exc}")
            return None
        if not isinstance(result, dict):
            self._context.say(f"the checkpoint file of attempt {number} cannot be used: it must hold a JSON object")
            return None

        return result

    def _files(self, number: int) -> AttemptFiles:
        return AttemptFiles(self._context.folder, self._context.phase, number)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
