"""A worker checks the base before an agent is paid: for starts that nobody sits in front of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.workflow.model import Gate, PhaseSpec
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import QUICK, git, make_work_lab, step

GATE = Gate(kind="command", shell="! grep -n BAD app.py")
PLAN = step("plan", "echo steps > plan.md", "planning")
BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, gates=(GATE,))
BUILT = {"do": ["echo built >> app.py"], "answer": "Built."}


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
def lab(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")
    lab = make_work_lab(tmp_path, ADW_AGENT_PROGRAMS=f"claude={agent.program}")
    commit(lab, "one = BAD\n")

    return lab


def commit(lab, text: str) -> None:
    """Have *text* in app.py of the remote's main."""
    (lab.home / "app.py").write_text(text)
    git(lab.home, "commit", "-q", "-m", "Change", "app.py")
    git(lab.home, "push", "-q", "origin", "main")


def events(lab, adw_id: str, kind: str) -> list[dict]:
    with lab.open() as app:
        return [event.data for event in app.events.of_workflow(adw_id) if event.event_type == kind]


def retry(lab, adw_id: str) -> None:
    with lab.open() as app:
        app.control.resume(adw_id, by="ada")
    lab.work()


def test_a_red_base_stops_a_workflow_before_its_first_agent(lab, agent):
    adw_id = lab.start(BUILD)

    lab.work()

    document = lab.document(adw_id)
    [attempt] = document.phases[0].attempts
    assert (document.current_state, document.terminal_reason) == ("failed", "NEEDS_PERSON")
    assert agent.calls == []
    assert attempt.error["klass"] == "base"
    assert "is red on the base commit" in attempt.error["message"]
    [told] = events(lab, adw_id, "base_checked")
    assert told["commit"] == git(lab.home, "rev-parse", "main")
    assert [(one["gate"], one["passed"]) for one in told["gates"]] == [("! grep -n BAD app.py", False)]
    files = list((lab.home / "state" / adw_id / "phases/build").glob("attempt-1.base-1.*"))
    assert any("one = BAD" in path.read_text() for path in files), "adw logs shows its output"


def test_a_retry_starts_from_a_base_that_was_fixed(lab, agent):
    agent.plays(BUILT)
    adw_id = lab.start(BUILD)
    lab.work()
    commit(lab, "one = 1\n")

    retry(lab, adw_id)

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert git(lab.home, "diff", "--stat", "main", document.branch_name).count("|") == 1
    assert git(lab.home, "merge-base", "main", document.branch_name) == git(lab.home, "rev-parse", "main")


def test_a_retry_goes_on_after_the_setting_was_changed(lab, agent):
    agent.plays({"do": ["echo 'one = 1' > app.py"]})
    adw_id = lab.start(BUILD)
    lab.work()
    lab.env["ADW_GATES_BASE"] = "compare"

    retry(lab, adw_id)

    assert lab.document(adw_id).current_state == "completed"


def test_workflows_on_the_same_commit_share_one_check(lab, agent, tmp_path):
    commit(lab, "one = 1\n")
    agent.plays(BUILT)
    counted = Gate(kind="command", shell=f"echo ran >> {tmp_path}/ran")
    first, second = (lab.start(replace(BUILD, gates=(counted,)), title=title) for title in ("One", "Two"))

    lab.work()

    assert {lab.document(one).current_state for one in (first, second)} == {"completed"}
    assert (tmp_path / "ran").read_text().count("ran") == 3, "once on the base, once after each build"


def test_work_without_an_agent_needs_no_green_base(lab):
    adw_id = lab.start(PLAN, step("build", "echo 'one = 1' > app.py", "building", gates=(GATE,)))

    lab.work()

    assert lab.document(adw_id).current_state == "completed"
    assert events(lab, adw_id, "base_checked") == []
