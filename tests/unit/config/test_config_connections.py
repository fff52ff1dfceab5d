"""
`[connections.NAME]` of adw.toml: what is read, and that no password is accepted in a file that is committed.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.workflow.model import CONNECTION_TYPES, Connection, chosen
from adws.config import load as config_load
from adws.config.settings import CONNECTION_KEYS


def load(tmp_path, text):
    (tmp_path / "adw.toml").write_text(text)
    return config_load.load(env={}, cwd=tmp_path)


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as info:
        load(tmp_path, text)
    return info.value.problems


def test_connections_are_read_by_name(tmp_path):
    settings = load(
        tmp_path,
        '[connections.main]\ntype = "postgres"\nurl = "postgresql://me@host:5432/db?sslmode=require"\n'
        'password_env = "MAIN_PASSWORD"\n[connections.all]\ntype = "postgres"\nurl_env = "ALL_URL"\n'
        '[connections.lite]\ntype = "sqlite"\npath = "data/x.db"\n',
    )

    assert settings.connections == {
        "main": Connection(
            name="main",
            type="postgres",
            url="postgresql://me@host:5432/db?sslmode=require",
            password_env="MAIN_PASSWORD",
        ),
        "all": Connection(name="all", type="postgres", url_env="ALL_URL"),
        "lite": Connection(name="lite", type="sqlite", path="data/x.db"),
    }


def test_without_any_there_are_none(tmp_path):
    assert load(tmp_path, "").connections == {}


@pytest.mark.parametrize(
    "line",
    [
        'url = "postgresql://me:hunter2@host/db"',
        'url = "postgresql://me@host/db?password=hunter2"',
        'url = "postgresql://me@host/db"\npassword = "hunter2"',
        'url = "postgresql://me@host/db"\npasswd = "hunter2"',
        'url = "postgresql://me@host/db"\ntoken = "hunter2"',
        'url = "postgresql://me@host/db"\npassword_env = "hunter2!"',
    ],
)
def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path, line):
    [message] = problems(tmp_path, f'[connections.main]\ntype = "postgres"\n{line}\n')

    assert "environment variable" in message
    assert f"adw.toml:{2 + len(line.splitlines())}: [connections.main]" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("main = 3", "[connections.main] must be a table"),
        ('main = {path = "x"}', "[connections.main] has no type that is known: say which, one of sqlite, postgres"),
        ('main = {type = "postgrs"}', "has no type that is known, did you mean postgres?"),
        ('main = {type = "sqlite"}', "has no path"),
        ('main = {type = "sqlite", path = ""}', "path must be a text that is not empty"),
        ('main = {type = "sqlite", path = 3}', "path must be a text that is not empty"),
        ('main = {type = "sqlite", path = "a\\u0000"}', "path holds a NUL character"),
        ('main = {type = "sqlite", path = "x", url = "y"}', "'url' is no key of a connection of the type sqlite"),
        ('main = {type = "postgres"}', "needs url, such as"),
        ('main = {type = "postgres", url = "postgres://h/d", url_env = "X"}', "one of them"),
        ('main = {type = "postgres", url_env = "X", password_env = "Y"}', "password_env goes with url"),
        ('main = {type = "postgres", url = "mysql://h/d"}', "url is no address of a database"),
        ('main = {type = "postgres", url = "postgres://h"}', "url is no address of a database"),
        ('main = {type = "postgres", url = "postgres://h:99999999/d"}', "url is no address"),
        ('"a b" = {type = "sqlite", path = "x"}', "'a b' cannot be the name of a connection"),
    ],
)
def test_what_is_no_connection_is_said_with_its_line(tmp_path, text, words):
    [message] = problems(tmp_path, f"[connections]\n{text}\n")

    assert words in message
    assert "adw.toml:2: " in message


def test_the_types_are_those_that_sinks_know():
    assert tuple(CONNECTION_KEYS) == CONNECTION_TYPES


def test_a_sink_means_the_connection_it_names_or_the_only_one_of_its_type():
    types = {"a": "sqlite", "b": "postgres", "c": "sqlite"}

    assert chosen("a", "sqlite", types) == "a"
    assert chosen("b", "sqlite", types) == ""
    assert chosen("x", "sqlite", types) == ""
    assert chosen("", "postgres", types) == "b"
    assert chosen("", "sqlite", types) == ""
