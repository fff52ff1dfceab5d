"""`adw rollback`, `gc`, `verify` and `adopt` as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests import warm
from tests.integration.tidy_lab import ADW_ID, TidyHome, branch_of, git

ADW = warm.ADW


@pytest.fixture
def lab(tmp_path) -> TidyHome:
    made = TidyHome(tmp_path.resolve() / "home")
    with made.open() as app:
        made.make(app)
    return made


def adw(lab: TidyHome, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ADW_HOME": str(lab.path)}
    return warm.run([ADW, *args], cwd=lab.path, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_a_plan_first_then_nothing_is_left(lab):
    plan = adw(lab, "rollback", ADW_ID, "--dry-run")

    assert plan.returncode == 0
    assert f"will: remove the worktree {lab.tree()}" in plan.stdout
    assert lab.tree().exists()

    done = adw(lab, "rollback", f"adw-{ADW_ID}", "--reason", "the plan was wrong")

    assert done.returncode == 0, done.stderr
    assert f"workflow {ADW_ID} is rolled back" in done.stdout
    assert f"refs/adw/salvage/{ADW_ID}" in done.stdout
    assert done.stderr == ""
    assert lab.heads() == lab.remote_heads() == {"main"}
    for command in (("admin", "verify"), ("admin", "gc")):
        assert adw(lab, *command).returncode == 0
    assert "there is nothing left over" in adw(lab, "admin", "gc").stdout
    assert adw(lab, "admin", "verify").stdout == "all 11 invariants hold\n"
    again = adw(lab, "rollback", ADW_ID, "--json")
    assert (again.returncode, json.loads(again.stdout)["complete"]) == (0, True)


def test_what_is_blocked_is_told_with_exit_code_1_and_goes_on_later(lab):
    git(lab.path, "remote", "set-url", "origin", str(lab.path / "nowhere.git"))

    blocked = adw(lab, "rollback", ADW_ID)

    assert blocked.returncode == 1
    assert "is not rolled back yet" in blocked.stdout
    assert not lab.tree().exists()
    assert "finish it with adw rollback" in adw(lab, "resume", ADW_ID).stderr
    assert "rollback" in adw(lab, "status", ADW_ID).stdout

    git(lab.path, "remote", "set-url", "origin", str(lab.remote))
    assert adw(lab, "rollback", ADW_ID).returncode == 0


def test_a_merged_pull_request_is_refused(lab):
    with lab.open() as app:
        pull = app.forge.pull_requests_of(branch_of(ADW_ID, 1))[0]
        app.forge.edit_pull_request(pull.number, is_draft=False)
        app.forge.merge_pull_request(pull.number, sha=pull.head_sha)

    refused = adw(lab, "rollback", ADW_ID)

    assert refused.returncode == 1
    assert "is merged, which is not undone" in refused.stderr
    assert lab.tree().exists()


def test_a_worker_that_lives_is_asked_and_a_killed_one_is_taken_over(lab):
    code = (
        "import sys\nfrom adws.config import load as config\nfrom adws.app import open_home\n"
        "with open_home(config.from_environment(), role='worker') as app, app.ownership.own(sys.argv[1]):\n"
        "    print('owned', flush=True)\n    sys.stdin.read()\n"
    )
    env = {**os.environ, "ADW_HOME": str(lab.path)}
    worker = warm.Popen(
        [sys.executable, "-c", code, ADW_ID], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout.readline() == "owned\n"

    busy = adw(lab, "rollback", ADW_ID, "--wait", "0")
    assert busy.returncode == 1
    assert "is being worked on" in busy.stderr

    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert adw(lab, "rollback", ADW_ID).returncode == 0


def test_a_violation_is_named_with_exit_code_1(lab):
    git(lab.path, "branch", branch_of("99999999", 9))

    result = adw(lab, "admin", "verify")
    as_json = adw(lab, "admin", "verify", "--json")

    assert (result.returncode, as_json.returncode) == (1, 1)
    assert "6. Everything made outside is in the ledger." in result.stdout
    assert json.loads(as_json.stdout)["by_invariant"]["6"] == 1


def test_orphans_are_listed_and_removed_only_with_execute(lab):
    branch = branch_of("99999999", 9)
    git(lab.path, "branch", branch)

    listed = adw(lab, "admin", "gc")
    assert (listed.returncode, branch in listed.stdout, branch in lab.heads()) == (0, True, True)
    assert "there is no such workflow" in listed.stdout
    assert adw(lab, "admin", "gc", "--older-than", "soon").returncode == 2

    removed = adw(lab, "admin", "gc", "--execute", "--json")
    assert (removed.returncode, branch in lab.heads()) == (0, False)
    assert json.loads(removed.stdout)["orphans"][0]["removed"] is True


def test_a_worktree_is_adopted(lab):
    branch = branch_of("99999999", 9)
    git(lab.path, "worktree", "add", "-q", "-b", branch, str(lab.tree("99999999")))

    done = adw(lab, "admin", "adopt", "99999999")

    assert done.returncode == 0, done.stderr
    assert "it is new and paused" in done.stdout
    assert adw(lab, "admin", "adopt", "nothing").returncode == 2


def test_a_home_where_nobody_worked_has_nothing_to_tidy(home, tmp_path):
    env = {**os.environ, "ADW_HOME": str(home)}
    for command, said in (
        (("admin", "gc"), "there is nothing left over"),
        (("admin", "verify"), "all 11 invariants hold"),
    ):
        done = warm.run([ADW, *command], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout) == (0, True)
    assert not (home / "state").exists()
