"""`scripts/demo`, from the point where everything is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The sample that the demo leaves, and what it prints."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/lib/demo.py"],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(place), "HOME": str(place)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (home,) = place.glob("adw-demo-*")
    return home, done.stdout


def git(home: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=home, capture_output=True, text=True, check=True).stdout


def test_the_demo_carries_the_issue_through_every_phase_with_one_retry(said):
    home, _ = said
    (document,) = (json.loads(path.read_text()) for path in home.glob("state/*/adw_state.json"))

    assert document["current_state"] == "completed"
    assert {phase["name"]: phase["attempts_used"] for phase in document["phases"]} == {
        "plan": 1,
        "build": 2,
        "lint": 1,
        "test": 1,
        "review": 1,
        "document": 1,
        "ship": 1,
        "clean": 1,
    }


def test_the_demo_ends_with_the_pull_request_and_its_diff(said):
    _, output = said

    assert "Pull request #2 (draft): feature: #1 - Greet with an exclamation mark" in output
    assert "Closes #1" in output
    assert '+    return "Hello, " + (name or "you") + "!"' in output


def test_the_demo_leaves_the_checkout_as_it_was_and_no_worktree(said):
    home, _ = said

    assert git(home, "status", "--porcelain") == ""
    assert git(home, "branch", "--show-current").strip() == "main"
    assert "+" not in (home / "greet.py").read_text().split("name")[-1]
    assert len(git(home, "worktree", "list").splitlines()) == 1


def test_what_the_demo_says_to_type_next_works(said):
    _, output = said
    commands = re.findall(r"^  (\S+/adw --home \S+ .+)$", output, flags=re.MULTILINE)
    assert [command.split()[3] for command in commands] == ["state", "logs", "explain", "verify", "rollback"]

    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
