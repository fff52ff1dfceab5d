"""The page about agents says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules import agent_options, agents, prompt_text
from adws.adw_modules.prompt_files import DEFAULTS
from adws.adw_modules.workflow import AGENTS

PAGE = (Path(__file__).resolve().parents[2] / "docs/agents.md").read_text()


def rows_of(pattern: str) -> dict[str, str]:
    return dict(re.findall(rf"^\| `{pattern}` \| (.*) \|$", PAGE, re.MULTILINE))


def test_every_variable_of_a_prompt_is_explained_as_the_code_does():
    assert rows_of(r"\{\{(\w+)\}\}") == dict(prompt_text.VARIABLES)


def test_every_option_is_explained():
    found = rows_of(r"(\w+)")

    assert set(agent_options.OPTIONS) <= set(found)
    for values in (agent_options.PERMISSIONS, agent_options.SESSIONS, agent_options.EVIDENCE):
        assert all(f"`{value}`" in PAGE for value in values)


def test_every_agent_and_every_prompt_is_named():
    assert agents.names() == AGENTS
    assert all(f"`{name}`" in PAGE for name in (*AGENTS, *DEFAULTS))


def test_the_table_of_abilities_is_that_of_the_profiles():
    columns = ("resumes", "chooses_session", "tells_result", "tells_cost", "limits_turns", "limits_budget", "commits")
    found = rows_of(r"(claude|codex|gemini|opencode|aider)")

    for name in AGENTS:
        able = agents.profile(name).capabilities
        assert found[name].split(" | ") == ["yes" if getattr(able, column) else "no" for column in columns]
