"""
Kill a writer of a sink at each of its system calls, save again, and look at what is there.

Run by `test_crash_sinks` as a program of its own, so that forking is safe. Prints one JSON object; `problems` is empty
when every part is there once and whole.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

from adws.adw_modules.steps.sinks import LineFiles, SqliteSink
from tests.crash.driver import attach, wait_stopped

#: Rows of a part: enough that a part is more than a page of memory.
ROWS = 3
FILLER = "x" * 2000
#: Calls that only look: a writer killed at one of them leaves what one leaves that is killed at the next that changes.
LOOKING = {"newfstatat", "fstat", "stat", "lstat", "statx", "lseek", "read", "pread64", "getdents64", "fcntl", "close"}


def rows_of(key: str) -> list[dict]:
    """Return the rows that are saved under *key*."""
    return [{"key": key, "row": number, "filler": FILLER} for number in range(ROWS)]


class Sink:
    """One kind of sink in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self._files = LineFiles()
        self._database = SqliteSink(folder / "user.db")

    def save(self, key: str) -> None:
        """Save the part *key*."""
        if self.kind == "sqlite":
            self._database.save("t", rows_of(key), sink_key=key, key=())
        elif self.kind == "csv":
            self._files.save(rows_of(key), root=self.folder, path="t.csv", sink_key=key, delimiter=",")
        else:
            self._files.save(rows_of(key), root=self.folder, path="t.jsonl", sink_key=key)

    def close(self) -> None:
        """Let go of it."""
        self._files.close()
        self._database.close()


def found(kind: str, folder: Path) -> list[tuple[str, int, str]]:
    """Return every row that is there, as somebody sees it who knows nothing of adw."""
    if kind == "sqlite":
        connection = sqlite3.connect(folder / "user.db")
        try:
            return connection.execute("SELECT key, row, filler FROM t ORDER BY rowid").fetchall()
        finally:
            connection.close()
    if kind == "csv":
        lines = (folder / "t.csv").read_text().splitlines()
        parts = [line.split(",") for line in lines[1:]]
        return [(key, int(row), filler) for key, row, filler in parts] if lines[0] == "key,row,filler" else []
    rows = [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()]
    return [(row["key"], row["row"], row["filler"]) for row in rows]


def start(kind: str, folder: Path, keys: list[str], last: str) -> int:
    """Fork a writer that saves *keys*, stops itself, and saves *last* when it is continued."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        sink = Sink(kind, folder)
        for key in keys:
            sink.save(key)
        os.kill(os.getpid(), signal.SIGSTOP)
        sink.save(last)
        code = 0
    except BaseException as exc:  # noqa: BLE001 - the exit code is how the child speaks
        os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
    os._exit(code)


def traced(kind: str, folder: Path, keys: list[str], last: str, inject: str | None) -> int:
    """Let a writer save *last* under strace and return how it ended."""
    pid = start(kind, folder, keys, last)
    wait_stopped(pid)
    tracer = attach(pid, folder / "strace.log", inject)
    os.kill(pid, signal.SIGCONT)
    _, status = os.waitpid(pid, 0)
    tracer.wait()
    tracer.stderr.close()
    return os.waitstatus_to_exitcode(status)


def save_again(kind: str, folder: Path, *keys: str) -> None:
    """Save parts as whoever makes the call again does."""
    sink = Sink(kind, folder)
    for key in keys:
        sink.save(key)
    sink.close()


def kill_at_each_call(kind: str, place: Path, *, is_first: bool) -> dict:
    """Kill the writer of the first or of a later part at every system call it makes."""
    before = [] if is_first else ["warm"]
    plain = place / "plain"
    plain.mkdir(parents=True)
    if traced(kind, plain, before, "part", None):
        raise SystemExit("the writer failed without any fault")
    counts: dict[str, int] = {}
    for line in (plain / "strace.log").read_text().splitlines():
        name = line.split("(")[0]
        if name.isidentifier() and name not in LOOKING:
            counts[name] = counts.get(name, 0) + 1
    problems, killed, cases = [], 0, 0
    for name, times in sorted(counts.items()):
        for number in range(1, times + 1):
            folder = place / f"{name}-{number}"
            folder.mkdir()
            cases += 1
            killed += traced(kind, folder, before, "part", f"{name}:signal=KILL:when={number}") == -signal.SIGKILL
            # First somebody else's part, then the one that was cut off, and once more.
            save_again(kind, folder, "other", "part", "part")
            there = found(kind, folder)
            keys = [key for key, _, _ in there]
            right = {key: [(key, row, FILLER) for row in range(ROWS)] for key in {*before, "part", "other"}}
            if any([one for one in there if one[0] == key] != right[key] for key in right) or {*keys} != {*right}:
                problems.append(f"{name} #{number}: {[(key, row) for key, row, _ in there]}")
    return {"syscalls": counts, "cases": cases, "killed": killed, "problems": problems}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(kill_at_each_call(sys.argv[1], Path(sys.argv[2]), is_first=sys.argv[3] == "first")))
