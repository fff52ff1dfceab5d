"""`adw admin locks` as a person runs it: who has which issue, and how a lock is released."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from tests import sampling, templates, warm

ID, OTHER = "1a2b3c4d", "5e6f7a8b"

#: Makes workflows in the home it is started in; with "hold" it goes on owning the first one.
MAKE = """
import sys
from adws.config import load as config
from adws.adw_modules import document, timestamps
from adws.app import open_home

with open_home(config.from_environment(), role="worker") as app:
    now = timestamps.to_text(app.clock.now())
    for adw_id, issue, repository in (("1a2b3c4d", 42, ""), ("5e6f7a8b", 42, "octo/cat")):
        made = document.parse(
            {"adw_id": adw_id, "issue_number": issue, "repository": repository, "created_at": now, "updated_at": now}
        )
        with app.ownership.create(made):
            pass
    if "hold" in sys.argv:
        with app.ownership.own("1a2b3c4d"):
            print("owned", flush=True)
            sys.stdin.readline()
"""


@pytest.fixture
def make(home):
    """Make the workflows; with `hold` the process that owns the first one is returned."""
    running = []
    templates.prepare_home(home)

    def run(*args: str) -> subprocess.Popen[str]:
        process = warm.Popen(
            [sys.executable, "-c", MAKE, *args],
            cwd=home,
            env={**os.environ, "ADW_HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        if "hold" in args:
            assert process.stdout.readline() == "owned\n"
        else:
            process.communicate(timeout=60)
            assert process.returncode == 0
        return process

    yield run
    for process in running:
        with process:
            process.kill()


def test_without_locks_it_says_so(adw):
    assert adw("admin", "locks").stdout == "no issue is locked\n"
    assert adw("admin", "locks", "--json").json() == {"locks": []}


def test_each_lock_is_shown_with_its_workflow_and_owner(adw, make):
    worker = make("hold")
    shown = adw("admin", "locks", "--json")
    first, second = sorted(shown.json()["locks"], key=lambda lock: lock["repository"])

    assert (first["repository"], first["issue_number"], first["adw_id"], first["state"]) == ("", 42, ID, "pending")
    assert first["liveness"] == "alive"
    assert first["owner"].startswith(f"worker {worker.pid}@")
    assert 0 < first["lease_seconds_left"] <= 30
    assert 0 <= first["age_seconds"] < 60
    assert (second["repository"], second["adw_id"], second["owner"]) == ("octo/cat", OTHER, None)
    assert (second["liveness"], second["lease_seconds_left"]) == ("none", None)

    text = adw("admin", "locks").stdout
    assert f"worker {worker.pid}@" in text
    assert "octo/cat#42" in text
    assert "nobody works on it" in text


def test_a_dead_owner_is_shown_as_dead(adw, make):
    worker = make("hold")
    worker.kill()
    worker.wait()

    assert [lock["liveness"] for lock in adw("admin", "locks", "--json").json()["locks"]].count("dead") == 1


def test_a_lock_under_a_live_owner_is_released_only_by_force(adw, make):
    worker = make("hold")
    refused = adw("admin", "locks", "release", "42")
    assert refused.rc == 1
    assert f"issue 42 belongs to workflow {ID}, which worker {worker.pid}@" in refused.stderr
    assert "(alive) is working on: ask it to stop first, or add --force" in refused.stderr
    assert len(adw("admin", "locks", "--json").json()["locks"]) == 2

    forced = adw("admin", "locks", "release", "42", "--force", "--json")
    assert (forced.rc, forced.json()["event"]) == (0, False)
    assert [lock["adw_id"] for lock in adw("admin", "locks", "--json").json()["locks"]] == [OTHER]


def test_a_lock_that_nobody_works_under_is_released_with_an_event(adw, make):
    make()
    done = adw("admin", "locks", "release", "42", "--repository", "octo/cat")
    assert (done.rc, done.stdout) == (0, f"released issue 42 of octo/cat, which belonged to workflow {OTHER}\n")
    assert [lock["adw_id"] for lock in adw("admin", "locks", "--json").json()["locks"]] == [ID]

    event = adw("events", OTHER, "--json").json()["events"][-1]
    assert event["event_type"] == "lock_released"
    assert event["data"] == {"adw_id": OTHER, "holder": OTHER, "issue_number": 42, "repository": "octo/cat"}


@pytest.mark.parametrize(
    ("args", "setting", "released"),
    [
        (("--repository", "OCTO/Cat"), "", OTHER),
        (("--repository", "https://github.com/octo/cat"), "", OTHER),
        (("--repository", "acme/web"), "Acme/Web", ID),
    ],
)
def test_a_lock_is_found_by_every_name_of_its_repository(adw, make, args, setting, released):
    make()

    done = adw("admin", "locks", "release", "42", *args, "--json", env={"ADW_GITHUB_REPOSITORY": setting})

    assert done.rc == 0, done.stderr
    assert done.json()["adw_id"] == released


def test_the_lock_of_a_workflow_whose_document_is_gone_says_so(adw, make, home):
    make()
    with sqlite3.connect(home / "state" / "adw.db") as plain:
        plain.execute("DELETE FROM workflow_states WHERE adw_id = ?", (OTHER,))
    plain.close()
    shutil.rmtree(home / "state" / OTHER)

    shown = {lock["adw_id"]: lock["state"] for lock in adw("admin", "locks", "--json").json()["locks"]}

    assert shown == {ID: "pending", OTHER: "gone"}


def test_a_lock_of_a_dead_owner_is_released_without_force(adw, make):
    worker = make("hold")
    worker.kill()
    worker.wait()

    assert adw("admin", "locks", "release", "42").rc == 0
    kinds = [event["event_type"] for event in adw("events", ID, "--json").json()["events"]]
    assert kinds == ["workflow_created", "lease_taken_over", "lock_released"]


def test_a_lock_nobody_has_is_one_sentence(adw, make):
    make()
    missing = adw("admin", "locks", "release", "7")
    assert (missing.rc, missing.stderr) == (1, "adw: no workflow has issue 7; adw admin locks shows the locks\n")

    elsewhere = adw("admin", "locks", "release", "42", "--repository", "octo/dog")
    assert elsewhere.rc == 1
    assert "no workflow has issue 42 of octo/dog; there is one in" in elsewhere.stderr


def test_what_is_not_a_number_is_wrong_use(adw):
    wrong = adw("admin", "locks", "release", "abc")
    assert wrong.rc == 2
    assert "'abc' is not an issue number" in wrong.stderr


def test_a_document_that_cannot_be_read_keeps_its_lock_unless_forced(adw, make, home):
    make()
    for path in (home / "state" / ID).glob("adw_state.json*"):
        path.write_text("{")
    with_copy = adw("admin", "locks", "--json")
    assert with_copy.rc == 0

    (home / "state" / ID / "adw_state.json").unlink()
    (home / "state" / ID / "adw_state.json").symlink_to("/nonexistent")
    shown = {lock["adw_id"]: lock["state"] for lock in adw("admin", "locks", "--json").json()["locks"]}
    assert shown[ID] == "unreadable"
    assert adw("admin", "locks", "release", "42").rc == 1
    assert adw("admin", "locks", "release", "42", "--force", "--json").json()["event"] is False


def test_a_release_tells_what_stands_in_for_a_damaged_document(adw, make, home):
    make()
    (home / "state" / ID / "adw_state.json").write_text("{torn")

    done = adw("admin", "locks", "release", "42")

    assert done.rc == 0, done.stderr
    assert "revision 1 was used, because" in done.stderr


def test_listing_starts_without_the_slow_libraries(home, make):
    make()
    script = (
        "import json, sys; from adws.cli.main import run; code = run(['admin', 'locks', '--json']);"
        "print(json.dumps([code, [m for m in ('sqlalchemy', 'alembic') if m in sys.modules]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=home,
        env={**os.environ, "ADW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.strace
@pytest.mark.parametrize(
    ("lock", "error"), sampling.each_value_once(["adw.db.write-lock", f"{ID}/.lock"], ["ENOSPC", "EDQUOT"])
)
def test_a_lock_that_a_full_disk_refuses_says_that_the_disk_is_full(home, make, lock, error):
    make().wait()
    path = home / "state" / lock

    done = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", os.devnull, "-P", str(path), "-e", "trace=openat"),
            *("-e", f"inject=openat:error={error}", warm.ADW, "--home", str(home), "abandon", ID),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"adw: cannot lock {path}: the disk is full (")
    assert done.stderr.endswith("; make room, adw admin gc --execute removes what finished workflows left\n")
