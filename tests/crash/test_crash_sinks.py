"""
Writers of sinks that are killed at each of their system calls; whoever saves the same again finds all of it once.

Each test runs `sink_driver.py` as a program: it forks, and forking is only safe in a process without threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.strace
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["first", "later"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "sqlite"])
def test_a_part_whose_writer_was_killed_anywhere_is_there_once_after_it_is_saved_again(kind, part, tmp_path, repeat):
    """
    Not lost, not twice, not torn; and the part that somebody else saved in between is whole too.
    """
    if (kind, part) in {("csv", "later"), ("sqlite", "first")} and repeat(0, 1) == 0:
        pytest.skip(
            "tried in the soak: files of lines share their way of writing, and a later part of a table comes here"
        )
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.sink_driver", kind, str(tmp_path / "place"), part],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert {"pwrite64", "fdatasync"} <= report["syscalls"].keys(), "nothing was written: nothing was tested"
    assert report["killed"] >= (40 if part == "first" and kind != "sqlite" else 12)
