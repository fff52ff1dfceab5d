"""Over HTTP: whose token opens what, who is answered with 409, and what ends a phase that is done outside."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.external_tasks import token_of
from adws.app import key_of
from adws.web.app import create_app
from tests.integration.web_lab import TOKEN, WebLab

WORKFLOW = """
[workflows.outside]
[[workflows.outside.phases]]
name = "build"
runner = "external"
deadline_seconds = 3600
max_attempts = 2
"""


class Outside(WebLab):
    """A home with a workflow that waits for somebody."""

    def __post_init__(self) -> None:
        super().__post_init__()
        with (self.home / "adw.toml").open("a") as file:
            file.write(WORKFLOW)
        self.close()
        self.app = self.open()
        self.door = create_app(self.app)
        self.adw_id = self.start(workflow="outside")
        self.work()
        (task,) = self.get("/api/v1/external")["tasks"]
        self.task_id, self.path = task["task_id"], task["path"]
        self.token = token_of(self.task_id, key_of(self.app.settings, clock=self.app.clock))

    def say(self, what: str, body: object = None, *, token: str | None = None, path: str = ""):
        request = {} if body is None else {"json": body}
        return self.ask("POST", path or f"{self.path}/{what}", token=token or self.token, **request)

    def emit(self, **fields):
        body = {"event_id": "one", "event_type": "step_completed", "claim": 1, **fields}
        return self.say("", body, path="/api/v1/event/emit")

    def pass_deadline(self) -> None:
        past = timestamps.to_text(self.app.clock.now() - timedelta(seconds=1))
        with self.app.database.write() as session:
            session.run("UPDATE external_tasks SET deadline = :past", {"past": past})
            session.run("UPDATE runs SET not_before = :past", {"past": past})

    def events(self, *kinds: str) -> list[dict]:
        result, cursor = [], ""
        while cursor is not None:
            asked = {"cursor": cursor} if cursor else {}
            page = self.get("/api/v1/events", adw_id=self.adw_id, limit=1000, **asked)
            result += page["events"]
            cursor = page["next_cursor"] if page["events"] else None
        return [event for event in result if not kinds or event["event_type"] in kinds]

    def kinds(self) -> list[str]:
        return [event["event_type"] for event in self.events()]


@pytest.fixture
def lab(tmp_path):
    with Outside(tmp_path / "home") as lab:
        yield lab


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_claim_heartbeat_and_report_carry_the_workflow_to_its_end(lab):
    assert lab.state(lab.adw_id) == "building"

    claimed = lab.say("claim", {"worker": "ci-7", "seconds": 30})
    assert (claimed.status_code, claimed.json()["claim"], claimed.json()["worker"]) == (200, 1, "ci-7")
    assert lab.say("heartbeat", {"claim": 1}).status_code == 200
    told = lab.say("report", {"claim": 1, "ok": True, "result": {"tests": 12}, "summary": "all green"})
    assert (told.status_code, told.json()["is_new"]) == (200, True)
    lab.work()

    assert lab.state(lab.adw_id) == "completed"
    kinds = lab.kinds()
    order = ["attempt_waits", "action_started", "action_completed", "attempt_went_on", "attempt_succeeded"]
    assert [kind for kind in kinds if kind in order] == order
    again = lab.say("report", {"claim": 1, "ok": True, "result": {"tests": 12}, "summary": "all green"})
    assert (again.status_code, again.json()["is_new"]) == (200, False)


def test_the_events_of_the_seed_end_a_task_too(lab):
    lab.say("claim", {"worker": "ci-7"})
    body = {
        "execution_id": lab.task_id,
        "catalog_id": 789,
        "node_id": "fetch_data",
        "node_name": "fetch_data",
        "node_type": "http",
        "status": "COMPLETED",
        "duration": 1.234,
        "context": {"execution_id": 123456, "workload": {"api_url": "https://api.example.com"}, "_secret": 1},
        "data": {"attempt_number": 1},
        "meta": {"queue": {"worker_id": "somebody else"}},
    }

    assert lab.emit(event_type="step_started", event_id="e1", **body).json() == {
        "task_id": lab.task_id,
        "is_new": True,
    }
    assert lab.emit(event_type="step_started", event_id="e1", **body).json()["is_new"] is False
    assert lab.emit(event_type="action_completed", event_id="e2", result={"id": 5}, **body).json()["is_new"] is True
    lab.work()

    assert lab.state(lab.adw_id) == "completed"
    events = lab.get("/api/v1/events", adw_id=lab.adw_id, limit=1000)["events"]
    (step,) = [event for event in events if event["event_type"] == "step_started"]
    assert (step["node_id"], step["node_name"], step["node_type"]) == ("fetch_data", "fetch_data", "http")
    assert (step["catalog_id"], step["meta"]["queue"]["worker_id"]) == ("789", "ci-7")
    assert "_secret" not in step["context"]


# --- whose word counts -----------------------------------------------------------------------------------------


def test_a_late_report_of_a_former_claim_gets_409_and_changes_nothing(lab):
    lab.say("claim", {"worker": "ci-7"})
    lab.say("claim", {"worker": "ci-7"})
    before = lab.kinds()

    for answer in (
        lab.say("report", {"claim": 1, "ok": True}),
        lab.say("heartbeat", {"claim": 1}),
        lab.emit(claim=1),
        lab.emit(claim=1, event_type="action_failed"),
    ):
        assert code(answer) == (409, "claim_lost")
        assert "is not yours any more" in answer.json()["error"]["message"]
    assert code(lab.say("claim", {"worker": "other"})) == (409, "claim_held")

    assert lab.kinds() == before
    assert lab.get(lab.path)["state"] == "open"


def test_after_the_deadline_the_attempt_is_interrupted_and_the_report_gets_409(lab):
    lab.say("claim")
    lab.pass_deadline()

    assert code(lab.say("report", {"claim": 1, "ok": True})) == (409, "claim_lost")
    lab.work()

    (phase,) = lab.get(f"/api/v1/workflows/{lab.adw_id}")["phases"]
    assert [attempt["status"] for attempt in phase["attempts"]] == ["interrupted", "waiting"]
    assert "nobody reported on task" in phase["attempts"][0]["error"]
    assert [task["state"] for task in lab.get("/api/v1/external")["tasks"]] == ["open", "expired"]
    assert code(lab.say("report", {"claim": 1, "ok": True})) == (409, "claim_lost")


def test_a_report_while_the_workflow_is_paused_waits_for_its_resume(lab):
    lab.say("claim")
    lab.post(f"/api/v1/workflows/{lab.adw_id}/pause")
    assert lab.say("report", {"claim": 1, "ok": True, "result": {"n": 1}}).status_code == 200
    lab.work()
    assert lab.state(lab.adw_id) == "paused"

    lab.post(f"/api/v1/workflows/{lab.adw_id}/resume")
    lab.work()

    assert lab.state(lab.adw_id) == "completed"
    (phase,) = lab.get(f"/api/v1/workflows/{lab.adw_id}")["phases"]
    assert [attempt["status"] for attempt in phase["attempts"]] == ["succeeded"]


# --- tokens ----------------------------------------------------------------------------------------------------


def test_without_its_token_a_task_is_closed(lab):
    for token in ("wrong", lab.token[:-1], lab.token + "x", "adwx_"):
        assert code(lab.say("claim", token=token)) == (401, "unauthorized")
    assert lab.ask("POST", f"{lab.path}/claim", token=None).status_code == 401


def test_the_token_of_a_task_opens_nothing_else(lab):
    other = lab.start(issue=2, workflow="outside")
    lab.work()
    theirs = next(task for task in lab.get("/api/v1/external")["tasks"] if task["adw_id"] == other)

    assert code(lab.say("", {}, path=f"{theirs['path']}/claim")) == (401, "foreign_token")
    assert code(lab.emit(execution_id=theirs["task_id"])) == (401, "foreign_token")
    for path in ("/api/v1/workflows", "/api/v1/external", "/api/v1/runs"):
        assert lab.ask("GET", path, token=lab.token).status_code == 401
    assert lab.ask("GET", lab.path, token=lab.token).json()["task_id"] == lab.task_id


def test_a_token_of_the_settings_opens_every_task(lab):
    assert lab.say("claim", token=TOKEN).status_code == 200
    assert code(lab.say("", {}, token=TOKEN, path="/api/v1/external/1a2b3c4d.build.1/claim")) == (404, "task_not_found")
    assert code(lab.say("", token=TOKEN, path="/api/v1/external/x/heartbeat", body={"claim": 1}))[0] == 404
    assert lab.ask("GET", "/api/v1/external/nothing").status_code == 404
    body = {"event_id": "one", "event_type": "step_started", "claim": 1}
    assert lab.say("", body, token=TOKEN, path="/api/v1/event/emit").status_code == 422


def test_tokens_of_tasks_work_where_the_rest_of_the_api_is_closed(tmp_path):
    with Outside(tmp_path / "home") as lab:
        task, token = lab.path, lab.token
        lab.env["ADW_WEB_TOKEN"] = ""
        lab.close()
        lab.app = lab.open()
        lab.door = create_app(lab.app)

        assert lab.ask("POST", f"{task}/claim", token=token).status_code == 200
        assert lab.ask("GET", "/api/v1/external", token=token).status_code == 403


def test_the_token_stands_in_no_list_and_no_event(lab):
    lab.say("claim")
    shown = json.dumps([lab.get("/api/v1/external"), lab.get(lab.path), lab.kinds()])
    events = json.dumps(lab.get("/api/v1/events", adw_id=lab.adw_id, limit=1000))

    assert lab.token not in shown
    assert lab.token not in events
    assert lab.token.rpartition("_")[2] not in shown + events


# --- what is put up with ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"claim": 1},
        {"claim": 0, "ok": True},
        {"claim": 1, "ok": True, "result": [1]},
        {"claim": 1, "ok": True, "summary": "x" * 2001},
        {"claim": 1, "ok": True, "event_id": "with space"},
        {"claim": 1, "ok": True, "unknown": 1},
        {"claim": 1, "ok": True, "result": {"x": "y" * 300_000}},
    ],
)
def test_a_report_that_makes_no_sense_is_refused_and_the_task_stays_open(lab, body):
    lab.say("claim")

    assert lab.say("report", body).status_code == 422
    assert lab.get(lab.path)["state"] == "open"


def test_an_event_of_another_kind_is_refused(lab):
    lab.say("claim")

    answer = lab.emit(event_type="state_changed")

    assert answer.status_code == 422
    assert "is no event of a task" in answer.json()["error"]["message"]
