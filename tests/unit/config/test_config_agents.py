"""The settings of agents."""

from __future__ import annotations

import pytest

from adws.adw_modules.agents.base import names
from adws.adw_modules.agents.prices import model_sets
from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load


def load(home, **env):
    return config_load.load(env={"ADW_HOME": str(home), **env}, cwd=home)


def test_the_usual_agent_is_claude_and_every_agent_has_a_program(tmp_path):
    settings = load(tmp_path)

    assert (settings.agent_name, settings.agent_permissions, settings.agent_model) == ("claude", "edit", None)
    assert {name: getattr(settings, f"{name}_path") for name in names()} == {name: name for name in names()}


def test_agents_are_set_up_in_the_file(tmp_path):
    (tmp_path / "adw.toml").write_text(
        '[agent]\nname = "codex"\npermissions = "all"\nmodel = "openai/gpt-5.1-codex"\nmax_turns = 40\n'
        'env = ["NPM_TOKEN", "FOO"]\ncodex_path = "/opt/codex"\n'
    )

    settings = load(tmp_path)

    assert (settings.agent_name, settings.agent_permissions) == ("codex", "all")
    assert (settings.agent_model, settings.agent_max_turns) == ("openai/gpt-5.1-codex", 40)
    assert (settings.agent_env, settings.codex_path) == (("NPM_TOKEN", "FOO"), "/opt/codex")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ADW_AGENT_NAME", "hal", "must be one of claude, codex, gemini, opencode, aider"),
        ("ADW_AGENT_PERMISSIONS", "root", "must be one of read, edit, all"),
        ("ADW_AGENT_MODEL", "--yolo", "must be the name of a model"),
        ("ADW_AGENT_MODEL_HEAVY", "a b", "must be the name of a model"),
        ("ADW_AGENT_ENV", "A, B=1", "must be names of environment variables, separated by commas"),
        ("ADW_AGENT_MAX_TURNS", "0", "must be"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path, variable, value, words):
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, **{variable: value})


def test_the_model_sets_of_adw_mean_models_of_claude_unless_something_else_is_said(tmp_path):
    usual = {"base": "sonnet", "heavy": "opus", "lightweight": "haiku"}

    assert model_sets(load(tmp_path)) == usual
    assert model_sets(load(tmp_path, ADW_AGENT_MODEL_HEAVY="best")) == {**usual, "heavy": "best"}
    assert model_sets(load(tmp_path, ADW_AGENT_NAME="codex")) == {}
    assert model_sets(load(tmp_path, ADW_AGENT_NAME="codex", ADW_AGENT_MODEL_BASE="gpt")) == {"base": "gpt"}
