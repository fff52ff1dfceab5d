"""The ingress of webhooks: stored with its run before it is answered, once, and only when it is signed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading

import httpx
import pytest

from adws.adw_triggers import trigger_webhook
from adws.adw_triggers.trigger_webhook import PATHS, WebhookReceiver
from tests.integration.web_lab import SECRET, WebLab, labelled, signed


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


def rows(lab: WebLab, table: str) -> int:
    with sqlite3.connect(lab.home / "state" / "adw.db") as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def comment(body: str, *, issue: int = 7, guid: str = "guid-1", sender: str = "ada"):
    payload = {
        "action": "created",
        "issue": {"number": issue, "title": "A thing", "body": "", "state": "open", "user": {"login": "bob"}},
        "comment": {"id": 1000 + hash(guid) % 10**6, "body": body, "user": {"login": sender, "type": "User"}},
        "repository": {"full_name": "acme/shop", "id": 5},
        "sender": {"login": sender, "type": "User"},
    }
    return signed(json.dumps(payload).encode(), guid=guid, event="issue_comment")


def may_write(lab: WebLab, login: str) -> None:
    """Let *login* do on the local forge what a person with write access may do."""
    path = lab.app.settings.local_forge_dir / "forge.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "people": {login: "write"}}))


# --- taken -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_delivery_is_answered_with_the_run_that_is_stored_and_the_workflow_it_will_start(lab, path):
    [answer] = lab.deliver(labelled(), path=path)

    assert answer.status_code == 202
    result = answer.json()
    assert result["status"] == "accepted"
    with lab.open("cli") as other:
        assert other.runs.get(result["run_id"]).kind == "delivery"
        assert other.deliveries.get("guid-1").adw_id == result["adw_id"]


def test_what_asks_for_nothing_is_kept_without_a_run(lab):
    [answer] = lab.deliver(signed(b'{"zen": "Keep it simple."}', event="ping"))

    assert (answer.status_code, answer.json()["status"], answer.json()["run_id"]) == (202, "ignored", None)
    assert lab.get("/api/v1/runs")["runs"] == []


def test_a_repeat_gets_the_same_answer_also_under_another_guid_and_after_it_was_done(lab):
    [first] = lab.deliver(labelled())
    [again, under_another] = lab.deliver(labelled(), labelled(guid="guid-2"))
    lab.app.deliveries.finish("guid-1", status="done", outcome="started")
    [later] = lab.deliver(labelled())

    assert {answer.text for answer in (again, under_another, later)} == {first.text}
    assert rows(lab, "runs") == 1


def test_a_command_names_no_workflow_before_a_worker_has_found_it(lab):
    [answer] = lab.deliver(comment("/adw stop"))

    assert (answer.json()["status"], answer.json()["adw_id"]) == ("accepted", None)


def test_the_same_delivery_a_hundred_times_over_eight_connections_is_one_run(lab):
    async def flood() -> list[httpx.Response]:
        body, headers = labelled()
        async with lab.client(limits=httpx.Limits(max_connections=8)) as client:
            return await asyncio.gather(
                *(client.post("/webhooks/github", content=body, headers=headers) for _ in range(100))
            )

    answers = asyncio.run(flood())

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert rows(lab, "runs") == rows(lab, "deliveries") == 1


# --- refused ---------------------------------------------------------------------------------------------------


def _without_signature(headers: dict) -> dict:
    return {name: value for name, value in headers.items() if name != "X-Hub-Signature-256"}


@pytest.mark.parametrize(
    "spoil",
    [
        _without_signature,
        lambda headers: headers | {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        lambda headers: headers | {"X-Hub-Signature-256": "sha1=" + "0" * 40},
        lambda headers: headers | {"X-Hub-Signature-256": headers["X-Hub-Signature-256"][:-1]},
        lambda headers: headers | {"X-Hub-Signature-256": ""},
    ],
    ids=["none", "wrong", "sha1", "short", "empty"],
)
def test_what_is_not_signed_is_401_and_nothing_of_it_is_stored(lab, spoil):
    body, headers = labelled()

    [answer] = lab.deliver((body, spoil(headers)))

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "bad_signature"
    assert SECRET not in answer.text
    assert lab.get("/api/v1/deliveries")["deliveries"] == []


def test_without_a_secret_nothing_is_taken_and_it_says_what_to_set(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEBHOOK_SECRET": ""}) as lab:
        [answer] = lab.deliver(signed(b"{}", secret=""))

    assert answer.status_code == 403
    assert "ADW_WEBHOOK_SECRET" in answer.json()["error"]["advice"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"a": 1, "a": 2}', b"[" * 100_000, b"\xff\xfe", b'{"action": "labeled"}', b"9" * 5000],
    ids=["empty", "cut", "list", "twice", "deep", "bytes", "no-issue", "number"],
)
def test_what_makes_no_sense_is_400_and_nothing_of_it_is_stored(lab, body):
    [answer] = lab.deliver(signed(body))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_delivery"
    assert rows(lab, "runs") == 0 if (lab.home / "state" / "adw.db").exists() else True


def test_one_guid_with_another_body_is_a_conflict(lab):
    lab.deliver(labelled(7))

    [answer] = lab.deliver(labelled(8))

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "delivery_conflict")
    assert rows(lab, "deliveries") == 1


# --- limits ----------------------------------------------------------------------------------------------------


def test_who_asks_too_often_is_refused_and_repeats_still_get_their_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(trigger_webhook, "SENDER_LIMIT", 3)
    with WebLab(tmp_path / "home") as lab:
        first = [lab.deliver(labelled(number, guid=f"guid-{number}"))[0] for number in range(1, 4)]
        [fourth] = lab.deliver(labelled(4, guid="guid-4"))
        [repeat] = lab.deliver(labelled(1, guid="guid-1"))
        [other] = lab.deliver(labelled(5, guid="guid-5", sender="bob"))
        [ping] = lab.deliver(signed(b'{"zen": "x", "sender": {"login": "ada"}}', event="ping", guid="guid-6"))

        assert {answer.status_code for answer in first} == {202}
        assert fourth.status_code == 429
        assert int(fourth.headers["retry-after"]) > 0
        assert repeat.text == first[0].text
        assert (other.status_code, ping.status_code) == (202, 202)
        assert lab.app.deliveries.get("guid-4") is None


def test_an_issue_that_is_asked_about_in_a_loop_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(trigger_webhook, "ISSUE_LIMIT", 3)
    with WebLab(tmp_path / "home") as lab:
        answers = [lab.deliver(comment("/adw status", guid=f"guid-{number}"))[0].json() for number in range(6)]
        [elsewhere] = lab.deliver(comment("/adw status", issue=8, guid="elsewhere"))

        assert [answer["status"] for answer in answers] == ["accepted"] * 3 + ["ignored"] * 3
        assert "loop" in answers[-1]["message"]
        assert elsewhere.json()["status"] == "accepted"
        assert rows(lab, "runs") == 4


# --- trouble ---------------------------------------------------------------------------------------------------


def test_while_the_database_is_gone_a_delivery_is_503_and_can_come_again(lab, tmp_path):
    """Never a success without a commit: the sender shows it as failed, and it is sent again."""
    lab.get("/api/v1/runs")
    database = lab.home / "state" / "adw.db"
    database.rename(tmp_path / "away")
    [failed] = lab.deliver(labelled())
    (tmp_path / "away").rename(database)
    [again] = lab.deliver(labelled())

    assert failed.status_code == 503
    assert failed.headers["retry-after"]
    assert again.status_code == 202


def test_a_database_that_hangs_does_not_keep_the_sender_waiting(lab, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(lab.app.deliveries, "accept", lambda _arrived, **_limits: held.wait(30) and [])
    door = WebhookReceiver(lab.app, answer_seconds=0.05)
    body, headers = labelled()

    async def one() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://x") as client:
            return await client.post("/webhooks/github", content=body, headers=headers)

    try:
        answer = asyncio.run(one())
    finally:
        held.set()
        door.close()

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_late")
