"""Running a driver of this folder as a program: it forks, and forking is only safe in a process without threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent


def drive(driver: str, *args: object, env: Mapping[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> Any:
    """Run `tests/crash/DRIVER.py` and return its report; fail with its last words when it broke."""
    done = subprocess.run(
        [sys.executable, str(PLACE / f"{driver}.py"), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PLACE.parents[1]), **(env or {})},
    )
    assert done.returncode in codes, done.stderr[-3000:]
    assert done.stdout.strip(), done.stderr[-3000:]

    return json.loads(done.stdout.splitlines()[-1])
