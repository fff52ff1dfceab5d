"""A workflow in a browser: it moves, its output comes, its buttons work, and what strangers write does nothing."""

from __future__ import annotations

import re
import subprocess

from playwright.sync_api import Page, expect

from tests.browser_plugin import PHONE

#: Draws nothing, turns the direction of what follows around, and must not do so outside of its own text.
BIDI = "\u202egnp.exe\u202c"
HOSTILE = '<script>window.harmed = true</script><img src=x onerror="window.harmed=true">'


def head(page: Page):
    return page.locator("#head")


def press(page: Page, name: str) -> None:
    page.locator("#now").get_by_role("button", name=name, exact=True).click()


# --- the whole story -------------------------------------------------------------------------------------------


def test_a_workflow_is_opened_followed_paused_resumed_and_rolled_back(served):
    adw_id = served.start(title="Pay by invoice")
    served.has_begun()
    page = served.person("/")
    page.locator("#running").get_by_role("link", name="Pay by invoice").click()
    expect(page).to_have_url(re.compile(f"/workflows/{adw_id}$"))
    expect(head(page)).to_contain_text("building")
    page.evaluate("window.stayed = true")

    # The log is followed.
    log = page.get_by_role("log")
    with served.output() as say:
        print("the first line of the work", file=say)
        expect(log).to_contain_text("the first line of the work")
        print("and a second one", file=say)
        expect(log).to_contain_text("and a second one")
        assert page.evaluate("window.stayed"), "the page was loaded again"

        # It is paused while it works.
        press(page, "Pause")
        expect(page.locator(".flash")).to_be_visible()
        expect(head(page)).to_contain_text("paused")
    expect(page.locator(".state.current")).to_have_text("paused")
    assert served.state(adw_id) == "paused"

    # And goes on, with what a person said.
    page.locator("#order-more summary").click()
    page.get_by_label("What to do differently").fill("use the new table")
    press(page, "Resume")
    served.has_begun()
    expect(head(page)).to_contain_text("building")
    expect(page.locator("#hints")).to_contain_text("use the new table")
    with served.output():
        pass
    expect(head(page)).to_contain_text("completed")
    expect(page.locator("#changes")).to_contain_text("built.txt")

    # What a rollback would do is shown before it is done.
    assert (served.home / "trees" / adw_id).is_dir()
    page.get_by_role("link", name="Roll back").click()
    plan = page.locator("#plan")
    expect(plan).to_contain_text(str(served.home / "trees" / adw_id))
    assert (served.home / "trees" / adw_id).is_dir(), "nothing is done before somebody says so"
    page.get_by_label("Reason, for the pull request").fill("not what we wanted")
    page.get_by_role("button", name="Roll back", exact=True).click()

    expect(head(page)).to_contain_text("rolled back")
    expect(page.locator("#rollback")).to_contain_text(re.compile(r"(\d+) of \1 done"))
    expect(page.get_by_role("link", name="Roll back")).to_have_count(0)
    assert not (served.home / "trees" / adw_id).exists()
    heads = subprocess.run(["git", "branch", "--list"], cwd=served.home, check=True, capture_output=True, text=True)
    assert "main" in heads.stdout
    assert adw_id not in heads.stdout
    asked = served.client.get("/api/v1/events", params={"adw_id": adw_id, "limit": 1000}).json()["events"]
    assert {"pause", "resume", "rollback"} <= {
        event["data"].get("action") for event in asked if event["event_type"] == "action_asked"
    }


def test_an_open_page_is_updated_and_keeps_typed_text(served):
    adw_id = served.start()
    served.has_begun()
    page = served.person(f"/workflows/{adw_id}")
    page.evaluate("window.stayed = true")
    page.get_by_text("Give a hint").click()
    page.get_by_label("What to do differently").fill("half a thou")

    with served.output():
        pass

    expect(page.locator("#phases")).to_contain_text("test", timeout=20_000)
    expect(page.locator(".title")).to_contain_text("completed")
    assert page.get_by_label("What to do differently").input_value() == "half a thou"
    assert page.evaluate("window.stayed"), "the page was loaded again"


# --- orders ----------------------------------------------------------------------------------------------------


def test_a_rollback_that_is_cancelled_leaves_everything(served):
    adw_id = served.start("gated")
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}/rollback")

    page.get_by_role("link", name="Cancel").click()

    expect(head(page)).to_contain_text("paused")
    assert (served.home / "trees" / adw_id).is_dir()


def test_a_retry_that_is_scheduled_is_cancelled(served):
    adw_id = served.start("patient")
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}")

    page.get_by_role("button", name="Cancel the retry").click()

    expect(page.locator(".flash")).to_be_visible()
    expect(head(page)).not_to_contain_text("building")


