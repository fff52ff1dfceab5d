"""
The checkpoint of a command: a JSON file that it finds as an earlier attempt left it, and may rewrite.

The file is one of the attempt's own, so it is there after anything that was killed. After the attempt it is stored with
the other checkpoints as well: the next attempt may be made on another machine. The newer of both is carried over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.checkpoint import MAX_BYTES, CheckpointManager
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.runners.phase_checkpoints import KIND, PhaseCheckpoints, attempts_to_go_on_from
from adws.adw_modules.errors import DatabaseError, UnsafePath
from adws.adw_modules.interfaces_durability import CheckpointRow
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject

#: The variable that names the file to the command.
VARIABLE = "ADW_CHECKPOINT_FILE"

_STEP = re.compile(r"attempt-([0-9]+)")


class CheckpointFile:
    """The checkpoint file of one attempt."""

    def __init__(
        self, context: PhaseContext, manager: CheckpointManager | None, scrub: Callable[[bytes], bytes]
    ) -> None:
        """Keep it with *manager* too; *scrub* takes secrets out."""
        self._context = context
        self._kept = PhaseCheckpoints(manager, context) if manager is not None else None
        self._scrub = scrub
        self._stored: JsonObject | None = None  #: what the manager has

    def lay_out(self) -> Path:
        """Put the last checkpoint into the file, or take it away when there is none, and return where it is."""
        row = self._kept.latest() if self._kept is not None else None
        self._stored = row.data if row else None
        data = next((data for number, data in self._left_behind() if number >= _attempt_of(row)), self._stored)
        files = self._files(self._context.attempt_number)
        if data is None:
            files.discard(KIND)
            return files.path(KIND)

        return files.write(KIND, json.dumps(data, indent=1).encode())

    def save(self) -> None:
        """Store what the command left in the file; what cannot be stored is told and stays in the file."""
        number = self._context.attempt_number
        data = self._read(number)
        if self._kept is None or data is None or data == self._stored:
            return
        try:
            self._kept.save(data, f"attempt-{number}")
        except (DatabaseError, ValueError) as exc:
            self._context.say(f"the checkpoint of attempt {number} is kept in its file only: {exc}")

    def _left_behind(self) -> Iterator[tuple[int, JsonObject]]:
        """Yield the attempts that left a whole checkpoint in their file, newest first, each with that checkpoint."""
        context = self._context
        for number in attempts_to_go_on_from(context.document, context.phase, context.round):
            data = self._read(number)
            if data is not None:
                yield number, data

    def _read(self, number: int) -> JsonObject | None:
        """Return what is in the file of an attempt, None when nothing of use is; secrets are taken out of it."""
        files = self._files(number)
        try:
            raw = files.read(KIND, max_bytes=MAX_BYTES)
            if not raw:
                return None
            clean = self._scrub(raw)
            if clean != raw:
                files.write(KIND, clean)
            found = json.loads(clean, parse_constant=_refuse_constant)
        except (TooLarge, UnsafePath, OSError, ValueError, RecursionError) as exc:
            self._context.say(f"the checkpoint file of attempt {number} cannot be used: {exc}")
            return None
        if not isinstance(found, dict):
            self._context.say(f"the checkpoint file of attempt {number} cannot be used: it must hold a JSON object")
            return None

        return found

    def _files(self, number: int) -> AttemptFiles:
        return AttemptFiles(self._context.folder, self._context.phase, number)


def _attempt_of(row: CheckpointRow | None) -> int:
    """Return the attempt that stored *row*, 0 when there is none."""
    match = _STEP.fullmatch(row.step_name or "") if row is not None else None

    return int(match[1]) if match else 0


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
