"""The settings about calls of steps."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.steps.http_client import _matches
from adws.config import load as config_load


def test_without_a_word_results_have_8_mib_and_every_host_may_be_asked(tmp_path):
    settings = config_load.load(env={}, cwd=tmp_path)

    assert (settings.steps_max_result_bytes, settings.steps_http_allow) == (8 * 2**20, None)


def test_hosts_are_names_separated_by_commas(tmp_path):
    settings = config_load.load(env={"ADW_STEPS_HTTP_ALLOW": "API.example.com, *.local,10.0.0.1,[::1]"}, cwd=tmp_path)

    assert settings.steps_http_allow == ("api.example.com", "*.local", "10.0.0.1", "::1")


@pytest.mark.parametrize("text", ["https://a.b", "a/b", "a,,b", "*", "a*.b", "-a"])
def test_what_is_no_host_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="must be names of hosts"):
        config_load.load(env={"ADW_STEPS_HTTP_ALLOW": text}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("host", "name", "is_meant"),
    [
        ("a.example.com", "*.example.com", True),
        ("a.b.example.com", "*.example.com", True),
        ("example.com", "*.example.com", False),
        ("badexample.com", "*.example.com", False),
        ("example.com", "example.com", True),
        ("a.example.com", "example.com", False),
    ],
)
def test_a_star_means_the_hosts_below(host, name, is_meant):
    assert _matches(host, name) is is_meant
