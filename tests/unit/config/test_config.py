"""Settings: precedence, origins, and an error that names the place for everything that is wrong."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from adws.adw_modules.errors import ConfigError, PlatformUnsupported
from adws.config import kinds, settings
from adws.config import load as config_load
from adws.config.settings import SETTINGS, Settings

PLANTED = "ghp_PlantedSecret0123456789"


def load(home: Path, *, toml: str | None = None, cwd: Path | None = None, **env: str) -> Settings:
    if toml is not None:
        (home / "adw.toml").write_text(toml)
    return config_load.load(env={"ADW_HOME": str(home), **env}, cwd=cwd or home)


def refused(home: Path, *, toml: str | None = None, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(home, toml=toml, **env)
    return str(caught.value)


# --- the table -------------------------------------------------------------------------------------------------


def test_settings_do_not_change(tmp_path):
    settings = load(tmp_path)

    with pytest.raises(AttributeError, match="store cannot be set"):
        settings.store = "database"
    assert settings.store == "files"


def test_every_setting_explains_itself_and_no_name_is_used_twice():
    names = [name for setting in SETTINGS for name in (setting.env, *setting.aliases)]
    keys = [setting.key for setting in SETTINGS if setting.is_in_file]

    assert all(setting.help.endswith(".") and setting.values for setting in SETTINGS)
    assert len(names) == len(set(names))
    assert len(keys) == len(set(keys))


def test_defaults_are_valid_and_lie_under_the_home(tmp_path):
    settings = load(tmp_path)

    assert settings.state_dir == tmp_path / "state"
    assert settings.trees_dir == tmp_path / "trees"
    assert settings.database_url == f"sqlite:///{tmp_path}/state/adw.db"
    assert settings.store == "files"
    assert settings.quota_min_free_disk == 10 * 2**30
    # A worker stops itself well before another may take its workflow, and renews its lease often before that.
    assert (settings.lease_renew_seconds, settings.lease_stop_seconds, settings.lease_ttl_seconds) == (10, 20, 30)
    assert settings.github_token is None
    assert {settings.origin(s.name) for s in SETTINGS if s.name != "home"} == {"default"}


# --- precedence and origin -------------------------------------------------------------------------------------


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(tmp_path):
    toml = '[state]\nstore = "database"\n[log]\nlevel = "ERROR"\n[limits]\nmax_minutes = 7\n'
    (tmp_path / "adw.toml").write_text(toml)
    env = {"ADW_HOME": "/nowhere", "ADW_LOG_LEVEL": "DEBUG", "ADW_STATE_STORE": "files"}

    settings = config_load.load(env=env, cwd=tmp_path, overrides={"home": str(tmp_path)})

    assert (settings.home, settings.origin("home")) == (tmp_path, "command line")
    assert (settings.log_level, settings.origin("log_level")) == ("DEBUG", "env ADW_LOG_LEVEL")
    assert (settings.store, settings.origin("store")) == ("files", "env ADW_STATE_STORE")
    assert (settings.max_minutes, settings.origin("max_minutes")) == (7, f"{tmp_path}/adw.toml:6")
    assert (settings.max_attempts, settings.origin("max_attempts")) == (5, "default")


@pytest.mark.parametrize(
    ("alias", "text", "name", "value"),
    [
        ("RUN_RECOVERY_MODE", "all", "recovery_mode", "all"),
        ("RUN_RECOVERY_THRESHOLD", "60", "recovery_threshold_seconds", 60.0),
        ("GITHUB_PAT", PLANTED, "github_token", PLANTED),
        ("GH_TOKEN", PLANTED, "github_token", PLANTED),
        ("GITHUB_TOKEN", PLANTED, "github_token", PLANTED),
        ("GITHUB_WEBHOOK_SECRET", "hush", "webhook_secret", ("hush",)),
        ("GITHUB_REPO_URL", "https://github.com/acme/shop.git", "repository", "acme/shop"),
    ],
)
def test_variables_that_users_know_work(tmp_path, alias, text, name, value):
    settings = load(tmp_path, **{alias: text})

    assert getattr(settings, name) == value
    assert settings.origin(name) == f"env {alias}"


def test_an_empty_variable_counts_as_not_set(tmp_path):
    settings = load(tmp_path, GITHUB_PAT="", ADW_STATE_STORE="")

    assert settings.github_token is None
    assert settings.origin("store") == "default"


def test_alias_and_name_may_both_be_set_but_not_to_different_values(tmp_path):
    settings = load(tmp_path, ADW_GITHUB_REPOSITORY="acme/shop", GITHUB_REPO_URL="git@github.com:acme/shop.git")
    modes = refused(tmp_path, ADW_RECOVERY_MODE="all", RUN_RECOVERY_MODE="none")
    tokens = refused(tmp_path, GH_TOKEN=PLANTED, GITHUB_TOKEN="ghp_another")

    assert settings.repository == "acme/shop"
    assert "ADW_RECOVERY_MODE and RUN_RECOVERY_MODE set recovery.mode to different values: unset one" in modes
    assert "GH_TOKEN and GITHUB_TOKEN" in tokens
    assert "ghp_" not in tokens


def test_relative_paths_start_at_the_home_and_not_where_the_person_stands(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    settings = load(tmp_path, cwd=elsewhere, ADW_STATE_DIR="var/state", ADW_DATABASE_URL="sqlite:///var/my.db")

    assert settings.state_dir == tmp_path / "var/state"
    assert settings.database_url == f"sqlite:///{tmp_path}/var/my.db"


# --- what is refused -------------------------------------------------------------------------------------------


def test_an_unknown_variable_is_refused_with_the_nearest_name(tmp_path):
    message = refused(tmp_path, ADW_STATE_STROE="files")

    assert "the variable ADW_STATE_STROE is not a setting of adw, did you mean ADW_STATE_STORE?: unset it" in message
    assert "did you mean" not in refused(tmp_path, ADW_QQQQQQQQ="1")


def test_variables_of_other_set_ups_and_of_the_test_suite_change_nothing(tmp_path):
    settings = load(tmp_path, ADW_DEBUG="true", ADW_AUTO_MERGE="1", ADW_CLEANUP_WORKTREES="", ADW_TEST_SEED="1")

    assert settings.ignored == ("ADW_AUTO_MERGE", "ADW_DEBUG")
    assert "did you mean ADW_DEBUG?" in refused(tmp_path, ADW_DEBUGG="true")


@pytest.mark.parametrize(
    ("toml", "line", "words"),
    [
        ("\n[state]\nstroe = 'files'\n", 3, "did you mean state.store?"),
        ("[workflow.mine]\nphases = []\n", 2, "workflow.mine.phases is not a setting"),
        ("workflows = 3\n", 1, "workflows must be a table, such as [workflows.NAME]"),
        ("[retentions]\n", 1, "retentions is not a setting"),
        ("'state.store' = 'files'\n", 1, "'state.store' is not a setting"),
        ("[state]\nstore = {}\n", 2, "must be a text or a number"),
        ("# store\n[state]\ndir = 'x'\nstore = 'cloud'\n", 4, "must be one of files, database"),
        ("[limits]\nmax_attempts = 0\n", 2, "must be a whole number, 1 or more"),
        ("[limits]\nmax_attempts = true\n", 2, "is 'true' but must be a whole number"),
        ("[limits]\nmax_attempts = [\n 1,\n]\n", 2, "must be a text or a number"),
        ("[state]\nstore = ''\n", 2, "must be a text or a number"),
        ("[state]\nstore = = 1\n", 2, "this is not TOML"),
        ("[state]\nstore = '''never\nclosed\n", 3, "this is not TOML"),
        ("[state]\nstore='files'\nstore='files'\n", 3, "this is not TOML"),
        ("[log]\nlevel = '''\nx'''\n[web]\nport = -1\n", 2, "must be one of DEBUG"),
        ("[log]\nlevel = '''\nx'''\n[web]\nport = -1\n", 5, "must be a whole number"),
        ("[web]\nhost = '::1'  # port = 9\nport = -1\n", 3, "must be a whole number from 0 to"),
        ("[github]\ntoken = 'hush-hush'\n", 2, "secrets are given by environment variables only"),
        ("[database]\nurl = 'postgresql://me:hush-hush@db/x'\n", 2, "set ADW_DATABASE_URL instead"),
    ],
    ids=lambda value: str(value)[:24].replace("\n", " "),
)
def test_what_is_wrong_in_the_file_is_named_with_its_line(tmp_path, toml, line, words):
    message = refused(tmp_path, toml=toml)

    assert f"{tmp_path}/adw.toml:{line}" in message
    assert words in message
    assert "hush-hush" not in message


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    file = tmp_path / "adw.toml"

    file.write_bytes(b"[state]\nstore = '\xff'\n")
    assert f"{file}:2: this is not UTF-8 text" in refused(tmp_path)
    file.write_text(f"x = {'[' * 5000}{']' * 5000}\n")
    assert "nested too deeply" in refused(tmp_path)
    file.unlink()
    file.symlink_to("adw.toml")
    assert f"cannot read {file}" in refused(tmp_path)


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(path.name)


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make", [Path.mkdir, as_fifo, as_socket, as_device], ids=["directory", "fifo", "socket", "device"]
)
def test_what_is_not_a_regular_file_is_refused_and_not_waited_for(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
    make(tmp_path / "adw.toml")

    assert f"{tmp_path}/adw.toml is not a regular file" in refused(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path):
    (tmp_path / "adw.toml").write_bytes(b"\xef\xbb\xbf[state]\nstore = 'database'\n")

    settings = load(tmp_path)

    assert (settings.store, settings.origin("store")) == ("database", f"{tmp_path}/adw.toml:2")


def test_windows_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(PlatformUnsupported, match="Windows is not supported, use WSL"):
        config_load.load(env={}, cwd=tmp_path, platform="nt")


def test_all_that_is_wrong_is_told_at_once_each_with_its_place(tmp_path):
    toml = "[state]\nstroe = 'files'\n[limits]\nmax_minutes = -1\nmax_attempts = []\n[database]\nurl = 'mysql://x'\n"
    (tmp_path / "adw.toml").write_text(toml)
    env = {
        "ADW_HOME": str(tmp_path),
        "ADW_STROE": "1",
        "ADW_STATE_STORE": "cloud",
        "GH_TOKEN": "a",
        "GITHUB_TOKEN": "b",
    }

    with pytest.raises(ConfigError) as caught:
        config_load.load(env=env, cwd=tmp_path)

    file = f"{tmp_path}/adw.toml"
    places = [
        "ADW_STROE",
        "GH_TOKEN and GITHUB_TOKEN",
        f"{file}:2",
        f"{file}:5",
        "ADW_STATE_STORE",
        f"{file}:7",
        f"{file}:4",
    ]
    assert len(caught.value.problems) == len(places)
    assert all(place in problem for place, problem in zip(places, caught.value.problems, strict=True))


def test_what_is_wrong_in_the_environment_is_told_with_a_file_that_cannot_be_read(tmp_path):
    message = refused(tmp_path, toml="[", ADW_STROE="1")

    assert "ADW_STROE" in message
    assert "this is not TOML" in message


def test_an_empty_table_of_settings_is_no_mistake(tmp_path):
    assert load(tmp_path, toml="[state]\n# store = 'database'\n[workflows]\n").store == "files"


# --- tables that are no settings -------------------------------------------------------------------------------

WORKFLOWS = """[state]
store = "files"

