"""
How long `adw` takes to start, beside what Python and click take without it, in one interleaved run.

    python scripts/bench/cli_startup.py [--rounds 30]

`adw --help` may take 1.5 times `python -c 'import click'`, `adw status ID` 4.5 times. Exit code 1: one takes longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import verdict

from adws import app
from adws.adw_modules import document, timestamps
from adws.config import load as config_load

HELP_LIMIT, STATUS_LIMIT = 1.5, 4.5
ADW_ID = "1a2b3c4d"
PHASES = ("planning", "building", "linting", "testing", "reviewing", "documenting", "shipping", "cleaning")


def make_home(home: Path) -> None:
    """Make a home with one workflow in it."""
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    with app.open_home(config_load.load(env={}, cwd=home)) as parts:
        now = timestamps.to_text(parts.clock.now())
        draft = document.WorkflowDocument(
            adw_id=ADW_ID,
            issue_number=7,
            issue=document.FrozenIssue(title="Measure the start-up"),
            workflow=document.WorkflowRef(name="sdlc"),
            phases=[document.PhaseRecord(name=name, state=name) for name in PHASES],
            created_at=now,
            updated_at=now,
        )
        with parts.ownership.create(draft):
            pass


def seconds(command: list[str], home: Path) -> float:
    """Return how long *command* takes, from its start to its end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ADW_", "PYTHON"))}
    # Compiled code is used as in any installation, also in a checkout that may not be written; it is made by the first
    # turns, for the yardstick too.
    env["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
    start = time.perf_counter()
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.decode()}")

    return taken


def measure(rounds: int, home: Path) -> dict[str, float]:
    """Return the median time of each command; they take turns, so that a busy moment meets all of them."""
    adw = str(Path(sysconfig.get_path("scripts")) / "adw")
    commands = {
        "import click": [sys.executable, "-c", "import click"],
        "adw --help": [adw, "--help"],
        "adw status": [adw, "status", ADW_ID],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 2):
        for name, command in commands.items():
            taken = seconds(command, home)
            if turn >= 2:  # the first turns fill the caches
                times[name].append(taken)

    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Measure, print, and return 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description="Measure the start-up time of adw.")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        make_home(Path(directory))
        medians = measure(rounds, Path(directory))
    yardstick = medians["import click"]
    print(f"  {'import click':<14}{yardstick * 1000:7.1f} ms  (median of {rounds}, Python {sys.version.split()[0]})")
    failed = False
    for name, limit in (("adw --help", HELP_LIMIT), ("adw status", STATUS_LIMIT)):
        print(f"  {name:<14}{medians[name] * 1000:7.1f} ms")
        failed |= not verdict.tell(f"{name} beside import click", medians[name] / yardstick, most=limit)

    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