def test_changes_are_read_beside_the_transcript_and_approved_there(served):
    adw_id = served.start("reviewed")
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}")
    approve = page.get_by_role("button", name="Approve")
    tree = page.get_by_role("navigation", name="Changed files")
    assert tree.bounding_box()["y"] < approve.bounding_box()["y"]
    expect(page.get_by_role("region", name="Change of app.py")).to_contain_text('+print("<b>changed</b>")')

    page.get_by_role("link", name="whole diff beside the transcript").click()
    expect(page.get_by_role("log")).to_contain_text("the plan")
    tree.get_by_role("link", name="list.txt").click()
    expect(page.get_by_role("region", name="Change of src/shop/prices/list.txt")).to_be_in_viewport()
    page.get_by_role("link", name="plan, attempt 1").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Changes of plan, attempt 1")
    expect(page.locator(".diff-file", has_text="src/logo.bin")).to_contain_text("binary")
    approve.click()

    expect(page.locator(".flash")).to_contain_text("Plan is decided")


def test_an_outdated_action_is_refused_in_a_sentence(served):
    """
    The page of a person may be older than the workflow.
    """
    adw_id = served.start("gated")
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}", has_script=False)
    approved = served.client.post(f"/api/v1/workflows/{adw_id}/approve")
    assert approved.status_code in {200, 202}, approved.text
    served.follow(adw_id)

    press(page, "Approve")

    expect(page.locator(".flash")).to_contain_text("Not done: ")


def test_it_fits_a_phone_and_is_used_with_the_keyboard(served):
    adw_id = served.start("gated", title="Look at the plan " * 8)
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}", size=PHONE)

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    page.get_by_label("Comment on plan").focus()
    page.keyboard.type("no")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Reject")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_have_text(re.compile("Plan is decided|Live"))


# --- strangers -------------------------------------------------------------------------------------------------


def test_hostile_texts_are_harmless(served):
    """
    Titles, bodies and output with markup, turned directions and a line of a megabyte are shown as text.
    """
    title = f"{HOSTILE} {BIDI} {{{{ 7 * 7 }}}}"
    adw_id = served.start(title=title, body=HOSTILE * 3 + "\x1b[31mred\x1b]8;;http://adw.invalid\x07link")
    served.has_begun()
    page = served.person("/")
    expect(page.locator("#running")).to_contain_text("<script>window.harmed")
    page.goto(f"/workflows/{adw_id}")
    with served.output() as say:
        print(HOSTILE, BIDI, "\x1b[2J\x1b]0;title\x07", file=say)
        print("x" * 1_000_000, file=say)
        print("</pre><script>window.harmed=true</script>after the long line", file=say)
        expect(page.get_by_role("log")).to_contain_text("after the long line")
        assert len(page.get_by_role("log").inner_text()) < 100_000
    served.follow(adw_id)

    ways = ("", "/log", "/events", "/attempts/build/1", "/rollback", "/abandon")
    for path in (*(f"/workflows/{adw_id}{way}" for way in ways), "/", "/workflows", "/workflows?search=%3Cscript%3E"):
        page.goto(path)
        page.wait_for_function("document.readyState === 'complete'")
        assert page.evaluate("window.harmed === undefined"), path
        assert page.locator("script:not([src]), img[src=x], main [onerror]").count() == 0, path
        assert "\u202e" not in page.locator("main").inner_text(), path
        assert "49 " not in page.title(), path
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} is too wide"
    assert page.evaluate("document.cookie") == ""


# --- without the script ----------------------------------------------------------------------------------------


def test_without_the_script_it_is_read_and_decided(served):
    adw_id = served.start("gated")
    served.follow(adw_id)
    page = served.person(f"/workflows/{adw_id}", has_script=False)

    expect(page.locator("#now")).to_contain_text("waits for a person to approve plan")
    expect(page.locator("#tail")).to_contain_text("a plan to look at")
    page.get_by_label("Comment on plan").fill("fine")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("Plan is decided")
    assert served.state(adw_id) == "completed"


def test_without_the_script_a_workflow_can_be_read_whole(served):
    adw_id = served.start(title="Pay by invoice")
    served.has_begun()
    with served.output() as say:
        print("a line of the work", file=say)
    served.follow(adw_id)

    page = served.person(f"/workflows/{adw_id}", has_script=False)

    expect(page.get_by_role("log")).to_contain_text("tested")
    expect(page.get_by_role("img", name="Timeline of the phases")).to_be_visible()
    expect(page.get_by_role("region", name="Attempts", exact=True).first).to_contain_text("build")
    page.get_by_role("link", name="whole transcript").click()
    expect(page.get_by_role("heading", name=re.compile("Transcript of"), level=1)).to_be_visible()
    page.get_by_role("link", name="transcript of build 1").click()
    expect(page.locator("#tail")).to_contain_text("a line of the work")
