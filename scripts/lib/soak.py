"""
Run every test with its full counts and write down on tests/soak.md what was run, where, and how it ended.

Then the workflows with faults, in a process of their own (`soak_workflows.py`), unless only some tests were asked for.
The seed is printed first and written last: `scripts/soak/all --seed N` plays the run again.

Use: soak.py [--seed N] [arguments for pytest ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "soak.md"

#: Packages whose behaviour the results depend on.
PACKAGES = ("adw", "psycopg", "pydantic", "SQLAlchemy", "pytest", "hypothesis")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test of the run."""

    name: str
    outcome: str  #: passed | failed | skipped
    reason: str  #: why it was skipped or what failed, one line
    seconds: float
    repeats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The whole run."""

    seed: int
    started_at: datetime
    seconds: float
    arguments: tuple[str, ...]
    exit_code: int
    cases: tuple[Case, ...]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak/all", description="Run every test with its full counts.")
    parser.add_argument("--seed", type=int, help="play a run again")
    chosen, rest = parser.parse_known_args(arguments)
    seed = chosen.seed if chosen.seed is not None else secrets.randbelow(2**32)
    print("\n".join([f"seed: {seed}", *(f"{name}: {value}" for name, value in machine().items())]), flush=True)

    run = _soak(seed, tuple(rest))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(run))
    print(f"\nwrote {PAGE.relative_to(ROOT)}\n", flush=True)
    workflows = (
        0 if rest else subprocess.run([ROOT / "scripts/soak/workflows", "--seed", str(seed)], check=False).returncode
    )

    return run.exit_code or workflows


def _soak(seed: int, arguments: tuple[str, ...]) -> Run:
    workers = subprocess.run([ROOT / "scripts/lib/workers"], capture_output=True, text=True, check=True).stdout.strip()
    started_at, started = datetime.now(UTC), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adw-soak-") as place:
        report = Path(place) / "report.xml"
        # Full counts take as long as they take: no limit for each test.
        options = ["-n", workers, "--dist", "worksteal", "-o", "timeout=0", f"--hypothesis-seed={seed}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *arguments],
            cwd=ROOT,
            env={**os.environ, "ADW_SOAK": "1", "ADW_TEST_SEED": str(seed)},
            check=False,
        )
        cases = read_report(report.read_text()) if report.exists() else ()

    return Run(
        seed=seed,
        started_at=started_at,
        seconds=time.monotonic() - started,
        arguments=arguments,
        exit_code=done.returncode,
        cases=cases,
    )


def read_report(xml: str) -> tuple[Case, ...]:
    """Return the tests in a JUnit report of pytest."""
    return tuple(_case(element) for element in ET.fromstring(xml).iter("testcase"))


def _case(element: ET.Element) -> Case:
    troubles = [child for child in element if child.tag in {"failure", "error", "skipped"}]
    outcome = "passed"
    if troubles:
        outcome = "skipped" if troubles[0].tag == "skipped" else "failed"
    repeats = [p.get("value", "") for p in element.iter("property") if p.get("name") == "repeat"]

    return Case(
        name=f"{element.get('classname', '').replace('.', '/')}::{element.get('name', '')}",
        outcome=outcome,
        reason=(troubles[0].get("message") or "").split("\n")[0] if troubles else "",
        seconds=float(element.get("time", "0")),
        repeats=tuple(repeats),
    )


def machine() -> dict[str, str]:
    """Return what the machine is: enough to judge the numbers, nothing that names it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system of the tests": _file_system(Path(tempfile.gettempdir())),
        "root": "yes" if os.geteuid() == 0 else "no",
        "strace": "yes" if shutil.which("strace") else "no",
    }


def _file_system(path: Path) -> str:
    """Return the type of the file system below *path*, as the kernel lists its mounts."""
    table = Path("/proc/self/mounts")
    if not table.exists():
        return "unknown"
    mounts = [line.split()[1:3] for line in table.read_text().splitlines()]
    above = [(len(Path(point).parts), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]

    return max(above)[1]


def versions() -> dict[str, str]:
    """Return the versions that matter."""
    installed = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    packages = {name: installed.get(name.lower(), "not installed") for name in PACKAGES}

    return {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version, **packages}


def page(run: Run) -> str:
    """Return the result page."""
    counts = {what: sum(case.outcome == what for case in run.cases) for what in ("passed", "failed", "skipped")}
    outcome = "passed" if run.exit_code == 0 else f"FAILED (exit code {run.exit_code})"
    facts = {
        "outcome": outcome,
        "date": run.started_at.strftime("%Y-%m-%d %H:%M UTC"),
        "seed": str(run.seed),
        "duration": f"{run.seconds:.0f} s",
        "tests": ", ".join(f"{count} {what}" for what, count in counts.items()),
        "only": " ".join(run.arguments) or "everything",
        **machine(),
        **versions(),
    }
    repeated = [case for case in run.cases if case.repeats]
    parts = [
        "# The last soak\n",
        "Written by `scripts/soak/all`: every test with its full counts.\n",
        f"Again: `scripts/soak/all --seed {run.seed}`.\n",
        table(("", ""), list(facts.items())),
        "\n## Tests that repeat\n",
        table(("test", "times", "outcome", "seconds"), [_row(case, ", ".join(case.repeats)) for case in repeated]),
        "\n## Failed and skipped\n",
        table(
            ("test", "why", "outcome", "seconds"),
            [_row(case, case.reason) for case in run.cases if case.outcome != "passed"],
        ),
    ]
    return "\n".join(parts)


def _row(case: Case, what: str) -> tuple[str, ...]:
    return f"`{case.name}`", what, case.outcome, f"{case.seconds:.1f}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table for a page."""
    if not rows:
        return "None.\n"
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
