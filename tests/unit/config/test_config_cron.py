"""The settings of the schedule and of notifications."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load


@pytest.fixture
def load(tmp_path):
    def settings(text: str = "", **env: str) -> config_load.Settings:
        (tmp_path / "adw.toml").write_text(text)
        return config_load.load(env={"ADW_HOME": str(tmp_path), **env}, cwd=tmp_path)

    return settings


def test_every_usual_expression_can_be_used(load):
    from adws.adw_modules.schedule.jobs import CRON_ENTRIES as ENTRIES
    from adws.adw_triggers import trigger_cron

    expressions = {name: getattr(load(), f"cron_{name}") for name in ENTRIES}

    assert {name: trigger_cron.problem_of(text) for name, text in expressions.items()} == dict.fromkeys(ENTRIES, "")
    assert [name for name, text in expressions.items() if not text] == ["poll_comments"]


def test_an_entry_can_be_changed_and_switched_off(load):
    settings = load('[cron]\ngc = "off"\nreport = " 0   7 * * 1-5 "', ADW_CRON_QUOTA="OFF")

    assert (settings.cron_gc, settings.cron_quota, settings.cron_report) == ("", "", "0 7 * * 1-5")


@pytest.mark.parametrize("text", ["hourly", "* * * *", "* * * * * *", "*/5 * * * $(x)"])
def test_what_is_no_expression_is_refused_with_its_line(load, tmp_path, text):
    with pytest.raises(ConfigError, match="five fields") as refused:
        load(f'[cron]\ngc = "0 3 * * *"\nreport = "{text}"')

    assert f"{tmp_path}/adw.toml:3" in str(refused.value)


@pytest.mark.parametrize("text", ["ftp://x", "example.invalid/hook", "https://", "https://a b"])
def test_an_address_that_nothing_can_be_posted_to_is_refused_without_being_shown(load, text):
    with pytest.raises(ConfigError, match="https://") as refused:
        load(ADW_NOTIFY_URL=text)

    assert text == "https://" or text not in str(refused.value)


def test_the_address_is_a_secret_that_no_file_may_have(load):
    url = "https://hooks.example.invalid/T000/B000/xyz"

    settings = load(ADW_NOTIFY_URL=url)

    assert url in settings.secrets()
    assert settings.shown("notify_url") == "set"
    with pytest.raises(ConfigError):
        load(f'[notify]\nurl = "{url}"')


@pytest.mark.parametrize("text", ["a && b", "a ; b", "'open", "one\ntwo"])
def test_a_command_for_a_shell_is_refused(load, text):
    with pytest.raises(ConfigError):
        load(ADW_NOTIFY_COMMAND=text)


def test_what_people_are_told_about_can_be_chosen(load):
    assert load().notify_events[:2] == ("failed", "paused")
    assert load('[notify]\nevents = ["failed", "quota"]').notify_events == ("failed", "quota")
    assert load('[notify]\nevents = "none"').notify_events == ()
    with pytest.raises(ConfigError, match="words of failed"):
        load('[notify]\nevents = ["sunset"]')
