"""`adw agents`: which can be used here, for people and for programs."""

from __future__ import annotations

import signal

import pytest

from tests.integration.agent_lab import FakeAgent

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
    monkeypatch.setenv("ADW_CLAUDE_PATH", str(agent.program))
    for name in ("CODEX", "GEMINI", "OPENCODE", "AIDER"):
        monkeypatch.setenv(f"ADW_{name}_PATH", "no-such-agent")
    return agent


def test_agents_are_shown_with_version_log_in_and_what_they_can_do(adw, claude):
    done = adw("agents")

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
    told = adw("agents", "--json").json()["agents"]

    assert [row["name"] for row in told] == ["claude", "codex", "gemini", "opencode", "aider"]
    assert [row["usual"] for row in told] == [True, False, False, False, False]
    assert (told[0]["logged_in"], told[0]["capabilities"]["chooses_session"]) == (True, True)
    assert told[1]["problem"].startswith("there is no program 'no-such-agent' in PATH")


def test_an_agent_that_is_not_logged_in_is_told(adw, claude):
    (claude.place / "logged-out").touch()

    done = adw("agents")

    assert f"claude: claude is not logged in: start {claude.program} once, and log in." in done.stdout


def test_with_an_agent_every_built_in_workflow_is_ready(adw, claude):
    assert {row["ready"] for row in adw("workflows", "--json").json()["workflows"]} == {True}
    claude.program.unlink()

    shown = adw("workflows", "plan_build").stdout

    assert "No runner yet: plan, build; there is no command" in shown
    assert "agent.claude_path. A command in adw.toml under [phases.NAME] does, too." in shown


@pytest.mark.parametrize(
    "turn",
    [
        {"interrupted": True, "no_result": True},
        {
            "interrupted": True,
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
