"""The overview in a browser: it moves by itself, says what waits for what, and helps who is new."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser import ground


def test_a_workflow_is_seen_to_move_without_loading_the_page_again(served):
    page = served.person("/")
    page.evaluate("window.stayed = true")
    running = page.locator("#running")
    expect(page.get_by_role("status")).to_have_text("Live")

    adw_id = served.start(title="Pay by invoice")
    served.has_begun()
    expect(running.get_by_role("link", name="Pay by invoice")).to_have_attribute("href", f"/workflows/{adw_id}")
    expect(running).to_contain_text("build, attempt 1")
    expect(running).to_contain_text("building")
    with served.output():
        pass

    expect(running).to_contain_text("Nothing is at work")
    expect(page.locator("#tiles")).to_contain_text("1 of 1 completed")
    assert page.evaluate("window.stayed"), "the page was loaded again"


def test_the_time_that_something_takes_counts_on(served):
    served.start()
    served.has_begun()
    page = served.person("/")
    counted = page.locator("#running time").first
    before = counted.inner_text()

    expect(counted).not_to_have_text(before)
    assert re.fullmatch(r"\d+ s|\d+ min \d+ s", counted.inner_text())
    with served.output():
        pass


def test_what_waits_says_for_what_and_until_when(served):
    for number, (workflow, title) in enumerate(
        (("gated", "Look at the plan"), ("patient", "Try later"), ("broken", "Never works")), start=1
    ):
        served.follow_until_it_rests(served.start(workflow, issue=number, title=title))
    page = served.person("/")

    people, others = (
        page.get_by_role("region", name="Waits for a person"),
        page.get_by_role("region", name="Waits", exact=True),
    )
    expect(people).to_contain_text("Look at the plan")
    expect(people).to_contain_text("for approval")
    expect(others).to_contain_text("Try later")
    expect(others).to_contain_text("for its next attempt")
    expect(others).to_contain_text(re.compile(r"due in \d+ min"))
    expect(page.locator("#failures")).to_contain_text("nothing works")
    expect(page.locator("#tiles")).to_contain_text("0 of 1 completed")


def test_who_is_new_is_told_what_to_type(served):
    page = served.person("/")

    expect(page.get_by_role("heading", name="Nothing was started here yet")).to_be_visible()
    expect(page.get_by_text("adw run 7 --detach")).to_be_visible()
    expect(page.get_by_text("1 worker waits for work")).to_be_visible()

    served.start("gated")
    expect(page.get_by_role("heading", name="Waits for a person")).to_be_visible()


def test_without_the_script_everything_can_be_read(served):
    served.start("gated", title="Look at the plan")
    page = served.person("/", has_script=False)
    for _ in range(100):
        if "Look at the plan" in page.locator("main").inner_text():
            break
        page.reload()

    headings = page.get_by_role("heading", level=2).all_inner_texts()
    assert [heading.splitlines()[0] for heading in headings]


def test_work_without_a_worker_is_a_concern(home, browsing):
    with ground.serve(home, browsing, workers=0) as served:
        served.start()
        page = served.person("/")

        expect(page.get_by_role("region", name="Needs somebody")).to_contain_text("No worker is there")
        expect(page.get_by_role("region", name="Needs somebody")).to_contain_text("adw worker")


def test_it_can_be_used_by_keyboard_alone(served):
    served.start("gated", title="Look at the plan")
    page = served.person("/")
    expect(page.get_by_role("link", name="Look at the plan")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim()"))

    assert "Look at the plan" in seen
