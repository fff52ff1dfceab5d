"""The adw.toml that a repository begins with is valid, says what was found, and explains what was not."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.config import load as config_load
from adws.config import toml_file
from adws.doctor import project_init
from adws.doctor.project_init import Findings, Project, ProjectCommand, ignored_lines, settings_text

FULL = Findings(
    project=Project(
        languages=("Python",),
        test=ProjectCommand(argv=("pytest", "-k", 'a "b"'), source="pyproject.toml"),
        lint=ProjectCommand(shell="ruff check . | cat", source="your answer"),
        setup=(
            ProjectCommand(argv=("uv", "sync"), source="uv.lock"),
            ProjectCommand(argv=("npm", "ci"), source="package-lock.json"),
        ),
    ),
    repository="acme/shop",
    repository_source="the remote upstream",
    remote="upstream",
    agent="codex",
    agents=("claude", "codex"),
    folders=(project_init.OWN_FOLDER,),
)


def test_what_was_found_is_what_is_set(tmp_path):
    (tmp_path / "adw.toml").write_text(settings_text(FULL))

    settings = config_load.load(env={}, cwd=tmp_path)

    assert (settings.repository, settings.git_remote, settings.agent_name) == ("acme/shop", "upstream", "codex")
    assert (settings.state_dir, settings.trees_dir) == (tmp_path / ".adw/state", tmp_path / ".adw/trees")
    assert settings.worktree_setup == "uv sync\nnpm ci"
    assert settings.section("phases").data == {
        "lint": {"gates": [{"shell": "ruff check . | cat"}]},
        "test": {"gates": [{"command": ["pytest", "-k", 'a "b"']}]},
    }


def test_what_was_found_nowhere_is_left_to_its_default_and_explained(tmp_path):
    text = settings_text(Findings())
    (tmp_path / "adw.toml").write_text(text)

    settings = config_load.load(env={}, cwd=tmp_path)

    assert tomllib.loads(text) == {"agent": {"name": "claude"}}
    assert settings.state_dir == tmp_path / "state"
    for words in ("No agent was found here", "No command for test was found", '# repository = "owner/name"', "npm ci"):
        assert words in text


def test_what_is_commented_out_is_valid_once_it_is_not(tmp_path):
    text = re.sub(r"^# (?=\[|\w+ = )", "", settings_text(Findings()), flags=re.MULTILINE)
    (tmp_path / "adw.toml").write_text(text)

    settings = config_load.load(env={}, cwd=tmp_path)

    assert (settings.repository, settings.worktree_setup, settings.agent_model) == (
        "owner/name",
        "npm ci",
        {"": "sonnet"},
    )
    assert settings.section("phases").data["test"] == {"gates": [{"command": ["make", "test"]}]}
    assert settings.quota_min_free_disk == config_load.load(env={}, cwd=tmp_path.parent).quota_min_free_disk


@pytest.mark.parametrize(
    ("found", "lines"),
    [(Findings(), ("/state/", "/trees/", ".ports.env")), (FULL, ("/.adw/", ".ports.env"))],
    ids=["usual", "taken"],
)
def test_git_is_told_to_ignore_what_adw_makes(found, lines):
    assert ignored_lines(found) == lines


@given(st.text())
def test_any_text_can_be_written_and_read_back(text):
    readable = text.encode("utf-8", "replace").decode()

    assert tomllib.loads(f"a = {toml_file.quoted(text)}\nb = {toml_file.listed([text, 'x'])}") == {
        "a": readable,
        "b": [readable, "x"],
    }
