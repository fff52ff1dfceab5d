"""
How each agent is called: exactly by its contract, and no value of a user or a conversation can become an option.
"""

from __future__ import annotations

import shlex
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

READING = replace(TASK, session_id="s-1", is_resumed=True, permissions="read")

READ_TOOLS = "Read,Glob,Grep,LS,NotebookRead,TodoWrite,Task,WebFetch,WebSearch"
GIT_TOOLS = "Bash(git log *),Bash(git show *),Bash(git diff *),Bash(git status *)"
CLAUDE = "-p --output-format=stream-json --verbose"
CODEX = "--json --config=check_for_update_on_startup=false --config=analytics.enabled=false"
GEMINI = "--output-format=stream-json"
AIDER = (
    "--message-file=/run/prompt.md --chat-history-file=/run/agent/aider.chat.history.md"
    " --input-history-file=/run/agent/aider.input.history --yes-always --no-pretty --no-stream --no-check-update"
    " --no-show-release-notes --no-show-model-warnings --no-analytics --no-gitignore --no-suggest-shell-commands"
)


def argv(agent: str, task: AgentTask) -> tuple[str, ...]:
    return agents_base.profile(agent).argv(task)


@pytest.mark.parametrize(
    ("agent", "task", "command"),
    [
        (
            "claude",
            TASK,
            (
                f"{CLAUDE} --permission-mode=acceptEdits"
                f" --allowedTools={READ_TOOLS},Bash,Write,Edit,MultiEdit,NotebookEdit"
            ),
        ),
        (
            "claude",
            FULL,
            (
                f"{CLAUDE} --session-id=s-1 --model=m-1 --max-turns=7 --max-budget-usd=1.5000"
                " --dangerously-skip-permissions --extra x"
            ),
        ),
        (
            "claude",
            READING,
            (
                f"{CLAUDE} --resume=s-1 --permission-mode=default '--allowedTools={READ_TOOLS},{GIT_TOOLS}'"
                " --disallowedTools=Write,Edit,MultiEdit,NotebookEdit"
            ),
        ),
        ("codex", TASK, f"exec {CODEX} --sandbox=workspace-write --add-dir=/run/agent -"),
        ("codex", replace(TASK, permissions="read"), f"exec {CODEX} --sandbox=read-only -"),
        ("codex", FULL, f"exec {CODEX} --model=m-1 --dangerously-bypass-approvals-and-sandbox --extra x -"),
        (
            "codex",
            replace(TASK, session_id="s-1", is_resumed=True, model="m-1", arguments=("--extra",)),
            (
                f"exec --add-dir=/run/agent resume {CODEX} --model=m-1"
                " '--config=sandbox_mode=\"workspace-write\"' --extra -- s-1 -"
            ),
        ),
        ("codex", READING, f"exec resume {CODEX} '--config=sandbox_mode=\"read-only\"' -- s-1 -"),
        ("gemini", TASK, f"{GEMINI} --approval-mode=auto_edit --skip-trust"),
        ("gemini", FULL, f"{GEMINI} --approval-mode=yolo --skip-trust --session-id=s-1 --model=m-1 --extra x"),
        ("gemini", READING, f"{GEMINI} --approval-mode=plan --skip-trust --resume=s-1"),
        ("opencode", TASK, "run --format=json"),
        ("opencode", FULL, "run --format=json --model=m-1 --auto --extra x"),
        ("opencode", READING, "run --format=json --session=s-1 --agent=plan"),
        ("aider", TASK, AIDER),
        ("aider", FULL, f"{AIDER} --model=m-1 --extra x"),
        ("aider", READING, f"{AIDER} --chat-mode=ask --no-auto-commits --no-dirty-commits"),
    ],
)
def test_agents_are_called_by_their_contract(agent, task, command):
    assert shlex.join(argv(agent, task)) == command


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
