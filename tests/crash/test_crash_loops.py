"""Workers that are killed anywhere in loops, retries and sinks, and orchestrators that race for the end of a loop."""

from __future__ import annotations

import pytest

from tests import sampling, templates
from tests.crash.driving import drive


def check(found: dict) -> None:
    """Nothing is wrong, and the workers really died: only the last points may not come again in the next round."""
    assert found["problems"] == []
    assert [number for number in found["missed"] if number <= 0.7 * found["points"]] == []
    assert found["kills"] >= found["rounds"] // 2


@pytest.mark.parametrize("sink", sampling.some(["sqlite", "jsonl", "csv", "python"], 2))
def test_a_worker_that_dies_at_any_point_loses_no_iteration_and_saves_none_twice(sink, tmp_path, seed, repeat):
    result = drive("loops_driver", tmp_path / "homes", "--sink", sink, "--count", repeat(2, 0), "--seed", seed)

    check(result)


@pytest.mark.postgres
def test_the_same_holds_on_postgresql_with_a_sink_there(empty_pg_url, tmp_path, seed, repeat):
    result = drive(
        "loops_driver",
        tmp_path / "homes",
        *("--url", empty_pg_url, "--sink", "postgres", "--count", repeat(2, 0), "--seed", seed),
        env={"SINK_URL": empty_pg_url},
    )

    check(result)


def test_workers_that_die_one_after_the_other_lose_nothing(tmp_path, seed, repeat):
    count = repeat(3, 60)
    result = drive(
        "loops_driver", tmp_path / "homes", "--count", count, "--more", 3, "--concurrency", 2, "--seed", seed
    )

    check(result)
    assert result["kills"] > count, "more than one of them died in a round"


@pytest.mark.parametrize("dialect", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_two_orchestrators_that_race_for_the_last_two_iterations_end_the_loop_once(
    dialect, request, tmp_path, seed, repeat
):
    if dialect == "sqlite":
        templates.put_database(tmp_path / "race.db")
        url = f"sqlite:///{tmp_path}/race.db"
    else:
        url = request.getfixturevalue("empty_pg_url")
    rounds = repeat(8, 1000)

    result = drive("loops_race", url, "--rounds", rounds, "--seed", seed)

    assert result["problems"] == []
    assert result["rounds"] == rounds
