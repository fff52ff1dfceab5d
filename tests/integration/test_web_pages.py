"""The door to the pages of a real home: who is let in, what is refused, and what every answer carries."""

from __future__ import annotations

import json
import logging
import re

import pytest
from fastapi import APIRouter, Request

from adws.adw_modules.errors import UsageError
from adws.app import key_of
from adws.web.dashboard import actions, frame
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.dashboard.auth import POLICY
from tests.integration.page_lab import ORIGIN, Browser
from tests.integration.web_lab import TOKEN, WebLab


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in()


def add_page(lab, path="/try", *, problem="", **typed):
    """Give the home a page of the tests, and an action."""
    router = APIRouter(include_in_schema=False)

    @router.get(path)
    def show(request: Request):
        begin = {"names": [], "issue": "", "task": "", "workflow": "", **typed}
        return frame.render(request, "start.html", begin=begin, problem=problem)

    @router.post(path)
    def do(request: Request):
        form = actions.guard(request)
        actions.note(request, "try", thing=form.text("thing"))
        return actions.done(request, path, f"did {form.text('thing')}")

    lab.door._app.include_router(router)


# --- who is let in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/workflows", "/live?topic=home", "/nothing", "/logout"])
def test_nothing_is_shown_without_a_login(lab, path):
    """A browser is sent to the login and comes back; a program gets the one shape."""
    stranger = Browser(lab)
    sent, told = stranger.ask("GET", path), stranger.ask("GET", path, headers={"Accept": "*/*"})

    assert (sent.status_code, told.status_code) == (303, 401)
    assert sent.headers["location"].startswith("/login")
    assert told.json()["error"]["code"] == "not_logged_in"


def test_a_token_logs_in_and_leads_to_the_requested_page(lab):
    stranger = Browser(lab)
    where = stranger.ask("GET", "/nothing?a=1&b=2").headers["location"]
    form = stranger.see(where)
    [after] = form.all("input", name="next")

    answer = stranger.send("/login", {"token": TOKEN, "name": "Ada", "next": after["value"]}, csrf=None)

    assert (answer.status_code, answer.headers["location"]) == (303, "/nothing?a=1&b=2")
    [line] = answer.headers.get_list("set-cookie")
    assert "; HttpOnly" in line
    assert "; SameSite=Strict" in line
    assert "; Path=/" in line
    assert "Secure" not in line
    assert TOKEN not in line


def test_a_wrong_token_does_not_and_is_not_repeated(lab, caplog):
    with caplog.at_level(logging.WARNING, logger="adw.web"):
        answer = Browser(lab).send("/login", {"token": "wrong-token-0123456789"}, csrf=None)

    assert answer.status_code == 403
    assert "That is no token of this server." in answer.text
    assert "wrong-token" not in answer.text
    assert "set-cookie" not in answer.headers
    assert [record.action for record in caplog.records] == ["login_failed"]


def test_an_address_that_guesses_tokens_waits_and_no_other_address(lab):
    guesser = Browser(lab, address="10.0.0.7")
    for _ in range(5):
        assert guesser.send("/login", {"token": "guess"}, csrf=None).status_code == 403

    held_off = guesser.send("/login", {"token": TOKEN}, csrf=None)

    assert (held_off.status_code, held_off.headers["retry-after"]) == (429, "2")
    assert "Too many wrong tokens" in held_off.text
    Browser(lab, address="10.0.0.8").log_in()


