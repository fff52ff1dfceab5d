"""`adw webhook deliveries` and `adw webhook replay`, as commands."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Delivery
from tests import delivery_cases
from tests.integration.delivery_home import DeliveryHome


@pytest.fixture
def home(tmp_path):
    return DeliveryHome(tmp_path)


def said(home, *args: str) -> tuple[int, str, str]:
    done = home.adw(*args)
    out, err = done.communicate(timeout=120)
    return done.returncode, out, err


def ignored(body: bytes) -> Delivery:
    return Delivery(
        guid="ignored-1",
        event="issues",
        action="labeled",
        hook="",
        body=body,
        body_hash="x",
        sender="ada",
        repository="acme/widget",
        number=1,
        verdict="ignored",
        reason="the label is 'adw', and 'go' starts a workflow",
    )


def test_nothing_came_in_yet(home):
    assert said(home, "webhook", "deliveries") == (0, "there are no deliveries\n", "")


def test_deliveries_are_listed_with_verdict_and_result(home):
    home.carry_out(home.request())
    home.carry_out(home.command("stop"))

    code, out, _ = said(home, "webhook", "deliveries", "--limit", "1")
    listed = json.loads(said(home, "webhook", "deliveries", "--json")[1])
    older = json.loads(said(home, "webhook", "deliveries", "--json", "--before", "guid-2")[1])

    assert code == 0
    assert "guid-2" in out
    assert "more: adw webhook deliveries --before guid-2" in out
    assert [(row["guid"], row["verdict"], row["status"]) for row in listed["deliveries"]] == [
        ("guid-2", "command", "refused"),
        ("guid-1", "run", "done"),
    ]
    assert "there is nothing to stop any more" in listed["deliveries"][0]["outcome"]
    assert [row["guid"] for row in older["deliveries"]] == ["guid-1"]


def test_a_delivery_is_carried_out_again(home):
    first = home.carry_out(home.request())
    home.carry_out(home.command("status"))

    code, out, _ = said(home, "webhook", "replay", "guid-2")
    said(home, "worker", "--once")

    assert (code, out.startswith("delivery guid-2 waits for a worker as run ")) == (0, True)
    row = json.loads(said(home, "webhook", "deliveries", "--json")[1])["deliveries"][0]
    assert (row["guid"], row["status"], row["adw_id"]) == ("guid-2", "done", first.adw_id)


@pytest.mark.parametrize("command", [("webhook", "replay", "nobody"), ("webhook", "deliveries", "--before", "nobody")])
def test_a_guid_that_nobody_sent_is_named(home, command):
    home.carry_out(home.request())

    code, _, err = said(home, *command)

    assert code == 1
    assert "nobody" in err


def test_what_was_ignored_is_read_again_with_the_settings_of_today(home):
    payload = delivery_cases.labeled(sender=delivery_cases.user("ada"), number=home.issue)
    with home.lab.open() as app:
        app.deliveries.accept([ignored(delivery_cases.bytes_of(payload))])
    file = home.lab.home / "adw.toml"

    refused = said(home, "webhook", "replay", "ignored-1")
    file.write_text(file.read_text().replace("[webhook]", '[github]\nrepository = "acme/widget"\n[webhook]'))
    queued = said(home, "webhook", "replay", "ignored-1")

    assert refused[0] == 2
    assert "delivery ignored-1 asks for nothing: " in refused[2]
    assert queued[0] == 0, queued
    with home.lab.open() as app:
        request = commands.from_json(app.deliveries.request_of("ignored-1"))
        assert (request.issue.number, request.actor.login) == (home.issue, "ada")
