"""
From a label on GitHub to a draft pull request: the third-party emulator delivers a signed webhook to `adw serve`.

The emulator has no git transport: git itself serves the remote beside it, a bare repository on disk, and a server in
front of the emulator tells what is there.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from adws.adw_modules import timestamps
from tests import warm
from tests.emulator import Emulator
from tests.emulator_git import knowing_git
from tests.git_http import serving_git
from tests.integration.work_lab import git

ADW = warm.ADW
SECRET = "between-the-forge-and-us"
WEB_TOKEN = "t" * 32
#: Looks at something that a server does beside us; each takes a moment of its own.
LOOKS = 200
TOML = """
[workflow]
default = "short"
[forge]
kind = "github"
[github]
repository = "{repository}"
api_url = "{url}"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[[workflows.short.phases]]
name = "build"
shell = "echo $ADW_ID >> made.txt"
[[workflows.short.phases]]
name = "ship"
runner = "ship"
on_rework = "build"
[[workflows.short.phases]]
name = "clean"
runner = "clean"
required = false
"""


class ServedHome:
    """A home of a repository of the emulator, and `adw serve` in it."""

    def __init__(self, place: Path, emulator: Emulator, url: str, *, repository: str, origin: str) -> None:
        self.path = place / "home"
        self.emulator = emulator
        self.repository = repository
        self.path.mkdir()
        remote = place / "remote.git"
        git(self.path, "init", "-q", "-b", "main")
        (self.path / "adw.toml").write_text(TOML.format(repository=self.repository, url=url))
        (self.path / ".gitignore").write_text("state/\ntrees/\n")
        git(self.path, "add", ".")
        git(self.path, "commit", "-q", "-m", "Begin")
        git(place, "init", "-q", "--bare", "-b", "main", str(remote))
        git(self.path, "remote", "add", "origin", origin)
        git(self.path, "push", "-q", "origin", "main")

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "ADW_HOME": str(self.path),
            "ADW_GITHUB_TOKEN": self.emulator.token,
            "ADW_WEBHOOK_SECRET": SECRET,
            "ADW_WEB_TOKEN": WEB_TOKEN,
            "ADW_WEBHOOK_MAX_FOLLOWUPS": "3",
        }
        return {**os.environ, **ours}

    @contextmanager
    def serving(self):
        """Run `adw serve` beside the test and give its address."""
        command = [ADW, "serve", "--port", "0", "--workers", "1", "--json"]
        process = warm.Popen(command, cwd=self.path, env=self.env, stdout=subprocess.PIPE, text=True)
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    def deliveries(self) -> list[dict]:
        done = warm.run(
            [ADW, "webhook", "deliveries", "--json"],
            cwd=self.path,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)["deliveries"]

    def hook(self, address: str) -> None:
        """Set the webhook up at the forge, as its owner does."""
        config = {"url": f"{address}/webhooks/github", "secret": SECRET, "content_type": "json"}
        wanted = {"name": "web", "active": True, "events": ["issues", "issue_comment"], "config": config}
        self.emulator._call("POST", f"/repos/{self.repository}/hooks", wanted)

    def label(self, issue: int) -> None:
        """Put the label on an issue that starts a workflow."""
        self.emulator._call("POST", f"/repos/{self.repository}/issues/{issue}/labels", {"labels": ["adw"]})

    def label_again(self, address: str, issue: int) -> None:
        """Tell of a second label an hour later, as GitHub does: to the emulator an issue is as old as at its start."""
        known = self.get(f"/issues/{issue}")
        later = timestamps.parse(known["updated_at"]) + timedelta(hours=1)
        payload = {
            "action": "labeled",
            "label": {"name": "adw"},
            "issue": {**known, "updated_at": timestamps.to_text(later)},
            "repository": self.get(""),
            "sender": {"login": "adw-bot", "type": "User"},
        }
        body = json.dumps(payload).encode()
        headers = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "a-second-label",
            "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
            "Content-Type": "application/json",
        }
        assert httpx.post(f"{address}/webhooks/github", content=body, headers=headers, timeout=60).status_code == 202

    def adw(self, *args: str) -> subprocess.CompletedProcess[str]:
        return warm.run([ADW, *args], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=120)

    def finished(self, count: int, *, verdict: str = "run") -> dict:
        """Return the newest of *count* deliveries that asked for something and were carried out."""

        def look():
            over = [one for one in self.deliveries() if one["verdict"] == verdict and one["status"] != "received"]
            return max(over, key=lambda one: one["received_at"]) if len(over) == count else None

        return self.until(look, f"delivery {count}")

    def comments(self, number: int) -> list[str]:
        return [one["body"] for one in self.get(f"/issues/{number}/comments?per_page=100")]

    def get(self, path: str):
        return self.emulator._call("GET", f"/repos/{self.repository}{path}")

    def until(self, is_so, what: str):
        """Look until something is so, and return it."""
        for _ in range(LOOKS):
            result = is_so()
            if result:
                return result
        raise AssertionError(f"{what} did not happen: {self.deliveries()}")

    def follow(self, adw_id: str) -> None:
        """Return when the workflow has stopped, which `adw events -f` waits for, and its worker has let go of it."""
        command = [ADW, "events", adw_id, "-f"]
        warm.run(command, cwd=self.path, env=self.env, check=True, capture_output=True, timeout=120)
        self.until(lambda: json.loads(self.adw("admin", "locks", "--json").stdout)["locks"] == [], "the end of the run")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    with Emulator.start(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.fixture
def home(tmp_path, emulator):
    place, repository = tmp_path.resolve(), emulator.new_repository()
    remote = place / "remote.git"
    with (
        knowing_git(emulator.url, remote) as url,
        serving_git(remote, repository, host="localhost") as origin,
    ):
        yield ServedHome(place, emulator, url, repository=repository, origin=origin)


def test_a_label_on_an_issue_ends_with_a_draft_pull_request(home, emulator):
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())

    with home.serving() as address:
        home.hook(address)
        emulator._call("POST", f"/repos/{home.repository}/issues/{issue}/labels", {"labels": ["adw"]})
        [done] = home.until(
            lambda: [one for one in home.deliveries() if one["verdict"] == "run" and one["status"] == "done"],
            "the delivery",
        )
        home.follow(done["adw_id"])
        emulator._call("POST", f"/repos/{home.repository}/issues/{issue}/comments", {"body": "/adw status"})
        [told] = home.until(
            lambda: [one for one in home.deliveries() if one["verdict"] == "command" and one["status"] == "done"],
            "the answer",
        )

    [pull] = home.get("/pulls?state=all")
    assert (pull["draft"], pull["state"], f"Closes #{issue}" in pull["body"]) == (True, "open", True)
    assert told["adw_id"] == done["adw_id"]
    bodies = [one["body"] for one in home.get(f"/issues/{issue}/comments?per_page=100")]
    assert len(bodies) == 3, "the comment that is kept up to date, the question, the answer"
    assert bodies[1] == "/adw status"
    assert all(done["adw_id"] in body for body in (bodies[0], bodies[2]))


def test_an_issue_with_an_open_pull_request_gets_a_second_one_only_when_that_is_said(home, emulator):
    """
    A label, `adw run`, the API and the label again: the pull request of the first is named, and stays the only one.

    A comment that says what to change goes on with its branch; `--again` starts anew.
    """
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())

    with home.serving() as address:
        home.hook(address)
        home.label(issue)
        first = home.finished(1)
        home.follow(first["adw_id"])
        [pull] = home.get("/pulls?state=open")
        named = f"issue {issue} has the open pull request #{pull['number']} of workflow {first['adw_id']}"

        done = home.adw("run", str(issue))
        assert (done.returncode, done.stdout) == (1, "")
        assert named in done.stderr

        headers = {"Authorization": f"Bearer {WEB_TOKEN}"}
        answer = httpx.post(f"{address}/api/v1/workflows", json={"issue_number": issue}, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pull_request_open")
        assert named in answer.json()["error"]["message"]

        home.label_again(address, issue)
        refused = home.finished(2)
        assert (refused["status"], named in refused["outcome"]) == ("refused", True)
        assert sum(named[1:] in body for body in home.comments(issue)) == 1

        emulator._call("POST", f"/repos/{home.repository}/issues/{issue}/comments", {"body": "/adw run\nPaint it red."})
        further = home.finished(3)
        home.follow(further["adw_id"])

    assert [one["number"] for one in home.get("/pulls?state=all")] == [pull["number"]]
    assert json.loads(home.adw("status", further["adw_id"], "--json").stdout)["state"] == "completed"
    again = home.adw("run", str(issue), "--again", "--json")
    assert (again.returncode, json.loads(again.stdout)["state"]) == (0, "completed"), again.stderr
    assert len(home.get("/pulls?state=open")) == 2


def test_a_label_whose_work_could_not_be_pushed_is_refused_in_a_comment_and_starts_nothing(home, emulator):
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())
    git(home.path, "remote", "set-url", "origin", "https://github.com/somebody/else.git")

    with home.serving() as address:
        home.hook(address)
        home.label(issue)
        refused = home.finished(1)

    assert refused["status"] == "refused"
    assert "the remote origin is https://github.com/somebody/else.git" in refused["outcome"]
    assert ["The remote origin is" in body for body in home.comments(issue)] == [True]
    assert json.loads(home.adw("list", "--json").stdout)["workflows"] == []
