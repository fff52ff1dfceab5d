"""
A home with a real server, a real worker and a workflow whose output the test writes, and people who look at it.

The home is a git repository, so that the workflow works in a worktree on a branch, which a rollback takes away. Its
phase `build` prints what the test says, line by line, until the test lets it end: nothing here waits for time to pass.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import httpx
from playwright.sync_api import Page, expect

from adws.adw_modules import timestamps
from tests import browser_plugin, templates
from tests.acceptance import cli_lab, serve_lab
from tests.browser_plugin import Browsing
from tests.integration.web_lab import TOKEN, labelled

#: States of runs that a worker has, or is about to have.
AT_WORK = frozenset({"claimed", "running", "stopping"})
#: Seconds until the workers of a server that is lent again have let go of what the test before left them.
REST_SECONDS = 10.0

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

[workflows.reviewed]
[[workflows.reviewed.phases]]
name = "plan"
shell = "sh change.sh"
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


#: Makes a change with everything that a diff can have: folders, long lines, a binary file, something deleted.
CHANGE = """
mkdir -p src/shop/prices docs
seq 1 120 | sed 's/^/price /' > src/shop/prices/list.txt
printf '%0300d\\n' 7 > docs/wide.md
printf 'a\\000b' > src/logo.bin
echo 'print("<b>changed</b>")' > app.py
rm ask.sh
echo the plan
"""


def make_home(place: Path) -> Path:
    """Make a git repository a home with the workflows above."""
    home = place.resolve() / "home"
    home.mkdir()
    (home / "app.py").write_text("print('hello')\n")
    (home / "ask.sh").write_text(ASK)
    (home / "change.sh").write_text(CHANGE)
    (home / ".gitignore").write_text("state/\ntrees/\nup\nsay\n")
    (home / "adw.toml").write_text(WORKFLOWS.format(home=home))
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=home, check=True, capture_output=True)
    templates.prepare_home(home)
    os.mkfifo(home / "up")
    os.mkfifo(home / "say")
    return home


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server of a home, and what happens there."""

    home: Path
    client: httpx.Client
    issues: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def address(self) -> str:
        """Where its pages are."""
        return str(self.client.base_url).rstrip("/")

    def start(
        self, workflow: str = "scripted", *, issue: int | None = None, title: str = "Pay by invoice", body: str = ""
    ) -> str:
        """Start a workflow, for an issue that has none unless one is named, and return its id; a worker takes it up."""
        number = next(self.issues) if issue is None else issue
        wanted = {"issue_number": number, "workflow": workflow, "title": title, "body": body}
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
        """Return when a worker had the workflow and let go of it: it is over, or waits for something."""
        self.until(lambda: self._rest(adw_id) and not self._has_owner(adw_id), f"{adw_id} is still at work")

    def until(self, is_so: Callable[[], bool], otherwise: str, *, seconds: float = browser_plugin.PATIENCE) -> None:
        """Return when something that happens soon has happened."""
        deadline, tick = time.monotonic() + seconds, threading.Event()
        while not is_so():
            assert time.monotonic() < deadline, otherwise
            tick.wait(0.02)  # others need the processor to get there

    def comes_to_rest(self) -> bool:
        """Return True when a worker had every workflow and let go of it; False when that does not happen soon."""
        try:
            self.until(self._rest, "something is still at work", seconds=REST_SECONDS)
        except AssertionError:
            return False
        return True

    def _rest(self, *adw_ids: str) -> bool:
        """Say whether no worker has, and none is about to take, these workflows, or any."""
        runs = self.client.get("/api/v1/runs", params={"limit": 500}).json()["runs"]
        of_them = [one for one in runs if not adw_ids or one["adw_id"] in adw_ids]
        assert of_them or not adw_ids, f"{adw_ids} are not in the queue"
        return not any(one["state"] in AT_WORK or _is_due_soon(one) for one in of_them)

    def _has_owner(self, adw_id: str) -> bool:
        """Say whether a worker holds the workflow: it lets go of it a moment after its run is over."""
        value = self.client.get("/api/v1/workflows", params={"search": adw_id}).json()["workflows"]
        return any(one["owner"] for one in value)

    def state(self, adw_id: str) -> str:
        """Return the state of a workflow."""
        return self.client.get(f"/api/v1/workflows/{adw_id}").json()["state"]

    def seen_by(self, browsing: Browsing) -> Ground:
        """Return it with those who look at its pages."""
        return Ground(home=self.home, client=self.client, issues=self.issues, browsing=browsing)


