"""The examples run as their page says, with an agent that is played and an API on this machine."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import loop_lab
from tests.acceptance.cli_lab import Beside
from tests.integration.agent_lab import FakeAgent

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REVIEW = EXAMPLES / "review_changes"
ANSWER = 'It is fine.\n\n```json\n{"verdict": "approve", "findings": ["one", "two"]}\n```'
#: Far more than it takes; nobody waits for it unless something is broken.
PATIENCE = 90.0
CHANGED = ("a file.txt", "b.py", "c.py", "d.py", "e.md")


@pytest.fixture
def api() -> Iterator[str]:
    """The address of the API that is part of the example."""
    process = subprocess.Popen([sys.executable, str(REVIEW / "catalogue.py"), "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.communicate()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAgent:
    agent = FakeAgent(tmp_path / "agents")
    agent.plays({"answer": ANSWER})
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", f"claude={agent.program}")
    monkeypatch.setenv("ADW_FORGE_KIND", "none")
    return agent


@pytest.fixture
def home(home: Path, api: str) -> Path:
    """A repository with two commits and the files of the example."""
    for file in REVIEW.iterdir():
        if file.is_file():
            shutil.copy(file, home)
    text = (home / "adw.toml").read_text()
    assert "http://127.0.0.1:8099" in text
    (home / "adw.toml").write_text(text.replace("http://127.0.0.1:8099", api))
    commit(home, "Take the example over")
    for name in (*CHANGED, "picture.svg"):
        (home / name).write_text("changed\n")
    commit(home, "Change files")
    return home


def commit(home: Path, message: str) -> None:
    for command in (["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", *command], cwd=home, check=True, capture_output=True)


def rows(home: Path, sql: str) -> list[tuple]:
    with sqlite3.connect(home / "results.db") as connection:
        return connection.execute(sql).fetchall()


def test_every_changed_file_is_reviewed_and_every_advisory_is_kept(adw, home, agent):
    done = adw("run", "1", "--workflow", "review_changes", timeout=120.0)

    assert done.rc == 0, done.stderr
    assert "completed" in done.stdout + done.stderr
    assert sorted(rows(home, "SELECT file, verdict, findings FROM reviews")) == [
        (name, "approve", 2) for name in CHANGED
    ]
    assert dict(rows(home, "SELECT severity, count(*) FROM advisories GROUP BY severity")) == {
        "low": 30,
        "moderate": 30,
        "high": 30,
    }
    told = loop_lab.executions(loop_lab.address(home))
    assert [problem for one in told for problem in loop_lab.problems(one)] == []
    assert {one.step for one in told} == {"review_file", "advisories"}
    by_step = {one.step: one for one in told}
    assert by_step["advisories"].count()["action_failed"] >= 1, "every seventh request fails"
    assert by_step["advisories"].count()["action_completed"] == 5
    assert Counter(prompted(agent)) == Counter(CHANGED)


def prompted(agent: FakeAgent) -> list[str]:
    return [re.search(r"Review the file (.*)\. Its", call["prompt"])[1] for call in agent.calls]


def test_an_agent_that_fails_at_a_file_is_asked_again(adw, home, agent):
    agent.plays({"mute": True, "exit": 1, "stderr": "connection reset by peer"}, {"answer": ANSWER})
    text = (home / "adw.toml").read_text()
    (home / "adw.toml").write_text(text.replace("max_attempts = 3", "max_attempts = 3\nbase_seconds = 0.01"))

    done = adw("run", "1", "--workflow", "review_changes", timeout=120.0)

    assert done.rc == 0, done.stderr
    assert len(rows(home, "SELECT * FROM reviews")) == len(CHANGED)
    assert len(agent.calls) == len(CHANGED) + 1


def test_two_workers_share_the_files_and_the_pages(adw, home, agent):
    adw_id = adw("run", "1", "--workflow", "review_changes", "--detach", "--json").json()["adw_id"]
    end = time.monotonic() + PATIENCE

    with Beside(home, "worker", "--concurrency", "2") as one, Beside(home, "worker", "--concurrency", "2") as other:
        while loop_lab.document(home, loop_lab.address(home), adw_id)["current_state"] != "completed":
            assert time.monotonic() < end, adw("status", adw_id).stdout
            time.sleep(0.05)
        for worker in (one, other):
            worker.process.terminate()
            assert worker.end() == 0, worker.stderr

    assert len(rows(home, "SELECT * FROM reviews")) == len(CHANGED)
    assert len(rows(home, "SELECT * FROM advisories")) == 90
    assert Counter(prompted(agent)) == Counter(CHANGED)


def test_the_commands_that_the_page_names_exist(adw):
    page = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"`?adw (\w+)", page))

    assert {*named} >= {"run", "worker", "status", "events"}
    for name in sorted(named):
        assert adw(name, "--help").rc == 0, name


def test_each_example_stands_on_the_page_and_is_sound(adw, home):
    page = (EXAMPLES / "README.md").read_text()
    result = [place.name for place in EXAMPLES.iterdir() if (place / "adw.toml").exists()]

    assert [name for name in result if f"## {name}\n" not in page] == []
    assert "review_changes" in json.dumps(adw("workflow", "list", "--json").json())
