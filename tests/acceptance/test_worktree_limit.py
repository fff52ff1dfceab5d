"""The limit of worktrees as a person meets it: released at the end, and named everywhere when it is reached."""

from __future__ import annotations

import pytest

from tests.integration.work_lab import git

TOML = """
[forge]
kind = "none"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
max_worktrees = {most}
[notify]
command = "sh -c 'echo $ADW_NOTIFY_KIND $ADW_NOTIFY_TITLE >> told.txt'"
events = ["quota"]
[[workflows.short.phases]]
name = "build"
shell = "echo $ADW_ID >> made.txt"
[[workflows.short.phases]]
name = "ship"
runner = "ship"
on_rework = "build"
[[workflows.kept.phases]]
name = "build"
shell = "echo $ADW_ID >> made.txt"
"""
DETAIL = "2 of 2 worktrees are in use: finish or roll back a workflow (adw list)"


@pytest.fixture
def repository(tmp_path, home):
    bare = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(home, "init", "-q", "-b", "main")
    (home / ".gitignore").write_text("state/\ntrees/\nadw.toml\ntold.txt\n")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "Begin")
    git(home, "remote", "add", "origin", str(bare))
    git(home, "push", "-q", "origin", "main")

    return home


def settings(home, *, most):
    (home / "adw.toml").write_text(TOML.format(most=most))


def trees(home):
    return sorted(path.name for path in (home / "trees").iterdir()) if (home / "trees").exists() else []


def test_workflows_that_push_their_branch_release_their_worktree_at_the_end(adw, repository):
    settings(repository, most=1)

    ids = [adw("run", str(issue), "--workflow", "short", "--json") for issue in (1, 2, 3)]

    assert [done.rc for done in ids] == [0, 0, 0]
    assert trees(repository) == []
    for done in ids:
        adw_id = done.json()["adw_id"]
        state = adw("state", "show", adw_id, "--json").json()
        branch = state["branch_name"]
        assert (state["current_state"], state["worktree_path"]) == ("completed", None)
        assert git(repository, "rev-parse", branch) == git(repository, "ls-remote", "origin", branch).split()[0]
        assert "worktree_released" in adw("events", adw_id).stdout
    assert (adw("quota").rc, adw("admin", "verify").rc) == (0, 0)


def test_a_worktree_is_kept_when_its_branch_is_not_pushed(adw, repository):
    settings(repository, most=3)

    unpushed = adw("run", "2", "--workflow", "kept", "--json").json()["adw_id"]

    assert trees(repository) == [unpushed]


def test_a_limit_that_is_reached_is_named_by_every_command_and_told_once(adw, repository):
    settings(repository, most=2)
    ids = [adw("run", str(issue), "--workflow", "kept", "--detach", "--json").json()["adw_id"] for issue in (1, 2, 3)]

    adw("worker", "--once")

    assert len(trees(repository)) == 2
    (waiting,) = set(ids) - set(trees(repository))
    quota, stuck = adw("quota"), adw("status", "--json").json()
    assert quota.rc == 1
    assert "REACHED" in quota.stdout
    assert DETAIL in quota.stdout
    assert adw("quota", "--json").json()["is_exceeded"] is True
    assert [(one["adw_id"], one["kind"]) for one in stuck["stuck"]] == [(waiting, "limit")]
    assert [one["name"] for one in stuck["limits"]] == ["worktrees"]
    assert f"the quota worktrees is used up, so that new work waits: {DETAIL}" in adw("status").stdout
    for _ in range(2):
        assert "used up, so that new work waits: worktrees" in adw("cron", "--now", "quota").stdout
        adw("cron", "--now", "notify")
    told = (repository / "told.txt").read_text().splitlines()
    assert len(told) == 1
    assert told[0].startswith("quota_exceeded the quota worktrees@")
    settings(repository, most=3)
    assert adw("quota").rc == 0
    assert adw("status", "--json").json()["limits"] == []


def test_stuck_names_a_limit_that_is_reached_when_nothing_waits_for_it(adw, repository):
    settings(repository, most=1)
    adw("run", "1", "--workflow", "kept")

    shown = adw("status")

    assert shown.stdout.startswith(
        "the quota worktrees is used up, so that new work waits: 1 of 1 worktrees are in use"
    )
