"""docs/deliveries.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from adws.adw_triggers import event_verdicts, trigger_words
from adws.config_webhook import WEBHOOK_SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "deliveries.md").read_text()


def test_every_event_that_something_is_done_about_is_on_the_page():
    for event, action in event_verdicts._EVENTS:
        assert f"`{event}.{action}`" in PAGE


def test_every_word_of_a_comment_is_on_the_page():
    for command in trigger_words.SAID_COMMANDS:
        assert f"`/adw {command}" in PAGE


def test_every_setting_is_on_the_page():
    for setting in WEBHOOK_SETTINGS:
        assert setting.name in PAGE or setting.env in PAGE, setting.name


def test_every_example_of_the_page_is_read_as_the_page_says():
    for example in ("adw_plan_build_iso", "adw_build_iso adw-12345678", "adw_review_iso adw_id abc12345", "adw"):
        assert f"`{example}`" in PAGE
        assert isinstance(trigger_words.read_comment(example), trigger_words.Asked)
