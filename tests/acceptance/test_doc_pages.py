"""
Every command that a page shows is run: in a home where it makes sense, as it stands, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from tests import doc_commands
from tests.acceptance import doc_stages

#: page -> where its commands are typed
STAGES: dict[str, Callable[..., doc_stages.Stage]] = {
    "docs/costs.md": doc_stages.failed,
    "docs/dashboard.md": doc_stages.dashboard,
    "docs/deployment.md": doc_stages.moving,
    "docs/getting-started.md": doc_stages.tutorial,
    "docs/http-api.md": doc_stages.served,
    "docs/older-adw.md": doc_stages.older,
    "docs/operations.md": doc_stages.failed,
    "examples/own_agent.md": doc_stages.own_agent,
}
#: page -> the test that runs its commands, because they need more than a home
ELSEWHERE = {
    "README.md": "tests/acceptance/test_scripts.py",
    "CONTRIBUTING.md": "tests/acceptance/test_scripts.py",
    "examples/external_task.md": "tests/acceptance/test_external_curl.py",
}
#: Commands whose exit code says something about the home: 1 is an answer.
MAY_SAY_NO = ("adw quota", "adw admin verify", "adw db check", "adw doctor", "adw status")
PAGES = {doc_commands.name_of(page): page for page in doc_commands.PAGES if doc_commands.shell_blocks(page)}


def test_every_page_with_commands_is_run():
    assert {*PAGES} == {*STAGES} | {*ELSEWHERE}
    assert [test for test in ELSEWHERE.values() if not (doc_commands.ROOT / test).exists()] == []


@pytest.fixture
def stage_of(request, tmp_path):
    made = []

    def make(name: str) -> doc_stages.Stage:
        needs = [request.getfixturevalue("empty_pg_url")] if STAGES[name] is doc_stages.moving else []
        made.append(STAGES[name](tmp_path, *needs))
        return made[-1]

    yield make
    for stage in made:
        for close in stage.close:
            close()


@pytest.mark.bash
@pytest.mark.parametrize("name", STAGES)
def test_the_commands_of_a_page_work_as_they_stand(name, stage_of, tmp_path):
    stage = stage_of(name)
    script = "".join(block.typed for block in doc_commands.shell_blocks(PAGES[name]))
    for shown, there in stage.shown.items():
        script = script.replace(shown, there)
    lines = [_tolerant(line) for line in script.splitlines()]

    done = subprocess.run(
        ["bash", "-euxc", "\n".join(lines)],
        cwd=stage.home,
        env={**os.environ, **stage.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.bash
def test_the_agent_of_the_page_goes_on_with_its_conversation_and_its_costs_count(stage_of):
    """
    house-agent fails at its first task; the second attempt finds the conversation of the first.
    """
    stage = stage_of("examples/own_agent.md")
    page = PAGES["examples/own_agent.md"]
    script, definition, _ = (
        block.typed.replace("~/.local/bin", stage.shown["~/.local/bin"]) for block in doc_commands.shell_blocks(page)
    )
    subprocess.run(["bash", "-euc", script + definition], cwd=stage.home, check=True, env={**os.environ, **stage.env})
    stage.env["HOUSE_API_KEY"] = "fails-first"

    adw_id = stage.run("house", 42, "--title", "Say hello")

    phases = json.loads(stage.adw("status", adw_id, "--json"))["phases"]
    asked = [json.loads(line) for line in (stage.home / "asked.jsonl").read_text().splitlines()]
    assert [phase["attempts_used"] for phase in phases] == [2, 1]
    assert [one["session"] for one in asked] == ["", "s1", ""]
    assert "Say hello" in asked[0]["task"]
    assert "0.75" in stage.adw("report", adw_id)


def _tolerant(line: str) -> str:
    command, mark, comment = line.partition("  #")
    if command.startswith(MAY_SAY_NO) and not command.rstrip().endswith("\\"):
        return f"{command} || [ $? -eq 1 ]{mark}{comment}"
    return line


def test_a_line_that_may_say_no_still_has_to_be_understood():
    assert _tolerant("adw quota   # look") == "adw quota  || [ $? -eq 1 ]  # look"
    assert _tolerant("adw list 1") == "adw list 1"


def test_blocks_of_a_page_are_read_as_they_are_typed():
    first = doc_commands.shell_blocks(doc_commands.ROOT / "docs" / "getting-started.md")[0]

    assert first.typed.splitlines() == ["adw demo"]


def test_only_what_stands_behind_a_prompt_is_typed():
    block = doc_commands.Block(page="a", language="console", text="$ adw list\nID  STATE\n$ adw quota\n")

    assert block.typed == "adw list\nadw quota\n"
