"""Every page, with something on it: nothing serious for axe, nothing too wide, no complaint, in each way to look."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests import browser_plugin, sampling
from tests.browser import ground


def pages_of(served, ids) -> list[str]:
    """Return every page there is to look at."""
    [execution] = served.client.get(f"/api/v1/workflows/{ids['looped']}/executions").json()["executions"]
    loop = f"/workflows/{ids['looped']}/executions/{execution['execution_id']}"
    return [
        "/",
        "/workflows",
        "/workflows?state=failed",
        "/workflows?search=nothing-has-this-name",
        "/runs",
        "/runners",
        "/locks",
        "/deliveries",
        "/start",
        f"/workflows/{ids['gated']}/diff",
        f"/workflows/{ids['reviewed']}/diff",
        f"/workflows/{ids['reviewed']}/attempts/plan/1",
        *(f"/workflows/{adw_id}" for adw_id in ids.values()),
        f"/workflows/{ids['broken']}/log",
        f"/workflows/{ids['broken']}/events",
        f"/workflows/{ids['broken']}/attempts/build/1",
        f"/workflows/{ids['gated']}/rollback",
        f"/workflows/{ids['gated']}/abandon",
        loop,
        f"{loop}/iterations/1",
        f"{loop}/iterations/2",
    ]


def test_every_page_is_accessible_in_every_look(situations):
    served, ids = situations
    page = served.visitor()
    page.goto("/login")
    result = [f"/login: {flaw}" for flaw in browser_plugin.flaws_in_every_look(page)]
    ground.log_in(page, served.address)
    for path in pages_of(served, ids):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        result += [f"{path}: {flaw}" for flaw in browser_plugin.flaws_in_every_look(page)]
    for name in ("Retry selected", "Roll back selected"):
        page.goto("/workflows")
        for box in page.get_by_role("checkbox").all():
            box.check()
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name=re.compile(r"(Retry|Roll back) \d workflows"))).to_be_visible()
        result += [f"{name}: {flaw}" for flaw in browser_plugin.flaws_in_every_look(page)]

    assert not result, "\n".join(result)


def test_a_missing_page_says_so_and_is_accessible(situations):
    served, _ = situations
    served.browsing.forgive("status of 404")
    page = served.person("/workflows/00000000")

    expect(page.get_by_role("main")).to_contain_text("00000000")
    assert browser_plugin.flaws(page) == []
    page.goto("/nowhere")
    assert browser_plugin.flaws(page) == []


def test_a_table_that_is_wider_than_a_phone_scrolls_in_its_box_and_shows_that(situations):
    served, _ = situations
    page = served.person("/workflows", size=browser_plugin.PHONE)
    box = page.get_by_role("region", name="Workflows, newest first")

    # Asked of the page in one go: a live update may replace the box between finding and measuring it.
    wide, shown, image = page.evaluate("""() => {
        const one = document.querySelector("[role=region][aria-label='Workflows, newest first']")
        return [one.scrollWidth, one.clientWidth, getComputedStyle(one).backgroundImage]
    }""")
    assert wide > shown
    assert "gradient" in image
    expect(page.get_by_role("columnheader", name="Changed")).not_to_be_in_viewport()
    box.focus()
    page.keyboard.press("End")
    box.evaluate("one => { one.scrollLeft = one.scrollWidth }")
    expect(page.get_by_role("columnheader", name="Changed")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= browser_plugin.PHONE[0]


@pytest.mark.parametrize(
    "path", sampling.some(["/", "/start", "/workflows", "/runs", "/runners", "/locks", "/deliveries"], 3)
)
def test_every_list_can_be_read_without_the_script(situations, path):
    served, _ = situations
    page = served.person(path, has_script=False)

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("main")).not_to_be_empty()
    for heading in page.get_by_role("heading").all():
        assert heading.inner_text().strip()
