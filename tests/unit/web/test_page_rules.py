"""What may reach the pages: names, origins, forms, wrong logins; and how facts are shown."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import timestamps
from adws.adw_modules.queue.workers import RunnerState
from adws.testing import FakeClock
from adws.web.dashboard import frame
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.sessions import BadForm, TokenLimit, addresses_of

LOCAL = addresses_of("127.0.0.1")
PROXIED = addresses_of("127.0.0.1", "https://adw.example.com")


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8001", "localhost:1", "LOCALHOST", "[::1]:8001", "localhost."]
)
def test_this_machine_is_called_by_its_names_on_any_port(host):
    assert LOCAL.is_ours(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "10.0.0.1",
        "[::1",
        "127.0.0.1:80:80",
        "a@localhost",
    ],
)
def test_no_other_name_is(host):
    assert not LOCAL.is_ours(host)


def test_the_address_it_listens_at_and_the_public_one_are_names_too():
    assert addresses_of("Build-1.local").is_ours("build-1.local:8001")
    assert PROXIED.is_ours("adw.example.com")
    assert not PROXIED.is_ours("example.com")
    assert (PROXIED.is_https, LOCAL.is_https, addresses_of("x", "http://y:80").is_https) == (True, False, False)


@pytest.mark.parametrize("listening", ["0.0.0.0", "::"])
def test_a_server_on_every_interface_accepts_addresses_but_no_names(listening):
    """A stranger's name that leads here is how a stranger's page would get in."""
    everywhere = addresses_of(listening)

    assert everywhere.is_ours("192.168.1.5:8001")
    assert everywhere.is_ours("[fe80::1]:8001")
    assert not everywhere.is_ours("evil.example:8001")


# --- origins -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "addresses"),
    [
        ({"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001", "sec-fetch-site": "same-origin"}, LOCAL),
        ({"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001"}, LOCAL),
        ({"host": "127.0.0.1:8001", "origin": "https://adw.example.com", "sec-fetch-site": "same-origin"}, PROXIED),
        ({"host": "adw.example.com", "origin": "https://adw.example.com"}, PROXIED),
    ],
    ids=["browser", "old-browser", "proxy-with-another-host", "proxy"],
)
def test_a_form_of_our_own_page_is_taken(head, addresses):
    assert dashboard_sessions.why_foreign(head, addresses) == ""


@pytest.mark.parametrize(
    "head",
    [
        {"host": "127.0.0.1:8001"},
        {"host": "127.0.0.1:8001", "origin": "null"},
        {"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8002"},
        {"host": "127.0.0.1:8001", "origin": "http://evil.example"},
        {"host": "127.0.0.1:8001", "origin": "ftp://127.0.0.1:8001"},
        {"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001", "sec-fetch-site": "cross-site"},
        {"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001", "sec-fetch-site": "same-site"},
        {"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001", "sec-fetch-site": "none"},
    ],
)
def test_a_form_of_anybody_else_is_not(head):
    assert dashboard_sessions.why_foreign(head, LOCAL)


@pytest.mark.parametrize("path", ["/", "/workflows?state=failed&cursor=a%20b", "/a//b"])
def test_redirects_lead_to_our_own_pages(path):
    assert dashboard_sessions.own_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/a\nb",
        "/a b",
        "/é",
        "/\\",
        f"/{'a' * 1000}",
    ],
)
def test_redirects_never_lead_elsewhere(path):
    assert dashboard_sessions.own_path(path) == "/"


# --- forms -------------------------------------------------------------------------------------------------------

KIND = "application/x-www-form-urlencoded; charset=utf-8"


def test_the_fields_of_a_form_are_read():
    form = dashboard_sessions.parse(b"hint=try+%E2%9C%93%0D%0Aagain%00&force=on&empty=", KIND)

    assert form.text("hint") == "try ✓\nagain"
    assert form.text("hint", most=3) == "try"
    assert (form.is_set("force"), form.is_set("empty"), form.is_set("nothing")) == (True, False, False)
    assert dashboard_sessions.parse(b"", KIND).fields == {}


@pytest.mark.parametrize(
    ("body", "kind", "word"),
    [
        (b"a=1", "text/plain", "sent as"),
        (b"a=1", "multipart/form-data; boundary=x", "sent as"),
        (b"a=1&a=2", KIND, "twice"),
        (b"a" * 70_000, KIND, "larger than"),
        (b"a=%ff", KIND, "cannot be read"),
        (b"a=\xff", KIND, "cannot be read"),
        (b"nothing", KIND, "cannot be read"),
        (b"&".join(b"f%d=1" % number for number in range(101)), KIND, "cannot be read"),
    ],
)
def test_a_malformed_form_is_refused(body, kind, word):
    with pytest.raises(BadForm, match=word):
        dashboard_sessions.parse(body, kind)


@given(st.binary(max_size=300))
def test_no_body_breaks_the_reading_of_forms(body):
    with suppress(BadForm):
        assert isinstance(dashboard_sessions.parse(body, KIND).fields, dict)


# --- wrong logins ------------------------------------------------------------------------------------------------


def test_after_a_few_wrong_tokens_an_address_waits_longer_each_time():
    clock = FakeClock()
    limit = TokenLimit(clock.monotonic)
    waits = []
    for _ in range(dashboard_sessions.FREE + 12):
        limit.failed("a")
        waits.append(limit.seconds_left("a"))

    assert waits[: dashboard_sessions.FREE + 3] == [0.0] * (dashboard_sessions.FREE - 1) + [2.0, 4.0, 8.0, 16.0]
    assert waits[-1] == dashboard_sessions.LONGEST_WAIT_SECONDS
    assert limit.seconds_left("b") == 0.0
    clock.advance(dashboard_sessions.LONGEST_WAIT_SECONDS)
    assert limit.seconds_left("a") == 0.0


def test_a_login_that_goes_well_and_an_hour_without_failures_forgive():
    clock = FakeClock()
    limit = TokenLimit(clock.monotonic)
    for address in ("a", "b"):
        for _ in range(dashboard_sessions.FREE):
            limit.failed(address)
    limit.succeeded("a")
    assert (limit.seconds_left("a"), limit.seconds_left("b")) == (0.0, 2.0)
    clock.advance(dashboard_sessions.FORGET_SECONDS + 1)
    limit.failed("b")

    assert limit.seconds_left("b") == 0.0


def test_many_addresses_together_wait_too_and_are_not_all_remembered():
    clock = FakeClock()
    limit = TokenLimit(clock.monotonic)
    for number in range(dashboard_sessions.MOST_ADDRESSES + 10):
        limit.failed(str(number))

    assert limit.seconds_left("new") == dashboard_sessions.LONGEST_TOGETHER_SECONDS
    assert len(limit._failures) == dashboard_sessions.MOST_ADDRESSES


# --- how facts are shown -------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 31, 9, 0, 30, tzinfo=UTC)
THEN = "2026-01-31T09:00:00.000000Z"


def test_moments_are_shown_by_their_age_and_in_full():
    assert (frame.age(THEN, NOW), frame.moment(THEN), frame.elapsed(THEN, NOW)) == (
        "30 s ago",
        "2026-01-31 09:00:00 UTC",
        "30 s",
    )
    assert frame.elapsed(THEN, datetime(2026, 1, 31, 8, tzinfo=UTC)) == "0 s"
    assert frame.elapsed(THEN, NOW.replace(second=6, microsecond=900_000)) == "6 s", "as the script counts on"
    assert frame.elapsed(THEN, NOW.replace(minute=2)) == "2 min 30 s"


@pytest.mark.parametrize("text", ["", None, 3, "yesterday", timestamps.UNKNOWN_MOMENT])
def test_an_invalid_time_is_shown_as_missing(text):
    assert {frame.age(text, NOW), frame.moment(text), frame.elapsed(text, NOW)} == {"—"}
    assert not frame.is_moment(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (frame.span(None), "—"),
        (frame.span(75), "1 min 15 s"),
        (frame.money(None), "—"),
        (frame.money(0), "$0.00"),
        (frame.money(0.001), "< $0.01"),
        (frame.money(1234.5), "$1,234.50"),
        (frame.number(None), "—"),
        (frame.number(1234567), "1,234,567"),
        (frame.number(2.5), "2.5"),
        (frame.size(None), "—"),
        (frame.size(512), "512 B"),
        (frame.size(1536), "1.5 KiB"),
        (frame.size(5 * 2**20), "5.0 MiB"),
        (frame.size(3 * 2**40), "3,072.0 GiB"),
        (frame.words("rolled_back"), "rolled back"),
        (frame.mark(frame.tone("failed")), "✕"),
        (frame.mark("nothing"), "○"),
        (frame.tone("Half-Open"), "wait"),
        (frame.tone("whatever"), "quiet"),
        ([frame.tone(one.value) for one in RunnerState], ["good", "wait", "bad", "gone"]),
    ],
)
def test_amounts_and_states_are_shown_as_people_write_them(text, said):
    assert text == said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a title", "a title"),
        ("two\nlines", "two …"),
        ("a" * 200, "a" * 160 + " …"),
        ("a\x1b[31m\u202eb\u2066", "a�[31m�b�"),
        ("ünïcode ✓ שלום", "ünïcode ✓ שלום"),
        ("\ud800", "�"),
    ],
)
def test_a_strange_text_in_a_line_is_short_and_does_nothing(text, line):
    assert frame.clip(text) == line


def test_a_line_of_a_megabyte_is_cut_without_being_read_through():
    assert len(frame.clip("x" * 2**20)) == 162
