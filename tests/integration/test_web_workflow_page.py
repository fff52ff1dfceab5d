"""The page of a workflow over a real home: what it shows in every state, and what nobody can make it do."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.attempt_files import AttemptFiles
from tests.integration import git_lab, workflow_lab
from tests.integration.page_lab import Browser
from tests.integration.test_web_steps import STEPS
from tests.integration.web_lab import TOKEN, WORKFLOWS, WebLab

#: What no page may carry, however it came in.
HARM = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a home with the workflows of the tests, on the database that is asked for."""
    monkeypatch.setattr("tests.integration.web_lab.WORKFLOWS", WORKFLOWS + STEPS)
    made: list[WebLab] = []

    def open_lab(**env: str) -> WebLab:
        made.append(WebLab(tmp_path / "home", env))
        return made[-1]

    yield open_lab
    for lab in made:
        lab.close()


@pytest.fixture
def lab(make):
    return make()


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in()


def now_of(lab):
    return lab.app.clock.now()


def ways(page) -> set[str]:
    """Return the orders that a page has a form or a button for."""
    result = [form["action"] for form in page.all("form") if form["action"] != "/logout"]
    result += [button["formaction"] for button in page.all("button") if "formaction" in button]
    result += [link for link in page.links() if link.endswith(("/abandon", "/rollback"))]
    return {one.rpartition("/")[2] for one in result}


# --- what it shows ---------------------------------------------------------------------------------------------


def test_a_workflow_with_a_past_is_shown_with_all_of_it(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)), output="collecting tests\n43 passed\n")

    page = browser.see(f"/workflows/{adw_id}")

    for words in (
        "#42 Add a discount code to the checkout page",
        "and no run waits for it",  # what adw status says
        "document was passed over",
        "Round half up.",
        "connection reset by peer",
        "claude-sonnet-4-5",
        "$4.22",
        "collecting tests 43 passed",
        "1 of 3 used",
        "worktree /srv/shop/trees/aaaa1111 on build-7",
        "Customers ask for it.",
        "workflow_created",
    ):
        assert words in page.text, words
    assert "https://github.invalid/acme/shop/issues/42" in page.links()
    assert f"/workflows/{adw_id}/attempts/build/1" in page.links()


def test_nothing_on_the_page_is_inline(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)))

    page = browser.see(f"/workflows/{adw_id}")

    assert [tag for tag, item in page.elements if "style" in item or any(name.startswith("on") for name in item)] == []
    assert all("src" in item for item in page.all("script"))
    assert page.all("style") == []


def test_a_pull_request_is_linked_beside_its_issue(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab)))

    page = browser.see(f"/workflows/{adw_id}")

    assert "https://github.invalid/acme/shop/pull/7" in page.links()
    assert "completed" in page.text


def test_the_changes_of_the_branch_are_counted(make, tmp_path):
    made = git_lab.make_lab(tmp_path)
    lab = make(ADW_HOME=str(made.main))
    document = workflow_lab.reworked(now_of(lab))
    tree = made.add("aaaa1111", branch=document.branch_name)
    (tree.path / "discount.py").write_text("one\ntwo\n")
    made.workplace.commit_all(tree.path, "feat: discount")
    adw_id = workflow_lab.put(lab.app, document)

    page = Browser(lab).log_in().see(f"/workflows/{adw_id}")

    assert "1 file, +2 \u22120" in page.text
    assert "discount.py +2 \u22120" in page.text
    made.repository.remove_worktree(tree.path, reason="adw:aaaa1111")
    made.repository.delete_branch(document.branch_name, expected=made.repository.commit_of(document.branch_name))
    lab.app.diffs._commits.cache_clear()
    page = Browser(lab).log_in().see(f"/workflows/{adw_id}")
    assert "Its commits are not in the repository of this machine." in page.text


def test_a_home_without_git_says_so_and_shows_the_rest(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)))

    page = browser.see(f"/workflows/{adw_id}")

    assert "Its commits are not in the repository of this machine." in page.text or "git failed" in page.text
    assert "Add a discount code" in page.text


def test_a_missing_workflow_is_a_page_that_says_so(browser):
    for path in ("", "/events", "/log", "/rollback", "/abandon", "/attempts/plan/1"):
        assert "ffffffff" in browser.see(f"/workflows/ffffffff{path}", status=404).text


def test_a_document_of_an_older_version_is_shown_without_missing_parts(lab, browser):
    document = workflow_lab.reworked(now_of(lab)).changed(workflow=None, phases=[], state_history=[], branch_name=None)
    adw_id = workflow_lab.put(lab.app, document.changed(current_state="paused"))

    page = browser.see(f"/workflows/{adw_id}")

    assert "has no definition" in page.text
    assert ways(page) == {"hint", "abandon", "rollback"}


