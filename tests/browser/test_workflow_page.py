"""The page of a workflow in a browser: it moves, its output comes, its buttons work, and strangers do no harm."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser_plugin import PHONE, flaws
from tests.integration.web_lab import TOKEN

NASTY = '<script>document.title = "taken"</script><img src=x onerror=alert(1)>\u202egnp'


@pytest.fixture
def person(served):
    """Opens a page of somebody who is logged in."""

    def open_page(path: str, **wishes) -> Page:
        page = served.visitor(**wishes)
        page.goto(path)  # leads to the login, and from there back
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Your name").fill("Ada")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("nav.path")).to_be_visible()
        return page

    return open_page


def test_it_is_followed_paused_resumed_and_rolled_back_without_the_command_line(served, person):
    """
    What an operator does on a bad day, all of it on one page that is never loaded again by hand.
    """
    adw_id = served.start()
    served.has_begun()
    page = person(f"/workflows/{adw_id}")
    tail, now = page.locator("#tail"), page.locator("#now")
    expect(now).to_contain_text("works on build, attempt 1/")

    with served.output() as say:
        say.write("the first line\n")
        expect(tail).to_contain_text("the first line")
        say.write("<b>the second</b> line\n")
        expect(tail).to_contain_text("<b>the second</b> line")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status").filter(has_text="the pause is kept")).to_be_visible()
    expect(now).to_contain_text("is paused in building")
    expect(page.locator(".state.current")).to_have_text("paused")

    page.get_by_text("With a hint").click()
    page.get_by_label("What to do differently").fill("be quick")
    page.get_by_role("button", name="Resume").click()
    served.has_begun()
    expect(now).to_contain_text("works on build")
    expect(page.locator("#hints")).to_contain_text("be quick")
    with served.output():
        pass
    expect(now).to_contain_text("is completed")
    expect(page.locator("#changes")).to_contain_text("built.txt")

    page.get_by_role("link", name="Roll back").click()
    expect(page.locator("#plan")).to_contain_text("delete the branch")
    assert served.state(adw_id) == "completed"
    page.get_by_role("button", name="Roll it back").click()
    expect(now).to_contain_text("is rolled back")
    expect(page.locator("#rollback")).to_contain_text("are over")
    expect(page.get_by_role("link", name="Roll back")).to_have_count(0)


def test_a_page_that_is_looked_at_moves_and_keeps_what_somebody_types(served, person):
    adw_id = served.start()
    served.has_begun()
    page = person(f"/workflows/{adw_id}")
    page.evaluate("window.stayed = true")
    page.get_by_text("Give a hint").click()
    page.get_by_label("What to do differently").fill("half a thou")

    with served.output():
        pass

    expect(page.locator("#phases")).to_contain_text("test", timeout=20_000)
    expect(page.locator(".title")).to_contain_text("completed")
    assert page.get_by_label("What to do differently").input_value() == "half a thou"
    assert page.evaluate("window.stayed"), "the page was loaded again"


def test_what_strangers_write_does_nothing(served, person):
    adw_id = served.start(title=NASTY, body=NASTY)
    served.has_begun()
    page = person(f"/workflows/{adw_id}")
    with served.output() as say:
        say.write(f"{NASTY}\n\x1b[31mred\x1b[0m\n{'x' * 300_000}\nthe end\n")
        expect(page.locator("#tail")).to_contain_text("the end")

    assert "taken" not in page.title() or page.title().startswith("#7 <script>")
    assert page.locator("#tail").locator("img, script").count() == 0
    assert page.locator("main img").count() == 0
    assert len(page.locator("#tail").inner_text()) < 100_000


def test_without_the_script_it_is_read_and_decided(served, person):
    adw_id = served.start("gated")
    served.follow(adw_id)
    page = person(f"/workflows/{adw_id}", has_script=False)

    expect(page.locator("#now")).to_contain_text("waits for a person to look at plan")
    expect(page.locator("#tail")).to_contain_text("a plan to look at")
    page.get_by_label("What you think of").fill("fine")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("Plan is decided")
    assert served.state(adw_id) == "completed"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screen_readers_find_nothing_in_their_way(served, person, scheme):
    adw_id = served.start("broken")
    served.follow(adw_id)

    for path in ("", "/log", "/events", "/attempts/build/1", "/rollback", "/abandon"):
        page = person(f"/workflows/{adw_id}{path}", scheme=scheme)
        assert flaws(page) == [], path


def test_it_fits_a_phone_and_is_used_with_the_keyboard(served, person):
    adw_id = served.start("gated", title="Look at the plan " * 8)
    served.follow(adw_id)
    page = person(f"/workflows/{adw_id}", size=PHONE)

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    page.get_by_label("What you think of").focus()
    page.keyboard.type("no")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Reject")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_have_text(re.compile("Plan is decided|Live"))
