"""
How each agent is called: exactly by its contract, and no value of a user or a conversation can become an option.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.agent import AgentTask
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.errors import UsageError

TASK = AgentTask(prompt_file=Path("/run/prompt.md"), cwd=Path("/repo"), folder=Path("/run/agent"))
FULL = replace(
    TASK, model="m-1", session_id="s-1", max_turns=7, budget_usd=1.5, permissions="all", arguments=("--extra", "x")
)

READ_TOOLS = "Read,Glob,Grep,LS,NotebookRead,TodoWrite,Task,WebFetch,WebSearch"
CODEX = ("--json", "--config=check_for_update_on_startup=false", "--config=analytics.enabled=false")
GEMINI = "--output-format=stream-json"
AIDER_FILES = (
    "--message-file=/run/prompt.md",
    "--chat-history-file=/run/agent/aider.chat.history.md",
    "--input-history-file=/run/agent/aider.input.history",
)
AIDER_QUIET = (
    "--yes-always",
    "--no-pretty",
    "--no-stream",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-analytics",
    "--no-gitignore",
    "--no-suggest-shell-commands",
)


def argv(agent: str, task: AgentTask) -> tuple[str, ...]:
    return agents_base.profile(agent).argv(task)


@pytest.mark.parametrize(
    ("agent", "task", "expected"),
    [
        (
            "claude",
            TASK,
            (
                "-p",
                "--output-format=stream-json",
                "--verbose",
                "--permission-mode=acceptEdits",
                f"--allowedTools={READ_TOOLS},Bash,Write,Edit,MultiEdit,NotebookEdit",
            ),
        ),
        (
            "claude",
            FULL,
            (
                "-p",
                "--output-format=stream-json",
                "--verbose",
                "--session-id=s-1",
                "--model=m-1",
                "--max-turns=7",
                "--max-budget-usd=1.5000",
                "--dangerously-skip-permissions",
                "--extra",
                "x",
            ),
        ),
        (
            "claude",
            replace(TASK, session_id="s-1", is_resumed=True, permissions="read"),
            (
                "-p",
                "--output-format=stream-json",
                "--verbose",
                "--resume=s-1",
                "--permission-mode=default",
                f"--allowedTools={READ_TOOLS},Bash(git log *),Bash(git show *),Bash(git diff *),Bash(git status *)",
                "--disallowedTools=Write,Edit,MultiEdit,NotebookEdit",
            ),
        ),
        ("codex", TASK, ("exec", *CODEX, "--sandbox=workspace-write", "--add-dir=/run/agent", "-")),
        ("codex", replace(TASK, permissions="read"), ("exec", *CODEX, "--sandbox=read-only", "-")),
        (
            "codex",
            FULL,
            ("exec", *CODEX, "--model=m-1", "--dangerously-bypass-approvals-and-sandbox", "--extra", "x", "-"),
        ),
        (
            "codex",
            replace(TASK, session_id="s-1", is_resumed=True, model="m-1", arguments=("--extra",)),
            (
                *("exec", "--add-dir=/run/agent", "resume", *CODEX, "--model=m-1"),
                *('--config=sandbox_mode="workspace-write"', "--extra", "--", "s-1", "-"),
            ),
        ),
        (
            "codex",
            replace(TASK, session_id="s-1", is_resumed=True, permissions="read"),
            ("exec", "resume", *CODEX, '--config=sandbox_mode="read-only"', "--", "s-1", "-"),
        ),
        ("gemini", TASK, (GEMINI, "--approval-mode=auto_edit", "--skip-trust")),
        (
            "gemini",
            FULL,
            (GEMINI, "--approval-mode=yolo", "--skip-trust", "--session-id=s-1", "--model=m-1", "--extra", "x"),
        ),
        (
            "gemini",
            replace(TASK, session_id="s-1", is_resumed=True, permissions="read"),
            (GEMINI, "--approval-mode=plan", "--skip-trust", "--resume=s-1"),
        ),
        ("opencode", TASK, ("run", "--format=json")),
        ("opencode", FULL, ("run", "--format=json", "--model=m-1", "--auto", "--extra", "x")),
        (
            "opencode",
            replace(TASK, session_id="ses_1", is_resumed=True, permissions="read"),
            ("run", "--format=json", "--session=ses_1", "--agent=plan"),
        ),
        ("aider", TASK, (*AIDER_FILES, *AIDER_QUIET)),
        ("aider", FULL, (*AIDER_FILES, *AIDER_QUIET, "--model=m-1", "--extra", "x")),
        (
            "aider",
            replace(TASK, permissions="read"),
            (*AIDER_FILES, *AIDER_QUIET, "--chat-mode=ask", "--no-auto-commits", "--no-dirty-commits"),
        ),
    ],
)
def test_agents_are_called_by_their_contract(agent, task, expected):
    assert argv(agent, task) == expected


@pytest.mark.parametrize("agent", agents_base.names())
@pytest.mark.parametrize("permissions", ["read", "edit", "all"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_model_that_looks_like_an_option_is_none(agent, permissions, is_resumed):
    task = replace(TASK, permissions=permissions, session_id="s-1", is_resumed=is_resumed)
    evil = "--dangerously-skip-permissions"
    plain, result = argv(agent, task), argv(agent, replace(task, model=evil))

    assert [one for one in result if one not in plain] == [f"--model={evil}"]


@pytest.mark.parametrize("session", ["--yolo", "-c", "a b", "a\nb", "", "a/../b", "x" * 300, "ä"])
@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode"])
def test_a_conversation_whose_id_could_be_anything_else_is_refused(agent, session):
    if not session and agent in {"claude", "gemini"}:  # then there is none
        assert not any("resume" in one for one in argv(agent, replace(TASK, is_resumed=True)))
        return

    with pytest.raises(UsageError, match="cannot be the id of an agent's conversation"):
        argv(agent, replace(TASK, session_id=session, is_resumed=True))
