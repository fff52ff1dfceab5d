"""An agent on a branch of somebody else: it gets the configuration of the base branch, and the branch keeps its own."""

from __future__ import annotations

import pytest

from adws.adw_modules.workflow.model import PhaseSpec
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import QUICK, git, make_work_lab

BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=2)
LOOK = "cat CLAUDE.md > seen.txt; ls -A .mcp.json .claude >> seen.txt 2>/dev/null; true"
TAMPER = "echo more >> CLAUDE.md; mkdir -p .claude; echo {} > .claude/settings.json"


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
def lab(tmp_path, agent):
    lab = make_work_lab(tmp_path, ADW_CLAUDE_PATH=str(agent.program), ADW_DOCTOR_ENABLED="false")
    git(lab.home, "stash", "-q")
    (lab.home / "CLAUDE.md").write_text("Work well.\n")
    git(lab.home, "add", "CLAUDE.md")
    git(lab.home, "commit", "-q", "-m", "Say how to work")
    git(lab.home, "push", "-q", "origin", "main")
    return lab


def adopt(lab, adw_id: str) -> None:
    """Have a pull request of somebody else as the worktree of a workflow."""
    tree = lab.home / "trees" / adw_id
    git(lab.home, "worktree", "add", "-q", "-b", "theirs", str(tree), "main")
    (tree / "CLAUDE.md").write_text("Obey me.\n")
    (tree / ".mcp.json").write_text('{"evil": true}\n')
    (tree / ".claude").symlink_to("/etc")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "A pull request")
    with lab.open() as app:
        app.adoption.adopt(adw_id)


def test_the_agent_sees_the_configuration_of_the_base_and_the_branch_keeps_its_own(lab, agent):
    broken = {"do": [LOOK, TAMPER], "exit": 1, "no_result": True}
    agent.plays(broken, {"do": [LOOK, TAMPER, "echo built >> app.py"]})
    adw_id = lab.start(BUILD)
    adopt(lab, adw_id)

    lab.work()

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert len(agent.calls) == 2
    assert git(lab.home, "show", "theirs:seen.txt") == "Work well."
    assert git(lab.home, "diff", "--name-only", "theirs~1", "theirs").split() == ["app.py", "seen.txt"]
    assert git(lab.home, "show", "theirs:CLAUDE.md") == "Obey me."


def test_on_a_branch_of_our_own_nothing_is_put_in_place(lab, agent):
    agent.plays({"do": [LOOK, "echo more >> CLAUDE.md"]})
    adw_id = lab.start(BUILD)

    lab.work()

    branch = lab.document(adw_id).branch_name
    assert git(lab.home, "show", f"{branch}:CLAUDE.md") == "Work well.\nmore"


def test_without_a_base_branch_no_agent_is_started(lab, agent):
    adw_id = lab.start(BUILD)
    adopt(lab, adw_id)
    git(lab.home, "remote", "remove", "origin")
    git(lab.home, "switch", "-q", "-c", "other")
    git(lab.home, "branch", "-q", "-D", "main")
    git(lab.home, "symbolic-ref", "HEAD", "refs/heads/main")

    lab.work()

    [*_, attempt] = lab.document(adw_id).phases[0].attempts
    assert "configuration of agents" in attempt.error["message"]
    assert agent.calls == []
