"""A home with deliveries in its queue: the commands that look at runs and check a home take them as they are."""

from __future__ import annotations

import pytest

from adws.app import open_home
from adws.config.load import load
from tests.contracts.delivery_contract import delivery, ignored


@pytest.fixture
def run_id(home):
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as opened:
        opened.deliveries.accept(ignored("g2"), run_id_of="d0000002", adw_id="a0000002")
        return opened.deliveries.accept(delivery("g1"), run_id_of="d0000001", adw_id="a0000001").row.run_id


def test_runs_shows_what_a_delivery_asks_for(adw, run_id):
    (shown,) = adw("runs", "--json").json()["runs"]

    assert (shown["run_id"], shown["adw_id"], shown["kind"], shown["payload"]) == (
        run_id,
        "d0000001",
        "delivery",
        {"guid": "g1"},
    )
    assert "delivery" in adw("runs").stdout


@pytest.mark.parametrize(
    "command", [("verify",), ("db", "check"), ("gc",), ("recover", "--dry-run"), ("recover",), ("db", "rebuild")]
)
def test_nothing_is_wrong_with_a_run_that_has_no_workflow(adw, run_id, command):
    done = adw(*command)

    assert done.rc == 0, done.stdout + done.stderr
    assert "d0000001" not in done.stdout + done.stderr
    (shown,) = adw("runs", "--json").json()["runs"]
    assert (shown["run_id"], shown["state"]) == (run_id, "pending")


def test_a_backup_brings_deliveries_back(adw, home, run_id, tmp_path):
    assert adw("backup", str(tmp_path / "backup.tar")).rc == 0
    for file in (home / "state").glob("adw.db*"):
        file.unlink()
    restored = adw("restore", str(tmp_path / "backup.tar"))

    assert restored.rc == 0, restored.stdout + restored.stderr
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as opened:
        assert [row.guid for row in opened.deliveries.page()] == ["g1", "g2"]
        assert opened.deliveries.get("g1").run_id == run_id
        again = opened.deliveries.accept(delivery("g1"), run_id_of="d0000003", adw_id="a0000003")
        assert (again.is_new, again.row.adw_id) == (False, "a0000001")
