"""
`scripts/bench/all`: every benchmark is run, every comparison is read, and the page tells those that are not met.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Modules beside the benchmarks that measure nothing themselves.
NO_BENCHMARKS = {"verdict", "yardsticks", "loop_yardsticks", "run_queue", "postgres_queue"}


@pytest.fixture(scope="module")
def script():
    before = [*sys.path]
    spec = importlib.util.spec_from_file_location("benchmarks", ROOT / "scripts" / "lib" / "benchmarks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_every_benchmark_is_run_by_all(script):
    there = {path.stem for path in (ROOT / "scripts" / "bench").glob("*.py")} - NO_BENCHMARKS

    assert there == {*script.BENCHMARKS}


@pytest.mark.parametrize(
    ("measured", "bounds", "line", "is_met"),
    [
        (1.2345, {"most": 1.25}, "= a step: 1.23 x, at most 1.25 x: met", True),
        (1.26, {"most": 1.25}, "= a step: 1.26 x, at most 1.25 x: NOT MET", False),
        (0.5, {"least": 1.8}, "= a step: 0.50 x, at least 1.8 x: NOT MET", False),
        (1.8, {"least": 1.8}, "= a step: 1.80 x, at least 1.8 x: met", True),
        (12, {"most": 50, "unit": "ms"}, "= a step: 12.00 ms, at most 50 ms: met", True),
    ],
)
def test_a_comparison_is_told_and_read_back(script, capsys, *, measured, bounds, line, is_met):
    assert script.verdict.tell("a step", measured, **bounds) is is_met

    said = capsys.readouterr().out
    assert said == f"{line}\n"
    (read,) = script.verdict.verdicts_in(f"something else\n{said}more: 3 x\n")
    assert (read.what, read.is_met) == ("a step", is_met)
    assert line == f"= a step: {read.measured}, {read.asked}: {'met' if is_met else 'NOT MET'}"


def test_a_comparison_has_one_limit(script):
    with pytest.raises(ValueError, match="least or most"):
        script.verdict.tell("a step", 1.0)
    with pytest.raises(ValueError, match="least or most"):
        script.verdict.tell("a step", 1.0, least=1, most=2)


def test_the_page_tells_what_is_met_what_is_not_and_what_broke(script):
    made = script.page(
        [
            script.Result(
                name="steps",
                exit_code=1,
                seconds=3.0,
                output="= ours beside theirs: 0.50 x, at least 1.8 x: NOT MET\n= pages: 2.00 ms, at most 5 ms: met\n",
            ),
            script.Result(name="loop", exit_code=3, seconds=1.0, output="it fell over\n"),
        ],
        load=0.25,
    )

    assert "| `steps` | ours beside theirs | 0.50 x | at least 1.8 x | **not met** |" in made
    assert "| `steps` | pages | 2.00 ms | at most 5 ms | met |" in made
    assert "`loop` gave no result (exit code 3)" in made
    assert "it fell over" in made
    assert "load before it began: 0.25;" in made
