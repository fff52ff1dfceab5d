"""The ground that tests of the dashboard stand on: a page that complains, or reaches out, fails its test."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager

import pytest

from tests import browser_plugin

PAGES = {
    "/good": '<!doctype html><html lang="en"><title>Good</title><main><h1>Good</h1></main></html>',
    "/thrower": "<!doctype html><title>x</title><script>throw new Error('thrown')</script>",
    "/complainer": "<!doctype html><title>x</title><script>console.error('complained')</script>",
    "/leaver": '<!doctype html><title>x</title><img src="http://adw.invalid/x.png" alt="">',
    "/leaver-by-number": '<!doctype html><title>x</title><img src="http://192.0.2.1/x.png" alt="">',
    "/dim": '<!doctype html><html lang="en"><title>x</title><style>@media (prefers-color-scheme: dark) '
    "{p {color: #ddd; background: #eee}} div {width: 600px}</style>"
    "<main><h1>x</h1><p>hard to read</p><div>wide</div></main></html>",
    "/mute": '<!doctype html><html lang="en"><title>x</title><main><h1>x</h1><button></button></main></html>',
}
#: Else the browser asks for one, at times when the test is over and the server gone.
ICON = '<link rel="icon" href="data:,">'


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGES.get(self.path, "").replace("<title>", f"{ICON}<title>").encode()
        self.send_response(200 if body else 204)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def pages():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def address():
    with pages() as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/thrower", "error in a script: thrown"),
        ("/complainer", "error on the console: complained"),
        ("/leaver", "a request left the machine: http://adw.invalid/x.png"),
        ("/leaver-by-number", "a request left the machine: http://192.0.2.1/x.png"),
    ],
)
def test_errors_of_a_page_are_noticed(chromium, address, path, complaint):
    browsing = browser_plugin.Browsing(chromium)
    page = browsing.page(address)
    page.goto(path)
    browsing.close()

    assert any(complaint in one for one in browsing.left()), browsing.complaints


def test_a_clean_page_passes_and_expected_errors_are_forgiven(browsing, address):
    browsing.page(address).goto("/good")
    assert browsing.complaints == []

    browsing.forgive("complained")
    browsing.page(address).goto("/complainer")
    assert len(browsing.complaints) == 1


def test_axe_finds_what_a_screen_reader_cannot_name(browsing, address):
    page = browsing.page(address)
    page.goto("/good")
    assert browser_plugin.flaws(page) == []

    page.goto("/mute")
    assert [one.partition(":")[0] for one in browser_plugin.flaws(page)] == ["button-name"]


def test_errors_only_in_the_dark_or_on_a_phone_are_found_too(browsing, address):
    page = browsing.page(address)
    page.goto("/dim")

    result = browser_plugin.flaws_in_every_look(page)

    assert [": ".join(one.split(": ")[:2]) for one in result] == [
        "dark: color-contrast",
        "phone-dark: color-contrast",
        "phone-dark: is wider than the window",
        "phone: is wider than the window",
    ]


def test_without_a_browser_the_message_names_what_to_install(monkeypatch):
    browser_plugin.why_no_browser.cache_clear()
    monkeypatch.setenv("ADW_TEST_CHROMIUM", "/nowhere/chromium")
    assert browser_plugin.why_no_browser().startswith("needs Chromium: install it")

    browser_plugin.why_no_browser.cache_clear()
    monkeypatch.setenv("ADW_TEST_CHROMIUM", "/bin/false")
    assert browser_plugin.why_no_browser().startswith("/bin/false does not run here")
    browser_plugin.why_no_browser.cache_clear()
