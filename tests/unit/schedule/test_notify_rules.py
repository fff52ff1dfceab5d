"""What people are told, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from adws.adw_modules.events import Event
from adws.adw_modules.schedule import notify

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)


def all_channels(kind: str) -> tuple[str, ...]:
    assert kind in notify.KINDS
    return ("command", "http")


def event(event_type="state_changed", status="", **fields) -> Event:
    return Event(event_type=event_type, adw_id="1a2b3c4d", event_id="1a2b3c4d.7.0", status=status, **fields)


@pytest.mark.parametrize(
    ("made", "kind", "title"),
    [
        (
            event(status="failed", data={"to": "failed", "phase": "test", "reason": "MAX_ATTEMPTS"}),
            "failed",
            "workflow 1a2b3c4d failed in test: MAX ATTEMPTS",
        ),
        (
            event(status="completed", data={"to": "completed"}),
            "completed",
            "workflow 1a2b3c4d is completed",
        ),
        (
            event(status="paused", data={"reason": "asked by a person"}),
            "paused",
            "workflow 1a2b3c4d is paused: asked by a person",
        ),
        (
            event("approval_asked", node_name="plan", data={"reason": "look at the plan"}),
            "approval",
            "workflow 1a2b3c4d waits for approval in plan: look at the plan",
        ),
        (
            event("breaker_opened", data={"party": "anthropic", "reopens_at": "noon", "reason": "529"}),
            "breaker_opened",
            "Circuit breaker open for anthropic until noon: 529",
        ),
        (
            event("breaker_opened", data={"party": "git"}),
            "breaker_opened",
            "Circuit breaker open for git until it answers again",
        ),
    ],
    ids=["failed", "completed", "paused", "approval", "breaker", "breaker-without-facts"],
)
def test_a_transition_is_told_in_one_line_under_the_key_of_its_event(made, kind, title):
    told = notify.notice_of(made, all_channels)

    assert (told.kind, told.title, told.key) == (kind, title, "1a2b3c4d.7.0")
    assert told.channels == ("command", "http")


@pytest.mark.parametrize(
    "made",
    [
        event("attempt_started"),
        event(status="building"),
        event(status="paused", data={"reason": "awaiting_approval"}),
    ],
    ids=["no-transition", "a-phase", "told-as-approval"],
)
def test_other_events_are_told_to_nobody(made):
    assert notify.notice_of(made, all_channels) is None


def test_a_long_reason_is_cut_and_has_one_line():
    told = notify.notice_of(event(status="failed", data={"reason": "a\nb " * 500}), all_channels)

    assert len(told.title) == notify.MAX_TITLE
    assert "\n" not in told.title
    assert told.title.endswith("...")


def test_every_kind_has_a_switch_and_the_settings_know_them_all():
    from adws.config import settings

    assert notify.SWITCHES == settings.NOTIFY_EVENTS
