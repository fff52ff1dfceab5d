"""A remote that answers 502 for a while, as a person at the command line meets it: a real git server, real commands."""

from __future__ import annotations

import json

import pytest

from tests import failing_git_server
from tests.integration.work_lab import git

TOML = """
[forge]
kind = "none"
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
max_attempts = 2
retry = {{ base_seconds = {base} }}
[[workflows.strange.phases]]
name = "build"
call = "odd:build"
"""
ODD = """
def build(context):
    raise ValueError("the frobnicator is upset")
"""


@pytest.fixture
def remote(tmp_path, home, monkeypatch):
    """Make *home* a repository with a remote over HTTP."""
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:http")  # tests are kept from the network otherwise
    bare = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    with failing_git_server.serve(bare).running() as server:
        git(home, "init", "-q", "-b", "main")
        (home / ".gitignore").write_text("state/\ntrees/\n__pycache__/\n")
        settle(home)
        (home / "odd.py").write_text(ODD)
        git(home, "add", ".")
        git(home, "commit", "-q", "-m", "Begin")
        git(home, "remote", "add", "origin", server.url)
        git(home, "push", "-q", "origin", "main")
        server.tries = 1
        yield server


def settle(home, *, base=0.05):
    (home / "adw.toml").write_text(TOML.format(base=base))


def start(adw, issue=7, *how):
    done = adw(
        "run", str(issue), "--title", "Add a thing", "--body", "It is wanted.", "--workflow", "short", "--json", *how
    )
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)["adw_id"]


def ship_of(adw, adw_id):
    return adw("status", adw_id, "--json").json()["phases"][-1]


def test_a_workflow_whose_remote_answers_502_for_a_while_completes_and_uses_one_attempt(adw, home, remote):
    remote.failures_left = 4

    done, adw_id = start(adw)

    assert (done.rc, remote.refused) == (0, 4)
    ship = ship_of(adw, adw_id)
    assert (ship["status"], ship["attempts_used"], ship["parked_attempts"]) == ("complete", 1, 4)
    assert "ship: git is not available (network)" in done.stderr
    assert "the attempt does not count" in done.stderr
    assert adw("admin", "verify").rc == 0


def test_a_server_that_fails_in_the_middle_of_a_push_is_waited_for_too(adw, home, remote):
    remote.tries = 2  # the preflight, and what git asks before it sends
    remote.failures_left = 2

    done, adw_id = start(adw)

    assert (done.rc, remote.refused) == (0, 2)
    ship = ship_of(adw, adw_id)
    assert (ship["status"], ship["attempts_used"], ship["parked_attempts"]) == ("complete", 1, 2)


def test_a_remote_that_refuses_the_push_is_not_waited_for(adw, home, remote):
    remote.status, remote.failures_left = 403, -1

    done, adw_id = start(adw)

    ship = ship_of(adw, adw_id)
    assert (done.rc, ship["status"], ship["parked_attempts"]) == (1, "failed", 0)
    assert "403" in done.stderr
    assert "adw retry" in done.json()["advice"]


def test_status_says_what_is_waited_for_and_when_adw_gives_up(adw, home, remote):
    settle(home, base=300)
    remote.failures_left = -1
    _, adw_id = start(adw, 7, "--detach")

    adw("worker", "--once")

    ship, shown = ship_of(adw, adw_id), adw("status", adw_id).stdout
    assert (ship["status"], ship["attempts_used"], ship["parks"]) == ("retry_wait", 0, 1)
    assert ship["wait_deadline_at"] > ship["retry_at"]
    assert "waiting: ship until " in shown
    assert "git is not available (network): " in shown
    assert f"adw gives up at {ship['wait_deadline_at'][:10]} " in shown
    assert "The wait uses no attempt" in adw("status", adw_id).stdout


def test_everything_that_waits_for_a_service_is_due_when_its_breaker_is_reset(adw, home, remote):
    settle(home, base=300)
    remote.failures_left = -1
    remote.tries = 6
    ids = [start(adw, issue, "--detach")[1] for issue in range(7, 13)]
    adw("worker", "--once")
    waiting = [ship_of(adw, adw_id) for adw_id in ids]
    tried, kept_back = [("retry_wait", 1)] * 5, ("retry_wait", 0)
    assert [(one["status"], one["parked_attempts"]) for one in waiting] == [*tried, kept_back]
    remote.failures_left = 0

    reset = adw("admin", "breakers", "reset", "git", "--json").json()
    adw("worker", "--once")

    assert (reset["closed"], sorted(reset["due"])) == (["git"], sorted(ids))
    assert [ship_of(adw, adw_id)["status"] for adw_id in ids] == ["complete"] * 6


def test_an_error_that_nothing_is_known_about_fails_a_workflow_at_once(adw, home, remote):
    done = adw("run", "7", "--workflow", "strange", "--json")

    result = adw("status", json.loads(done.stdout)["adw_id"], "--json").json()
    (build,) = result["phases"]
    assert (done.rc, result["state"], build["terminal_reason"]) == (1, "failed", "NOT_RETRYABLE")
    (attempt,) = build["attempts"]
    assert (attempt["category"], attempt["error"]) == ("fatal", "the frobnicator is upset")
