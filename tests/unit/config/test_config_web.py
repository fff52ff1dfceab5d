"""Settings of the web door: what may be given, and that its tokens are secrets."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.identifiers import OWN_SECRETS
from adws.config import load as config_load
from adws.config import settings
from adws.web import server

ONE, TWO = "first-token-0123456789", "second-token-0123456789"


def load(home, **env):
    return config_load.load(env={"ADW_HOME": str(home), **env}, cwd=home)


def test_it_listens_at_loopback_without_a_token_unless_told_otherwise(tmp_path):
    settings = load(tmp_path)

    assert (settings.web_host, settings.web_port, settings.web_token) == ("127.0.0.1", 8001, None)
    assert settings.web_workers == 2
    assert settings.webhook_max_body_bytes == 25 * 2**20


def test_several_tokens_are_kept_secret(tmp_path):
    settings = load(tmp_path, ADW_WEB_TOKEN=f"{ONE}, {TWO}")

    assert settings.web_token == (ONE, TWO)
    assert settings.shown("web_token") == "set"
    assert {ONE, TWO} <= set(settings.secrets())


def test_a_token_is_not_given_in_the_file(tmp_path):
    """
    The file is one to commit.
    """
    (tmp_path / "adw.toml").write_text(f'[web]\ntoken = "{ONE}"\n')

    with pytest.raises(ConfigError, match=r"web\.token"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["short", f"{ONE},", f"{ONE}, short", "two words of a token 123"])
def test_a_token_that_can_be_guessed_is_refused_and_not_repeated(tmp_path, text):
    with pytest.raises(ConfigError, match=r"web_token .* must be") as caught:
        load(tmp_path, ADW_WEB_TOKEN=text)

    assert text not in str(caught.value)


def test_no_secret_of_the_settings_reaches_a_process_that_adw_starts():
    """
    A token of the API in an agent's environment would let the agent start and approve workflows.
    """
    names = {name for one in settings.SETTINGS if one.secret for name in (one.env, *one.aliases)}

    assert names - OWN_SECRETS == set()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "adw.example.com"])
def test_a_host_is_a_name_or_an_address(tmp_path, host):
    assert load(tmp_path, ADW_WEB_HOST=host).web_host == host


@pytest.mark.parametrize("host", ["-x", "a b", "127.0.0.1:80/x", "http://here"])
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="web_host"):
        load(tmp_path, ADW_WEB_HOST=host)


# --- the dashboard -----------------------------------------------------------------------------------------------


def test_the_dashboard_may_act_and_has_no_public_address_unless_told_otherwise(tmp_path):
    settings = load(tmp_path)

    assert (settings.web_public_url, settings.web_read_only, settings.web_session_seconds) == (None, False, 43_200.0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://adw.example.com", "https://adw.example.com"),
        ("https://ADW.Example.com/", "https://adw.example.com"),
        ("http://build-1:8001", "http://build-1:8001"),
        ("http://[::1]:8001", "http://[::1]:8001"),
    ],
)
def test_the_public_address_is_kept_as_browsers_say_it(tmp_path, text, address):
    assert load(tmp_path, ADW_WEB_PUBLIC_URL=text).web_public_url == address


@pytest.mark.parametrize(
    "text",
    ["adw.example.com", "https://", "https://x/adw", "https://user@x", "https://x?a=1", "ftp://x", "https://x y"],
)
def test_a_public_address_with_more_or_less_than_that_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="without a path"):
        load(tmp_path, ADW_WEB_PUBLIC_URL=text)


@pytest.mark.parametrize("text", ["0", "59", "2678401", "nan", "for ever"])
def test_a_login_lasts_a_minute_at_least_and_a_month_at_most(tmp_path, text):
    with pytest.raises(ConfigError, match="web_session_seconds"):
        load(tmp_path, ADW_WEB_SESSION_SECONDS=text)


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 8001, "http://127.0.0.1:8001"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::", 80, "http://[::1]:80"),
        ("::1", 80, "http://[::1]:80"),
        ("build-1", 80, "http://build-1:80"),
    ],
)
def test_people_get_an_address_that_leads_somewhere(host, port, address):
    assert server.url_for_people(server.url_of(host, port)) == address
