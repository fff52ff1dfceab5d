"""Who comes to the dashboard logs in first, and is out again after the log-out."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests import warm
from tests.browser import ground
from tests.integration.web_lab import TOKEN

LOGIN, OVERVIEW = re.compile("^Log in"), re.compile("^Overview")


def test_a_visitor_is_asked_to_log_in_and_then_gets_the_requested_page(served):
    page = served.visitor()
    page.goto("/?from=mail")
    expect(page).to_have_title(LOGIN)
    assert page.get_by_label("Token").evaluate("one => one === document.activeElement"), "one can type at once"

    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(r"/\?from=mail$"))
    expect(page.get_by_role("link", name="Overview", exact=True)).to_be_visible()


def test_a_wrong_token_is_refused_in_a_sentence(served):
    page = served.visitor()
    served.browsing.forgive("status of 403")
    page.goto("/login")
    page.get_by_label("Token").fill("guessed-guessed-guessed")
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("alert")).to_have_text("That is no token of this server.")
    page.goto("/")
    expect(page).to_have_title(LOGIN)


@pytest.mark.parametrize("has_script", [True, False], ids=["with the script", "without it"])
def test_after_the_log_out_nothing_is_shown_any_more(served, has_script):
    page = served.person("/", has_script=has_script)
    kept = page.context.cookies()

    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title(LOGIN)
    page.context.add_cookies(kept)
    page.goto("/")

    expect(page).to_have_title(LOGIN)


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_pages(served):
    page = served.person("/")

    [cookie] = page.context.cookies()

    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""


def test_the_link_that_adw_dashboard_prints_lets_in_once(served):
    printed = warm.run(
        [warm.ADW, "--home", str(served.home), "dashboard", "--address", served.address],
        capture_output=True,
        text=True,
        check=True,
    )
    link = re.search(r"http://[^\s\"]+", printed.stdout)[0]
    page = served.visitor()
    page.goto(link)
    expect(page).to_have_title(OVERVIEW)

    served.browsing.forgive("status of 403")
    other = served.visitor()
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("was used already")


def test_read_only_there_is_nothing_to_press(home, browsing, monkeypatch):
    monkeypatch.setenv("ADW_WEB_READ_ONLY", "true")
    with ground.serve(home, workers=1) as server:
        served = server.seen_by(browsing)
        adw_id = served.start("gated")
        served.follow(adw_id)
        page = served.person("/")

        for path in ("/", f"/workflows/{adw_id}", f"/workflows/{adw_id}/rollback", f"/workflows/{adw_id}/abandon"):
            page.goto(path)
            expect(page.get_by_text("read-only").first).to_be_visible()
            assert page.get_by_role("button").all_inner_texts() == ["Log out"], path
        browsing.close()
