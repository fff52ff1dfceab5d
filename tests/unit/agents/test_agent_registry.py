"""
The agents there are: found by name, loaded one at a time, and with nothing of ours in their environment.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "said"),
    [("claud", "did you mean claude"), ("", "there are: claude, codex"), ("json_lines", "there is no agent")],
)
def test_an_agent_that_does_not_exist_is_named(name, said):
    with pytest.raises(ConfigError, match=said):
        agents_base.profile(name)


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
