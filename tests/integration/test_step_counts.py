"""What nine phases that do nothing cost, in counts that do not depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "step_counts.py"


def counts_of(store: str) -> dict[str, int]:
    """Count in a process of its own: handlers of the test runner would be counted too."""
    done = subprocess.run([sys.executable, SCRIPT, store], capture_output=True, text=True, check=True)

    return json.loads(done.stdout)


def test_nine_phases_in_the_database_take_12_commits_and_5300_function_calls():
    counts = counts_of("database")

    assert counts["commits"] <= 12, counts
    assert counts["calls"] <= 5_300, counts


def test_nine_phases_in_files_take_14_durable_writes_and_6000_function_calls():
    counts = counts_of("files")

    assert counts["commits"] + counts["replaces"] <= 14, counts
    assert counts["calls"] <= 6_000, counts
