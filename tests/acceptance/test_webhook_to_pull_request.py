"""
From a label on GitHub to a draft pull request: the third-party emulator delivers a signed webhook to `adw serve`.

The emulator has no git transport, so the remote is a bare repository on disk, and a server in front of the emulator
tells what is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import warm
from tests.emulator import Emulator
from tests.emulator_git import knowing_git
from tests.integration.work_lab import git

ADW = warm.ADW
SECRET = "between-the-forge-and-us"
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

    def __init__(self, place: Path, emulator: Emulator, url: str) -> None:
        self.path = place / "home"
        self.emulator = emulator
        self.repository = emulator.new_repository()
        self.path.mkdir()
        remote = place / "remote.git"
        git(self.path, "init", "-q", "-b", "main")
        (self.path / "adw.toml").write_text(TOML.format(repository=self.repository, url=url))
        (self.path / ".gitignore").write_text("state/\ntrees/\n")
        git(self.path, "add", ".")
        git(self.path, "commit", "-q", "-m", "Begin")
        git(place, "init", "-q", "--bare", "-b", "main", str(remote))
        git(self.path, "remote", "add", "origin", str(remote))
        git(self.path, "push", "-q", "origin", "main")

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "ADW_HOME": str(self.path),
            "ADW_GITHUB_TOKEN": self.emulator.token,
            "ADW_WEBHOOK_SECRET": SECRET,
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
            [ADW, "deliveries", "--json"], cwd=self.path, env=self.env, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)["deliveries"]

    def hook(self, address: str) -> None:
        """Set the webhook up at the forge, as its owner does."""
        config = {"url": f"{address}/webhooks/github", "secret": SECRET, "content_type": "json"}
        wanted = {"name": "web", "active": True, "events": ["issues", "issue_comment"], "config": config}
        self.emulator._call("POST", f"/repos/{self.repository}/hooks", wanted)

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
        """Return when the workflow has stopped: `adw events -f` waits for that."""
        command = [ADW, "events", adw_id, "-f"]
        warm.run(command, cwd=self.path, env=self.env, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    with Emulator.start(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.fixture
def home(tmp_path, emulator):
    place = tmp_path.resolve()
    with knowing_git(emulator.url, place / "remote.git") as url:
        yield ServedHome(place, emulator, url)


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
