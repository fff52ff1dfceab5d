"""`adw workflow agents`: which can be used here, for people and for programs."""

from __future__ import annotations

import re
import signal

import pytest

from adws.app import open_home
from adws.config.load import load
from tests.integration.agent_lab import FakeAgent

#: What Claude Code 2.1.325 writes into the conversation on SIGINT.
INTERRUPTION = {
    "type": "user",
    "message": {"role": "user", "content": [{"type": "text", "text": "[Request interrupted by user]"}]},
    "parent_tool_use_id": None,
}
ONE_ATTEMPT = """
[workflows.once]
[[workflows.once.phases]]
name = "build"
runner = "claude"
prompt = "build"
max_attempts = 1
"""


@pytest.fixture
def claude(tmp_path, monkeypatch):
    agent = FakeAgent(tmp_path / "agents")
    others = "".join(f", {name}=no-such-agent" for name in ("codex", "gemini", "opencode", "aider"))
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", f"claude={agent.program}{others}")
    return agent


def test_agents_are_shown_with_version_log_in_and_what_they_can_do(adw, claude):
    done = adw("workflow", "agents")

    assert done.rc == 0
    head, first, second, *_ = done.stdout.splitlines()
    assert head.split() == ["AGENT", "PROGRAM", "VERSION", "LOGGED", "IN", "CAN"]
    assert first.split()[:3] == ["claude", "*", str(claude.program)]
    assert "9.9.9 (fake claude)" in first
    assert " yes " in first
    assert "resumes, cost, turns, budget" in first
    assert second.split()[:3] == ["codex", "not", "installed"]
    assert "no-such-agent" not in done.stdout, "what nobody asked for is no problem"


def test_programs_are_told_the_same(adw, claude):
    told = adw("workflow", "agents", "--json").json()["agents"]

    assert [row["name"] for row in told] == ["claude", "codex", "gemini", "opencode", "aider"]
    assert [row["usual"] for row in told] == [True, False, False, False, False]
    assert (told[0]["logged_in"], told[0]["capabilities"]["chooses_session"]) == (True, True)
    assert told[1]["problem"].startswith("there is no program 'no-such-agent' in PATH")


def test_an_agent_that_is_not_logged_in_is_told(adw, claude):
    (claude.place / "logged-out").touch()

    done = adw("workflow", "agents")

    assert f"claude: claude is not logged in: start {claude.program} once, and log in." in done.stdout


def test_with_an_agent_every_built_in_workflow_is_ready(adw, claude):
    assert {row["ready"] for row in adw("workflow", "list", "--json").json()["workflows"]} == {True}
    claude.program.unlink()

    shown = adw("workflow", "show", "plan_build").stdout

    assert "No runner yet: plan, build; there is no command" in shown
    assert "agent.programs. A command in adw.toml under [phases.NAME] does, too." in shown


@pytest.mark.parametrize(
    "turn",
    [
        {"events": [INTERRUPTION], "no_result": True},
        {
            "events": [INTERRUPTION],
            "result": {
                "subtype": "error_during_execution",
                "is_error": True,
                "result": None,
                "terminal_reason": "aborted_tools",
                "errors": ["[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=tool_use"],
            },
        },
        {"signal": signal.SIGINT.value},
    ],
    ids=["while the model is waited for", "while a tool runs", "killed by it"],
)
def test_a_run_whose_agent_was_interrupted_from_outside_says_so(adw, home, claude, turn):
    home.mkdir(exist_ok=True)
    (home / "adw.toml").write_text(ONE_ATTEMPT)
    claude.plays(turn)

    done = adw("run", "7", "--workflow", "once", "--title", "t", "--body", "b")

    assert done.rc == 1
    assert "it was interrupted from outside (SIGINT)" in done.stdout
    assert "ede_diagnostic" not in done.stdout + done.stderr
    assert "it did not say that it was done" not in done.stdout


def test_quota_shows_what_is_spent_what_is_reserved_and_what_one_more_would_need_apart(adw, home, claude):
    home.mkdir(exist_ok=True)
    (home / "adw.toml").write_text(ONE_ATTEMPT)
    claude.plays({"do": ["echo built > built.txt"]})
    small = {"ADW_QUOTA_MIN_FREE_DISK": "1", "ADW_QUOTA_MIN_FREE_MEMORY": "1"}
    assert adw("run", "7", "--workflow", "once", "--title", "t", "--body", "b", env=small).rc == 0
    with open_home(load(env={"ADW_HOME": str(home), **small}, cwd=home)) as app:
        app.quotas.admit("1a2b3c4d", estimated_cost=4.0)

    shown = adw("quota", "--workflow", "once", env=small).stdout.splitlines()
    told = {one["name"]: one for one in adw("quota", "--workflow", "once", "--json", env=small).json()["quotas"]}

    rows = {line.split()[0]: line.split()[1:] for line in shown if line}
    assert rows["QUOTA"] == ["NOW", "RESERVED", "NEXT", "LIMIT", "UNIT"]
    assert rows["cost_per_day"] == ["0.25", "4", "0.25", "100", "USD", "ok"]
    assert rows["worktrees"][1:3] == ["1", "-"]
    day = told["cost_per_day"]
    assert (day["used"], day["reserved"], day["expected"]) == (4.5, 4.0, 0.25)


def test_status_names_the_agent_and_an_ended_attempt_has_no_deadline(adw, home, claude):
    home.mkdir(exist_ok=True)
    (home / "adw.toml").write_text(ONE_ATTEMPT.replace('runner = "claude"\n', ""))
    claude.plays({"do": ["echo built > built.txt"]})
    adw_id = adw("run", "7", "--workflow", "once", "--title", "t", "--body", "b", "--json").json()["adw_id"]

    shown = adw("status", adw_id).stdout
    told = adw("status", adw_id, "--json").json()
    (attempt,) = adw("state", "show", adw_id, "--json").json()["phases"][0]["attempts"]

    assert re.search(r"^agent +claude finished: attempt 1 of build on ", shown, re.MULTILINE)
    assert re.search(r"^PHASE +STATUS +AGENT +ATTEMPTS ", shown, re.MULTILINE)
    assert re.search(r"^build +complete +claude +1/1 ", shown, re.MULTILINE)
    assert told["agent_session"]["agent"] == "claude"
    assert (told["phases"][0]["agent"], told["phases"][0]["attempts"][0]["agent"]) == ("claude", "claude")
    assert attempt["ended_at"]
    assert attempt.get("deadline_at") is None


def test_a_workflow_names_what_runs_each_of_its_phases(adw, home, claude):
    rows = {line.split()[0]: line for line in adw("workflow", "show", "sdlc").stdout.splitlines() if line}
    told = {phase["name"]: phase["runs"] for phase in adw("workflow", "show", "sdlc", "--json").json()["phases"]}
    planned = adw("run", "7", "--workflow", "sdlc", "--dry-run", "--title", "t", "--body", "b").stdout

    assert " agent   claude, prompt plan " in rows["plan"]
    assert " ship    adw: push the branch, open the pull request " in rows["ship"]
    assert " clean   adw: remove the worktree " in rows["clean"]
    assert told["build"] == "claude, prompt build"
    assert told["ship"] == "adw: push the branch, open the pull request"
    assert "claude, prompt test" in planned
    assert "adw: remove the worktree" in planned
