"""`adw explain` and `adw status` for a workflow in every situation."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside

#: What a view must not load: each takes longer than the view itself.
HEAVY = ("pydantic", "sqlalchemy", "alembic", "filelock", "rich", "psutil", "pythonjsonlogger", "psycopg")


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def start(adw, workflow, *args):
    return adw("run", "7", "--workflow", workflow, "--json", *args).json()["adw_id"]


def explained(adw, adw_id):
    done = adw("explain", adw_id)
    assert (done.rc, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    return done.stdout


def test_what_waits_for_a_worker_and_what_is_over(adw):
    adw_id = start(adw, "short", "--detach")

    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} is pending and waits for a worker. A worker takes it up."
        f" Type: adw worker, or adw resume {adw_id}.\n"
    )
    adw("worker", "--once")
    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} is completed. Nothing more happens to it, and its issue is free for another one."
        " Type: adw run 7 --workflow short.\n"
    )


def test_what_waits_for_a_person_and_what_a_person_paused(adw):
    adw_id = start(adw, "gated")

    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} waits for a person to look at plan. Nothing happens until somebody decides."
        f" Type: adw approve {adw_id}, or adw reject {adw_id} -m TEXT.\n"
    )
    assert adw("explain", adw_id, "--json").json()["commands"] == [
        f"adw approve {adw_id}",
        f"adw reject {adw_id} -m TEXT",
    ]
    adw("approve", adw_id)
    adw("pause", adw_id, "-m", "a freeze")
    assert explained(adw, adw_id).startswith(f"Workflow {adw_id} is paused in planning: a freeze. ")


def test_what_has_failed_is_explained_with_commands_that_work(adw, home):
    adw_id = start(adw, "flaky")
    said = explained(adw, adw_id)

    assert f"Workflow {adw_id} failed in build (MAX_ATTEMPTS_EXHAUSTED): " in said
    (home / "mended").touch()
    offered = adw("explain", adw_id, "--json").json()["commands"]
    assert f"adw retry {adw_id} --grant 3" in offered
    assert adw(*offered[1].split()[1:]).rc == 0


def test_what_is_being_worked_on_and_whose_worker_is_gone(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        moving = explained(adw, adw_id)
        running.process.kill()
        running.end()

    assert moving.startswith(f"Workflow {adw_id} is moving: cli ")
    assert " works on build, attempt 1/5. It goes on by itself. " in moving
    gone = explained(adw, adw_id)
    assert "but whoever worked on it is gone: its owner cli " in gone
    assert gone.endswith(f" Type: adw recover, or adw resume {adw_id}.\n")
    cli_lab.let_go(home)  # its command goes on without a worker, and would for ever


def test_what_waits_for_a_retry_says_until_when_and_why(adw, home):
    start_one = adw("run", "7", "--workflow", "patient", "--detach", "--json").json()["adw_id"]
    adw("worker", "--once")

    said = explained(adw, start_one)
    shown = adw("status", start_one).stdout

    assert f"Workflow {start_one} waits to try build again at 20" in said
    assert " UTC (attempt 1/3 failed: " in said
    assert "build  retry_wait  1/3       1       " in shown
    assert re.search(r"\(in [3-6] min\)", shown)  # five minutes, a quarter more or less


def test_the_status_shows_attempts_totals_times_failure_and_hints(adw, home):
    adw_id = start(adw, "flaky")
    (home / "mended").touch()
    adw("retry", adw_id, "--grant", "1", "-m", "plug it in", "--detach")

    shown = adw("status", adw_id).stdout
    told = adw("status", adw_id, "--json").json()

    assert "last failure  build: " in shown
    assert "PHASE  STATUS  ATTEMPTS  IN ALL  TIME " in shown
    assert "build  queued  2/3       2       0." in shown
    assert "hint: plug it in [for build, by " in shown
    phase = told["phases"][0]
    assert (phase["total_attempts"], phase["attempts_used"], phase["max_attempts"]) == (2, 2, 3)
    assert phase["average_seconds"] == pytest.approx(phase["total_seconds"] / 2, abs=0.002)
    assert [attempt["category"] for attempt in phase["attempts"]] == ["transient", "transient"]


def test_every_view_starts_without_the_slow_libraries(adw, home):
    adw_id = start(adw, "short")
    views = [[name, adw_id] for name in ("status", "logs", "events", "explain", "path")]
    views += [[name] for name in ("list", "runs", "locks")]
    # One process for all of them: whatever any of them loads stays loaded.
    script = (
        "import json, sys\n"
        "from adws.cli import main\n"
        f"codes = [main.run(args) for args in {views!r}]\n"
        f"print(json.dumps([codes, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
        env={"ADW_HOME": str(home), "PATH": "/usr/bin:/bin"},
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * len(views), []], done.stderr
