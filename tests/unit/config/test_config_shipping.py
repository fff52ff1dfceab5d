"""Switches, lists and people as settings, in a variable and in the file."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load


def load(tmp_path, toml: str = "", **env: str):
    (tmp_path / "adw.toml").write_text(toml)
    return config_load.load(env=env, cwd=tmp_path)


def test_without_a_word_work_is_isolated_and_nothing_is_merged(tmp_path):
    settings = load(tmp_path)

    assert (settings.worktree_enabled, settings.ship_merge, settings.ship_draft) == (True, "no", True)
    assert (settings.ship_allow_workflow_files, settings.ship_allow_agent_files) == (False, False)
    assert (settings.ship_labels, settings.ship_allow_paths, settings.git_author) == (None, None, None)


@pytest.mark.parametrize(("text", "value"), [("false", False), ("Off", False), ("1", True), ("yes", True)])
def test_a_switch_takes_the_usual_words(tmp_path, text, value):
    assert load(tmp_path, ADW_WORKTREE_ENABLED=text).worktree_enabled is value


def test_the_file_takes_booleans_and_lists(tmp_path):
    toml = '[worktree]\nenabled = false\n[ship]\nlabels = ["adw", "robot"]\nallow_paths = "docs/, *.md"\n'

    settings = load(tmp_path, toml)

    assert settings.worktree_enabled is False
    assert settings.ship_labels == ("adw", "robot")
    assert settings.ship_allow_paths == ("docs/", "*.md")
    assert (settings.shown("worktree_enabled"), settings.shown("ship_labels")) == ("false", "adw, robot")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ADW_WORKTREE_ENABLED", "perhaps", "must be true or false"),
        ("ADW_SHIP_LABELS", "a,,b", "must be a list of texts"),
        ("ADW_GIT_AUTHOR", "Ada", "must be a name and an address"),
        ("ADW_GIT_AUTHOR", "<ada@example.com>", "must be a name and an address"),
        ("ADW_SHIP_MERGE", "always", "must be one of no, squash, merge, rebase"),
        ("ADW_SHIP_MAX_FILES", "0", "must be a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, **{name: text})


def test_somebody_who_commits_is_a_name_and_an_address(tmp_path):
    assert load(tmp_path, ADW_GIT_AUTHOR="Ada Example <ada@example.com>").git_author == "Ada Example <ada@example.com>"