@dataclass(frozen=True, kw_only=True)
class Ground(Server):
    """A server, and those who look at its pages."""

    browsing: Browsing

    def visitor(self, **wishes) -> Page:
        """Return a page of somebody who is not logged in."""
        return self.browsing.page(self.address, **wishes)

    def person(self, path: str = "/", **wishes) -> Page:
        """Return a page of somebody who has logged in and looks at *path*."""
        page = self.visitor(**wishes)
        log_in(page, self.address)
        page.goto(path)
        return page


def _is_due_soon(run: dict) -> bool:
    # One that was taken before its workflow was free is put back, and taken again at once.
    if run["state"] != "pending":
        return False
    soon = datetime.now(UTC) + timedelta(seconds=browser_plugin.PATIENCE)
    return not run["not_before"] or timestamps.parse(run["not_before"]) < soon


def log_in(page: Page, address: str) -> None:
    """Log the browser of a page in, without the form."""
    form = {"token": TOKEN, "name": "Ada"}
    answer = page.context.request.post("/login", form=form, headers={"Origin": address}, max_redirects=0)
    assert answer.status == 303, answer.text()


@contextmanager
def serve(home: Path, *, workers: int) -> Iterator[Server]:
    """Serve a home beside the test."""
    with serve_lab.serving(home, "--workers", str(workers)) as (_, client):
        yield Server(home=home, client=client)


class Kept:
    """
    Servers that tests borrow, one after the other: starting one takes longer than most of what tests do there.

    One that a test leaves with something at work is not lent again.
    """

    def __init__(self, place: Callable[[], Path]) -> None:
        self._place = place
        self._kept: dict[int, tuple[Server, ExitStack]] = {}

    @contextmanager
    def lent(self, browsing: Browsing, *, workers: int) -> Iterator[Ground]:
        """Lend a server with so many workers."""
        if workers not in self._kept:
            ending = ExitStack()
            self._kept[workers] = ending.enter_context(serve(make_home(self._place()), workers=workers)), ending
        server, _ = self._kept[workers]
        yield server.seen_by(browsing)
        browsing.close()
        if workers and not server.comes_to_rest():
            self._end(workers)

    def _end(self, workers: int) -> None:
        _, ending = self._kept.pop(workers)
        ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        for workers in list(self._kept):
            self._end(workers)


# --- every situation -------------------------------------------------------------------------------------------


def bring_about(server: Server) -> dict[str, str]:
    """Bring a workflow into every situation there is; return their ids by the names of the workflows."""
    resting = ("gated", "reviewed", "broken", "patient")
    ids = {name: server.start(name, title=f"{name}: an issue") for name in (*resting, "looped")}
    for name in resting:
        server.follow(ids[name])
    server.until(lambda: _some_retry_waits(server, ids["looped"]), "no iteration waits for a retry")
    ids["scripted"] = server.start(title="scripted: at work")
    server.has_begun()
    body, headers = labelled(33)
    assert server.client.post("/webhooks/github", content=body, headers=headers).status_code == 202
    return ids


def _some_retry_waits(server: Server, adw_id: str) -> bool:
    value = server.client.get(f"/api/v1/workflows/{adw_id}/executions").json()["executions"]
    return any(one["waiting"] and not one["running"] for one in value)


expect.set_options(timeout=browser_plugin.PATIENCE * 1000)
