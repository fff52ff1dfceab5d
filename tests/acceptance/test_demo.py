"""`scripts/demo`, from the point where everything is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.state_machine import WorkflowState

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The home that the demo leaves, and what it prints."""
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
    assert done.returncode == 0, done.stderr
    (home,) = place.glob("adw-demo-*")
    return home, done.stdout


def test_the_demo_goes_through_every_state(said):
    _, output = said
    shown = re.findall(r"^  [\d:.]+  revision +\d+  (\w+)", output, flags=re.MULTILINE)

    assert set(shown) == {state.value for state in WorkflowState}


def test_the_demo_shows_a_refusal_a_retry_and_a_pause(said):
    _, output = said

    assert "refused: cannot go from completed to building" in output
    assert "(retry 1 of 3)" in output
    assert "paused" in output


def test_the_demo_leaves_documents_whose_revision_is_the_one_it_printed(said):
    home, output = said
    documents = [json.loads(path.read_text()) for path in home.glob("state/*/adw_state.json")]

    assert sorted((d["current_state"], d["revision"]) for d in documents) == [("completed", 14), ("rolled_back", 4)]
    assert all(d["adw_id"] in output for d in documents)


def test_what_the_demo_says_to_type_next_works(said):
    _, output = said
    (command,) = re.findall(r"^  (\S+/adw --home \S+ state show \w+)$", output, flags=re.MULTILINE)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout
