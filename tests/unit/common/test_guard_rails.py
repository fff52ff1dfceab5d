"""What `tests/conftest.py` promises: a test cannot hurt the person who runs it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from pathlib import Path

import pytest

from tests import sampling, tiers

REPOSITORY = Path(__file__).parents[3]


def test_the_default_home_cannot_be_used():
    with pytest.raises(NotADirectoryError):
        Path(os.environ["ADW_HOME"]).mkdir(parents=True)


def test_a_test_starts_outside_of_every_checkout():
    result = subprocess.run(["git", "rev-parse", "--git-dir"], capture_output=True, text=True, check=False)

    assert result.returncode != 0
    assert not Path.cwd().is_relative_to(REPOSITORY)


def test_the_environment_of_the_person_is_out_of_reach():
    foreign = [name for name in os.environ if name.startswith(("GITHUB_", "GH_", "ANTHROPIC_"))]

    assert foreign == []
    assert Path(os.environ["HOME"]).name.startswith("person")
    assert os.environ["GIT_ALLOW_PROTOCOL"] == "file"


def test_connecting_to_another_machine_raises():
    with socket.socket() as sock, pytest.raises(RuntimeError, match=r"tried to connect to 192\.0\.2\.1"):
        sock.connect(("192.0.2.1", 80))


def test_connecting_to_this_machine_works():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.connect(server.getsockname())


def test_the_same_seed_gives_the_same_numbers(rng, seed):
    assert rng.random() == random.Random(seed).random()


def test_a_home_is_a_git_repository_with_a_commit(home):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=home, capture_output=True, text=True, check=False)

    assert head.returncode == 0


@pytest.mark.parametrize(("soak", "expected"), [("", 3), ("0", 3), ("1", 7)])
def test_the_tier_decides_how_often_a_test_repeats(repeat, monkeypatch, soak, expected):
    monkeypatch.setenv("ADW_SOAK", soak)

    assert repeat(3, 7) == expected


def test_some_cases_are_tried_in_the_ordinary_run_and_all_of_them_in_the_soak(monkeypatch):
    monkeypatch.setenv("ADW_SOAK", "")
    few = sampling.some("abcdefg", 3), sampling.each_value_once("abc", "xy"), sampling.share("abcde", 1)
    monkeypatch.setenv("ADW_SOAK", "1")
    full = sampling.some("abcdefg", 3), sampling.each_value_once("abc", "xy"), sampling.share("abcde", 1)

    assert few == (["a", "d", "g"], [("a", "x"), ("b", "y"), ("c", "x")], ["c", "d"])
    assert (len(full[0]), len(full[1]), len(full[2])) == (7, 6, 5)


def test_what_the_quick_tier_leaves_out_is_there():
    there = {path.name for path in tiers.TESTS.rglob("test_*.py")}

    assert tiers.SLOW_FILES - there == set()
    assert not tiers.is_fast(tiers.TESTS / "crash" / "test_crash_writes.py")
    assert tiers.is_fast(Path(__file__))
