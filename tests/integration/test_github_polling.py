"""What cron asks of GitHub: who labelled an issue, and which deliveries failed."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ForgeRefused
from adws.adw_modules.forge.github import GitHubAccess, GitHubForge
from adws.adw_modules.forge.model import HookDelivery, Labelled
from adws.testing import FakeClock, MemoryForge
from tests.fault_forge import FaultForge

BASE = "/repos/acme/widget"


@pytest.fixture
def server():
    place = MemoryForge(clock=FakeClock())
    place.create_issue("Door")
    with FaultForge(place) as server:
        yield server


@pytest.fixture
def forge(server):
    access = GitHubAccess(token="tok_ada", api_url=server.url, timeout_seconds=5.0, seconds_between_writes=0.0)
    opened = GitHubForge("acme/widget", access, clock=FakeClock(), scrub=str)
    yield opened
    opened.close()


def labelled(name: str, login: str, at: str, kind: str = "User") -> dict:
    return {"event": "labeled", "label": {"name": name}, "actor": {"login": login, "type": kind}, "created_at": at}


def test_the_last_one_who_put_the_label_on_is_who_asks(server, forge):
    events = [
        labelled("adw", "mona", "2026-01-31T08:00:00Z"),
        {"event": "closed", "actor": None},
        labelled("bug", "eve", "2026-01-31T08:30:00Z"),
        labelled("adw", "app[bot]", "2026-01-31T09:00:00Z", "Bot"),
        {"event": "labeled", "label": None, "actor": None},
    ]
    server.extra = {
        ("GET", f"{BASE}/issues/1"): lambda _: (200, {"number": 1, "created_at": "2026-01-30T00:00:00Z"}),
        ("GET", f"{BASE}/issues/1/events"): lambda _: (200, events),
    }

    assert forge.labelled(1, "adw") == Labelled(
        login="app[bot]",
        is_bot=True,
        at="2026-01-31T09:00:00.000000Z",
        raw_at="2026-01-31T09:00:00Z",
        created_at="2026-01-30T00:00:00Z",
    )
    assert forge.labelled(1, "other") is None


def test_tries_are_listed_over_all_hooks_newest_first_and_what_is_no_try_is_left_out(server, forge):
    def tried(number, guid, at, code, *, redelivery=False):
        return {
            "id": number,
            "guid": guid,
            "delivered_at": at,
            "status_code": code,
            "event": "issues",
            "redelivery": redelivery,
        }

    server.extra = {
        ("GET", f"{BASE}/hooks"): lambda _: (200, [{"id": 7}, {"id": 8}, {"id": None}]),
        ("GET", f"{BASE}/hooks/7/deliveries"): lambda _: (
            200,
            [
                tried(3, "a", "2026-01-31T09:00:00Z", 502, redelivery=True),
                tried(2, "a", "2026-01-31T08:00:00Z", 0),
                tried(1, "old", "2026-01-01T08:00:00Z", 502),
                {"id": "x"},
                tried(9, "b", "no moment", 200),
            ],
        ),
        ("GET", f"{BASE}/hooks/8/deliveries"): lambda _: (200, [tried(5, "b", "2026-01-31T08:30:00Z", 202)]),
    }

    result = forge.hook_deliveries(since="2026-01-28T00:00:00.000000Z")

    assert [(one.hook_id, one.delivery_id, one.guid, one.is_ok) for one in result] == [
        (7, 3, "a", False),
        (8, 5, "b", True),
        (7, 2, "a", False),
    ]
    assert result[0] == HookDelivery(
        hook_id=7,
        delivery_id=3,
        guid="a",
        is_ok=False,
        at="2026-01-31T09:00:00.000000Z",
        event="issues",
    )


def test_a_delivery_is_asked_for_again_by_one_request(server, forge):
    asked = []
    server.extra = {
        ("POST", f"{BASE}/hooks/7/deliveries/3/attempts"): lambda _: (asked.append(1), (202, {}))[1],
    }

    forge.redeliver(7, 3)

    assert asked == [1]


def test_a_token_that_may_not_see_hooks_is_refused(server, forge):
    server.extra = {("GET", f"{BASE}/hooks"): lambda _: (403, {"message": "Resource not accessible by token"})}

    with pytest.raises(ForgeRefused):
        forge.hook_deliveries(since="")
