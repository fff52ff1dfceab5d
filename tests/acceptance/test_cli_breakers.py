"""`adw admin breakers` as a person calls it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules.circuit_breaker import CircuitBreaker, CircuitBreakerConfig, DatabaseBreakers
from adws.app import open_home
from adws.config.load import load
from adws.testing import FakeClock

TOUCHY = CircuitBreakerConfig(failure_threshold=1)


@pytest.fixture
def app(home):
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as opened:
        yield opened


def test_in_a_new_home_nothing_has_failed_and_looking_makes_no_database(adw, home):
    shown = adw("admin", "breakers")

    assert (shown.rc, shown.stdout) == (0, "no service has failed\n")
    assert adw("admin", "breakers", "--json").json() == {"breakers": []}
    assert adw("admin", "breakers", "reset", "--all").rc == 0
    assert not (home / "state").exists()


def test_breakers_shows_who_is_held_off_until_when_and_why(adw, app):
    app.breakers.get("anthropic").open_until(app.clock.now() + timedelta(hours=2, minutes=1), "quota_window: used up")
    app.breakers.get("github").record_failure(reason="server: 502")

    rows = adw("admin", "breakers", "--json").json()["breakers"]
    shown = adw("admin", "breakers")

    assert [(row["name"], row["state"], row["failures"], row["trials"]) for row in rows] == [
        ("anthropic", "open", 1, 0),
        ("github", "closed", 1, 0),
    ]
    assert rows[0]["reason"] == "quota_window: used up"
    assert rows[0]["reopens_at"] > rows[0]["opened_at"]
    assert rows[0]["settings"] == {
        "failure_threshold": 5,
        "reset_timeout_seconds": 60.0,
        "half_open_max_attempts": 1,
    }
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["SERVICE", "BREAKER", "FAILURES", "OPEN", "UNTIL", "WHY"]
    assert "OPEN" in lines[1]
    assert "(in 2 h)" in lines[1]
    assert "quota_window: used up" in lines[1]
    assert lines[2].split() == ["github", "closed", "1", "-", "-"]
    assert lines[-1] == "adw admin breakers reset NAME closes one"


def test_a_breaker_whose_time_has_come_is_half_open_and_looking_leaves_it_as_it_is(adw, app):
    earlier = FakeClock(app.clock.now() - timedelta(minutes=2))
    CircuitBreaker("github", TOUCHY, store=DatabaseBreakers(app.database), clock=earlier).record_failure()
    before = app.breakers.stored()

    rows = adw("admin", "breakers", "--json").json()["breakers"]
    shown = adw("admin", "breakers").stdout

    assert rows[0]["state"] == "half_open"
    assert "half open" in shown
    assert app.breakers.stored() == before


def test_reset_closes_one_breaker_and_leaves_the_others(adw, app):
    for name in ("anthropic", "github"):
        app.breakers.get(name).open_until(app.clock.now() + timedelta(hours=1), "down")

    done = adw("admin", "breakers", "reset", "github")

    assert (done.rc, done.stdout) == (
        0,
        "closed github; no workflow was waiting for that\n",
    )
    assert {row.name: row.state for row in app.breakers.stored()} == {"anthropic": "open", "github": "closed"}


def test_reset_all_closes_every_breaker(adw, app):
    app.breakers.get("anthropic").open_until(app.clock.now() + timedelta(hours=1), "down")
    app.breakers.get("github").record_failure()

    done = adw("admin", "breakers", "reset", "--all", "--json")

    assert done.json() == {"reset": ["anthropic", "github"], "closed": ["anthropic"], "due": []}
    assert {row.name: (row.state, row.failures) for row in app.breakers.stored()} == {
        "anthropic": ("closed", 0),
        "github": ("closed", 0),
    }
    assert adw("admin", "breakers", "reset", "--all").stdout == "nothing was open; failures are counted from 0 again\n"


@pytest.mark.parametrize("args", [(), ("github", "--all")], ids=["none", "both"])
def test_reset_wants_one_name_or_all(adw, args):
    refused = adw("admin", "breakers", "reset", *args)

    assert refused.rc != 0
    assert "name one breaker, or all of them with --all" in refused.stderr


def test_a_name_that_is_none_is_refused_with_those_there_are(adw, app):
    assert "there is no breaker gitlab: nothing ever failed here" in adw("admin", "breakers", "reset", "gitlab").stderr
    app.breakers.get("github").record_failure()

    refused = adw("admin", "breakers", "reset", "gitlab")

    assert refused.rc == 1
    assert "there is no breaker gitlab: there are github" in refused.stderr
