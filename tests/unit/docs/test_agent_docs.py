"""The page about agents says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents import prompts
from adws.adw_modules.agents.prompts import DEFAULTS
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import AGENTS

PAGE = (Path(__file__).resolve().parents[3] / "docs/agents.md").read_text()


def rows_of(pattern: str) -> dict[str, str]:
    return dict(re.findall(rf"^- `{pattern}`: (.*)$", PAGE, re.MULTILINE))


def test_every_variable_of_a_prompt_is_explained_as_the_code_does():
    assert rows_of(r"\{\{(\w+)\}\}") == dict(prompts.VARIABLES)


def test_every_option_is_explained():
    rows = rows_of(r"(\w+)")

    assert set(workflow_model.OPTIONS) <= set(rows)
    for field in ("permissions", "session", "evidence"):
        values = str(workflow_model.AgentOptions.model_fields[field].description).removeprefix("one of ").split(", ")
        assert all(f"`{value}`" in PAGE for value in values)


def test_every_agent_and_every_prompt_is_named():
    assert agents_base.names() == AGENTS
    assert all(f"`{name}`" in PAGE for name in (*AGENTS, *DEFAULTS))


def test_the_table_of_abilities_is_that_of_the_profiles():
    columns = ("resumes", "chooses_session", "tells_result", "tells_cost", "limits_turns", "limits_budget", "commits")
    rows = dict(re.findall(r"^\| `(claude|codex|gemini|opencode|aider)` \| (.*) \|$", PAGE, re.MULTILINE))

    for name in AGENTS:
        able = agents_base.profile(name).capabilities
        assert rows[name].split(" | ") == ["yes" if getattr(able, column) else "no" for column in columns]
