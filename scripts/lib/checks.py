"""
Run the checks one after the other, all of them, and sum up.

Each check is a line of the table below. Coverage has two floors in `[tool.adw.coverage]`: every line and branch of the
pure modules listed under `complete`, and `overall` for everything.

Use: checks.py [name ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


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
    print("\nPure modules: 100 %")
    whole = _run("coverage", "report", "--show-missing", f"--include={','.join(pure_files())}", "--fail-under=100")

    return passed and enough and whole


def pure_files() -> list[str]:
    """Return the files whose every line and branch is covered; a name in the list that is no file is an error."""
    files: list[Path] = []
    for name in _settings()["tool"]["adw"]["coverage"]["complete"]:
        place = ROOT / "adws/adw_modules" / name
        if not place.exists():
            raise SystemExit(f"pyproject.toml: [tool.adw.coverage] complete names {name}, which is not there")
        files += sorted(place.glob("*.py")) if place.is_dir() else [place]

    return [str(file.relative_to(ROOT)) for file in files]


def _settings() -> dict[str, Any]:
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
