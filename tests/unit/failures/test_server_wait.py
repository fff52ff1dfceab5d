"""When a server wants to be asked again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.error_tables import NOT_SAID, ServerWait, at_epoch, by_headers, by_text, in_seconds

RESET = datetime(2026, 11, 16, 2, 2, 17, tzinfo=UTC)


def test_headers_say_when():
    for headers, wait in [
        ({"retry-after": "17"}, ServerWait(seconds=17.0)),
        ({"retry-after": "0.5"}, ServerWait(seconds=0.5)),
        ({"retry-after": "Mon, 16 Nov 2026 02:02:17 GMT"}, ServerWait(at=RESET)),
        ({"retry-after": "Mon, 16 Nov 2026 03:02:17 +0100"}, ServerWait(at=RESET)),
        ({"retry-after": "Mon, 16 Nov 2026 02:02:17 -0000"}, ServerWait(at=RESET)),
        ({"retry-after": "soon"}, NOT_SAID),
        ({"retry-after": "-5"}, NOT_SAID),
        ({"retry-after": "inf"}, NOT_SAID),
        (
            {"retry-after": "17", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1794794537"},
            ServerWait(seconds=17.0),
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1794794537"}, ServerWait(at=RESET)),
        ({"x-ratelimit-reset": "1794794537"}, ServerWait(at=RESET)),
        ({"x-ratelimit-remaining": "4999", "x-ratelimit-reset": "1794794537"}, NOT_SAID),
        ({"x-ratelimit-remaining": "0"}, NOT_SAID),
        ({"x-ratelimit-reset": "99999999999999999"}, NOT_SAID),
        ({}, NOT_SAID),
    ]:
        assert by_headers(headers) == wait, headers


def test_words_say_when():
    for text, wait in [
        ("Please retry in 34.074824224s.", ServerWait(seconds=34.074824224)),
        ("try again in 250ms", ServerWait(seconds=0.25)),
        ("Try again in 5 minutes", ServerWait(seconds=300.0)),
        ("try again in 2 m", ServerWait(seconds=120.0)),
        ("Your quota will reset after 18h33m13s.", ServerWait(seconds=66_793.0)),
        ("it resets in 90s", ServerWait(seconds=90.0)),
        ("resets after 5m", ServerWait(seconds=300.0)),
        ("resets in 5 days", NOT_SAID),
        ("resets in 5more", NOT_SAID),
        ('{"retry_after": 12}', ServerWait(seconds=12.0)),
        ("Retry-After: 30", ServerWait(seconds=30.0)),
        ("Claude AI usage limit reached|1794794537", ServerWait(at=RESET)),
        ("spend limit reached (daily; resets 2026-11-16 02:02:17 UTC)", ServerWait(at=RESET)),
        ("resets at 2026-11-16T02:02:17Z", ServerWait(at=RESET)),
        ("resets 2026-99-16 02:02 UTC", NOT_SAID),
        ("resets 3:45pm", NOT_SAID),
        ("try again in a moment", NOT_SAID),
        ("", NOT_SAID),
    ]:
        assert by_text(text) == wait, text


@pytest.mark.parametrize("value", [None, "x", float("nan"), float("inf"), -0.1, 10**400, object()])
def test_what_is_no_number_from_zero_up_was_not_said(value):
    assert in_seconds(value) is NOT_SAID


@pytest.mark.parametrize("value", [None, "x", float("nan"), -1, 1e300, 10**400])
def test_what_is_no_moment_was_not_said(value):
    assert at_epoch(value) is NOT_SAID
    assert at_epoch(1794794537) == ServerWait(at=RESET)


@given(st.text(), st.sampled_from(["retry-after", "x-ratelimit-reset"]))
def test_nothing_a_server_sends_is_an_error(text, name):
    for wait in (by_headers({name: text}), by_text(text), by_text(f"{name}: {text}")):
        assert wait.seconds is None or wait.seconds >= 0
        assert wait.at is None or wait.at.tzinfo is UTC
