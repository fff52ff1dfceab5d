"""Workers and command lines that are killed or stopped in the middle of whole workflows."""

from __future__ import annotations

import pytest

from tests import sampling
from tests.crash.driving import drive


@pytest.mark.parametrize("store", ["files", "database"])
def test_workflows_survive_kills_at_any_moment_with_every_attempt_counted(store, tmp_path, seed, repeat):
    count = repeat(6, 1000)
    result = drive("engine_driver", "kills", tmp_path / "homes", store, "--count", count, "--seed", seed)

    assert result["problems"] == []
    assert result["kills"] == count


@pytest.mark.parametrize("store", sampling.some(["database", "files"], 1))
def test_ordered_stops_in_a_row_use_up_no_attempt(store, tmp_path, seed, repeat):
    result = drive("engine_driver", "suspensions", tmp_path / "home", store, "--count", repeat(3, 19), "--seed", seed)

    assert result["problems"] == []


@pytest.mark.parametrize("store", sampling.some(["files", "database"], 1))
def test_carrying_a_workflow_on_survives_a_kill_at_any_call(store, tmp_path, seed, repeat):
    """The lock, the document, the run: recovery finds all of them or none."""
    count = repeat(6, 300)
    result = drive("engine_driver", "continues", tmp_path / "home", store, "--count", count, "--seed", seed)

    assert result["problems"] == []
    assert result["kills"] == count
