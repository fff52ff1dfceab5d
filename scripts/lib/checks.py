"""
Run the checks one after the other, all of them, and sum up.

Each check is a line of the table below. Coverage has two floors: every line and branch of words and rules, and
`[tool.adw.coverage] overall` for the rest. Which rooms are words and rules is read from the import contract.

Use: checks.py [name ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

#: Name of the contract in pyproject.toml whose last two layers are the rules and the words.
HOUSE_CONTRACT = "The house: conductors over hands over rules over words"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check is called {', '.join(unknown)}: there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2

    results = {name: _timed(name) for name in (names or CHECKS)}
    print(
        "\n"
        + "\n".join(f"{'ok    ' if ok else 'FAILED'} {name:8} {took:6.1f} s" for name, (ok, took) in results.items())
    )

    return 0 if all(ok for ok, _ in results.values()) else 1


def _timed(name: str) -> tuple[bool, float]:
    print(f"\n=== {name}", flush=True)
    started = time.monotonic()
    ok = CHECKS[name]()

    return ok, time.monotonic() - started


def _run(program: str, *args: str, env: Mapping[str, str] | None = None) -> bool:
    """Run a program of the virtual environment in the checkout; say whether it was content."""
    command = [str(BIN / program), *args]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, check=False).returncode == 0


def _docs() -> bool:
    script = ROOT / "scripts" / "docs"
    if not script.exists():
        print("no generated pages: scripts/docs is not there")
        return True
    return subprocess.run([str(script), "--check"], cwd=ROOT, check=False).returncode == 0


def _tests() -> bool:
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    workers = subprocess.run([ROOT / "scripts/lib/workers"], capture_output=True, text=True, check=True).stdout.strip()
    passed = _run("python", "-m", "pytest", "-n", workers, "--dist", "worksteal", "--cov", "--cov-report=")
    overall = _settings()["tool"]["adw"]["coverage"]["overall"]
    print(f"\nEverything: at least {overall} %")
    enough = _run("coverage", "report", "--skip-covered", f"--fail-under={overall}")
    print("\nWords and rules: 100 %")
    whole = _run("coverage", "report", "--show-missing", f"--include={','.join(pure_files())}", "--fail-under=100")

    return passed and enough and whole


def pure_files() -> list[str]:
    """Return the files of words and rules, which are covered completely: the last two layers of the house."""
    contracts = _settings()["tool"]["importlinter"]["contracts"]
    (house,) = [contract for contract in contracts if contract["name"] == HOUSE_CONTRACT]
    rooms = [room for layer in house["layers"][-2:] for room in re.findall(r"\w+", layer)]
    house = ROOT / "adws/adw_modules"
    files = [file for room in rooms for file in (house / f"{room}.py", *sorted((house / room).glob("*.py")))]

    return [str(file.relative_to(ROOT)) for file in files if file.exists()]


def _settings() -> dict[str, dict[str, dict[str, object]]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


CHECKS: Mapping[str, Callable[[], bool]] = {
    "format": lambda: _run("ruff", "format", "--check", "."),
    "lint": lambda: _run("ruff", "check", "."),
    "types": lambda: _run("mypy"),
    "imports": lambda: _run("lint-imports"),
    "docs": _docs,
    "tests": _tests,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
