"""What people order on the page of a workflow: done as by the command line, written down, and refused in words."""

from __future__ import annotations

import pytest

from adws.adw_modules.steps.store import KEEP_PAGE
from tests.integration import workflow_lab
from tests.integration.page_lab import Browser
from tests.integration.test_web_steps import STEPS
from tests.integration.web_lab import WORKFLOWS, WebLab


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.integration.web_lab.WORKFLOWS", WORKFLOWS + STEPS)
    with WebLab(tmp_path / "home") as made:
        yield made


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in(name="Ada")


def document_of(lab, adw_id):
    with lab.open("cli") as other:
        return other.store.load(adw_id).document


def kinds(lab, adw_id) -> list[str]:
    return [event["event_type"] for event in lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]]


def asked(lab, adw_id) -> list[tuple[str, str]]:
    """Return what was asked for on the dashboard, and by whom, as the history of the workflow has it."""
    lab.app.flush_projection()  # events of documents in files come to the table of events with it
    events = lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]
    return [(e["data"]["action"], e["data"]["by"]) for e in events if e["event_type"] == "action_asked"]


def refused(page) -> str:
    """Return what a page says about an order that was not obeyed."""
    assert len(page.all("p", class_="flash bad")) == 1, page.text
    return page.text


@pytest.fixture
def gated(lab):
    adw_id = lab.start(1, "gated")
    lab.work()
    return adw_id


@pytest.fixture
def broken(lab):
    adw_id = lab.start(1, "broken")
    lab.work()
    return adw_id


# --- deciding --------------------------------------------------------------------------------------------------


def test_a_phase_that_waits_is_approved(lab, browser, gated):
    page = browser.do(f"/workflows/{gated}/approve", {"text": "looks good"})

    assert "Plan is decided; the workflow is completed." in page.text
    assert asked(lab, gated) == [("approve", "Ada (dashboard)")]
    assert lab.state(gated) == "completed"


# --- stopping and going on -------------------------------------------------------------------------------------


def test_a_workflow_is_paused_and_resumed_with_a_hint_and_a_budget(lab, browser):
    adw_id = lab.start()

    page = browser.do(f"/workflows/{adw_id}/pause")
    assert f"Workflow {adw_id} is paused." in page.text
    assert document_of(lab, adw_id).pause_reason == "paused by Ada (dashboard)"
    page = browser.do(f"/workflows/{adw_id}/resume", {"hint": "be brief", "budget": "12,50"})
    document = document_of(lab, adw_id)
    assert (document.hints[0]["text"], document.hints[0]["by"]) == ("be brief", "Ada (dashboard)")
    assert document.max_cost_usd == 12.5
    assert asked(lab, adw_id) == [("pause", "Ada (dashboard)"), ("resume", "Ada (dashboard)")]


def test_a_number_that_is_none_is_refused_in_words(lab, browser, broken):
    wrong = {
        "grant": ("a whole number from 0 to 100", ["many", "101", "\u0665"]),
        "budget": ("an amount of US dollars above 0", ["much", "nan", "-1", "1e9"]),
    }

    for field, (words, values) in wrong.items():
        for value in values:
            assert words in refused(browser.do(f"/workflows/{broken}/retry", {field: value})), value
            assert lab.state(broken) == "failed"


def test_whoever_works_on_it_is_asked_to_stop(lab, browser):
    adw_id = lab.start()
    with lab.open("worker") as worker, worker.ownership.own(adw_id):
        page = browser.see(f"/workflows/{adw_id}")
        assert [form["action"] for form in page.all("form") if form["action"].endswith("/stop")]
        assert not [form for form in page.all("form") if form["action"].endswith("/resume")]
        for order in ("pause", "stop", "abandon"):
            assert f"who is at work; the {order} is kept." in browser.do(f"/workflows/{adw_id}/{order}").text
        browser.do(f"/workflows/{adw_id}/stop", {"urgent": "yes"})
        urgent = [request.payload["is_urgent"] for request in worker.requests.open_for(adw_id)]
        assert urgent == [False, False, False, True]
        assert "the hint is kept" in browser.do(f"/workflows/{adw_id}/hint", {"text": "be brief"}).text
        assert [request.kind for request in worker.requests.open_for(adw_id)] == [
            "pause",
            "stop",
            "abandon",
            "stop",
            "hint",
        ]
        assert "pause, stop, abandon, stop, hint" in browser.see(f"/workflows/{adw_id}").text
        assert "Not done: workflow" in refused(browser.do(f"/workflows/{adw_id}/resume"))


