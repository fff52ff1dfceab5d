"""Lists that stay open: new lines come by themselves, focus stays, a connection or a login that is lost is shown."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.integration.web_lab import labelled

LOGIN = re.compile("^Log in")


def test_a_new_workflow_appears_without_a_reload_and_input_and_focus_stay(still):
    first = still.start(title="The first thing")
    page = still.person("/workflows")
    page.evaluate("window.sameDocument = true")
    page.get_by_label("Search").fill("half a wo")
    page.get_by_role("link", name="The first thing").focus()

    still.start(title="The second thing")

    expect(page.get_by_role("link", name="The second thing")).to_be_visible()
    assert page.evaluate("window.sameDocument"), "the page was not loaded again"
    assert page.get_by_label("Search").input_value() == "half a wo"
    expect(page.get_by_role("status")).to_have_text("Live")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/workflows/{first}"


def test_a_search_is_typed_found_and_left_by_its_form(still):
    still.start(issue=4001, title="Crash at login")
    still.start(issue=4002, title="Write a log")
    page = still.person("/workflows")

    page.get_by_label("Search").fill("crash 4001")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(r"search=crash\+4001"))
    expect(page.get_by_role("link", name="Crash at login")).to_be_visible()
    expect(page.get_by_role("link", name="Write a log")).to_have_count(0)
    page.get_by_role("link", name="Show all").click()
    expect(page.get_by_role("link", name="Write a log")).to_be_visible()


def test_a_connection_that_is_lost_is_said_and_comes_back(still):
    still.browsing.forgive("net::ERR_FAILED")
    page = still.person("/locks")
    page.route("**/live?*", lambda route: route.abort())
    page.goto("/workflows")
    expect(page.get_by_role("status")).to_have_text("Connection lost, retrying")
    still.start(title="Meanwhile")

    page.unroute("**/live?*")

    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.get_by_role("link", name="Meanwhile")).to_be_visible()


def test_a_logout_in_another_window_ends_this_one_too(still):
    still.browsing.forgive("status of 401")
    page = still.person("/workflows")
    expect(page.get_by_role("status")).to_have_text("Live")
    other = page.context.new_page()
    other.goto("/locks")
    other.get_by_role("button", name="Log out").click()
    expect(other).to_have_title(LOGIN)

    still.start(title="A secret thing")

    expect(page).to_have_title(LOGIN)
    expect(page.get_by_text("A secret thing")).to_have_count(0)


def test_the_boxes_of_the_queue_choose_without_the_script(still):
    adw_id = still.start(title="A thing")
    page = still.person("/runs", has_script=False)

    page.get_by_label("completed").check()
    page.get_by_role("button", name="Show").click()

    expect(page.get_by_text("No run is in these states.")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.get_by_role("link", name=adw_id)).to_be_visible()


def test_the_name_of_a_sender_stays_on_one_line_beside_a_long_result(still):
    body, headers = labelled(
        4003, guid="long-names", sender="octo-organization-release-manager", label={"name": "another-label " * 12}
    )
    assert still.client.post("/webhooks/github", content=body, headers=headers).status_code in {200, 202}
    page = still.person("/deliveries")

    name = page.get_by_text("octo-organization-release-manager").first

    # A text that is broken has one box for each of its lines.
    for width in (1280, 900, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert name.evaluate("node => node.getClientRects().length") == 1, width


def test_a_selection_stays_when_the_list_moves(still):
    still.start(title="The first thing")
    page = still.person("/workflows")
    box = page.get_by_role("checkbox").first
    box.check()

    still.start(title="The second thing")
    still.start(title="The third thing")

    page.get_by_role("button", name="Roll back selected").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Roll back 1 workflow?")
    expect(page.get_by_role("main")).to_contain_text("The first thing")


def test_without_the_script_a_workflow_is_started_and_several_are_rolled_back(still):
    page = still.person("/start", has_script=False)
    page.get_by_label("Issue", exact=True).fill("not an issue")
    still.browsing.forgive("status of 422")
    page.get_by_role("button", name="Start workflow").click()
    expect(page.get_by_role("alert")).to_contain_text("is no issue")
    page.get_by_label("Issue", exact=True).fill("")
    page.get_by_label("Or a task").fill("Add a thing\nwith a test")
    page.get_by_label("Workflow", exact=True).select_option("gated")
    page.get_by_role("button", name="Start workflow").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Add a thing")

    still.start(title="Another thing")
    page.goto("/workflows")
    for name in ("Add a thing", "Another thing"):
        page.get_by_role("row", name=name).get_by_role("checkbox").check()
    page.get_by_role("button", name="Roll back selected").click()
    page.get_by_label("Reason").fill("not wanted")
    page.get_by_role("button", name="Roll back 2 workflows").click()

    expect(page.get_by_role("cell", name="waits for a worker that rolls it back")).to_have_count(2)
