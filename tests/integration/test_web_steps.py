"""Steps that loop over HTTP: their iterations, calls and scheduled retries."""

from __future__ import annotations

import pytest

from tests.integration.web_lab import WORKFLOWS, WebLab

STEPS = """
[workflows.looping]
[[workflows.looping.phases]]
name = "build"
max_attempts = 1
[[workflows.looping.phases.steps]]
name = "fetch"
tool = "command"
command = ["sh", "-c", "test $0 != 2 && echo \\"{\\\\\\"n\\\\\\": $0}\\"", "{{ item }}"]
[workflows.looping.phases.steps.loop]
collection = [1, 2, 3, 4]
mode = "async"
concurrency = 2
on_failure = "continue"
[workflows.looping.phases.steps.retry.on_error]
max_attempts = 3
base_seconds = 3600
max_seconds = 3600

[workflows.patient]
[[workflows.patient.phases]]
name = "build"
shell = "echo connection reset by peer >&2; exit 1"
max_attempts = 3
retry = { base_seconds = 300, max_seconds = 300, strategy = "fixed" }

[workflows.optional]
[[workflows.optional.phases]]
name = "plan"
shell = "echo connection reset by peer >&2; exit 1"
required = false
max_attempts = 3
retry = { base_seconds = 300, max_seconds = 300, strategy = "fixed" }
[[workflows.optional.phases]]
name = "build"
shell = "true"
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.integration.web_lab.WORKFLOWS", WORKFLOWS + STEPS)
    with WebLab(tmp_path / "home") as lab:
        yield lab


@pytest.fixture
def looping(lab):
    adw_id = lab.start(workflow="looping")
    lab.work()
    (execution,) = lab.get(f"/api/v1/workflows/{adw_id}/executions")["executions"]
    return adw_id, execution["execution_id"]


def kinds(lab: WebLab, adw_id: str) -> list[str]:
    return [event["event_type"] for event in lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]]


# --- looking ---------------------------------------------------------------------------------------------------


def test_an_execution_is_shown_with_its_counts_while_it_is_waited_for(lab, looping):
    adw_id, execution_id = looping

    shown = lab.get(f"/api/v1/executions/{execution_id}")

    assert (shown["step"], shown["phase"], shown["state"], shown["total"]) == ("fetch", "build", "running", 4)
    assert (shown["done"], shown["succeeded"], shown["failed"], shown["running"], shown["waiting"]) == (3, 3, 0, 0, 1)
    assert shown["next_retry"] is not None
    assert shown == lab.get(f"/api/v1/workflows/{adw_id}/executions", step="fetch")["executions"][0]
    assert lab.get(f"/api/v1/workflows/{adw_id}/executions", step="other")["executions"] == []


def test_iterations_come_in_pages_in_the_order_of_the_collection(lab, looping):
    path = f"/api/v1/executions/{looping[1]}/iterations"

    first = lab.get(path, limit=3)
    second = lab.get(path, limit=3, cursor=first["next_cursor"])

    shown = [*first["iterations"], *second["iterations"]]
    assert [(one["index"], one["state"]) for one in shown] == [
        (0, "completed"),
        (1, "retry_wait"),
        (2, "completed"),
        (3, "completed"),
    ]
    assert second["next_cursor"] is None
    assert [one["element"] for one in shown] == ["1", "2", "3", "4"]
    assert '"n": 1' in shown[0]["result"]
    waiting = lab.get(path, state="retry_wait")["iterations"]
    assert [(one["index"], one["why"], one["attempts"]) for one in waiting] == [(1, "on_error", 1)]
    assert waiting[0]["next_at"] is not None


def test_one_iteration_is_opened_with_its_calls(lab, looping):
    result = lab.get(f"/api/v1/executions/{looping[1]}/iterations/1")

    assert (result["element"], result["iteration"]["state"]) == (2, "retry_wait")
    assert [call["event_type"] for call in result["calls"]] == ["action_started", "action_failed"]
    assert {call["iteration_index"] for call in result["calls"]} == {1}


@pytest.mark.parametrize(
    "path", ["/api/v1/executions/x", "/api/v1/executions/x/iterations", "/api/v1/executions/x/iterations/0"]
)
def test_what_is_not_there_is_404(lab, path):
    answer = lab.ask("GET", path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "execution_not_found")
    assert lab.ask("GET", "/api/v1/workflows/1a2b3c4d/executions").status_code == 404


# --- retries ---------------------------------------------------------------------------------------------------


def test_calls_and_phases_that_wait_are_one_list_the_next_one_first(lab, looping):
    patient = lab.start(issue=2, workflow="patient")
    lab.work()

    value = lab.get("/api/v1/retries")["retries"]

    assert [(one["kind"], one["retry_id"]) for one in value] == [("phase", patient), ("call", looping[1])]
    assert (value[0]["phase"], value[0]["attempt_number"], value[0]["index"]) == ("build", 1, None)
    assert "connection reset by peer" in value[0]["error"]
    assert (value[1]["step"], value[1]["index"], value[1]["attempt_number"]) == ("fetch", 1, 1)
    assert [one["retry_id"] for one in lab.get("/api/v1/retries", adw_id=patient)["retries"]] == [patient]
    assert [one["kind"] for one in lab.get("/api/v1/retries", limit=1)["retries"]] == ["phase"]


def test_a_cancelled_call_ends_its_iteration_and_the_workflow_continues(lab, looping):
    adw_id, execution_id = looping

    answer = lab.post(f"/api/v1/retries/{execution_id}/cancel", {"index": 1, "by": "ada", "reason": "not needed"})
    lab.work()

    assert answer.status_code == 200, answer.text
    assert "iteration 1" in answer.json()["message"]
    assert lab.get("/api/v1/retries")["retries"] == []
    events = lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]
    (told,) = [event for event in events if event["event_type"] == "iteration_cancelled"]
    assert told["iteration_index"] == 1
    assert "not needed" in str(told["data"])
    assert lab.get(f"/api/v1/executions/{execution_id}")["state"] != "running"
    assert lab.state(adw_id) in {"completed", "failed"}


def test_an_execution_that_is_cancelled_ends_as_a_whole(lab, looping):
    adw_id, execution_id = looping

    assert lab.post(f"/api/v1/retries/{execution_id}/cancel").status_code == 200
    lab.work()

    assert lab.get(f"/api/v1/executions/{execution_id}")["state"] == "cancelled"
    assert "iterator_cancelled" in kinds(lab, adw_id)
    again = lab.post(f"/api/v1/retries/{execution_id}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")


def test_a_phase_that_is_not_tried_again_fails_with_the_reason(lab):
    adw_id = lab.start(workflow="patient")
    lab.work()

    answer = lab.post(f"/api/v1/retries/{adw_id}/cancel", {"by": "ada", "reason": "the server is gone"})

    assert answer.status_code == 200, answer.text
    shown = lab.get(f"/api/v1/workflows/{adw_id}")
    assert (shown["state"], shown["terminal_reason"]) == ("failed", "RETRY_CANCELLED")
    events = lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]
    (told,) = [event for event in events if event["event_type"] == "phase_failed"]
    assert told["data"]["message"] == "ada (API) cancelled its next attempt: the server is gone"
    assert lab.get("/api/v1/retries")["retries"] == []
    assert [run["state"] for run in lab.get("/api/v1/runs")["runs"]] == ["stopped"]
    assert lab.post(f"/api/v1/retries/{adw_id}/cancel").status_code == 409


def test_an_optional_phase_is_skipped_and_the_workflow_continues(lab):
    adw_id = lab.start(workflow="optional")
    lab.work()

    assert lab.post(f"/api/v1/retries/{adw_id}/cancel").status_code == 200
    lab.work()

    shown = lab.get(f"/api/v1/workflows/{adw_id}")
    assert (shown["state"], [phase["status"] for phase in shown["phases"]]) == ("completed", ["failed", "complete"])


def test_a_phase_that_waits_for_its_steps_is_no_retry(lab, looping):
    answer = lab.post(f"/api/v1/retries/{looping[0]}/cancel")

    assert answer.status_code == 409
    assert "no scheduled retry" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"), [({"index": 0}, 409), ({"index": 9}, 409), ({"index": -1}, 422), ({"x": 1}, 422)]
)
def test_only_a_waiting_retry_is_cancelled(lab, looping, body, status):
    before = lab.get(f"/api/v1/executions/{looping[1]}")

    assert lab.post(f"/api/v1/retries/{looping[1]}/cancel", body).status_code == status
    assert lab.get(f"/api/v1/executions/{looping[1]}") == before


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 16])
def test_a_cursor_that_is_not_ours_is_refused(lab, looping, cursor):
    assert lab.ask("GET", f"/api/v1/executions/{looping[1]}/iterations", params={"cursor": cursor}).status_code == 422


def test_an_id_that_is_nothing_is_404_or_409(lab):
    assert lab.post("/api/v1/retries/1a2b3c4d/cancel").status_code == 404
    assert lab.post("/api/v1/retries/1a2b3c4d.build.1.fetch/cancel", {"index": 1}).status_code == 409
