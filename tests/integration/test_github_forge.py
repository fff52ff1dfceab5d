"""GitHub as adw asks it: as a token or as an App, one request at a time, within a lease."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from adws.adw_modules import default_home
from adws.adw_modules.errors import ConfigError, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.github import (
    GitHubAccess,
    GitHubForge,
    close_pull_request,
    post_github_comment,
    timeout_for,
)
from adws.adw_modules.forge.model import NewPullRequest
from adws.testing import FakeClock, MemoryForge
from tests.fault_forge import FaultForge
from tests.homes import lab_home


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def place():
    place = MemoryForge(clock=FakeClock())
    place.create_issue("Door")
    return place


@pytest.fixture
def server(place):
    with FaultForge(place) as server:
        yield server


@pytest.fixture
def open_forge(server, clock):
    opened = []

    def build(**access):
        known = {"api_url": server.url, "timeout_seconds": 5.0, "seconds_between_writes": 0.0}
        opened.append(GitHubForge("acme/widget", GitHubAccess(**{**known, **access}), clock=clock, scrub=str))
        return opened[-1]

    yield build
    for forge in opened:
        forge.close()


# --- as an App


@pytest.fixture(scope="module")
def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture
def as_app(server, clock, open_forge, private_key):
    """What an App is asked: its installation, a token for an hour, its own name."""

    def give_token(authorization):
        assert authorization.startswith("Bearer ey")
        return 201, {"token": "tok_bot", "expires_at": (clock.now() + timedelta(hours=1)).isoformat()}

    server.extra = {
        ("GET", "/repos/acme/widget/installation"): lambda _: (200, {"id": 9}),
        ("POST", "/app/installations/9/access_tokens"): give_token,
        ("GET", "/app"): lambda authorization: (200 if authorization.startswith("Bearer") else 401, {"slug": "adw"}),
    }
    return open_forge(app_id="123", private_key=private_key)


def test_an_app_gets_a_token_and_uses_it_until_it_ends_soon(as_app, server, clock):
    as_app.issue(1)
    as_app.issue(1)
    asked = [path for _, path in server.requests]
    assert asked.count("/app/installations/9/access_tokens") == 1
    assert server.authorizations[-1] == "token tok_bot"

    clock.advance(56 * 60)
    as_app.issue(1)

    assert [path for _, path in server.requests].count("/app/installations/9/access_tokens") == 2


def test_a_sign_in_that_takes_too_long_sends_nothing(as_app, server, clock):
    """
    By the time the token is there the workflow may be somebody else's.
    """
    slow = server.extra["POST", "/app/installations/9/access_tokens"]
    server.extra["POST", "/app/installations/9/access_tokens"] = lambda said: (clock.advance(6.0), slow(said))[1]

    with pytest.raises(ForgeUnavailable, match="nothing was sent"):
        as_app.create_comment(1, "text")
    assert server.forge.comments(1) == ()

    as_app.create_comment(1, "text")
    assert len(server.forge.comments(1)) == 1


def test_an_app_that_is_not_installed_is_told_so(as_app, server):
    server.extra["GET", "/repos/acme/widget/installation"] = lambda _: (403, {"message": "not installed"})

    with pytest.raises(ForgeRefused, match="not installed"):
        as_app.issue(1)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is no private key in PEM"),
        ("-----BEGIN RSA PRIVATE KEY-----\nnonsense\n-----END RSA PRIVATE KEY-----\n", "cannot be used"),
    ],
)
def test_a_key_that_is_none_is_told_in_a_sentence(open_forge, key, said):
    with pytest.raises(ConfigError, match=said):
        open_forge(app_id="123", private_key=key).issue(1)


# --- one at a time, in time


def test_nothing_is_sent_again_and_writes_keep_their_distance(open_forge):
    ways = open_forge(token="tok_bot", seconds_between_writes=1.0)._requester.kwargs

    assert ways["retry"] is None
    assert ways["seconds_between_writes"] == 1.0
    assert GitHubAccess().seconds_between_writes == 1.0


def test_one_request_ends_before_the_lease_does():
    """
    Waiting for the distance between writes, signing in, connecting and the answer: all of it fits.
    """
    assert 1.0 + 3 * timeout_for(ttl_seconds=30.0, stop_seconds=20.0) <= 30.0 - 20.0
    with pytest.raises(ConfigError, match="GitHub needs 12 seconds or more"):
        timeout_for(ttl_seconds=10.0, stop_seconds=7.0)


def test_access_shows_no_secret():
    assert "s3cret" not in repr(GitHubAccess(token="s3cret", private_key="s3cret"))


# --- plain calls


@pytest.fixture
def ambient_forge():
    parts = lab_home()
    with default_home.using(parts):
        parts.forge.create_issue("Door")
        parts.forge.push("feature-1")
        yield parts.forge


def test_a_plain_comment_carries_the_mark_that_stops_loops(ambient_forge):
    posted = post_github_comment(1, "Another workflow is running: adw_plan_iso")

    assert posted.body.startswith(forge_text.BOT_MARK)
    assert "adw_" not in posted.body


def test_closing_says_why_once_and_may_be_repeated(ambient_forge):
    pull = ambient_forge.create_pull_request(NewPullRequest(title="T", body="B", head="feature-1", base="main"))

    ambient_forge.create_comment(pull.number, forge_text.bot_comment("Rolled back"))  # before it was cut off
    closed = close_pull_request(pull.number, "Rolled back")
    close_pull_request(pr_number=pull.number, comment="Rolled back")

    assert closed.state == "closed"
    assert [one.body for one in ambient_forge.comments(pull.number)] == ["[adw] Rolled back"]


def test_a_merged_pull_request_is_left_alone(ambient_forge):
    new = NewPullRequest(title="T", body="B", head="feature-1", base="main", is_draft=False)
    pull = ambient_forge.create_pull_request(new)
    ambient_forge.merge_pull_request(pull.number, sha=pull.head_sha)

    assert close_pull_request(pull.number, "Rolled back").is_merged
    assert ambient_forge.comments(pull.number) == ()
