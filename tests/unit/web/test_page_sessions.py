"""Cookies, links and tokens of forms: only what this server signed counts, and only as long as it should."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.testing import FakeClock
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.sessions import LINK_SECONDS, Logins, LoginSession, link_key, new_link

HOME_KEY, OTHER_HOME = b"k" * 32, b"o" * 32
ONE, TWO = "first-token-0123456789", "second-token-0123456789"
KEY = dashboard_sessions.key_of(HOME_KEY, ONE)
SESSION = LoginSession(session_id="ab12", name="ada", until=1000, key=KEY)
OTHER = replace(SESSION, session_id="cd34")


# --- cookies -----------------------------------------------------------------------------------------------------


def test_a_cookie_is_known_again_until_it_is_over():
    cookie = dashboard_sessions.seal(SESSION)

    assert dashboard_sessions.unseal(cookie, [b"x" * 32, KEY], now=999.9) == SESSION
    assert dashboard_sessions.unseal(cookie, [KEY], now=1000) is None


@pytest.mark.parametrize(
    "key", [dashboard_sessions.key_of(HOME_KEY, TWO), dashboard_sessions.key_of(OTHER_HOME, ONE), HOME_KEY, b""]
)
def test_another_token_or_another_home_makes_a_cookie_worthless(key):
    assert dashboard_sessions.unseal(dashboard_sessions.seal(SESSION), [key], now=0) is None


def test_no_character_of_a_cookie_can_be_changed():
    cookie = dashboard_sessions.seal(SESSION)

    for place in range(len(cookie)):
        changed = cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :]
        assert dashboard_sessions.unseal(changed, [KEY], now=0) is None


@given(st.text(max_size=200))
def test_anything_else_is_no_cookie(text):
    assert dashboard_sessions.unseal(text, [KEY], now=0) is None


@pytest.mark.parametrize(
    "data", [{}, {"id": 1, "name": "x", "until": 9999}, {"id": "x", "name": "x", "until": "9"}, []]
)
def test_other_signed_values_are_no_session(data):
    body = base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()
    signed = f"{body}.{dashboard_sessions._mac(body, KEY)}"

    assert dashboard_sessions.unseal(signed, [KEY], now=0) is None


def test_a_cookie_that_is_too_long_is_not_looked_at():
    cookie = dashboard_sessions.seal(replace(SESSION, session_id="a" * 3000))

    assert dashboard_sessions.unseal(cookie, [KEY], now=0) is None


def test_each_home_has_a_cookie_of_its_own_name_that_only_https_may_set_when_it_is_used():
    plain = dashboard_sessions.cookie_name(HOME_KEY, is_secure=False)

    assert plain != dashboard_sessions.cookie_name(OTHER_HOME, is_secure=False)
    assert dashboard_sessions.cookie_name(HOME_KEY, is_secure=True) == f"__Host-{plain}"


@pytest.mark.parametrize(
    ("said", "name"), [(" Ada  L.\n", "Ada L."), ("a\x00\x1b[31mb", "a [31mb"), ("x" * 100, "x" * 80), ("", "")]
)
def test_a_name_is_one_short_line(said, name):
    assert dashboard_sessions.name_of(said) == name


# --- forms and messages ------------------------------------------------------------------------------------------


def test_the_token_of_a_form_is_for_one_session():
    assert dashboard_sessions.is_csrf(dashboard_sessions.csrf_of(SESSION), SESSION)
    assert not dashboard_sessions.is_csrf(dashboard_sessions.csrf_of(OTHER), SESSION)
    assert not dashboard_sessions.is_csrf("", SESSION)
    assert not dashboard_sessions.is_csrf("\ud800é", SESSION)


def test_a_message_is_for_one_session_and_short():
    cookie = dashboard_sessions.seal_note("x" * 900, SESSION)

    assert dashboard_sessions.unseal_note(cookie, SESSION) == "x" * 500
    assert dashboard_sessions.unseal_note(cookie, OTHER) == ""
    assert dashboard_sessions.unseal_note("nothing", SESSION) == ""


# --- links -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made_at", "now", "since", "is_good"),
    [
        (100, 100, 0, True),
        (100, 100 + LINK_SECONDS, 0, True),
        (100, 101 + LINK_SECONDS, 0, False),
        (100, 40, 0, True),
        (100, 39, 0, False),
        (100, 101, 101, False),
    ],
    ids=["new", "old", "too-old", "clock-set-back", "of-the-future", "before-the-server-started"],
)
def test_a_link_is_good_for_a_while(made_at, now, since, is_good):
    clock = FakeClock()
    begun = clock.now().timestamp()
    clock.advance(made_at)
    link = new_link(HOME_KEY, clock=clock, name="ada")
    result = dashboard_sessions.read_link(link, link_key(HOME_KEY), now=begun + now, since=begun + since)

    assert (result is not None and result[1] == "ada") is is_good


# --- logins ------------------------------------------------------------------------------------------------------


def logins(*tokens, clock=None, key=HOME_KEY):
    return Logins(home_key=lambda: key, tokens=tokens, clock=clock or FakeClock(), session_seconds=600)


def test_a_token_that_is_taken_away_ends_its_logins_and_no_others():
    clock = FakeClock()
    before, after = logins(ONE, TWO, clock=clock), logins(TWO, clock=clock)

    assert after.known(before.by_token(ONE, "")) is None
    assert after.known(before.by_token(TWO, "")) is not None


def test_a_login_lasts_as_long_as_the_settings_say():
    clock = FakeClock()
    made = logins(ONE, clock=clock)
    cookie = made.by_token(ONE, "")
    seen = made.known(cookie)
    clock.advance(599)
    assert made.known(cookie) == seen
    clock.advance(2)

    assert made.known(cookie) is None
    assert not made.is_good(seen)


def test_a_link_of_another_home_or_of_before_the_start_does_not_log_in():
    clock = FakeClock()
    old = new_link(HOME_KEY, clock=clock)
    clock.advance(2)
    made = logins(clock=clock)

    assert made.by_link(old) is None
    assert made.by_link(new_link(OTHER_HOME, clock=clock)) is None
    assert made.by_link(new_link(HOME_KEY, clock=clock)) is not None


def test_without_tokens_a_restart_ends_every_login():
    clock = FakeClock()
    before, after = logins(clock=clock), logins(clock=clock)

    assert after.known(before.by_link(before.link())) is None


def test_used_links_are_forgotten_when_they_are_too_old_anyway(monkeypatch):
    monkeypatch.setattr("adws.web.dashboard.sessions._MOST_REMEMBERED", 1)
    clock = FakeClock()
    made = logins(clock=clock)

    assert made.by_link(made.link()) is not None
    assert made.by_link(made.link()) is None, "what could not be remembered could be used twice"
    clock.advance(3 * LINK_SECONDS)
    assert made.by_link(made.link()) is not None
