"""Settings of worktrees, ports and quotas: what may be given, and what is wrong together."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load
from adws.config import values as config_values


def load(tmp_path, **env):
    return config_load.load(env={f"ADW_{name.upper()}": value for name, value in env.items()}, cwd=tmp_path)


def problem(tmp_path, **env) -> str:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, **env)
    return str(refused.value)


def test_the_files_that_adw_set_ups_copy_are_the_default(tmp_path):
    assert config_values.files_in(load(tmp_path).worktree_include) == (
        ".env",
        "app/server/.env",
        ".mcp.json",
        "playwright-mcp-config.json",
    )
    assert config_values.files_in(load(tmp_path, worktree_include="None").worktree_include) == ()
    assert config_values.files_in(load(tmp_path, worktree_include=" ./a , b/c,, ").worktree_include) == ("a", "b/c")


@pytest.mark.parametrize("text", ["/etc/passwd", "../x", "a/../../x", "~/.ssh/id", "-rf", "a\x07"])
def test_a_file_outside_the_repository_cannot_be_included(tmp_path, text):
    assert "must be paths inside the repository" in problem(tmp_path, worktree_include=text)


def test_set_up_commands_stand_one_on_a_line(tmp_path):
    (tmp_path / "adw.toml").write_text('[worktree]\nsetup = """\nnpm ci --prefix "my app"\n\nuv sync\n"""\n')

    settings = config_load.load(env={}, cwd=tmp_path)

    assert config_values.commands_in(settings.worktree_setup) == (("npm", "ci", "--prefix", "my app"), ("uv", "sync"))
    assert config_values.commands_in(load(tmp_path / "..").worktree_setup) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("npm ci && uv sync", "without what only a shell understands"),
        ("cat a | sh", "without what only a shell understands"),
        ("echo 'open", "no closing quotation"),
    ],
)
def test_no_shell_is_asked_for_set_up(tmp_path, text, why):
    assert why in problem(tmp_path, worktree_setup=text)


def test_ranges_of_ports_must_exist_and_not_overlap(tmp_path):
    assert "would overlap" in problem(tmp_path, ports_count="101")
    assert "would overlap" in problem(tmp_path, ports_backend_start="9210")
    assert "above 65535" in problem(tmp_path, ports_frontend_start="65530")
    assert "1024 or more" in problem(tmp_path, ports_backend_start="80")
    assert load(tmp_path, ports_count="100").ports_count == 100


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "ten"])
def test_money_is_a_number_from_nothing_up(tmp_path, text):
    assert "must be a number of US dollars, 0 or more" in problem(tmp_path, quota_max_cost=text)
    assert load(tmp_path, quota_max_cost="0").quota_max_cost == 0.0


def test_the_variables_that_adw_gives_to_a_phase_are_no_settings(tmp_path):
    load(tmp_path, backend_port="9100", frontend_port="9200")
