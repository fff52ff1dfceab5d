"""
A home with a real server, a real worker and a workflow whose output the test writes, and people who look at it.

The home is a git repository, so that the workflow works in a worktree on a branch, which a rollback takes away. Its
phase `build` prints what the test says, line by line, until the test lets it end: nothing here waits for time to pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests import browser_plugin, templates
from tests.acceptance import cli_lab, serve_lab
from tests.browser_plugin import Browsing
from tests.integration.web_lab import TOKEN

WORKFLOWS = """
[workflow]
default = "scripted"

[workflows.scripted]
[[workflows.scripted.phases]]
name = "plan"
shell = "echo the plan"
[[workflows.scripted.phases]]
name = "build"
shell = "echo attempt $ADW_ATTEMPT begins; echo built > built.txt; echo up > {home}/up; cat {home}/say; echo all built"
[[workflows.scripted.phases]]
name = "test"
shell = "echo tested"

[workflows.gated]
[[workflows.gated.phases]]
name = "plan"
shell = "echo a plan to look at"
gate = "human"

[workflows.broken]
[[workflows.broken.phases]]
name = "build"
shell = "echo nothing works >&2; exit 7"
max_attempts = 1

[workflows.looped]
[[workflows.looped.phases]]
name = "test"
[[workflows.looped.phases.steps]]
name = "ask"
tool = "command"
command = ["sh", "ask.sh", "{{{{ number }}}}"]
[workflows.looped.phases.steps.loop]
collection = [1, 2, 3, 4]
element = "number"
mode = "async"
concurrency = 2
on_failure = "continue"
[workflows.looped.phases.steps.retry.on_error]
max_attempts = 2
backoff = "fixed"
base_seconds = 3600
max_seconds = 3600

[workflows.patient]
[[workflows.patient.phases]]
name = "build"
shell = "echo connection reset by peer >&2; exit 1"
max_attempts = 3
retry = {{ base_seconds = 3600, max_seconds = 3600, strategy = "fixed" }}
"""


#: Gives an answer, but for 2, which never will, and 3, which may later.
ASK = """
case $1 in
2) exit 3 ;;
3) echo connection reset by peer >&2; exit 1 ;;
*) echo answer $1 ;;
esac
"""


def make_home(place: Path) -> Path:
    """Make a git repository a home with the workflows above."""
    home = place.resolve() / "home"
    home.mkdir()
    (home / "app.py").write_text("print('hello')\n")
    (home / "ask.sh").write_text(ASK)
    (home / ".gitignore").write_text("state/\ntrees/\nup\nsay\n")
    (home / "adw.toml").write_text(WORKFLOWS.format(home=home))
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=home, check=True, capture_output=True)
    templates.prepare_home(home)
    os.mkfifo(home / "up")
    os.mkfifo(home / "say")
    return home


@dataclass
class Ground:
    """A server, and those who look at its pages."""

    home: Path
    address: str
    client: httpx.Client
    browsing: Browsing

    def start(
        self, workflow: str = "scripted", *, issue: int = 7, title: str = "Pay by invoice", body: str = ""
    ) -> str:
        """Start a workflow and return its id; a worker takes it up."""
        wanted = {"issue_number": issue, "workflow": workflow, "title": title, "body": body}
        answer = self.client.post("/api/v1/workflows", json=wanted)
        assert answer.status_code == 201, answer.text
        return answer.json()["adw_id"]

    def has_begun(self) -> None:
        """Return when the phase `build` prints what it is told."""
        cli_lab.has_begun(self.home)

    @contextmanager
    def output(self) -> Iterator:
        """What is written to this is printed by the phase `build`, which ends when it is closed."""
        with (self.home / "say").open("w", buffering=1, encoding="utf-8") as say:
            yield say

    def follow(self, adw_id: str) -> None:
        """Return when the workflow has stopped."""
        serve_lab.follow(self.home, adw_id)

    def follow_until_it_rests(self, adw_id: str) -> None:
        """Return when a worker had the workflow and let go of it: it is over, or waits for something."""
        self.until(lambda: self._rests(adw_id), f"{adw_id} is still at work")

    def until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Return when something that happens soon has happened."""
        deadline = time.monotonic() + browser_plugin.PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, otherwise

    def _rests(self, adw_id: str) -> bool:
        [run] = [one for one in self.client.get("/api/v1/runs").json()["runs"] if one["adw_id"] == adw_id]
        return run["attempts"] > 0 and run["state"] not in {"claimed", "running", "stopping"}

    def state(self, adw_id: str) -> str:
        """Return the state of a workflow."""
        return self.client.get(f"/api/v1/workflows/{adw_id}").json()["state"]

    def visitor(self, **wishes) -> Page:
        """Return a page of somebody who is not logged in."""
        return self.browsing.page(self.address, **wishes)

    def person(self, path: str = "/", **wishes) -> Page:
        """Return a page of somebody who has logged in and looks at *path*."""
        page = self.visitor(**wishes)
        log_in(page, path)
        return page


def log_in(page: Page, path: str = "/", *, name: str = "Ada") -> None:
    """Log in by the form, and look at *path*."""
    page.goto("/login")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_title(re.compile("Overview"))
    if path != "/":
        page.goto(path)


@contextmanager
def serve(home: Path, browsing: Browsing, *, workers: int = 1) -> Iterator[Ground]:
    """Serve a home beside the test."""
    with serve_lab.serving(home, "--workers", str(workers)) as (_, client):
        try:
            yield Ground(home=home, address=str(client.base_url).rstrip("/"), client=client, browsing=browsing)
        finally:
            browsing.close()  # before the server ends: a page whose server is gone rightly complains


expect.set_options(timeout=browser_plugin.PATIENCE * 1000)
