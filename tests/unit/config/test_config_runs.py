"""Settings of workers and runs: what a worker offers, and how many runs go on at a time."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.queue import model as queue_model
from adws.config import load as config_load
from adws.config import settings


def load(home, text="", **env):
    (home / "adw.toml").write_text(text)
    return config_load.load(env={"ADW_HOME": str(home), **env}, cwd=home)


def test_a_worker_offers_its_machine_and_no_tags_unless_told_otherwise(tmp_path):
    settings = load(tmp_path)

    assert (settings.worker_host, settings.worker_tags) == (None, None)
    assert (settings.runs_no_match_seconds, settings.runners_forget_seconds) == (300.0, 600.0)
    assert not settings.run_limits


def test_host_and_tags_are_set_in_the_file_and_by_variables(tmp_path):
    by_file = load(tmp_path, '[worker]\nhost = "alpha"\ntags = ["gpu", "big"]\n')
    by_variable = load(tmp_path, ADW_WORKER_HOST="beta", ADW_WORKER_TAGS="gpu, arm64")

    assert (by_file.worker_host, by_file.worker_tags) == ("alpha", ("big", "gpu"))
    assert (by_variable.worker_host, by_variable.worker_tags) == ("beta", ("arm64", "gpu"))


@pytest.mark.parametrize(
    ("name", "value"), [("ADW_WORKER_HOST", "two words"), ("ADW_WORKER_TAGS", "gpu,,x"), ("ADW_WORKER_TAGS", "a|b")]
)
def test_what_no_demand_could_name_is_refused(tmp_path, name, value):
    with pytest.raises(ConfigError, match=r"letters, digits and \. _ : -"):
        load(tmp_path, **{name: value})


def test_limits_are_read_by_scope_and_repositories_in_any_case(tmp_path):
    limits = load(
        tmp_path,
        '[limits.repository]\n"Acme/Widget" = 1\n"*" = 2\n[limits.workflow]\nsdlc = 0\n'
        "[limits.provider]\nanthropic = 3\n[limits]\nmax_retries = 2\n",
    ).run_limits

    assert limits.of("repository:acme/widget") == 1
    assert limits.of("repository:acme/other") == 2
    assert limits.of("workflow:sdlc") == 0
    assert limits.of("workflow:patch") is None
    assert limits.of("provider:anthropic") == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limits.team]\na = 1", r"adw\.toml:2: limits\.team\.a is not a setting of adw"),
        ("[limits]\nworkflow = 3", r"adw\.toml:2: limits\.workflow must be a table, such as \[limits\.workflow\]"),
        ('[limits.workflow]\nsdlc = "3"', r"adw\.toml:2: the limit of workflow 'sdlc' must be a whole number, 0 or"),
        ("[limits.workflow]\nsdlc = true", "must be a whole number"),
        ("[limits.workflow]\nsdlc = -1", "must be a whole number, 0 or more"),
        ('[limits.workflow]\n"*" = 0', r"'\*' must be a whole number, 1 or more"),
        ('[limits.workflow]\n"a|b" = 1', "cannot be the name of a workflow"),
        ('[limits.repository]\n"A/b" = 1\n"a/B" = 2', r"adw\.toml:3: the repository 'a/B' has two limits"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_place(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path, text)


def test_the_words_of_limits_are_those_of_the_rule():
    assert (settings.EVERY, settings.SCOPES) == (queue_model.EVERY, queue_model.SCOPES)
