"""`adw admin ports` and `adw quota` as a person calls them."""

from __future__ import annotations

import socket

import pytest

from adws.app import open_home
from adws.config.load import load
from tests.homes import free_range

SMALL = {"ADW_QUOTA_MIN_FREE_DISK": "1", "ADW_QUOTA_MIN_FREE_MEMORY": "1"}


@pytest.fixture
def app(home):
    span = free_range(2)
    env = {
        **SMALL,
        "ADW_HOME": str(home),
        "ADW_PORTS_BACKEND_START": str(span.backend_start),
        "ADW_QUOTA_MAX_WORKTREES": "2",
    }
    with open_home(load(env=env, cwd=home)) as opened:
        yield opened


def test_a_new_home_has_no_ports_and_looking_makes_no_database(adw, home):
    shown = adw("admin", "ports")

    assert (shown.rc, shown.stdout) == (0, "no workflow has ports\n")
    assert adw("admin", "ports", "--json").json() == {"ports": []}
    assert adw("quota", env=SMALL).rc == 0
    assert not (home / "state").exists()


def test_ports_shows_who_has_what(adw, app):
    pair = app.ports.take("1a2b3c4d")

    rows = adw("admin", "ports", "--json").json()["ports"]
    shown = adw("admin", "ports")

    assert [(row["port"], row["purpose"], row["adw_id"], row["in_use"]) for row in rows] == [
        (pair.backend, "backend", "1a2b3c4d", True),
        (pair.frontend, "frontend", "1a2b3c4d", True),
    ]
    assert rows[0]["host"] == socket.gethostname()
    assert f"{pair.backend}" in shown.stdout
    assert "held or used" in shown.stdout
    assert app.ports.is_held("1a2b3c4d"), "looking took nothing away"
    app.ports.close()
    assert adw("admin", "ports", "--json").json()["ports"][0]["in_use"] is False


def test_quota_shows_every_limit_and_ends_well_when_all_are_kept(adw):
    shown = adw("quota", env=SMALL)
    data = adw("quota", "--json", env=SMALL).json()

    assert shown.rc == 0
    names = [one["name"] for one in data["quotas"]]
    assert names == ["disk", "memory", "worktrees", "worktree_size", "cost", "cost_per_day", "runs"]
    assert all(name in shown.stdout for name in names)
    assert data["is_exceeded"] is False
    assert "what the workflow will cost is not known" in shown.stdout


def test_quota_ends_with_1_and_says_what_to_do_when_a_limit_is_reached(adw):
    shown = adw("quota", env={**SMALL, "ADW_QUOTA_MIN_FREE_DISK": "1000000 GiB"})
    data = adw("quota", "--json", env={**SMALL, "ADW_QUOTA_MIN_FREE_DISK": "1000000 GiB"})

    assert shown.rc == data.rc == 1
    assert "REACHED" in shown.stdout
    assert "make room, or lower quota.min_free_disk" in shown.stdout
    assert data.json()["is_exceeded"] is True


def test_quota_counts_places_that_are_taken(adw, app):
    app.quotas.admit("1a2b3c4d")

    runs = next(one for one in adw("quota", "--json", env=SMALL).json()["quotas"] if one["name"] == "runs")

    assert (runs["used"], runs["limit"]) == (1, 15)


def test_git_works_on_the_repository_of_the_home(app, home):
    assert app.git.root == home
    made = app.git.add_worktree(home / "trees" / "1a2b3c4d", branch="feature-x", start="main", reason="adw 1a2b3c4d")
    (made.path / "a.txt").write_text("a")

    assert app.workplace.commit_all(made.path, "feat: a") == app.git.commit_of("feature-x")
