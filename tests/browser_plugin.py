"""
A real Chromium for tests of the dashboard, and axe, which says what keeps people out of a page.

The browser is the one of the system, never a download: ADW_TEST_CHROMIUM, or what is installed. It reaches this
machine only: everything else goes to a proxy that is not there. Whatever a page complains about on its console, and
every request that would have left the machine, fails the test that opened the page.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # every test process reads this file, and few open a browser
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

#: Names under which systems have it.
NAMES = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
#: Nobody listens there; what is on this machine is asked without a proxy.
NO_PROXY_HERE = "http://127.0.0.1:9"
ARGUMENTS = (
    "--no-sandbox",  # tests may run as root, and open no page but ours
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    f"--proxy-server={NO_PROXY_HERE}",
)
#: Seconds after which something that should be on a page soon is taken as missing; the machine may be busy.
PATIENCE = 30.0
AXE_VERSION = "4.14.0"
PHONE = (390, 844)
DESK = (1280, 900)
#: Ways to look at a page.
LOOKS = {
    "light": ("light", DESK),
    "dark": ("dark", DESK),
    "phone-dark": ("dark", PHONE),
    "phone": ("light", PHONE),
}
#: Rules of axe that are asked again in the dark: the same elements have other colours, and nothing else differs.
COLOURS = ["color-contrast", "link-in-text-block"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the browser where there is none; where there is one, a browser that fails is a failure."""
    if item.get_closest_marker("browser") is not None and why_no_browser():
        pytest.skip(why_no_browser())


@functools.cache
def why_no_browser() -> str:
    """Return what is missing to run the browser, "" when nothing is."""
    result = executable()
    if not result:
        return "needs Chromium: install it with the packages of your system, or set ADW_TEST_CHROMIUM to it"
    tried = subprocess.run([result, "--version"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"{result} does not run here: {tried.stderr.strip()[-200:]}"


def executable() -> str:
    """Return the browser of this machine, "" when there is none."""
    named = os.environ.get("ADW_TEST_CHROMIUM", "")
    return next((result for name in ([named] if named else NAMES) if (result := shutil.which(name))), "")


def why_no_axe() -> str:
    """Return what is missing to look at pages with axe, "" when nothing is."""
    if Path(os.environ.get("ADW_TEST_AXE", "/nowhere")).is_file():
        return ""
    return (
        f"needs axe: npm i --ignore-scripts axe-core@{AXE_VERSION} somewhere outside the repository, "
        "and set ADW_TEST_AXE to its node_modules/axe-core/axe.min.js"
    )


class Browsing:
    """Pages that a test opens, and what they complained about."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self._forgiven: list[str] = []
        self.complaints: list[str] = []

    def person(
        self,
        address: str,
        *,
        scheme: str = "light",
        size: tuple[int, int] = DESK,
        has_script: bool = True,
        scale: float = 1.0,
    ) -> BrowserContext:
        """Return a browser of somebody who has not been here before; *address* begins the addresses of its pages."""
        context = self._chromium.new_context(
            base_url=address,
            color_scheme=scheme,
            viewport={"width": size[0], "height": size[1]},
            java_script_enabled=has_script,
            device_scale_factor=scale,
            reduced_motion="reduce",  # what fades in is not there yet when it is looked at
            locale="en-GB",
            timezone_id="UTC",
        )
        context.set_default_timeout(PATIENCE * 1000)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.complaints.append(f"error in a script: {error.error}"))
        context.on("request", self._on_request)
        self._contexts.append(context)
        return context

    def page(self, address: str, **wishes) -> Page:
        """Return an empty page of a person of its own."""
        return self.person(address, **wishes).new_page()

    def forgive(self, words: str) -> None:
        """Say that a page will rightly complain with these words: a test asks for what is refused."""
        self._forgiven.append(words)

    def left(self) -> list[str]:
        """Return the complaints that nobody forgave."""
        return [one for one in self.complaints if not any(words in one for words in self._forgiven)]

    def close(self) -> None:
        """Close every page."""
        while self._contexts:
            self._contexts.pop().close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            where = message.location.get("url", "")
            self.complaints.append(f"{message.type} on the console: {message.text} ({where})")

    def _on_request(self, request: Request) -> None:
        if not _stays_here(request.url):
            self.complaints.append(f"a request left the machine: {request.url}")


def _stays_here(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme in {"data", "blob", "about"} or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


@contextmanager
def started() -> Iterator[Browser]:
    """Run the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        result = playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
        yield result
        result.close()


# --- axe -------------------------------------------------------------------------------------------------------


#: What is wrong comes with the place.
_ASK_AXE = """
async (rules) => {
    const only = rules ? {runOnly: {type: 'rule', values: rules}} : {};
    const found = await axe.run(document, {resultTypes: ['violations'], ...only});
    return found.violations.flatMap((one) =>
        one.nodes.map((node) => [one.impact, one.id, one.help, node.target.join(' '), node.html.slice(0, 160)]));
}
"""


def flaws(page: Page, *, rules: list[str] | None = None) -> list[str]:
    """
    Return what axe finds on a page that is serious or critical, each in a line; skip the test without axe.

    All of its rules are asked for, or *rules* alone.
    """
    if why_no_axe():
        pytest.skip(why_no_axe())
    if not page.evaluate("'axe' in window"):
        # Evaluated by the debugger: the page's own rules let no script in that is not its own.
        page.evaluate(_axe())
    result = page.evaluate(_ASK_AXE, rules)
    return [": ".join(rest) for impact, *rest in result if impact in {"serious", "critical"}]


def flaws_in_every_look(page: Page) -> list[str]:
    """Return what axe finds on a page in each way to look at it, and where it is wider than the window."""
    result = []
    for name, (scheme, (width, height)) in LOOKS.items():
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": height})
        result += [f"{name}: {flaw}" for flaw in flaws(page, rules=COLOURS if scheme == "dark" else None)]
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            result.append(f"{name}: is wider than the window")
    return result


@functools.cache
def _axe() -> str:
    return Path(os.environ["ADW_TEST_AXE"]).read_text(encoding="utf-8")
