"""
What was saved to a file, by key: a small SQLite database beside it.

A part is written down before it is in the file (`intend`, durable when it returns) and settled when it is. At most one
part is not settled: the one whose writer vanished, or is at it; whoever has the file's lock next looks after it.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules.errors import DatabaseUnavailable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS parts (
  sink_key TEXT PRIMARY KEY, start INTEGER NOT NULL, length INTEGER NOT NULL, sha256 TEXT NOT NULL,
  is_settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_parts ON parts (is_settled) WHERE is_settled = 0;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one call saved, or was about to."""

    sink_key: str
    start: int  #: where in the file, in bytes
    length: int
    sha256: str


class SinkLedger:
    """The parts of one file. Whoever uses it has the lock of that file."""

    def __init__(self, path: Path, *, patience_seconds: float = 30.0) -> None:
        """Open the ledger *path*, or make it."""
        self._path = path
        try:
            # Another thread may close it: that of the worker, when those that saved have ended.
            self._connection = sqlite3.connect(
                path, isolation_level=None, timeout=patience_seconds, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as exc:
            with suppress(AttributeError):
                self._connection.close()
            raise self._error(exc) from exc

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def has(self, sink_key: str) -> bool:
        """Say whether the part *sink_key* is in the file."""
        sql = "SELECT 1 FROM parts WHERE sink_key = ? AND is_settled = 1"

        return bool(self._run(sql, (sink_key,)))

    def unsettled(self) -> Part | None:
        """Return the part of which nobody knows whether it is in the file."""
        found = self._run("SELECT sink_key, start, length, sha256 FROM parts WHERE is_settled = 0", ())

        return Part(sink_key=found[0][0], start=found[0][1], length=found[0][2], sha256=found[0][3]) if found else None

    def intend(self, sink_key: str, *, start: int, length: int, sha256: str) -> None:
        """Write down that a part is about to be written; durable when this returns."""
        self._run("PRAGMA synchronous = FULL", ())
        self._run(
            "INSERT INTO parts (sink_key, start, length, sha256) VALUES (?, ?, ?, ?)",
            (sink_key, start, length, sha256),
        )

    def settle(self, sink_key: str) -> None:
        """Write down that a part is in the file; when a power cut loses this, the file itself is looked at."""
        self._run("PRAGMA synchronous = NORMAL", ())
        self._run("UPDATE parts SET is_settled = 1 WHERE sink_key = ?", (sink_key,))

    def drop(self, sink_key: str) -> None:
        """Forget a part that is not in the file."""
        self._run("PRAGMA synchronous = FULL", ())
        self._run("DELETE FROM parts WHERE sink_key = ? AND is_settled = 0", (sink_key,))

    def _run(self, sql: str, params: tuple[object, ...]) -> list[tuple[str, int, int, str]]:
        try:
            return self._connection.execute(sql, params).fetchall()
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def _error(self, exc: sqlite3.Error) -> DatabaseUnavailable:
        return DatabaseUnavailable(f"cannot use {self._path}, which knows what the file beside it holds: {exc}")