def test_a_hint_needs_words(lab, browser, gated):
    assert "the hint is empty" in refused(browser.do(f"/workflows/{gated}/hint", {"text": "  "}))
    browser.do(f"/workflows/{gated}/hint", {"text": "think twice"})

    assert [hint["text"] for hint in document_of(lab, gated).hints] == ["think twice"]


def test_a_workflow_is_abandoned_after_a_question(lab, browser, gated):
    page = browser.see(f"/workflows/{gated}/abandon")
    assert lab.state(gated) == "paused"
    assert [form["action"] for form in page.all("form")][-1] == f"/workflows/{gated}/abandon"

    page = browser.do(f"/workflows/{gated}/abandon", {"reason": "not wanted any more"})

    assert "is abandoned; what it made is kept" in page.text
    assert lab.state(gated) == "abandoned"
    assert "there is nothing to abandon" in browser.see(f"/workflows/{gated}/abandon").text
    assert "nothing to abandon" in refused(browser.do(f"/workflows/{gated}/abandon"))


# --- undoing ---------------------------------------------------------------------------------------------------


def test_a_rollback_shows_its_plan_first_and_is_done_by_a_worker(lab, browser, gated):
    page = browser.see(f"/workflows/{gated}/rollback")

    assert "free issue #1" in page.text
    assert "Nothing has been done yet." in page.text
    assert (lab.state(gated), "rollback_begun" in kinds(lab, gated)) == ("paused", False)
    told = browser.do(f"/workflows/{gated}/rollback", {"reason": "not wanted", "keep_branch": "yes"})
    assert "waits for a worker that rolls it back" in told.text
    assert "rollback" not in [link.rpartition("/")[2] for link in told.links()]
    with lab.open("cli") as other:
        (run, *_) = other.runs.of_workflow(gated)
        assert (run.kind, run.asked_by, run.payload["keep_branch"]) == ("rollback", "Ada (dashboard)", True)
    lab.work()
    after = browser.see(f"/workflows/{gated}")
    assert lab.state(gated) == "rolled_back"
    assert ("rollback", "Ada (dashboard)") in asked(lab, gated)
    assert " done " in after.text
    assert "The workflow is rolled back." in browser.see(f"/workflows/{gated}/rollback").text


def test_a_merged_workflow_is_not_rolled_back_and_the_page_says_why(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.finished(lab.app.clock.now(), pr_merged=True))

    page = browser.see(f"/workflows/{adw_id}/rollback")

    assert "merged" in page.text
    assert [form["action"] for form in page.all("form")] == ["/logout"]


# --- steps that loop -------------------------------------------------------------------------------------------


@pytest.fixture
def looping(lab):
    adw_id = lab.start(workflow="looping")
    lab.work()
    (execution,) = lab.get(f"/api/v1/workflows/{adw_id}/executions")["executions"]
    return adw_id, execution["execution_id"]