def test_a_document_that_cannot_be_read_is_a_sentence(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab)))
    folder = lab.app.settings.state_dir / adw_id
    for path in folder.glob("adw_state*"):
        path.write_text("{")
    lab.app.database.transact(lambda session: session.run("DELETE FROM workflow_states"))

    answer = browser.ask("GET", f"/workflows/{adw_id}")

    assert answer.status_code in {404, 409, 503}
    assert adw_id in answer.text
    assert "Traceback" not in answer.text


# --- orders ----------------------------------------------------------------------------------------------------


def test_only_the_actions_that_the_state_allows_are_offered(lab, browser):
    pending, gated, broken, patient = (
        lab.start(n, name) for n, name in enumerate(("", "gated", "broken", "patient"), 1)
    )

    assert ways(browser.see(f"/workflows/{pending}")) == {"resume", "pause", "abandon", "rollback"}
    lab.work()
    assert ways(browser.see(f"/workflows/{pending}")) == {"rollback"}  # completed
    assert ways(browser.see(f"/workflows/{gated}")) == {"approve", "reject", "hint", "abandon", "rollback"}
    assert ways(browser.see(f"/workflows/{broken}")) == {"retry", "resume", "abandon", "rollback"}
    assert ways(browser.see(f"/workflows/{patient}")) == {"resume", "pause", "cancel", "abandon", "rollback"}


def test_a_merged_or_rolled_back_workflow_has_no_actions(lab, browser):
    merged = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab), pr_merged=True))

    assert ways(browser.see(f"/workflows/{merged}")) == set()


def test_a_read_only_dashboard_has_no_actions_and_says_so(make):
    lab = make(ADW_WEB_READ_ONLY="true")
    adw_id = lab.start(1, "gated")
    lab.work()
    browser = Browser(lab).log_in()

    assert ways(browser.see(f"/workflows/{adw_id}")) == set()
    assert "read-only" in browser.see(f"/workflows/{adw_id}").text
    for path in ("rollback", "abandon"):
        assert "read-only" in browser.see(f"/workflows/{adw_id}/{path}").text
    assert browser.send(f"/workflows/{adw_id}/approve").status_code == 403
    assert lab.state(adw_id) == "paused"


# --- attempts, output, events ----------------------------------------------------------------------------------


def test_an_attempt_is_shown_with_its_error_its_cost_and_its_output(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)), output="\x1b[1mfirst\x1b[0m line\n")

    page = browser.see(f"/workflows/{adw_id}/attempts/build/1")

    for words in ("connection reset by peer", "It is retried.", "line 7", "44,000 in, 9,900 out", "$1.10"):
        assert words in page.text, words
    assert "== build, attempt 1, stdout first line" in page.text
    assert f"/workflows/{adw_id}/file?name=phases/build/attempt-1.stdout.log" in page.links()
    assert page.all("pre", id="tail")[0].get("data-tail") is None
    running = browser.see(f"/workflows/{adw_id}/attempts/test/3")
    assert running.all("pre", id="tail")[0]["data-tail"].startswith(f"/workflows/{adw_id}/log/tail?after=test~3~")
    assert browser.ask("GET", f"/workflows/{adw_id}/attempts/build/9").status_code == 404


def test_an_attempt_has_a_deadline_until_it_ends(lab, browser):
    document = workflow_lab.reworked(now_of(lab))
    deadline = timestamps.to_text(now_of(lab) + timedelta(hours=1))
    for phase in document.phases:
        phase.attempts = [one.model_copy(update={"deadline_at": deadline}) for one in phase.attempts]
    adw_id = workflow_lab.put(lab.app, document)

    ended = browser.see(f"/workflows/{adw_id}/attempts/build/1").text
    running = browser.see(f"/workflows/{adw_id}/attempts/test/3").text

    assert "Deadline" not in ended
    assert "Deadline" in running


def test_a_tail_returns_new_output_and_ends_with_the_workflow(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)), output="one\n")
    (tail,) = browser.see(f"/workflows/{adw_id}").all("pre", id="tail")
    log = AttemptFiles(lab.app.settings.state_dir / adw_id, "test", 3).stdout

    first = browser.ask("GET", tail["data-tail"])
    with log.open("a") as file:
        file.write("\x1b[32mtwo\x1b[0m <b>\n")
    second = browser.ask("GET", first.headers["Adw-Next"])

    assert (first.text, second.text) == ("", "== test, attempt 3, stdout\ntwo <b>\n")
    assert second.headers["content-type"] == "text/plain; charset=utf-8"
    assert second.headers["cache-control"] == "no-store"
    assert browser.ask("GET", second.headers["Adw-Next"]).text == ""
    ended = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab)), output="all\n")
    whole = browser.ask("GET", f"/workflows/{ended}/log/tail")
    assert whole.text == "== ship, attempt 1, stdout\nall\n"
    assert "Adw-Next" not in browser.ask("GET", whole.headers["Adw-Next"]).headers


