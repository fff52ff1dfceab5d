"""Workers and command lines that are killed or stopped in the middle of whole workflows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("engine_driver.py")


def drive(command: str, home: Path, store: str, *, count: int, seed: int) -> dict:
    """Run the driver and return what it found."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), command, str(home), store, "--count", str(count), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={**os.environ, "PYTHONPATH": str(DRIVER.parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]

    return json.loads(done.stdout)


@pytest.mark.parametrize("store", ["files", "database"])
def test_workflows_survive_kills_at_any_moment_with_every_attempt_counted(store, tmp_path, seed, repeat):
    count = repeat(6, 1000)
    result = drive("kills", tmp_path / "homes", store, count=count, seed=seed)

    assert result["problems"] == []
    assert result["kills"] == count


@pytest.mark.parametrize("store", ["files", "database"])
def test_ordered_stops_in_a_row_use_up_no_attempt(store, tmp_path, seed, repeat):
    result = drive("suspensions", tmp_path / "home", store, count=repeat(3, 19), seed=seed)

    assert result["problems"] == []


@pytest.mark.parametrize("store", ["files", "database"])
def test_carrying_a_workflow_on_survives_a_kill_at_any_call(store, tmp_path, seed, repeat):
    """The lock, the document, the run: recovery finds all of them or none."""
    count = repeat(6, 300)
    result = drive("continues", tmp_path / "home", store, count=count, seed=seed)

    assert result["problems"] == []
    assert result["kills"] == count
