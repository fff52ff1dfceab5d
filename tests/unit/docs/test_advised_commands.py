"""
Every `adw` command and every setting that a message or a page names is one that there is, and can be typed so.
"""

from __future__ import annotations

import pytest

from tests.advice import advised, all_texts, why_not, wrong_settings


def test_every_command_that_a_message_or_a_page_advises_can_be_typed():
    wrong = {f"{place}: {why}" for place, text in all_texts() for rest in advised(text) if (why := why_not(rest))}

    assert sorted(wrong) == []


def test_every_setting_that_a_message_or_a_page_names_is_a_key_of_adw_toml():
    wrong = {
        f"{place}: {name}"
        for place, text in all_texts()
        if not place.startswith("changes/")  # such a note may name what a setting was called before
        for name in wrong_settings(text, is_page=place.endswith(".md"))
    }

    assert sorted(wrong) == []


def test_advice_that_does_not_work_would_be_found():
    for rest, is_right in [
        ("status ID", True),
        ("status {} shows it", True),
        ("retry {} --grant N, or start it afresh", True),
        ("resume {} --from {}", True),
        ("admin verify --json says more", True),
        ("worker --tag gpu takes it up", True),
        ("knows up to 3", True),
        ("admin verify ID says what is wrong", False),
        ("status {} {}", False),
        ("retry {} --force", False),
        ("statsu ID", False),
        ("frobnicate --all", False),
        ("admin breakers reset NAME", True),
        ("admin breakers reset NAME OTHER", False),
    ]:
        assert (not why_not(rest)) is is_right, rest


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("lower `quota.min_free_disk`", []),
        ("lower `quota.min_free_bytes`", ["quota.min_free_bytes"]),
        ("needs `webhook_permission` or more", ["webhook_permission"]),
        ("needs `webhook.permission` or more", []),
    ],
)
def test_a_setting_that_is_none_would_be_found(text, wrong):
    assert list(wrong_settings(text, is_page=True)) == wrong