def test_the_log_shows_the_newest_attempt_or_the_one_that_is_asked_for(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)))

    newest, older = (
        browser.see(f"/workflows/{adw_id}/log"),
        browser.see(f"/workflows/{adw_id}/log?phase=build&attempt=1"),
    )

    assert "test, attempt 3" in newest.text
    assert "data-tail" in newest.all("pre", id="tail")[0]
    assert "== build, attempt 1, stdout" in older.text
    assert "data-tail" not in older.all("pre", id="tail")[0]
    assert "Nothing was written yet." in browser.see(f"/workflows/{lab.start()}/log").text


def test_a_file_is_shown_in_parts(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab)), output="0123456789abcdef\n" * 8000)
    name = "phases/plan/attempt-1.stdout.log"

    page = browser.see(f"/workflows/{adw_id}/file?name={name}")
    (following,) = [link for link in page.links() if "from=" in link]
    later = browser.see(following)

    assert "bytes 0 to 65,536 of 136,000" in page.text
    assert "bytes 65,536 to 131,072 of 136,000" in later.text
    assert len([link for link in later.links() if "from=" in link]) == 2


@pytest.mark.parametrize(
    "name",
    [
        "adw_state.json",
        "../adw.db",
        "phases/plan/../../adw_state.json",
        "phases/plan/attempt-9.stdout.log",
        "/etc/passwd",
        "phases/plan/attempt-1.link",
    ],
)
def test_no_other_file_can_be_opened(lab, browser, name):
    adw_id = workflow_lab.put(lab.app, workflow_lab.finished(now_of(lab)))
    folder = lab.app.settings.state_dir / adw_id
    (folder / "phases" / "plan" / "attempt-1.link").symlink_to(folder / "adw_state.json")

    answer = browser.ask("GET", f"/workflows/{adw_id}/file", params={"name": name})

    assert answer.status_code in {404, 409}
    assert "state_version" not in answer.text


def test_events_are_shown_one_page_at_a_time(lab, browser, monkeypatch):
    monkeypatch.setattr("adws.web.dashboard.workflow.EVENTS_OF_A_PAGE", 3)
    adw_id = lab.start()
    lab.work()
    seen, path = [], f"/workflows/{adw_id}/events"
    while path:
        page = browser.see(path)
        seen += [item["id"].removeprefix("event-") for item in page.all("tr") if "id" in item]
        path = next((link for link in page.links() if "before=" in link), "")

    stored = lab.get("/api/v1/events", adw_id=adw_id, limit=1000)["events"]
    assert seen == [event["event_id"] for event in reversed(stored)]
    assert browser.ask("GET", f"/workflows/{adw_id}/events?before=nonsense").status_code == 422


# --- harm ------------------------------------------------------------------------------------------------------


def test_hostile_texts_are_harmless_on_every_page(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.hostile(now_of(lab)), output=f"{workflow_lab.NASTY}\n" * 3)

    for path in (
        "",
        "/events",
        "/log",
        "/attempts/plan/1",
        "/file?name=phases/plan/attempt-1.stdout.log",
        "/rollback",
        "/abandon",
    ):
        page = browser.see(f"/workflows/{adw_id}{path}")
        assert HARM.search(page.html) is None, (path, HARM.search(page.html))
        assert all("src" in item for item in page.all("script")), path
        assert page.all("b") == [], path
        assert not any(link.startswith("javascript") for link in page.links())
    tail = browser.ask("GET", f"/workflows/{adw_id}/log/tail").text
    assert HARM.search(tail) is None


def test_a_secret_in_the_output_is_on_no_page(lab, browser):
    adw_id = workflow_lab.put(lab.app, workflow_lab.reworked(now_of(lab)), output=f"the token is {TOKEN}\n")

    for path in ("", "/log", "/attempts/test/3", "/file?name=phases/test/attempt-3.stdout.log"):
        html = browser.see(f"/workflows/{adw_id}{path}").html
        assert "the token is" in html, path
        assert TOKEN not in html, path
    tail = browser.ask("GET", f"/workflows/{adw_id}/log/tail").text
    assert "the token is" in tail
    assert TOKEN not in tail


@pytest.mark.postgres
def test_the_page_is_the_same_on_postgresql(make, pg_url):
    lab = make(ADW_DATABASE_URL=pg_url, ADW_STATE_STORE="database")
    browser = Browser(lab).log_in()
    looping, gated = lab.start(1, "looping"), lab.start(2, "gated")
    lab.work()

    assert "3 of 4 done" in browser.see(f"/workflows/{looping}").text
    assert "waits for a person to approve plan" in browser.see(f"/workflows/{gated}").text
    assert browser.see(f"/workflows/{gated}/events").all("tr")[1]["id"].startswith(f"event-{gated}.")
    browser.do(f"/workflows/{gated}/approve", {"text": "fine"})
    lab.work()
    assert lab.state(gated) == "completed"
