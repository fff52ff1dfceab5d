"""The API over a real home: authentication, what it shows, what it does, and its errors."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from adws.adw_modules.queue.store import RunStore
from adws.testing import FakeClock
from tests.integration.web_lab import TOKEN, WebLab

ORDERS = ("pause", "resume", "retry", "stop", "abandon", "approve", "reject", "rollback")
VIEWS = ("workflows", "runs", "runners", "locks", "quota", "breakers", "deliveries", "openapi.json")


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


def said(answer) -> dict:
    """Return what is wrong, after a look at its shape."""
    assert list(answer.json()) == ["error"]
    assert set(answer.json()["error"]) == {"code", "message", "advice"}
    return answer.json()["error"]


# --- who is let in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*VIEWS, "nothing", "workflows/1a2b3c4d", "events?adw_id=1a2b3c4d"])
def test_no_api_path_answers_without_the_token(lab, path):
    for token in (None, "wrong-token-0123456789", TOKEN[:-1]):
        answer = lab.ask("GET", f"/api/v1/{path}", token=token)

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert said(answer)["code"] == "unauthorized"


@pytest.fixture
def quiet_lab(tmp_path):
    """The same, where no time passes by itself."""
    with WebLab(tmp_path / "home", clock=FakeClock()) as made:
        yield made


def guess(lab, token, *, address="10.0.0.7", path="/api/v1/runs"):
    """Return how a request with *token* from *address* is answered."""

    async def one():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=lab.door, client=(address, 4711)), base_url="http://adw.invalid"
        ) as client:
            return await client.get(path, headers={"Authorization": f"Bearer {token}"} if token else {})

    return asyncio.run(one())


@pytest.mark.parametrize("path", ["/api/v1/runs", "/metrics", "/admin/recover-runs", "/api/v1/external/some-task"])
def test_an_address_that_guesses_tokens_of_the_api_waits_and_no_other(quiet_lab, path, caplog):
    lab = quiet_lab
    with caplog.at_level(logging.WARNING, logger="adw.web"):
        assert [guess(lab, f"wrong-{number}", path=path).status_code for number in range(5)] == [401] * 5
        refused = guess(lab, TOKEN, path=path)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert said(refused) == {
        "code": "too_many_wrong_tokens",
        "message": "too many wrong tokens came from this address: it has to wait 2 s",
        "advice": "Wait, then send the header Authorization: Bearer TOKEN, with a token of ADW_WEB_TOKEN.",
    }
    assert [record.action for record in caplog.records] == ["token_refused"] * 5
    assert "wrong-1" not in caplog.text
    assert guess(lab, TOKEN, address="10.0.0.8").status_code == 200
    lab.clock.advance(2.0)
    assert guess(lab, "wrong-again", path=path).status_code == 401
    assert guess(lab, TOKEN).headers["retry-after"] == "4", "longer each time"
    lab.clock.advance(4.0)
    assert guess(lab, TOKEN).status_code == 200


def test_a_client_without_a_token_or_with_a_right_one_does_not_wait(quiet_lab):
    lab = quiet_lab
    for _ in range(12):
        assert guess(lab, None).status_code == 401
    for number in range(12):
        assert guess(lab, f"wrong-{number}").status_code == 401
        assert guess(lab, TOKEN).status_code == 200, "a right token forgives"
    assert lab.ask("GET", "/health", token=None).status_code == 200


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_done_without_the_token(lab, order):
    adw_id = lab.start()

    assert lab.ask("POST", f"/api/v1/workflows/{adw_id}/{order}", token=None).status_code == 401
    assert lab.state(adw_id) == "pending"


def test_without_a_token_in_the_settings_the_api_is_closed_and_says_what_to_do(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_TOKEN": ""}) as lab:
        assert said(lab.ask("GET", "/api/v1/runs", token=None))["code"] == "api_closed"
        assert lab.ask("GET", "/health", token=None).status_code == 200


def test_control_characters_are_removed_from_titles(lab):
    said = {"issue_number": 5, "title": "Add\0a \x1ffine\nthing", "body": "one\0\n\ttwo", "workflow": "short"}

    adw_id = lab.post("/api/v1/workflows", said).json()["adw_id"]

    issue = lab.app.store.load(adw_id).document.issue
    assert (issue.title, issue.body) == ("Add a fine thing", "one\n\ttwo")
    assert lab.get(f"/api/v1/workflows/{adw_id}")["title"] == "Add a fine thing"
    assert [row["title"] for row in lab.get("/api/v1/workflows")["workflows"]] == ["Add a fine thing"]


def test_health_is_open_and_says_whether_work_can_be_taken(lab):
    answer = lab.ask("GET", "/health", token=None)

    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_health_says_when_the_database_does_not_answer(lab, tmp_path):
    lab.get("/api/v1/runs")
    (tmp_path / "home" / "state" / "adw.db").rename(tmp_path / "away")

    answer = lab.ask("GET", "/health", token=None)

    assert answer.status_code == 503
    assert answer.json()["database"] == "does not answer"


# --- starting and looking --------------------------------------------------------------------------------------


def test_a_workflow_is_started_and_durable_when_that_is_answered(lab):
    answer = lab.post("/api/v1/workflows", {"issue_number": 5, "title": "A thing", "by": "ada"})

    assert answer.status_code == 201
    adw_id = answer.json()["adw_id"]
    with lab.open("cli") as other:
        assert other.store.load(adw_id).document.issue.title == "A thing"
        assert other.runs.get(answer.json()["run_id"]).asked_by == "ada (API)"


def test_a_workflow_that_was_worked_on_is_shown_with_its_phases(lab):
    adw_id = lab.start(5)
    lab.work()

    result = lab.get(f"/api/v1/workflows/{adw_id}")

    assert (result["state"], result["issue_number"], result["workflow"]) == ("completed", 5, "short")
    assert [(phase["name"], phase["status"]) for phase in result["phases"]] == [("plan", "complete")]
    assert result["phases"][0]["attempts"][0]["number"] == 1


def test_a_second_workflow_for_an_issue_is_refused_and_names_the_first(lab):
    adw_id = lab.start(5)

    answer = lab.post("/api/v1/workflows", {"issue_number": 5})

    assert answer.status_code == 409
    assert said(answer)["code"] == "issue_locked"
    assert adw_id in said(answer)["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "issue_number"),
        ({"issue_number": 0}, "issue_number"),
        ({"issue_number": "5"}, "issue_number"),
        ({"issue_number": 5, "workflow": "nothing"}, "there is no workflow 'nothing'"),
        ({"issue_number": 5, "repository": "not a repository"}, "names no repository"),
        ({"issue_number": 5, "colour": "red"}, "colour"),
        ({"issue_number": 5, "priority": 10**9}, "priority"),
        ({"issue_number": 5, "\ud800": 1}, "unicode"),
        ([], "body"),
    ],
)
def test_a_refused_start_says_why(lab, body, word):
    answer = lab.ask(
        "POST", "/api/v1/workflows", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 422
    assert word in said(answer)["message"]
    assert lab.get("/api/v1/workflows")["workflows"] == []


def test_workflows_are_listed_a_page_at_a_time_each_once(lab):
    made = [lab.start(number) for number in range(1, 6)]
    seen, cursor = [], ""
    while True:
        page = lab.get("/api/v1/workflows", limit=2, cursor=cursor)
        seen += [row["adw_id"] for row in page["workflows"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert seen == made[::-1]


def test_runs_are_listed_a_page_at_a_time_each_once(lab):
    for number in range(1, 6):
        lab.start(number)
    seen, cursor = [], ""
    while cursor is not None:
        page = lab.get("/api/v1/runs", limit=2, cursor=cursor)
        seen += [row["run_id"] for row in page["runs"]]
        cursor = page["next_cursor"]

    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 5


def test_events_continue_after_the_last_one_seen(lab):
    adw_id = lab.start()
    lab.work()
    first = lab.get("/api/v1/events", adw_id=adw_id, limit=2)
    rest = lab.get("/api/v1/events", adw_id=adw_id, cursor=first["next_cursor"])
    every = lab.get("/api/v1/events", adw_id=adw_id)

    assert every["events"][0]["event_type"] == "workflow_created"
    assert first["events"] + rest["events"] == every["events"]


def test_lists_can_be_narrowed(lab):
    one, two = lab.start(1), lab.start(2)
    lab.post(f"/api/v1/workflows/{one}/pause")

    assert [row["adw_id"] for row in lab.get("/api/v1/workflows", state="paused")["workflows"]] == [one]
    assert [row["adw_id"] for row in lab.get("/api/v1/workflows", issue_number=2)["workflows"]] == [two]
    assert {row["state"] for row in lab.get("/api/v1/runs", state="pending")["runs"]} == {"pending"}
    assert [row["adw_id"] for row in lab.get("/api/v1/locks")["locks"]] == [one, two]


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("workflows", {"stat": "paused"}),
        ("workflows", {"state": "nowhere"}),
        ("workflows", {"limit": "0"}),
        ("workflows", {"limit": "1001"}),
        ("workflows", {"cursor": "made-up"}),
        ("runs", {"cursor": "0"}),
        ("runs", {"cursor": "9" * 30}),
        ("runs", {"cursor": "\u0665"}),
        ("runs", {"state": "nowhere"}),
        ("events", {}),
        ("events", {"adw_id": "../etc"}),
        ("deliveries", {"cursor": "made-up"}),
        ("deliveries", {"verdict": "nonsense"}),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_not_guessed(lab, path, params):
    lab.start()

    answer = lab.ask("GET", f"/api/v1/{path}", params=params)

    assert answer.status_code == 422
    assert said(answer)["message"]


@pytest.mark.parametrize("path", ["workflows/1a2b3c4d", "events?adw_id=1a2b3c4d"])
def test_what_is_not_there_is_404(lab, path):
    assert said(lab.ask("GET", f"/api/v1/{path}"))["code"] == "state_not_found"
    assert lab.ask("GET", f"/api/v1/{path}").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 421),  # a page, and not under the name of this server
        ("GET", "/api/v1/nothing", 404),
        ("DELETE", "/api/v1/runs", 405),
        ("PUT", "/health", 405),
    ],
)
def test_pages_and_methods_that_are_not_there_have_the_one_shape_too(lab, method, path, status):
    answer = lab.ask(method, path)

    assert answer.status_code == status
    assert said(answer)["code"] in {"not_found", "method_not_allowed", "wrong_host"}
    assert (status == 405) is ("allow" in answer.headers)


# --- orders ----------------------------------------------------------------------------------------------------


def test_a_parked_workflow_continues(lab):
    adw_id = lab.start()

    paused = lab.post(f"/api/v1/workflows/{adw_id}/pause", {"reason": "lunch", "by": "ada"})
    assert (paused.status_code, paused.json()["is_done"], paused.json()["state"]) == (200, True, "paused")
    assert lab.get(f"/api/v1/workflows/{adw_id}")["pause_reason"] == "lunch"
    resumed = lab.post(f"/api/v1/workflows/{adw_id}/resume", {"hint": "be quick"})
    assert resumed.json()["run_id"] is not None
    lab.work()

    assert lab.state(adw_id) == "completed"


@pytest.mark.parametrize(("order", "state"), [("approve", "completed"), ("reject", "paused")])
def test_a_phase_that_waits_for_a_person_is_decided(lab, order, state):
    adw_id = lab.start(workflow="gated")
    lab.work()
    assert lab.get(f"/api/v1/workflows/{adw_id}")["waiting_phase"] == "plan"

    assert lab.post(f"/api/v1/workflows/{adw_id}/{order}", {"text": "so be it"}).status_code == 200
    lab.work()

    assert lab.state(adw_id) == state


def test_a_failed_workflow_is_tried_again_with_a_grant(lab):
    adw_id = lab.start(workflow="broken")
    lab.work()
    assert lab.state(adw_id) == "failed"

    retried = lab.post(f"/api/v1/workflows/{adw_id}/retry", {"grant": 2})

    assert (retried.status_code, retried.json()["is_done"]) == (200, True)
    assert lab.get(f"/api/v1/workflows/{adw_id}")["phases"][0]["max_attempts"] == 3


def test_a_rollback_is_left_to_a_worker(lab):
    adw_id = lab.start()

    answer = lab.post(f"/api/v1/workflows/{adw_id}/rollback", {"reason": "not wanted"})
    assert (answer.status_code, answer.json()["is_done"]) == (202, False)
    lab.work()

    assert lab.state(adw_id) == "rolled_back"


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ("pause", "there is nothing to pause"),
        ("abandon", "there is nothing to abandon"),
        ("approve", "does not wait for approval"),
        ("reject", "does not wait for approval"),
        ("retry", "not failed"),
        ("resume", "completed"),
    ],
)
def test_an_order_that_does_not_fit_the_state_is_409_with_its_sentence(lab, order, sentence):
    adw_id = lab.start()
    lab.work()

    answer = lab.post(f"/api/v1/workflows/{adw_id}/{order}")

    assert answer.status_code == 409
    assert sentence in said(answer)["message"]


def test_whoever_works_on_a_workflow_is_asked_and_the_request_is_kept(lab):
    adw_id = lab.start()
    with lab.open("worker") as app, app.ownership.own(adw_id):
        asked = lab.post(f"/api/v1/workflows/{adw_id}/pause")
        refused = lab.post(f"/api/v1/workflows/{adw_id}/resume")

        assert (asked.status_code, asked.json()["is_done"]) == (202, False)
        assert app.requests.get(asked.json()["request_id"]).kind == "pause"
        assert lab.get(f"/api/v1/workflows/{adw_id}")["owner"]["role"] == "worker"
    assert (refused.status_code, said(refused)["code"]) == (409, "workflow_busy")


# --- limits and trouble ----------------------------------------------------------------------------------------


def test_while_the_database_is_gone_everything_is_503_and_nothing_is_started(lab, tmp_path):
    lab.get("/api/v1/runs")
    (tmp_path / "home" / "state" / "adw.db").rename(tmp_path / "away")

    for answer in (lab.ask("GET", "/api/v1/runs"), lab.post("/api/v1/workflows", {"issue_number": 5})):
        assert answer.status_code == 503
        assert said(answer)["code"].startswith("database")
        assert answer.headers["retry-after"]


def test_a_bug_is_a_500_in_the_one_shape_and_a_line_in_the_log(lab, monkeypatch, caplog):
    def broken(*_args, **_options):
        raise ZeroDivisionError("a detail that nobody outside is told")

    monkeypatch.setattr(RunStore, "page", broken)
    with caplog.at_level(logging.ERROR, logger="adw.web"):
        answer = lab.ask("GET", "/api/v1/runs")

    assert (answer.status_code, said(answer)["code"]) == (500, "internal_error")
    assert "nobody outside" not in answer.text
    assert [record.path for record in caplog.records if record.name == "adw.web"] == ["/api/v1/runs"]


def test_the_api_describes_itself_with_its_errors(lab):
    schema = lab.get("/api/v1/openapi.json")
    operations = [one for path in schema["paths"].values() for one in path.values()]

    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert {f"{order}_workflow" for order in ORDERS} <= set(names)
    for path, methods in schema["paths"].items():
        for one in methods.values():
            if path.startswith("/api/"):
                assert one["security"] == [{"token": []}]
                assert one["responses"]["409"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
                assert one["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
