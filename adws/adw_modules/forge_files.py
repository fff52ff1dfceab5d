"""
The files of a local forge: one JSON file for each issue and pull request, in a directory that anybody can read.

A file is replaced whole and durably. Numbers only grow, also when what had the last one is gone: the count is written
before whatever gets the number. Changes happen one at a time, in this and every other process, under one file lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.durable_replace import replace_file
from adws.adw_modules.errors import (
    ForgeBusy,
    LockUnavailable,
    StateCorrupt,
    StateReadFailed,
    StateWriteFailed,
    UnsafePath,
)
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject, JsonValue

ISSUES, PULLS = "issues", "pulls"
#: Counters of numbers (issues and pull requests share them) and of comments.
NUMBER, COMMENT = "last_number", "last_comment"

#: Seconds that a change waits for its turn.
TURN_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_COUNTS = "forge.json"
_LOCK = ".lock"
_MAX_BYTES = 64 * 1024 * 1024


class ForgeFiles:
    """The directory of a local forge."""

    def __init__(self, root: Path, *, clock: Clock) -> None:
        self.root = root
        self._clock = clock

    def prepare(self) -> None:
        """Make the directories; nothing happens when they are there."""
        for place in (self.root, self.root / ISSUES, self.root / PULLS):
            try:
                durable_file.make_directory(str(place))
            except OSError as exc:
                raise StateWriteFailed(str(place), exc) from exc

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Change files inside the block: nobody else does meanwhile. Raises ForgeBusy when others take too long."""
        path = self.root / _LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, durable_file.NEW_FILE_MODE)
        except OSError as exc:
            raise LockUnavailable(str(path), exc) from exc
        try:
            self._wait_for(fd)
            yield
        finally:
            os.close(fd)  # the file stays: two processes could hold "the" lock on two different files

    def _wait_for(self, fd: int) -> None:
        until = self._clock.monotonic() + TURN_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic() >= until:
                    raise ForgeBusy(1.0, f"somebody else is changing {self.root}") from None
                self._clock.sleep(_LOOK_SECONDS)
            else:
                return

    def next_number(self, counter: str) -> int:
        """Return a number that was never given before; inside `turn` only."""
        counts = self._read(self.root / _COUNTS) or {}
        number = max(_whole(counts.get(counter)), self._highest(counter)) + 1
        self._replace(_COUNTS, self.root, {**counts, counter: number})

        return number

    def _highest(self, counter: str) -> int:
        """Return the highest number in use: files may have been put here by hand, and the counts may be lost."""
        if counter == NUMBER:
            return max((*self.numbers(ISSUES), *self.numbers(PULLS)), default=0)
        found = [self.read(kind, number) or {} for kind in (ISSUES, PULLS) for number in self.numbers(kind)]

        return max((_whole(one.get("id")) for data in found for one in objects_in(data, "comments")), default=0)

    def people(self) -> dict[str, str]:
        """Return who may do what, as the file says: `{"people": {"alice": "write"}}`."""
        found = (self._read(self.root / _COUNTS) or {}).get("people")

        return {name: said for name, said in found.items() if isinstance(said, str)} if isinstance(found, dict) else {}

    def numbers(self, kind: str) -> tuple[int, ...]:
        """Return the numbers there are, highest first."""
        try:
            names = [path.name for path in (self.root / kind).iterdir()]
        except FileNotFoundError:
            return ()
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))

        return tuple(sorted((int(stem) for stem in stems if stem.isascii() and stem.isdigit()), reverse=True))

    def read(self, kind: str, number: int) -> JsonObject | None:
        """Return what a file says, None when there is none; raise StateCorrupt for one that is no JSON object."""
        return self._read(self.root / kind / f"{number}.json")

    def write(self, kind: str, number: int, data: JsonObject) -> None:
        """Replace a file, durably; inside `turn` only."""
        self._replace(f"{number}.json", self.root / kind, data)

    def _read(self, path: Path) -> JsonObject | None:
        try:
            payload, _ = durable_file.read_file(str(path), max_bytes=_MAX_BYTES)
            data = json.loads(payload)
        except FileNotFoundError:
            return None
        except UnsafePath:
            raise
        except (ValueError, durable_file.TooLarge) as exc:
            raise StateCorrupt(str(path), str(exc), "correct the file, or move it away") from exc
        except OSError as exc:
            raise StateReadFailed(str(path), exc) from exc
        if not isinstance(data, dict):
            raise StateCorrupt(str(path), "it is no JSON object", "correct the file, or move it away")

        return data

    def _replace(self, name: str, folder: Path, data: JsonObject) -> None:
        payload = json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
        path = str(folder / name)
        try:
            directory = durable_file.open_directory(str(folder))
        except OSError as exc:
            raise StateWriteFailed(path, exc) from exc
        try:
            replace_file(directory, name, payload, path=path)
        finally:
            durable_file.close_quietly(directory)


def objects_in(data: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of the list under *name*."""
    found = data.get(name)

    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