def test_a_link_logs_in_once_and_the_token_is_not_needed(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_TOKEN": ""}) as lab:
        link = dashboard_sessions.new_link(
            key_of(lab.app.settings, clock=lab.app.clock), clock=lab.app.clock, name="root"
        )
        path = dashboard_sessions.address_of_link("", link)
        first, second = Browser(lab), Browser(lab)

        assert first.ask("GET", path).status_code == 303
        assert first.see("/nothing", status=404)
        refused = second.see(path, status=403)
        assert "used already" in refused.text
        assert refused.all("input", name="token") == [], "there is no token to type in"
        assert "adw dashboard" in second.see("/login").text


def test_a_logout_ends_every_copy_of_the_cookie(lab, browser):
    copy = Browser(lab, cookies=dict(browser.cookies))

    answer = browser.send("/logout")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert browser.cookies == {}
    assert copy.ask("GET", "/nothing").status_code == 303


def test_a_changed_token_ends_every_login(lab, tmp_path, browser):
    with WebLab(tmp_path / "home", {"ADW_WEB_TOKEN": "another-token-0123456789"}) as later:
        assert Browser(later, cookies=browser.cookies).ask("GET", "/nothing").status_code == 303
    with WebLab(tmp_path / "home", {"ADW_WEB_TOKEN": f"another-token-0123456789, {TOKEN}"}) as later:
        assert Browser(later, cookies=browser.cookies).ask("GET", "/nothing").status_code == 404


def test_a_bearer_token_opens_no_page_and_a_cookie_opens_no_api(lab, browser):
    with_token = Browser(lab).ask("GET", "/nothing", headers={"Authorization": f"Bearer {TOKEN}"})

    assert with_token.status_code == 303
    assert browser.ask("GET", "/api/v1/runs").status_code == 401


def test_a_link_on_another_site_redirects_once_so_that_the_cookie_is_sent(lab):
    """A strict cookie is not sent with the first request from elsewhere."""
    stranger = Browser(lab)
    hop = stranger.ask("GET", "/workflows?state=failed&x=<b>", headers={"Sec-Fetch-Site": "cross-site"})

    assert hop.status_code == 200
    assert 'content="0;url=/workflows?state=failed&amp;x=%3Cb%3E"' in hop.text
    assert stranger.ask("GET", "/workflows", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303


# --- names and origins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/login", "/static/adw.css", "/live?topic=home"])
def test_a_foreign_host_name_opens_nothing(lab, browser, path):
    browser.origin = "http://evil.example:8001"
    answer = browser.ask("GET", path)

    assert answer.status_code == 421
    assert "not known by this name" in answer.text


def test_the_public_address_is_known_and_its_cookies_are_for_https_only(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_PUBLIC_URL": "https://adw.example.com/"}) as lab:
        browser = Browser(lab, origin="https://adw.example.com")
        answer = browser.send("/login", {"token": TOKEN}, csrf=None)

        [line] = answer.headers.get_list("set-cookie")
        assert line.startswith("__Host-adw-")
        assert line.endswith("; Secure")
        assert browser.ask("GET", "/nothing").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/login", "/try"])
def test_a_form_of_another_site_does_nothing(lab, browser, path, headers):
    add_page(lab)
    answer = browser.send(path, {"token": TOKEN, "thing": "harm"}, headers=headers)

    assert answer.status_code == 403
    assert "Nothing was done" in answer.text
    assert "set-cookie" not in answer.headers


# --- forms -------------------------------------------------------------------------------------------------------


def test_an_action_is_done_logged_and_shown_once_on_the_next_page(lab, browser, caplog):
    add_page(lab)
    with caplog.at_level(logging.WARNING, logger="adw.web"):
        page = browser.do("/try", {"thing": "<b>good</b>"})

    assert "did <b>good</b>" in page.text
    assert "<b>good" not in page.html
    [line] = [record for record in caplog.records if record.action == "action_asked"]
    assert (line.by, line.asked, line.thing) == ("Ada (dashboard)", "try", "<b>good</b>")
    assert getattr(line, "from") == "127.0.0.1"
    assert "did" not in browser.see("/try").text


@pytest.mark.parametrize("csrf", [None, "", "0" * 64])
def test_a_form_without_the_token_of_the_login_does_nothing(lab, browser, csrf):
    add_page(lab)
    answer = browser.send("/try", {"thing": "harm"}, csrf="0" * 64 if csrf == "" else csrf)

    assert answer.status_code == 403
    assert "not made for this login" in answer.text


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"thing": 1}', "application/json", 400),
        (b"csrf=%ff", "application/x-www-form-urlencoded", 400),
        (b"a=1&a=2", "application/x-www-form-urlencoded", 400),
        (b"a=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_a_body_that_is_no_form_is_refused(lab, browser, body, kind, status):
    add_page(lab)
    headers = {"Origin": ORIGIN, "Content-Type": kind}

    assert browser.ask("POST", "/try", content=body, headers=headers).status_code == status


def test_without_a_login_only_a_short_login_form_is_accepted(lab):
    add_page(lab)
    stranger = Browser(lab)

    assert stranger.send("/try", csrf=None).status_code == 401
    assert stranger.send("/login", {"token": "x" * 5000}, csrf=None).status_code == 413


def test_a_dashboard_that_is_read_only_has_no_buttons_and_does_nothing(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_READ_ONLY": "true"}) as lab:
        add_page(lab)
        browser = Browser(lab).log_in()
        page = browser.see("/try")

        assert [form["action"] for form in page.all("form")] == ["/logout"]
        assert "read-only" in page.text
        refused = browser.send("/try", {"thing": "harm"})
        assert refused.status_code == 403
        assert "read-only" in refused.text
        assert browser.send("/logout").status_code == 303


# --- what every answer carries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/login", "/nothing", "/try", "/live?topic=nothing"])
def test_every_page_forbids_what_it_does_not_need(lab, browser, path):
    add_page(lab)
    head = browser.ask("GET", path).headers

    assert head["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'; ")
    assert head["x-content-type-options"] == "nosniff"
    assert head["x-frame-options"] == "DENY"
    assert head["referrer-policy"] == "same-origin"
    assert head["cross-origin-opener-policy"] == "same-origin"
    assert head["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["adw.css", "adw.js", "adw.svg"])
def test_static_files_are_open_and_kept_for_ever_under_a_name_of_their_content(lab, name):
    answer = Browser(lab).ask("GET", frame.url(name))

    assert answer.status_code == 200
    assert re.fullmatch(r"/static/adw\.[0-9a-f]{16}\.\w+", frame.url(name))
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- errors ------------------------------------------------------------------------------------------------------


def test_a_missing_path_is_a_page_for_browsers_and_one_shape_for_programs(lab, browser):
    page = browser.see("/nothing", status=404)
    told = browser.ask("GET", "/nothing", headers={"Accept": "application/json"})

    assert "Not found" in page.text
    assert "/workflows" in page.links()
    assert told.status_code == 404
    assert set(json.loads(told.text)["error"]) == {"code", "message", "advice"}


def test_a_bug_is_a_page_without_details(lab, browser):
    router = APIRouter(include_in_schema=False)

    @router.get("/bug")
    def bug():
        raise ZeroDivisionError("secret thing")

    lab.door._app.include_router(router)
    page = browser.see("/bug", status=500)

    assert "A bug in adw" in page.text
    assert "secret thing" not in page.html


def test_an_expected_error_is_a_page_with_its_sentence_without_secrets(lab, browser):
    router = APIRouter(include_in_schema=False)

    @router.get("/wrong")
    def wrong():
        raise UsageError(f"the thing {TOKEN} <script>alert(1)</script> is wrong")

    lab.door._app.include_router(router)
    page = browser.see("/wrong", status=422)

    assert "The thing [redacted] <script>alert(1)</script> is wrong." in page.text
    assert "<script>alert" not in page.html
    assert TOKEN not in page.html


# --- the frame ---------------------------------------------------------------------------------------------------


def test_everything_that_is_shown_is_escaped_and_redacted(lab, browser):
    hostile = '"><img src=x onerror=alert(1)>\u202e'
    add_page(lab, problem=f"{hostile} {TOKEN}", task=f"{hostile}{TOKEN}", issue=hostile)
    page = browser.see("/try")

    assert page.all("img", src="x") == []
    assert [item["value"] for item in page.all("input", name="issue")] == [hostile]
    assert TOKEN not in page.html
    assert page.text.count("[redacted]") == 2


def test_no_page_has_anything_inline(lab, browser):
    add_page(lab, problem="x")
    for path in ("/try", "/login", "/nothing"):
        page = Browser.ask(browser, "GET", path).text
        assert " style=" not in page
        assert " onclick=" not in page
        assert "<style" not in page
        assert re.findall(r"<script(?! src=)", page) == []


def test_a_page_has_landmarks_a_skip_link_and_its_place_in_the_menu(lab, browser):
    page = browser.see("/workflows/nothing", status=404)

    assert page.links()[0] == "#main"
    assert [item["id"] for item in page.all("main")] == ["main"]
    assert len(page.all("h1")) == len(page.all("header")) == len(page.all("footer")) == 1
    assert page.all("html", lang="en")
    assert [item["aria-label"] for item in page.all("nav")] == ["Main"]
    assert [item["href"] for item in page.all("a", aria_current="page")] == ["/workflows"]
