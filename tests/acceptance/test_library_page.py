"""
docs/library.md: each example is a program that runs, and `adws.durability` loads no more than what is asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adws import durability

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
#: title of a section -> its program
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))


def run(source: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=home,
        env={**os.environ, "ADW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("title", EXAMPLES)
def test_every_example_is_a_program_that_runs(title, tmp_path):
    run(EXAMPLES[title], tmp_path)


def test_every_part_that_people_take_alone_has_an_example():
    assert [*EXAMPLES] == [
        "State machine",
        "Atomic state files",
        "Retries",
        "Circuit breakers",
        "Checkpoints",
        "Locks, documents and events of a home",
        "Tests of your own",
    ]


def test_a_refused_move_says_what_would_be_legal(tmp_path):
    said = run(EXAMPLES["State machine"], tmp_path)

    assert "completed" in said
    assert "linting" in said


# --- adws.durability -------------------------------------------------------------------------------------------


def test_every_name_is_the_one_of_the_house():
    result = [getattr(durability, name) for name in durability.__all__]

    assert [one.__name__ for one in result] == durability.__all__
    assert len(result) == 9
    assert dir(durability) == durability.__all__


def test_what_is_not_there_is_no_attribute():
    with pytest.raises(AttributeError, match=r"module 'adws\.durability' has no attribute 'Nothing'"):
        _ = durability.Nothing


def test_nothing_is_loaded_that_is_not_asked_for(tmp_path):
    said = run(
        "import sys, adws.durability\n"
        "print('adws.adw_modules.retry_handler' in sys.modules)\n"
        "from adws.durability import RetryPolicy\n"
        "print('adws.adw_modules.retry_handler' in sys.modules, 'adws.adw_modules.circuit_breaker' in sys.modules)\n",
        tmp_path,
    )

    assert said.split() == ["False", "True", "False"]
