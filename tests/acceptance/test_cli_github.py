"""
The commands against the third-party GitHub emulator: run, pull request, comment, rollback, and all of it twice.

The emulator has no git transport: git itself serves the remote beside it, a bare repository on disk, and a server in
front of the emulator tells what is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests import templates
from tests.emulator import Emulator
from tests.emulator_git import knowing_git
from tests.git_http import serving_git
from tests.integration.tidy_lab import git

ADW = str(Path(sysconfig.get_path("scripts")) / "adw")
TOML = """
[forge]
kind = "github"
[github]
repository = "{repository}"
api_url = "{url}"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[ship]
labels = ["from-adw"]
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


#: A hook of the remote: kills the adw that pushed, the first time something is pushed to a branch of ours.
KILL_ONCE = """#!/bin/sh
read -r old new ref
case "$ref" in refs/heads/main) exit 0 ;; esac
test -e killed && exit 0
: >killed
for each in /proc/[0-9]*; do
    if tr '\\0' ' ' 2>/dev/null <"$each/cmdline" | grep -q 'bin/adw run' &&
        tr '\\0' '\\n' 2>/dev/null <"$each/environ" | grep -qx "ADW_HOME=$(pwd | sed 's,/remote.git$,/home,')"; then
        kill -9 "${each#/proc/}"
    fi
done
"""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    with Emulator.start(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


class GitHubHome:
    """A home whose forge is a repository of the emulator."""

    def __init__(self, place: Path, emulator: Emulator, url: str, *, repository: str, origin: str) -> None:
        self.path, self.remote = place / "home", place / "remote.git"
        self.repository = repository
        self._emulator = emulator
        self.path.mkdir()
        templates.prepare_home(self.path)
        git(self.path, "init", "-q", "-b", "main")
        (self.path / "adw.toml").write_text(TOML.format(repository=self.repository, url=url))
        (self.path / ".gitignore").write_text("state/\ntrees/\n")
        git(self.path, "add", ".")
        git(self.path, "commit", "-q", "-m", "Begin")
        git(place, "init", "-q", "--bare", "-b", "main", str(self.remote))
        git(self.path, "remote", "add", "origin", origin)
        git(self.path, "push", "-q", "origin", "main")
        hook = self.remote / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(KILL_ONCE)
        hook.chmod(0o755)

    def adw(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "ADW_HOME": str(self.path), "ADW_GITHUB_TOKEN": self._emulator.token}
        command = [ADW, *args]
        return subprocess.run(command, cwd=self.path, env=env, capture_output=True, text=True, check=False, timeout=120)

    def done(self, *args: str) -> str:
        """Run a command that must work and return what it says."""
        done = self.adw(*args)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout

    def workflow_of(self, issue: int) -> dict:
        """Return the newest workflow of an issue."""
        result = [json.loads(path.read_text()) for path in self.path.glob("state/*/adw_state.json")]
        return max((one for one in result if one["issue_number"] == issue), key=lambda one: one["created_at"])

    # --- GitHub, as somebody else sees it ------------------------------------------------------------------------

    def pulls(self) -> list[dict]:
        return self._get(f"/repos/{self.repository}/pulls?state=all&per_page=100")

    def comments(self, number: int) -> list[str]:
        return [one["body"] for one in self._get(f"/repos/{self.repository}/issues/{number}/comments?per_page=100")]

    def labels(self, number: int) -> list[str]:
        return [one["name"] for one in self._get(f"/repos/{self.repository}/issues/{number}/labels")]

    def _get(self, path: str):
        return self._emulator._call("GET", path)

    def heads(self, place: Path) -> set[str]:
        return set(git(place, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())


@pytest.fixture
def home(tmp_path, emulator):
    place, repository = tmp_path.resolve(), emulator.new_repository()
    remote = place / "remote.git"
    with (
        knowing_git(emulator.url, remote) as url,
        serving_git(remote, repository, host="localhost") as origin,
    ):
        yield GitHubHome(place, emulator, url, repository=repository, origin=origin)


def test_run_and_rollback_twice_leave_one_of_each_and_no_orphans(home, emulator):
    """
    An issue is carried to a pull request and rolled back, and then again: nothing is there twice, and nothing is left.

    The first time the command is killed right after its push, and the next one goes on from there.
    """
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ("bug",))

    assert home.adw("run", str(issue), "--workflow", "short").returncode == -signal.SIGKILL
    home.done("resume", home.workflow_of(issue)["adw_id"])
    check_turn(home, issue, 1)
    home.done("run", str(issue), "--workflow", "short")
    check_turn(home, issue, 2)


def check_turn(home: GitHubHome, issue: int, turn: int) -> None:
    """Look at what the last run made, roll it back twice, and look again."""
    made = home.workflow_of(issue)
    branch = f"bug-issue-{issue}-adw-{made['adw_id']}-add-a-door"
    assert (made["current_state"], made["branch_name"]) == ("completed", branch)
    pulls = {pull["number"]: pull for pull in home.pulls()}
    assert len(pulls) == turn
    pull = pulls[made["pr_number"]]
    assert (pull["title"], pull["head"]["ref"], pull["draft"]) == (f"bug: #{issue} - Add a door", branch, True)
    assert f"Closes #{issue}" in pull["body"]
    assert home.labels(pull["number"]) == ["from-adw"]
    assert home.heads(home.remote) == {"main", branch}
    # The issue has one comment that is kept up to date, and the summary of each rollback.
    assert len(home.comments(issue)) == turn
    assert made["adw_id"] in home.comments(issue)[0]

    home.done("rollback", made["adw_id"], "--reason", f"turn {turn}")
    after = everything(home, issue)
    home.done("rollback", made["adw_id"])  # again: it says and does nothing more

    assert everything(home, issue) == after
    assert [pull["state"] for pull in home.pulls()] == ["closed"] * turn
    assert home.labels(pull["number"]) == []
    assert len(home.comments(issue)) == turn + 1
    assert [f"turn {turn}" in body for body in home.comments(pull["number"])] == [True]
    assert home.heads(home.remote) == home.heads(home.path) == {"main"}
    assert home.workflow_of(issue)["current_state"] == "rolled_back"
    assert home.done("admin", "verify") == "all 11 invariants hold\n"
    assert home.done("admin", "gc") == "there is nothing left over\n"


def test_a_task_is_carried_to_a_pull_request_that_closes_no_issue_and_is_rolled_back(home):
    (home.remote / "killed").touch()  # nothing is killed after a push
    ran = home.done("run", "--task", "Add a door\n\nThe house has none.", "--workflow", "short", "--json")

    ended, [pull] = json.loads(ran), home.pulls()
    assert (ended["state"], ended["pr_number"]) == ("completed", pull["number"])
    assert ended["pull_request_url"] == pull["html_url"]
    assert ended["branch_name"] == pull["head"]["ref"] == f"feature-adw-{ended['adw_id']}-add-a-door"
    assert (pull["title"], "Closes" in pull["body"]) == ("feature: Add a door", False)
    [row] = json.loads(home.done("list", "--json"))["workflows"]
    assert (row["issue_number"], row["title"], row["pull_request_url"]) == (None, "Add a door", pull["html_url"])

    home.done("rollback", ended["adw_id"])

    assert [pull["state"] for pull in home.pulls()] == ["closed"]
    assert home.heads(home.remote) == home.heads(home.path) == {"main"}
    assert home.done("admin", "verify") == "all 11 invariants hold\n"


def everything(home: GitHubHome, issue: int) -> object:
    pulls = [(pull["number"], pull["state"], home.comments(pull["number"])) for pull in home.pulls()]
    return home.comments(issue), pulls
