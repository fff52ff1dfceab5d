"""
Take the pictures of the dashboard that the documentation shows.

The home is made by `picture_home.py`; a real `adw serve` with real workers shows it, and a real Chromium opens it.
A picture larger than 300 KB and a page with a console message are failures.

Use: screenshots.py [--keep] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import picture_home
from picture_home import PictureHome

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import browser_plugin  # noqa: E402 - it is found only now

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = ROOT / "docs" / "images"
ADW = Path(sys.executable).parent / "adw"
MOST_BYTES = 300_000
#: Seconds until what is to be seen must be there.
PATIENCE_SECONDS = 180.0
DESKTOP, TALL, PHONE = (1280, 960), (1280, 1160), (390, 844)
#: Where the home is in the pictures: nobody cares which folder of this machine it was in.
SHOWN_PLACE = "/srv"
#: Puts that in the place of the other.
_RENAME = """
([there, shown]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(there, shown);
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One picture."""

    name: str
    what: str  #: what it shows, for those who cannot see it
    path: str  #: `{at_work}` and `{loop}` are workflows
    scheme: str = "light"
    size: tuple[int, int] = DESKTOP
    scale: float = 1.0


PICTURES = (
    Picture(name="overview", what="The overview of the dashboard", path="/", size=TALL),
    Picture(name="overview-dark", what="The overview in the dark", path="/", scheme="dark", size=TALL),
    Picture(
        name="workflow",
        what="A workflow with its timeline, what may be done with it, and its phases",
        path="{at_work}",
        size=(1280, 1600),
    ),
    Picture(name="loop", what="A loop whose calls are spread over workers", path="{loop}"),
    Picture(name="workflows", what="The list of workflows with its search", path="/workflows"),
    Picture(
        name="review",
        what="The changes of an attempt beside the transcript of its agent",
        path="{done}/diff?phase=build&attempt=2",
        size=(1280, 1160),
    ),
    Picture(name="rollback", what="What a rollback would undo, before it is done", path="{done}/rollback"),
    Picture(name="phone", what="The overview on a phone", path="/", size=PHONE, scale=2.0),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Take the pictures of the dashboard.")
    parser.add_argument("--keep", action="store_true", help="keep the home, and say where it is")
    parser.add_argument("names", nargs="*", help="of single pictures")
    wanted = parser.parse_args(arguments)
    unknown = set(wanted.names) - {one.name for one in PICTURES}
    if unknown:
        print(f"no picture is called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    reason = browser_plugin.why_no_browser()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    logging.getLogger("adw").addHandler(logging.NullHandler())
    chosen = [one for one in PICTURES if not wanted.names or one.name in wanted.names]
    place = Path(tempfile.mkdtemp(prefix="adw-pictures-")).resolve()
    try:
        problems = take_all(PictureHome(place), chosen)
    finally:
        if wanted.keep:
            print(f"The home is kept in {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    for problem in problems:
        print(problem, file=sys.stderr)

    return 1 if problems else 0


def take_all(home: PictureHome, chosen: list[Picture]) -> list[str]:
    """Live through two weeks, serve the home, take the pictures, and return what was wrong."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a wrong name is refused without it

    for days_ago in sorted(picture_home.PAST, reverse=True):
        print(f"{days_ago} days ago", flush=True)
        home.live_through(days_ago)
    with serving(home) as address, sync_playwright() as playwright:
        ways = begin_work(home)
        browser = playwright.chromium.launch(
            executable_path=browser_plugin.executable(), args=list(browser_plugin.ARGUMENTS)
        )
        problems = [problem for one in chosen for problem in take(one, browser, home, address, ways)]
        browser.close()

    return problems


def begin_work(home: PictureHome) -> dict[str, str]:
    """Let work begin that is seen going on; return where it is seen."""
    with home.open() as app:
        for work in picture_home.NOW:
            home.do(work, app)
        loop, at_work = home.do(picture_home.LOOP, app), home.do(picture_home.AT_WORK, app)
        done = next(row.adw_id for row in app.catalogue.page(picture_home.COMPLETED).rows)
        wait_for(lambda: any(one.subject.adw_id == at_work and one.phase == "build" for one in app.reports.running()))
        wait_for(lambda: len(app.reports.waiting()) >= len(picture_home.NOW))
        wait_for(lambda: any(one.running and one.waiting > 1 for one in app.execution_views.of_workflow(loop)))
        [execution] = app.execution_views.of_workflow(loop)

    return {
        "at_work": f"/workflows/{at_work}",
        "loop": f"/workflows/{loop}/executions/{execution.execution_id}",
        "done": f"/workflows/{done}",
    }


def take(picture: Picture, browser: Browser, home: PictureHome, address: str, ways: dict[str, str]) -> Iterator[str]:
    """Take one picture, and yield what is wrong with it."""
    print(picture.name, flush=True)
    look = browser_plugin.Browsing(browser)
    page = look.page(address, scheme=picture.scheme, size=picture.size, scale=picture.scale)
    page.set_default_timeout(PATIENCE_SECONDS * 1000)  # the workers take what the machine has
    page.goto(link(home, address))
    page.goto(picture.path.format(**ways))
    page.wait_for_load_state("load")
    _settle(page)
    page.evaluate(_RENAME, [str(home.path.parent), SHOWN_PLACE])
    IMAGES.mkdir(exist_ok=True)
    file = IMAGES / f"{picture.name}.png"
    page.screenshot(path=file, animations="disabled")
    look.close()
    yield from (f"{picture.name}: {complaint}" for complaint in look.left())
    if file.stat().st_size > MOST_BYTES:
        yield f"{picture.name} has {file.stat().st_size} bytes: take less of the page"


def _settle(page: Page) -> None:
    """Wait until the page says that it is live, if it says so at all: no picture shows a connection that is made."""
    state = page.locator("#live-state")
    if state.count():
        state.get_by_text("Live").wait_for()


# --- the server ------------------------------------------------------------------------------------------------


@contextmanager
def serving(home: PictureHome) -> Iterator[str]:
    """Serve the home, with workers, and give the address."""
    command = [str(ADW), "--home", str(home.path), "serve", "--port", "0", "--workers", "4", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=home.path)
    try:
        if process.stdout is None:
            raise SystemExit("adw serve says nothing")
        yield str(json.loads(process.stdout.readline())["address"])
    finally:
        process.terminate()
        process.communicate()


def link(home: PictureHome, address: str) -> str:
    """Return a link that logs in."""
    command = [str(ADW), "--home", str(home.path), "dashboard", "--address", address]

    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=home.path).stdout.strip()


def wait_for(is_so: Callable[[], bool]) -> None:
    """Return when something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit("what the pictures should show did not come to be; run with --keep and look at the home")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
