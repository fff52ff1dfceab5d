"""The settings of deliveries, and what they may be."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_triggers.github_events import USUAL
from adws.config import load as config_load


def load(tmp_path, **env: str) -> config_load.Settings:
    named = {f"ADW_WEBHOOK_{name.upper()}": value for name, value in env.items()}
    return config_load.load(env={"ADW_HOME": str(tmp_path), **named}, cwd=tmp_path)


def test_the_defaults(tmp_path):
    settings = load(tmp_path)

    assert (settings.webhook_label, settings.webhook_followups, settings.webhook_max_followups) == ("adw", False, 3)
    assert frozenset(settings.webhook_events) == USUAL
    assert settings.webhook_max_body_bytes == 25 * 2**20


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("secret_next", "two words", "one word"),
        ("label", "a\tb", "one line of at most 50"),
        ("label", "x" * 51, "one line of at most 50"),
        ("repositories", "acme/widget, widget", "owner/name"),
        ("login", "@adw", "without an @"),
        ("login", "adw bot", "without an @"),
        ("bots", "a,,b", "separated by commas"),
        ("events", "label, push", "label, comment, opened, assigned, closed, pull_request"),
        ("events", "label, none", "or none"),
        ("followups", "perhaps", "true or false"),
        ("max_followups", "-1", "0 or more"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, name, value, said):
    with pytest.raises(ConfigError, match=f"ADW_WEBHOOK_{name.upper()}.*{said}"):
        load(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("label", "do it: now", "do it: now"),
        ("repositories", "acme/a, https://github.com/acme/b.git", ("acme/a", "acme/b")),
        ("login", "adw-bot[bot]", "adw-bot[bot]"),
        ("bots", "a[bot], b", ("a[bot]", "b")),
        ("events", "Comment,label", ("comment", "label")),
        ("events", "none", ()),
    ],
)
def test_what_can_be_is_taken(tmp_path, name, value, meant):
    assert getattr(load(tmp_path, **{name: value}), f"webhook_{name}") == meant


def test_the_second_secret_is_a_secret_and_stands_in_no_file(tmp_path):
    settings = load(tmp_path, secret_next="s3cret-next")
    assert settings.shown("webhook_secret_next") == "set"
    assert "s3cret-next" in settings.secrets()

    (tmp_path / "adw.toml").write_text('[webhook]\nsecret_next = "x"\n')
    with pytest.raises(ConfigError, match="secret_next"):
        load(tmp_path)


def test_the_file_sets_them_too(tmp_path):
    (tmp_path / "adw.toml").write_text('[webhook]\nlabel = "go"\nevents = "label"\nfollowups = true\n')
    settings = load(tmp_path)

    assert (settings.webhook_label, settings.webhook_events) == ("go", ("label",))
    assert settings.webhook_followups is True