[workflows.mine]
title = "Mine"

[[workflows.mine.phases]]
name = "plan"

[[workflows.mine.phases]]
name = "build"
runner = "shell"
"""


def test_a_registered_table_is_handed_on_as_it_is_with_the_place_of_each_key(tmp_path):
    section = load(tmp_path, toml=WORKFLOWS).section("workflows")

    assert section.data == {
        "mine": {"title": "Mine", "phases": [{"name": "plan"}, {"name": "build", "runner": "shell"}]}
    }
    assert section.path == tmp_path / "adw.toml"
    assert section.line_of("mine", "phases", 1, "runner") == 12
    assert section.where("mine", "title") == f"{tmp_path}/adw.toml:5"
    # What is missing has the line of the table it is missing in.
    assert section.line_of("mine", "phases", 0, "runner") == 7
    assert section.line_of("mine", "phases", 7) == 7
    assert section.line_of("yours", "phases") == section.line_of() == 4


@pytest.mark.parametrize("toml", [None, "[state]\nstore = 'files'\n"], ids=["no-file", "no-table"])
def test_a_table_that_is_not_there_is_empty_and_has_no_place(tmp_path, toml):
    section = load(tmp_path, toml=toml).section("workflows")

    assert (section.data, section.path, section.line_of("mine")) == ({}, None, None)
    assert section.where("mine") == f"{tmp_path}/adw.toml"


def test_a_table_that_nobody_registered_cannot_be_asked_for(tmp_path):
    with pytest.raises(KeyError, match="state is not in SECTIONS"):
        load(tmp_path).section("state")


def test_a_table_has_another_name_than_every_setting():
    tables = {setting.key.partition(".")[0] for setting in SETTINGS}

    assert tables.isdisjoint(settings.SECTIONS)
    assert all(description.endswith(".") for description in settings.SECTIONS.values())


# --- secrets are not shown -------------------------------------------------------------------------------------


def test_the_secret_values_are_known_to_those_who_keep_them_out(tmp_path):
    settings = load(tmp_path, GITHUB_PAT=PLANTED, ADW_DATABASE_URL="postgresql://me:p@w%21@db/x?sslpassword=q")

    assert settings.secrets() == (PLANTED, "p@w%21", "q", "p@w!")
    assert kinds.passwords("postgresql://me:pw@db/x") == ("pw",)
    assert load(tmp_path).secrets() == ()


@pytest.mark.parametrize("password", ["a:b", "a@b", "a/b@c", "p?q#r", "x" * 200])
def test_a_password_with_any_character_is_masked_whole(password):
    assert kinds.without_password(f"postgresql://me:{password}@db:5432/x") == "postgresql://me:***@db:5432/x"


@pytest.mark.parametrize("url", ["sqlite:////srv/adw/a@b.db", "postgresql://db:5432/x", "postgresql://me@db/x"])
def test_a_url_without_a_password_is_shown_as_it_is(url):
    assert kinds.without_password(url) == url


# --- the home --------------------------------------------------------------------------------------------------


def test_the_home_is_the_repository_above_else_the_current_directory(tmp_path):
    inside = tmp_path / "src" / "deep"
    inside.mkdir(parents=True)

    alone = config_load.load(env={}, cwd=inside)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    above = config_load.load(env={}, cwd=inside)

    assert (alone.home, above.home) == (inside, tmp_path)
    assert "no git repository" in alone.origin("home")
    assert above.origin("home") == "the repository you are in"


def test_an_empty_directory_of_that_name_is_no_repository(tmp_path):
    """The sandbox of an agent puts one into each directory that the agent may write to."""
    (tmp_path / ".git").mkdir()
    home = tmp_path / "home"
    home.mkdir()

    assert config_load.load(env={}, cwd=home).home == home
    assert not config_load.is_in_repository(home)
    (tmp_path / ".git" / "HEAD").symlink_to("refs/heads/main")  # as git wrote it once
    assert config_load.is_in_repository(home)
    assert config_load.load(env={}, cwd=home).home == tmp_path


def worktree(admin: Path, tree: Path, pointer: str) -> None:
    """Make what git makes for a worktree: its admin directory, and the file that leads there."""
    for directory in (tree, admin):
        directory.mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {pointer}\n")
    (admin / "commondir").write_text("../..\n")


@pytest.mark.parametrize("relative", [False, True])
def test_from_a_worktree_the_home_is_the_main_checkout(tmp_path, relative):
    tree, admin = tmp_path / "trees" / "1a2b3c4d", tmp_path / ".git" / "worktrees" / "1a2b3c4d"
    worktree(admin, tree, "../../.git/worktrees/1a2b3c4d" if relative else str(admin))

    assert config_load.load(env={}, cwd=tree).home == tmp_path


def test_a_submodule_is_its_own_home(tmp_path):
    (tmp_path / ".git" / "modules" / "lib").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / ".git").write_text("gitdir: ../.git/modules/lib\n")

    assert config_load.load(env={}, cwd=tmp_path / "lib").home == tmp_path / "lib"


@pytest.mark.parametrize("content", ["gitdir:\n", "something else\n", "\udcff"], ids=["empty", "other", "not-text"])
def test_a_git_file_that_says_nothing_is_refused_with_what_to_do(tmp_path, content):
    (tmp_path / ".git").write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(ConfigError, match="set ADW_HOME"):
        config_load.load(env={}, cwd=tmp_path)


def test_a_worktree_of_a_bare_repository_is_refused_with_what_to_do(tmp_path):
    admin = tmp_path / "shop.git" / "worktrees" / "tree"
    worktree(admin, tmp_path / "tree", str(admin))

    with pytest.raises(ConfigError, match="has no main checkout: set ADW_HOME"):
        config_load.load(env={}, cwd=tmp_path / "tree")


def test_a_home_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\(env ADW_HOME\) is not a directory: create it"):
        config_load.load(env={"ADW_HOME": "missing"}, cwd=tmp_path)


def test_a_current_directory_that_was_removed_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(ConfigError, match="current directory does not exist any more"):
        config_load.from_environment()


def test_documents_are_in_the_database_where_machines_share_one_unless_somebody_says_otherwise(tmp_path):
    shared = load(tmp_path, ADW_DATABASE_URL="postgresql+psycopg://me@db/x")
    alone = load(tmp_path, ADW_DATABASE_URL="postgresql://me@db/x", ADW_STATE_STORE="files")
    embedded = load(tmp_path, ADW_STATE_STORE="database")

    assert (shared.database_url, shared.store) == ("postgresql://me@db/x", "database")
    assert shared.origin("store") == "default with PostgreSQL"
    assert (alone.store, alone.origin("store")) == ("files", "env ADW_STATE_STORE")
    assert [item.is_shared for item in (shared, alone, embedded)] == [True, False, False]
