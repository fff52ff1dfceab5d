"""The overview in a browser: it updates itself, shows why workflows wait, and helps new users."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def test_a_new_home_shows_the_first_steps_until_a_workflow_is_started(new):
    page = new.person("/")

    expect(page.get_by_role("heading", name="Start your first workflow")).to_be_visible()
    expect(page.get_by_text("adw run 7 --detach")).to_be_visible()
    expect(page.get_by_text("1 worker runs beside this server")).to_be_visible()

    new.start("gated")
    expect(page.get_by_role("heading", name="Waiting for a person")).to_be_visible()


def test_a_workflow_is_seen_to_move_without_loading_the_page_again(served):
    served.follow(served.start("gated"))  # a home in which nothing was started has another page
    page = served.person("/")
    page.evaluate("window.stayed = true")
    running, tiles = page.locator("#running"), page.locator("#tiles")
    expect(page.get_by_role("status")).to_have_text("Live")
    before = int((re.findall(r"(\d+) of \d+ completed", tiles.inner_text()) or ["0"])[0])

    adw_id = served.start(title="A thing that moves")
    served.has_begun()
    expect(running.get_by_role("link", name="A thing that moves")).to_have_attribute("href", f"/workflows/{adw_id}")
    expect(running).to_contain_text("build, attempt 1")
    expect(running).to_contain_text("building")
    with served.output():
        pass

    expect(running).to_contain_text("No workflow is running")
    expect(tiles).to_contain_text(re.compile(rf"\b{before + 1} of \d+ completed"))
    assert page.evaluate("window.stayed"), "the page was loaded again"


def test_the_time_that_something_takes_counts_on(situations):
    served, _ = situations
    page = served.person("/")
    counted = page.locator("#running time").first
    before = counted.inner_text()

    expect(counted).not_to_have_text(before)
    assert re.fullmatch(r"\d+ s|\d+ min \d+ s", counted.inner_text())


def test_a_waiting_workflow_is_shown_with_its_reason_and_time(situations):
    served, _ = situations
    page = served.person("/")

    people, others = (
        page.get_by_role("region", name="Waiting for a person"),
        page.get_by_role("region", name="Waiting", exact=True),
    )
    expect(people).to_contain_text("gated: an issue")
    expect(people).to_contain_text("for approval")
    expect(others).to_contain_text("patient: an issue")
    expect(others).to_contain_text("for its next attempt")
    expect(others).to_contain_text(re.compile(r"due in \d+ min"))
    expect(page.locator("#failures")).to_contain_text("nothing works")
    expect(page.locator("#tiles")).to_contain_text("0 of 1 completed")


def test_without_the_script_everything_can_be_read(situations):
    served, _ = situations
    page = served.person("/", has_script=False)

    for name in ("gated", "patient", "looped", "scripted"):
        expect(page.get_by_role("main")).to_contain_text(f"{name}: ")
    for name in ("Running", "Waiting for a person", "Failures", "Queue", "Workers", "Limits"):
        expect(page.get_by_role("heading", level=2, name=name)).to_be_visible()


def test_work_without_a_worker_needs_attention(still):
    still.start()
    page = still.person("/")

    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("No worker is running")
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("adw worker")


def test_it_can_be_used_by_keyboard_alone(situations):
    served, _ = situations
    page = served.person("/")
    expect(page.get_by_role("link", name="gated: an issue")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim()"))

    assert "gated: an issue" in seen
