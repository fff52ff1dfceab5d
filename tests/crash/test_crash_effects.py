"""Workers that are killed around every effect on the outside world: nothing is doubled, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sampling

DRIVER = Path(__file__).with_name("effects_driver.py")


@pytest.mark.parametrize("how", sampling.some([(), ("--without-clean",)], 1), ids=str)
def test_a_kill_around_any_effect_neither_doubles_nor_loses_it(tmp_path, seed, repeat, how):
    count = repeat(3, 0)
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(tmp_path), "--count", str(count), "--seed", str(seed), *how],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(DRIVER.parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)

    assert result["problems"] == []
    assert result["steps"] > 50
    assert result["tried"] == (count or result["steps"])
