"""The lists of the dashboard over a real home: what they show, how they are searched, filtered and paged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from adws.adw_modules.workflow.requirements import Capabilities
from tests.integration import workflow_lab
from tests.integration.page_lab import Browser
from tests.integration.web_lab import WebLab, labelled

HOSTILE = "<img src=x onerror=alert(1)> & \u202eevil"


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in()


def start(lab, issue: int, title: str, workflow: str = "short") -> str:
    order = {"issue_number": issue, "title": title, "workflow": workflow}
    answer = lab.post("/api/v1/workflows", order)
    assert answer.status_code == 201, answer.text
    return answer.json()["adw_id"]


def listed(page) -> list[str]:
    """Return the workflows that a page leads to, in their order."""
    result = [link.removeprefix("/workflows/") for link in page.links() if link.startswith("/workflows/")]
    return list(dict.fromkeys(result))


# --- workflows ---------------------------------------------------------------------------------------------------


def test_an_empty_home_shows_how_to_begin(browser):
    for path, words in (
        ("/workflows", "There are no workflows yet"),
        ("/runs", "No run has been queued yet"),
        ("/runners", "No worker is running"),
        ("/locks", "No issue is locked"),
        ("/deliveries", "No webhook has been received"),
    ):
        assert words in browser.see(path).text


def test_workflows_are_listed_newest_first_and_hostile_titles_are_harmless(lab, browser):
    first, second = start(lab, 1, "Crash at login"), start(lab, 2, HOSTILE)
    lab.work()

    page = browser.see("/workflows")

    assert listed(page) == [second, first]
    assert page.all("img", src="x") == []
    assert "<img src=x onerror=alert(1)> & �evil" in page.text
    assert "✓ completed" in page.text
    assert page.all("body")[0]["data-topic"] == "home"


def test_each_workflow_is_listed_with_its_pull_request_phase_cost_and_duration(lab, browser):
    now = lab.app.clock.now()
    at_work, done = (workflow_lab.put(lab.app, make(now)) for make in (workflow_lab.reworked, workflow_lab.finished))

    page = browser.see("/workflows")
    rows = {row["adw_id"]: row for row in lab.get("/api/v1/workflows", with_results="true")["workflows"]}

    assert "https://github.invalid/acme/shop/pull/7" in page.links()
    for words in ("test $4.22 50 min", "#7 — $0.60 54 min"):
        assert words in page.text
    assert rows[done]["result"]["pull_request_url"] == "https://github.invalid/acme/shop/pull/7"
    assert (rows[at_work]["result"]["phase"], rows[at_work]["result"]["cost_usd"]) == ("test", 4.22)
    assert {row["result"] for row in lab.get("/api/v1/workflows")["workflows"]} == {None}


def test_states_are_links_that_keep_the_other_filters(lab, browser):
    start(lab, 1, "Crash at login")
    lab.work()

    page = browser.see("/workflows?search=crash&state=completed&limit=10")

    assert "/workflows?search=crash&limit=10" in page.links()
    assert "/workflows?search=crash&limit=10&state=completed" in page.links()
    assert [option["value"] for option in page.all("option") if "selected" in option] == ["completed"]


#: What is asked for -> the places of the workflows that are found.
QUERIES = [
    ("search=login", [0]),
    ("search=CRASH+1", [0]),
    ("search=%232", [1]),
    ("search=nothing", []),
    ("state=completed", [1, 0]),
    ("state=failed", [2]),
    ("issue_number=%231", [0]),
    ("issue_number=2", [1]),
    ("workflow=broken", [2]),
    ("repository=acme/shop", [2, 1, 0]),
    ("repository=acme/other", []),
    ("search=a&state=completed&issue_number=&workflow=&repository=", [1, 0]),
]


def test_workflows_are_searched_and_filtered_by_the_address(lab, browser):
    made = [start(lab, 1, "Crash at login"), start(lab, 2, "Write a log"), start(lab, 3, "Parser", "broken")]
    lab.work()

    for query, found in QUERIES:
        page = browser.see(f"/workflows?{query}")

        assert listed(page) == [made[place] for place in found], query
        assert "/workflows" in page.links()


def test_a_long_list_is_paged_and_keeps_its_filter(lab, browser):
    made = [start(lab, issue, "A thing") for issue in range(1, 6)]
    seen, path = [], "/workflows?search=thing&limit=2"
    while path:
        page = browser.see(path)
        seen += listed(page)
        [path] = [link["href"] for link in page.all("a", rel="next")] or [""]
        assert not path or "search=thing" in path

    assert seen == made[::-1]
    assert "/workflows?search=thing&limit=2" in page.links(), "and back to its start"


@pytest.mark.parametrize(
    "query",
    [
        "state=nothing",
        "issue_number=x",
        "issue_number=0",
        "limit=0",
        "limit=100000",
        "colour=red",
        "cursor=nonsense",
        f"search={'x' * 201}",
    ],
)
def test_an_invalid_filter_is_an_error_page(browser, query):
    page = browser.see(f"/workflows?{query}", status=422)

    assert "Invalid request" in page.text


# --- the others --------------------------------------------------------------------------------------------------


def test_the_queue_shows_runs_by_state(lab, browser):
    adw_id = start(lab, 1, "A thing")
    lab.work()
    waiting = start(lab, 2, "Another")

    assert listed(browser.see("/runs")) == [waiting, adw_id]
    assert listed(browser.see("/runs?state=completed&state=failed")) == [adw_id]
    chosen = browser.see("/runs?state=pending")
    assert [item["value"] for item in chosen.all("input", checked="")] == ["pending"]
    assert "No run is in these states" in browser.see("/runs?state=dead").text
    assert browser.see("/runs?cursor=x", status=422)
    [older] = browser.see("/runs?limit=1").all("a", rel="next")
    assert listed(browser.see(older["href"])) == [adw_id]


def test_workers_and_locks_are_shown(lab, browser):
    adw_id = start(lab, 7, "A thing")
    with lab.open("worker") as app:
        me = app.processes.me("worker")
        app.workers.register(me, Capabilities(host=me.host, tags=frozenset({"gpu"})), concurrency=3, version="1.2.3")
        workers = browser.see("/runners")

    locks = browser.see("/locks")
    assert "0 of 3 gpu" in workers.text
    assert "1.2.3" in workers.text
    assert "acme/shop #7" in locks.text
    assert "none" in locks.text
    assert listed(locks) == [adw_id]


def test_workers_that_are_there_come_before_those_that_are_gone(lab, browser):
    with lab.open("worker") as app:
        for name, has_left in (("first", False), ("second", True), ("third", False)):
            me = replace(app.processes.me("worker"), token=name)
            app.workers.register(me, Capabilities(host=me.host), concurrency=1, version="1")
            if has_left:
                app.workers.leave(me)

        workers = browser.see("/runners").text

    matches = re.findall(r"(online|gone) \S+, process \d+ (\w+)", workers)
    assert matches == [("online", "third"), ("online", "first"), ("gone", "second")]


def test_deliveries_are_shown_by_verdict(lab, browser):
    lab.deliver(labelled(7, guid="one", sender="ada"))
    lab.deliver(labelled(8, guid="two", sender="ada", label={"name": "other"}))

    page = browser.see("/deliveries")
    assert "acme/shop" in page.text
    assert page.text.count("issues labeled") == 2
    assert browser.see("/deliveries?verdict=ignored").text.count("issues labeled") == 1
    assert browser.see("/deliveries?verdict=nothing", status=422)
    [older] = browser.see("/deliveries?limit=1").all("a", rel="next")
    assert browser.see(older["href"]).text.count("issues labeled") == 1


def test_a_database_that_does_not_answer_is_an_error_page(lab, browser, tmp_path):
    browser.see("/workflows")
    (tmp_path / "home" / "state" / "adw.db").rename(tmp_path / "away")

    page = browser.see("/workflows", status=503)

    assert "Not available" in page.text


def test_the_overview_shows_the_first_lines_and_leads_to_the_rest(lab, browser):
    ids = [start(lab, number, f"Thing {number}") for number in range(1, 12)]
    for adw_id in ids[:10]:
        assert lab.post(f"/api/v1/workflows/{adw_id}/pause", {}).status_code in {200, 202}
    assert "show all" not in browser.see("/").text

    assert lab.post(f"/api/v1/workflows/{ids[10]}/pause", {}).status_code in {200, 202}

    page = browser.see("/")
    assert "The first 10; show all" in page.text
    assert len(set(re.findall(r"Thing \d+", page.text))) == 10
    assert "/workflows?state=paused" in page.links()
