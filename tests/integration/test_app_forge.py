"""The forge that the settings mean: GitHub, files, or a sentence that says what to set."""

from __future__ import annotations

import pytest

from adws import app as app_module
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.forge.github import GitHubForge
from adws.config import load as config_load

GITHUB = {"ADW_GITHUB_REPOSITORY": "acme/widget", "ADW_GITHUB_TOKEN": "ghx_123"}


@pytest.fixture
def open_home(home):
    opened = []

    def build(**env):
        opened.append(app_module.open_home(config_load.load(env=env, cwd=home)))
        return opened[-1]

    yield build
    for app in opened:
        app.close()


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, "none"),
        ({"ADW_GITHUB_REPOSITORY": "acme/widget"}, "github"),
        ({"ADW_GITHUB_TOKEN": "x"}, "none"),
        (GITHUB, "github"),
        ({"ADW_GITHUB_REPOSITORY": "acme/widget", "ADW_GITHUB_APP_ID": "7"}, "github"),
        ({**GITHUB, "ADW_FORGE_KIND": "local"}, "local"),
        ({**GITHUB, "ADW_FORGE_KIND": "none"}, "none"),
    ],
)
def test_the_kind_is_what_is_configured(home, env, kind):
    assert config_load.load(env=env, cwd=home).forge_kind == kind


def test_a_local_forge_that_is_there_is_used(home):
    (home / "state" / "local.forge").mkdir(parents=True)

    assert config_load.load(env={}, cwd=home).forge_kind == "local"
    assert config_load.load(env=GITHUB, cwd=home).forge_kind == "github"


def test_github_is_asked_within_the_lease(open_home):
    app = open_home(**GITHUB, ADW_GITHUB_API_URL="https://ghe.example.com/api/v3/")

    assert isinstance(app.forge, GitHubForge)
    assert app.forge.repository == "acme/widget"
    assert app.forge.remote_url() == "https://ghe.example.com/acme/widget.git"
    assert app.forge._access.timeout_seconds == 3.0


def test_an_app_brings_its_key_from_a_file(open_home, tmp_path):
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n")

    app = open_home(ADW_GITHUB_REPOSITORY="acme/widget", ADW_GITHUB_APP_ID="7", ADW_GITHUB_APP_KEY_FILE=str(key))

    assert isinstance(app.forge, GitHubForge)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "no forge is configured"),
        ({"ADW_FORGE_KIND": "github", "ADW_GITHUB_TOKEN": "x"}, r"needs github\.repository"),
        ({"ADW_FORGE_KIND": "github", "ADW_GITHUB_REPOSITORY": "a/b"}, "there is no token for a/b"),
        ({"ADW_GITHUB_REPOSITORY": "a/b"}, "there is no token for a/b"),
        ({**GITHUB, "ADW_GITHUB_APP_ID": "7"}, "both set"),
        ({"ADW_GITHUB_REPOSITORY": "a/b", "ADW_GITHUB_APP_ID": "7"}, r"needs github\.app_key_file"),
        (
            {"ADW_GITHUB_REPOSITORY": "a/b", "ADW_GITHUB_APP_ID": "7", "ADW_GITHUB_APP_KEY_FILE": "no.pem"},
            "cannot read the key",
        ),
        ({**GITHUB, "ADW_LEASE_TTL_SECONDS": "9"}, "GitHub needs 12 seconds or more"),
    ],
)
def test_what_is_missing_is_told_in_a_sentence(open_home, env, said):
    with pytest.raises(ConfigError, match=said):
        _ = open_home(**env).forge


def test_homes_that_share_a_secret_know_each_others_marks(home, tmp_path):
    def key(**env):
        settings = config_load.load(env={"ADW_STATE_DIR": str(tmp_path / "state"), **env}, cwd=home)
        return app_module.key_of(settings, clock=None)

    assert key(ADW_FORGE_KEY="one") == key(ADW_FORGE_KEY="one") != key(ADW_FORGE_KEY="two")
    assert "one" in config_load.load(env={"ADW_FORGE_KEY": "one"}, cwd=home).secrets()
