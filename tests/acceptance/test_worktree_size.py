"""The limit on the size of a worktree as a person meets it: its workflow pauses and says why, the others go on."""

from __future__ import annotations

import os

import pytest

from tests.acceptance.cli_lab import Beside, document, has_begun
from tests.integration.work_lab import git

#: Four phases; `fill` puts 3 MB into a directory that git ignores, as a package manager does.
TOML = """
[forge]
kind = "none"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
max_worktree_size = "{most}"
[notify]
command = "sh -c 'echo $ADW_NOTIFY_KIND $ADW_NOTIFY_TITLE >> told.txt'"
events = ["quota", "paused"]
[[workflows.grows.phases]]
name = "build"
shell = "{fill}"
[[workflows.grows.phases]]
name = "test"
shell = "echo tested >> made.txt"
[[workflows.small.phases]]
name = "build"
shell = "echo built >> made.txt"
[[workflows.small.phases]]
name = "test"
shell = "echo tested >> made.txt"
[[workflows.runaway.phases]]
name = "build"
shell = "{fill}; echo up > {home}/up; cat {home}/go"
[[workflows.waits.phases]]
name = "build"
shell = "{fill}; echo connection reset by peer >&2; exit 1"
retry = {{ base_seconds = 300, max_seconds = 300, strategy = "fixed" }}
[[workflows.cleans.phases]]
name = "build"
shell = "{fill}"
[[workflows.cleans.phases]]
name = "clean"
runner = "clean"
"""
FILL = "mkdir -p node_modules; head -c 3145728 /dev/urandom > node_modules/big"
ADVICE = "remove what was built in it, or raise quota.max_worktree_size"


@pytest.fixture
def repository(tmp_path, home):
    bare = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(home, "init", "-q", "-b", "main")
    (home / ".gitignore").write_text("state/\ntrees/\nadw.toml\ntold.txt\nnode_modules/\nup\ngo\n")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "Begin")
    git(home, "remote", "add", "origin", str(bare))
    git(home, "push", "-q", "origin", "main")
    os.mkfifo(home / "up")
    os.mkfifo(home / "go")

    return home


@pytest.fixture
def settings(repository):
    def write(most="2 MiB"):
        (repository / "adw.toml").write_text(TOML.format(most=most, fill=FILL, home=repository))

    write()
    return write


def attempts(home, adw_id):
    return {phase["name"]: len(phase["attempts"]) for phase in document(home, adw_id)["phases"]}


def test_a_workflow_whose_worktree_reaches_the_limit_pauses_before_its_next_phase_and_others_go_on(
    adw, repository, settings
):
    large = adw("run", "1", "--workflow", "grows", "--json").json()["adw_id"]

    state = document(repository, large)
    assert (state["current_state"], attempts(repository, large)) == ("paused", {"build": 1, "test": 0})
    assert state["pause_reason"].startswith(f"the worktree {repository}/trees/{large} has 3 MB of 2 MB")
    assert state["pause_reason"].endswith(f"{ADVICE}, then: adw resume {large}")
    assert adw("run", "2", "--workflow", "small").rc == 0
    explained = adw("status", large).stdout
    assert "3 MB of 2 MB" in explained
    again = adw("resume", large)
    assert (again.rc, document(repository, large)["current_state"]) == (1, "paused")
    assert "3 MB of 2 MB" in again.stdout
    (repository / "trees" / large / "node_modules" / "big").unlink()
    assert adw("resume", large).rc == 0
    assert (document(repository, large)["current_state"], attempts(repository, large)) == (
        "completed",
        {"build": 1, "test": 1},
    )


def test_quota_and_cron_say_of_a_large_worktree_what_happens_to_it(adw, repository, settings):
    large = adw("run", "1", "--workflow", "grows", "--json").json()["adw_id"]

    shown, data = adw("quota"), adw("quota", "--json").json()
    line = next(line for line in shown.stdout.splitlines() if line.startswith("worktree_size "))
    assert (shown.rc, data["is_exceeded"]) == (1, True)
    assert (line.split()[1:5], line.split()[-1]) == (["3", "MB", "-", "-"], "REACHED")
    detail = f"{repository}/trees/{large} has 3 MB of 2 MB, and the workflow that works in it pauses: {ADVICE}"
    assert detail in shown.stdout
    for _ in range(2):
        cron = adw("cron", "--now", "quota").stdout
        assert f"worktree too large: {large} (paused)" in cron
        assert "new work waits" not in cron
        adw("cron", "--now", "notify")
    told = (repository / "told.txt").read_text().splitlines()
    assert sorted(line.split()[0] for line in told) == ["paused", "quota_exceeded"]
    assert any(line.endswith(" is used up: workflows with such a worktree pause") for line in told)
    assert adw("status", "--json").json()["stuck"] == []
    settings("1 GiB")
    assert adw("quota").rc == 0
    assert "no quota is used up" in adw("cron", "--now", "quota").stdout


def test_cron_pauses_a_workflow_in_the_middle_of_a_phase_that_fills_its_worktree(adw, repository, settings):
    with Beside(repository, "run", "1", "--workflow", "runaway") as running:
        has_begun(repository)
        (large,) = [path.name for path in (repository / "trees").iterdir()]
        cron = adw("cron", "--now", "quota")
        code = running.end()

    state = document(repository, large)
    (attempt,) = state["phases"][0]["attempts"]
    assert f"worktree too large: {large} (asked to pause)" in cron.stdout
    assert (code, state["current_state"], attempt["status"]) == (1, "paused", "suspended")
    assert state["pause_reason"].startswith(f"the worktree {repository}/trees/{large} has 3 MB of 2 MB")
    assert state["phases"][0]["attempts_used"] == 0, "an attempt that was stopped on order is not counted"


def test_cron_pauses_a_workflow_that_waits_for_its_next_attempt(adw, repository, settings):
    large = adw("run", "1", "--workflow", "waits", "--detach", "--json").json()["adw_id"]
    adw("worker", "--once")
    assert document(repository, large)["phases"][0]["status"] == "retry_wait"

    adw("cron", "--now", "quota")

    state = document(repository, large)
    assert (state["current_state"], len(state["phases"][0]["attempts"])) == ("paused", 1)
    assert "3 MB of 2 MB" in state["pause_reason"]


def test_a_large_worktree_that_is_about_to_be_removed_pauses_nothing(adw, repository, settings):
    large = adw("run", "1", "--workflow", "cleans", "--json").json()["adw_id"]

    assert document(repository, large)["current_state"] == "completed"


def test_without_a_limit_no_worktree_is_measured_and_quota_says_so(adw, repository, settings):
    settings("off")
    large = adw("run", "1", "--workflow", "grows", "--json").json()["adw_id"]

    shown = adw("quota")
    assert document(repository, large)["current_state"] == "completed"
    assert shown.rc == 0
    assert "worktree_size: quota.max_worktree_size is off: worktrees are not measured" in shown.stdout


def test_a_size_below_a_gigabyte_is_shown_in_megabytes(adw, home):
    limits = {"ADW_QUOTA_MIN_FREE_DISK": "1 MiB", "ADW_QUOTA_MIN_FREE_MEMORY": "1000000 GiB"}
    shown = adw("quota", env={**limits, "ADW_QUOTA_MAX_WORKTREE_SIZE": "1536 MiB"}).stdout

    by_name = {line.split()[0]: line for line in shown.splitlines() if line}
    assert " 1 MB " in by_name["disk"]
    assert "1000000 GB" in by_name["memory"]
    assert "1.5 GB" in by_name["worktree_size"]
    assert "0 MB" in by_name["worktree_size"]
