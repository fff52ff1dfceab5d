"""docs/github.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from adws.adw_triggers import comment_commands, github_events
from adws.config.settings import SETTINGS

PAGE = (Path(__file__).parents[3] / "docs" / "github.md").read_text()


def test_every_event_that_something_is_done_about_is_on_the_page():
    for event, action in github_events._EVENTS:
        assert f"`{event}.{action}`" in PAGE


def test_every_word_of_a_comment_is_on_the_page():
    for command in comment_commands.SAID_COMMANDS:
        assert f"`/adw {command}" in PAGE


def test_every_setting_is_on_the_page():
    names = [one for one in SETTINGS if one.name.startswith("webhook_") and not one.name.endswith("_limit")]
    for setting in names:
        assert f"`{setting.key}`" in PAGE or setting.env in PAGE, setting.name


def test_every_example_of_the_page_is_read_as_the_page_says():
    for example in ("adw_plan_build_iso", "adw_build_iso adw-12345678", "adw_review_iso adw_id abc12345", "adw"):
        assert f"`{example}`" in PAGE
        assert isinstance(comment_commands.read_comment(example), comment_commands.CommentCommand)
