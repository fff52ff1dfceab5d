"""
Owners that are stopped, paused and taken over while others write: no stale write is ever accepted.

Each test runs `storm_leases.py` as a program: it forks, and forking is only safe in a process without threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).with_name("storm_leases.py")
PROCESSES = 6


@pytest.fixture(
    params=["files", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
def kept_in(request) -> tuple[str, str]:
    """The store, and the URL of its database; "": the home's own."""
    if request.param == "postgresql":
        return "database", request.getfixturevalue("pg_url")

    return ("files" if request.param == "files" else "database"), ""


@pytest.mark.timeout(900)
def test_no_stale_write_is_accepted_however_owners_are_stopped(kept_in, tmp_path, seed, repeat):
    """
    Revisions have no gap, and each is written under the highest fence that was taken by then.

    6 processes with leases of 0.3 s pause, and are stopped, for up to three times as long.
    """
    writes = repeat(15, 500)

    result = _storm(tmp_path / "home", *kept_in, writes=writes, seed=seed)

    assert result["problems"] == [], result["said"]
    assert result["counts"]["saved"] >= writes
    assert result["counts"]["takeovers"] >= 3, "nobody was too slow: nothing was tested"
    assert result["counts"]["stubborn refused"] >= 3, "nobody wrote too late: nothing was tested"


def _storm(home: Path, store: str, url: str, *, writes: int, seed: int) -> dict:
    """Run the storm and return what it found; fail with its last words when it broke."""
    options = {"--processes": PROCESSES, "--writes": writes, "--seed": seed}
    done = subprocess.run(
        [sys.executable, str(STORM), str(home), store, *(str(word) for pair in options.items() for word in pair)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(STORM.parents[2]), "ADW_DATABASE_URL": url},
    )
    assert done.returncode == 0, done.stderr[-2000:]

    return {**json.loads(done.stdout), "said": done.stderr[-2000:]}
