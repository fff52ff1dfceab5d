"""
The agents there are: found by name, loaded one at a time, and with nothing of ours in their environment.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from adws.adw_modules.agent import AgentProfile
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.errors import ConfigError


@pytest.mark.parametrize("name", agents_base.names())
def test_a_profile_is_found_by_its_name(name):
    result = agents_base.profile(name)

    assert isinstance(result, AgentProfile)
    assert (result.name, result.program) == (name, name)
    assert result.parser().reading.bad_lines == 0


def test_claude_is_the_first_agent():
    assert agents_base.names() == ("claude", "codex", "gemini", "opencode", "aider")


@pytest.mark.parametrize(
    ("name", "said"),
    [("claud", "did you mean claude"), ("", "there are: claude, codex"), ("json_lines", "there is no agent")],
)
def test_an_agent_that_does_not_exist_is_named(name, said):
    with pytest.raises(ConfigError, match=said):
        agents_base.profile(name)


@pytest.mark.parametrize("name", agents_base.names())
def test_loading_one_agent_loads_no_other(name):
    code = (
        "import sys\n"
        "from adws.adw_modules.agents import base as agents\n"
        f"agents.profile({name!r})\n"
        "print(*[n for n in agents.names() if f'adws.adw_modules.agents.{n}' in sys.modules])\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [name, "False"]


@pytest.mark.parametrize("name", agents_base.names())
def test_no_agent_gets_a_variable_of_ours(name):
    result = agents_base.profile(name)

    for variable in (*result.variables, *result.settings):
        assert not variable.startswith(("ADW_", "GITHUB_", "GH_", "GIT_", "PG")), variable
    assert len(set(result.variables)) == len(result.variables)
    assert not set(result.variables) & set(result.settings)


def test_claude_leaves_trying_again_to_adw():
    value = agents_base.profile("claude").settings

    assert int(value["CLAUDE_CODE_MAX_RETRIES"]) <= 2
    assert "CLAUDE_CODE_RETRY_WATCHDOG" not in value


@pytest.mark.parametrize("name", agents_base.names())
def test_rules_files_are_inside_the_repository(name):
    value = agents_base.profile(name).rules_files

    assert value
    assert not any(path.startswith("/") or ".." in path for path in value)


def test_what_agents_can_do_is_said():
    can = {name: agents_base.profile(name).capabilities for name in agents_base.names()}

    assert {name for name in can if can[name].chooses_session} == {"claude", "gemini"}
    assert {name for name in can if can[name].resumes} == {"claude", "codex", "gemini", "opencode"}
    assert {name for name in can if can[name].totals_are_of_session} == {"claude", "codex"}
    assert {name for name in can if not can[name].tells_result} == {"opencode", "aider"}
    assert {name for name in can if can[name].limits_budget or can[name].limits_turns} == {"claude"}
    assert {name for name in can if can[name].tells_cost} == {"claude", "opencode", "aider"}