def test_a_loop_is_shown_with_its_counts_and_its_iterations(lab, browser, looping):
    adw_id, execution = looping

    page, step = browser.see(f"/workflows/{adw_id}"), browser.see(f"/workflows/{adw_id}/executions/{execution}")

    assert "fetch build 1" in page.text
    assert "3 of 4 done" in page.text
    assert f"/workflows/{adw_id}/executions/{execution}" in page.links()
    assert "Succeeded 3" in step.text
    assert "Waiting for a retry 1" in step.text
    assert [link.rpartition("/")[2] for link in step.links() if "/iterations/" in link] == ["0", "1", "2", "3"]
    waiting = browser.see(f"/workflows/{adw_id}/executions/{execution}?state=retry_wait")
    assert [link.rpartition("/")[2] for link in waiting.links() if "/iterations/" in link] == ["1"]
    assert (
        "There are no iterations that are failed."
        in browser.see(f"/workflows/{adw_id}/executions/{execution}?state=failed").text
    )


def test_iterations_are_shown_one_page_at_a_time(lab, browser, looping, monkeypatch):
    monkeypatch.setattr("adws.web.dashboard.lists.ITERATIONS_OF_A_PAGE", 3)
    adw_id, execution = looping
    first = browser.see(f"/workflows/{adw_id}/executions/{execution}")
    (following,) = [link for link in first.links() if "after=" in link]

    rest = browser.see(following)

    assert [link.rpartition("/")[2] for link in rest.links() if "/iterations/" in link] == ["3"]
    assert not [link for link in rest.links() if "after=" in link]


def test_one_iteration_is_opened_with_its_calls(lab, browser, looping):
    adw_id, execution = looping

    page = browser.see(f"/workflows/{adw_id}/executions/{execution}/iterations/1")

    assert "sh ended with exit code 1" in page.text
    assert "action_failed" in page.text
    assert browser.ask("GET", f"/workflows/{adw_id}/executions/{execution}/iterations/9").status_code == 404
    assert browser.ask("GET", f"/workflows/{adw_id}/executions/{execution}/iterations/0/pages/7").status_code == 404


def test_the_stored_content_of_a_page_is_shown(lab, browser, looping, monkeypatch):
    adw_id, execution = looping
    row = {"execution_id": execution, "idx": 0, "page": 1, "part": '{"rows": [1, 2]}'}

    lab.app.database.transact(lambda session: session.run(KEEP_PAGE, row))

    iteration = browser.see(f"/workflows/{adw_id}/executions/{execution}/iterations/0")
    (link,) = [link for link in iteration.links() if "/pages/" in link]
    assert '"rows": [ 1, 2 ]' in browser.see(link).text
    monkeypatch.setattr("adws.web.dashboard.lists.MOST_CHARACTERS", 5)
    assert "The first 5 of 16 characters." in browser.see(link).text


def test_a_scheduled_call_is_cancelled_by_a_button(lab, browser, looping):
    adw_id, execution = looping
    page = browser.see(f"/workflows/{adw_id}/executions/{execution}")
    fields = [item["value"] for item in page.all("input", name="index")]
    assert fields == ["1"]

    told = browser.do(f"/workflows/{adw_id}/cancel", {"retry": execution, "index": "1"})

    assert "is cancelled by Ada (dashboard)" in told.text
    assert lab.get(f"/api/v1/executions/{execution}")["cancelled"] == 1
    again = browser.do(f"/workflows/{adw_id}/cancel", {"retry": execution, "index": "1"})
    assert "Not done: execution" in refused(again)


def test_a_scheduled_attempt_is_cancelled_by_a_button(lab, browser):
    adw_id = lab.start(workflow="patient")
    lab.work()

    page = browser.do(f"/workflows/{adw_id}/cancel", {"retry": adw_id})

    assert "Build is not retried; the workflow is failed." in page.text
    assert lab.state(adw_id) == "failed"
    assert ("cancel_retry", "Ada (dashboard)") in asked(lab, adw_id)


def test_an_execution_of_another_workflow_is_neither_shown_nor_cancelled(lab, browser, looping):
    _, execution = looping
    other = lab.start(2)

    assert browser.ask("GET", f"/workflows/{other}/executions/{execution}").status_code == 404
    answer = browser.send(f"/workflows/{other}/cancel", {"retry": execution})
    assert answer.status_code == 303
    assert lab.get(f"/api/v1/executions/{execution}")["state"] == "running"
