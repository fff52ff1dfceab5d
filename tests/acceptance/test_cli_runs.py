"""`adw queue runs` as a person uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from adws import app as app_module
from adws.adw_modules.queue.model import NewRun, RunState
from adws.config import load as config_load


@pytest.fixture
def app(home):
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home), role="worker") as opened:
        yield opened


def test_a_home_where_nobody_worked_has_no_runs_and_gets_no_database(adw, home):
    done = adw("queue", "runs")

    assert (done.rc, done.stdout) == (0, "no runs\n")
    assert not (home / "state" / "adw.db").exists()


def test_runs_are_shown_newest_first_with_worker_liveness_and_due_time(adw, app):
    app.runs.enqueue(NewRun(adw_id="1a2b3c4d", priority=5))
    app.runs.enqueue(NewRun(adw_id="5e6f7a8b", kind="retry", not_before="2100-01-31T09:00:00Z"))
    app.runs.begin(app.runs.claim(app.processes.me("worker"), ttl_seconds=30.0))

    lines = adw("queue", "runs").stdout.splitlines()

    assert lines[0].split() == ["RUN", "WORKFLOW", "KIND", "STATE", "ASKED", "WORKER", "DUE", "REASON"]
    assert lines[1].split()[:4] == ["2", "5e6f7a8b", "retry", "pending"]
    assert "2100-01-31 09:00:00 UTC" in lines[1]
    assert lines[2].split()[:4] == ["1", "1a2b3c4d", "start", "running"]
    assert ", alive, claim" in lines[2]


def test_json_has_the_same_and_a_page_says_where_the_next_one_starts(adw, app):
    for number in range(3):
        app.runs.enqueue(NewRun(adw_id=f"0000000{number}", payload={"issue": number}))

    first = adw("queue", "runs", "--limit", "2", "--json").json()
    second = adw("queue", "runs", "--limit", "2", "--before", str(first["next_before"]), "--json").json()

    assert [run["adw_id"] for run in first["runs"] + second["runs"]] == ["00000002", "00000001", "00000000"]
    assert second["next_before"] is None
    assert first["runs"][0]["payload"] == {"issue": 2}
    assert adw("queue", "runs", "--limit", "2").stdout.endswith("older ones: adw queue runs --before 2\n")


def test_runs_can_be_chosen_by_state_in_any_case(adw, app):
    for number in range(3):
        app.runs.enqueue(NewRun(adw_id=f"0000000{number}"))
    me = app.processes.me("worker")
    app.runs.finish(app.runs.claim(me, ttl_seconds=30.0), RunState.FAILED, reason="red tests")
    app.runs.claim(me, ttl_seconds=30.0)

    chosen = adw("queue", "runs", "--state", "FAILED", "--state", "claimed", "--json").json()["runs"]

    assert [run["state"] for run in chosen] == ["claimed", "failed"]
    assert "red tests" in adw("queue", "runs", "--state", "failed").stdout
    assert adw("queue", "runs", "--state", "stopped").stdout == "no runs\n"


def test_a_state_that_is_none_is_refused_with_those_there_are(adw):
    done = adw("queue", "runs", "--state", "planning")

    assert done.rc == 2
    assert "'planning' is not a state of a run; use one of pending, claimed, running" in done.stderr


def test_looking_at_runs_does_not_load_sqlalchemy(adw, app, home):
    app.runs.enqueue(NewRun(adw_id="1a2b3c4d"))
    script = (
        "import sys; from adws.cli import main; code = main.run(['queue', 'runs'])\n"
        "print(code, sorted({'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules)))"
    )
    env = {"ADW_HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env, cwd=home)

    assert done.stdout.splitlines()[-1] == "0 []", done.stdout
