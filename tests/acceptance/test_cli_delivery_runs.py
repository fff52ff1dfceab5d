"""A home with deliveries in its queue: the commands that look at runs and check a home take them as they are."""

from __future__ import annotations

import pytest

from adws.app import open_home
from adws.config.load import load
from tests.contracts.delivery_contract import accepted, delivery, ignored


@pytest.fixture
def run_id(home):
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as opened:
        accepted(opened.deliveries, ignored("g2"))
        return accepted(opened.deliveries, delivery("g1", adw_id="a0000001")).run_id


def test_runs_shows_what_a_delivery_asks_for(adw, run_id):
    (shown,) = adw("queue", "runs", "--json").json()["runs"]

    assert (shown["run_id"], shown["kind"], shown["payload"]) == (run_id, "delivery", {"guid": "g1"})
    assert "delivery" in adw("queue", "runs").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("admin", "verify"),
        ("db", "check"),
        ("admin", "gc"),
        ("admin", "recover", "--dry-run"),
        ("admin", "recover"),
        ("db", "rebuild"),
    ],
)
def test_nothing_is_wrong_with_a_run_that_has_no_workflow(adw, run_id, command):
    done = adw(*command)

    assert done.rc == 0, done.stdout + done.stderr
    (shown,) = adw("queue", "runs", "--json").json()["runs"]
    assert shown["adw_id"] not in done.stdout + done.stderr
    assert (shown["run_id"], shown["state"]) == (run_id, "pending")


def test_a_backup_brings_deliveries_back(adw, home, run_id, tmp_path):
    assert adw("db", "backup", str(tmp_path / "backup.tar")).rc == 0
    for file in (home / "state").glob("adw.db*"):
        file.unlink()
    restored = adw("db", "restore", str(tmp_path / "backup.tar"))

    assert restored.rc == 0, restored.stdout + restored.stderr
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as opened:
        assert [row.guid for row in opened.deliveries.page()] == ["g1", "g2"]
        assert opened.deliveries.get("g1").run_id == run_id
        again = accepted(opened.deliveries, delivery("g1", adw_id="a0000003"))
        assert (again.is_new, again.adw_id) == (False, "a0000001")
