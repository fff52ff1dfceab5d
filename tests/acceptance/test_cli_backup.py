"""`adw db backup` and `adw db restore` as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile

import pytest

from tests import templates, warm

ID = "1a2b3c4d"

#: Makes a workflow in the home it is started in; with "hold" it goes on owning it.
MAKE = """
import sys
from adws.config import load as config
from adws.adw_modules import document, timestamps
from adws.app import open_home

with open_home(config.from_environment(), role="worker") as app:
    now = timestamps.to_text(app.clock.now())
    fields = {"adw_id": "1a2b3c4d", "issue_number": 42, "created_at": now, "updated_at": now}
    with app.ownership.create(document.parse(fields)):
        if "hold" in sys.argv:
            print("owned", flush=True)
            sys.stdin.readline()
"""


def make(home, *args: str) -> subprocess.Popen[str]:
    templates.prepare_home(home)
    return warm.Popen(
        [sys.executable, "-c", MAKE, *args],
        cwd=home,
        env={**os.environ, "ADW_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def made(home):
    with make(home) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_home_comes_back_from_its_backup(adw, home, made, tmp_path):
    done = adw("db", "backup", str(tmp_path / "b.tar.gz"))
    assert done.rc == 0
    assert f"wrote {tmp_path}/b.tar.gz" in done.stdout
    assert "1 workflow, 1 event, and the database" in done.stdout
    (home / "state").rename(home / "lost")

    back = adw("db", "restore", str(tmp_path / "b.tar.gz"))
    assert (back.rc, back.stdout) == (0, "restored 1 workflow (0 replaced), 1 event, and the database\n")
    assert adw("status", ID, "--json").json()["state"] == "pending"
    kinds = [event["event_type"] for event in adw("events", ID, "--json").json()["events"]]
    assert kinds == ["workflow_created", "backup_restored"]
    assert [lock["adw_id"] for lock in adw("admin", "locks", "--json").json()["locks"]] == [ID]


def test_without_a_path_it_is_written_here_under_the_time(adw, home, made, tmp_path):
    report = adw("db", "backup", "--json", cwd=tmp_path).json()

    assert report["path"].startswith(f"{tmp_path}/adw-backup-")
    assert report["has_database"] is True
    with tarfile.open(report["path"]) as archive:
        assert archive.getnames()[-1] == "manifest.json"


def test_a_backup_with_another_ending_is_named_as_it_is(adw, made, tmp_path):
    done = adw("db", "backup", "mine.zip", cwd=tmp_path)

    assert f"wrote {tmp_path}/mine.zip (a .tar.gz archive, " in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mine.zip"]
    assert adw("db", "restore", "mine.zip", "--force", cwd=tmp_path).rc == 0
    assert "a .tar.gz archive" not in adw("db", "backup", "mine.tar.gz", cwd=tmp_path).stdout


def test_an_existing_file_is_not_overwritten(adw, made, tmp_path):
    (tmp_path / "mine").write_text("precious")
    refused = adw("db", "backup", str(tmp_path / "mine"))

    assert (refused.rc, (tmp_path / "mine").read_text()) == (1, "precious")
    assert refused.stderr == f"adw: {tmp_path}/mine exists already: choose another name\n"


def test_existing_workflows_are_replaced_only_by_force(adw, made, tmp_path):
    backup = str(tmp_path / "b.tar.gz")
    adw("db", "backup", backup)
    refused = adw("db", "restore", backup)
    assert refused.rc == 1
    assert f"{ID} exist already: add --force to replace them" in refused.stderr

    assert adw("db", "restore", backup, "--force", "--json").json()["replaced"] == [ID]


def test_it_refuses_while_an_owner_works(adw, home, tmp_path):
    with make(home, "hold") as worker:
        assert worker.stdout.readline() == "owned\n"
        backup = str(tmp_path / "b.tar.gz")
        assert adw("db", "backup", backup).rc == 0, "a backup stops nobody"
        refused = adw("db", "restore", backup, "--force")
        worker.kill()

    assert refused.rc == 1
    assert f"workflows are being worked on: {ID} (worker {worker.pid}@" in refused.stderr
    assert refused.stderr.endswith("; stop them first\n")


def test_what_is_no_backup_is_one_sentence(adw, tmp_path):
    (tmp_path / "x").write_text("hello")
    refused = adw("db", "restore", str(tmp_path / "x"))

    assert refused.rc == 1
    assert refused.stderr.startswith(f"adw: cannot read the backup {tmp_path}/x:")
    assert refused.stderr.count("\n") == 1
