"""Starting a workflow from the page, and one order about several workflows at once."""

from __future__ import annotations

import pytest

from tests.integration.page_lab import Browser, Page
from tests.integration.web_lab import REPOSITORY, WebLab


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in()


def workflows(lab) -> list[dict]:
    return lab.get("/api/v1/workflows")["workflows"]


# --- a new workflow --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("issue", "repository"),
    [("42", REPOSITORY), ("#42", REPOSITORY), ("acme/shop#42", REPOSITORY), ("https://x.invalid/a/b/issues/42", "a/b")],
)
def test_a_workflow_is_started_for_an_issue_as_people_write_it(lab, browser, issue, repository):
    page = browser.do("/start", {"issue": issue, "workflow": "gated"})

    [row] = workflows(lab)
    assert f"Workflow {row['adw_id']} is started" in page.text
    assert (row["issue_number"], row["repository"], row["workflow"]) == (42, repository, "gated")
    assert "Ada" in lab.get("/api/v1/runs")["runs"][0]["asked_by"]


def test_a_workflow_is_started_for_a_task_whose_first_line_is_its_title(lab, browser):
    browser.do("/start", {"task": "Add a --version option\n\nPrint the version and exit.", "workflow": "short"})
    answer = lab.post("/api/v1/workflows", {"task": "One line"})

    assert answer.status_code == 201
    assert [(row["issue_number"], row["title"]) for row in workflows(lab)] == [
        (None, "One line"),
        (None, "Add a --version option"),
    ]
    issue = lab.app.store.load(workflows(lab)[1]["adw_id"]).document.issue
    assert issue.body == "Add a --version option\n\nPrint the version and exit."
    lab.work()
    assert {row["state"] for row in workflows(lab)} == {"completed"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Give either an issue or a task"),
        ({"issue": "42", "task": "both"}, "Give either an issue or a task"),
        ({"issue": "forty"}, "'forty' is no issue: give 42"),
        ({"issue": "9" * 18 + "9"}, "is no issue"),
        ({"issue": "0"}, "'0' is no issue"),
        ({"issue": "42", "workflow": "nothing"}, "nothing"),
        ({"task": "a task", "workflow": "build"}, "continues an earlier workflow of an issue"),
    ],
)
def test_a_refused_start_shows_the_reason_and_keeps_the_input(lab, browser, fields, words):
    answer = browser.send("/start", fields)

    page = Page(answer.text)
    assert answer.status_code == 422
    assert words in page.text
    assert [one["value"] for one in page.all("input", name="issue")] == [fields.get("issue", "")]
    assert fields.get("task", "") in page.text
    assert workflows(lab) == []


@pytest.mark.parametrize("body", [{}, {"issue_number": 1, "task": "both"}])
def test_the_api_wants_either_an_issue_or_a_task(lab, body):
    answer = lab.post("/api/v1/workflows", body)

    assert answer.status_code == 422
    assert "either the issue_number of an issue or a task" in answer.json()["error"]["message"]


def test_a_new_home_shows_one_panel_with_the_commands_and_the_form_and_nothing_empty(lab, browser):
    page = browser.see("/")

    assert [one.get("aria-label") for one in page.all("section")] == ["Start your first workflow"]
    assert page.all("form", action="/start")
    for words in ("adw doctor", "adw run 7 --detach", "/webhooks/github"):
        assert words in page.text
    lab.start(1)
    after = browser.see("/")
    assert not after.all("form", action="/start")
    assert "/start" in after.links()


# --- several at once -------------------------------------------------------------------------------------------


@pytest.fixture
def rows(lab):
    """Return a workflow that failed, one that waits for approval, and one that is completed."""
    ids = {name: lab.start(number, name) for number, name in enumerate(("broken", "gated", "short"), 1)}
    lab.work()
    return ids


def picked(*adw_ids: str, **fields: str) -> dict[str, str]:
    return {**{f"pick-{adw_id}": "yes" for adw_id in adw_ids}, **fields}


def test_several_are_retried_after_a_page_that_names_each_with_a_result_for_each(lab, browser, rows):
    listed = browser.see("/workflows")
    assert {one["name"] for one in listed.all("input", type="checkbox")} == {f"pick-{one}" for one in rows.values()}

    asked = Page(browser.send("/workflows/selected", picked(*rows.values(), action="retry")).text)
    for words in (
        *rows.values(),
        "Its attempts are used up",
        "It is paused, not failed",
        "It is completed, not failed",
    ):
        assert words in asked.text
    assert lab.state(rows["broken"]) == "failed", "nothing is done before it is confirmed"
    assert {one["name"] for one in asked.all("input", type="hidden") if "pick-" in one["name"]} == {
        f"pick-{one}" for one in rows.values()
    }

    answer = browser.send("/workflows/selected", picked(*rows.values(), action="retry", confirmed="yes", grant="1"))

    done = Page(answer.text)
    assert answer.status_code == 200
    assert done.text.count("Not done:") == 2
    assert "with 1 more attempt" in done.text
    assert lab.state(rows["broken"]) == "building"
    asked_of = lab.get("/api/v1/events", adw_id=rows["broken"])["events"]
    assert [one["data"]["by"] for one in asked_of if one["event_type"] == "action_asked"] == ["Ada (dashboard)"]


def test_several_are_rolled_back_by_a_worker(lab, browser, rows):
    chosen = (rows["broken"], rows["gated"])
    asked = Page(browser.send("/workflows/selected", picked(*chosen, action="rollback")).text)
    assert f"/workflows/{chosen[0]}/rollback" in asked.links()

    form = picked(*chosen, "ffffffff", action="rollback", confirmed="yes", reason="not wanted")
    done = Page(browser.send("/workflows/selected", form).text)

    assert "ffffffff" in done.text
    assert done.text.count("Not done:") == 1
    lab.work()
    assert [lab.state(one) for one in rows.values()] == ["rolled_back", "rolled_back", "completed"]
    assert "not wanted" in browser.see(f"/workflows/{chosen[0]}").text


def test_a_whole_page_of_workflows_can_be_selected(lab, browser):
    form = picked(*(f"{number:08x}" for number in range(50)), action="retry", confirmed="yes", grant="1", reason="x")

    assert Page(browser.send("/workflows/selected", form).text).text.count("Not done:") == 50


@pytest.mark.parametrize("fields", [{}, {"action": "retry"}, {"action": "delete", "pick-ffffffff": "yes"}])
def test_an_action_on_nothing_is_refused(browser, fields):
    assert "Not done: select workflows first." in browser.do("/workflows/selected", fields).text


@pytest.mark.parametrize("path", ["/start", "/workflows/selected"])
def test_actions_need_a_login_the_token_of_the_form_and_a_writable_dashboard(lab, browser, rows, path, tmp_path):
    form = picked(*rows.values(), action="retry", confirmed="yes", grant="1", issue="9")

    assert Browser(lab).send(path, form, csrf=None).status_code == 401
    assert browser.send(path, form, csrf=None).status_code == 403
    assert browser.send(path, form, csrf="0" * 64).status_code == 403
    assert browser.send(path, form, headers={"Origin": "http://evil.invalid"}).status_code == 403
    lab.close()
    lab.env["ADW_WEB_READ_ONLY"] = "true"
    lab.__post_init__()
    reader = Browser(lab).log_in()
    assert reader.send(path, form).status_code == 403
    listed = reader.see("/workflows")
    assert not listed.all("input", type="checkbox")
    assert "/start" not in listed.links()
    assert lab.state(rows["broken"]) == "failed"
    assert len(workflows(lab)) == 3
