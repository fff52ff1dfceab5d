"""
Checkpoints: what a task keeps, so that it goes on from there after a failure instead of starting again.

What is loaded is what was saved: data that would not come back from JSON as it is, is refused. The order is that of
saving and not of any clock. A checkpoint is durable when `save_checkpoint` returns.
"""

from __future__ import annotations

import json
import os
from enum import Enum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from adws.adw_modules import ambient
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_durability import CheckpointRow, CheckpointStore
from adws.adw_modules.json_value import JsonObject

#: Most bytes of one checkpoint, as JSON: larger things belong into a file that the checkpoint names.
MAX_BYTES = 1 << 20
#: How many checkpoints of a task are kept unless the caller says otherwise.
KEEP = 10
#: Most characters of the name of a task or a step.
MAX_NAME = 255


class Home(Enum):
    """What stands for the database of a home."""

    HERE = "here"  #: that of the home we are in


@runtime_checkable
class _Store(CheckpointStore, Protocol):
    """A `CheckpointStore`, told by its methods."""


class CheckpointManager:
    """Saves, loads and deletes the checkpoints of tasks."""

    def __init__(
        self,
        db: CheckpointStore | str | os.PathLike[str] | Home = Home.HERE,
        *,
        clock: Clock | None = None,
        keep: int = KEEP,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Use the store *db*, or the database of that path or URL; left out, that of the home we are in.

        Raises TypeError for anything else, None included. The newest *keep* checkpoints of a task are kept, each of at
        most *max_bytes*.
        """
        if not 1 <= keep <= 1000:
            raise UsageError(f"keep is {keep}: give a number from 1 to 1000")
        if max_bytes < 1:
            raise UsageError(f"max_bytes is {max_bytes}: give a number from 1 up")
        self._opened = ambient.open_checkpoints(os.fspath(db)) if isinstance(db, str | os.PathLike) else None
        self._store = self._opened.store if self._opened else _given(db)
        self._clock = clock or (self._opened.clock if self._opened else None)
        self._keep = keep
        self._max_bytes = max_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of a database that was opened by its path or URL; a store that was given stays open."""
        if self._opened is not None:
            self._opened.close()

    def save_checkpoint(
        self, task_id: str, data: JsonObject, step_name: str | None = None, *, fence: int | None = None
    ) -> str:
        """
        Store *data* as the latest checkpoint of *task_id*, durable on return, and return its id, a UUID.

        Raises TypeError when *data* is no dict, ValueError when it is too large or JSON cannot carry it unchanged.
        *fence* is given for a phase of a workflow, see `CheckpointStore`.
        """
        _check_name(task_id, "task_id")
        if step_name is not None:
            _check_name(step_name, "step_name")
        body = _to_text(data)
        if len(body) > self._max_bytes:
            raise UsageError(
                f"the checkpoint of {task_id} has {len(body)} bytes, the limit is {self._max_bytes}: keep large things "
                "in a file and its path in the checkpoint"
            )
        clock = self._clock or ambient.parts().clock
        made = _uuid(clock.token())

        return self._store.add(made, task_id, body, step_name=step_name, keep=self._keep, fence=fence).checkpoint_id

    def load_checkpoint(self, task_id: str) -> JsonObject | None:
        """Return the data that was saved last, None when there is no checkpoint."""
        found = self.latest(task_id)

        return None if found is None else found.data

    def latest(self, task_id: str) -> CheckpointRow | None:
        """Return the checkpoint that was saved last, with its step and its moment, None when there is none."""
        return self._store.latest(_check_name(task_id, "task_id"))

    def list_checkpoints(self, task_id: str) -> tuple[CheckpointRow, ...]:
        """Return the checkpoints that are kept, oldest first."""
        return self._store.all_of(_check_name(task_id, "task_id"))

    def delete_checkpoints(self, task_id: str, *, fence: int | None = None) -> int:
        """Delete all checkpoints of *task_id* and return how many there were."""
        return self._store.delete(_check_name(task_id, "task_id"), fence=fence)


def task_of(adw_id: str, phase: str, round_number: int = 1) -> str:
    """
    Return the task that a phase of a workflow is: `<adw_id>/<phase>`, with `/<round>` when it is done anew.

    A phase that is done anew does not go on from where an earlier round stood: what that had made may be gone.
    """
    return f"{adw_id}/{phase}" if round_number <= 1 else f"{adw_id}/{phase}/{round_number}"


def _uuid(token: str) -> str:
    """Return 32 random hex digits as a UUID of version 4, which says so in two of them."""
    variant = "89ab"[int(token[16], 16) % 4]

    return f"{token[:8]}-{token[8:12]}-4{token[13:16]}-{variant}{token[17:20]}-{token[20:]}"


def _given(db: object) -> CheckpointStore:
    """Return the store that *db* is or stands for; raise TypeError when it is none."""
    if isinstance(db, _Store):
        return db
    if isinstance(db, Home):
        return ambient.parts().checkpoints

    raise TypeError(
        f"CheckpointManager got {'None' if db is None else type(db).__name__}: give it a CheckpointStore, the path or "
        "URL of a database, or nothing for the home you are in"
    )


def _check_name(name: object, what: str) -> str:
    """Return *name* when it can be the name of a task or a step; raise TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a text, and is {type(name).__name__}")
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise UsageError(f"{what} {name[:60]!r} is no name: use 1 to {MAX_NAME} printable characters")

    return name


def _to_text(data: object) -> str:
    """Return *data* as JSON; raise TypeError when it is no dict, ValueError when it would not come back as it is."""
    if not isinstance(data, dict):
        raise TypeError(f"a checkpoint must be a dict, and is {type(data).__name__}")
    try:
        text = json.dumps(data, allow_nan=False)
        changed = _first_change(data, json.loads(text), "data")
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"the checkpoint cannot be written as JSON: {exc}") from exc
    if changed:
        raise UsageError(f"the checkpoint would not come back from JSON as it is: {changed}")

    return text


def _first_change(saved: object, loaded: object, where: str) -> str:
    """Return where *loaded* is not what was *saved*, in words, "" when it is nowhere."""
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
